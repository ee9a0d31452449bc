//! Replace: what may change, what is taken back, and what follows from the last finalizer's going.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{Call, Shown, decode, metadata, refused};
use crate::answer::{Body, shape, unshape};
use crate::registry;
use crate::resource::Resource;
use crate::routes::Verb;
use crate::status::{ApiError, Cause};
use crate::store::object::Stored;
use crate::store::{Expect, Refused, Write};
use crate::{admission, builtin, certificates, crd, definitions, managed_fields};

/// `PUT`
pub(super) async fn update(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let (mut new, warnings) = decode::object(call, body)?;
    decode::check_namespace(call, &mut new)?;
    decode::check_name(call, &mut new)?;
    let asked = metadata::text(&new, "resourceVersion").to_owned();
    let resource = call.resource();
    if asked.is_empty() && resource.custom {
        call.current().ok_or_else(|| call.not_found())?;
        let cause = Cause {
            reason: "FieldValueInvalid",
            field: "metadata.resourceVersion".to_owned(),
            message: "Invalid value: 0: must be specified for an update".to_owned(),
        };
        return Err(ApiError::invalid(
            &resource.group,
            &resource.plural,
            &call.target.name,
            &[cause],
        ));
    }
    if !asked.is_empty() && asked.parse::<u64>().is_err() {
        let why = crate::query::not_a_number("ParseUint", &asked);
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", why));
    }
    loop {
        let old = call.current().ok_or_else(|| call.not_found())?;
        if !asked.is_empty() && asked != old.revision.to_string() {
            return Err(ApiError::modified(resource, &call.target.name));
        }
        match replace(call, &old, new.clone(), Tracking::Update).await? {
            Some(shown) => return Ok(call.show(StatusCode::OK, &shown, &warnings)),
            None if asked.is_empty() => {}
            None => return Err(ApiError::modified(resource, &call.target.name)),
        }
    }
}

/// Whether managed fields are still to be worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    /// They are.
    Update,
    /// Server-side apply has put them in.
    Applied,
}

/// Puts `new` in the place of `old`; none when someone was faster.
pub(super) async fn replace(
    call: &Call,
    old: &Arc<Stored>,
    mut new: Value,
    tracking: Tracking,
) -> Result<Option<Shown>, ApiError> {
    let resource = call.resource();
    let before = shape(resource, old);
    settle(call, &before, &mut new, tracking)?;
    let mut causes = validate(call, &before, &new);
    decode::refuse_misfits(call, &causes)?;
    if resource.custom && call.subresource() == Some("status") {
        // The status is checked by itself, and told so.
        for cause in &mut causes {
            cause.message = cause.message.replace(": status.", ": ");
        }
    }
    if !causes.is_empty() {
        return Err(ApiError::invalid(
            &resource.group,
            &resource.kind,
            &call.target.name,
            &causes,
        ));
    }
    let is_last = old.meta.deleting
        && new["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default()
            == 0
        && !metadata::has_finalizers(resource, &new);
    if new == before && !is_last {
        return Ok(Some(Shown::Stored(old.clone())));
    }
    if call.query.dry_run {
        return Ok(Some(Shown::Value(new)));
    }
    let mut kept = new.clone();
    unshape(resource, &mut kept);
    let write = Write {
        cluster: call.cluster.clone(),
        table: registry::table(resource),
        key: call.key(),
        expect: Expect::Revision(old.revision),
        guards: Vec::new(),
        object: (!is_last).then_some(kept),
    };
    match call.storage.write(write).await {
        Ok(_) if is_last => Ok(Some(Shown::Value(new))),
        Ok(stored) => Ok(Some(Shown::Stored(stored))),
        Err(Refused::Raced) => Ok(None),
        Err(other) => Err(refused(other)),
    }
}

/// Makes of what the client sent what is to be kept.
fn settle(call: &Call, old: &Value, new: &mut Value, tracking: Tracking) -> Result<(), ApiError> {
    let resource = call.resource();
    let stamp = call.stamp();
    keep_identity(call, old, new)?;
    crd::prune(&resource.schema, new);
    crd::default(&resource.schema, new);
    keep_parts(resource, &call.target.subresource, old, new);
    if !resource.custom && resource.kind == "CertificateSigningRequest" {
        certificates::prepare_update(old, new, &call.target.subresource, &stamp);
    }
    builtin::prepare(resource, new, Some(old));
    if tracking == Tracking::Update {
        managed_fields::update(
            resource,
            Some(old),
            new,
            &call.manager(),
            call.subresource(),
            &stamp,
        );
    }
    if !resource.custom && resource.kind == "CustomResourceDefinition" && call.target.subresource.is_empty() {
        definitions::complete(&call.registry, new, Some(old), &stamp);
    }
    if resource.counts_generation && metadata::is_new_generation(resource, old, new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        if let Some(meta) = metadata::of(new) {
            meta.insert("generation".to_owned(), json!(generation));
        }
    }
    keep_order(old, new);
    admission::admit(&call.identity, &call.wish(None), Some(old), Some(new))
}

/// What the server gave stays as it was; who means another object is told so.
fn keep_identity(call: &Call, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    let resource = call.resource();
    let (asked, uid) = (metadata::text(new, "uid").to_owned(), metadata::text(old, "uid"));
    if !asked.is_empty() && asked != uid && call.verb == Verb::Patch {
        let cause = Cause::invalid("metadata.uid", &Value::from(asked), "field is immutable");
        return Err(ApiError::invalid(
            &resource.group,
            &resource.kind,
            &call.target.name,
            &[cause],
        ));
    }
    if !asked.is_empty() && asked != uid {
        let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}");
        return Err(ApiError::conflict(
            &resource.group,
            &resource.plural,
            &call.target.name,
            &why,
        ));
    }
    let Some(meta) = metadata::of(new) else {
        return Err(ApiError::bad_request("metadata must be an object"));
    };
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "selfLink",
        "resourceVersion",
    ] {
        restore(meta, old["metadata"].as_object(), field);
    }
    Ok(())
}

fn restore(fields: &mut Map<String, Value>, old: Option<&Map<String, Value>>, field: &str) {
    match old.and_then(|old| old.get(field)) {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}

/// A subresource changes its part only, and the object itself does not change that part.
fn keep_parts(resource: &Resource, subresource: &str, old: &Value, new: &mut Value) {
    let before = old.as_object();
    if subresource == "status" && resource.custom {
        let mut kept = old.clone();
        if let (Some(kept), Some(new)) = (kept.as_object_mut(), new.as_object()) {
            restore(kept, Some(new), "status");
            if let Some(meta) = kept.get_mut("metadata").and_then(Value::as_object_mut) {
                restore(meta, new["metadata"].as_object(), "managedFields");
            }
        }
        *new = kept;
        return;
    }
    let is_namespace = !resource.custom && resource.group.is_empty() && resource.kind == "Namespace";
    let Some(fields) = new.as_object_mut() else { return };
    match subresource {
        "status" => {
            let names: Vec<String> = fields
                .keys()
                .chain(before.into_iter().flat_map(Map::keys))
                .cloned()
                .collect();
            for name in names
                .iter()
                .filter(|name| !matches!(name.as_str(), "status" | "metadata"))
            {
                restore(fields, before, name);
            }
        }
        // The handler of certificate requests knows what an approval may change.
        "approval" => {}
        "finalize" => restore(fields, before, "status"),
        _ => {
            if resource.has_status {
                restore(fields, before, "status");
            }
            if is_namespace {
                restore(fields, before, "spec");
            }
        }
    }
}

/// Keeps the order of the fields of metadata, so that what did not change reads the same.
fn keep_order(old: &Value, new: &mut Value) {
    metadata::order(new);
    let Some(meta) = metadata::of(new) else { return };
    let mut ordered = Map::with_capacity(meta.len());
    for name in old["metadata"].as_object().into_iter().flat_map(Map::keys) {
        if let Some(value) = meta.remove(name) {
            ordered.insert(name.clone(), value);
        }
    }
    ordered.extend(std::mem::take(meta));
    *meta = ordered;
}

fn validate(call: &Call, old: &Value, new: &Value) -> Vec<Cause> {
    let resource = call.resource();
    let mut causes = crd::validate(resource, new, Some(old));
    if !resource.custom && resource.kind == "CertificateSigningRequest" {
        causes.extend(certificates::check(Some(old), new, &call.target.subresource));
    }
    let list = |object: &Value| {
        object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let known = list(old);
    let added: Vec<Value> = list(new)
        .into_iter()
        .filter(|name| !known.contains(name))
        .collect();
    if !old["metadata"]["deletionTimestamp"].is_null() && !added.is_empty() {
        let names: Vec<String> = added.iter().map(ToString::to_string).collect();
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            names.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", why));
    }
    causes
}
