//! NodeEnvironment: network and settings that nodes of a provider get, by name.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Condition, Owner};

/// A named bag of properties between node type and claim.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "NodeEnvironment",
    plural = "nodeenvironments",
    shortname = "nenv",
    category = "hostler",
    namespaced,
    status = "NodeEnvironmentStatus",
    derive = "PartialEq",
    doc = "Network and settings that nodes of a provider get.",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "VCluster", type_ = "string", json_path = ".spec.vClusterRef"),
    printcolumn(name = "NodeProvider", type_ = "string", json_path = ".spec.providerRef"),
    printcolumn(
        name = "Created At",
        type_ = "string",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeEnvironmentSpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::access")]
    pub access: Vec<Access>,
    /// Properties; they win over the type's, and the claim's win over them.
    #[serde(default)]
    #[schemars(schema_with = "crate::shape::properties")]
    pub properties: BTreeMap<String, String>,
    /// Name of the NodeProvider.
    #[schemars(schema_with = "crate::shape::label")]
    pub provider_ref: String,
    /// Name of the tenant.
    #[serde(default, rename = "vClusterRef", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::short_reference")]
    pub vcluster_ref: Option<String>,
    /// Whether it is for control plane machines.
    #[serde(default)]
    pub control_plane: bool,
}

/// State of an environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeEnvironmentStatus {
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
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}
