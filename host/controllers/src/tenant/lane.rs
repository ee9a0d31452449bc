//! The way to a tenant's API: so wide and no wider. Whatever a tenant puts into its API, it costs the host a bounded share.
//!
//! # Guarantees
//! A tenant has few requests at once, whoever of the host's loops they are from. An answer, and each event of a watch, has a size
//! at which it is cut off as an error; a request that nobody waits for any more leaves its place.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::Client;
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{BoxError, Service};

/// Requests of one tenant at once. Watches hold no place: they never end.
const WIDTH: usize = 8;
/// Most bytes of an answer, and of one event of a watch.
const LARGEST: usize = 16 << 20;
/// Most objects of one kind that are kept of one tenant.
pub(crate) const MOST: usize = 5_000;

/// The same client in a lane of its own.
#[must_use]
pub(super) fn narrow(client: &Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let lane = Lane {
        inner: Through(client.clone()),
        places: Arc::new(Semaphore::new(WIDTH)),
        largest: LARGEST,
    };
    Client::new(lane, namespace)
}

/// A client as the service below a client.
#[derive(Clone)]
struct Through(Client);

impl Service<Request<Body>> for Through {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { client.send(request).await })
    }
}

#[derive(Clone)]
struct Lane<S> {
    inner: S,
    places: Arc<Semaphore>,
    largest: usize,
}

impl<S> Service<Request<Body>> for Lane<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    type Response = Response<Bounded>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let (places, largest) = (self.places.clone(), self.largest);
        let query = request.uri().query().unwrap_or_default();
        let lines = query
            .split('&')
            .any(|one| matches!(one, "watch=true" | "watch=1"));
        Box::pin(async move {
            let place = if lines {
                None
            } else {
                Some(places.acquire_owned().await?)
            };
            let (parts, body) = inner.call(request).await.map_err(Into::into)?.into_parts();
            let body = Bounded {
                body: Box::pin(body),
                largest,
                seen: 0,
                lines,
                _place: place,
            };
            Ok(Response::from_parts(parts, body))
        })
    }
}

/// An answer that may not grow beyond its bound; it holds its place until it was read or dropped.
struct Bounded {
    body: Pin<Box<Body>>,
    largest: usize,
    seen: usize,
    /// Whether each line counts for itself.
    lines: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(self.body.as_mut().poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        let data = frame.data_ref().map(AsRef::as_ref).unwrap_or_default();
        self.seen = match data
            .iter()
            .rposition(|byte| *byte == b'\n')
            .filter(|_| self.lines)
        {
            Some(end) => data.len() - end - 1,
            None => self.seen.saturating_add(data.len()),
        };
        if self.seen > self.largest {
            let text = format!(
                "the tenant's API answers with more than {} bytes; the rest is not read",
                self.largest
            );
            return Poll::Ready(Some(Err(text.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http_body_util::BodyExt;
    use rstest::rstest;

    use super::*;

    /// Answers everything with the same text.
    fn lane(
        text: &'static str,
        width: usize,
        largest: usize,
    ) -> Lane<impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Clone>
    {
        let inner = tower::service_fn(move |_: Request<Body>| async move {
            Ok::<_, BoxError>(Response::new(Body::from(text.as_bytes().to_vec())))
        });
        Lane {
            inner,
            places: Arc::new(Semaphore::new(width)),
            largest,
        }
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    #[rstest]
    #[case::fits("/api/v1/nodes", "12345678", true)]
    #[case::too_large("/api/v1/nodes", "123456789", false)]
    #[case::lines_are_no_help("/api/v1/nodes", "1234\n56789", false)]
    #[case::events_count_for_themselves("/api/v1/nodes?watch=true", "12345678\n1234567\n", true)]
    #[case::an_event_without_end("/api/v1/nodes?watch=true", "1\n23456789012", false)]
    #[tokio::test]
    async fn an_answer_has_a_bound(#[case] path: &str, #[case] text: &'static str, #[case] fits: bool) {
        let answer = lane(text, 1, 8).call(get(path)).await.unwrap();
        assert_eq!(answer.into_body().collect().await.is_ok(), fits);
    }

    #[tokio::test]
    async fn one_request_more_than_there_is_room_for_waits_and_a_watch_does_not() {
        let mut lane = lane("x", 1, 8);
        let first = lane.call(get("/api/v1/nodes")).await.unwrap();
        let mut second = lane.call(get("/api/v1/nodes"));
        assert!(
            (&mut second).now_or_never().is_none(),
            "two at once in a lane for one"
        );
        assert!(
            lane.call(get("/api/v1/nodes?watch=true"))
                .now_or_never()
                .is_some()
        );
        drop(first);
        assert!(second.now_or_never().is_some(), "the place was not left");
    }
}
