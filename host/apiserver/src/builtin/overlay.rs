//! Facts of the upstream API that `k8s-openapi`'s schemas leave out: how lists are merged, what is atomic, what is free.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::schema::{ListType, Schema, Type};

/// Lists that are merged: component, field, keys of server-side apply (`=` for a set), key of a strategic merge patch
/// (`-` for none, nothing for a list of scalars).
const LISTS: [(&str, &str, &str, &str); 39] = [
    (
        "api.certificates.v1.CertificateSigningRequestStatus",
        "conditions",
        "type",
        "-",
    ),
    ("api.core.v1.Container", "env", "name", "name"),
    (
        "api.core.v1.Container",
        "ports",
        "containerPort protocol",
        "containerPort",
    ),
    (
        "api.core.v1.Container",
        "volumeDevices",
        "devicePath",
        "devicePath",
    ),
    ("api.core.v1.Container", "volumeMounts", "mountPath", "mountPath"),
    ("api.core.v1.ContainerRestartRuleOnExitCodes", "values", "=", "-"),
    (
        "api.core.v1.ContainerStatus",
        "allocatedResourcesStatus",
        "name",
        "name",
    ),
    (
        "api.core.v1.ContainerStatus",
        "volumeMounts",
        "mountPath",
        "mountPath",
    ),
    ("api.core.v1.EphemeralContainer", "env", "name", "name"),
    (
        "api.core.v1.EphemeralContainer",
        "ports",
        "containerPort protocol",
        "containerPort",
    ),
    (
        "api.core.v1.EphemeralContainer",
        "volumeDevices",
        "devicePath",
        "devicePath",
    ),
    (
        "api.core.v1.EphemeralContainer",
        "volumeMounts",
        "mountPath",
        "mountPath",
    ),
    ("api.core.v1.NamespaceStatus", "conditions", "type", "type"),
    (
        "api.core.v1.NodeAllocatableResourceClaimStatus",
        "containers",
        "=",
        "-",
    ),
    ("api.core.v1.NodeSpec", "podCIDRs", "=", ""),
    ("api.core.v1.NodeStatus", "addresses", "type", "type"),
    ("api.core.v1.NodeStatus", "conditions", "type", "type"),
    ("api.core.v1.PodSpec", "containers", "name", "name"),
    ("api.core.v1.ServiceSpec", "ports", "port protocol", "port"),
    ("api.core.v1.ServiceStatus", "conditions", "type", "type"),
    ("api.core.v1.PodSpec", "ephemeralContainers", "name", "name"),
    ("api.core.v1.PodSpec", "hostAliases", "ip", "ip"),
    ("api.core.v1.PodSpec", "imagePullSecrets", "name", "name"),
    ("api.core.v1.PodSpec", "initContainers", "name", "name"),
    ("api.core.v1.PodSpec", "resourceClaims", "name", "name"),
    ("api.core.v1.PodSpec", "schedulingGates", "name", "name"),
    (
        "api.core.v1.PodSpec",
        "topologySpreadConstraints",
        "topologyKey whenUnsatisfiable",
        "topologyKey",
    ),
    ("api.core.v1.PodSpec", "volumes", "name", "name"),
    ("api.core.v1.PodStatus", "conditions", "type", "type"),
    ("api.core.v1.PodStatus", "podIPs", "ip", "ip"),
    ("api.core.v1.PodStatus", "hostIPs", "", "ip"),
    ("api.core.v1.PodStatus", "resourceClaimStatuses", "name", "name"),
    ("api.core.v1.ResourceRequirements", "claims", "name", "-"),
    ("api.core.v1.ResourceStatus", "resources", "resourceID", "-"),
    ("api.core.v1.ServiceAccount", "secrets", "name", "name"),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus",
        "conditions",
        "type",
        "-",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "x-kubernetes-validations",
        "rule",
        "rule",
    ),
    ("apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", "=", ""),
    (
        "apimachinery.pkg.apis.meta.v1.ObjectMeta",
        "ownerReferences",
        "uid",
        "uid",
    ),
];

/// Objects that are replaced as a whole.
const ATOMIC: [&str; 14] = [
    "api.core.v1.ConfigMapKeySelector",
    "api.core.v1.FileKeySelector",
    "api.core.v1.LocalObjectReference",
    "api.core.v1.NodeSelector",
    "api.core.v1.NodeSelectorTerm",
    "api.core.v1.ObjectFieldSelector",
    "api.core.v1.ObjectReference",
    "api.core.v1.ResourceFieldSelector",
    "api.core.v1.SecretKeySelector",
    "api.core.v1.TypedLocalObjectReference",
    "api.rbac.v1.RoleRef",
    "api.rbac.v1.Subject",
    "apimachinery.pkg.apis.meta.v1.LabelSelector",
    "apimachinery.pkg.apis.meta.v1.OwnerReference",
];

/// Values of any shape.
const FREE: [&str; 3] = [
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "apimachinery.pkg.apis.meta.v1.FieldsV1",
    "apimachinery.pkg.runtime.RawExtension",
];

/// Defaults that the server fills in and that matter to keys and readers.
fn default(component: &str, field: &str) -> Option<Value> {
    Some(match (component, field) {
        ("api.core.v1.ContainerPort" | "api.core.v1.ServicePort", "protocol") => json!("TCP"),
        ("api.core.v1.PodSpec", "restartPolicy") => json!("Always"),
        ("api.core.v1.PodSpec", "dnsPolicy") => json!("ClusterFirst"),
        ("api.core.v1.PodSpec", "schedulerName") => json!("default-scheduler"),
        ("api.core.v1.PodSpec", "terminationGracePeriodSeconds") => json!(30),
        ("api.core.v1.PodSpec", "securityContext") => json!({}),
        ("api.core.v1.Container", "terminationMessagePath") => json!("/dev/termination-log"),
        ("api.core.v1.Container", "terminationMessagePolicy") => json!("File"),
        ("api.core.v1.Secret", "type") => json!("Opaque"),
        ("api.rbac.v1.RoleRef", "apiGroup") => json!("rbac.authorization.k8s.io"),
        _ => return None,
    })
}

/// Adds what is known of a component.
pub(super) fn component(name: &str, schema: &mut Schema) {
    let short = name.strip_prefix("io.k8s.").unwrap_or(name);
    if ATOMIC.contains(&short) {
        schema.atomic_map = true;
    }
    if FREE.contains(&short) {
        schema.preserve_unknown = true;
        if short.ends_with(".JSON") {
            schema.kind = Type::Any;
        }
    }
    for (_, field, keys, merge) in LISTS.iter().filter(|(component, ..)| *component == short) {
        edit(schema, field, |list| {
            list.list_type = match *keys {
                "" => ListType::Atomic,
                "=" => ListType::Set,
                keys => ListType::Map(keys.split(' ').map(Into::into).collect()),
            };
            list.patch_merge_key = (*merge != "-").then(|| (*merge).to_owned());
        });
    }
    for (component, field) in [
        ("api.core.v1.PodSpec", "nodeSelector"),
        ("api.core.v1.ServiceSpec", "selector"),
    ] {
        if short == component {
            edit(schema, field, |selector| selector.atomic_map = true);
        }
    }
    let names: Vec<_> = schema.properties.keys().cloned().collect();
    for field in names {
        if let Some(value) = default(short, &field) {
            edit(schema, &field, |node| node.default = Some(value));
        }
    }
}

fn edit(schema: &mut Schema, field: &str, change: impl FnOnce(&mut Schema)) {
    if let Some(node) = schema.properties.get_mut(field) {
        change(Arc::make_mut(node));
    }
}
