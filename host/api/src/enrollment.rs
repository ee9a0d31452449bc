//! Enrollment: the host's own memory of one private node, whichever way it joined.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Condition;
use crate::claim::ProfileChoice;

/// Lives in the tenant's project namespace as `<tenant>.<node>`; creating it reserves the node's name in the tenant.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "hostler.dev",
    version = "v1alpha1",
    kind = "Enrollment",
    plural = "enrollments",
    shortname = "enr",
    category = "hostler",
    namespaced,
    status = "EnrollmentStatus",
    derive = "PartialEq",
    doc = "The host's memory of one private node: users and nodes do not write it.",
    printcolumn(name = "VCluster", type_ = "string", json_path = ".spec.tenant.name"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Profile", type_ = "string", json_path = ".status.profile.name"),
    printcolumn(name = "Source", type_ = "string", json_path = ".status.profile.source"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name == self.spec.tenant.name + '.' + self.spec.nodeName")
        .message("an enrollment is named <tenant>.<node>, since its name is what reserves the node's; correct metadata.name")
        .optional_old_self(true)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("an enrollment's spec is immutable; delete it and make another"))]
pub struct EnrollmentSpec {
    /// The tenant.
    pub tenant: NamedUid,
    /// Name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The claim that ordered the node; none for a node joined by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<NamedUid>,
}

/// A name and the uid that makes it one certain object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct NamedUid {
    /// `metadata.name`
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// `metadata.uid`
    #[schemars(length(max = 253))]
    pub uid: String,
}

/// What the host remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.startupTaints) || oldSelf.startupTaints != 'removed' || \
        (has(self.startupTaints) && self.startupTaints == 'removed')")
    .message("startup taints never come back once they were removed; leave startupTaints as it is")
    .field_path(".startupTaints"))]
#[x_kube(validation = Rule::new("!has(oldSelf.approvedRequest) || \
        (has(self.approvedRequest) && self.approvedRequest == oldSelf.approvedRequest)")
    .message("one request is approved for a node, and no second; leave approvedRequest as it is")
    .field_path(".approvedRequest"))]
pub struct EnrollmentStatus {
    /// uid of the Node that joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// Id of the bootstrap token that it joins by (not its secret).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// uid of the one CertificateSigningRequest that was approved; written before the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::title")]
    pub approved_request: Option<String>,
    /// The node's profile and where it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileChoice>,
    /// What of the profile stands on the node; only this is ever pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// What the claim gave the node when it joined; later edits of the claim do not reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<JoinedWith>,
    /// Where the profile's value met another's and won since the node joined, like `label:workload`; each was told once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clashes: Vec<String>,
    /// `applying`, `applied` or `removed`; startup taints never come back after `removed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "startup_taints")]
    pub startup_taints: Option<String>,
    /// When the node was first Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ready: Option<Time>,
    /// `Enrolled`, `InSync`, `Contested`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::shape::conditions")]
    pub conditions: Vec<Condition>,
}

fn startup_taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["applying", "applied", "removed"]})
}

/// Keys that the host set on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// uid of the Node that they stand on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The profile that they are from; unset while a change is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileVersion>,
    /// Label keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Annotation keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<String>,
    /// Taints as `key:effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    /// Startup taints as `key:effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<String>,
}

/// One certain state of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileVersion {
    /// Name.
    pub name: String,
    /// uid.
    pub uid: String,
    /// `metadata.generation`
    pub generation: i64,
}

/// What a claim gives its node at the join.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinedWith {
    /// `spec.nodeLabels`
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// `spec.startupTaints`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
}
