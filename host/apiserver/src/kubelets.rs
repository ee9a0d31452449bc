//! The way from the server to the kubelets of a cluster's nodes, for what only they know.
//!
//! As on the real server: TLS to the address and port in the Node's status, with a client certificate for
//! `kube-apiserver-kubelet-client` that this server's authority signed, and without a look at who signed the kubelet's
//! certificate, because kubelets sign their own (the real server's default, too).
//!
//! # Guarantees
//! Where an address leads is said by whoever opened the server ([`crate::Options`]); without that nothing is dialled. Whoever
//! may write Nodes can therefore not make the server connect to just anywhere.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use jiff::SignedDuration;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::Body;
use crate::clock::Clock;
use crate::status::ApiError;
use crate::tls::{Authority, Issued};

/// Where a kubelet really listens: by the cluster, and the address and port in the Node's status.
pub type KubeletRoute = Arc<dyn Fn(&str, &str, u16) -> Option<SocketAddr> + Send + Sync>;

/// Whom the server is to kubelets.
const CLIENT: &str = "kube-apiserver-kubelet-client";
/// Port of a kubelet that does not say it.
const PORT: u16 = 10250;
/// A kubelet that has not begun to answer by then is not there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Life of the client certificate; it is made anew at every start.
const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// Refusals of kubelets are short.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// The way to kubelets.
pub(crate) struct Kubelets {
    route: Option<KubeletRoute>,
    /// Made when first needed.
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Kubelets {
    pub(crate) fn new(route: Option<KubeletRoute>) -> Self {
        Self {
            route,
            tls: OnceLock::new(),
        }
    }

    /// Makes the client certificate, unless it is there.
    pub(crate) fn prepare(&self, authority: &Authority, clock: &Clock) {
        if self.route.is_none() {
            return;
        }
        self.tls.get_or_init(|| {
            let issued = authority.client(CLIENT, None, clock(), LIFE);
            issued
                .map_err(|error| error.to_string())
                .and_then(|issued| config(&issued))
        });
    }

    /// Asks the kubelet of a node, and hands its answer on. `about` is the resource and the name that a refusal is about.
    pub(crate) async fn get(
        &self,
        cluster: &str,
        node: &Value,
        path: &str,
        about: (&str, &str),
        stop: &CancellationToken,
    ) -> Result<Response<Body>, ApiError> {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let (address, port) = endpoint(node).ok_or_else(|| {
            failed(format!(
                "no preferred addresses found for node {name:?}; known addresses: []"
            ))
        })?;
        let url = format!("https://{address}:{port}{path}");
        let unreachable =
            |why: &dyn std::fmt::Display| failed(format!("Get {url:?}: dial tcp {address}:{port}: {why}"));
        let target = self
            .route
            .as_ref()
            .and_then(|route| route(cluster, address, port))
            .ok_or_else(|| unreachable(&"no route to host"))?;
        let asked = timeout(PATIENCE, self.ask(target, path))
            .await
            .map_err(|_| unreachable(&"i/o timeout"))?;
        let (answer, connection) = asked.map_err(|why| unreachable(&why))?;
        if !answer.status().is_success() {
            return Err(refusal(answer, about).await);
        }
        let body = StreamBody::new(handed_on(answer.into_body(), connection, stop.clone())).boxed_unsync();
        let mut answer = Response::new(body);
        answer
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(answer)
    }

    async fn ask(
        &self,
        target: SocketAddr,
        path: &str,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String> {
        let tls = match self.tls.get() {
            Some(Ok(tls)) => tls.clone(),
            Some(Err(why)) => return Err(why.clone()),
            None => return Err("there is no client certificate for kubelets".to_owned()),
        };
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let stream = TcpStream::connect(target).await.map_err(|error| told(&error))?;
        let stream = TlsConnector::from(tls)
            .connect(ServerName::from(target.ip()), stream)
            .await
            .map_err(|error| told(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| told(&error))?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a kubelet broke");
            }
        }));
        let request = Request::get(path)
            .header(HOST, target.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(|error| told(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| told(&error))?;
        Ok((answer, connection))
    }
}

/// What the real server says when it does not reach a kubelet has no reason.
fn failed(message: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
}

/// Address and port of a node's kubelet.
fn endpoint(node: &Value) -> Option<(&str, u16)> {
    let addresses = node["status"]["addresses"].as_array()?;
    let of = |kind: &str| {
        let found = addresses.iter().find(|one| one["type"] == kind)?;
        found["address"].as_str().filter(|address| !address.is_empty())
    };
    let address = ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"]
        .into_iter()
        .find_map(of)?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0);
    Some((address, port.unwrap_or(PORT)))
}

/// The answer's body as it comes; cut off when the connection breaks, or at the end of the server.
fn handed_on(
    body: Incoming,
    connection: AbortOnDropHandle<()>,
    stop: CancellationToken,
) -> impl futures::Stream<Item = Result<Frame<Bytes>, std::convert::Infallible>> {
    stream::unfold(
        (body, connection, stop),
        |(mut body, connection, stop)| async move {
            let frame = tokio::select! {
                () = stop.cancelled() => None,
                frame = body.frame() => frame,
            };
            let frame = frame?
                .inspect_err(|error| tracing::debug!(%error, "the answer of a kubelet was cut off"))
                .ok()?;
            Some((Ok(frame), (body, connection, stop)))
        },
    )
}

/// What a kubelet refuses, in the words that it used.
async fn refusal(answer: Response<Incoming>, (resource, name): (&str, &str)) -> ApiError {
    let code = answer.status();
    let text = match Limited::new(answer.into_body(), LONGEST_REFUSAL).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim_end().to_owned(),
        Err(error) => return ApiError::internal(error),
    };
    match code {
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::internal(text),
        StatusCode::BAD_REQUEST => ApiError::bad_request(text),
        StatusCode::NOT_FOUND => {
            let why = format!("the server could not find the requested resource ({resource} {name}): {text}");
            ApiError::new(code, "NotFound", why)
        }
        other => {
            let why = format!("the kubelet answered {other} ({resource} {name}): {text}");
            ApiError::new(other, "", why)
        }
    }
}

/// A part of a path or a query, with all that is special in one written as a code.
pub(crate) fn encoded(part: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn config(issued: &Issued) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate =
        CertificateDer::from_pem_slice(issued.certificate.as_bytes()).map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).map_err(|error| error.to_string())?;
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKubelet(provider)))
        .with_client_auth_cert(vec![certificate], key)
        .map(Arc::new)
        .map_err(|error| error.to_string())
}

/// Takes whatever certificate a kubelet has, once the kubelet has proved that it has the key.
#[derive(Debug)]
struct AnyKubelet(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKubelet {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::inside_first(
        json!({"addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 4194}}}),
        Some(("10.0.0.1", 4194))
    )]
    #[case::at_the_usual_port(
        json!({"addresses": [{"type": "Hostname", "address": "a"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}),
        Some(("a", 10250))
    )]
    #[case::nowhere(json!({}), None)]
    fn a_kubelet_is(#[case] status: Value, #[case] expected: Option<(&str, u16)>) {
        assert_eq!(endpoint(&json!({"status": status})), expected);
    }

    #[test]
    fn nothing_leaves_its_part_of_a_path() {
        assert_eq!(encoded("a-b.c"), "a-b.c");
        assert_eq!(encoded("../x?y"), "..%2Fx%3Fy");
    }
}
