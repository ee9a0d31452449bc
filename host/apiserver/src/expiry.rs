//! Events are forgotten some time after their last change.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::background::{self, Pace};
use crate::clock::Clock;
use crate::store::object::Stored;
use crate::store::{Expect, Refused, Storage, Write};

const EVENTS: &str = "events";

/// Deletes old events until it is stopped.
pub(crate) async fn run(storage: Arc<Storage>, clock: Clock, ttl: Duration, stop: CancellationToken) {
    let pause = (ttl / 60).max(Duration::from_secs(1));
    let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    loop {
        // With nothing to expire there is nothing to wait for but a first event.
        let is_any = storage
            .read()
            .clusters()
            .any(|(_, cluster)| cluster.table(EVENTS).is_some_and(|all| all.len() > 0));
        if is_any {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        } else {
            let mut pulse = Pace::new(&storage, stop.clone());
            if !(pulse.next(None).await && pulse.next(None).await) {
                return;
            }
            continue;
        }
        let now = clock().as_second();
        for cluster in background::clusters(&storage) {
            for event in old(&storage, &cluster, now.saturating_sub(ttl)) {
                let write = Write {
                    cluster: cluster.clone(),
                    table: EVENTS.to_owned(),
                    key: event.key.clone(),
                    expect: Expect::Revision(event.revision),
                    guards: Vec::new(),
                    object: None,
                };
                match storage.write(write).await {
                    Ok(_) | Err(Refused::Raced | Refused::NoCluster) => {}
                    Err(error @ Refused::Disk(_)) => tracing::warn!(cluster, %error, "expiring events"),
                }
            }
        }
    }
}

/// Events that were last written by `until`.
fn old(storage: &Storage, cluster: &str, until: i64) -> Vec<Arc<Stored>> {
    let state = storage.read();
    let table = state.cluster(cluster).and_then(|cluster| cluster.table(EVENTS));
    let all = table.into_iter().flat_map(|table| table.range("", None));
    all.filter(|event| event.written <= until).cloned().collect()
}
