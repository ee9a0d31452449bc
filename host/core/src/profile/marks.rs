//! What the host shows on the Node of its own bookkeeping. Shown, never read back: the Enrollment decides.

use std::collections::BTreeSet;

use hostler_api::enrollment::Applied;
use hostler_api::names;
use serde_json::{Map, Value};

use super::{APPLIED, APPLYING, REMOVED, Told, Work};

/// Changes of the bookkeeping annotations.
pub(super) fn patch(work: &mut Work<'_>, done: &Applied, startup: Option<&str>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (mark, before, after) in [
        (
            names::OWNED_LABELS,
            list(&work.applied.labels),
            list(&done.labels),
        ),
        (
            names::OWNED_ANNOTATIONS,
            list(&work.applied.annotations),
            list(&done.annotations),
        ),
        (
            names::OWNED_TAINTS,
            list(&work.applied.taints),
            list(&done.taints),
        ),
    ] {
        set(work, &mut patch, mark, before, after);
    }
    let before = work
        .memory
        .startup_taints
        .clone()
        .filter(|state| state != APPLYING);
    set(
        work,
        &mut patch,
        names::STARTUP_TAINTS,
        before,
        startup.map(ToOwned::to_owned),
    );
    patch
}

/// `before` is what the host wrote last, `after` what shall stand.
fn set(
    work: &mut Work<'_>,
    patch: &mut Map<String, Value>,
    mark: &str,
    before: Option<String>,
    after: Option<String>,
) {
    let current = work
        .node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(mark))
        .cloned();
    if current == after {
        return;
    }
    patch.insert(mark.to_owned(), after.map_or(Value::Null, Value::String));
    let changed = match &current {
        // Where the last change was carried through, any difference is somebody's doing; else only what the host never writes.
        Some(text) => work.fresh || (work.settled && current != before) || is_foreign(text),
        None => work.settled && before.is_some(),
    };
    if changed {
        work.corrections += usize::from(!work.fresh);
        work.told.push(Told {
            reason: "OwnershipRewritten",
            message: format!(
                "annotation {mark} was changed by somebody else; it only shows what the host remembers"
            ),
        });
    }
}

fn list(keys: &[String]) -> Option<String> {
    (!keys.is_empty()).then(|| Value::from(keys.to_vec()).to_string())
}

fn is_foreign(text: &str) -> bool {
    serde_json::from_str::<BTreeSet<String>>(text).is_err() && !matches!(text, APPLIED | REMOVED)
}
