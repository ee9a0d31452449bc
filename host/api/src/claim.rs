//! NodeClaim: one request for one node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::CHOSEN_TYPE;
use crate::node_type::Requirement;
use crate::shape::open_object;
use crate::{Access, Condition, Owner, ResourceList};

/// Written by the pools of a tenant, or by hand; lives in the project's namespace.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "management.loft.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    shortname = "nclaim",
    category = "hostler",
    namespaced,
    status = "NodeClaimStatus",
    derive = "PartialEq",
    doc = "A request for one node.",
    selectable = ".spec.vClusterRef",
    selectable = ".spec.providerRef",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "VCluster", type_ = "string", json_path = ".spec.vClusterRef"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.typeRef"),
    printcolumn(name = "Created At", type_ = "string", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 63")
        .optional_old_self(true)
        .message("a claim's name has at most 63 characters: it is the value of a label on all that is made for the claim"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.machine) || self.spec.providerRef == oldSelf.spec.providerRef")
        .message("providerRef is immutable while the claim has a machine; delete the claim and make another")
        .field_path(".spec.providerRef"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.machine) || !has(self.spec.typeRef) || self.spec.typeRef == '' || \
        self.spec.typeRef == oldSelf.status.machine.typeRef || \
        (has(oldSelf.spec.typeRef) && self.spec.typeRef == oldSelf.spec.typeRef)")
        .message("typeRef is that of the machine while the claim has one; delete the claim and make another")
        .field_path(".spec.typeRef")
)]
#[serde(rename_all = "camelCase")]
// On the whole spec: a rule on the field alone does not see it taken away, and then set anew.
#[x_kube(validation = Rule::new("!has(oldSelf.vClusterRef) || (has(self.vClusterRef) && self.vClusterRef == oldSelf.vClusterRef)")
    .message("vClusterRef is immutable once it is set; delete the claim and make another")
    .field_path(".vClusterRef"))]
#[x_kube(validation = Rule::new("!has(self.typeRef) || self.typeRef == '' || self.typeRef.startsWith(self.providerRef + '.')")
    .message("typeRef is the full name of a type of the provider, like metal3.gpu-server; correct it, or leave it out and let the host choose")
    .field_path(".typeRef"))]
pub struct NodeClaimSpec {
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
    /// Name of the NodeProvider.
    #[schemars(schema_with = "crate::shape::label")]
    pub provider_ref: String,
    /// Full name of the NodeType; the scheduler fills it in where it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reference")]
    pub type_ref: Option<String>,
    /// Name of a NodeEnvironment in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reference")]
    pub environment_ref: Option<String>,
    /// Properties of this claim; they win over type and provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::claim_properties")]
    pub properties: BTreeMap<String, String>,
    /// Name of the tenant in this namespace; empty for a machine of its own.
    #[serde(default, rename = "vClusterRef", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::short_reference")]
    pub vcluster_ref: Option<String>,
    /// Whether the node belongs to the control plane.
    #[serde(default)]
    pub control_plane: bool,
    /// Labels that the node carries from its join on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::node_labels")]
    pub node_labels: BTreeMap<String, String>,
    /// Taints that the node carries from its join on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::taints")]
    pub taints: Vec<Taint>,
    /// Taints from the join until the node is first Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::taints")]
    pub startup_taints: Vec<Taint>,
    /// Extra arguments of the kubelet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kubelet_args: BTreeMap<String, String>,
    /// Name of the NodeProfile; must exist and be allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reference")]
    pub profile_ref: Option<String>,
    /// Resources that the node should have; also opens types with extra resources (GPUs).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::shape::resources")]
    pub desired_capacity: ResourceList,
    /// Requirements on the type's properties; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::requirements")]
    pub requirements: Vec<Requirement>,
    /// How long pods may take to leave the node on release, like `30s`; `Never` waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::grace")]
    pub termination_grace_period: Option<String>,
    /// Wished power state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "wished_power")]
    pub power: Option<Power>,
}

/// Power of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Power {
    /// `On` (default) or `Off` in a spec; in a status also the provider's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

fn wished_power(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "properties": {
        "state": {"type": "string", "enum": ["On", "Off"], "description": "On where it is not set."},
    }})
}

/// State of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// `Pending`, `Available` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::phase")]
    pub phase: Option<String>,
    /// Why, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reason")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::message")]
    pub message: Option<String>,
    /// `Accepted`, `Scheduled`, `Provisioned`, `Joined`, `NotDrifted`, `PreferredDeletion`, `Destroyed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
    /// Power as observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// The machine; written, against this claim's resourceVersion, before the machine is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineRef>,
    /// Name of the Node, reserved in the tenant by an Enrollment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// uid of the Node that joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The node's profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileChoice>,
    /// Everything that the driver is given, frozen at the first write outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<FrozenOrder>,
    /// What the driver's last answer left for its next call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<String>,
    /// What the machine is known by, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Objects that the host made for the driver; only these are changed or deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<OwnedRef>,
    /// Copy of the loans that stand, for people; nothing is decided from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loans: Vec<String>,
    /// Step of the driver, like `WritingImage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// When the release began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_started: Option<Time>,
}

/// The machine of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineRef {
    /// Full name of the node type that it serves here.
    pub type_ref: String,
    /// The object; none where the type is not made of machines.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub object: Option<Ref>,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// `sha256:<hex>` of the claim's spec, less `typeRef`, as it was judged and placed. A claim that was changed before its order was fixed
    /// is judged and placed anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
}

/// Points at an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ref {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl NodeClaim {
    /// The place that the scheduler gave it, if it did.
    #[must_use]
    pub fn machine(&self) -> Option<&MachineRef> {
        self.status.as_ref()?.machine.as_ref()
    }

    /// Full name of its node type, whether it asks for that or the scheduler shows it; an empty one is none.
    #[must_use]
    pub fn type_ref(&self) -> Option<&str> {
        self.spec.type_ref.as_deref().filter(|name| !name.is_empty())
    }

    /// The node type that the scheduler chose for it, by its mark.
    #[must_use]
    pub fn chosen_type(&self) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()?
            .get(CHOSEN_TYPE)
            .map(String::as_str)
    }

    /// The node type that it asks for: what the scheduler chose is no wish.
    #[must_use]
    pub fn wished_type(&self) -> Option<&str> {
        self.type_ref().filter(|name| self.chosen_type() != Some(*name))
    }
}

/// An object that the host made for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnedRef {
    /// The object.
    #[serde(rename = "ref")]
    pub object: Ref,
    /// Its uid; none between the intent and the create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Which profile, and by whose choice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileChoice {
    /// Name of the NodeProfile; none where the node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `explicit`, `tenant-default`, `project-default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The resolver's sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The inputs of an order as they were when it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrozenOrder {
    /// The claim's spec as it was.
    #[serde(default)]
    #[schemars(schema_with = "open_object")]
    pub claim: Value,
    /// Driver component, like `driver-metal3`.
    pub component: String,
    /// `sha256:<hex>` of it.
    pub digest: String,
    /// The provider as it was, less status.
    #[schemars(schema_with = "open_object")]
    pub provider: Value,
    /// Short name of the type.
    pub node_type: String,
    /// The kinds that the driver said it uses, as it said.
    #[schemars(schema_with = "crate::shape::open_list")]
    pub uses: Vec<Value>,
    /// The OSImage as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub os_image: Option<Value>,
    /// The NodeEnvironment as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub environment: Option<Value>,
    /// Merged properties.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Where the boot data is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_secret: Option<OwnedRef>,
    /// Name of the bootstrap token Secret in the tenant's `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// uid of the tenant that the order is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_uid: Option<String>,
    /// Objects that the driver asked to see next time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wants: Vec<Ref>,
    /// When.
    pub frozen: Time,
}
