//! Certificate requests: what one must look like, who may change what of it, and the loop that signs approved ones.

mod request;
mod signer;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub(crate) use self::request::Request;
pub(crate) use self::signer::run;
use crate::authenticate::Identity;
use crate::fault;
use crate::status::Cause;

/// Signs the certificates of nodes.
pub(crate) const NODE_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Signs the certificates of other clients.
pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Would sign what nodes serve with; requests are kept, and nobody here signs them.
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// Every usage that may be asked for, sorted as messages list them.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Completes a new request: who asks is what was proved, and nothing is decided yet.
pub(crate) fn prepare_create(identity: &Identity, object: &mut Value) {
    let Some(object) = object.as_object_mut() else {
        return;
    };
    let spec = object.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Some(spec) = spec.as_object_mut() {
        for name in ["uid", "extra"] {
            spec.remove(name);
        }
        spec.insert("username".to_owned(), json!(identity.user));
        spec.insert("groups".to_owned(), json!(identity.groups));
        if !identity.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(identity.extra));
        }
    }
    object.insert("status".to_owned(), json!({}));
}

/// Takes back what an update may not change: the request itself never, its status only through the subresources.
pub(crate) fn prepare_update(old: &Value, new: &mut Value, subresource: &str, now: &str) {
    let Some(object) = new.as_object_mut() else { return };
    let restore = |object: &mut Map<String, Value>, key: &str| match old.get(key) {
        Some(value) => {
            object.insert(key.to_owned(), value.clone());
        }
        None => {
            object.remove(key);
        }
    };
    restore(object, "spec");
    match subresource {
        "status" => keep_verdicts(&old["status"], object),
        "approval" => {
            let conditions = object.get("status").map(|status| status["conditions"].clone());
            restore(object, "status");
            let status = object.entry("status").or_insert_with(|| json!({}));
            if let (Some(status), Some(conditions @ Value::Array(_))) = (status.as_object_mut(), conditions) {
                status.insert("conditions".to_owned(), conditions);
            } else if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
                status.remove("conditions");
            }
        }
        _ => {
            restore(object, "status");
            return;
        }
    }
    if let Some(Value::Array(conditions)) = new.pointer_mut("/status/conditions") {
        for condition in conditions {
            stamp(condition, conditions_of(old), now);
        }
    }
}

fn conditions_of(object: &Value) -> &[Value] {
    object["status"]["conditions"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// A writer of status hands verdicts back as they were, or is told that it changed one.
fn keep_verdicts(old: &Value, object: &mut Map<String, Value>) {
    let Some(Value::Array(conditions)) = object
        .get_mut("status")
        .and_then(|status| status.get_mut("conditions"))
    else {
        return;
    };
    let of_type = |conditions: &[Value], name: &str| -> Vec<Value> {
        conditions
            .iter()
            .filter(|condition| condition["type"] == name)
            .cloned()
            .collect()
    };
    for name in ["Approved", "Denied"] {
        let was = of_type(old["conditions"].as_array().map_or(&[], Vec::as_slice), name);
        if was.len() == of_type(conditions, name).len() {
            let mut was = was.into_iter();
            for condition in conditions
                .iter_mut()
                .filter(|condition| condition["type"] == name)
            {
                *condition = was.next().unwrap_or_default();
            }
        }
    }
}

/// Fills in the times of a condition.
fn stamp(condition: &mut Value, old: &[Value], now: &str) {
    let was = old
        .iter()
        .find(|was| was["type"] == condition["type"] && was["status"] == condition["status"])
        .and_then(|was| was["lastTransitionTime"].as_str())
        .unwrap_or(now)
        .to_owned();
    let Some(condition) = condition.as_object_mut() else {
        return;
    };
    for (key, time) in [("lastUpdateTime", now), ("lastTransitionTime", was.as_str())] {
        if condition.get(key).is_none_or(Value::is_null) {
            condition.insert(key.to_owned(), json!(time));
        }
    }
}

/// What is wrong with a request, new or changed.
pub(crate) fn check(old: Option<&Value>, new: &Value, subresource: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_spec(&new["spec"], &mut causes);
    check_conditions(new, &mut causes);
    if let Some(old) = old {
        check_changes(old, new, subresource, &mut causes);
    }
    causes
}

fn check_spec(spec: &Value, causes: &mut Vec<Cause>) {
    if let Err(why) = Request::parse(&spec["request"]) {
        causes.push(fault::invalid("spec.request", &spec["request"], &why));
    }
    let usages = spec["usages"].as_array().map_or(&[][..], Vec::as_slice);
    if usages.is_empty() {
        causes.push(fault::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{index}]");
        if !usage.as_str().is_some_and(|usage| USAGES.contains(&usage)) {
            causes.push(fault::not_supported(&field, usage, &USAGES));
        }
        if usages[..index].contains(usage) {
            causes.push(fault::duplicate(&field, usage));
        }
    }
    let signer = spec["signerName"].as_str().unwrap_or_default();
    let is_qualified = signer
        .split_once('/')
        .is_some_and(|(domain, path)| domain.contains('.') && !path.is_empty());
    if signer.is_empty() {
        causes.push(fault::required("spec.signerName", ""));
    } else if !is_qualified {
        let how = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        causes.push(fault::invalid("spec.signerName", &spec["signerName"], how));
    }
    if spec["expirationSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds < 600)
    {
        let how = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.push(fault::invalid(
            "spec.expirationSeconds",
            &spec["expirationSeconds"],
            how,
        ));
    }
}

fn check_conditions(object: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions_of(object).iter().enumerate() {
        let field = |name: &str| format!("status.conditions[{index}].{name}");
        let kind = condition["type"].as_str().unwrap_or_default();
        if kind.is_empty() {
            causes.push(fault::required(field("type"), ""));
        }
        let allowed: &[&str] = match kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        match condition["status"].as_str().unwrap_or_default() {
            "" => causes.push(fault::required(field("status"), "")),
            status if !allowed.contains(&status) => {
                causes.push(fault::not_supported(
                    field("status"),
                    &condition["status"],
                    allowed,
                ));
            }
            _ => {}
        }
        let other = if kind == "Approved" { "Denied" } else { "Approved" };
        if matches!(kind, "Approved" | "Denied") && seen.contains(other) {
            let how = "Approved and Denied conditions are mutually exclusive";
            causes.push(fault::invalid("status.conditions", &condition["type"], how));
        }
        if !seen.insert(kind.to_owned()) {
            causes.push(fault::duplicate(field("type"), &condition["type"]));
        }
    }
}

fn check_changes(old: &Value, new: &Value, subresource: &str, causes: &mut Vec<Cause>) {
    let of_type = |object: &Value, kind: &str| -> Vec<Value> {
        conditions_of(object)
            .iter()
            .filter(|condition| condition["type"] == kind)
            .cloned()
            .collect()
    };
    let mut forbid = |field: &str, how: String| causes.push(fault::forbidden(field, &how));
    for kind in ["Approved", "Denied", "Failed"] {
        let (was, is) = (of_type(old, kind), of_type(new, kind));
        let verb = if is.len() < was.len() {
            "remove"
        } else if subresource == "approval" || kind == "Failed" || is == was {
            continue;
        } else if is.len() > was.len() {
            "add"
        } else {
            "modify"
        };
        forbid(
            "status.conditions",
            format!("updates may not {verb} a condition of type {kind:?}"),
        );
    }
    let certificate = |object: &Value| {
        object["status"]["certificate"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    if certificate(old) != certificate(new) {
        if subresource != "status" {
            forbid(
                "status.certificate",
                "updates may not set certificate content".to_owned(),
            );
        } else if !certificate(old).is_empty() {
            forbid(
                "status.certificate",
                "updates may not modify existing certificate content".to_owned(),
            );
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
