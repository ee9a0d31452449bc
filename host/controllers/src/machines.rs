//! The inventory: what providers hold, as last seen, and what their drivers make of it.
//!
//! Written by the provider loop, read by the scheduler and by claims. A driver is asked once for each new version of an
//! object; the answer is kept by (component digest, provider generation, uid, resourceVersion).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use hostler_core::seams::{Description, Machine, ObjectRef, Reason};
use kube::ResourceExt;
use kube::api::DynamicObject;
use tokio::sync::{broadcast, watch};

/// Changed machines held for a reader that is behind.
const BACKLOG: usize = 4096;

/// One object in the `machine` role.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object as last seen.
    pub object: Arc<DynamicObject>,
    /// What the driver makes of it: none of this provider's, a machine, or no answer and why.
    pub machine: Result<Option<Machine>, Reason>,
    /// Installation and claim uid of the loan on it, if any.
    pub held_by: Option<Hold>,
}

/// Whose an object is, by the loan record on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Installation that wrote the record.
    pub installation: String,
    /// uid of the claim.
    pub claim: String,
}

/// What one provider holds.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// The driver's description of the provider.
    pub description: Option<Arc<Description>>,
    /// Machines by object.
    pub machines: BTreeMap<ObjectRef, Entry>,
    /// Whether every kind was listed once.
    pub listed: bool,
}

/// What all providers hold, by provider uid.
pub struct Machines {
    all: RwLock<HashMap<String, Arc<Holdings>>>,
    changed: broadcast::Sender<ObjectRef>,
    generation: watch::Sender<u64>,
}

impl Default for Machines {
    fn default() -> Self {
        Self {
            all: RwLock::default(),
            changed: broadcast::Sender::new(BACKLOG),
            generation: watch::Sender::new(0),
        }
    }
}

impl Machines {
    /// What a provider holds.
    #[must_use]
    pub fn of(&self, provider_uid: &str) -> Option<Arc<Holdings>> {
        self.all
            .read()
            .expect("no holder panics")
            .get(provider_uid)
            .cloned()
    }

    /// One object of a provider.
    #[must_use]
    pub fn find(&self, provider_uid: &str, object: &ObjectRef) -> Option<Entry> {
        self.of(provider_uid)?.machines.get(object).cloned()
    }

    /// Replaces what a provider holds, and tells of the objects that differ.
    pub fn set(&self, provider_uid: &str, holdings: Holdings) {
        let next = Arc::new(holdings);
        let before = self
            .all
            .write()
            .expect("no holder panics")
            .insert(provider_uid.to_owned(), next.clone());
        let empty = Arc::new(Holdings::default());
        let before = before.as_ref().unwrap_or(&empty);
        for (name, entry) in &next.machines {
            let same = before.machines.get(name).is_some_and(|old| {
                old.object.resource_version() == entry.object.resource_version()
                    && old.machine == entry.machine
            });
            if !same {
                drop(self.changed.send(name.clone()));
            }
        }
        for name in before
            .machines
            .keys()
            .filter(|name| !next.machines.contains_key(name))
        {
            drop(self.changed.send(name.clone()));
        }
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Forgets a provider.
    pub fn remove(&self, provider_uid: &str) {
        if self
            .all
            .write()
            .expect("no holder panics")
            .remove(provider_uid)
            .is_some()
        {
            self.generation.send_modify(|generation| *generation += 1);
        }
    }

    /// Names of objects that changed. A reader that falls behind gets an error and should look at everything.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<ObjectRef> {
        self.changed.subscribe()
    }

    /// Grows with every change.
    #[must_use]
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}
