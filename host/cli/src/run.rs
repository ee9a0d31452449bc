//! `hostler run`: the controllers against the cluster of the current kubeconfig.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use hostler_controllers::Settings;
use hostler_controllers::control_plane::{ControlPlane, State, TenantPlace};
use hostler_core::seams::Reason;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::args::RunOptions;
use crate::{telemetry, wire};

/// Where this command has no tenants' APIs to give: it says so on each tenant and goes on with the rest.
struct NotGiven;

#[async_trait]
impl ControlPlane for NotGiven {
    async fn ensure(&self, _: &TenantPlace) -> Result<State, Reason> {
        Ok(State::Pending(
            Reason::new("NoControlPlane", "this host makes no control planes")
                .remedy("run `hostler lab`, whose API server makes them"),
        ))
    }

    async fn remove(&self, _: &TenantPlace) -> Result<bool, Reason> {
        Ok(true)
    }
}

pub(crate) async fn main(options: RunOptions) -> anyhow::Result<ExitCode> {
    telemetry::to_stderr();
    let client = Client::try_default()
        .await
        .context("no cluster to run against; set KUBECONFIG, or run in a pod with a service account")?;
    let stop = stopped_by_signal()?;
    let catalog = wire::catalog(
        &options.plugins,
        &options.state,
        &options.required,
        wire::this_program()?,
    )
    .await?;
    wire::install(&client, hostler_api::all_crds()).await?;
    let settings = Settings {
        installation: options.installation,
        cluster_name: options.cluster,
        ..Settings::default()
    };
    tracing::info!("controllers start");
    wire::controllers(client, catalog, Arc::new(NotGiven), settings, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// A token that Ctrl-C and SIGTERM cancel.
pub(crate) fn stopped_by_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        token.cancel();
    });
    Ok(stop)
}
