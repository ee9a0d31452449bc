//! Writes loans, and gives them back: each is one write, checked against the copy that it was made from.

use std::collections::BTreeSet;

use hostler_core::loan::{self, Change, Holder, Pointer};
use hostler_core::scope::{self, Scope};
use hostler_core::seams::{Availability, Driver, Failure, Machine, Object, ObjectRef, Plan, Reason};
use hostler_core::view;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::patch;

/// How often an undo looks again when somebody else writes at the same time.
const UNDO_TRIES: usize = 5;

/// What came of giving a machine back.
pub(crate) enum Returned {
    /// It is free; these places were left to somebody who changed them.
    Back(Vec<Pointer>),
    /// It is not free yet, and nothing was written.
    Early(Reason),
}

/// Checks a driver's answer against everything that bounds it.
///
/// # Errors
/// The first item out of scope.
pub(crate) fn judge(plan: &Plan, scope: &Scope<'_>, seen: &[Value]) -> Result<(), Reason> {
    let seen: Vec<&Value> = seen.iter().collect();
    scope::judge(plan, scope, &seen).map_err(|out| {
        Reason::new(scope::CODE, out.to_string())
            .remedy("if the driver should be allowed this, extend its operator file; otherwise replace it")
    })
}

/// Writes a change of a borrowed object.
///
/// # Errors
/// 409 when the object is no longer the copy that the change was made from.
pub(crate) async fn write(
    api: &Api<DynamicObject>,
    object: &Value,
    change: &Change,
) -> Result<DynamicObject> {
    let (name, version) = (
        text(object, "/metadata/name"),
        text(object, "/metadata/resourceVersion"),
    );
    if version.is_empty() {
        return Err(Error::Bug(format!(
            "{} was read without a resourceVersion",
            loan::name_of(object)
        )));
    }
    if let Some(merge) = change.merge_patch() {
        return patch::update(api, &name, &version, merge).await;
    }
    // Not by a replace: the right to patch is all that the host has on what it borrows.
    patch::operate(api, &name, &version, operations(object, change.after())).await
}

/// The parts that a loan can reach, each as a whole where it differs.
fn operations(before: &Value, after: &Value) -> Vec<Value> {
    let keys = |object: &Value| -> Vec<String> {
        object
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .filter(|key| !["apiVersion", "kind", "metadata", "status"].contains(&key.as_str()))
            .map(|key| Pointer::default().child(key).to_string())
            .collect()
    };
    let mut parts: BTreeSet<String> = keys(before).into_iter().chain(keys(after)).collect();
    parts.extend(["/metadata/labels".to_owned(), "/metadata/annotations".to_owned()]);
    parts
        .into_iter()
        .filter_map(|path| match (before.pointer(&path), after.pointer(&path)) {
            (before, after) if before == after => None,
            (_, Some(value)) => Some(json!({ "op": "add", "path": path, "value": value })),
            (_, None) => Some(json!({ "op": "remove", "path": path })),
        })
        .collect()
}

/// Whether a machine is free but for our own marks.
///
/// # Errors
/// Why it is not, or why one cannot tell.
pub(crate) async fn is_free(
    driver: &dyn Driver,
    provider: &Object,
    machine: &Value,
    related: &[Object],
) -> Result<(), Reason> {
    let shown = view::object(&loan::hide(machine));
    free_by(driver.machine_of(provider, &shown, related).await)
}

fn free_by(answer: Result<Option<Machine>, Failure>) -> Result<(), Reason> {
    match answer {
        Ok(Some(machine)) => match machine.availability {
            Availability::Free => Ok(()),
            Availability::Held(reason) | Availability::Preparing(reason) | Availability::Broken(reason) => {
                Err(reason)
            }
        },
        Ok(None) => Err(Reason::new(
            "NotOfThisProvider",
            "the driver no longer takes the object for a machine of this provider",
        )
        .remedy("give it back the labels that its node type selects by")),
        Err(failure) => Err(failure.reason().clone()),
    }
}

/// Whether a machine may be let go. Where its driver has said that nothing is left on it (`gone`), one that cannot be promised to
/// anybody may go too: it is broken, or no longer of this provider, for reasons that its release has no part in, and holding it would only hold
/// up the tenant's deletion. One that is in use or on its way stays held whatever the driver says.
async fn may_go(
    driver: &dyn Driver,
    provider: &Object,
    machine: &Value,
    related: &[Object],
    gone: bool,
) -> Result<(), Reason> {
    let shown = view::object(&loan::hide(machine));
    match driver.machine_of(provider, &shown, related).await {
        Ok(None) if gone => Ok(()),
        Ok(Some(found)) if gone && matches!(found.availability, Availability::Broken(_)) => Ok(()),
        answer => free_by(answer),
    }
}

/// Gives a machine back, if it may go; `machine` is a live read that came after the last write of the release.
///
/// # Errors
/// As `write`, and for a record that is somebody else's.
pub(crate) async fn give_back(
    api: &Api<DynamicObject>,
    driver: &dyn Driver,
    provider: &Object,
    machine: &Value,
    related: &[Object],
    holder: &Holder,
    gone: bool,
) -> Result<Returned> {
    if let Err(reason) = may_go(driver, provider, machine, related, gone).await {
        return Ok(Returned::Early(reason));
    }
    let back = loan::give_back(machine, holder).map_err(|refusal| Error::Refused(refusal.to_string()))?;
    if !back.change.is_nothing() {
        write(api, machine, &back.change).await?;
    }
    Ok(Returned::Back(back.left))
}

/// Takes back a loan that was just written for a claim that turned out not to want it.
///
/// # Errors
/// Somebody else keeps writing; then the record still says whose the machine is, and the release finds it.
pub(crate) async fn undo(api: &Api<DynamicObject>, machine: &ObjectRef, holder: &Holder) -> Result<()> {
    for _ in 0..UNDO_TRIES {
        let read = patch::within(
            format!("reading {} {}", machine.kind, machine.name),
            api.get_opt(&machine.name),
        )
        .await?;
        let Some(live) = read else { return Ok(()) };
        let live = crate::claim::kinds::whole(&live, machine)?;
        let Ok(back) = loan::give_back(&live, holder) else {
            return Ok(());
        };
        if back.change.is_nothing() {
            return Ok(());
        }
        match write(api, &live, &back.change).await {
            Err(error) if error.is_conflict() => {}
            other => return other.map(drop),
        }
    }
    Err(Error::Busy(format!(
        "{} {} is written by somebody else at the same time",
        machine.kind, machine.name
    )))
}

fn text(object: &Value, pointer: &str) -> String {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_merge_patch_cannot_say_is_said_part_by_part() {
        let before = json!({"metadata": {"name": "m", "labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"x": {"y": 1}}, "old/1": 1});
        let after = json!({"metadata": {"name": "m", "labels": {"a": "b"}}, "spec": {"x": {"y": null}}, "status": {"z": 1}});
        let mut made = before.clone();
        made["status"] = json!({"z": 1});
        json_patch(&mut made, &operations(&before, &after));
        assert_eq!(made, after);
        assert!(operations(&after, &after).is_empty());
    }

    /// What the operations mean, for objects.
    fn json_patch(object: &mut Value, operations: &[Value]) {
        for one in operations {
            let path = Pointer::parse(one["path"].as_str().unwrap()).unwrap();
            let (last, parents) = path.segments().split_last().unwrap();
            let at = parents.iter().fold(&mut *object, |at, key| &mut at[key]);
            match one["op"].as_str().unwrap() {
                "add" => at[last] = one["value"].clone(),
                "remove" => drop(at.as_object_mut().unwrap().shift_remove(last).unwrap()),
                other => panic!("{other}"),
            }
        }
    }
}
