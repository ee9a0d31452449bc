//! What one node needs: itself, its Lease, the pods bound to it and what those refer to.
//!
//! Writes to nodes, pods and Leases are let through here and checked by [`crate::admission`], which sees the object.

use serde_json::Value;

use super::{Attributes, Lookup};

/// Namespace of the Leases by which nodes show that they live.
pub(crate) const LEASES: &str = "kube-node-lease";

type Verdict = Result<(), String>;

/// Decides for everything but certificate requests; the error says more than "no" where the real server does.
pub(super) fn authorize(node: &str, wish: &Attributes, lookup: &dyn Lookup) -> Verdict {
    match (wish.group.as_str(), wish.resource.as_str()) {
        ("", "nodes") => own_node(node, wish),
        ("", "pods") => own_pods(node, wish, lookup),
        ("", "secrets" | "configmaps") => referenced(node, wish, lookup),
        ("", "serviceaccounts") => own_accounts(node, wish, lookup),
        ("coordination.k8s.io", "leases") => own_lease(node, wish),
        ("" | "events.k8s.io", "events") if wish.subresource.is_empty() => {
            permit(matches!(wish.verb.as_str(), "create" | "update" | "patch"), "")
        }
        _ => Err(String::new()),
    }
}

fn permit(yes: bool, otherwise: &str) -> Verdict {
    if yes { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn own_node(node: &str, wish: &Attributes) -> Verdict {
    match (wish.subresource.as_str(), wish.verb.as_str()) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match wish.target() {
            name if name == node => Ok(()),
            "" => Err(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            other => Err(format!(
                "node '{node}' cannot read '{other}', only its own Node object"
            )),
        },
        _ => Err(String::new()),
    }
}

fn own_pods(node: &str, wish: &Attributes, lookup: &dyn Lookup) -> Verdict {
    match (wish.subresource.as_str(), wish.verb.as_str()) {
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        ("", "list" | "watch") if wish.selected("spec.nodeName") == Some(node) => Ok(()),
        ("", "list" | "watch") if wish.target().is_empty() => {
            Err("can only list/watch pods with spec.nodeName field selector".to_owned())
        }
        ("", "get" | "list" | "watch") => {
            let pod = lookup.get("", "pods", &wish.namespace, wish.target());
            permit(
                pod.is_some_and(|pod| pod["spec"]["nodeName"] == node),
                &unrelated(node),
            )
        }
        _ => Err(String::new()),
    }
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

/// Pods of a namespace that are bound to the node.
fn pods_of(node: &str, namespace: &str, lookup: &dyn Lookup) -> Vec<Value> {
    let mut pods = lookup.list("", "pods", namespace);
    pods.retain(|pod| pod["spec"]["nodeName"] == node);
    pods
}

fn referenced(node: &str, wish: &Attributes, lookup: &dyn Lookup) -> Verdict {
    if !wish.is_read() {
        return Err("can only read resources of this type".to_owned());
    }
    if !wish.subresource.is_empty() {
        return Err("cannot read subresource".to_owned());
    }
    if wish.namespace.is_empty() {
        return Err("can only read namespaced object of this type".to_owned());
    }
    if wish.target().is_empty() {
        return Err("No Object name found".to_owned());
    }
    let pods = pods_of(node, &wish.namespace, lookup);
    let refers = |pod: &Value| match wish.resource.as_str() {
        "secrets" => names_secret(pod, wish.target()),
        _ => names_config_map(pod, wish.target()),
    };
    permit(pods.iter().any(refers), &unrelated(node))
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[key].as_array().into_iter().flatten()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let spec = &pod["spec"];
    items(spec, "containers")
        .chain(items(spec, "initContainers"))
        .chain(items(spec, "ephemeralContainers"))
}

/// Volumes, each with the sources of a projected one.
fn sources(pod: &Value) -> impl Iterator<Item = &Value> {
    let volumes = || items(&pod["spec"], "volumes");
    volumes().chain(volumes().flat_map(|volume| items(&volume["projected"], "sources")))
}

fn names_secret(pod: &Value, name: &str) -> bool {
    items(&pod["spec"], "imagePullSecrets").any(|reference| reference["name"] == name)
        || sources(pod)
            .any(|source| source["secret"]["secretName"] == name || source["secret"]["name"] == name)
        || containers(pod).any(|container| {
            items(container, "envFrom").any(|from| from["secretRef"]["name"] == name)
                || items(container, "env").any(|env| env["valueFrom"]["secretKeyRef"]["name"] == name)
        })
}

fn names_config_map(pod: &Value, name: &str) -> bool {
    sources(pod).any(|source| source["configMap"]["name"] == name)
        || containers(pod).any(|container| {
            items(container, "envFrom").any(|from| from["configMapRef"]["name"] == name)
                || items(container, "env").any(|env| env["valueFrom"]["configMapKeyRef"]["name"] == name)
        })
}

fn own_accounts(node: &str, wish: &Attributes, lookup: &dyn Lookup) -> Verdict {
    if wish.verb != "get" || !wish.subresource.is_empty() {
        return Err("can only create tokens for individual service accounts".to_owned());
    }
    let pods = pods_of(node, &wish.namespace, lookup);
    permit(
        pods.iter()
            .any(|pod| pod["spec"]["serviceAccountName"] == wish.name.as_str()),
        &unrelated(node),
    )
}

fn own_lease(node: &str, wish: &Attributes) -> Verdict {
    if !matches!(
        wish.verb.as_str(),
        "get" | "create" | "update" | "patch" | "delete"
    ) {
        return Err("can only get, create, update, patch, or delete a node lease".to_owned());
    }
    if wish.namespace != LEASES {
        return Err(format!(
            "can only access leases in the {LEASES:?} system namespace"
        ));
    }
    let own = wish.verb == "create" || wish.name == node;
    permit(
        own,
        "can only access node lease with the same name as the requesting node",
    )
}
