//! Ends a host at a chosen write, as a crash would: what was acknowledged stays, nothing later arrives.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

/// When a host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Never.
    Never,
    /// Once so many writes were acknowledged.
    After(usize),
    /// When the answer of this write (counted from one) gets lost, though the write landed.
    LosingAnswer(usize),
}

/// Counts the writes of one host and ends it.
pub(crate) struct Fault {
    ends: Ends,
    writes: AtomicUsize,
    dead: AtomicBool,
    log: Mutex<Vec<String>>,
    stop: Mutex<Option<CancellationToken>>,
}

impl Fault {
    pub(crate) fn new(ends: Ends) -> Arc<Self> {
        Arc::new(Self {
            ends,
            writes: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            log: Mutex::default(),
            stop: Mutex::default(),
        })
    }

    pub(crate) fn none() -> Arc<Self> {
        Self::new(Ends::Never)
    }

    /// What to cancel when the host ends.
    pub(crate) fn ends(&self, stop: CancellationToken) {
        *self.stop.lock().unwrap() = Some(stop);
    }

    /// Whether the host was ended.
    pub(crate) fn has_struck(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Method and path of each write so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        if let Some(stop) = self.stop.lock().unwrap().as_ref() {
            stop.cancel();
        }
    }

    /// A client whose requests pass this fault.
    pub(crate) fn client<S, B>(self: &Arc<Self>, inner: S) -> Client
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Client::new(Faulty { inner, fault: self.clone() }, "default")
    }
}

#[derive(Clone)]
struct Faulty<S> {
    inner: S,
    fault: Arc<Fault>,
}

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Send,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fault = self.fault.clone();
        let path = request.uri().path().to_owned();
        // Events are told, not state: a host that ends between two of them is in no new place.
        let is_write = !matches!(*request.method(), Method::GET | Method::HEAD) && !path.ends_with("/events");
        let line = format!("{} {path}", request.method());
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            if fault.has_struck() {
                return Err("this host has ended".into());
            }
            if !is_write {
                return inner.call(request).await.map_err(Into::into);
            }
            let number = fault.writes.fetch_add(1, Ordering::SeqCst) + 1;
            if matches!(fault.ends, Ends::After(last) if number > last) {
                fault.die();
                return Err("this host has ended before the write".into());
            }
            fault.log.lock().unwrap().push(line);
            let answer = inner.call(request).await.map_err(Into::into);
            if fault.ends == Ends::LosingAnswer(number) {
                fault.die();
                return Err("this host has ended; the answer is lost".into());
            }
            answer
        })
    }
}
