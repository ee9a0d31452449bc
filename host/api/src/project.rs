//! Project: which types and profiles its tenants may use, and how many claims they may hold.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Condition, Owner};

/// One tenant organisation; namespace `p-<name>` holds its tenants and claims.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "Project",
    plural = "projects",
    status = "ProjectStatus",
    derive = "PartialEq",
    doc = "A project: its tenants live in namespace p-<name>.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 61 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("a project's name is at most 61 lower-case letters, digits and '-', without dots: its namespace is p-<name>")
)]
#[serde(rename_all = "camelCase")]
pub struct ProjectSpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<Access>,
    /// Node types that claims may use, by full name or `<provider>.*`. Unset allows all, an empty list none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_node_types: Option<Vec<Allowed>>,
    /// Profiles that nodes may use, by name or `<owner>.*`. Unset allows all, an empty list none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_node_profiles: Option<Vec<Allowed>>,
    /// Profile of nodes for which neither pool nor tenant names one; must be allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_node_profile: Option<String>,
    /// Bounds on what the project may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
    /// Members of the project; kept, not evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::tenant::open_list")]
    pub members: Vec<serde_json::Value>,
}

/// One entry of an allowlist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Allowed {
    /// An exact name, or a name and `.*`.
    pub name: String,
}

/// Quotas: `nodeclaims` and `nodeclaims.provider=<name>` → a count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quotas {
    /// For the whole project.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub project: BTreeMap<String, String>,
    /// For each user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub user: BTreeMap<String, String>,
}

/// State of a project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectStatus {
    /// `Ready`, `Pending` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
