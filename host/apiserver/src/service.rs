//! The server as a service within the process: what a `kube::Client` is built on, without a socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use tower::Service;

use crate::answer::{Body, error_answer};
use crate::authenticate::Identity;
use crate::routes;
use crate::server::Inner;
use crate::status::ApiError;

/// Requests may be this large.
pub(crate) const LARGEST: usize = 3 << 20;

/// One identity's way into one cluster.
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
    cluster: Arc<str>,
    identity: Identity,
}

impl Local {
    pub(crate) fn new(inner: Arc<Inner>, cluster: &str, identity: Identity) -> Self {
        Self {
            inner,
            cluster: cluster.into(),
            identity,
        }
    }
}

impl Service<Request<kube::client::Body>> for Local {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = Limited::new(body, LARGEST).collect().await else {
                return Ok(error_answer(&ApiError::too_large(LARGEST)));
            };
            let path = routes::path(&parts.uri).to_owned();
            Ok(this
                .inner
                .respond(&this.cluster, this.identity, &parts, &path, body.to_bytes())
                .await)
        })
    }
}
