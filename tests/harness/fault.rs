//! What goes wrong between a host and its APIs: it ends at a chosen write, an answer gets lost, a watch is late, a tenant is away.
//!
//! A host that ends does so as in a crash: what was acknowledged stays, nothing later arrives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use super::late::Passing;

/// What strikes a host at one of its writes.
pub(crate) trait Strikes: Send + Sync {
    /// Whether what was to happen to the host has happened.
    fn has_struck(&self) -> bool;

    /// Method and path of each write so far, and of each read that failed.
    fn log(&self) -> Vec<String>;
}

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

/// When somebody else moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The host has decided on a write, which has not arrived yet.
    Before,
    /// The write has landed, and the host does not know it yet.
    After,
}

/// What somebody else does around the writes of a host, told by method and path.
pub(crate) type Meddling = Box<dyn Fn(Moment, &str) -> BoxFuture<'static, ()> + Send + Sync>;

/// Counts the writes of one host and spoils them.
pub(crate) struct Fault {
    ends: Ends,
    /// The how many'th time (counted from one) the answer of the same method and path gets lost while the host lives on; zero for never.
    lost: usize,
    /// Whether the first read of each path fails.
    blind: bool,
    /// How often each method and path was asked for so far.
    times: Mutex<HashMap<String, usize>>,
    meddling: Option<Meddling>,
    writes: AtomicUsize,
    /// How often the host ended, or an answer was lost.
    strikes: AtomicUsize,
    dead: AtomicBool,
    cut: AtomicBool,
    late: Mutex<Duration>,
    log: Mutex<Vec<String>>,
    stop: Mutex<Option<CancellationToken>>,
}

impl Fault {
    pub(crate) fn new(ends: Ends) -> Arc<Self> {
        Arc::new(Self::blank(ends))
    }

    pub(crate) fn none() -> Arc<Self> {
        Self::new(Ends::Never)
    }

    /// The host lives on, and never hears what became of the nth time (counted from one) that it writes to a path by a method.
    pub(crate) fn losing(time: usize) -> Arc<Self> {
        Arc::new(Self {
            lost: time,
            ..Self::blank(Ends::Never)
        })
    }

    /// The host lives on, and its first read of each path fails; watches do not.
    pub(crate) fn blind_at_first() -> Arc<Self> {
        Arc::new(Self {
            blind: true,
            ..Self::blank(Ends::Never)
        })
    }

    /// Somebody else moves around each write.
    pub(crate) fn meddled(meddling: Meddling) -> Arc<Self> {
        Arc::new(Self {
            meddling: Some(meddling),
            ..Self::blank(Ends::Never)
        })
    }

    fn blank(ends: Ends) -> Self {
        Self {
            ends,
            lost: 0,
            blind: false,
            times: Mutex::default(),
            meddling: None,
            writes: AtomicUsize::new(0),
            strikes: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            late: Mutex::default(),
            log: Mutex::default(),
            stop: Mutex::default(),
        }
    }

    /// How often the host was struck.
    pub(crate) fn strikes(&self) -> usize {
        self.strikes.load(Ordering::SeqCst)
    }

    /// What to cancel when the host ends.
    pub(crate) fn ends(&self, stop: CancellationToken) {
        *self.stop.lock().unwrap() = Some(stop);
    }

    /// Whether the host was ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// From now on what watches tell arrives so much later.
    pub(crate) fn delay_watches(&self, delay: Duration) {
        *self.late.lock().unwrap() = delay;
    }

    /// How much later what watches tell arrives now.
    pub(super) fn lateness(&self) -> Duration {
        *self.late.lock().unwrap()
    }

    /// Whether the tenants' APIs are out of reach.
    pub(crate) fn cut_tenants(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    fn die(&self) {
        self.strikes.fetch_add(1, Ordering::SeqCst);
        self.dead.store(true, Ordering::SeqCst);
        if let Some(stop) = self.stop.lock().unwrap().as_ref() {
            stop.cancel();
        }
    }

    /// Whether the host may still do anything.
    pub(super) fn alive(&self) -> Result<(), BoxError> {
        if self.is_dead() {
            Err("this host has ended".into())
        } else {
            Ok(())
        }
    }

    /// The how many'th time (counted from one) this is asked for.
    fn nth(&self, line: &str) -> usize {
        let mut times = self.times.lock().unwrap();
        let time = times.entry(line.to_owned()).or_default();
        *time += 1;
        *time
    }

    /// One write of the host.
    pub(super) async fn write<T, E: Into<BoxError>>(
        &self,
        line: String,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BoxError> {
        self.alive()?;
        let number = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        if matches!(self.ends, Ends::After(last) if number > last) {
            self.die();
            return Err("this host has ended before the write".into());
        }
        if let Some(meddling) = &self.meddling {
            meddling(Moment::Before, &line).await;
        }
        let time = self.nth(&line);
        let answer = write.await.map_err(Into::into);
        self.log.lock().unwrap().push(format!("{number} {line}"));
        if let Some(meddling) = &self.meddling {
            meddling(Moment::After, &line).await;
        }
        if self.ends == Ends::LosingAnswer(number) {
            self.die();
            return Err("this host has ended; the answer is lost".into());
        }
        if self.lost == time {
            self.strikes.fetch_add(1, Ordering::SeqCst);
            return Err("the answer is lost".into());
        }
        answer
    }

    /// A client of the platform whose requests pass this fault.
    pub(crate) fn client<S, B>(self: &Arc<Self>, inner: S) -> Client
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Client::new(
            Faulty {
                inner,
                fault: self.clone(),
                of_tenant: false,
            },
            "default",
        )
    }

    /// Likewise of a tenant.
    pub(crate) fn tenant_client<S, B>(self: &Arc<Self>, inner: S) -> Client
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Client::new(
            Faulty {
                inner,
                fault: self.clone(),
                of_tenant: true,
            },
            "default",
        )
    }
}

impl Strikes for Fault {
    fn has_struck(&self) -> bool {
        self.strikes() > 0
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

#[derive(Clone)]
struct Faulty<S> {
    inner: S,
    fault: Arc<Fault>,
    of_tenant: bool,
}

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Passing<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fault = self.fault.clone();
        let path = request.uri().path().to_owned();
        // Events are told, not state: a host that ends between two of them is in no new place.
        let is_write = !matches!(*request.method(), Method::GET | Method::HEAD) && !path.ends_with("/events");
        let is_get = *request.method() == Method::GET;
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|one| one.starts_with("watch=")));
        let line = format!("{} {path}", request.method());
        let of_tenant = self.of_tenant;
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            fault.alive()?;
            if of_tenant && fault.cut.load(Ordering::SeqCst) {
                return Err("the tenant's API does not answer".into());
            }
            if is_write {
                return Ok(fault
                    .write(line, inner.call(request))
                    .await?
                    .map(Passing::at_once));
            }
            if fault.blind && is_get && !is_watch && fault.nth(&line) == 1 {
                fault.strikes.fetch_add(1, Ordering::SeqCst);
                fault.log.lock().unwrap().push(line);
                return Err("it cannot be read just now".into());
            }
            let answer = inner.call(request).await.map_err(Into::into)?;
            Ok(if is_watch {
                answer.map(|body| Passing::watched(body, fault))
            } else {
                answer.map(Passing::at_once)
            })
        })
    }
}
