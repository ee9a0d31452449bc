//! Delete: at once, or marked until the last finalizer is gone.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Call, Shown, decode, metadata, read, refused};
use crate::admission;
use crate::agenda::{FOREGROUND, ORPHAN};
use crate::answer::{Body, json_answer, list_bytes, shape};
use crate::clock::stamp;
use crate::definitions;
use crate::protobuf;
use crate::query::Propagation;
use crate::registry;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::{ApiError, Cause};
use crate::store::object::{Key, Stored};
use crate::store::{Expect, Refused, Storage, Write};

/// Namespaces that a cluster cannot be without.
pub(crate) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// How to delete.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    /// What becomes of the dependents.
    pub(crate) propagation: Option<Propagation>,
    /// Seconds that a pod gets.
    pub(crate) grace: Option<i64>,
    /// The object must have this uid.
    pub(crate) uid: Option<String>,
    /// The object must be at this version.
    pub(crate) revision: Option<String>,
    /// Only look.
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the body and the parameters of a request.
    pub(crate) fn parse(call: &Call, body: &[u8]) -> Result<Self, ApiError> {
        let mut options = Self {
            propagation: call.query.propagation,
            grace: call.query.grace,
            dry_run: call.query.dry_run,
            ..Self::default()
        };
        if body.is_empty() {
            return Ok(options);
        }
        let parsed = match decode::media_type(call).as_str() {
            protobuf::MEDIA => protobuf::decode(body),
            _ => decode::yaml(body),
        };
        let sent = parsed.map_err(ApiError::bad_request)?;
        // Eviction carries its options one level down.
        let sent = sent.get("deleteOptions").unwrap_or(&sent);
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        options.grace = sent["gracePeriodSeconds"].as_i64().or(options.grace);
        if let Some(policy) = sent["propagationPolicy"].as_str() {
            options.propagation = Propagation::parse(policy)?;
        }
        if sent["orphanDependents"].is_boolean() && sent["propagationPolicy"].is_string() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            let cause = Cause::invalid("propagationPolicy", &sent["propagationPolicy"], why);
            return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[cause]));
        }
        if let Some(orphan) = sent["orphanDependents"].as_bool() {
            options.propagation = Some(if orphan {
                Propagation::Orphan
            } else {
                Propagation::Background
            });
        }
        options.uid = text(&sent["preconditions"]["uid"]);
        options.revision = text(&sent["preconditions"]["resourceVersion"]);
        options.dry_run |= sent["dryRun"]
            .as_array()
            .is_some_and(|list| list.contains(&json!("All")));
        Ok(options)
    }
}

/// What a deletion came to.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is gone.
    Gone(Arc<Stored>),
    /// The object is marked, and waits.
    Marked(Shown),
}

/// `DELETE` of one object.
pub(super) async fn delete(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(call, body)?;
    let resource = call.resource();
    let admit = |old: &Value| admission::admit(&call.identity, &call.wish(None), Some(old), None);
    let place = (call.cluster.as_str(), resource);
    match remove(&call.storage, place, &call.key(), &options, call.now, admit).await? {
        Deleted::Gone(object) if resource.kind == "Pod" && !resource.custom => {
            Ok(call.show(StatusCode::OK, &Shown::Stored(object), &[]))
        }
        Deleted::Gone(object) => Ok(json_answer(
            StatusCode::OK,
            success(resource, &object).to_string(),
            &[],
        )),
        Deleted::Marked(shown) => Ok(call.show(StatusCode::OK, &shown, &[])),
    }
}

/// What a client is told of an object that is gone.
fn success(resource: &Resource, object: &Stored) -> Value {
    let mut details = json!({"name": object.key.name});
    if !resource.group.is_empty() {
        details["group"] = Value::String(resource.group.clone());
    }
    details["kind"] = Value::String(resource.plural.clone());
    details["uid"] = Value::String(object.meta.uid.to_string());
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// `DELETE` of a collection.
pub(super) async fn delete_collection(
    call: &Call,
    selector: &Selector,
    body: &Bytes,
) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(call, body)?;
    let resource = call.resource();
    let (revision, items) = read::select(call, selector)?;
    for item in &items {
        let admit = |old: &Value| {
            let mut wish = call.wish(None);
            wish.name.clone_from(&item.key.name);
            admission::admit(&call.identity, &wish, Some(old), None)
        };
        let one = DeleteOptions {
            uid: Some(item.meta.uid.to_string()),
            ..options.clone()
        };
        let place = (call.cluster.as_str(), resource);
        match remove(&call.storage, place, &item.key, &one, call.now, admit).await {
            Ok(_) => {}
            // Gone meanwhile, or another by now: not what was listed.
            Err(error) if matches!(error.reason, "NotFound" | "Conflict") => {}
            Err(error) => return Err(error),
        }
    }
    let meta = json!({"resourceVersion": revision.to_string()});
    Ok(json_answer(
        StatusCode::OK,
        list_bytes(resource, call.format, &items, &meta),
        &[],
    ))
}

/// Deletes one object, or marks it. `admit` sees the object that is deleted.
pub(crate) async fn remove(
    storage: &Arc<Storage>,
    (cluster, resource): (&str, &Resource),
    key: &Key,
    options: &DeleteOptions,
    now: Timestamp,
    admit: impl Fn(&Value) -> Result<(), ApiError>,
) -> Result<Deleted, ApiError> {
    let table = registry::table(resource);
    let is_namespace = table == "namespaces";
    if is_namespace && IMMORTAL.contains(&key.name.as_str()) {
        return Err(ApiError::forbidden(
            "",
            "namespaces",
            &key.name,
            "this namespace may not be deleted",
        ));
    }
    loop {
        let missing = || ApiError::not_found(&resource.group, &resource.plural, &key.name);
        let old = storage.get(cluster, &table, key).ok_or_else(missing)?;
        check_preconditions(resource, &old, options)?;
        let before = shape(resource, &old);
        admit(&before)?;
        let mut object = old.value();
        set_policy(&mut object, options.propagation);
        let grace = if resource.kind == "Pod" && !resource.custom {
            grace_of(&before, options)
        } else {
            0
        };
        definitions::before_delete(resource, &mut object, &stamp(now));
        let waits = grace > 0 || metadata::has_finalizers(resource, &object);
        if waits {
            mark(&mut object, &old, grace, now);
            if is_namespace {
                object["status"]["phase"] = json!("Terminating");
                metadata::of(&mut object).map(|meta| meta.shift_remove("deletionGracePeriodSeconds"));
            }
            if object == old.value() {
                return Ok(Deleted::Marked(Shown::Stored(old)));
            }
        }
        if options.dry_run {
            return Ok(if waits {
                Deleted::Marked(Shown::Value(object))
            } else {
                Deleted::Gone(old)
            });
        }
        let write = Write {
            cluster: cluster.to_owned(),
            table: table.clone(),
            key: key.clone(),
            expect: Expect::Revision(old.revision),
            guards: Vec::new(),
            object: waits.then_some(object),
        };
        match storage.write(write).await {
            Ok(stored) if waits => return Ok(Deleted::Marked(Shown::Stored(stored))),
            Ok(stored) => return Ok(Deleted::Gone(stored)),
            Err(Refused::Raced) => {}
            Err(other) => return Err(refused(other)),
        }
    }
}

fn check_preconditions(resource: &Resource, old: &Stored, options: &DeleteOptions) -> Result<(), ApiError> {
    let conflict = |what: &str, asked: &str, found: &str, how: &str| {
        let why = format!(
            "the {what} in the precondition ({asked}) does not match the {what} in record ({found}). The object might have \
             been {how}"
        );
        ApiError::conflict(&resource.group, &resource.kind, &old.key.name, &why)
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| **uid != *old.meta.uid) {
        return Err(conflict("UID", uid, &old.meta.uid, "deleted and then recreated"));
    }
    let found = old.revision.to_string();
    match options.revision.as_deref().filter(|asked| **asked != found) {
        Some(asked) => Err(conflict("ResourceVersion", asked, &found, "modified")),
        None => Ok(()),
    }
}

/// The finalizers that stand for what becomes of the dependents.
fn set_policy(object: &mut Value, policy: Option<Propagation>) {
    let Some(policy) = policy else { return };
    let Some(meta) = metadata::of(object) else { return };
    let mut names = meta
        .get("finalizers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    names.retain(|name| !matches!(name.as_str(), Some(FOREGROUND | ORPHAN)));
    match policy {
        Propagation::Background => {}
        Propagation::Foreground => names.push(json!(FOREGROUND)),
        Propagation::Orphan => names.push(json!(ORPHAN)),
    }
    if names.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), Value::Array(names));
    }
}

/// How long a pod gets: nothing unless a node runs it.
fn grace_of(pod: &Value, options: &DeleteOptions) -> i64 {
    let is_running = pod["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty())
        && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !is_running {
        return 0;
    }
    options
        .grace
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30)
        .max(0)
}

/// Marks an object as being deleted; a mark that is there may only come closer.
fn mark(object: &mut Value, old: &Stored, grace: i64, now: Timestamp) {
    let Some(meta) = metadata::of(object) else { return };
    let was = meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    if old.meta.deleting && was.is_none_or(|was| was <= grace) {
        return;
    }
    let until = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
    meta.insert("deletionTimestamp".to_owned(), Value::String(stamp(until)));
    meta.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
    if let Some(generation) = meta
        .get("generation")
        .and_then(Value::as_i64)
        .filter(|_| !old.meta.deleting)
    {
        meta.insert("generation".to_owned(), json!(generation + 1));
    }
}
