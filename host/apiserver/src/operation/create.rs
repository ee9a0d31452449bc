//! Create, and the first half of an apply.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, Shown, decode, metadata, refused};
use crate::answer::{Body, unshape};
use crate::registry::{self, DEFINITIONS};
use crate::status::{ApiError, Cause};
use crate::store::object::{Key, Stored};
use crate::store::{Expect, Guard, Refused, Write};
use crate::{admission, authorize, builtin, certificates, crd, definitions, managed_fields};

/// `POST`
pub(super) async fn create(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let (mut object, warnings) = decode::object(call, body)?;
    decode::check_namespace(call, &mut object)?;
    if !metadata::text(&object, "resourceVersion").is_empty() {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message));
    }
    let created = insert(call, object, false).await?;
    Ok(call.show(StatusCode::CREATED, &created, &warnings))
}

/// Creates an object; `applied` when its managed fields are in place already.
pub(super) async fn insert(call: &Call, mut object: Value, applied: bool) -> Result<Shown, ApiError> {
    let resource = call.resource();
    let base = metadata::text(&object, "generateName").to_owned();
    let generated = metadata::text(&object, "name").is_empty() && !base.is_empty();
    if call.resource().namespaced && call.target.namespace.is_empty() {
        return Err(ApiError::bad_request(
            "an empty namespace may not be set during creation",
        ));
    }
    if generated {
        rename(&mut object, &base);
    }
    check_surroundings(call, metadata::text(&object, "name"))?;
    complete(call, &mut object, applied)?;
    let causes = match is_service(call) {
        true => addressed(call, &mut object),
        false => validate(call, &object),
    };
    decode::refuse_misfits(call, &causes)?;
    if !causes.is_empty() {
        let name = metadata::text(&object, "name");
        return Err(ApiError::invalid(&resource.group, &resource.kind, name, &causes));
    }
    loop {
        let name = metadata::text(&object, "name").to_owned();
        check_surroundings(call, &name)?;
        let key = Key::new(&call.target.namespace, &name);
        if call.storage.get(&call.cluster, &call.table(), &key).is_some() {
            if generated {
                rename(&mut object, &base);
                continue;
            }
            return Err(ApiError::already_exists(&resource.group, &resource.plural, &name));
        }
        if call.query.dry_run {
            return Ok(Shown::Value(object));
        }
        match write(call, key, object.clone()).await {
            Ok(stored) => return Ok(Shown::Stored(stored)),
            Err(Refused::Raced) => {}
            Err(other) => return Err(refused(other)),
        }
    }
}

fn rename(object: &mut Value, base: &str) {
    if let Some(meta) = metadata::of(object) {
        meta.insert("name".to_owned(), Value::String(metadata::generate_name(base)));
    }
}

async fn write(call: &Call, key: Key, mut object: Value) -> Result<Arc<Stored>, Refused> {
    unshape(call.resource(), &mut object);
    let mut guards = Vec::new();
    if !key.namespace.is_empty() {
        guards.push(Guard {
            table: "namespaces".to_owned(),
            key: Key::new("", &key.namespace),
        });
    }
    if call.resource().custom {
        guards.push(Guard {
            table: DEFINITIONS.to_owned(),
            key: Key::new("", call.table()),
        });
    }
    let write = Write {
        cluster: call.cluster.clone(),
        table: registry::table(call.resource()),
        key,
        expect: Expect::Absent,
        guards,
        object: Some(object),
    };
    call.storage.write(write).await
}

/// The namespace must exist, and neither it nor the definition may be on its way out.
fn check_surroundings(call: &Call, name: &str) -> Result<(), ApiError> {
    let resource = call.resource();
    let namespace = call.target.namespace.as_str();
    if !namespace.is_empty() {
        let found = call
            .storage
            .get(&call.cluster, "namespaces", &Key::new("", namespace));
        let Some(found) = found else {
            return Err(ApiError::not_found("", "namespaces", namespace));
        };
        if found.meta.deleting {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let message = format!("namespace {namespace} is being terminated");
            return Err(
                ApiError::forbidden(&resource.group, &resource.plural, name, &why).with_cause(
                    "NamespaceTerminating",
                    "metadata.namespace",
                    &message,
                ),
            );
        }
    }
    if resource.custom {
        let definition = call
            .storage
            .get(&call.cluster, DEFINITIONS, &Key::new("", call.table()));
        match definition {
            None => return Err(ApiError::unknown_path()),
            Some(found) if found.meta.deleting => {
                let message = "create not allowed while custom resource definition is terminating";
                return Err(ApiError::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "MethodNotAllowed",
                    message,
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Fills in what the server adds to a new object.
fn complete(call: &Call, object: &mut Value, applied: bool) -> Result<(), ApiError> {
    let resource = call.resource();
    let stamp = call.stamp();
    if let Some(meta) = metadata::of(object) {
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "resourceVersion",
        ] {
            meta.remove(field);
        }
        // Where nobody counts, it is kept as it was sent; zero is nothing.
        if resource.counts_generation || meta.get("generation").and_then(Value::as_i64) == Some(0) {
            meta.remove("generation");
        }
    }
    crd::prune(&resource.schema, object);
    crd::default(&resource.schema, object);
    if resource.custom
        && resource.has_status
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    builtin::prepare(resource, object, None);
    if !applied {
        managed_fields::update(resource, None, object, &call.manager(), None, &stamp);
    }
    builtin::finish(resource, object);
    admission::mutate(&call.wish(None), object);
    match (resource.custom, resource.kind.as_str()) {
        (false, "CertificateSigningRequest") => certificates::prepare_create(&call.identity, object),
        (false, "Pod") if resource.group.is_empty() => builtin::gate(object, &stamp),
        (false, "CustomResourceDefinition") => definitions::complete(&call.registry, object, None, &stamp),
        _ => {}
    }
    if let Some(meta) = metadata::of(object) {
        meta.insert("uid".to_owned(), Value::String(uuid::Uuid::new_v4().to_string()));
        meta.insert("creationTimestamp".to_owned(), Value::String(stamp));
        if resource.counts_generation {
            meta.insert("generation".to_owned(), json!(1));
        }
    }
    admission::admit(&call.identity, &call.wish(None), None, Some(object))
}

fn is_service(call: &Call) -> bool {
    let resource = call.resource();
    !resource.custom && resource.group.is_empty() && resource.kind == "Service"
}

/// Judges a service and gives it an address that no other has.
fn addressed(call: &Call, object: &mut Value) -> Vec<Cause> {
    let mut causes = validate(call, object);
    let lookup = super::Lookup {
        storage: &call.storage,
        cluster: &call.cluster,
    };
    let taken = authorize::Lookup::list(&lookup, "", "services", "")
        .iter()
        .filter_map(|service| Some(service["spec"]["clusterIP"].as_str()?.to_owned()))
        .collect();
    if causes.is_empty() {
        causes.extend(builtin::service::check_address(object, &taken));
        builtin::service::allocate(object, &taken);
    }
    causes
}

fn validate(call: &Call, object: &Value) -> Vec<Cause> {
    let resource = call.resource();
    if metadata::text(object, "name").is_empty() {
        return vec![Cause::required(
            "metadata.name",
            "name or generateName is required",
        )];
    }
    let mut causes = crd::validate(resource, object, None);
    if !resource.custom && resource.kind == "CertificateSigningRequest" {
        causes.extend(certificates::check(None, object, ""));
    }
    causes
}
