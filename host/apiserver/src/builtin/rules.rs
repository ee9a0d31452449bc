//! What an object of a built-in kind must be: the rules of the real server that its users notice.

use serde_json::Value;

use crate::fault;
use crate::metadata;
use crate::resource::Resource;
use crate::status::Cause;

/// Secrets and config maps hold this many bytes at most.
const LARGEST: i64 = 1024 * 1024;

/// Everything that is wrong with an object, new or replacing `old`.
pub(crate) fn validate(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let name: fn(&str) -> Vec<String> = match resource.kind.as_str() {
        "Namespace" => metadata::label,
        "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" => metadata::path_segment,
        "CertificateSigningRequest" => |_| Vec::new(),
        _ => metadata::subdomain,
    };
    let mut found = metadata::check(new, resource.namespaced, name);
    finalizers(new, &mut found);
    // The types of Go know no missing field, so what must be there is each kind's own business.
    let wrong = crate::crd::check_values(&resource.schema, new, old);
    found.extend(
        wrong
            .into_iter()
            .filter(|cause| cause.reason != "FieldValueRequired"),
    );
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Node") => node(new, old, &mut found),
        ("", "Secret") => secret(new, old, &mut found),
        ("", "ConfigMap") => config_map(new, old, &mut found),
        ("", "Pod") => pod(new, old, &mut found),
        ("", "PodTemplate") => pod_spec(&new["template"]["spec"], "template.spec", &mut found),
        ("", "Service") => super::service::check(new, old, &mut found),
        ("", "Event") => event(new, "involvedObject", &mut found),
        ("events.k8s.io", _) => new_event(new, old, &mut found),
        ("coordination.k8s.io", _) => lease(new, &mut found),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => role(new, &mut found),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(new, old, &mut found),
        ("apiextensions.k8s.io", _) => {
            found.extend(crate::crd::check_structural(new).err().unwrap_or_default());
            found.extend(
                old.map(|old| crate::crd::check_update(new, old))
                    .unwrap_or_default(),
            );
        }
        _ => {}
    }
    found
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Built-in kinds take finalizers with a domain, and the few that Kubernetes has itself.
fn finalizers(new: &Value, found: &mut Vec<Cause>) {
    for (index, finalizer) in list(new, "/metadata/finalizers").iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            found.push(fault::invalid(
                format!("metadata.finalizers[{index}]"),
                finalizer,
                detail,
            ));
        }
    }
}

fn node(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    let taints = list(new, "/spec/taints");
    for (index, taint) in taints.iter().enumerate() {
        // The real server tells taints under metadata, too.
        let path = format!("metadata.taints[{index}]");
        let told = metadata::qualified(text(taint, "key"));
        found.extend(
            told.iter()
                .map(|told| fault::invalid(format!("{path}.key"), &taint["key"], told)),
        );
        let told = metadata::label_value(text(taint, "value"));
        if !told.is_empty() {
            found.push(fault::invalid(
                format!("{path}.value"),
                &taint["value"],
                &told.join(";"),
            ));
        }
        match text(taint, "effect") {
            "" => found.push(fault::required(format!("{path}.effect"), "")),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            _ => {
                let effects = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
                found.push(fault::not_supported(
                    format!("{path}.effect"),
                    &taint["effect"],
                    &effects,
                ));
            }
        }
        let same = |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if taints[..index].iter().any(same) {
            let mut cause = fault::duplicate(path, taint);
            cause
                .message
                .push_str(": taints must be unique by key and effect pair");
            found.push(cause);
        }
    }
    let addresses = list(new, "/status/addresses");
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            found.push(fault::duplicate(format!("status.addresses[{index}]"), address));
        }
    }
    let Some(old) = old else { return };
    for (field, shown) in [("providerID", "providerID"), ("podCIDRs", "podCIDR")] {
        let before = &old["spec"][field];
        let set = before.as_str().is_some_and(|text| !text.is_empty())
            || before.as_array().is_some_and(|list| !list.is_empty());
        if set && *before != new["spec"][field] {
            let detail = format!("node updates may not change {shown} except from \"\" to valid");
            found.push(fault::forbidden(format!("spec.{field}"), &detail));
        }
    }
}

/// Keys and size of the data of an object.
fn data(object: &Value, field: &str, coded: bool, size: &mut i64, found: &mut Vec<Cause>) {
    for (key, value) in object[field].as_object().into_iter().flatten() {
        let path = format!("{field}[{key}]");
        let told = metadata::data_key(key);
        found.extend(
            told.iter()
                .map(|told| fault::invalid(&path, &Value::from(key.as_str()), told)),
        );
        let length = value.as_str().map_or(0, str::len);
        let length = if coded { length / 4 * 3 } else { length };
        *size += i64::try_from(length).unwrap_or(LARGEST);
    }
}

fn immutable(new: &Value, old: Option<&Value>, fields: &[&str], found: &mut Vec<Cause>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return;
    };
    let detail = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        found.push(fault::forbidden("immutable", detail));
    }
    for field in fields.iter().filter(|field| new[**field] != old[**field]) {
        found.push(fault::forbidden(field, detail));
    }
}

fn secret(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    if let Some(old) = old
        && new["type"] != old["type"]
    {
        found.push(fault::invalid("type", &new["type"], "field is immutable"));
    }
    immutable(new, old, &["data"], found);
    let mut size = 0;
    data(new, "data", true, &mut size, found);
    if size > LARGEST {
        found.push(fault::too_long("data", LARGEST));
    }
    let keys: &[&str] = match text(new, "type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    for key in keys.iter().filter(|key| new["data"].get(**key).is_none()) {
        found.push(fault::required(format!("data[{key}]"), ""));
    }
    let neither = ["username", "password"]
        .iter()
        .all(|key| new["data"].get(*key).is_none());
    if text(new, "type") == "kubernetes.io/basic-auth" && neither {
        found.extend(["username", "password"].map(|key| fault::required(format!("data[{key}]"), "")));
    }
}

fn config_map(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    immutable(new, old, &["data", "binaryData"], found);
    let mut size = 0;
    data(new, "data", false, &mut size, found);
    data(new, "binaryData", true, &mut size, found);
    for key in new["data"].as_object().into_iter().flatten().map(|(key, _)| key) {
        if new["binaryData"].get(key).is_some() {
            let detail = "duplicate of key present in binaryData";
            found.push(fault::invalid(
                format!("data[{key}]"),
                &Value::from(key.as_str()),
                detail,
            ));
        }
    }
    if size > LARGEST {
        found.push(fault::too_long("", LARGEST));
    }
}

/// What is wrong with the pods that a spec describes.
fn pod_spec(spec: &Value, at: &str, found: &mut Vec<Cause>) {
    let containers = list(spec, "/containers");
    if containers.is_empty() {
        found.push(fault::required(format!("{at}.containers"), ""));
    }
    for (index, container) in containers.iter().enumerate() {
        let path = format!("{at}.containers[{index}]");
        match text(container, "name") {
            "" => found.push(fault::required(format!("{path}.name"), "")),
            name => {
                let told = metadata::label(name);
                found.extend(
                    told.iter()
                        .map(|told| fault::invalid(format!("{path}.name"), &container["name"], told)),
                );
            }
        }
        if text(container, "image").is_empty() {
            found.push(fault::required(format!("{path}.image"), ""));
        }
        if containers[..index]
            .iter()
            .any(|other| other["name"] == container["name"])
        {
            found.push(fault::duplicate(format!("{path}.name"), &container["name"]));
        }
    }
    if !matches!(text(spec, "restartPolicy"), "Always" | "OnFailure" | "Never" | "") {
        let policies = ["Always", "OnFailure", "Never"];
        found.push(fault::not_supported(
            format!("{at}.restartPolicy"),
            &spec["restartPolicy"],
            &policies,
        ));
    }
}

fn pod(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    pod_spec(&new["spec"], "spec", found);
    let Some(old) = old else { return };
    // A pod without a node gets one by way of its binding.
    if text(&old["spec"], "nodeName") != text(&new["spec"], "nodeName") {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                      `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                      existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                      previously negative)";
        found.push(fault::forbidden("spec", detail));
    }
}

/// An event lies in the namespace of what it is about.
fn event(new: &Value, about: &str, found: &mut Vec<Cause>) {
    let own = new
        .pointer("/metadata/namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let subject = text(&new[about], "namespace");
    let timed = !text(new, "eventTime").is_empty();
    let fits = match subject {
        "" => own == "default" || (timed && own == "kube-system"),
        subject => timed || subject == own,
    };
    if !fits {
        let path = "involvedObject.namespace";
        found.push(fault::invalid(
            path,
            &Value::from(subject),
            "does not match event.namespace",
        ));
    }
}

fn new_event(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    event(new, "regarding", found);
    let is_timed = !text(new, "eventTime").is_empty();
    if old.is_none() && !is_timed {
        found.push(fault::required("eventTime", ""));
        kind_of_event(new, found);
        return;
    }
    let once = [
        ("reportingController", 128),
        ("reportingInstance", 128),
        ("action", 128),
        ("reason", 128),
    ];
    for (field, longest) in once {
        match text(new, field).len() {
            0 => found.push(fault::required(field, "")),
            length if length > longest => {
                let detail = format!("can have at most {longest} characters");
                found.push(fault::invalid(field, &Value::from(""), &detail));
            }
            _ => {}
        }
    }
    if text(new, "note").len() > 1024 {
        found.push(fault::invalid(
            "message",
            &Value::from(""),
            "can have at most 1024 characters",
        ));
    }
    if old.is_some() {
        return;
    }
    kind_of_event(new, found);
}

fn kind_of_event(new: &Value, found: &mut Vec<Cause>) {
    if !matches!(text(new, "type"), "Normal" | "Warning") {
        let detail = format!("has invalid value: {}", text(new, "type"));
        found.push(fault::invalid("type", &Value::from(""), &detail));
    }
}

fn lease(new: &Value, found: &mut Vec<Cause>) {
    for field in ["leaseDurationSeconds", "leaseTransitions"] {
        let Some(number) = new["spec"][field].as_i64() else {
            continue;
        };
        let least = i64::from(field == "leaseDurationSeconds");
        if number < least {
            let detail = if least == 1 {
                "must be greater than 0"
            } else {
                "must be greater than or equal to 0"
            };
            found.push(fault::invalid(
                format!("spec.{field}"),
                &new["spec"][field],
                detail,
            ));
        }
    }
}

fn role(new: &Value, found: &mut Vec<Cause>) {
    for (index, rule) in list(new, "/rules").iter().enumerate() {
        let path = format!("rules[{index}]");
        let is_empty = |field: &str| list(rule, &format!("/{field}")).is_empty();
        if is_empty("verbs") {
            found.push(fault::required(
                format!("{path}.verbs"),
                "verbs must contain at least one value",
            ));
        }
        if !is_empty("nonResourceURLs") {
            continue;
        }
        if is_empty("apiGroups") {
            found.push(fault::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if is_empty("resources") {
            found.push(fault::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
}

fn binding(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    if !matches!(text(&new["roleRef"], "kind"), "Role" | "ClusterRole") {
        found.push(fault::not_supported(
            "roleRef.kind",
            &new["roleRef"]["kind"],
            &["ClusterRole", "Role"],
        ));
    }
    if text(&new["roleRef"], "name").is_empty() {
        found.push(fault::required("roleRef.name", ""));
    }
    if let Some(old) = old
        && new["roleRef"] != old["roleRef"]
    {
        found.push(fault::invalid(
            "roleRef",
            &new["roleRef"],
            "cannot change roleRef",
        ));
    }
}
