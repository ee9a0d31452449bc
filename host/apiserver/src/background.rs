//! What the background loops share: they wake at changes, look at what is due, and write what follows.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::agenda::Agenda;
use crate::status::ApiError;
use crate::store::object::Key;
use crate::store::{Expect, Refused, Storage, Write};

/// How long after a failure something is tried again.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// When a loop takes its next turn.
pub(crate) struct Pace {
    pulse: watch::Receiver<u64>,
    stop: CancellationToken,
}

impl Pace {
    /// A pace that ends with `stop`; its first turn is now.
    pub(crate) fn new(storage: &Storage, stop: CancellationToken) -> Self {
        let mut pulse = storage.pulse();
        pulse.mark_changed();
        Self { pulse, stop }
    }

    /// Waits for a change, or no longer than `at_most`. False at the end.
    pub(crate) async fn next(&mut self, at_most: Option<Duration>) -> bool {
        let timer = async {
            match at_most {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            changed = self.pulse.changed() => changed.is_ok(),
            () = timer => true,
        }
    }
}

/// Names of all clusters.
pub(crate) fn clusters(storage: &Storage) -> Vec<String> {
    storage
        .read()
        .clusters()
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Takes from a cluster's agenda, if there is anything to take.
pub(crate) fn take<T: Default>(
    storage: &Storage,
    cluster: &str,
    is_due: fn(&Agenda) -> bool,
    take: fn(&mut Agenda) -> T,
) -> T {
    let due = storage
        .read()
        .cluster(cluster)
        .is_some_and(|cluster| is_due(&cluster.agenda));
    if due {
        storage.with_agenda(cluster, take).unwrap_or_default()
    } else {
        T::default()
    }
}

/// Changes an object that may be gone already. `change` says whether it changed anything. An object that is being
/// deleted goes with its last finalizer.
pub(crate) async fn edit(
    storage: &Arc<Storage>,
    cluster: &str,
    (table, key): (&str, &Key),
    change: impl Fn(&mut Value) -> bool,
) -> Result<(), ApiError> {
    while let Some(current) = storage.get(cluster, table, key) {
        let mut object = current.value();
        if !change(&mut object) {
            return Ok(());
        }
        let is_filled = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let waits = is_filled(&object["metadata"]["finalizers"])
            || table == "namespaces" && is_filled(&object["spec"]["finalizers"])
            || object["metadata"]["deletionGracePeriodSeconds"]
                .as_i64()
                .unwrap_or_default()
                > 0;
        let write = Write {
            cluster: cluster.to_owned(),
            table: table.to_owned(),
            key: key.clone(),
            expect: Expect::Revision(current.revision),
            guards: Vec::new(),
            object: (waits || !current.meta.deleting).then_some(object),
        };
        match storage.write(write).await {
            Ok(_) | Err(Refused::NoCluster) => return Ok(()),
            Err(Refused::Raced) => {}
            Err(other @ Refused::Disk(_)) => return Err(ApiError::internal(other)),
        }
    }
    Ok(())
}

/// Takes names out of a list of an object. Whether there were any.
pub(crate) fn drop_from(object: &mut Value, pointer: &str, is_dropped: impl Fn(&Value) -> bool) -> bool {
    let Some(list) = object.pointer_mut(pointer).and_then(Value::as_array_mut) else {
        return false;
    };
    let before = list.len();
    list.retain(|item| !is_dropped(item));
    list.len() != before
}
