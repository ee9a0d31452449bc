//! Objects that run or mount something, and under whose name they do it.

use serde_json::{Value, json};

/// Kinds that make something run, whatever they look like.
const KINDS: [&str; 15] = [
    "CronJob",
    "DaemonSet",
    "DataVolume",
    "Deployment",
    "Job",
    "Pod",
    "PodTemplate",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceReplicaSet",
    "VirtualMachinePool",
    "Workflow",
];

/// Whether the object makes something run or mount.
pub(super) fn runs(object: &Value) -> bool {
    object
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| KINDS.contains(&kind))
        || mentions(object)
}

/// Sets the ServiceAccount everywhere in the object where one can be.
pub(super) fn run_as(object: &mut Value, account: &str) {
    match object {
        Value::Object(map) => {
            if map.contains_key("containers") || map.contains_key("serviceAccountName") {
                map.shift_remove("serviceAccount");
                map.insert("serviceAccountName".to_owned(), json!(account));
            } else if map.get("serviceAccount").is_some_and(Value::is_string) {
                map.insert("serviceAccount".to_owned(), json!(account));
            }
            map.values_mut().for_each(|value| run_as(value, account));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| run_as(value, account)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn mentions(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            map.contains_key("containers")
                || map.contains_key("serviceAccountName")
                || map.contains_key("serviceAccount")
                || map.values().any(mentions)
        }
        Value::Array(list) => list.iter().any(mentions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
