//! What a plugin may see of an object: all of it, without bookkeeping and without secrets.

use std::sync::Arc;

use hostler_api::names::LOAN;
use serde_json::{Map, Value};

use crate::seams::{Object, ObjectRef};

/// Keys (in lower case, at their end) under which people keep what is nobody else's to read.
const SECRET_KEYS: [&str; 8] = [
    "password",
    "passwd",
    "passphrase",
    "secretkey",
    "privatekey",
    "accesskey",
    "apikey",
    "token",
];

/// Annotations that are ours or a copy of the whole object.
const HIDDEN_ANNOTATIONS: [&str; 2] = [LOAN, "kubectl.kubernetes.io/last-applied-configuration"];

/// The object as a plugin sees it. (What is no Kubernetes object has no kind and no name.)
///
/// Managed fields, the last-applied annotation, the loan record, the data of Secrets, and fields called like a password are left out.
#[must_use]
pub fn object(json: &Value) -> Object {
    let mut shown = json.as_object().cloned().unwrap_or_default();
    if let Some(metadata) = shown.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| !HIDDEN_ANNOTATIONS.contains(&key.as_str()));
            without_secrets(annotations);
        }
    }
    if shown.get("kind").is_some_and(|kind| kind == "Secret")
        && shown.get("apiVersion").is_some_and(|version| version == "v1")
    {
        shown.retain(|key, _| !matches!(key.as_str(), "data" | "stringData"));
    }
    for (key, value) in &mut shown {
        if key != "metadata" {
            clean(value);
        }
    }
    shown.retain(|key, value| key == "metadata" || !is_secret(key, value));
    let text = |key: &str| {
        shown
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let metadata = |key: &str| shown.get("metadata")?.get(key)?.as_str().map(ToOwned::to_owned);
    Object {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: metadata("namespace"),
        name: metadata("name").unwrap_or_default(),
        uid: metadata("uid").unwrap_or_default(),
        json: Arc::new(Value::Object(shown)),
    }
}

/// The same, without its status.
#[must_use]
pub fn without_status(json: &Value) -> Object {
    let mut stated = json.clone();
    if let Some(map) = stated.as_object_mut() {
        map.shift_remove("status");
    }
    object(&stated)
}

/// Points at an object.
#[must_use]
pub fn reference(json: &Value) -> Option<ObjectRef> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(ToOwned::to_owned);
    let metadata = json.get("metadata")?;
    Some(ObjectRef {
        api_version: text(json.get("apiVersion"))?,
        kind: text(json.get("kind"))?,
        namespace: text(metadata.get("namespace")),
        name: text(metadata.get("name"))?,
    })
}

fn clean(value: &mut Value) {
    match value {
        Value::Object(map) => {
            without_secrets(map);
            map.values_mut().for_each(clean);
        }
        Value::Array(list) => list.iter_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn without_secrets(map: &mut Map<String, Value>) {
    map.retain(|key, value| !is_secret(key, value));
}

fn is_secret(key: &str, value: &Value) -> bool {
    let key = key.to_ascii_lowercase().replace(['-', '_'], "");
    value.is_string() && SECRET_KEYS.iter().any(|end| key.ends_with(end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_and_bookkeeping_stay_behind() {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "bmc", "namespace": "default", "uid": "s", "managedFields": [{}],
                "annotations": {"hostler.dev/loan": "{}", "kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"},
            },
            "data": {"username": "x"}, "stringData": {"password": "y"},
        });
        let shown = object(&secret);
        assert_eq!(
            *shown.json,
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {"name": "bmc", "namespace": "default", "uid": "s", "annotations": {"a": "b"}},
            })
        );
        assert_eq!(
            (shown.namespace.as_deref(), shown.uid.as_str()),
            (Some("default"), "s")
        );
    }

    #[test]
    fn fields_called_like_a_password_go_and_names_of_secrets_stay() {
        let provider = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "NodeProvider", "metadata": {"name": "p", "labels": {"x/token": "true"}},
            "spec": {"bmc": {"adminPassword": "x", "credentialsName": "bmc", "api_key": "k", "list": [{"Token": "t", "tokens": 3}]}},
            "status": {"phase": "Available"},
        });
        let shown = without_status(&provider);
        assert_eq!(
            shown.json["spec"],
            json!({"bmc": {"credentialsName": "bmc", "list": [{"tokens": 3}]}})
        );
        assert_eq!(shown.json["metadata"]["labels"]["x/token"], "true");
        assert_eq!(shown.json.get("status"), None);
    }

    #[test]
    fn what_has_no_name_is_no_object() {
        assert_eq!(reference(&json!({"metadata": {}})), None);
        assert_eq!(reference(&json!("x")), None);
        assert_eq!(object(&json!("x")).name, "");
    }
}
