//! What the process answers about itself: `/healthz` for whoever restarts it, `/readyz` for whoever rolls it out, `/metrics` for whoever watches.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, RwLock};

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hostler_controllers::Ctx;
use hostler_controllers::metrics::Metrics;
use tokio::net::TcpListener;

/// How far the process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for something outside, which is named.
    Waiting(String),
    /// Everything is there; another host leads.
    StandingBy,
    /// It leads.
    Leading,
    /// It ends.
    Stopping,
}

/// What is told of the process.
#[derive(Clone)]
pub(crate) struct Probes {
    stage: Arc<RwLock<Stage>>,
    metrics: Arc<Metrics>,
    ctx: Arc<OnceLock<Arc<Ctx>>>,
}

impl Probes {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            stage: Arc::new(RwLock::new(Stage::Waiting("the start".to_owned()))),
            metrics,
            ctx: Arc::default(),
        }
    }

    pub(crate) fn set(&self, stage: Stage) {
        *self.stage.write().expect("no holder panics") = stage;
    }

    /// From now on the loops are watched, too.
    pub(crate) fn watch(&self, ctx: Arc<Ctx>) {
        drop(self.ctx.set(ctx));
    }

    /// Starts answering.
    ///
    /// # Errors
    /// An address that is not free.
    pub(crate) async fn serve(&self, address: SocketAddr) -> anyhow::Result<()> {
        let listener = listen(address).await.with_context(|| {
            format!("--metrics-listen {address} cannot be used; choose another address, or stop what uses it")
        })?;
        tracing::info!(address = %listener.local_addr()?, "metrics and probes are answered");
        let router = self.router();
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(error = %error, "metrics and probes are not answered any more");
            }
        });
        Ok(())
    }

    fn router(&self) -> Router {
        let (health, ready, metrics) = (self.clone(), self.clone(), self.clone());
        Router::new()
            .route("/healthz", get(async move || health.health()))
            .route("/readyz", get(async move || ready.ready()))
            .route("/metrics", get(async move || metrics.counters()))
    }

    fn health(&self) -> (StatusCode, String) {
        match self.ctx.get().and_then(|ctx| ctx.turns.stuck()) {
            Some((area, age)) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("a turn of {area} has not ended for {} s\n", age.as_secs()),
            ),
            None => (StatusCode::OK, "ok\n".to_owned()),
        }
    }

    fn ready(&self) -> (StatusCode, String) {
        let not = |text: String| (StatusCode::SERVICE_UNAVAILABLE, text);
        let stage = self.stage.read().expect("no holder panics").clone();
        match stage {
            Stage::StandingBy => (StatusCode::OK, "ok: standing by\n".to_owned()),
            Stage::Leading if self.ctx.get().is_some_and(|ctx| !ctx.may_write()) => {
                not("the lease cannot be renewed\n".to_owned())
            }
            Stage::Leading => (StatusCode::OK, "ok: leading\n".to_owned()),
            Stage::Waiting(what) => not(format!("waiting for {what}\n")),
            Stage::Stopping => not("stopping\n".to_owned()),
        }
    }

    fn counters(&self) -> Response {
        let (kind, text) = match self.ctx.get() {
            Some(ctx) => ctx.counters(),
            None => self.metrics.text(),
        };
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

/// Every address means every one that this machine has, also where it has none of version 6.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))).await
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::before_it_starts(Stage::Waiting("the API server".to_owned()), false, "waiting for the API server\n")]
    #[case::a_replica_that_waits_is_ready(Stage::StandingBy, true, "ok: standing by\n")]
    #[case::one_that_leads_too(Stage::Leading, true, "ok: leading\n")]
    #[case::one_that_ends_is_not(Stage::Stopping, false, "stopping\n")]
    fn readiness_says_why_not(#[case] stage: Stage, #[case] ready: bool, #[case] text: &str) {
        let probes = Probes::new(Metrics::new());
        probes.set(stage);
        let (code, said) = probes.ready();
        assert_eq!((code == StatusCode::OK, said.as_str()), (ready, text));
        assert_eq!(
            probes.health().0,
            StatusCode::OK,
            "waiting is no reason to be restarted"
        );
    }
}
