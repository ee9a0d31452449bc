//! What Hostler keeps true: loops over the Kubernetes API. Each turn is the same four steps:
//! observe (reads) → next (pure, in `hostler-core`) → act (writes, in `patch`) → report (status).

#![forbid(unsafe_code)]

pub mod control_plane;
pub mod ctx;
pub mod error;
pub mod events;
pub mod fence;
pub mod lease;
pub mod machines;
pub mod metrics;
pub mod patch;
pub mod requests;
pub mod retries;
pub mod rights;
pub mod turn;
pub mod watched;

mod admission;
mod borrow;
mod capacity;
mod claim;
mod join;
mod judge;
mod metered;
mod owned;
mod plugin;
mod profile;
mod project;
mod provider;
mod scheduler;
mod tenant;

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use hostler_core::seams::Plugins;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use ctx::{Clock, Ctx, MOST_REQUESTS, Settings, Standing, SystemClock};

/// Runs every loop until `stop`. This is the list of them.
///
/// # Guarantees
/// No loop starts before every cache has listed once: nothing is decided from a cache that is empty because it is young.
pub async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = ctx.stores.ready() => {}
    }
    let mut loops = JoinSet::new();
    loops.spawn(provider::run(ctx.clone(), stop.clone()));
    loops.spawn(capacity::run(ctx.clone(), stop.clone()));
    loops.spawn(project::run(ctx.clone(), stop.clone()));
    loops.spawn(tenant::run(ctx.clone(), stop.clone()));
    loops.spawn(admission::run(ctx.clone(), stop.clone()));
    loops.spawn(scheduler::run(ctx.clone(), stop.clone()));
    loops.spawn(join::run(ctx.clone(), stop.clone()));
    loops.spawn(profile::run(ctx.clone(), stop.clone()));
    loops.spawn(plugin::run(ctx.clone(), stop.clone()));
    loops.spawn(claim::run(ctx.clone(), stop.clone()));
    while let Some(ended) = loops.join_next().await {
        if let Err(error) = ended
            && !stop.is_cancelled()
        {
            // A loop that died leaves its part of the work undone: the rest must not go on as if nothing was.
            tracing::error!(error = %error, "a loop died; stopping the host");
            stop.cancel();
        }
    }
}

/// A tick now and with each change of what is loaded.
pub(crate) fn plugins_changed(plugins: Arc<dyn Plugins>, stop: CancellationToken) -> BoxStream<'static, ()> {
    stream::unfold((plugins, None, stop), |(plugins, seen, stop)| async move {
        let next = match seen {
            None => plugins.generation(),
            Some(seen) => tokio::select! {
                () = stop.cancelled() => return None,
                next = plugins.changed(seen) => next,
            },
        };
        Some(((), (plugins, Some(next), stop)))
    })
    .boxed()
}

/// A tick now and with each change of a counter.
pub(crate) fn generations(receiver: watch::Receiver<u64>) -> BoxStream<'static, ()> {
    stream::unfold((receiver, true), |(mut receiver, first)| async move {
        if !first && receiver.changed().await.is_err() {
            return None;
        }
        receiver.borrow_and_update();
        Some(((), (receiver, false)))
    })
    .boxed()
}

/// What is told over a channel; `None` for all that was missed by a reader that fell behind, who should look at everything.
pub(crate) fn told<T>(receiver: broadcast::Receiver<T>) -> BoxStream<'static, Option<T>>
where
    T: Clone + Send + 'static,
{
    stream::unfold(receiver, |mut receiver| async move {
        match receiver.recv().await {
            Ok(told) => Some((Some(told), receiver)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some((None, receiver)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    })
    .boxed()
}
