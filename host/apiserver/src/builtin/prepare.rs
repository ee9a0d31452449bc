//! What the server itself puts into a built-in object on its way in.

use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Completes an object that is created (`old` is none) or replaced. Defaults of the schema are in place already.
pub(crate) fn prepare(resource: &Resource, object: &mut Value, old: Option<&Value>) {
    if resource.custom || !object.is_object() {
        return;
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object, old),
        ("", "Pod") if old.is_none() => {
            object["status"] = json!({"phase": "Pending", "qosClass": quality(object)});
        }
        ("certificates.k8s.io", _) if old.is_none() => object["status"] = json!({}),
        ("apiextensions.k8s.io", _) => crate::crd::default_definition(object),
        _ => {}
    }
}

/// `stringData` is a way to write `data`, and is never kept. What has another type is left for the checks to tell.
fn secret(object: &mut Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    let text = |plain: &Map<String, Value>| plain.values().all(Value::is_string);
    if !fields
        .get("stringData")
        .and_then(Value::as_object)
        .is_some_and(text)
    {
        return;
    }
    let Some(Value::Object(plain)) = fields.remove("stringData") else {
        return;
    };
    if let Some(data) = fields.entry("data").or_insert_with(|| json!({})).as_object_mut() {
        for (key, value) in plain {
            let coded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, coded.into());
        }
    }
}

fn namespace(object: &mut Value, old: Option<&Value>) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("kubernetes.io/metadata.name".into(), name);
        }
    }
    if old.is_none() {
        object["status"] = json!({"phase": "Active"});
        object["spec"] = json!({"finalizers": ["kubernetes"]});
    }
}

/// The class that a pod's requests put it into.
fn quality(pod: &Value) -> &'static str {
    let containers = pod
        .pointer("/spec/containers")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let asks = |container: &Value, what: &str| {
        let list = container["resources"][what].as_object();
        list.is_some_and(|list| list.keys().any(|name| matches!(name.as_str(), "cpu" | "memory")))
    };
    if !containers
        .iter()
        .any(|container| asks(container, "requests") || asks(container, "limits"))
    {
        return "BestEffort";
    }
    let sure = |container: &Value| {
        let (requests, limits) = (
            &container["resources"]["requests"],
            &container["resources"]["limits"],
        );
        let both = ["cpu", "memory"].iter().all(|name| limits[*name].is_string());
        both && (requests.is_null()
            || ["cpu", "memory"]
                .iter()
                .all(|name| requests[*name] == limits[*name]))
    };
    if containers.iter().all(sure) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}
