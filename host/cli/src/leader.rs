//! Runs the loops while this host leads, and ends them before anybody else can.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hostler_controllers::fence::Fence;
use hostler_controllers::lease::{Election, Leadership};
use hostler_controllers::metrics::Metrics;
use hostler_controllers::{Ctx, requests};
use hostler_core::lease::Terms;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::args::LeaseOptions;
use crate::probes::{Probes, Stage};

/// Longest wait for turns to end: a turn waits 10 s for one answer. With what is left of 30 s, which a pod has, the lease is given up.
const FAREWELL: Duration = Duration::from_secs(20);

/// How the loops came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As they were told.
    Told,
    /// Somebody else leads.
    Deposed,
    /// A loop died, or did not end.
    Broken,
}

/// The candidate that the flags ask for; none where there is no election.
///
/// # Errors
/// Times that do not go together.
pub(crate) fn candidate(
    options: &LeaseOptions,
    client: &Client,
    fence: &Fence,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<Election>> {
    if !options.leader_elect {
        return Ok(None);
    }
    let terms = Terms::new(options.lease_duration, options.lease_renew)
        .map_err(anyhow::Error::msg)
        .context("--lease-duration and --lease-renew")?;
    let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    let namespace = options
        .lease_namespace
        .clone()
        .or_else(|| set("POD_NAMESPACE"))
        .unwrap_or_else(|| client.default_namespace().trim().to_owned());
    // A name that no earlier process had: what it left behind is not ours.
    let place = set("POD_NAME")
        .or_else(|| set("HOSTNAME"))
        .unwrap_or_else(|| "host".to_owned());
    let me = format!("{place}_{:016x}", rand::random::<u64>());
    Ok(Some(Election::new(
        requests::counted(client, metrics),
        &namespace,
        &options.lease_name,
        me,
        terms,
        fence.clone(),
        metrics.clone(),
    )))
}

/// Waits until this host leads, runs the loops, and gives the lease up once they have ended.
pub(crate) async fn run(
    candidate: Option<Election>,
    ctx: Arc<Ctx>,
    probes: &Probes,
    stop: &CancellationToken,
) -> Ended {
    let leadership = match candidate {
        None => {
            ctx.metrics.lead(true);
            None
        }
        Some(candidate) => {
            probes.set(Stage::StandingBy);
            match candidate.win(stop).await {
                Some(leadership) => Some(leadership),
                None => return Ended::Told,
            }
        }
    };
    probes.set(Stage::Leading);
    tracing::info!("controllers start");
    let lost = leadership
        .as_ref()
        .map_or_else(CancellationToken::new, |leadership| leadership.lost().clone());
    let ended = loops(ctx, probes, stop, &lost).await;
    if ended == Ended::Told {
        give_up(leadership).await;
    }
    ended
}

async fn loops(ctx: Arc<Ctx>, probes: &Probes, stop: &CancellationToken, lost: &CancellationToken) -> Ended {
    let end = CancellationToken::new();
    let mut all = tokio::spawn(hostler_controllers::run(ctx, end.clone()));
    tokio::select! {
        () = stop.cancelled() => {}
        () = lost.cancelled() => {}
        // They end by themselves only when one of them died, which is told already.
        _ = &mut all => return Ended::Broken,
    }
    probes.set(Stage::Stopping);
    tracing::info!("controllers stop");
    end.cancel();
    let in_time = tokio::time::timeout(FAREWELL, &mut all).await.is_ok();
    if lost.is_cancelled() {
        return Ended::Deposed;
    }
    if !in_time {
        tracing::error!(
            seconds = FAREWELL.as_secs(),
            "the loops did not end in time; the lease ends by itself"
        );
        return Ended::Broken;
    }
    Ended::Told
}

async fn give_up(leadership: Option<Leadership>) {
    if let Some(leadership) = leadership {
        leadership.resign().await;
    }
}
