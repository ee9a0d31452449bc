//! Asks the resolver and the policies, and makes one answer of theirs.
//!
//! # Guarantees
//! No Project, no yes. A policy that is missing, fails or does not answer in time denies. What is judged here is only asked: nothing is
//! written.

use std::sync::Arc;
use std::time::Duration;

use hostler_api as api;
use hostler_api::claim::ProfileChoice;
use hostler_api::enrollment::{NamedUid, ProfileVersion};
use hostler_api::names;
use hostler_core::admission::{self, Facts, Usage};
use hostler_core::profile::{self, Assigned, Assignment};
use hostler_core::seams::{Candidate, Failure, Reason, Resolution, Subject};
use hostler_core::selector::TypeFacts;
use hostler_core::verdict::{self, Combined};
use hostler_core::{protected, view};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::ctx::Ctx;

/// Longest wait for one policy or resolver; a component's own deadline is far shorter.
const PATIENCE: Duration = Duration::from_secs(5);

/// The project of a namespace, if it was read.
pub(crate) fn project_of(ctx: &Ctx, namespace: &str) -> Option<Arc<api::Project>> {
    ctx.stores.projects.get(None, names::project_of(namespace)?)
}

/// The tenant that a claim names.
pub(crate) fn tenant_of(ctx: &Ctx, claim: &api::NodeClaim) -> Option<Arc<api::VirtualClusterInstance>> {
    let name = claim
        .spec
        .vcluster_ref
        .as_deref()
        .filter(|name| !name.is_empty())?;
    ctx.stores.tenants.get(claim.namespace().as_deref(), name)
}

/// What all policies say to one kind of request.
pub(crate) async fn review(ctx: &Ctx, kind: &str, facts: &Facts<'_>) -> Combined {
    let policies = match ctx.plugins.policies() {
        Ok(policies) => policies,
        Err(failure) => return Combined::missing(&failure),
    };
    let mut answers = Vec::new();
    for policy in policies {
        let Some((_, wants)) = policy.interests().iter().find(|(interest, _)| interest == kind) else {
            continue;
        };
        let wants = |what: &str| wants.iter().any(|want| want == what);
        let facts = Facts {
            usage: facts.usage.filter(|_| wants("usage")),
            now: wants("now").then(|| ctx.clock.now()),
            ..*facts
        };
        let request = admission::request(kind, &facts);
        let answer = match tokio::time::timeout(PATIENCE, policy.review(&request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Broken(Reason::new("Timeout", "no answer in time"))),
        };
        answers.push((policy.name().to_owned(), answer));
    }
    verdict::combine(&answers)
}

/// Whether a claim may use a node type.
///
/// # Errors
/// Why not, with every remedy in it.
pub(crate) async fn type_choice(
    ctx: &Ctx,
    claim: &api::NodeClaim,
    provider: &str,
    facts: &TypeFacts,
) -> Result<(), Reason> {
    let project = project_of(ctx, &claim.namespace().unwrap_or_default());
    let tenant = tenant_of(ctx, claim);
    let combined = review(
        ctx,
        admission::TYPE_CHOICE,
        &Facts {
            project: project.as_deref(),
            tenant: tenant.as_deref(),
            claim: Some(claim),
            profile: claim.status.as_ref().and_then(|status| status.profile.as_ref()),
            node_type: Some((provider, facts)),
            ..Facts::default()
        },
    )
    .await;
    if combined.allowed {
        Ok(())
    } else {
        Err(Reason::new(combined.code(), combined.text()))
    }
}

/// What is known of a node whose profile is to be chosen.
pub(crate) struct Node<'a> {
    pub(crate) tenant: &'a api::VirtualClusterInstance,
    pub(crate) project: &'a api::Project,
    pub(crate) claim: Option<&'a api::NodeClaim>,
    /// The record; none before there is one.
    pub(crate) enrollment: Option<&'a api::Enrollment>,
    /// `privateNodes.defaultProfile`
    pub(crate) tenant_default: Option<&'a str>,
}

impl Node<'_> {
    /// Profiles that this node might get.
    pub(crate) fn candidates(&self, ctx: &Ctx) -> Vec<Candidate> {
        profile::candidates(
            self.claim.and_then(|claim| claim.spec.profile_ref.as_deref()),
            self.tenant_default,
            self.project.spec.default_node_profile.as_deref(),
            |name| profile_named(ctx, name).is_some(),
        )
    }

    fn subject(&self) -> Subject {
        let stated = |object: &dyn erased::Object| view::without_status(&object.json());
        Subject {
            tenant: stated(self.tenant),
            project: stated(self.project),
            enrollment: match self.enrollment {
                Some(enrollment) => view::object(&erased::Object::json(enrollment)),
                None => view::object(&erased::Object::json(&self.enrollment_to_be())),
            },
            claim: self.claim.map(|claim| stated(claim)),
        }
    }

    /// The record as it will be made, as far as it is known before the machine is.
    fn enrollment_to_be(&self) -> api::Enrollment {
        let named = |name: String, uid: Option<String>| NamedUid {
            name,
            uid: uid.unwrap_or_default(),
        };
        let mut enrollment = api::Enrollment::new(
            "",
            api::EnrollmentSpec {
                tenant: named(self.tenant.name_any(), self.tenant.uid()),
                node_name: String::new(),
                claim: self.claim.map(|claim| named(claim.name_any(), claim.uid())),
            },
        );
        enrollment.metadata.namespace = self.tenant.namespace();
        enrollment
    }
}

/// Objects as JSON without what changes at every write, so that an equal question is an equal question.
mod erased {
    use super::{Resource, Serialize, admission};

    pub(super) trait Object {
        fn json(&self) -> serde_json::Value;
    }

    impl<K: Resource + Serialize> Object for K {
        fn json(&self) -> serde_json::Value {
            admission::object(self)
        }
    }
}

/// A profile that exists and is not being deleted.
pub(crate) fn profile_named(ctx: &Ctx, name: &str) -> Option<Arc<api::NodeProfile>> {
    ctx.stores
        .profiles
        .get(None, name)
        .filter(|profile| profile.meta().deletion_timestamp.is_none())
}

/// What the resolver chooses; `None` is "no profile", which is fine.
pub(crate) async fn resolve(
    ctx: &Ctx,
    node: &Node<'_>,
    candidates: &[Candidate],
) -> Result<(Option<Candidate>, String), Failure> {
    let resolver = ctx.plugins.resolver()?;
    let asked = tokio::time::timeout(PATIENCE, resolver.resolve(&node.subject(), candidates)).await;
    let Resolution { chosen, why } = asked.unwrap_or_else(|_| {
        Err(Failure::Broken(Reason::new(
            "Timeout",
            "the resolver gave no answer in time",
        )))
    })?;
    match chosen {
        None => Ok((None, why)),
        Some(index) => match candidates.get(index) {
            Some(candidate) => Ok((Some(candidate.clone()), why)),
            None => Err(Failure::Faulty(Reason::new(
                "ResolverFaulty",
                format!("the resolver chose candidate {index} of {}", candidates.len()),
            ))),
        },
    }
}

/// What was decided about a claim.
pub(crate) struct Admission {
    /// The profile that its node will have.
    pub(crate) profile: ProfileChoice,
    /// Yes with what to warn of, or no with why.
    pub(crate) verdict: Result<Vec<Reason>, Reason>,
    /// When to ask again though nothing changed.
    pub(crate) valid_for: Option<Duration>,
}

impl Admission {
    fn no(profile: ProfileChoice, reason: Reason) -> Self {
        Self {
            profile,
            verdict: Err(reason),
            valid_for: None,
        }
    }
}

/// Chooses a claim's profile and asks all policies about profile and claim.
pub(crate) async fn admit(ctx: &Ctx, node: &Node<'_>, claim: &api::NodeClaim, usage: &Usage) -> Admission {
    let candidates = node.candidates(ctx);
    let (chosen, why) = match resolve(ctx, node, &candidates).await {
        Ok(resolved) => resolved,
        Err(failure) => return Admission::no(ProfileChoice::default(), unresolved(&failure)),
    };
    let choice = ProfileChoice {
        name: chosen.as_ref().map(|candidate| candidate.profile.clone()),
        source: chosen.as_ref().map(|candidate| candidate.source.clone()),
        why: Some(why),
    };
    if let Some(name) = &choice.name {
        match profile_named(ctx, name) {
            None => {
                let reason = Reason::new("ProfileNotFound", format!("no NodeProfile {name}"))
                    .remedy("create it, or name another in the pool, the tenant or the project");
                return Admission::no(choice, reason);
            }
            Some(profile) => {
                if let Some(reason) = invalid(&profile) {
                    return Admission::no(choice, reason);
                }
            }
        }
    }
    let facts = Facts {
        project: Some(node.project),
        tenant: Some(node.tenant),
        claim: Some(claim),
        profile: Some(&choice),
        usage: Some(usage),
        ..Facts::default()
    };
    let mut reasons = Vec::new();
    let mut warnings = Vec::new();
    let mut valid_for: Option<Duration> = None;
    let kinds = [
        (admission::PROFILE_ASSIGNMENT, choice.name.is_some()),
        (admission::CLAIM, true),
    ];
    for (kind, _) in kinds.into_iter().filter(|(_, asked)| *asked) {
        let combined = review(ctx, kind, &facts).await;
        for (all, more) in [
            (&mut reasons, combined.reasons),
            (&mut warnings, combined.warnings),
        ] {
            for reason in more {
                if !all.contains(&reason) {
                    all.push(reason);
                }
            }
        }
        valid_for = match (valid_for, combined.valid_for) {
            (Some(known), Some(next)) => Some(known.min(next)),
            (known, next) => known.or(next),
        };
    }
    let verdict = match reasons.first() {
        None => Ok(warnings),
        Some(first) => Err(Reason::new(first.code.clone(), verdict::text(&reasons))),
    };
    Admission {
        profile: choice,
        verdict,
        valid_for,
    }
}

fn unresolved(failure: &Failure) -> Reason {
    let reason = failure.reason().clone();
    match failure {
        Failure::Refused(_) | Failure::Missing(_) => reason,
        Failure::Exhausted(_) | Failure::Broken(_) | Failure::Faulty(_) => Reason::new(
            "ProfileUnresolved",
            format!("the resolver gave no answer: {}", reason.message),
        )
        .remedy("see the Plugin object of the resolver"),
    }
}

/// Why a profile is not to be put on any node.
pub(crate) fn invalid(profile: &api::NodeProfile) -> Option<Reason> {
    let problems = protected::in_profile(&profile.spec);
    let first = problems.first()?;
    let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let code = if first.code == protected::CODE {
        protected::CODE
    } else {
        "ProfileInvalid"
    };
    Some(
        Reason::new(
            code,
            format!("NodeProfile {}: {}", profile.name_any(), told.join("; ")),
        )
        .remedy("mend the profile; until then no node is given it anew"),
    )
}

/// What resolves for a node that has joined, with the profile that it borrows from.
pub(crate) enum Held {
    /// This profile.
    Profile(ProfileChoice, Arc<api::NodeProfile>),
    /// None is named.
    Nothing,
    /// Deleted, or no longer allowed.
    Revoked(Reason),
    /// Not to be told now.
    Unknown,
}

impl Held {
    /// The same in the words of the core.
    pub(crate) fn assignment(&self) -> Assignment<'_> {
        match self {
            Self::Profile(choice, profile) => Assignment::Profile(Assigned {
                choice: choice.clone(),
                version: ProfileVersion {
                    name: profile.name_any(),
                    uid: profile.uid().unwrap_or_default(),
                    generation: profile.meta().generation.unwrap_or(0),
                },
                spec: &profile.spec,
            }),
            Self::Nothing => Assignment::Nothing,
            Self::Revoked(reason) => Assignment::Revoked(reason.clone()),
            Self::Unknown => Assignment::Unknown,
        }
    }
}

/// What a joined node is to have. Whoever cannot be asked changes nothing.
pub(crate) async fn held(ctx: &Ctx, node: &Node<'_>, before: Option<&str>) -> Held {
    let gone = before
        .filter(|name| profile_named(ctx, name).is_none())
        .map(|name| {
            Reason::new("ProfileNotFound", format!("NodeProfile {name} was deleted"))
                .remedy("create it again, or name another in the pool, the tenant or the project")
        });
    let candidates = node.candidates(ctx);
    let (chosen, why) = match (resolve(ctx, node, &candidates).await, gone) {
        (Ok((Some(candidate), why)), _) => (candidate, why),
        (Ok((None, _)) | Err(Failure::Refused(_)), Some(gone)) => return Held::Revoked(gone),
        (Ok((None, _)), None) => return Held::Nothing,
        (Err(_), gone) => return gone.map_or(Held::Unknown, Held::Revoked),
    };
    let Some(profile) = profile_named(ctx, &chosen.profile) else {
        let reason = Reason::new("ProfileNotFound", format!("no NodeProfile {}", chosen.profile));
        return Held::Revoked(
            reason.remedy("create it, or name another in the pool, the tenant or the project"),
        );
    };
    if invalid(&profile).is_some() {
        return Held::Unknown;
    }
    let choice = ProfileChoice {
        name: Some(chosen.profile),
        source: Some(chosen.source),
        why: Some(why),
    };
    let facts = Facts {
        project: Some(node.project),
        tenant: Some(node.tenant),
        claim: node.claim,
        profile: Some(&choice),
        ..Facts::default()
    };
    let combined = review(ctx, admission::PROFILE_ASSIGNMENT, &facts).await;
    match (combined.allowed, combined.judged) {
        (true, _) => Held::Profile(choice, profile),
        (false, true) => Held::Revoked(Reason::new(combined.code(), combined.text())),
        // Denied only for want of an answer: what stands stays, nothing new is put on.
        (false, false) => Held::Unknown,
    }
}
