//! What the server itself puts into a built-in object on its way in.

use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Completes an object that is created (`old` is none) or replaced. Defaults of the schema are in place already.
pub(crate) fn prepare(resource: &Resource, object: &mut Value, old: Option<&Value>) {
    if resource.custom || !object.is_object() {
        return;
    }
    if resource.group.is_empty()
        && resource.kind == "Pod"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        // Of a pod, not of a template for one.
        spec.entry("enableServiceLinks").or_insert(json!(true));
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object, old),
        ("", "Node") => node(object),
        ("", "PodTemplate") => containers(object, "/template/spec"),
        ("", "Service") => super::service::prepare(object, old),
        ("", "Pod") if old.is_none() => {
            containers(object, "/spec");
            object["status"] = json!({"phase": "Pending", "qosClass": quality(object)});
        }
        ("certificates.k8s.io", _) if old.is_none() => object["status"] = json!({}),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(object),
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
    }
}

/// What a container asks for if it says only what it may have, and when its image is fetched.
fn containers(object: &mut Value, spec: &str) {
    let list = object.pointer_mut(&format!("{spec}/containers"));
    let Some(list) = list.and_then(Value::as_array_mut) else {
        return;
    };
    for container in list.iter_mut().filter(|container| container.is_object()) {
        let image = container["image"].as_str().unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        let is_fixed = image.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
        if container["imagePullPolicy"].is_null() {
            container["imagePullPolicy"] = json!(if is_fixed { "IfNotPresent" } else { "Always" });
        }
        if container["resources"].is_null() {
            container["resources"] = json!({});
        }
        for list in ["limits", "requests"] {
            // Not by index, which would put a null where there is nothing.
            let amounts = container
                .pointer_mut(&format!("/resources/{list}"))
                .and_then(Value::as_object_mut);
            for amount in amounts.into_iter().flat_map(Map::values_mut) {
                if amount.is_number() {
                    *amount = json!(amount.to_string());
                }
            }
        }
        let limits = container["resources"]["limits"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        if limits.is_empty() {
            continue;
        }
        let Some(resources) = container["resources"].as_object_mut() else {
            continue;
        };
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        for (name, amount) in limits {
            if let Some(requests) = requests.as_object_mut() {
                requests.entry(name).or_insert(amount);
            }
        }
    }
}

/// A pod behind scheduling gates says so from the first.
pub(crate) fn gate(pod: &mut Value, stamp: &str) {
    if pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "lastTransitionTime": stamp,
            "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
}

/// Users and groups are of the group of roles unless they say otherwise.
fn binding(object: &mut Value) {
    let default = || json!("rbac.authorization.k8s.io");
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten().filter_map(Value::as_object_mut) {
        if matches!(
            subject.get("kind").and_then(Value::as_str),
            Some("User" | "Group")
        ) {
            subject.entry("apiGroup").or_insert_with(default);
        }
    }
    if let Some(role) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
        role.entry("apiGroup").or_insert_with(default);
    }
}

/// What a node always says of itself, if only that nothing is known.
fn node(object: &mut Value) {
    const KNOWN: [&str; 10] = [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ];
    let status = &mut object["status"];
    if status.is_null() {
        *status = json!({});
    }
    let Some(status) = status.as_object_mut() else {
        return;
    };
    if let (Some(capacity), false) = (
        status.get("capacity").cloned(),
        status.contains_key("allocatable"),
    ) {
        status.insert("allocatable".into(), capacity);
    }
    status
        .entry("daemonEndpoints")
        .or_insert_with(|| json!({"kubeletEndpoint": {"Port": 0}}));
    let info = status.entry("nodeInfo").or_insert_with(|| json!({}));
    if let Some(info) = info.as_object_mut() {
        for name in KNOWN {
            info.entry(name).or_insert_with(|| json!(""));
        }
    }
}

/// What the admission of every cluster adds to a pod.
fn admitted(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.entry("priority").or_insert(json!(0));
    spec.entry("preemptionPolicy")
        .or_insert_with(|| json!("PreemptLowerPriority"));
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |one: &Value| {
            let names = |field: &str, wanted: &str| {
                one[field]
                    .as_str()
                    .is_none_or(|text| text.is_empty() || text == wanted)
            };
            names("key", key) && names("effect", "NoExecute")
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

/// What nobody owns: it is put in after it was written down who owns what.
pub(crate) fn finish(resource: &Resource, object: &mut Value) {
    if resource.custom || !resource.group.is_empty() {
        return;
    }
    if resource.kind == "Pod" {
        return admitted(object);
    }
    if resource.kind != "Namespace" {
        return;
    }
    let mut finalizers = object["spec"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    object["spec"]["finalizers"] = Value::Array(finalizers);
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
