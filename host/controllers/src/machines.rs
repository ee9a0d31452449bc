//! The inventory: what providers hold, as last seen, and what their drivers make of it.
//!
//! Written by the provider loop, read by the scheduler and by claims. A driver is asked once for each new version of an object and of
//! those beside it; a change of one machine costs no look at the others.

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
    pub machines: BTreeMap<ObjectRef, Arc<Entry>>,
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
    pub fn find(&self, provider_uid: &str, object: &ObjectRef) -> Option<Arc<Entry>> {
        self.of(provider_uid)?.machines.get(object).cloned()
    }

    /// Replaces what a provider holds, and tells of the objects that differ.
    pub fn set(&self, provider_uid: &str, holdings: Holdings) {
        let gone: Vec<ObjectRef> = self
            .of(provider_uid)
            .iter()
            .flat_map(|before| before.machines.keys())
            .filter(|name| !holdings.machines.contains_key(name))
            .cloned()
            .collect();
        let (description, listed) = (holdings.description, holdings.listed);
        let there = holdings
            .machines
            .into_iter()
            .map(|(name, entry)| (name, Some(entry)));
        let changes = there.chain(gone.into_iter().map(|name| (name, None))).collect();
        self.change(provider_uid, description, listed, changes);
    }

    /// Changes what is known of some objects of a provider, `None` being those that are gone, and tells of those that differ.
    pub fn change(
        &self,
        provider_uid: &str,
        description: Option<Arc<Description>>,
        listed: bool,
        changes: Vec<(ObjectRef, Option<Arc<Entry>>)>,
    ) {
        let mut told = Vec::new();
        {
            let mut all = self.all.write().expect("no holder panics");
            // In place, unless somebody looks at it right now.
            let holdings = Arc::make_mut(all.entry(provider_uid.to_owned()).or_default());
            (holdings.description, holdings.listed) = (description, listed);
            for (name, entry) in changes {
                let differs = match (holdings.machines.get(&name), &entry) {
                    (Some(old), Some(new)) => {
                        old.object.resource_version() != new.object.resource_version()
                            || old.machine != new.machine
                    }
                    (old, new) => old.is_some() || new.is_some(),
                };
                if differs {
                    told.push(name.clone());
                }
                match entry {
                    Some(entry) => holdings.machines.insert(name, entry),
                    None => holdings.machines.remove(&name),
                };
            }
        }
        // After the change can be read.
        for name in told {
            drop(self.changed.send(name));
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
