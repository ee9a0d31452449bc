//! What people write: the custom resources of Hostler, their words, and nothing that does I/O.
//!
//! ```text
//! Project ── namespace p-<project>
//!    └─ VirtualClusterInstance (a tenant) ── pools in its values ──► NodeClaim ──► NodeType `<provider>.<name>` ──► NodeProvider
//!                                                                       │
//!                                   NodeProfile ◄── chosen for ── Enrollment (one per node)
//! ```
//!
//! The kinds of `management.loft.sh/v1` keep the group and shape of the API that the reference documents describe; what is
//! ours alone is in `hostler.dev/v1alpha1`.

#![forbid(unsafe_code)]
#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column is written with the same words"
)]
#![allow(
    unreachable_pub,
    reason = "the schema derive repeats each type inside a function, where `pub` reaches nowhere"
)]

pub mod amount;
pub mod claim;
pub mod conditions;
pub mod enrollment;
pub mod environment;
pub mod image;
pub mod names;
pub mod node_type;
pub mod plugin;
pub mod profile;
pub mod project;
pub mod provider;
pub mod shape;
pub mod tenant;

pub use amount::{Amount, ResourceList};
pub use claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus};
pub use conditions::Condition;
pub use enrollment::{Enrollment, EnrollmentSpec, EnrollmentStatus};
pub use environment::{NodeEnvironment, NodeEnvironmentSpec, NodeEnvironmentStatus};
pub use image::{OSImage, OSImageSpec, OSImageStatus, SSHKey, SSHKeySpec, SSHKeyStatus};
pub use node_type::{NodeType, NodeTypeSpec, NodeTypeStatus};
pub use plugin::{Plugin, PluginSpec, PluginStatus};
pub use profile::{NodeProfile, NodeProfileSpec, NodeProfileStatus};
pub use project::{Project, ProjectSpec, ProjectStatus};
pub use provider::{NodeProvider, NodeProviderSpec, NodeProviderStatus};
pub use tenant::{VirtualClusterInstance, VirtualClusterInstanceSpec, VirtualClusterInstanceStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who an object belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Name of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "shape::title")]
    pub user: Option<String>,
    /// Name of the team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "shape::title")]
    pub team: Option<String>,
}

/// A right given on an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Verbs.
    #[serde(default)]
    pub verbs: Vec<String>,
    /// Subresources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<String>,
    /// Users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Teams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<String>,
}

/// Every definition that the host needs, in the order in which a reader meets the kinds.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    vec![
        Project::crd(),
        VirtualClusterInstance::crd(),
        NodeProvider::crd(),
        NodeType::crd(),
        NodeClaim::crd(),
        NodeEnvironment::crd(),
        OSImage::crd(),
        SSHKey::crd(),
        NodeProfile::crd(),
        Enrollment::crd(),
        Plugin::crd(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_as_reviewed() {
        for crd in all_crds() {
            let name = crd
                .metadata
                .name
                .clone()
                .expect("derived definitions have a name");
            insta::assert_yaml_snapshot!(name, crd);
        }
    }
}
