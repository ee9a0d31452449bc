//! Hears of changes in the plugin directory.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Which directory this is, whatever it is called.
pub(super) fn inode(directory: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(directory)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Watches the directory; where that cannot be, reading it again and again must do.
pub(super) fn watch(directory: &Path, changes: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Reading the directory makes events of its own; what is only looked at has not changed.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changes.try_send(());
        }
    };
    let watching = notify::recommended_watcher(told).and_then(|mut watcher| {
        watcher
            .watch(directory, RecursiveMode::NonRecursive)
            .map(|()| watcher)
    });
    watching
        .inspect_err(
            |error| tracing::warn!(%error, "cannot watch the plugin directory; reading it now and then"),
        )
        .ok()
}
