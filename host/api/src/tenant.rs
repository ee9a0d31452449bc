//! VirtualClusterInstance: one tenant, with the values that hold its pools.

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shape::{open_list, open_object};
use crate::{Access, Condition, Owner};

/// A tenant's own Kubernetes API and the machines that it asks for.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "VirtualClusterInstance",
    plural = "virtualclusterinstances",
    shortname = "vci",
    category = "hostler",
    namespaced,
    status = "VirtualClusterInstanceStatus",
    derive = "PartialEq",
    doc = "One tenant: its own Kubernetes API, and the pools of machines that it asks for.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || (size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .optional_old_self(true)
        .message("a tenant's name is a DNS label: at most 63 lower-case letters, digits and '-', without dots")
)]
#[serde(rename_all = "camelCase")]
// What is in a template is not all listed, so the server cannot tell that it has not changed: the rule lets a tenant pass that had both before.
#[x_kube(validation = Rule::new("!(has(self.template) && has(self.templateRef)) || \
        (oldSelf.hasValue() && has(oldSelf.value().template) && has(oldSelf.value().templateRef))")
    .optional_old_self(true)
    .message("template and templateRef exclude each other; remove one of them")
    .field_path(".templateRef"))]
// On the whole spec: a rule on the field alone does not see it taken away, and then set anew.
#[x_kube(validation = Rule::new("!has(oldSelf.clusterRef) || (has(self.clusterRef) && self.clusterRef == oldSelf.clusterRef)")
    .message("clusterRef is immutable once it is set, since a tenant does not move; set it back, or make another tenant")
    .field_path(".clusterRef"))]
pub struct VirtualClusterInstanceSpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::prose")]
    pub description: Option<String>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// A template to take; not served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub template_ref: Option<Value>,
    /// The tenant cluster's definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// Where the tenant lives; immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ClusterRef>,
    /// Values of template parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Rules kept for the reference API; not evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "open_list")]
    pub extra_access_rules: Vec<Value>,
    /// Rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::access")]
    pub access: Vec<Access>,
    /// Kept for the reference API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_peer: Option<bool>,
    /// Kept for the reference API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<bool>,
    /// Kept for the reference API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standalone: Option<bool>,
}

/// Definition of a tenant cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Labels and annotations of what is made from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub metadata: Option<Value>,
    /// Labels and annotations of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub instance_template: Option<Value>,
    /// Chart and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm_release: Option<HelmRelease>,
    /// Apps to install; kept, not served here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "open_list")]
    pub apps: Vec<Value>,
    /// Charts to install; kept, not served here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "open_list")]
    pub charts: Vec<Value>,
    /// Objects to apply; kept, not served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<String>,
    /// Rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub access: Option<Value>,
    /// How the tenant is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub access_point: Option<Value>,
    /// Whether the tenant's token is forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_token: Option<bool>,
    /// Features beyond the open chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pro: Option<Pro>,
    /// Workloads' own template; kept, not served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub space_template: Option<Value>,
    /// Kept, not served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub workload_virtual_cluster_template: Option<Value>,
}

/// Features beyond the open chart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pro {
    /// On or off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Chart and values of a tenant cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HelmRelease {
    /// The chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<Chart>,
    /// `vcluster.yaml`: at most 256 KiB; `privateNodes` in it is read strictly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144))]
    pub values: Option<String>,
}

/// A chart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Chart {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// User of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Whether the repository's certificate is left unchecked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
}

/// Where a tenant lives; no other tenant may name the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRef {
    /// Name of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub cluster: Option<String>,
    /// Namespace of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"), length(max = 63))]
    pub namespace: Option<String>,
    /// Name of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"), length(max = 50))]
    pub virtual_cluster: Option<String>,
}

/// State of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualClusterInstanceStatus {
    /// Empty, `Pending`, `Ready`, `Sleeping` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "phase")]
    pub phase: Option<String>,
    /// One CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `VirtualClusterDeployed`, `VirtualClusterOnline`, `VirtualClusterReady`, `NodesProvisioned`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
    /// The pools as last read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolStatus>,
    /// Address that machines join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_address: Option<String>,
    /// `metadata.generation` that this was judged from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// State of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Provider.
    pub provider: String,
    /// Wished number of nodes.
    pub quantity: i64,
    /// Claims that exist.
    pub claims: i64,
    /// Claims whose node is there.
    pub available: i64,
    /// Why it is not filled, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

fn phase(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["", "Pending", "Ready", "Sleeping", "Failed"]})
}
