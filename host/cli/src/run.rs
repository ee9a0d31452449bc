//! `hostler run`: the controllers against a cluster, by kubeconfig or in it; one of several such processes is active.
//!
//! # Guarantees
//! What it needs from outside may come later, go away and come back: it waits, says for what, and is not ready meanwhile. Told to stop, it
//! ends its turns, gives the lease up and ends with 0; deposed, it writes nothing more and ends with 1, to be started anew as a candidate.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use hostler_controllers::fence::Fence;
use hostler_controllers::metrics::Metrics;
use hostler_controllers::{Ctx, Settings, Standing, SystemClock, requests};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::args::RunOptions;
use crate::leader::{self, Ended};
use crate::probes::{Probes, Stage};
use crate::served::Look;
use crate::{client, served, telemetry, wire};

/// Time between two looks for what is not there yet.
const LOOK: Duration = Duration::from_secs(1);
/// Looks between two lines about it.
const TELL: u32 = 30;
/// Looks within which an API that serves kinds describes them, if it ever does: a real one looks for new ones each second.
const DESCRIBED_WITHIN: u32 = 10;

pub(crate) async fn main(options: RunOptions) -> anyhow::Result<ExitCode> {
    telemetry::to_stderr(&options.log)?;
    let stop = stopped_by_signal()?;
    let config = client::config(options.kubeconfig.as_deref()).await?;
    let platform = client::renewing(config.clone(), options.kubeconfig.clone())?;
    let (metrics, fence) = (
        Metrics::new(),
        if options.lease.leader_elect {
            Fence::closed()
        } else {
            Fence::open()
        },
    );
    let candidate = leader::candidate(&options.lease, &platform, &fence, &metrics)?;
    let probes = Probes::new(metrics.clone());
    if let Some(address) = options.metrics_listen {
        probes.serve(address).await?;
    }
    probes.set(Stage::Waiting("its plugins".to_owned()));
    let catalog = wire::catalog(
        &options.plugins,
        &options.state,
        &options.required,
        wire::this_program()?,
    )
    .await?;
    let counted = requests::counted(&platform, &metrics);
    tokio::select! {
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        ready = prepare(&counted, &probes, options.install_crds) => ready?,
    }
    let connect = |mut config: kube::Config| {
        config.default_retry = false;
        Client::try_from(config)
    };
    let control_planes = wire::given(counted, &config, Arc::new(connect));
    let settings = Settings {
        installation: options.installation,
        cluster_name: options.cluster,
        ..Settings::default()
    };
    let standing = Standing {
        fence,
        metrics,
        most_requests: options.max_requests,
    };
    // They outlive the loops, which read them until their last turn.
    let caches = CancellationToken::new();
    let _end = caches.clone().drop_guard();
    let ctx = Ctx::start_as(
        standing,
        platform,
        catalog,
        control_planes,
        Arc::new(SystemClock),
        settings,
        &caches,
    );
    probes.watch(ctx.clone());
    probes.set(Stage::Waiting("the first lists of its caches".to_owned()));
    tokio::select! {
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        () = ctx.stores.ready() => {}
    }
    match leader::run(candidate, ctx, &probes, &stop).await {
        Ended::Told => Ok(ExitCode::SUCCESS),
        Ended::Deposed => bail!("another host leads; this one ends, and stands by when it is started again"),
        Ended::Broken => bail!("the host had to end; its log says why"),
    }
}

/// Waits for the API server, and for the kinds that everything here is about, as this host knows them.
async fn prepare(client: &Client, probes: &Probes, install: bool) -> anyhow::Result<()> {
    let mut looks = 0;
    while let Err(error) = client.apiserver_version().await {
        wait(probes, &mut looks, "the API server", &error.to_string()).await;
    }
    if install {
        return wire::install(client, hostler_api::all_crds()).await;
    }
    let definitions = hostler_api::all_crds();
    let (mut looks, mut silent) = (0, 0);
    loop {
        let why = match served::look(client, &definitions).await {
            Ok(Look { missing, .. }) if !missing.is_empty() => missing.join("; "),
            Ok(look) if look.silent.is_empty() => return Ok(()),
            Ok(look) => {
                let undescribed = look.silent.join(", ");
                if silent == DESCRIBED_WITHIN {
                    tracing::warn!(
                        undescribed,
                        "the API does not describe its kinds, so whether it knows all fields is not known"
                    );
                    return Ok(());
                }
                silent += 1;
                format!("{undescribed} (not described yet)")
            }
            Err(error) => error.to_string(),
        };
        let what = "kinds and fields that the API does not serve; apply what `hostler crds` prints, or start with --install-crds";
        wait(probes, &mut looks, what, &why).await;
    }
}

async fn wait(probes: &Probes, looks: &mut u32, what: &str, why: &str) {
    if looks.is_multiple_of(TELL) {
        tracing::warn!(why, "waiting for {what}");
    } else {
        tracing::debug!(why, "still waiting for {what}");
    }
    *looks += 1;
    probes.set(Stage::Waiting(format!("{what}: {why}")));
    tokio::time::sleep(LOOK).await;
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
