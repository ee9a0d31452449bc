//! Objects of a driver's own: created and never adopted, changed and deleted only under the recorded uid.

use hostler_api::claim::OwnedRef;
use hostler_api::names::CLAIM_UID;
use hostler_core::grant::Grant;
use hostler_core::loan::Holder;
use hostler_core::order::{object_ref, stored_ref};
use hostler_core::seams::{ObjectRef, Reason};
use hostler_core::{scope, view};
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::claim::kinds::Kinds;
use crate::error::{Error, Result};
use crate::patch::{self, Created};

/// What stands between the recorded objects and the wanted ones.
pub(crate) enum Next {
    /// Nothing: every wanted object is as it should be, and no other is left.
    Settled,
    /// The record was extended and must be written before anything is created.
    Record,
    /// Something was written; look again.
    Written,
    /// An object of this name is there, and is not this claim's.
    NotOurs(Reason),
}

/// Makes the owned objects as wanted, one write at a time; `recorded` is the claim's list and is kept up to date.
///
/// # Errors
/// `Error::Api` and `Error::Timeout`.
pub(crate) async fn ensure(
    client: &Client,
    kinds: &Kinds,
    grant: &Grant,
    holder: &Holder,
    wanted: &[Value],
    recorded: &mut Vec<OwnedRef>,
) -> Result<Next> {
    let wanted: Vec<(ObjectRef, Value)> = wanted
        .iter()
        .filter_map(|object| Some((view::reference(object)?, scope::stamped(object, grant, holder))))
        .collect();
    let missing: Vec<OwnedRef> = wanted
        .iter()
        .filter(|(name, _)| !recorded.iter().any(|known| object_ref(&known.object) == *name))
        .map(|(name, _)| OwnedRef {
            object: stored_ref(name),
            uid: None,
        })
        .collect();
    if !missing.is_empty() {
        recorded.extend(missing);
        return Ok(Next::Record);
    }
    for (name, object) in &wanted {
        match ensure_one(client, kinds, holder, name, object, recorded).await? {
            Next::Settled => {}
            next => return Ok(next),
        }
    }
    for index in 0..recorded.len() {
        let name = object_ref(&recorded[index].object);
        if wanted.iter().any(|(wanted, _)| *wanted == name) {
            continue;
        }
        if remove(client, kinds, holder, &recorded[index]).await? {
            recorded.remove(index);
        }
        return Ok(Next::Written);
    }
    Ok(Next::Settled)
}

async fn ensure_one(
    client: &Client,
    kinds: &Kinds,
    holder: &Holder,
    name: &ObjectRef,
    object: &Value,
    recorded: &mut [OwnedRef],
) -> Result<Next> {
    let Some(known) = recorded
        .iter_mut()
        .find(|known| object_ref(&known.object) == *name)
    else {
        return Err(Error::Bug(format!("{} {} is not recorded", name.kind, name.name)));
    };
    let api = kinds.api_of(client, name).await?;
    let live = patch::within(
        format!("reading {} {}", name.kind, name.name),
        api.get_opt(&name.name),
    )
    .await?;
    match (live, known.uid.clone()) {
        (None, _) => {
            // Also one that was deleted by hand: it must exist, so it is made again.
            let typed: DynamicObject = serde_json::from_value(object.clone())
                .map_err(|error| Error::Refused(format!("{} {}: {error}", name.kind, name.name)))?;
            match patch::create(&api, &typed).await? {
                Created::New(made) => known.uid = made.uid(),
                Created::Exists => {}
            }
            Ok(Next::Written)
        }
        (Some(live), None) if is_ours(&live, holder) => {
            // Our own first try, made before its uid could be written down.
            known.uid = live.uid();
            Ok(Next::Written)
        }
        (Some(live), Some(uid)) if live.uid().as_deref() == Some(uid.as_str()) => {
            let whole = crate::claim::kinds::whole(&live, name)?;
            if covers(&whole, object) {
                return Ok(Next::Settled);
            }
            let version = live.resource_version().unwrap_or_default();
            patch::update(&api, &name.name, &version, object.clone()).await?;
            Ok(Next::Written)
        }
        (Some(_), _) => Ok(Next::NotOurs(
            Reason::new(
                "NotOurs",
                format!(
                    "{} {} exists already and was not made for this claim",
                    name.kind, name.name
                ),
            )
            .remedy("remove or rename it"),
        )),
    }
}

/// Deletes one recorded object; true once it is gone.
async fn remove(client: &Client, kinds: &Kinds, holder: &Holder, known: &OwnedRef) -> Result<bool> {
    let name = object_ref(&known.object);
    let api = kinds.api_of(client, &name).await?;
    let live = patch::within(
        format!("reading {} {}", name.kind, name.name),
        api.get_opt(&name.name),
    )
    .await?;
    let Some(live) = live else { return Ok(true) };
    let uid = live.uid().unwrap_or_default();
    let ours = match &known.uid {
        Some(recorded) => *recorded == uid,
        None => is_ours(&live, holder),
    };
    // What has another uid is somebody else's; ours is gone.
    if ours {
        patch::delete(&api, &name.name, &uid).await
    } else {
        Ok(true)
    }
}

fn is_ours(live: &DynamicObject, holder: &Holder) -> bool {
    live.labels().get(CLAIM_UID) == Some(&holder.claim.uid)
}

/// Whether everything that is wanted stands in what is there; what the API server filled in besides is no difference.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| live.get(key).is_some_and(|live| covers(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        (live, wanted) => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_no_difference_and_changes_are() {
        let live = json!({"spec": {"a": 1, "filled": true, "list": [{"x": 1, "filled": 2}]}, "metadata": {"uid": "u"}});
        assert!(covers(&live, &json!({"spec": {"a": 1, "list": [{"x": 1}]}})));
        assert!(!covers(&live, &json!({"spec": {"a": 2}})));
        assert!(!covers(&live, &json!({"spec": {"list": []}})));
        assert!(!covers(&live, &json!({"spec": {"b": 1}})));
    }
}
