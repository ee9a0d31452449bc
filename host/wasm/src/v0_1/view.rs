//! What a guest may see of an object.

use serde_json::{Map, Value};

/// Annotation in which `kubectl apply` keeps a copy of the whole object, secrets and all.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Ends of key names under which a text is a secret, in lower case without dashes, dots and underscores.
const SECRET_ENDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "secretkey",
    "privatekey",
    "accesskey",
    "apikey",
    "credential",
    "credentials",
    "kubeconfig",
];

/// A copy of an object without `managedFields`, without the last-applied annotation, without the data of a Secret, and without
/// any text whose key says that it is a password. What only names a secret (`credentialsName`, `userData.name`) stays.
///
/// The callers leave most of this out already; this is the wall, and does not ask what they did.
pub(crate) fn view(object: &Value) -> Value {
    let is_secret = object.get("kind").is_some_and(|kind| kind == "Secret");
    let Value::Object(fields) = object else {
        return without_secrets(object);
    };
    let mut seen = Map::new();
    for (key, value) in fields {
        match key.as_str() {
            "data" | "stringData" if is_secret => {}
            "metadata" => {
                seen.insert(key.clone(), metadata(value));
            }
            _ if is_password(key, value) => {}
            _ => {
                seen.insert(key.clone(), without_secrets(value));
            }
        }
    }
    Value::Object(seen)
}

/// Whether a key of a flat map of texts says that its value is a password.
pub(crate) fn is_secret_key(key: &str) -> bool {
    let plain: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
    let plain = plain.to_ascii_lowercase();
    SECRET_ENDS.iter().any(|end| plain.ends_with(end))
}

fn metadata(value: &Value) -> Value {
    let mut seen = without_secrets(value);
    if let Some(metadata) = seen.as_object_mut() {
        metadata.shift_remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.shift_remove(LAST_APPLIED);
        }
    }
    seen
}

fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(fields) if is_object(fields) => view(value),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| !is_password(key, value));
            Value::Object(
                kept.map(|(key, value)| (key.clone(), without_secrets(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(without_secrets).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// An object inside something else: an item of a List, the claim in a request, a manifest in a template.
fn is_object(fields: &Map<String, Value>) -> bool {
    let has = |key: &str| fields.contains_key(key);
    has("kind") && (has("metadata") || has("data") || has("stringData"))
}

/// Only texts and numbers are secrets themselves; an object under such a key says where one is.
fn is_password(key: &str, value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Number(_)) && is_secret_key(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_guest_sees_a_secret_without_its_data() {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": "bmc", "annotations": { LAST_APPLIED: "{\"data\":…}", "team": "racks" } },
            "data": { "username": "cm9vdA==" }, "stringData": { "username": "root" },
        });
        let seen = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": "bmc", "annotations": { "team": "racks" } },
        });
        assert_eq!(view(&secret), seen);
        let list = json!({ "kind": "List", "items": [secret] });
        assert_eq!(
            view(&json!({ "claim": null, "secret": secret })),
            json!({ "claim": null, "secret": seen })
        );
        assert_eq!(view(&list), json!({ "kind": "List", "items": [seen] }));
    }

    #[test]
    fn a_guest_sees_where_a_password_is_and_never_what_it_is() {
        let host = json!({
            "kind": "BareMetalHost",
            "metadata": { "name": "rack1-3", "managedFields": [{ "manager": "x" }], "uid": "u" },
            "spec": {
                "bmc": { "address": "redfish://x", "credentialsName": "rack1-3-bmc", "password": "hunter2" },
                "userData": { "name": "boot", "namespace": "metal" },
                "image": { "url": "http://x", "authToken": "t0k3n", "pull-secret": "s", "API_KEY": "k" },
                "tokenSecretRef": { "name": "n", "key": "token" },
                "secret": { "secretName": "where" },
                "pin_password": 1234,
            },
        });
        let seen = json!({
            "kind": "BareMetalHost",
            "metadata": { "name": "rack1-3", "uid": "u" },
            "spec": {
                "bmc": { "address": "redfish://x", "credentialsName": "rack1-3-bmc" },
                "userData": { "name": "boot", "namespace": "metal" },
                "image": { "url": "http://x" },
                "tokenSecretRef": { "name": "n", "key": "token" },
                "secret": { "secretName": "where" },
            },
        });
        assert_eq!(view(&host), seen);
    }
}
