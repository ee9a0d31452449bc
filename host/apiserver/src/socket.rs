//! The server on a socket: TLS, HTTP/1.1 and HTTP/2, and who is at the other end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{Body, error_answer};
use crate::routes;
use crate::server::{Inner, Server, ServerError};
use crate::service::LARGEST;
use crate::status::ApiError;

/// Clients that do not say who they are within this time are let go.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long requests may go on after the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Pause after the system refuses a connection, for instance because too many files are open.
const BREATH: Duration = Duration::from_millis(100);

impl Server {
    /// Serves a socket until `stop`, and then until open requests are answered or time is up.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> Result<(), ServerError> {
        let inner = &self.inner;
        let config = inner
            .authority
            .server_config(&inner.options.names, (inner.options.clock)())?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connect(inner.clone(), acceptor.clone(), stream, stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        // Watches would go on for long.
        inner.stop.cancel();
        connections.close();
        if timeout(FAREWELL, connections.wait()).await.is_err() {
            tracing::debug!("some connections did not end in time and are dropped");
        }
        Ok(())
    }
}

async fn connect(inner: Arc<Inner>, acceptor: TlsAcceptor, stream: TcpStream, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a client gave up during the handshake"),
        Err(_) => return,
    };
    let chain: Arc<[CertificateDer<'static>]> = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .to_vec()
        .into();
    let service = service_fn(move |request: Request<Incoming>| {
        let (inner, chain) = (inner.clone(), chain.clone());
        async move { Ok::<_, Infallible>(answer(&inner, &chain, request).await) }
    });
    let builder = Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn answer(
    inner: &Inner,
    chain: &[CertificateDer<'static>],
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let (cluster, path) = routes::split_cluster(routes::path(&parts.uri));
    let cluster = cluster.unwrap_or(&inner.options.cluster);
    let identity = match inner.identify(cluster, chain, &parts) {
        Ok(identity) => identity,
        Err(error) => return error_answer(&error),
    };
    match Limited::new(body, LARGEST).collect().await {
        Ok(body) => {
            inner
                .respond(cluster, identity, &parts, path, body.to_bytes())
                .await
        }
        Err(_) => error_answer(&ApiError::too_large(LARGEST)),
    }
}
