//! Server-side apply: a client says what it wants of an object, and the server keeps who wants what.
//!
//! # Guarantees
//! Applying what was applied before changes nothing, not even a time.
//! A field that is no longer applied is removed unless another owner has it.
//! A field of another owner changes only with its value equal or by force.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::managed_fields::comparison::Comparison;
use crate::managed_fields::field_set::{Element, FieldSet, shown};
use crate::managed_fields::merging::{merge, remove};
use crate::managed_fields::structure::{Node, fields_of, find_misfits, metadata_mut, same, with_named};
use crate::managed_fields::{
    Entry, Operation, Owners, api_version, described, reachable, record, strip, without_server_owned,
};
use crate::resource::Resource;
use crate::status::ApiError;

/// Owner of the fields that an object had before it was first applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Where `kubectl apply` without `--server-side` keeps what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The one owner that takes over from `kubectl apply` without `--server-side`.
const KUBECTL: &str = "kubectl";

/// A field that someone else owns with another value.
struct Conflict {
    owner: Entry,
    path: Vec<Element>,
}

/// The object after `applied` was applied to `live` (nothing, when it is created by this).
///
/// `now` is the time of the write in the form in which objects carry it.
pub(crate) fn apply(
    resource: &Resource,
    live: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    subresource: Option<&str>,
    now: &str,
) -> Result<Value, ApiError> {
    check_applied(resource, applied)?;
    let wanted = wanted_here(resource, subresource, applied);
    let mut owner = Entry::new(resource, manager, Operation::Apply, subresource);
    owner.time = Some(now.to_owned());

    let mut owners = live.map(Owners::of).unwrap_or_default();
    if let (Some(live), true) = (live, owners.0.is_empty()) {
        let before = Entry::new(resource, BEFORE_FIRST_APPLY, Operation::Update, subresource);
        owners = record(resource, None, live, owners, before, now);
    }
    let node = Node::root(&resource.schema);
    let before = live.map_or_else(|| json!({}), strip);

    let last = owners
        .find(&owner)
        .map(|entry| entry.fields.clone())
        .unwrap_or_default();
    owner.fields = reachable(resource, subresource, fields_of(node, &wanted));
    let merged = merge(node, Some(&before), Some(&wanted));
    let merged = prune(node, merged, &last, &owners, &owner);

    let changes =
        Comparison::of(node, &before, &merged).filtered(|set| reachable(resource, subresource, set));
    if !force {
        let conflicts = find_conflicts(&owners, &owner, &changes);
        let remaining = after_takeover(resource, &before, manager, conflicts);
        if !remaining.is_empty() {
            return Err(refusal(&remaining));
        }
    }
    owners.lose(&changes, Some(&owner));

    let mut object = merged;
    refresh_last_applied(&mut object, applied, manager);
    owner.fields = without_server_owned(&owner.fields);
    // The time of an owner is that of its last change of the object, not of what it owns.
    if live.is_some() && same(&before, &object) {
        owner.time = owners.find(&owner).and_then(|entry| entry.time.clone());
    }
    owners.put(owner);
    owners.store(&mut object);
    Ok(object)
}

/// What can be said of the applied object alone.
fn check_applied(resource: &Resource, applied: &Value) -> Result<(), ApiError> {
    let expected = api_version(resource);
    let sent = applied["apiVersion"].as_str().unwrap_or_default();
    if sent.is_empty() {
        let kind = applied["kind"].as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "invalid object type: /, Kind={kind}"
        )));
    }
    if sent != expected {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {sent}, expected: {expected}"
        )));
    }
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    // Scalars of built-in kinds are read leniently: a quantity may be a number, a port a name; nothing may be a truth.
    let misfits = find_misfits(Node::root(&resource.schema), applied, resource.custom);
    let list = match misfits.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    };
    let message = format!(
        "failed to create typed patch object ({}): {list}",
        described(resource, applied)
    );
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message))
}

/// What of the applied object a write through this door can change, without the nulls that mean nothing.
fn wanted_here(resource: &Resource, subresource: Option<&str>, applied: &Value) -> Value {
    let mut wanted = without_nulls(Node::root(&resource.schema), applied);
    let Some(fields) = wanted.as_object_mut() else {
        return wanted;
    };
    match subresource {
        None if resource.has_status => {
            fields.remove("status");
        }
        None => {}
        Some("status") if resource.custom => {
            fields.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.retain(|name, _| {
                    matches!(name.as_str(), "name" | "namespace" | "uid" | "resourceVersion")
                });
            }
        }
        Some(_) => {
            fields.remove("spec");
        }
    }
    wanted
}

/// Takes out nulls where the schema makes them the same as nothing.
fn without_nulls(node: Node<'_>, value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object.iter().filter_map(|(name, value)| {
                let below = node.field(name);
                let drops = matches!(below, Node::Known(schema, _) if schema.drops_null());
                (!(value.is_null() && drops)).then(|| (name.clone(), without_nulls(below, value)))
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| without_nulls(node.items(), item))
                .collect(),
        ),
        scalar => scalar.clone(),
    }
}

/// Takes out what the owner applied before and no longer applies, unless another owner has it.
fn prune(node: Node<'_>, merged: Value, last: &FieldSet, owners: &Owners, owner: &Entry) -> Value {
    if last.is_empty() {
        return merged;
    }
    let last = with_named(node, last);
    let held = owners
        .0
        .iter()
        .filter(|entry| !entry.is_same_owner(owner))
        .fold(owner.fields.clone(), |held, entry| held.union(&entry.fields));
    let held = with_named(node, &held);

    let has = with_named(node, &fields_of(node, &merged));
    let without_last = remove(node, &merged, &last);
    let kept = with_named(node, &fields_of(node, &without_last)).union(&held);
    let with_held = remove(node, &merged, &has.difference(&kept));
    // What nobody ever owned went with its parent, and comes back unless this owner had it.
    let remaining = with_named(node, &fields_of(node, &with_held));
    remove(node, &merged, &has.difference(&remaining).intersection(&last))
}

fn find_conflicts(owners: &Owners, owner: &Entry, changes: &Comparison) -> Vec<Conflict> {
    let changed = changes.modified.union(&changes.added);
    let mut conflicts: Vec<Conflict> = owners
        .0
        .iter()
        .filter(|entry| !entry.is_same_owner(owner))
        .flat_map(|entry| {
            let paths = entry.fields.intersection(&changed).paths();
            paths.into_iter().map(|path| Conflict {
                owner: entry.clone(),
                path,
            })
        })
        .collect();
    conflicts.sort_by_cached_key(|conflict| printed(&conflict.owner));
    conflicts
}

/// `kubectl apply --server-side` may change what `kubectl apply` had set, as the annotation of the latter proves.
fn after_takeover(
    resource: &Resource,
    live: &Value,
    manager: &str,
    conflicts: Vec<Conflict>,
) -> Vec<Conflict> {
    if manager != KUBECTL || conflicts.is_empty() {
        return conflicts;
    }
    let last = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    let Some(last) = last.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return conflicts;
    };
    if last["apiVersion"].as_str() != Some(api_version(resource).as_str()) {
        return conflicts;
    }
    let node = Node::root(&resource.schema);
    let since = Comparison::of(node, &last, live);
    let allowed = fields_of(node, &last)
        .difference(&since.modified)
        .difference(&since.added)
        .difference(&since.removed);
    conflicts
        .into_iter()
        .filter(|conflict| !allowed.has(&conflict.path))
        .collect()
}

/// Keeps the annotation of `kubectl apply` in step, so that one may go back to it.
fn refresh_last_applied(object: &mut Value, applied: &Value, manager: &str) {
    if manager != KUBECTL || object["metadata"]["annotations"][LAST_APPLIED].is_null() {
        return;
    }
    let mut written = strip(applied);
    if let Some(Value::Object(annotations)) = written.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            metadata_mut(&mut written).and_then(|metadata| metadata.remove("annotations"));
        }
    }
    let annotations = metadata_mut(object).map(|metadata| {
        metadata
            .entry("annotations")
            .or_insert_with(|| Value::Object(Map::new()))
    });
    if let Some(Value::Object(annotations)) = annotations {
        annotations.insert(LAST_APPLIED.to_owned(), Value::String(format!("{written}\n")));
    }
}

/// An owner as a conflict names it: `"kubectl" with subresource "status" using v1`.
fn printed(owner: &Entry) -> String {
    let subresource = match owner.subresource.as_str() {
        "" => String::new(),
        name => format!(" with subresource {name:?}"),
    };
    match owner.operation {
        Operation::Apply => format!("{:?}{subresource}", owner.manager),
        Operation::Update => format!("{:?}{subresource} using {}", owner.manager, owner.api_version),
    }
}

fn refusal(conflicts: &[Conflict]) -> ApiError {
    let list = if let [one] = conflicts {
        format!(
            "1 conflict: conflict with {}: {}",
            printed(&one.owner),
            shown(&one.path)
        )
    } else {
        let mut lines = Vec::new();
        let mut last = None;
        for conflict in conflicts {
            let owner = printed(&conflict.owner);
            if last.as_ref() != Some(&owner) {
                lines.push(format!("conflicts with {owner}:"));
            }
            lines.push(format!("- {}", shown(&conflict.path)));
            last = Some(owner);
        }
        format!("{} conflicts: {}", conflicts.len(), lines.join("\n"))
    };
    let error = ApiError::new(
        StatusCode::CONFLICT,
        "Conflict",
        format!("Apply failed with {list}"),
    );
    conflicts.iter().fold(error, |error, conflict| {
        let message = format!("conflict with {}", printed(&conflict.owner));
        error.with_cause("FieldManagerConflict", &shown(&conflict.path), &message)
    })
}

#[cfg(test)]
mod tests;
