//! Labels and annotations: what to set, what to take away, and whose they are.

use std::collections::BTreeMap;

use hostler_api::names;
use serde_json::{Map, Value};

use super::{Assignment, EXPLICIT, Told, Work};

/// What becomes of a node's keys of one sort.
pub(super) struct Keys {
    /// Changes, as a merge patch.
    pub(super) patch: Map<String, Value>,
    /// Keys that are the profile's afterwards; sorted.
    pub(super) owned: Vec<String>,
}

/// The node's labels.
pub(super) fn labels(work: &mut Work<'_>) -> Keys {
    let current = work.node.metadata.labels.clone().unwrap_or_default();
    let wanted = work
        .spec()
        .map(|spec| spec.node_labels.clone())
        .unwrap_or_default();
    let joined = work.joined.labels.clone();
    let applied = work.applied.labels.clone();
    let mut keys = owned(work, "label", &current, &wanted, &joined, applied);
    for (key, value) in &joined {
        // While the profile cannot be told, a key that it owns keeps its value.
        if wanted.contains_key(key) || keys.owned.contains(key) || current.get(key) == Some(value) {
            continue;
        }
        work.corrections += usize::from(!work.fresh && !work.applied.labels.contains(key));
        keys.patch.insert(key.clone(), Value::String(value.clone()));
    }
    keys.patch.extend(assignment(work, &current));
    keys
}

/// The node's annotations.
pub(super) fn annotations(work: &mut Work<'_>) -> Keys {
    let current = work.node.metadata.annotations.clone().unwrap_or_default();
    let wanted = work
        .spec()
        .map(|spec| spec.node_annotations.clone())
        .unwrap_or_default();
    let applied = work.applied.annotations.clone();
    owned(work, "annotation", &current, &wanted, &BTreeMap::new(), applied)
}

fn owned(
    work: &mut Work<'_>,
    kind: &str,
    current: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    joined: &BTreeMap<String, String>,
    applied: Vec<String>,
) -> Keys {
    let mut patch = Map::new();
    if matches!(work.assignment, Assignment::Unknown) {
        return Keys {
            patch,
            owned: applied,
        };
    }
    let mut owned = Vec::new();
    for (key, value) in wanted {
        let ours = applied.contains(key);
        let theirs = current.get(key);
        if let Some(claimed) = joined.get(key).filter(|claimed| *claimed != value) {
            work.clash(kind, key, claimed, value);
        }
        if theirs == Some(value) {
            // On a node that has just joined all of it is ours; later, an equal key that somebody else set stays theirs.
            if ours || work.fresh {
                owned.push(key.clone());
            }
            continue;
        }
        if let Some(theirs) = theirs
            && (!ours || work.settled)
        {
            work.clash(kind, key, theirs, value);
        }
        work.corrections += usize::from(ours && work.settled);
        patch.insert(key.clone(), Value::String(value.clone()));
        owned.push(key.clone());
    }
    for key in applied.iter().filter(|key| !wanted.contains_key(*key)) {
        match joined.get(key) {
            Some(value) if current.get(key) != Some(value) => {
                patch.insert(key.clone(), Value::String(value.clone()));
            }
            None if current.contains_key(key) => {
                patch.insert(key.clone(), Value::Null);
            }
            Some(_) | None => {}
        }
    }
    Keys { patch, owned }
}

/// The two labels that say which profile a node has: one that anybody may read, one that no node can set.
fn assignment(work: &mut Work<'_>, current: &BTreeMap<String, String>) -> Map<String, Value> {
    let mut patch = Map::new();
    let name = work.profile_name().map(ToOwned::to_owned);
    let before = work
        .memory
        .profile
        .as_ref()
        .and_then(|choice| choice.name.clone())
        .filter(|_| !work.fresh);
    if matches!(work.assignment, Assignment::Unknown) && name.is_none() {
        return patch;
    }
    let shown = current.get(names::NODE_PROFILE);
    if shown != name.as_ref() {
        patch.insert(
            names::NODE_PROFILE.to_owned(),
            name.clone().map_or(Value::Null, Value::String),
        );
        // Another value than the host's last one is somebody's claim; a missing one was taken away if it had been set.
        let claimed = shown.is_some() && shown != before.as_ref();
        let taken = shown.is_none() && before.is_some() && before == name;
        if claimed || taken {
            work.corrections += usize::from(!work.fresh);
            let (shown, name) = (
                shown.map_or("nothing", String::as_str),
                name.as_deref().unwrap_or("none"),
            );
            work.told.push(Told {
                reason: "ProfileLabelCorrected",
                message: format!(
                    "label {} said {shown}; the node's profile is {name}",
                    names::NODE_PROFILE
                ),
            });
        }
    }
    if matches!(work.assignment, Assignment::Unknown) {
        return patch;
    }
    let explicit = match work.assignment {
        Assignment::Profile(assigned) => assigned.choice.source.as_deref() == Some(EXPLICIT),
        Assignment::Nothing | Assignment::Revoked(_) | Assignment::Unknown => false,
    };
    let promoted = name.filter(|_| explicit);
    if current.get(names::NODE_PROFILE_PROMOTED) != promoted.as_ref() {
        patch.insert(
            names::NODE_PROFILE_PROMOTED.to_owned(),
            promoted.map_or(Value::Null, Value::String),
        );
    }
    patch
}
