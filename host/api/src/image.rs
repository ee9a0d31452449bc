//! OSImage and SSHKey: what claims name in their properties.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Access, Condition, Owner};

/// What is written to a disk; drivers read the properties.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "OSImage",
    plural = "osimages",
    shortname = "osi",
    category = "hostler",
    status = "OSImageStatus",
    derive = "PartialEq",
    doc = "An operating system image that claims can name.",
    printcolumn(name = "Display Name", type_ = "string", json_path = ".spec.displayName"),
    printcolumn(
        name = "Created At",
        type_ = "string",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct OSImageSpec {
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
    /// Like `metal3.vcluster.com/image-url` and `metal3.vcluster.com/image-checksum`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::properties")]
    pub properties: BTreeMap<String, String>,
}

/// A public key that claims can put on their machine.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "SSHKey",
    plural = "sshkeys",
    shortname = "sshk",
    category = "hostler",
    status = "SSHKeyStatus",
    derive = "PartialEq",
    doc = "A public SSH key that claims can name.",
    printcolumn(name = "Display Name", type_ = "string", json_path = ".spec.displayName"),
    printcolumn(
        name = "Created At",
        type_ = "string",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct SSHKeySpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::prose")]
    pub description: Option<String>,
    /// The key in OpenSSH form.
    #[schemars(schema_with = "public_key")]
    pub public_key: String,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::access")]
    pub access: Vec<Access>,
}

/// One line, since it becomes one of a file on the machine: type, key, and a remark.
fn public_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "maxLength": 16384,
        "pattern": "^\\s*(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( [^\\r\\n]*)?\\s*$",
    })
}

/// State of an image; nothing is reported yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OSImageStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}

/// State of a key; nothing is reported yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SSHKeyStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}
