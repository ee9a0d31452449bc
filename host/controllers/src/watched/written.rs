//! What this process wrote and its watch has not shown yet.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use kube::Resource;

/// The last writes of this process that the watch has not shown yet: resourceVersions by uid. They grow with each change of an object,
/// and may be compared as numbers (Kubernetes 1.35, KEP-5504); one that is no number holds nobody up.
#[derive(Default)]
pub(super) struct Written(pub(super) Mutex<HashMap<String, u64>>);

impl Written {
    pub(super) fn note(&self, object: &impl Resource) {
        if let (Some(uid), Some(version)) = (object.meta().uid.clone(), version(object)) {
            let mut all = self.0.lock().expect("no holder panics");
            let known = all.entry(uid).or_default();
            *known = version.max(*known);
        }
    }

    pub(super) fn is_after(&self, object: &impl Resource) -> bool {
        let all = self.0.lock().expect("no holder panics");
        let written = object.meta().uid.as_ref().and_then(|uid| all.get(uid));
        written.is_some_and(|written| version(object).is_some_and(|version| version < *written))
    }

    pub(super) fn shown(&self, object: &impl Resource) {
        if !self.is_after(object) {
            self.gone(object);
        }
    }

    pub(super) fn gone(&self, object: &impl Resource) {
        if let Some(uid) = &object.meta().uid {
            self.0.lock().expect("no holder panics").remove(uid);
        }
    }

    /// A list is as new as any write that was answered before it, and what it leaves out is gone.
    pub(super) fn listed<K: Resource>(&self, all: &[Arc<K>]) {
        let there: HashSet<&String> = all
            .iter()
            .filter_map(|object| object.meta().uid.as_ref())
            .collect();
        self.0
            .lock()
            .expect("no holder panics")
            .retain(|uid, _| there.contains(uid));
        for object in all {
            self.shown(object.as_ref());
        }
    }
}

pub(super) fn version(object: &impl Resource) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}
