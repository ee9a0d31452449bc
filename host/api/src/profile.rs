//! NodeProfile: labels, annotations and taints that a class of nodes keeps for as long as it lives.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every field is optional; an empty profile is valid and has no effect.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "NodeProfile",
    plural = "nodeprofiles",
    shortname = "nprof",
    category = "hostler",
    status = "NodeProfileStatus",
    derive = "PartialEq",
    doc = "A reusable configuration for a class of nodes, kept on every node that resolves to it.",
    printcolumn(name = "Display Name", type_ = "string", json_path = ".spec.displayName"),
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 63")
        .optional_old_self(true)
        .message("a profile's name has at most 63 characters: it is the value of a label on its nodes")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeProfileSpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// Free text shown beside the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::prose")]
    pub description: Option<String>,
    /// Labels kept on the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::node_labels")]
    pub node_labels: BTreeMap<String, String>,
    /// Annotations kept on the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::node_annotations")]
    pub node_annotations: BTreeMap<String, String>,
    /// Taints kept on the Node; at most one for each key and effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::taints")]
    pub taints: Vec<Taint>,
    /// Taints set when the node joins and removed when it is first Ready; later edits do not reach joined nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::taints")]
    pub startup_taints: Vec<Taint>,
}

/// What the host knows of a profile's use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProfileStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<crate::Condition>,
    /// Nodes on which the profile's value met another's and won, counted since each node joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::count")]
    pub clashes: Option<i64>,
}
