//! Plugin: how one component stands. Written by the host; the files are the cause.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Condition;
use crate::shape::open_object;

/// One component in the plugin directory, by its file's name without `.wasm`.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "hostler.dev",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    shortname = "plug",
    category = "hostler",
    status = "PluginStatus",
    derive = "PartialEq",
    doc = "How one WebAssembly component stands.",
    printcolumn(name = "World", type_ = "string", json_path = ".status.world"),
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Healthy\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Healthy\")].reason"
    ),
    printcolumn(name = "Digest", type_ = "string", json_path = ".status.digest", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct PluginSpec {}

/// State of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// `sha256:<hex>` of what serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// `sha256:<hex>` of the file in the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_digest: Option<String>,
    /// World and its version, like `machine-driver@0.1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// What the operator grants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub grant: Option<Value>,
    /// `Loaded` (something serves), `Healthy` (it is the newest file, and does not fail).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
    /// Last error, kept after it was mended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Traps and limit hits since the host started.
    #[serde(default)]
    pub faults: i64,
}
