//! What Hostler keeps true: loops over the Kubernetes API. Each turn is the same four steps:
//! observe (reads) → next (pure, in `hostler-core`) → act (writes, in `patch`) → report (status).

#![forbid(unsafe_code)]

pub mod control_plane;
pub mod ctx;
pub mod error;
pub mod events;
pub mod machines;
pub mod patch;
pub mod retries;
pub mod watched;

mod capacity;
mod provider;
mod scheduler;

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use hostler_core::seams::Plugins;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use ctx::{Clock, Ctx, Settings, SystemClock};

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
