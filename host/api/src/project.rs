//! Project: which types and profiles its tenants may use, and how many claims they may hold.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Access, Condition, Owner};

/// Only a whole list can be empty, so an entry that matches is what is asked for.
const DEFAULT_IS_ALLOWED: &str = "!has(self.defaultNodeProfile) || self.defaultNodeProfile == '' || !has(self.allowedNodeProfiles) || \
    self.allowedNodeProfiles.exists(entry, entry.name == self.defaultNodeProfile || \
    (entry.name.endsWith('.*') && self.defaultNodeProfile.startsWith(entry.name.substring(0, size(entry.name) - 1))))";

/// One tenant organisation; namespace `p-<name>` holds its tenants and claims.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "Project",
    plural = "projects",
    shortname = "proj",
    category = "hostler",
    status = "ProjectStatus",
    derive = "PartialEq",
    doc = "A project: its tenants live in namespace p-<name>.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || (size(self.metadata.name) <= 61 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .optional_old_self(true)
        .message("a project's name is at most 61 lower-case letters, digits and '-', without dots: its namespace is p-<name>")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(DEFAULT_IS_ALLOWED)
    .message("defaultNodeProfile must be one of allowedNodeProfiles, which allow none where they are an empty list; add it there, or change it")
    .field_path(".defaultNodeProfile"))]
pub struct ProjectSpec {
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
    /// Rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::access")]
    pub access: Vec<Access>,
    /// Node types that claims may use, by full name or `<provider>.*`. Unset allows all, an empty list none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "allowlist")]
    pub allowed_node_types: Option<Vec<Allowed>>,
    /// Profiles that nodes may use, by name or `<owner>.*`. Unset allows all, an empty list none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "allowlist")]
    pub allowed_node_profiles: Option<Vec<Allowed>>,
    /// Profile of nodes for which neither pool nor tenant names one; must be allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::short_reference")]
    pub default_node_profile: Option<String>,
    /// Bounds on what the project may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
    /// Members of the project; kept, not evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::open_list")]
    pub members: Vec<serde_json::Value>,
}

/// Unset allows all, so that the difference between unset and empty must reach the host: an explicit null is unset.
fn allowlist(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "nullable": true, "maxItems": 256,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {
            "type": "string", "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(\.\*)?$",
            "description": "An exact name, or a name and `.*`.",
        }}},
    })
}

fn counts(_: &mut SchemaGenerator) -> Schema {
    let known = r"self.all(key, key == 'nodeclaims' || key.matches('^nodeclaims\\.provider=[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'))";
    json_schema!({
        "type": "object", "maxProperties": 256,
        "additionalProperties": {"type": "string", "maxLength": 9, "pattern": "^[0-9]+$"},
        "x-kubernetes-validations": [crate::shape::rule(
            known,
            "a quota is nodeclaims, or nodeclaims.provider=<name> for one provider; correct the key",
        )],
    })
}

fn phase(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Ready", "Pending", "Failed"]})
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
    #[schemars(schema_with = "counts")]
    pub project: BTreeMap<String, String>,
    /// For each user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "counts")]
    pub user: BTreeMap<String, String>,
}

/// State of a project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectStatus {
    /// `Ready`, `Pending` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "phase")]
    pub phase: Option<String>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}
