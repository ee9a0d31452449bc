//! What nobody in a tenant's project is to read: where machines are managed from, and which Secrets of the operator open what.
//!
//! A claim lives in the tenants' namespace, and a driver's words end on it: also those that it merely repeats from a machine's status.

use serde_json::Value;

/// What stands in the place of what is hidden.
const MASK: &str = "[hidden]";
/// Shorter words say nothing, and stand everywhere.
const SHORTEST: usize = 4;
/// Keys below which nothing is anybody's name or address.
const PLAIN: [&str; 4] = ["namespace", "apiVersion", "kind", "resourceVersion"];

/// The words of a machine that are not for tenants: addresses of its management, names of the Secrets for it. Longest first.
#[must_use]
pub fn words(machine: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["spec", "status"] {
        collect(machine.get(part).unwrap_or(&Value::Null), false, &mut found);
    }
    found.retain(|word| word.len() >= SHORTEST);
    found.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    found.dedup();
    found
}

/// A text without these words.
#[must_use]
pub fn without(text: &str, words: &[String]) -> String {
    words
        .iter()
        .fold(text.to_owned(), |text, word| text.replace(word.as_str(), MASK))
}

/// An object in which no Secret is named any more; its shape stays.
#[must_use]
pub fn unnamed(object: &Value) -> Value {
    fn mask(value: &mut Value, private: bool) {
        match value {
            Value::Object(map) => map
                .iter_mut()
                .for_each(|(key, value)| mask(value, is_private(key, private))),
            Value::Array(list) => list.iter_mut().for_each(|value| mask(value, private)),
            Value::String(text) if private => MASK.clone_into(text),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut object = object.clone();
    if let Some(spec) = object.get_mut("spec") {
        mask(spec, false);
    }
    object
}

fn is_private(key: &str, within: bool) -> bool {
    let lower = key.to_ascii_lowercase();
    let says = lower == "bmc" || lower.contains("secret") || lower.contains("credential");
    (within || says) && !PLAIN.contains(&key) && !lower.ends_with("version")
}

fn collect(value: &Value, private: bool, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| collect(value, is_private(key, private), found)),
        Value::Array(list) => list.iter().for_each(|value| collect(value, private, found)),
        Value::String(text) if private => {
            found.push(text.clone());
            // Errors of connections name host and port alone.
            if let Some((_, rest)) = text.split_once("://") {
                let authority = rest.split('/').next().unwrap_or_default();
                found.push(authority.to_owned());
                found.push(
                    authority
                        .rsplit_once(':')
                        .map_or(authority, |(host, _)| host)
                        .to_owned(),
                );
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn management_and_its_secrets_are_not_for_tenants() {
        let machine = json!({
            "metadata": {"name": "rack1-3", "namespace": "racks"},
            "spec": {
                "bmc": {"address": "redfish+https://10.0.0.9:8000/redfish/v1/Systems/1", "credentialsName": "rack1-3-bmc"},
                "image": {"url": "http://images/a"}, "userData": {"name": "hostler-u", "namespace": "racks"},
            },
            "status": {"goodCredentials": {"credentials": {"name": "older-bmc", "namespace": "racks"}, "credentialsVersion": "1234"}},
        });
        let words = words(&machine);
        let text = "10.0.0.9:8000 refuses rack1-3-bmc; older-bmc of racks opens redfish+https://10.0.0.9:8000/redfish/v1/Systems/1 1234";
        assert_eq!(
            without(text, &words),
            "[hidden] refuses [hidden]; [hidden] of racks opens [hidden] 1234"
        );
        assert_eq!(
            without("host racks/rack1-3 boots hostler-u", &words),
            "host racks/rack1-3 boots hostler-u"
        );
    }

    #[test]
    fn a_frozen_provider_names_no_secret_and_keeps_its_shape() {
        let provider = json!({"metadata": {"name": "p"}, "spec": {"metal3": {
            "clusterRef": {"namespace": "racks"},
            "netris": {"secretRef": {"name": "netris-login", "namespace": "racks"}},
        }}});
        assert_eq!(
            unnamed(&provider),
            json!({"metadata": {"name": "p"}, "spec": {"metal3": {
                "clusterRef": {"namespace": "racks"},
                "netris": {"secretRef": {"name": "[hidden]", "namespace": "racks"}},
            }}})
        );
    }
}
