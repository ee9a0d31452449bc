//! The way of every request to an API: not sent without the lease, bounded in time and number, told apart and counted.
//!
//! # Guarantees
//! A write is given up before the lease that allowed it is over. Whatever is not a watch ends within `PATIENCE`, its answer read. An API
//! that says when to come back (429) is left alone until then, by all requests that go this way; such an answer means that nothing was
//! done, so the same request is sent again. Watches hold no place and have no end of ours.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::fence::Fence;
use crate::metrics::Metrics;

/// Longest wait for one answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How often a request that was turned away is sent.
const TRIES: u32 = 4;
/// Wait after a 429 that does not say how long.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait that is believed: an API that asks for more is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Whose API it is, in metrics.
pub(crate) const PLATFORM: &str = "platform";
/// Likewise; which tenant's is not told.
pub(crate) const TENANT: &str = "tenant";

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("not sent: this host does not hold the lease, and writes nothing until it does")]
    NotLeading,
    #[error("given up: the lease of this host would have ended before the answer came")]
    LeaseEnds,
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// How requests to one API go.
pub(crate) struct Way {
    target: &'static str,
    fence: Fence,
    metrics: Arc<Metrics>,
    places: Option<Arc<Semaphore>>,
    /// When the API wants to be asked again.
    closed: Mutex<Option<Instant>>,
}

impl Way {
    pub(crate) fn new(
        target: &'static str,
        fence: Fence,
        metrics: Arc<Metrics>,
        places: Option<Arc<Semaphore>>,
    ) -> Self {
        Self {
            target,
            fence,
            metrics,
            places,
            closed: Mutex::default(),
        }
    }

    async fn until_open(&self) {
        loop {
            let closed = *self.closed.lock().expect("no holder panics");
            match closed.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    fn close_for(&self, pause: Duration) {
        // Those who waited do not all come at once.
        let until = Instant::now() + pause + pause.mul_f64(0.1 * rand::random::<f64>());
        let mut closed = self.closed.lock().expect("no holder panics");
        *closed = Some(closed.map_or(until, |known| known.max(until)));
    }
}

/// The same client, its requests on this way.
pub(crate) fn through(client: &Client, way: Way) -> Client {
    let namespace = client.default_namespace().to_owned();
    let guarded = Guarded {
        inner: below(client),
        way: Arc::new(way),
    };
    Client::new(guarded, namespace)
}

/// The same client, its requests only counted: for what must get through while this host does not lead.
#[must_use]
pub fn counted(client: &Client, metrics: &Arc<Metrics>) -> Client {
    through(client, Way::new(PLATFORM, Fence::open(), metrics.clone(), None))
}

/// A client as the service below a client.
pub(crate) fn below(
    client: &Client,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = kube::Error, Future: Send>
+ Clone
+ Send
+ 'static
+ use<> {
    let client = client.clone();
    tower::service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    })
}

/// Whether a request asks for a watch.
pub(crate) fn is_watch<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query
        .split('&')
        .any(|one| matches!(one, "watch=true" | "watch=1"))
}

fn verb(method: &Method, watch: bool) -> &'static str {
    if watch {
        return "watch";
    }
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

#[derive(Clone)]
struct Guarded<S> {
    inner: S,
    way: Arc<Way>,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let ready = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, ready);
        let way = self.way.clone();
        Box::pin(async move {
            if is_watch(&request) {
                return watch(inner, request, &way).await;
            }
            let deadline = Instant::now() + PATIENCE;
            match tokio::time::timeout_at(deadline, ask(inner, request, &way)).await {
                Ok(answer) => answer,
                Err(_) => Err(Unanswered::Late.into()),
            }
        })
    }
}

async fn watch<S>(mut inner: S, request: Request<Body>, way: &Way) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
{
    way.until_open().await;
    let answer = inner.call(request).await.map_err(Into::into);
    way.metrics
        .request(way.target, verb(&Method::GET, true), code(&answer), None);
    if let Ok(answer) = &answer
        && let Some(pause) = pause(answer)
    {
        way.close_for(pause);
    }
    answer
}

async fn ask<S>(inner: S, request: Request<Body>, way: &Way) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone,
    S::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let verb = verb(&parts.method, false);
    let is_write = verb != "get";
    let mut tries = 0;
    loop {
        tries += 1;
        way.until_open().await;
        let place = match &way.places {
            Some(places) => Some(places.acquire().await?),
            None => None,
        };
        let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
        let began = Instant::now();
        let left = way.fence.left().filter(|_| is_write);
        if left.is_some_and(|left| left.is_zero()) {
            way.metrics.refused();
            return Err(Unanswered::NotLeading.into());
        }
        if is_write {
            tracing::debug!(api = way.target, method = %parts.method, path = parts.uri.path(), "writes");
        }
        let answer = match left {
            Some(left) => match tokio::time::timeout(left, whole(inner.clone(), request)).await {
                Ok(answer) => answer,
                Err(_) => Err(Unanswered::LeaseEnds.into()),
            },
            None => whole(inner.clone(), request).await,
        };
        drop(place);
        let took = Some(began.elapsed());
        way.metrics.request(way.target, verb, code(&answer), took);
        let full = answer.as_ref().ok().filter(|answer| !is_about_a_pod(answer));
        let pause = full.and_then(pause);
        if let Some(pause) = pause {
            way.close_for(pause);
        }
        if pause.is_none() || tries == TRIES {
            return answer.map(|answer| answer.map(Body::from));
        }
    }
}

/// Sends a request and reads all of its answer: what is bounded in time is the whole of it.
async fn whole<S>(mut inner: S, request: Request<Body>) -> Result<Response<Bytes>, BoxError>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
{
    let (parts, body) = inner.call(request).await.map_err(Into::into)?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

fn code<B>(answer: &Result<Response<B>, BoxError>) -> String {
    match answer {
        Ok(answer) => answer.status().as_u16().to_string(),
        Err(_) => "none".to_owned(),
    }
}

/// Whether an answer says that a disruption budget keeps a pod. That is a 429, too, and it may ask for seconds, but it is about the pod and not
/// about the API: it has the budget as a cause, where an API that is full answers in plain text.
/// Source: `pkg/registry/core/pod/storage/eviction.go` and `pkg/server/filters/priority-and-fairness.go` of Kubernetes 1.36.
fn is_about_a_pod(answer: &Response<Bytes>) -> bool {
    answer.status() == StatusCode::TOO_MANY_REQUESTS
        && serde_json::from_slice::<Status>(answer.body()).is_ok_and(|status| keeps_a_pod(&status))
}

/// The same of a Status.
pub(crate) fn keeps_a_pod(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "DisruptionBudget")
}

/// How long to stay away, where the API says so.
fn pause<B>(answer: &Response<B>) -> Option<Duration> {
    if answer.status() != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let told = answer.headers().get(http::header::RETRY_AFTER);
    let told = told
        .and_then(|told| told.to_str().ok())
        .and_then(|told| told.trim().parse::<u64>().ok());
    Some(told.map_or(PAUSE, |told| Duration::from_secs(told).min(LONGEST_PAUSE)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rstest::rstest;

    use super::*;
    use crate::fence::uptime;

    /// Counts what arrives and answers what it is told to.
    fn guarded(
        fence: Fence,
        places: usize,
        answer: impl Fn(usize) -> Response<Body> + Clone + Send + 'static,
        takes: Duration,
    ) -> (
        Guarded<
            impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Clone,
        >,
        Arc<AtomicUsize>,
    ) {
        let arrived = Arc::new(AtomicUsize::new(0));
        let seen = arrived.clone();
        let inner = tower::service_fn(move |_: Request<Body>| {
            let (number, answer) = (seen.fetch_add(1, Ordering::SeqCst), answer.clone());
            async move {
                tokio::time::sleep(takes).await;
                Ok::<_, BoxError>(answer(number))
            }
        });
        let places = Some(Arc::new(Semaphore::new(places)));
        let way = Arc::new(Way::new(PLATFORM, fence, Metrics::new(), places));
        (Guarded { inner, way }, arrived)
    }

    fn ok(_: usize) -> Response<Body> {
        Response::new(Body::empty())
    }

    fn request(method: Method, path: &str) -> Request<Body> {
        Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(b"{}".to_vec()))
            .unwrap()
    }

    fn in_an_hour() -> Fence {
        let fence = Fence::closed();
        fence.open_until(uptime() + Duration::from_secs(3600));
        fence
    }

    #[rstest]
    #[case::create(Method::POST)]
    #[case::update(Method::PUT)]
    #[case::patch(Method::PATCH)]
    #[case::delete(Method::DELETE)]
    #[tokio::test(start_paused = true)]
    async fn no_write_leaves_a_host_without_the_lease(#[case] method: Method) {
        let (mut way, arrived) = guarded(Fence::closed(), 1, ok, Duration::ZERO);
        let refusal = way
            .call(request(method.clone(), "/api/v1/nodes"))
            .await
            .unwrap_err();
        assert!(
            refusal.to_string().contains("does not hold the lease"),
            "{refusal}"
        );
        assert_eq!(arrived.load(Ordering::SeqCst), 0);
        way.call(request(Method::GET, "/api/v1/nodes")).await.unwrap();
        assert_eq!(arrived.load(Ordering::SeqCst), 1, "reading does no harm");

        let (mut way, arrived) = guarded(in_an_hour(), 1, ok, Duration::ZERO);
        way.call(request(method, "/api/v1/nodes")).await.unwrap();
        assert_eq!(arrived.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_write_is_given_up_before_the_lease_ends_and_a_read_is_not() {
        let fence = Fence::closed();
        let (mut way, _) = guarded(fence.clone(), 2, ok, Duration::from_millis(400));
        fence.open_until(uptime() + Duration::from_millis(100));
        let read = way.call(request(Method::GET, "/api/v1/nodes"));
        let given_up = way
            .call(request(Method::PATCH, "/api/v1/nodes/a"))
            .await
            .unwrap_err();
        assert!(given_up.to_string().contains("lease of this host"), "{given_up}");
        read.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_so_long_and_a_watch_without_end() {
        let (mut way, _) = guarded(Fence::open(), 1, ok, PATIENCE * 3);
        let late = way.call(request(Method::GET, "/api/v1/nodes")).await.unwrap_err();
        assert_eq!(late.to_string(), "no answer within 10 s");
        way.call(request(Method::GET, "/api/v1/nodes?watch=true"))
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_more_than_there_is_room_for_waits_and_a_watch_does_not() {
        let second = Duration::from_secs(1);
        let (mut way, _) = guarded(Fence::open(), 1, ok, second);
        let began = Instant::now();
        let (first, next) = (
            way.call(request(Method::GET, "/a")),
            way.call(request(Method::GET, "/b")),
        );
        let watch = way.call(request(Method::GET, "/c?watch=1"));
        let watched = async {
            watch.await.unwrap();
            began.elapsed()
        };
        let both = async {
            let (first, next) = tokio::join!(first, next);
            first.unwrap();
            next.unwrap();
            began.elapsed()
        };
        let (watched, both) = tokio::join!(watched, both);
        assert_eq!((watched, both), (second, second * 2));
    }

    /// Turns the first so many away.
    fn busy(times: usize, told: Option<&'static str>) -> impl Fn(usize) -> Response<Body> + Clone {
        move |number| {
            let mut answer = Response::new(Body::empty());
            if number < times {
                *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                if let Some(told) = told {
                    answer
                        .headers_mut()
                        .insert(http::header::RETRY_AFTER, http::HeaderValue::from_static(told));
                }
            }
            answer
        }
    }

    #[rstest]
    #[case::as_told(Some("3"), 3)]
    #[case::a_second_where_it_does_not_say(None, 1)]
    #[case::a_second_where_it_says_nonsense(Some("soon"), 1)]
    #[tokio::test(start_paused = true)]
    async fn who_is_turned_away_comes_back_when_told(
        #[case] told: Option<&'static str>,
        #[case] seconds: u64,
    ) {
        let (mut way, arrived) = guarded(Fence::open(), 1, busy(1, told), Duration::ZERO);
        let began = Instant::now();
        let answer = way.call(request(Method::PATCH, "/api/v1/nodes/a")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(
            began.elapsed() >= Duration::from_secs(seconds),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(arrived.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_asks_while_the_api_wants_rest_not_even_after_giving_up() {
        let (mut way, arrived) = guarded(Fence::open(), 4, busy(1, Some("30")), Duration::ZERO);
        let began = Instant::now();
        way.call(request(Method::GET, "/a")).await.unwrap_err();
        assert_eq!(began.elapsed(), PATIENCE);
        for path in ["/b", "/c"] {
            way.call(request(Method::GET, path)).await.unwrap_err();
        }
        assert_eq!(arrived.load(Ordering::SeqCst), 1, "asked before the time");
        way.call(request(Method::GET, "/d")).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(30));
    }

    #[rstest]
    #[case::about_the_pod(
        r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429, "reason": "TooManyRequests", "metadata": {},
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": {"retryAfterSeconds": 3, "causes": [{"reason": "DisruptionBudget", "message": "web needs 1"}]}}"#,
        1, StatusCode::TOO_MANY_REQUESTS, 0
    )]
    #[case::about_the_api("Too many requests, please try again later.", 2, StatusCode::OK, 3)]
    #[case::of_a_gateway(
        r#"{"kind": "Status", "code": 429, "message": "slow down"}"#,
        2,
        StatusCode::OK,
        3
    )]
    #[tokio::test(start_paused = true)]
    async fn a_pod_that_may_not_leave_keeps_nobody_from_the_api(
        #[case] body: &'static str,
        #[case] sent: usize,
        #[case] status: StatusCode,
        #[case] seconds: u64,
    ) {
        let busy = busy(1, Some("3"));
        let answer = move |number| busy(number).map(|_| Body::from(body.as_bytes().to_vec()));
        let (mut way, arrived) = guarded(Fence::open(), 1, answer, Duration::ZERO);
        let began = Instant::now();
        let eviction = request(Method::POST, "/api/v1/namespaces/shop/pods/web/eviction");
        assert_eq!(way.call(eviction).await.unwrap().status(), status);
        assert_eq!(arrived.load(Ordering::SeqCst), sent);
        way.call(request(Method::GET, "/api/v1/nodes")).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_api_is_not_asked_for_ever() {
        let (mut way, arrived) = guarded(Fence::open(), 1, busy(99, Some("1")), Duration::ZERO);
        let answer = way.call(request(Method::GET, "/a")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(arrived.load(Ordering::SeqCst), TRIES as usize);
    }
}
