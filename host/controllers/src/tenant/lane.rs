//! The way to a tenant's API: so wide and no wider. Whatever a tenant puts into its API, it costs the host a bounded share.
//!
//! # Guarantees
//! A tenant has few requests at once, whoever of the host's loops they are from. An answer, and each event of a watch, has a size
//! at which it is cut off as an error; a request that nobody waits for any more leaves its place. Each answer has to begin, and each but
//! that of a watch to end, within a time; events are read no faster than a rate. A redirection is an error, and is not followed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use kube::Client;
use kube::client::Body;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service};

use crate::requests::{below, is_watch};

/// Requests of one tenant at once. Watches hold no place: they never end.
const WIDTH: usize = 8;
/// Most bytes of an answer, and of one event of a watch.
const LARGEST: usize = 16 << 20;
/// Most bytes of an answer that says no.
const LARGEST_NO: usize = 64 << 10;
/// Longest wait for an answer to begin: less than the host waits for a whole one, so that silence is seen here.
const TO_BEGIN: Duration = Duration::from_secs(9);
/// Longest time that an answer may take to come in, but that of a watch.
const TO_END: Duration = Duration::from_secs(30);
/// Bytes of events that are read at once, and in each second from then on. 5000 nodes of 20 KiB, each told every five minutes, are
/// a sixth of it.
const FLOW: Flow = Flow {
    burst: 16 << 20,
    rate: 2 << 20,
};
/// Most objects of one kind that are kept of one tenant.
pub(crate) const MOST: usize = 5_000;

/// The same client in a lane of its own.
#[must_use]
pub(crate) fn narrow(client: &Client, doubt: Option<Arc<Notify>>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let lane = Lane {
        inner: below(client),
        places: Arc::new(Semaphore::new(WIDTH)),
        largest: LARGEST,
        doubt,
    };
    Client::new(lane, namespace)
}

#[derive(Clone)]
struct Lane<S> {
    inner: S,
    places: Arc<Semaphore>,
    largest: usize,
    doubt: Option<Arc<Notify>>,
}

impl<S> Lane<S> {
    /// Whoever watches over the tenant's API looks at it.
    fn ring(&self) {
        if let Some(doubt) = &self.doubt {
            doubt.notify_one();
        }
    }
}

/// How fast the events of a watch are read.
#[derive(Clone, Copy)]
struct Flow {
    burst: usize,
    rate: usize,
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
        let ready = self.clone();
        let mut lane = std::mem::replace(self, ready);
        let lines = is_watch(&request);
        Box::pin(async move {
            let place = if lines {
                None
            } else {
                Some(lane.places.clone().acquire_owned().await?)
            };
            let answer = match tokio::time::timeout(TO_BEGIN, lane.inner.call(request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    lane.ring();
                    return Err(error.into());
                }
                Err(_) => {
                    lane.ring();
                    return Err(format!("no answer began within {} s", TO_BEGIN.as_secs()).into());
                }
            };
            let status = answer.status();
            if status == StatusCode::UNAUTHORIZED {
                lane.ring();
            }
            if status.is_redirection() || status.is_informational() {
                return Err(format!(
                    "the tenant's API answers HTTP {}, which is not followed",
                    status.as_u16()
                )
                .into());
            }
            let (parts, body) = answer.into_parts();
            let largest = if status.is_success() {
                lane.largest
            } else {
                lane.largest.min(LARGEST_NO)
            };
            let body = Bounded {
                body: Box::pin(body),
                largest,
                seen: 0,
                lines: lines.then(|| Pace::new(FLOW)),
                end: (!lines).then(|| Box::pin(tokio::time::sleep(TO_END))),
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
    /// Where each line counts for itself, how fast they are read.
    lines: Option<Pace>,
    /// When it has to be there.
    end: Option<Pin<Box<Sleep>>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// Bytes that may be read now, and the pause until there are some again.
struct Pace {
    flow: Flow,
    left: usize,
    counted: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    fn new(flow: Flow) -> Self {
        Self {
            flow,
            left: flow.burst,
            counted: Instant::now(),
            pause: None,
        }
    }

    /// Takes what was read; more than there is makes the next read wait.
    fn read(&mut self, bytes: usize) {
        let now = Instant::now();
        let passed = now.duration_since(self.counted).as_millis();
        let fresh = usize::try_from(passed)
            .unwrap_or(usize::MAX)
            .saturating_mul(self.flow.rate)
            / 1000;
        if fresh > 0 {
            self.left = self.left.saturating_add(fresh).min(self.flow.burst);
            self.counted = now;
        }
        if let Some(left) = self.left.checked_sub(bytes) {
            self.left = left;
            return;
        }
        let owed = bytes - self.left;
        self.left = 0;
        let millis = u64::try_from(owed.saturating_mul(1000) / self.flow.rate).unwrap_or(u64::MAX);
        let pause = Duration::from_millis(millis);
        // What comes in while it waits is what it owes.
        self.counted = now + pause;
        self.pause = Some(Box::pin(tokio::time::sleep(pause)));
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(context).is_ready()
        {
            let text = format!(
                "the tenant's API did not end its answer within {} s",
                TO_END.as_secs()
            );
            return Poll::Ready(Some(Err(text.into())));
        }
        if let Some(pace) = &mut self.lines
            && let Some(pause) = &mut pace.pause
        {
            ready!(pause.as_mut().poll(context));
            pace.pause = None;
        }
        let frame = match ready!(self.body.as_mut().poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        let data = frame.data_ref().map(AsRef::as_ref).unwrap_or_default();
        if let Some(pace) = &mut self.lines {
            pace.read(data.len());
        }
        self.seen = match data
            .iter()
            .rposition(|byte| *byte == b'\n')
            .filter(|_| self.lines.is_some())
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
            doubt: None,
        }
    }

    /// Answers as told, and rings where it has to.
    fn doubtful<F>(
        answer: impl Fn() -> F + Clone + Send + 'static,
    ) -> (
        Lane<impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Clone>,
        Arc<Notify>,
    )
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
    {
        let doubt = Arc::new(Notify::new());
        let lane = Lane {
            inner: tower::service_fn(move |_: Request<Body>| answer()),
            places: Arc::new(Semaphore::new(1)),
            largest: 8,
            doubt: Some(doubt.clone()),
        };
        (lane, doubt)
    }

    fn has_rung(doubt: &Notify) -> bool {
        doubt.notified().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_begin_is_an_error_and_rings() {
        for path in ["/api/v1/nodes", "/api/v1/nodes?watch=true"] {
            let (mut lane, doubt) = doubtful(std::future::pending);
            let error = lane.call(get(path)).await.err().unwrap();
            assert!(error.to_string().contains("no answer"), "{error}");
            assert!(has_rung(&doubt));
        }
    }

    #[tokio::test]
    async fn an_api_that_is_not_there_or_knows_the_host_no_more_rings() {
        let (mut lane, doubt) = doubtful(|| async { Err("nobody listens".into()) });
        lane.call(get("/api/v1/nodes")).await.err().unwrap();
        assert!(has_rung(&doubt));
        let (mut lane, doubt) = doubtful(|| async {
            let mut no = Response::new(Body::empty());
            *no.status_mut() = StatusCode::UNAUTHORIZED;
            Ok(no)
        });
        lane.call(get("/api/v1/nodes")).await.unwrap();
        assert!(has_rung(&doubt));
        let (mut lane, doubt) = doubtful(|| async { Ok(Response::new(Body::empty())) });
        lane.call(get("/api/v1/nodes")).await.unwrap();
        assert!(!has_rung(&doubt), "a good answer is no reason to doubt");
    }

    #[rstest]
    #[case(101)]
    #[case(301)]
    #[case(307)]
    #[tokio::test]
    async fn an_answer_that_leads_elsewhere_is_an_error(#[case] code: u16) {
        let (mut lane, _) = doubtful(move || async move {
            let mut elsewhere = Response::new(Body::empty());
            *elsewhere.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok(elsewhere)
        });
        let error = lane.call(get("/api/v1/nodes")).await.err().unwrap();
        assert!(error.to_string().contains(&code.to_string()), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_end_is_cut_off_and_leaves_its_place() {
        let service = tower::service_fn(|_: Request<Body>| async {
            let drops = futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some((Ok::<_, BoxError>(Frame::data(Bytes::new())), ()))
            });
            Ok::<_, BoxError>(Response::new(http_body_util::StreamBody::new(drops)))
        });
        let mut lane = Lane {
            inner: below(&Client::new(service, "default")),
            places: Arc::new(Semaphore::new(1)),
            largest: 8,
            doubt: None,
        };
        let answer = lane.call(get("/api/v1/nodes")).await.unwrap();
        let error = answer.into_body().collect().await.err().unwrap();
        assert!(error.to_string().contains("did not end"), "{error}");
        lane.call(get("/api/v1/nodes")).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_read_no_faster_than_the_rate() {
        let mut pace = Pace::new(Flow {
            burst: 1000,
            rate: 100,
        });
        pace.read(1000);
        assert!(pace.pause.is_none(), "what came at once is read at once");
        pace.read(200);
        let begin = Instant::now();
        pace.pause.take().unwrap().await;
        assert_eq!(begin.elapsed().as_millis(), 2000);
        pace.read(1);
        assert!(pace.pause.is_some(), "nothing was saved up meanwhile");
        tokio::time::sleep(Duration::from_secs(60)).await;
        pace.pause = None;
        pace.read(1000);
        assert!(pace.pause.is_none(), "what is saved up is a burst again");
        pace.read(1);
        assert!(pace.pause.is_some(), "and no more than that");
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
