//! NodeType: what can be ordered, and how many there are. Written by the host for each type that a provider offers.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, ResourceList};

/// Named `<provider>.<type>`.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "NodeType",
    plural = "nodetypes",
    shortname = "ntype",
    category = "hostler",
    status = "NodeTypeStatus",
    derive = "PartialEq",
    doc = "A kind of machine that can be ordered from a provider.",
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.capacity.total"),
    printcolumn(name = "Claimed", type_ = "integer", json_path = ".status.capacity.claimed"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.providerRef"),
    printcolumn(name = "Cost", type_ = "integer", json_path = ".status.cost"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Created At",
        type_ = "string",
        json_path = ".metadata.creationTimestamp"
    ),
    validation = Rule::new("oldSelf.hasValue() || (self.metadata.name.startsWith(self.spec.providerRef + '.') && \
        self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .message("a node type's name is that of its provider, a dot, and a short name without dots, like metal3.gpu-server")
        .optional_old_self(true)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.providerRef == oldSelf.providerRef")
    .message("providerRef is immutable, since a node type belongs to the provider that its name begins with; delete it and make another")
    .field_path(".providerRef"))]
pub struct NodeTypeSpec {
    /// Name of the NodeProvider.
    #[schemars(schema_with = "crate::shape::label")]
    pub provider_ref: String,
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// What claims select by; `a,b` is several values, `*` any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::type_properties")]
    pub properties: BTreeMap<String, String>,
    /// What one machine has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::resources")]
    pub resources: ResourceList,
    /// What of it workloads cannot use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    /// Relative price of one machine; computed from the resources where unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::count")]
    pub cost: Option<i64>,
}

/// Resources that the node itself needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overhead {
    /// Reserved for Kubernetes' own parts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::resources")]
    pub kube_reserved: ResourceList,
}

/// State of a type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTypeStatus {
    /// `Pending`, `Available` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::phase")]
    pub phase: Option<String>,
    /// One CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reason")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::message")]
    pub message: Option<String>,
    /// Effective cost.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub cost: i64,
    /// How many.
    #[serde(default)]
    pub capacity: TypeCapacity,
    /// What a claim may require, from the properties.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// `Synced`, `HasCapacity`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}

/// Counts of machines of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TypeCapacity {
    /// Machines that can be promised or are claimed.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub total: i64,
    /// Bound claims.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub claimed: i64,
}

/// One requirement on a property, as in a Kubernetes node selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Property key.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist` (also spelt `NotExists`), `Gt`, `Lt`.
    pub operator: String,
    /// Values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}
