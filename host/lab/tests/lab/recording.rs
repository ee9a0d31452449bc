//! Reads what was done to the real Metal3, and what was seen of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::core::DynamicObject;
use serde_json::{Value, json};

/// Something that was done.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Apply(Vec<DynamicObject>),
    /// Until the only host is in this state.
    Wait(String),
    Sleep(f64),
    /// A JSON merge patch.
    Patch {
        host: String,
        patch: Value,
    },
    Delete(String),
    DeleteSecret(String),
    DeleteAll,
}

/// What was done and seen.
pub(crate) struct Recording {
    pub(crate) actions: Vec<Action>,
    /// The objects of each host, one an event; none when it was deleted.
    pub(crate) hosts: BTreeMap<String, Vec<Option<Value>>>,
}

/// Reads `NAME.actions.yaml` and `NAME.jsonl`.
pub(crate) fn read(name: &str) -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/metal3");
    let text = |file: String| std::fs::read_to_string(folder.join(file)).unwrap();
    let mut hosts: BTreeMap<String, Vec<Option<Value>>> = BTreeMap::new();
    for line in text(format!("{name}.jsonl")).lines() {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let object = event["object"].take();
        let host = object["metadata"]["name"].as_str().unwrap().to_owned();
        hosts
            .entry(host)
            .or_default()
            .push((event["type"] != "DELETED").then_some(object));
    }
    let actions: Vec<Value> = serde_saphyr::from_str(&text(format!("{name}.actions.yaml"))).unwrap();
    let only = hosts.keys().next().unwrap().clone();
    Recording {
        actions: actions.iter().map(|action| parse(action, &only)).collect(),
        hosts,
    }
}

fn parse(action: &Value, only: &str) -> Action {
    let (verb, what) = action.as_object().unwrap().iter().next().unwrap();
    match verb.as_str() {
        "apply" => Action::Apply(match what {
            Value::Array(all) => all.iter().map(manifest).collect(),
            one => vec![manifest(one)],
        }),
        "wait" => Action::Wait(what.as_str().unwrap().to_owned()),
        "sleep" => Action::Sleep(what.as_f64().unwrap()),
        "patch" => {
            let mut patch = what.clone();
            let host = patch.as_object_mut().unwrap().remove("host");
            Action::Patch {
                host: host.map_or(only.to_owned(), |host| host.as_str().unwrap().to_owned()),
                patch,
            }
        }
        "delete" => Action::Delete(what.as_str().unwrap().to_owned()),
        "delete-secret" => Action::DeleteSecret(what.as_str().unwrap().to_owned()),
        "delete-all" => Action::DeleteAll,
        other => panic!("unknown action {other}"),
    }
}

fn manifest(what: &Value) -> DynamicObject {
    let mut metadata = what
        .get("metadata")
        .cloned()
        .unwrap_or_else(|| json!({"name": what["name"]}));
    metadata["namespace"] = json!("metal3-system");
    if let Some(annotations) = what.get("annotations") {
        metadata["annotations"] = annotations.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": metadata, "spec": what["spec"],
    }))
    .unwrap()
}

/// All that can be compared of an object: times, names and versions that differ each time are only there or not there.
pub(crate) fn whole(object: &Value, mask_power: bool) -> Value {
    let mut status = object["status"].clone();
    let there = |value: &mut Value| *value = json!(!matches!(value, Value::Null) && value != "");
    if let Some(fields) = status.as_object_mut() {
        fields.remove("lastUpdated");
        // The recording is of a v0.14; the laboratory writes the status of v0.13, which has neither.
        fields.remove("lastAttemptedImage");
        fields.remove("provisioningFailCount");
        if mask_power {
            fields.remove("poweredOn");
        }
        let hardware = fields.get_mut("hardware").map(there);
        fields.insert("hardware".into(), json!(hardware.is_some()));
        there(&mut status["provisioning"]["ID"]);
        for credentials in ["goodCredentials", "triedCredentials"] {
            there(&mut status[credentials]["credentialsVersion"]);
        }
        for period in status["operationHistory"].as_object_mut().unwrap().values_mut() {
            period.as_object_mut().unwrap().values_mut().for_each(there);
        }
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"].take();
        }
    }
    let metadata = &object["metadata"];
    json!({
        "labels": metadata["labels"], "annotations": metadata.get("annotations").filter(|all| **all != json!({})),
        "finalizers": metadata.get("finalizers").filter(|all| **all != json!([])), "generation": metadata["generation"],
        "deleting": metadata.get("deletionTimestamp").is_some(), "spec": object["spec"], "status": status,
    })
}

/// Takes repetitions away.
pub(crate) fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for one in all {
        if kept.last() != Some(&one) {
            kept.push(one);
        }
    }
    kept
}
