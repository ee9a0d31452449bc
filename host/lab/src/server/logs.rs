//! The HTTPS end of a kubelet: `/containerLogs/<namespace>/<pod>/<container>`, as API servers ask for it.
//!
//! It listens on a loopback port; the rack network leads there from the node's address and port 10250. As on a real server,
//! the certificate is made by the kubelet itself, and a client must show one that the authority in the kubelet's own
//! kubeconfig signed for an API server. What a container printed is what an annotation of its pod says ([`super::script`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::pods::Known;
use super::script::logs;

/// Clients that do not say who they are within this time are let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Whom API servers are to kubelets, and the group of those that may do everything.
const CLIENTS: (&str, &str) = ("kube-apiserver-kubelet-client", "system:masters");

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why a kubelet serves nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("no port: {0}")]
    Port(#[from] std::io::Error),
    #[error("no certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the authority of the kubeconfig is of no use for clients: {0}")]
    Authority(String),
}

/// A kubelet's port.
pub(super) struct Door {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Door {
    /// Opens it for clients that `authority` vouches for; `node` and its address are the names in the certificate.
    pub(super) async fn open(authority: Vec<Vec<u8>>, node: &str, address: &str) -> Result<Self, ServeError> {
        let mut roots = RootCertStore::empty();
        for der in authority {
            roots.add(CertificateDer::from(der))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| ServeError::Authority(error.to_string()))?;
        let own = rcgen::generate_simple_self_signed([node.to_owned(), address.to_owned()])?;
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())
            .map_err(|why| ServeError::Authority(why.to_owned()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![own.cert.der().clone()], key)?;
        Ok(Self {
            listener: TcpListener::bind(("127.0.0.1", 0)).await?,
            tls: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// Where it is.
    pub(super) fn address(&self) -> Result<SocketAddr, ServeError> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until it is dropped.
    pub(super) async fn serve(self, pods: watch::Receiver<Known>) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connect(self.tls.clone(), stream, pods.clone()));
                    }
                    Err(error) => {
                        debug!(%error, "a kubelet cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

async fn connect(tls: TlsAcceptor, stream: TcpStream, pods: watch::Receiver<Known>) {
    let stream = match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "a client of a kubelet gave up during the handshake"),
        Err(_) => return,
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let client = chain.first().map(|own| subject(own)).unwrap_or_default();
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&client, &request, &pods);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection to a kubelet broke");
    }
}

/// Common name and organizations in a certificate.
fn subject(certificate: &[u8]) -> (String, Vec<String>) {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Default::default();
    };
    let subject = parsed.subject();
    let name = subject
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok());
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok());
    (
        name.unwrap_or_default().to_owned(),
        groups.map(ToOwned::to_owned).collect(),
    )
}

fn answer(
    (name, groups): &(String, Vec<String>),
    request: &Request<Incoming>,
    pods: &watch::Receiver<Known>,
) -> Response<Body> {
    if name != CLIENTS.0 && !groups.iter().any(|group| group == CLIENTS.1) {
        return text(
            StatusCode::FORBIDDEN,
            format!("Forbidden (user={name}, verb=get, resource=nodes, subresource=log)"),
        );
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed".to_owned());
    }
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    match path.as_slice() {
        ["healthz"] => text(StatusCode::OK, "ok".to_owned()),
        ["containerLogs", namespace, pod, container] => {
            let wish = match Wish::parse(request.uri().query().unwrap_or_default()) {
                Ok(wish) => wish,
                Err(why) => return text(StatusCode::BAD_REQUEST, why),
            };
            let key = ((*namespace).to_owned(), (*pod).to_owned());
            let found = pods.borrow().get(&key).cloned();
            let Some(found) = found else {
                return text(
                    StatusCode::NOT_FOUND,
                    format!("pod {namespace}/{pod} is not known here"),
                );
            };
            match printed(&found, container, &wish, Timestamp::now()) {
                Ok(said) if wish.follow && !wish.previous => follow(said, pods.clone(), key, container),
                Ok(said) => text(StatusCode::OK, said),
                Err(why) => text(StatusCode::BAD_REQUEST, why),
            }
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found".to_owned()),
    }
}

fn text(code: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *answer.status_mut() = code;
    answer
}

/// What was printed, and then nothing more until the container has ended: an annotation prints everything at once.
fn follow(
    said: String,
    mut pods: watch::Receiver<Known>,
    key: (String, String),
    container: &str,
) -> Response<Body> {
    let id_now = move |pods: &Known, container: &str| {
        let status = pods.get(&key).and_then(|pod| status(pod, container).cloned())?;
        let runs = status.state.as_ref()?.running.is_some();
        status.container_id.filter(|_| runs)
    };
    let id = id_now(&pods.borrow_and_update(), container);
    let container = container.to_owned();
    let wait = async move {
        while id.is_some() && id_now(&pods.borrow_and_update(), &container) == id {
            if pods.changed().await.is_err() {
                break;
            }
        }
    };
    let first = stream::once(async move { Some(Ok(Frame::data(Bytes::from(said)))) });
    let rest = stream::once(async move {
        wait.await;
        None
    });
    let frames = futures::StreamExt::filter_map(futures::StreamExt::chain(first, rest), std::future::ready);
    Response::new(StreamBody::new(frames).boxed_unsync())
}

/// Which part of the log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wish {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<usize>,
    limit: Option<usize>,
    since: Option<Since>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Ago(i64),
    Time(Timestamp),
}

impl Wish {
    fn parse(query: &str) -> Result<Self, String> {
        let mut wish = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = |_| format!("{name} has {value:?}, which cannot be read");
            match name {
                "follow" => wish.follow = value == "true",
                "previous" => wish.previous = value == "true",
                "timestamps" => wish.timestamps = value == "true",
                "tailLines" => wish.tail = Some(value.parse().map_err(|_| wrong(()))?),
                "limitBytes" => wish.limit = Some(value.parse().map_err(|_| wrong(()))?),
                "sinceSeconds" => wish.since = Some(Since::Ago(value.parse().map_err(|_| wrong(()))?)),
                "sinceTime" => {
                    let time = value.replace("%3A", ":").replace("%3a", ":").replace("%2B", "+");
                    wish.since = Some(Since::Time(time.parse().map_err(|_| wrong(()))?));
                }
                _ => {}
            }
        }
        Ok(wish)
    }
}

fn status<'p>(pod: &'p Pod, container: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let main = status.container_statuses.iter().flatten();
    main.chain(status.init_container_statuses.iter().flatten())
        .find(|status| status.name == container)
}

/// What a container printed, as far as it is wanted.
fn printed(pod: &Pod, container: &str, wish: &Wish, now: Timestamp) -> Result<String, String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = status(pod, container) else {
        return Err(format!(
            "container {container:?} in pod {name:?} is not available"
        ));
    };
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.clone().unwrap_or_default().terminated;
    let began = if wish.previous {
        let gone = || format!("previous terminated container {container:?} in pod {name:?} not found");
        last.ok_or_else(gone)?.started_at
    } else if let Some(running) = state.running {
        running.started_at
    } else if let Some(ended) = state.terminated.or(last) {
        ended.started_at
    } else {
        let waiting = state.waiting.unwrap_or_default();
        let reason = waiting.reason.unwrap_or_default();
        let why = match reason.as_str() {
            "ContainerCreating" | "PodInitializing" | "" => reason,
            // Otherwise it looks as if waiting would help.
            _ => waiting
                .message
                .map_or(reason.clone(), |message| format!("{reason}: {message}")),
        };
        return Err(format!(
            "container {container:?} in pod {name:?} is waiting to start: {why}"
        ));
    };
    let began = began.map_or(now, |time| time.0);
    let earliest = match wish.since {
        None => None,
        Some(Since::Time(time)) => Some(time),
        Some(Since::Ago(seconds)) => now.checked_sub(SignedDuration::from_secs(seconds)).ok(),
    };
    if earliest.is_some_and(|earliest| began < earliest) {
        return Ok(String::new());
    }
    let is_main = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .any(|one| one.name == container);
    let all = if is_main { logs(pod) } else { String::new() };
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    let skipped = wish.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    let mut out = String::new();
    for line in &lines[skipped..] {
        if wish.timestamps {
            out.push_str(&format!("{began:.9} "));
        }
        out.push_str(line);
    }
    if let Some(mut limit) = wish.limit.filter(|limit| *limit < out.len()) {
        while !out.is_char_boundary(limit) {
            limit -= 1;
        }
        out.truncate(limit);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn noon() -> Timestamp {
        "2026-08-20T12:00:00Z".parse().unwrap()
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"lab.hostler.dev/logs": "one\ntwo\nthree"}},
            "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]},
            "status": {
                "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": status["state"], "lastState": status["last"]}],
                "initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 0, "startedAt": "2026-08-20T11:59:00Z"}}}],
            },
        }))
        .unwrap()
    }

    fn ended() -> Value {
        json!({"terminated": {"exitCode": 0, "startedAt": "2026-08-20T11:59:30Z"}})
    }

    #[rstest]
    #[case::all_of_it("", "one\ntwo\nthree\n")]
    #[case::its_end("tailLines=2", "two\nthree\n")]
    #[case::nothing_of_it("tailLines=0", "")]
    #[case::its_begin("limitBytes=5", "one\nt")]
    #[case::with_times("tailLines=1&timestamps=true", "2026-08-20T11:59:30.000000000Z three\n")]
    #[case::what_is_new("sinceSeconds=30", "one\ntwo\nthree\n")]
    #[case::nothing_new("sinceSeconds=29", "")]
    #[case::since_a_time("sinceTime=2026-08-20T11%3A59%3A31Z", "")]
    fn a_log_is_read(#[case] query: &str, #[case] expected: &str) {
        let pod = pod(json!({"state": ended(), "last": {}}));
        let wish = Wish::parse(query).unwrap();
        assert_eq!(printed(&pod, "a", &wish, noon()).as_deref(), Ok(expected));
        assert_eq!(
            printed(&pod, "i", &wish, noon()).as_deref(),
            Ok(""),
            "who only starts it says nothing"
        );
    }

    #[rstest]
    #[case::before_it_runs(
        json!({"state": {"waiting": {"reason": "ContainerCreating"}}, "last": {}}), "", "a",
        "container \"a\" in pod \"p\" is waiting to start: ContainerCreating"
    )]
    #[case::of_a_container_that_cannot_start(
        json!({"state": {"waiting": {"reason": "CreateContainerError", "message": "why"}}, "last": {}}), "", "a",
        "container \"a\" in pod \"p\" is waiting to start: CreateContainerError: why"
    )]
    #[case::of_the_one_before_the_first(
        json!({"state": ended(), "last": {}}), "previous=true", "a",
        "previous terminated container \"a\" in pod \"p\" not found"
    )]
    #[case::of_another_container(json!({"state": ended(), "last": {}}), "", "b", "container \"b\" in pod \"p\" is not available")]
    fn there_is_no_log(
        #[case] status: Value,
        #[case] query: &str,
        #[case] container: &str,
        #[case] why: &str,
    ) {
        let wish = Wish::parse(query).unwrap();
        assert_eq!(printed(&pod(status), container, &wish, noon()).unwrap_err(), why);
    }

    #[test]
    fn the_log_of_the_one_before_is_kept() {
        let pod = pod(json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "last": ended()}));
        for query in ["", "previous=true"] {
            let wish = Wish::parse(query).unwrap();
            assert_eq!(
                printed(&pod, "a", &wish, noon()).as_deref(),
                Ok("one\ntwo\nthree\n")
            );
        }
        assert!(Wish::parse("tailLines=x").unwrap_err().contains("tailLines"));
    }
}
