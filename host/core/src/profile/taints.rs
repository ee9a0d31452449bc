//! Taints: a set keyed by key and effect, of which the host owns some, and startup taints, which come once.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::{APPLIED, APPLYING, Assignment, REMOVED, Work};

/// What becomes of a node's taints.
pub(super) struct Taints {
    /// The whole list, if it changes.
    pub(super) patch: Option<Value>,
    /// `key:effect` of those that are the profile's afterwards; sorted.
    pub(super) owned: Vec<String>,
    /// State of the startup taints afterwards.
    pub(super) startup: Option<String>,
    /// Whether the patch brings startup taints.
    pub(super) adds_startup: bool,
    /// `key:effect` of the startup taints; kept after they were removed.
    pub(super) startup_owned: Vec<String>,
}

/// What a taint is known by.
pub(super) fn id(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

fn by_id(taints: &[Taint]) -> BTreeMap<String, Taint> {
    // Of two with one key and effect the first stands, as people read a list.
    taints
        .iter()
        .rev()
        .map(|taint| (id(taint), taint.clone()))
        .collect()
}

fn value(taint: &Taint) -> &str {
    taint.value.as_deref().unwrap_or_default()
}

fn same(a: &Taint, b: &Taint) -> bool {
    a.key == b.key && a.effect == b.effect && value(a) == value(b)
}

/// The taints of the node.
pub(super) fn taints(work: &mut Work<'_>) -> Taints {
    let current = work
        .node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let mut list = current.clone();
    let wanted = by_id(&work.spec().map(|spec| spec.taints.clone()).unwrap_or_default());
    let joined = by_id(&work.joined.taints);
    let applied = work.applied.taints.clone();
    let owned = match work.assignment {
        Assignment::Profile(_) | Assignment::Nothing => steady(work, &mut list, &wanted, &joined, &applied),
        // What repels workloads stays; what an operator has removed is forgotten.
        Assignment::Revoked(_) => {
            let stands = |key: &&String| current.iter().any(|taint| id(taint) == **key);
            applied.iter().filter(stands).cloned().collect()
        }
        Assignment::Unknown => applied.clone(),
    };
    for (key, taint) in &joined {
        let kept = wanted.contains_key(key) || owned.contains(key);
        if !kept && put(&mut list, taint) {
            work.corrections += usize::from(!work.fresh && !applied.contains(key));
        }
    }
    let lasting = |key: &str| {
        wanted.contains_key(key) || joined.contains_key(key) || owned.iter().any(|own| own == key)
    };
    let (startup, startup_owned) = startup(work, &mut list, lasting);
    let changed = list.len() != current.len() || list.iter().zip(&current).any(|(a, b)| !same(a, b));
    let adds_startup = startup.as_deref() == Some(APPLYING);
    Taints {
        patch: changed.then(|| json!(list)),
        owned,
        startup,
        adds_startup,
        startup_owned,
    }
}

fn steady(
    work: &mut Work<'_>,
    list: &mut Vec<Taint>,
    wanted: &BTreeMap<String, Taint>,
    joined: &BTreeMap<String, Taint>,
    applied: &[String],
) -> Vec<String> {
    list.retain(|taint| {
        let key = id(taint);
        !applied.contains(&key) || wanted.contains_key(&key) || joined.contains_key(&key)
    });
    let mut owned = Vec::new();
    for (key, taint) in wanted {
        let ours = applied.contains(key);
        let theirs = list.iter().find(|known| id(known) == *key).cloned();
        if let Some(claimed) = joined.get(key).filter(|claimed| !same(claimed, taint)) {
            work.clash("taint", key, value(claimed), value(taint));
        }
        match theirs {
            Some(theirs) if same(&theirs, taint) => {
                if ours || work.fresh {
                    owned.push(key.clone());
                }
                continue;
            }
            Some(theirs) if !ours || work.settled => {
                work.clash("taint", key, value(&theirs), value(taint));
            }
            Some(_) | None => {}
        }
        work.corrections += usize::from(ours && work.settled);
        put(list, taint);
        owned.push(key.clone());
    }
    owned
}

/// Sets a taint in its place, or at the end. True when the list changed.
fn put(list: &mut Vec<Taint>, taint: &Taint) -> bool {
    match list
        .iter_mut()
        .find(|known| known.key == taint.key && known.effect == taint.effect)
    {
        Some(known) if same(known, taint) => false,
        Some(known) => {
            known.value.clone_from(&taint.value);
            true
        }
        None => {
            list.push(taint.clone());
            true
        }
    }
}

/// The startup taints: the state and the keys afterwards.
fn startup(
    work: &Work<'_>,
    list: &mut Vec<Taint>,
    lasting: impl Fn(&str) -> bool,
) -> (Option<String>, Vec<String>) {
    let mut wanted = by_id(&work.joined.startup_taints);
    wanted.extend(by_id(
        &work
            .spec()
            .map(|spec| spec.startup_taints.clone())
            .unwrap_or_default(),
    ));
    wanted.retain(|key, _| !lasting(key));
    let recorded = work.applied.startup_taints.clone();
    match work.memory.startup_taints.as_deref() {
        Some(REMOVED) => {
            // A Node that its kubelet registered anew may bring them along; on a known Node an equal taint is somebody else's.
            if work.fresh {
                list.retain(|taint| !recorded.contains(&id(taint)) || lasting(&id(taint)));
            }
            (Some(REMOVED.to_owned()), recorded)
        }
        before => {
            let recorded_for_it = before.is_some();
            let keys = if recorded_for_it {
                recorded
            } else {
                wanted.keys().cloned().collect()
            };
            if work.ready {
                list.retain(|taint| !keys.contains(&id(taint)) || lasting(&id(taint)));
                return (Some(REMOVED.to_owned()), keys);
            }
            if !recorded_for_it && matches!(work.assignment, Assignment::Unknown) {
                return (None, Vec::new());
            }
            // A kubelet registers all of them at once: where one stands, a missing one was taken away by its owner already.
            let registered = keys.iter().any(|key| list.iter().any(|taint| id(taint) == *key));
            let add = match before {
                None => !registered,
                // The write that was to bring them may not have come through.
                Some(APPLYING) => true,
                // They stood. Gone from the same Node they were taken away; on a Node that was registered anew they are due again.
                Some(_) => work.registered_anew && !registered,
            };
            let mut added = false;
            for taint in keys.iter().filter(|_| add).filter_map(|key| wanted.get(key)) {
                added |= put(list, taint);
            }
            let state = if added { APPLYING } else { APPLIED };
            (Some(state.to_owned()), keys)
        }
    }
}
