//! Patch in its four forms: JSON, merge, strategic merge, and server-side apply.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

use super::update::{Tracking, replace};
use super::{Call, Shown, create, decode, metadata};
use crate::answer::{Body, shape};
use crate::query::FieldValidation;
use crate::status::{ApiError, Cause};
use crate::{apply, fields, patch};

const ACCEPTED: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

/// How often a patch that nobody made conditional is tried again when others write the same object.
const TRIES: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// `PATCH`
pub(super) async fn patch(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let form = form(call)?;
    check_options(call, form)?;
    let parsed = match form {
        Form::Apply => {
            decode::yaml(body).map_err(|why| ApiError::bad_request(format!("error decoding YAML: {why}")))?
        }
        Form::Json | Form::Merge | Form::Strategic => decode::json(body).map_err(ApiError::bad_request)?,
    };
    let duplicates = match (call.query.validation, form) {
        (FieldValidation::Ignore, _) => Vec::new(),
        (_, Form::Apply) => fields::duplicates_in_yaml(body),
        (_, Form::Json | Form::Merge | Form::Strategic) => fields::duplicates_in_json(body),
    };
    if form == Form::Apply && call.query.validation == FieldValidation::Strict && !duplicates.is_empty() {
        let why = duplicates.join(", ");
        return Err(ApiError::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: {why}"
        )));
    }
    for _ in 0..TRIES {
        let old = call.current();
        let (code, shown, problems) = match (&old, form) {
            (None, Form::Apply) if call.subresource().is_none() => {
                let (code, shown) = (StatusCode::CREATED, apply_new(call, &parsed).await?);
                (code, shown, duplicates.clone())
            }
            (None, _) => return Err(call.not_found()),
            (Some(old), _) => {
                let before = shape(call.resource(), old);
                let (new, tracking) = patched(call, form, &before, &parsed)?;
                check_patched(call, &before, &new)?;
                let mut problems = duplicates.clone();
                if form != Form::Apply && call.query.validation != FieldValidation::Ignore {
                    problems.extend(fields::unknown(&call.resource().schema, &new));
                }
                refuse_problems(call, &problems, body)?;
                match replace(call, old, new, tracking).await? {
                    Some(shown) => (StatusCode::OK, Some(shown), problems),
                    None => (StatusCode::OK, None, problems),
                }
            }
        };
        if let Some(shown) = shown {
            return Ok(call.show(code, &shown, &fields::warnings(problems)));
        }
    }
    Err(ApiError::modified(call.resource(), &call.target.name))
}

fn form(call: &Call) -> Result<Form, ApiError> {
    match decode::media_type(call).as_str() {
        "application/json-patch+json" => Ok(Form::Json),
        "application/merge-patch+json" => Ok(Form::Merge),
        "application/apply-patch+yaml" => Ok(Form::Apply),
        "application/strategic-merge-patch+json" if !call.resource().custom => Ok(Form::Strategic),
        _ => {
            if !call.resource().custom {
                let message = "415: Unsupported Media Type";
                return Err(ApiError::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "UnsupportedMediaType",
                    message,
                ));
            }
            Err(ApiError::unsupported_media_type(&ACCEPTED))
        }
    }
}

fn check_options(call: &Call, form: Form) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    if form == Form::Apply && call.query.manager.is_empty() {
        causes.push(Cause::required("fieldManager", "is required for apply patch"));
    }
    if form != Form::Apply && call.query.force.is_some() {
        causes.push(Cause::forbidden(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &causes))
}

/// Creates what is applied; none when someone created it meanwhile.
async fn apply_new(call: &Call, parsed: &Value) -> Result<Option<Shown>, ApiError> {
    let (mut object, _) = applied(call, None, parsed)?;
    decode::check_namespace(call, &mut object)?;
    if metadata::text(&object, "name").is_empty() {
        let name = &call.target.name;
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    decode::check_name(call, &mut object)?;
    metadata::order(&mut object);
    match create::insert(call, object, true).await {
        Err(error) if error.reason == "AlreadyExists" => Ok(None),
        other => other.map(Some),
    }
}

fn applied(call: &Call, live: Option<&Value>, parsed: &Value) -> Result<(Value, Tracking), ApiError> {
    let force = call.query.force.unwrap_or_default();
    let (manager, stamp) = (call.manager(), call.stamp());
    let object = apply::apply(
        call.resource(),
        live,
        parsed,
        &manager,
        force,
        call.subresource(),
        &stamp,
    )?;
    Ok((object, Tracking::Applied))
}

fn patched(call: &Call, form: Form, old: &Value, parsed: &Value) -> Result<(Value, Tracking), ApiError> {
    let mut new = old.clone();
    match form {
        Form::Json => patch::json_patch(&mut new, parsed)?,
        Form::Merge if !parsed.is_object() => {
            let what = if parsed.is_array() { "array" } else { "value" };
            let why = format!(
                "error decoding patch: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
            );
            return Err(ApiError::bad_request(why));
        }
        Form::Merge => patch::merge_patch(&mut new, parsed),
        Form::Strategic => patch::strategic(&call.resource().schema, &mut new, parsed)?,
        Form::Apply => return applied(call, Some(old), parsed),
    }
    Ok((new, Tracking::Update))
}

/// A patch may not make another object of an object, and may say which version it is for.
fn check_patched(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    let resource = call.resource();
    if !new.is_object() || !new["metadata"].is_object() {
        return Err(ApiError::bad_request("the patch leaves no object with metadata"));
    }
    let text = |field: &str| metadata::text(new, field);
    if text("name") != metadata::text(old, "name") {
        let (found, wanted) = (text("name"), &call.target.name);
        let why = format!("the name of the object ({found}) does not match the name on the URL ({wanted})");
        return Err(ApiError::bad_request(why));
    }
    if text("namespace") != metadata::text(old, "namespace") {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(why));
    }
    let mut causes = Vec::new();
    for (field, pointer) in [("apiVersion", "/apiVersion"), ("kind", "/kind")] {
        let value = new.pointer(pointer).unwrap_or(&Value::Null);
        if old.pointer(pointer).unwrap_or(&Value::Null) != value {
            causes.push(Cause::invalid(field, value, "field is immutable"));
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
    let asked = metadata::text(new, "resourceVersion");
    if !asked.is_empty() && asked != metadata::text(old, "resourceVersion") {
        return Err(ApiError::modified(resource, &call.target.name));
    }
    Ok(())
}

fn refuse_problems(call: &Call, problems: &[String], body: &[u8]) -> Result<(), ApiError> {
    if call.query.validation != FieldValidation::Strict || problems.is_empty() {
        return Ok(());
    }
    let shown = Value::String(String::from_utf8_lossy(body).into_owned());
    let cause = Cause::invalid("patch", &shown, fields::strict_error(problems));
    Err(ApiError::invalid("", "", "", &[cause]))
}
