//! Questions that a caller asks about itself: who am I, and may I do this? The answer is the question with a status.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, Lookup, Shown, decode, metadata};
use crate::answer::{Body, Format};
use crate::authorize::{self, Attributes};
use crate::builtin::{AUTHENTICATION, AUTHORIZATION};
use crate::managed_fields;
use crate::routes::Verb;
use crate::status::{ApiError, Cause};

/// Answers a question; there is nothing else to be done with one.
pub(super) fn ask(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    if call.verb != Verb::Create {
        return Err(ApiError::method_not_allowed());
    }
    let (mut object, warnings) = decode::object(call, body)?;
    decode::refuse_misfits(
        call,
        &crate::crd::check_values(&call.resource().schema, &object, None),
    )?;
    if call.resource().group == AUTHENTICATION {
        object = who(call);
    } else {
        may(call, &mut object)?;
    }
    if call.format != Format::Json {
        let message = "only the following media types are accepted: application/json";
        return Err(ApiError::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            message,
        ));
    }
    Ok(call.show(StatusCode::CREATED, &Shown::Value(object), &warnings))
}

fn who(call: &Call) -> Value {
    let identity = &call.identity;
    let mut user = json!({"username": identity.user, "groups": identity.groups});
    if !identity.extra.is_empty() {
        user["extra"] = json!(identity.extra);
    }
    json!({
        "kind": "SelfSubjectReview", "apiVersion": format!("{AUTHENTICATION}/v1"),
        "metadata": {"creationTimestamp": call.stamp()},
        "status": {"userInfo": user},
    })
}

fn may(call: &Call, question: &mut Value) -> Result<(), ApiError> {
    if let Some(question) = question.as_object_mut() {
        question.shift_remove("status");
    }
    if let Some(meta) = metadata::of(question) {
        // Nothing, in the words of clients that leave nothing out.
        meta.retain(|_, value| !value.is_null() && value != "" && value != 0);
    }
    managed_fields::update(
        call.resource(),
        None,
        question,
        &call.manager(),
        None,
        &call.stamp(),
    );
    let wish = wish(question)?;
    let lookup = Lookup {
        storage: &call.storage,
        cluster: &call.cluster,
    };
    question["status"] = match authorize::decide(&call.identity, &wish, &lookup) {
        Ok(()) => json!({"allowed": true}),
        Err(why) if why.is_empty() => json!({"allowed": false}),
        Err(why) => json!({"allowed": false, "reason": why}),
    };
    Ok(())
}

/// What is asked about: either objects or a path.
fn wish(question: &Value) -> Result<Attributes, ApiError> {
    let spec = &question["spec"];
    let (objects, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |from: &Value, name: &str| from[name].as_str().unwrap_or_default().to_owned();
    let cause = match (objects.is_object(), path.is_object()) {
        (true, true) => Some(Cause::invalid(
            "spec.nonResourceAttributes",
            path,
            "cannot be specified in combination with resourceAttributes",
        )),
        (false, false) => Some(Cause::invalid(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ if has_metadata(question) => {
            Some(Cause::invalid("metadata", &question["metadata"], "must be empty"))
        }
        _ => None,
    };
    if let Some(cause) = cause {
        return Err(ApiError::invalid(AUTHORIZATION, "", "", &[cause]));
    }
    if path.is_object() {
        return Ok(Attributes {
            verb: text(path, "verb"),
            path: text(path, "path"),
            ..Attributes::default()
        });
    }
    Ok(Attributes {
        verb: text(objects, "verb"),
        group: text(objects, "group"),
        resource: text(objects, "resource"),
        subresource: text(objects, "subresource"),
        namespace: text(objects, "namespace"),
        name: text(objects, "name"),
        path: String::new(),
        field_selector: selected(&objects["fieldSelector"]),
    })
}

/// Whether a question has any metadata but what the server itself wrote there.
fn has_metadata(question: &Value) -> bool {
    let fields = question["metadata"].as_object();
    fields.is_some_and(|fields| fields.keys().any(|name| name != "managedFields"))
}

/// The parts of a field selector that demand equality; the others only narrow what is seen. Only a request, whose path is
/// read, gets its name from a selector: a question says the name itself.
fn selected(selector: &Value) -> Vec<(String, String)> {
    let requirements = selector["requirements"].as_array();
    let equality = |one: &Value| {
        let values = one["values"].as_array().filter(|values| values.len() == 1)?;
        let is_equality = one["operator"] == "In" && one["key"] != "metadata.name";
        is_equality.then(|| {
            let value = values.first().and_then(Value::as_str).unwrap_or_default();
            (
                one["key"].as_str().unwrap_or_default().to_owned(),
                value.to_owned(),
            )
        })
    };
    requirements.into_iter().flatten().filter_map(equality).collect()
}
