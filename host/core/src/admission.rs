//! Whether a claim can be accepted at all, and what policies are asked about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostler_api::claim::ProfileChoice;
use hostler_api::{
    NodeClaim, NodeEnvironment, NodeProvider, NodeType, Project, VirtualClusterInstance, conditions, names,
};
use jiff::{Timestamp, Unit};
use serde::Serialize;
use serde_json::{Value, json};

use crate::seams::{Reason, Request};
use crate::selector::TypeFacts;
use crate::values::{Grace, Problem};
use crate::{properties, protected, selector, view};

/// Kind of request: before a claim is given to the scheduler, and again at binding.
pub const CLAIM: &str = "claim";
/// Kind of request: for each node type that could serve a claim.
pub const TYPE_CHOICE: &str = "type-choice";
/// Kind of request: for the profile that the resolver chose.
pub const PROFILE_ASSIGNMENT: &str = "profile-assignment";

/// What was found of the things that a claim names; `None` is "not there".
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    /// The project of the claim's namespace.
    pub project: Option<&'a Project>,
    /// `spec.vClusterRef`
    pub tenant: Option<&'a VirtualClusterInstance>,
    /// Whether the tenant's values enable private nodes; `None` when they cannot be read.
    pub private_nodes: Option<bool>,
    /// `spec.providerRef`
    pub provider: Option<&'a NodeProvider>,
    /// `spec.typeRef`
    pub node_type: Option<&'a NodeType>,
    /// Whether the OSImage that the properties name exists.
    pub os_image: bool,
    /// SSHKeys that the properties name and that do not exist.
    pub missing_ssh_keys: &'a [String],
    /// The environment that [`environment`] names.
    pub environment: Option<&'a NodeEnvironment>,
}

/// Name of the environment of a claim: the property, else the reference.
#[must_use]
pub fn environment(claim: &NodeClaim) -> Option<&str> {
    claim
        .spec
        .properties
        .get(names::PROPERTY_ENVIRONMENT)
        .or(claim.spec.environment_ref.as_ref())
        .map(String::as_str)
}

/// Whether everything that a claim names is there and may be named. Says nothing about capacity or policy.
///
/// # Errors
/// Every reason against it, most basic first.
pub fn check(claim: &NodeClaim, seen: &Seen<'_>) -> Result<(), Vec<Reason>> {
    let mut reasons = Vec::new();
    reasons.extend(tenancy(claim, seen));
    reasons.extend(protected::in_claim(&claim.spec).iter().map(told));
    reasons.extend(provider(claim, seen));
    reasons.extend(named(claim, seen));
    if claim.spec.control_plane {
        reasons.push(
            Reason::new(
                "NotServedYet",
                "spec.controlPlane: machines for control planes are not served",
            )
            .remedy("set spec.controlPlane: false"),
        );
    }
    if let Some(Err(message)) = claim.spec.termination_grace_period.as_deref().map(Grace::parse) {
        reasons.push(told(&Problem {
            path: "spec.terminationGracePeriod".into(),
            code: "InvalidClaim",
            message,
        }));
    }
    for (index, requirement) in claim.spec.requirements.iter().enumerate() {
        if let Some((field, message)) = selector::problem(requirement) {
            let path = format!("spec.requirements[{index}].{field}");
            reasons.push(told(&Problem {
                path,
                code: "InvalidClaim",
                message,
            }));
        }
    }
    if reasons.is_empty() { Ok(()) } else { Err(reasons) }
}

fn told(problem: &Problem) -> Reason {
    Reason::new(problem.code, problem.to_string())
}

fn tenancy(claim: &NodeClaim, seen: &Seen<'_>) -> Option<Reason> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    if seen.project.is_none() {
        let reason = Reason::new(
            "ProjectNotRead",
            format!("no Project of namespace {namespace} was read"),
        );
        return Some(reason.remedy("create the Project, or put the claim into the namespace p-<project>"));
    }
    let Some(name) = claim.spec.vcluster_ref.as_deref().filter(|name| !name.is_empty()) else {
        return Some(
            Reason::new(
                "NotServedYet",
                "spec.vClusterRef is empty: machines without a tenant are not served",
            )
            .remedy("name a VirtualClusterInstance of this namespace"),
        );
    };
    let Some(tenant) = seen.tenant else {
        return Some(
            Reason::new(
                "UnknownTenant",
                format!("spec.vClusterRef: no VirtualClusterInstance {name} in {namespace}"),
            )
            .remedy("create it, or delete the claim"),
        );
    };
    if tenant.metadata.deletion_timestamp.is_some() {
        return Some(
            Reason::new("TenantDeleting", format!("tenant {name} is being deleted"))
                .remedy("delete the claim"),
        );
    }
    let uid = tenant.metadata.uid.as_deref().unwrap_or_default();
    let recorded = claim
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(names::TENANT_UID));
    if recorded.is_some_and(|recorded| recorded != uid) {
        return Some(
            Reason::new(
                "TenantReplaced",
                format!("the claim is for an earlier tenant of the name {name}"),
            )
            .remedy("delete the claim"),
        );
    }
    match seen.private_nodes {
        Some(true) => None,
        Some(false) => Some(
            Reason::new(
                "PrivateNodesDisabled",
                format!("tenant {name} has no private nodes"),
            )
            .remedy("set privateNodes.enabled: true in its values"),
        ),
        None => Some(
            Reason::new(
                "TenantInvalid",
                format!("the values of tenant {name} cannot be read"),
            )
            .remedy("see the conditions of the VirtualClusterInstance"),
        ),
    }
}

fn provider(claim: &NodeClaim, seen: &Seen<'_>) -> Vec<Reason> {
    let name = &claim.spec.provider_ref;
    let Some(provider) = seen.provider else {
        return vec![
            Reason::new(
                "UnknownProvider",
                format!("spec.providerRef: no NodeProvider {name}"),
            )
            .remedy("create it, or name one that `kubectl get nodeproviders` shows"),
        ];
    };
    let mut reasons = Vec::new();
    if let Some(wanted) = claim.type_ref() {
        match seen.node_type {
            None => reasons.push(
                Reason::new("UnknownNodeType", format!("spec.typeRef: no NodeType {wanted}"))
                    .remedy("name one that `kubectl get nodetypes` shows, or leave typeRef empty"),
            ),
            Some(found) if found.spec.provider_ref != *name => reasons.push(
                Reason::new(
                    "UnknownNodeType",
                    format!("spec.typeRef: {wanted} is not a type of provider {name}"),
                )
                .remedy(format!(
                    "name the provider {} or another type",
                    found.spec.provider_ref
                )),
            ),
            Some(_) => {}
        }
    }
    let refused = properties::refused(claim.spec.properties.keys(), provider, |key| {
        format!("spec.properties[{key:?}]")
    });
    reasons.extend(refused.iter().map(told));
    reasons
}

fn named(claim: &NodeClaim, seen: &Seen<'_>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let path = |key: &str| format!("spec.properties[{key:?}]");
    if let Some(image) = claim.spec.properties.get(names::PROPERTY_OS_IMAGE)
        && !seen.os_image
    {
        let place = path(names::PROPERTY_OS_IMAGE);
        reasons.push(
            Reason::new("OSImageNotFound", format!("{place}: no OSImage {image}"))
                .remedy("create it, or name one that `kubectl get osimages` shows"),
        );
    }
    if !seen.missing_ssh_keys.is_empty() {
        let place = path(names::PROPERTY_SSH_KEYS);
        let missing = seen.missing_ssh_keys.join(", ");
        reasons.push(
            Reason::new("SSHKeyNotFound", format!("{place}: no SSHKey {missing}"))
                .remedy("create it, or name one that `kubectl get sshkeys` shows"),
        );
    }
    let Some(wanted) = environment(claim) else {
        return reasons;
    };
    let place = if claim.spec.properties.contains_key(names::PROPERTY_ENVIRONMENT) {
        path(names::PROPERTY_ENVIRONMENT)
    } else {
        "spec.environmentRef".to_owned()
    };
    match seen.environment {
        None => reasons.push(
            Reason::new(
                "EnvironmentNotFound",
                format!("{place}: no NodeEnvironment {wanted} in this namespace"),
            )
            .remedy("create it, or name one that `kubectl get nodeenvironments` shows"),
        ),
        Some(found) if found.spec.provider_ref != claim.spec.provider_ref => reasons.push(
            Reason::new(
                "EnvironmentNotAllowed",
                format!(
                    "{place}: {wanted} is for provider {}, not {}",
                    found.spec.provider_ref, claim.spec.provider_ref
                ),
            )
            .remedy("name an environment of the claim's provider"),
        ),
        Some(found)
            if found
                .spec
                .vcluster_ref
                .as_ref()
                .is_some_and(|name| Some(name) != claim.spec.vcluster_ref.as_ref()) =>
        {
            reasons.push(
                Reason::new(
                    "EnvironmentNotAllowed",
                    format!("{place}: {wanted} is another tenant's"),
                )
                .remedy("name an environment of the claim's tenant, or one without vClusterRef"),
            );
        }
        Some(_) => {}
    }
    reasons
}

/// Claims that are held, the one under review not counted; for policies that ask for `usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the project.
    pub project: Count,
    /// Of the tenant.
    pub tenant: Count,
    /// Of the claim's user in the project; none where the claim names no user.
    pub user: Option<UserCount>,
}

/// A count of claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Count {
    /// All.
    pub nodeclaims: u64,
    /// By provider.
    pub by_provider: BTreeMap<String, u64>,
    /// By full name of the node type; claims that have none yet are left out.
    pub by_type: BTreeMap<String, u64>,
}

/// A count of one user's claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserCount {
    /// `spec.owner.user`
    pub name: String,
    /// The count.
    #[serde(flatten)]
    pub count: Count,
}

impl Count {
    fn add(&mut self, claim: &NodeClaim) {
        self.nodeclaims += 1;
        // By what it holds, whatever it says by now.
        let held = claim.machine().map(|machine| machine.type_ref.as_str());
        let provider = held
            .and_then(|name| name.rsplit_once('.'))
            .map_or(claim.spec.provider_ref.as_str(), |(provider, _)| provider);
        *self.by_provider.entry(provider.to_owned()).or_default() += 1;
        if let Some(name) = held.or(claim.type_ref()) {
            *self.by_type.entry(name.to_owned()).or_default() += 1;
        }
    }
}

impl Usage {
    /// Counts the other claims of the namespace: those that were accepted or hold something.
    #[must_use]
    pub fn beside<'a>(claim: &NodeClaim, all: impl Iterator<Item = &'a NodeClaim>) -> Self {
        let user = |claim: &NodeClaim| match claim.status.as_ref().and_then(|status| status.order.as_ref()) {
            // Whose order it was, whatever it says by now.
            Some(order) => order.claim["owner"]["user"].as_str().map(ToOwned::to_owned),
            None => claim.spec.owner.as_ref().and_then(|owner| owner.user.clone()),
        };
        let mut usage = Self {
            user: user(claim).map(|name| UserCount {
                name,
                ..UserCount::default()
            }),
            ..Self::default()
        };
        for other in all {
            let same_place = other.metadata.namespace == claim.metadata.namespace;
            if !same_place || other.metadata.uid == claim.metadata.uid || !counts(other) {
                continue;
            }
            usage.project.add(other);
            if other.spec.vcluster_ref == claim.spec.vcluster_ref {
                usage.tenant.add(other);
            }
            if let Some(counted) = usage
                .user
                .as_mut()
                .filter(|counted| user(other).as_ref() == Some(&counted.name))
            {
                counted.count.add(other);
            }
        }
        usage
    }
}

/// Whether a claim counts against quotas: it was accepted, or holds a machine.
#[must_use]
pub fn counts(claim: &NodeClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| {
        status.machine.is_some() || conditions::is_true(&status.conditions, conditions::ACCEPTED)
    })
}

/// The facts of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// The project; `None` when none was read.
    pub project: Option<&'a Project>,
    /// The tenant.
    pub tenant: Option<&'a VirtualClusterInstance>,
    /// The claim.
    pub claim: Option<&'a NodeClaim>,
    /// The chosen profile.
    pub profile: Option<&'a ProfileChoice>,
    /// The type in question, with its provider.
    pub node_type: Option<(&'a str, &'a TypeFacts)>,
    /// Counts, for policies that want them.
    pub usage: Option<&'a Usage>,
    /// The time, for policies that want it; cut to the minute.
    pub now: Option<Timestamp>,
}

/// A request in the form that `wit/README.md` describes.
#[must_use]
pub fn request(kind: &str, facts: &Facts<'_>) -> Request {
    let mut json = json!({
        "project": facts.project.map(object),
        "tenant": facts.tenant.map(|tenant| json!({
            "namespace": tenant.metadata.namespace,
            "name": tenant.metadata.name,
            "uid": tenant.metadata.uid,
        })),
        "claim": facts.claim.map(object),
        "profile": facts.profile.and_then(|profile| profile.name.as_ref().map(|name| json!({
            "name": name,
            "source": profile.source,
        }))),
        "nodeType": facts.node_type.map(|(provider, facts)| json!({
            "provider": provider,
            "name": facts.short_name,
            "fullName": facts.full_name,
        })),
    });
    if let Some(usage) = facts.usage {
        json["usage"] = json!(usage);
    }
    if let Some(minute) = facts.now.and_then(|now| {
        now.round(
            jiff::TimestampRound::new()
                .smallest(Unit::Minute)
                .mode(jiff::RoundMode::Trunc),
        )
        .ok()
    }) {
        json["now"] = Value::String(minute.to_string());
    }
    Request {
        kind: kind.to_owned(),
        json,
    }
}

/// An object as policies see it: as every plugin does, and without the version, which changes at every write and says nothing.
#[must_use]
pub fn object(object: &impl Serialize) -> Value {
    let shown = view::object(&serde_json::to_value(object).unwrap_or(Value::Null));
    let mut json = Arc::unwrap_or_clone(shown.json);
    if let Some(meta) = json.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("resourceVersion");
    }
    json
}

#[cfg(test)]
mod tests;
