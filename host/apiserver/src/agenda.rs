//! What the background loops have to look at, kept up to date with every change so that none of them ever scans.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::furniture;
use crate::registry::DEFINITIONS;
use crate::store::object::{Key, Stored};
use crate::store::table::Change;

/// Finalizer of an owner that waits until those who block it are gone.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are to stay.
pub(crate) const ORPHAN: &str = "orphan";

/// Where an object is, within a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// Table.
    pub(crate) table: String,
    /// Key.
    pub(crate) key: Key,
}

/// The agenda of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// By uid of an owner: who names it.
    dependents: HashMap<Box<str>, BTreeSet<Place>>,
    /// By uid: owners whose deletion waits for their dependents.
    waiting: HashMap<Box<str>, Place>,
    /// Objects whose owners, or whose dependents, have to be looked at.
    suspects: BTreeSet<Place>,
    /// Namespaces that are being deleted, and whether each has to be looked at.
    namespaces: HashMap<String, bool>,
    /// Definitions that are being deleted, likewise.
    definitions: HashMap<String, bool>,
    /// Namespaces that may lack what each of them has.
    bare: BTreeSet<String>,
}

impl Agenda {
    /// Takes note of an object that was read from disk.
    pub(crate) fn load(&mut self, table: &str, object: &Arc<Stored>) {
        self.arrive(table, object);
    }

    /// Takes note of a change.
    pub(crate) fn observe(&mut self, table: &str, change: &Change) {
        if furniture::is_any(table, &change.object.key.name) {
            self.bare.insert(change.object.key.namespace.clone());
        }
        if let Some(old) = &change.old {
            self.leave(table, old);
        }
        if !change.deleted {
            self.arrive(table, &change.object);
            return;
        }
        let gone = &change.object;
        self.suspects.remove(&Place {
            table: table.to_owned(),
            key: gone.key.clone(),
        });
        if let Some(dependents) = self.dependents.get(&gone.meta.uid) {
            self.suspects.extend(dependents.iter().cloned());
        }
        if let Some(due) = self.namespaces.get_mut(&gone.key.namespace) {
            *due = true;
        }
        if let Some(due) = self.definitions.get_mut(table) {
            *due = true;
        }
        if table == "namespaces" {
            self.namespaces.remove(&gone.key.name);
        }
        if table == DEFINITIONS {
            self.definitions.remove(&gone.key.name);
        }
    }

    fn leave(&mut self, table: &str, old: &Stored) {
        let place = Place {
            table: table.to_owned(),
            key: old.key.clone(),
        };
        for owner in &old.meta.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&place);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            self.suspects.extend(self.waiting.get(&owner.uid).cloned());
        }
        self.waiting.remove(&old.meta.uid);
    }

    fn arrive(&mut self, table: &str, object: &Stored) {
        let place = Place {
            table: table.to_owned(),
            key: object.key.clone(),
        };
        for owner in &object.meta.owners {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(place.clone());
        }
        let waits = object.meta.deleting
            && object
                .meta
                .finalizers
                .iter()
                .any(|name| matches!(name.as_ref(), FOREGROUND | ORPHAN));
        if waits {
            self.waiting.insert(object.meta.uid.clone(), place.clone());
        }
        if object.meta.deleting {
            let kinds = match table {
                "namespaces" => Some(&mut self.namespaces),
                DEFINITIONS => Some(&mut self.definitions),
                _ => None,
            };
            if let Some(kinds) = kinds {
                kinds.insert(object.key.name.clone(), true);
            }
        }
        if table == "namespaces" && !object.meta.deleting {
            self.bare.insert(object.key.name.clone());
        }
        if waits || !object.meta.owners.is_empty() {
            self.suspects.insert(place);
        }
    }

    /// Who names the object with this uid as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Whether there are any suspects.
    pub(crate) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Whether any namespace has to be looked at.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.namespaces.values().any(|due| *due)
    }

    /// Whether any definition has to be looked at.
    pub(crate) fn has_definitions(&self) -> bool {
        self.definitions.values().any(|due| *due)
    }

    /// Whether any namespace may lack something.
    pub(crate) fn has_bare(&self) -> bool {
        !self.bare.is_empty()
    }

    /// Takes the namespaces that may lack something.
    pub(crate) fn take_bare(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.bare)
    }

    /// Puts back a namespace that could not be dealt with.
    pub(crate) fn still_bare(&mut self, name: String) {
        self.bare.insert(name);
    }

    /// Takes the objects whose owners or dependents have to be looked at.
    pub(crate) fn take_suspects(&mut self) -> BTreeSet<Place> {
        std::mem::take(&mut self.suspects)
    }

    /// Puts back what could not be dealt with.
    pub(crate) fn suspect(&mut self, place: Place) {
        self.suspects.insert(place);
    }

    /// Takes the namespaces that have to be looked at.
    pub(crate) fn take_namespaces(&mut self) -> Vec<String> {
        take_due(&mut self.namespaces)
    }

    /// Takes the definitions that have to be looked at.
    pub(crate) fn take_definitions(&mut self) -> Vec<String> {
        take_due(&mut self.definitions)
    }

    /// Looks at all that is being deleted once more.
    pub(crate) fn look_again(&mut self) {
        for due in self.namespaces.values_mut().chain(self.definitions.values_mut()) {
            *due = true;
        }
    }
}

fn take_due(names: &mut HashMap<String, bool>) -> Vec<String> {
    names
        .iter_mut()
        .filter_map(|(name, due)| std::mem::take(due).then(|| name.clone()))
        .collect()
}
