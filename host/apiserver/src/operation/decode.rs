//! From the body of a request to an object, with what is to be said about its fields.

use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::{Call, metadata};
use crate::answer::api_version;
use crate::fields;
use crate::protobuf;
use crate::query::FieldValidation;
use crate::resource::Resource;
use crate::routes::Verb;
use crate::status::{ApiError, Cause};

const ACCEPTED: [&str; 2] = ["application/json", "application/yaml"];

/// The media type of a body, without parameters; JSON when none is given.
pub(super) fn media_type(call: &Call) -> String {
    let header = call
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = header
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if kind.is_empty() {
        "application/json".to_owned()
    } else {
        kind.to_owned()
    }
}

/// Names the fields that a body has twice.
type Duplicates = fn(&[u8]) -> Vec<String>;

/// Reads an object of the call's resource, and warnings about it.
pub(super) fn object(call: &Call, body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let resource = call.resource();
    let media = media_type(call);
    let (parsed, duplicates): (_, Duplicates) = match media.as_str() {
        "application/json" => (json(body), fields::duplicates_in_json),
        "application/yaml" => (yaml(body), fields::duplicates_in_yaml),
        protobuf::MEDIA if !resource.custom => (protobuf::decode(body), |_| Vec::new()),
        _ => return Err(ApiError::unsupported_media_type(&ACCEPTED)),
    };
    let mut object = parsed.map_err(|why| unrecognized(resource, &why))?;
    check_kind(resource, &mut object)?;
    let mut problems = Vec::new();
    if call.query.validation != FieldValidation::Ignore {
        problems.extend(duplicates(body));
        problems.extend(fields::unknown(&resource.schema, &object));
    }
    if call.query.validation == FieldValidation::Strict && !problems.is_empty() {
        let (kind, version) = (&resource.kind, &resource.version);
        let why = fields::strict_error(&problems);
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        )));
    }
    metadata::order(&mut object);
    Ok((object, fields::warnings(problems)))
}

/// Reads JSON.
pub(super) fn json(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| format!("json parse error: {error}"))
}

/// Reads YAML, of which JSON is a part.
pub(super) fn yaml(body: &[u8]) -> Result<Value, String> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let text = std::str::from_utf8(body).map_err(|error| format!("yaml parse error: {error}"))?;
    // That a key comes twice is told apart from this, to those who want to know.
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| format!("yaml parse error: {error}"))
}

fn unrecognized(resource: &Resource, why: &str) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): couldn't get version/kind; {why}",
        resource.kind
    ))
}

/// Kind and version must be those of the path; built-in kinds may leave them out.
fn check_kind(resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let Some(fields) = object.as_object_mut() else {
        return Err(unrecognized(resource, "json parse error: the object is none"));
    };
    for (name, title, expected) in [
        ("apiVersion", "API version", api_version(resource)),
        ("kind", "kind", resource.kind.clone()),
    ] {
        match fields.get(name).and_then(Value::as_str).unwrap_or_default() {
            "" if !resource.custom => {
                fields.insert(name.to_owned(), Value::String(expected));
            }
            "" => {
                let shown = Value::Object(fields.clone());
                // The kind is missed first.
                let name = if fields
                    .get("kind")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .is_empty()
                {
                    "Kind"
                } else {
                    name
                };
                return Err(ApiError::bad_request(format!(
                    "the object provided is unrecognized (must be of type {}): Object '{name}' is missing in '{shown}' ({shown})",
                    resource.kind
                )));
            }
            found if found != expected && name == "kind" && resource.custom => {
                let cause = Cause::invalid("kind", &Value::from(found), format!("must be {expected}"));
                let name = fields["metadata"]["name"].as_str().unwrap_or_default();
                return Err(ApiError::invalid(&resource.group, found, name, &[cause]));
            }
            found if found != expected => {
                return Err(ApiError::bad_request(format!(
                    "the {title} in the data ({found}) does not match the expected {title} ({expected})"
                )));
            }
            _ => {}
        }
    }
    let meta = fields.entry("metadata").or_insert_with(|| json!({}));
    if meta.is_null() {
        *meta = json!({});
    }
    if !meta.is_object() {
        let (kind, version) = (&resource.kind, &resource.version);
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: metadata must be an object"
        )));
    }
    Ok(())
}

/// A value of a built-in kind that has another type than its field is not even read; custom kinds are read, then judged.
pub(super) fn refuse_misfits(call: &Call, causes: &[Cause]) -> Result<(), ApiError> {
    let resource = call.resource();
    // Definitions are read like custom kinds: what their schemas say of types is judged, too.
    let is_judged = resource.custom || resource.kind == "CustomResourceDefinition";
    let is_misfit = |cause: &&Cause| cause.reason == "FieldValueTypeInvalid";
    let Some(misfit) = causes.iter().find(is_misfit).filter(|_| !is_judged) else {
        return Ok(());
    };
    if call.verb == Verb::Patch {
        let cause = Cause {
            reason: "FieldValueInvalid",
            field: "patch".to_owned(),
            message: misfit.message.clone(),
        };
        return Err(ApiError::invalid("", "", "", &[cause]));
    }
    let (kind, version) = (&resource.kind, &resource.version);
    let why = format!("{}: {}", misfit.field, misfit.message);
    Err(ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
    )))
}

/// The namespace of an object must be the one of the path, or absent; then it becomes that.
pub(super) fn check_namespace(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    let wanted = &call.target.namespace;
    let found = metadata::text(object, "namespace").to_owned();
    if !found.is_empty() && found != *wanted {
        let message = if call.resource().namespaced {
            "the namespace of the provided object does not match the namespace sent on the request"
        } else {
            "namespace should not be set on a cluster-scoped resource"
        };
        return Err(ApiError::bad_request(message));
    }
    if let Some(meta) = metadata::of(object) {
        if wanted.is_empty() {
            meta.remove("namespace");
        } else {
            meta.insert("namespace".to_owned(), Value::String(wanted.clone()));
        }
    }
    Ok(())
}

/// The name of an object must be the one of the path, or absent; then it becomes that.
pub(super) fn check_name(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    let wanted = &call.target.name;
    let found = metadata::text(object, "name");
    if !found.is_empty() && found != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({wanted})"
        )));
    }
    if let Some(meta) = metadata::of(object) {
        meta.insert("name".to_owned(), Value::String(wanted.clone()));
    }
    Ok(())
}
