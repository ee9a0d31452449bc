//! The facts of a request, as far as this policy reads them. Unknown keys are later facts.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::allowlist::Allowed;

/// One request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Facts {
    /// `null` when no Project was read: not the same as a Project that says nothing.
    pub(crate) project: Option<Project>,
    #[serde(default)]
    pub(crate) tenant: Option<Tenant>,
    #[serde(default)]
    pub(crate) claim: Option<Claim>,
    #[serde(default)]
    pub(crate) profile: Option<Profile>,
    #[serde(default)]
    pub(crate) node_type: Option<NodeType>,
    #[serde(default)]
    pub(crate) pool: Option<Pool>,
    #[serde(default)]
    pub(crate) usage: Option<Usage>,
}

impl Facts {
    /// The provider that is meant, by whatever names it.
    pub(crate) fn provider(&self) -> Option<&str> {
        let named = self.node_type.as_ref().map(|kind| kind.provider.as_str());
        let claimed = || self.claim.as_ref()?.spec.provider_ref.as_deref();
        let pooled = || self.pool.as_ref()?.provider.as_deref();
        named
            .or_else(claimed)
            .or_else(pooled)
            .filter(|name| !name.is_empty())
    }
}

/// A whole Project; its name stands beside it or in its metadata.
#[derive(Deserialize)]
pub(crate) struct Project {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    metadata: Metadata,
    // No default: an object without a spec was not read as a Project.
    pub(crate) spec: ProjectSpec,
}

impl Project {
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.metadata.name)
    }
}

#[derive(Default, Deserialize)]
pub(crate) struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProjectSpec {
    /// Unset allows all, empty allows none.
    #[serde(default)]
    pub(crate) allowed_node_types: Option<Vec<Allowed>>,
    #[serde(default)]
    pub(crate) allowed_node_profiles: Option<Vec<Allowed>>,
    #[serde(default)]
    pub(crate) default_node_profile: Option<String>,
    #[serde(default)]
    pub(crate) quotas: Option<Quotas>,
}

#[derive(Deserialize)]
pub(crate) struct Quotas {
    #[serde(default)]
    pub(crate) project: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) user: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
pub(crate) struct Tenant {
    #[serde(default)]
    name: String,
}

impl Tenant {
    pub(crate) fn title(&self) -> &str {
        &self.name
    }
}

#[derive(Deserialize)]
pub(crate) struct Claim {
    #[serde(default)]
    pub(crate) spec: ClaimSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    #[serde(default)]
    pub(crate) provider_ref: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Profile {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) source: String,
}

#[derive(Deserialize)]
pub(crate) struct NodeType {
    pub(crate) provider: String,
    pub(crate) name: String,
}

#[derive(Deserialize)]
pub(crate) struct Pool {
    #[serde(default)]
    pub(crate) provider: Option<String>,
}

/// Claims that are held, the one under review not counted.
#[derive(Deserialize)]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) project: Option<Count>,
    #[serde(default)]
    pub(crate) user: Option<UserCount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Count {
    pub(crate) nodeclaims: u64,
    #[serde(default)]
    pub(crate) by_provider: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
pub(crate) struct UserCount {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) count: Count,
}
