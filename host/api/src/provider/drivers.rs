//! What is known of each driver's configuration here: where its machines are, and which fields exclude each other. The rest is its own.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::shape::rule;

/// Most node types of a provider that rules look at.
const MOST_TYPES: usize = 256;

fn cluster_ref() -> Value {
    json!({
        "type": "object", "x-kubernetes-map-type": "atomic",
        "description": "Where the machines are; immutable once set.",
        "properties": {
            "cluster": {"type": "string", "maxLength": 253, "description": "Name of the cluster."},
            "namespace": {
                "type": "string", "maxLength": 63, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
                "description": "Namespace of the machines.",
            },
        },
    })
}

fn place_stays() -> Value {
    let mut stays = rule(
        "!has(oldSelf.clusterRef) || (has(self.clusterRef) && self.clusterRef == oldSelf.clusterRef)",
        "clusterRef is immutable once it is set, since machines do not move; make another provider",
    );
    stays["fieldPath"] = json!(".clusterRef");
    stays
}

/// A rule that an object from before it was there may go on breaking. Where fields are not all listed, as here, the server itself does
/// not let pass what has not changed; so the rule does.
fn gently(test: impl Fn(&str) -> String, message: &str, field: &str) -> Value {
    json!({
        "rule": format!("{} || (oldSelf.hasValue() && !({}))", test("self"), test("oldSelf.value()")),
        "message": message,
        "fieldPath": format!(".{field}"),
        "optionalOldSelf": true,
    })
}

/// No type sets both.
fn exclusive(one: &str, other: &str) -> Value {
    gently(
        |it| {
            format!(
                "(!has({it}.nodeTypes) || {it}.nodeTypes.all(each, !(has(each.{one}) && has(each.{other}))))"
            )
        },
        &format!("{one} and {other} of a type exclude each other; remove one of them"),
        "nodeTypes",
    )
}

fn open(properties: &Value, rules: &[Value]) -> Value {
    let mut schema =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties});
    if !rules.is_empty() {
        schema["x-kubernetes-validations"] = json!(rules);
    }
    schema
}

fn raw() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn node_types(templates: &[(&str, &str)]) -> Value {
    let mut properties = json!({});
    for (whole, merged) in templates {
        properties[whole] = raw();
        properties[merged] = raw();
    }
    json!({"type": "array", "maxItems": MOST_TYPES, "items": open(&properties, &[])})
}

fn schema(value: Value) -> Schema {
    let mut schema = json_schema!({});
    if let Value::Object(fields) = value {
        for (name, field) in fields {
            schema.insert(name, field);
        }
    }
    schema
}

/// A driver with machines in a namespace.
pub(super) fn placed(_: &mut SchemaGenerator) -> Schema {
    schema(open(&json!({"clusterRef": cluster_ref()}), &[place_stays()]))
}

/// KubeVirt: whether it was installed for the provider is decided once.
pub(super) fn kube_virt(_: &mut SchemaGenerator) -> Schema {
    let enabled = open(&json!({"enabled": {"type": "boolean"}}), &[]);
    let mut deployed = rule(
        "(has(self.deploy) && has(self.deploy.kubevirt) && has(self.deploy.kubevirt.enabled) && self.deploy.kubevirt.enabled) == \
         (has(oldSelf.deploy) && has(oldSelf.deploy.kubevirt) && has(oldSelf.deploy.kubevirt.enabled) && \
         oldSelf.deploy.kubevirt.enabled)",
        "deploy.kubevirt.enabled is immutable; make another provider",
    );
    deployed["fieldPath"] = json!(".deploy");
    let types = gently(
        |it| format!("has({it}.nodeTypes)"),
        "nodeTypes must be set; list what can be ordered",
        "nodeTypes",
    );
    schema(open(
        &json!({
            "clusterRef": cluster_ref(),
            "namespaceStrategy": {
                "type": "string", "enum": ["Provider", "VirtualCluster"], "default": "Provider",
                "description": "Whether machines stand in the provider's namespace or in the tenant's.",
            },
            "deploy": open(&json!({"kubevirt": enabled}), &[]),
            "nodeTypes": node_types(&[("virtualMachineTemplate", "mergeVirtualMachineTemplate")]),
        }),
        &[
            place_stays(),
            deployed,
            types,
            exclusive("virtualMachineTemplate", "mergeVirtualMachineTemplate"),
        ],
    ))
}

/// OpenTofu: a template is written here or in a repository.
pub(super) fn terraform(_: &mut SchemaGenerator) -> Schema {
    const ONE: &str = "a template is either inline or git; set one of them";
    let template = || open(&json!({"inline": {"type": "string"}, "git": raw()}), &[]);
    let node_types = json!({"type": "array", "maxItems": MOST_TYPES, "items": open(&json!({"nodeTemplate": template()}), &[])});
    let own = gently(
        |it| {
            format!(
                "(!has({it}.nodeTemplate) || has({it}.nodeTemplate.inline) != has({it}.nodeTemplate.git))"
            )
        },
        ONE,
        "nodeTemplate",
    );
    let of_types = gently(
        |it| {
            format!(
                "(!has({it}.nodeTypes) || {it}.nodeTypes.all(each, !has(each.nodeTemplate) || \
                 has(each.nodeTemplate.inline) != has(each.nodeTemplate.git)))"
            )
        },
        ONE,
        "nodeTypes",
    );
    schema(open(
        &json!({"nodeTemplate": template(), "nodeTypes": node_types}),
        &[own, of_types],
    ))
}

/// Cluster API: a type replaces a template or merges into it.
pub(super) fn cluster_api(_: &mut SchemaGenerator) -> Schema {
    let templates = [
        (
            "infrastructureMachineTemplate",
            "mergeInfrastructureMachineTemplate",
        ),
        ("bootstrapConfigTemplate", "mergeBootstrapConfigTemplate"),
    ];
    let mut rules = vec![place_stays()];
    rules.extend(templates.iter().map(|(whole, merged)| exclusive(whole, merged)));
    schema(open(
        &json!({"clusterRef": cluster_ref(), "nodeTypes": node_types(&templates)}),
        &rules,
    ))
}
