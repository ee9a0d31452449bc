//! Resolvers: choose the one NodeProfile of a node. `wit/v0.1/resolver.wit` is the reference.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Failure, Object};

/// A resolver: one pure function.
pub trait Resolver {
    /// The `[settings]` of the operator's file. Settings that do not parse are a refusal.
    type Settings: DeserializeOwned;

    /// Which of the candidates this node gets.
    fn resolve(
        settings: &Self::Settings,
        subject: &Subject,
        candidates: &[Candidate],
    ) -> Result<Resolution, Failure>;
}

/// One profile that could be meant, most explicit first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Candidate {
    /// `explicit`, `tenant-default`, `project-default`; more may come.
    pub source: String,
    /// The name of the NodeProfile.
    pub profile: String,
    /// Whether a NodeProfile of that name exists now.
    pub exists: bool,
}

/// What is known of the node.
#[derive(Clone, Debug, Deserialize)]
pub struct Subject {
    /// The tenant's VirtualClusterInstance.
    pub tenant: Object,
    /// The Project that the tenant is in.
    pub project: Object,
    /// The host's own record of the node.
    pub enrollment: Object,
    /// The claim that ordered the node; none for a node joined by hand.
    #[serde(default)]
    pub claim: Option<Object>,
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// Index into the candidates; none leaves the node without a profile.
    pub chosen: Option<u32>,
    /// One sentence: why this one.
    pub why: String,
}
