//! NodeProvider: where machines come from.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Condition;
use crate::shape::open_object;

mod drivers;

/// Exactly one driver key is set; its name, in lower case, names the component `driver-<key>`.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "NodeProvider",
    plural = "nodeproviders",
    shortname = "nprov",
    category = "hostler",
    status = "NodeProviderStatus",
    derive = "PartialEq",
    doc = "Where machines come from: one driver with its configuration, and the node types that it offers.",
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || (size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .optional_old_self(true)
        .message("a provider's name is a DNS label: at most 63 lower-case letters, digits and '-', without dots")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "oldSelf.hasValue() || \
     [has(self.metal3), has(self.kubeVirt), has(self.terraform), has(self.clusterAPI), has(self.bcm), has(self.driver)].filter(x, x).size() == 1"
).optional_old_self(true).message("exactly one of metal3, kubeVirt, terraform, clusterAPI, bcm and driver must be set; set one, remove the others"))]
// On the whole spec: were the key alone looked at, it could be taken away, and set anew with another place.
#[x_kube(validation = Rule::new(
    "has(self.metal3) == has(oldSelf.metal3) && has(self.kubeVirt) == has(oldSelf.kubeVirt) && \
     has(self.terraform) == has(oldSelf.terraform) && has(self.clusterAPI) == has(oldSelf.clusterAPI) && \
     has(self.bcm) == has(oldSelf.bcm) && has(self.driver) == has(oldSelf.driver)"
).message("the driver of a provider is immutable; make another provider"))]
pub struct NodeProviderSpec {
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub display_name: Option<String>,
    /// Properties of every claim of this provider, unless type, environment or claim set them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::properties")]
    pub properties: BTreeMap<String, String>,
    /// Bare metal through Metal3; the driver's `describe` checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "drivers::placed")]
    pub metal3: Option<Value>,
    /// Virtual machines through KubeVirt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "drivers::kube_virt")]
    pub kube_virt: Option<Value>,
    /// Machines through OpenTofu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "drivers::terraform")]
    pub terraform: Option<Value>,
    /// Machines through Cluster API.
    #[serde(default, rename = "clusterAPI", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "drivers::cluster_api")]
    pub cluster_api: Option<Value>,
    /// Machines through Base Command Manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub bcm: Option<Value>,
    /// A driver that this host does not know by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<CustomDriver>,
}

/// A driver by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomDriver {
    /// Component without its prefix: `hyperv` for `driver-hyperv.wasm`.
    #[schemars(schema_with = "crate::shape::label")]
    pub name: String,
    /// Checked against the JSON Schema that the driver's `describe` returns.
    #[serde(default)]
    #[schemars(schema_with = "open_object")]
    pub config: Value,
}

impl NodeProviderSpec {
    /// The driver's component name and its configuration; `None` when no key is set.
    #[must_use]
    pub fn driver(&self) -> Option<(String, &Value)> {
        let known = [
            ("metal3", &self.metal3),
            ("kubevirt", &self.kube_virt),
            ("terraform", &self.terraform),
            ("clusterapi", &self.cluster_api),
            ("bcm", &self.bcm),
        ];
        known
            .into_iter()
            .find_map(|(key, config)| config.as_ref().map(|config| (format!("driver-{key}"), config)))
            .or_else(|| {
                self.driver
                    .as_ref()
                    .map(|driver| (format!("driver-{}", driver.name), &driver.config))
            })
    }

    /// Path of the driver's configuration in the object, for messages.
    #[must_use]
    pub fn config_path(&self) -> &'static str {
        match self {
            Self { metal3: Some(_), .. } => "spec.metal3",
            Self {
                kube_virt: Some(_), ..
            } => "spec.kubeVirt",
            Self {
                terraform: Some(_), ..
            } => "spec.terraform",
            Self {
                cluster_api: Some(_), ..
            } => "spec.clusterAPI",
            Self { bcm: Some(_), .. } => "spec.bcm",
            Self { .. } => "spec.driver.config",
        }
    }
}

/// State of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProviderStatus {
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
    /// `Initialized` (the driver accepts the spec), `Deployed` (its kinds can be read).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` that this was judged from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
