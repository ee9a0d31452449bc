//! One node's turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostler_api as api;
use hostler_api::EnrollmentStatus;
use hostler_api::conditions::{self, Fact};
use hostler_core::profile::{self, Contest, Turn, View};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};

use super::{NAME, Tenant, enrollment, tenant};
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::judge::{self, Held};
use crate::patch;
use crate::retries::steadily;
use crate::watched::BEHIND;

/// Condition of a claim: its node has the profile that was chosen for it.
const ASSIGNED: &str = "ProfileAssigned";

/// Corrections of this tenant's nodes, by Enrollment uid.
#[derive(Default)]
pub(super) struct Contests(Mutex<HashMap<String, Contest>>);

impl Contests {
    fn resting(&self, uid: &str, ctx: &Ctx) -> Option<Duration> {
        self.0
            .lock()
            .expect("no holder panics")
            .get(uid)?
            .resting(ctx.clock.now())
    }

    /// Notes a correction; true when it was one too many.
    fn corrected(&self, uid: &str, ctx: &Ctx) -> bool {
        self.0
            .lock()
            .expect("no holder panics")
            .entry(uid.to_owned())
            .or_default()
            .corrected(ctx.clock.now())
    }
}

/// One turn.
pub(super) async fn reconcile(node: Arc<Node>, shared: Arc<Tenant>) -> Result<Action> {
    let ctx = &shared.ctx;
    // A Node without a record is not ours: whoever runs the tenant may have his own.
    let Some(record) = enrollment(ctx, &shared.api.uid, &node.name_any()) else {
        return Ok(Action::await_change());
    };
    if record.meta().deletion_timestamp.is_some() || node.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = record.namespace();
    let claim = match &record.spec.claim {
        None => None,
        Some(named) => match ctx.stores.claims.get(namespace.as_deref(), &named.name) {
            Some(claim) if claim.uid().as_ref() == Some(&named.uid) => Some(claim),
            // Of another life, or not seen yet; its next change brings us back.
            Some(_) | None => return Ok(Action::await_change()),
        },
    };
    if claim
        .as_ref()
        .is_some_and(|claim| claim.meta().deletion_timestamp.is_some())
    {
        return Ok(Action::await_change());
    }
    let stores = &ctx.stores;
    if stores.enrollments.is_behind(&record)
        || shared.nodes.is_behind(&node)
        || claim.as_ref().is_some_and(|claim| stores.claims.is_behind(claim))
    {
        return Ok(Action::requeue(BEHIND));
    }
    let Some(tenant) = tenant(ctx, &shared.api.uid) else {
        return Ok(Action::await_change());
    };
    let memory = record.status.clone().unwrap_or_default();
    if memory.approved_request.is_none() {
        // It did not join by what the host signed: whatever it is called, it is not this machine's.
        return Ok(Action::await_change());
    }
    let held = resolve(ctx, &tenant, claim.as_deref(), &record, &memory).await;
    let contest = record.uid().unwrap_or_default();
    let resting = shared.contests.resting(&contest, ctx);
    let turn = profile::next(&View {
        node: &node,
        memory: &memory,
        claim: claim.as_deref().map(|claim| &claim.spec),
        assignment: &held.assignment(),
        contested: resting.is_some(),
        now: ctx.clock.now(),
    });
    act(&shared, &node, &record, claim.as_deref(), &turn).await?;
    if let Some(claim) = &claim {
        tell_claim(ctx, claim, &held).await?;
    }
    ctx.retries.reset(NAME, &node.uid().unwrap_or_default());
    Ok(resting.map_or_else(|| steadily(ctx.settings.steady), Action::requeue))
}

async fn resolve(
    ctx: &Ctx,
    tenant: &api::VirtualClusterInstance,
    claim: Option<&api::NodeClaim>,
    record: &api::Enrollment,
    memory: &EnrollmentStatus,
) -> Held {
    let namespace = tenant.namespace().unwrap_or_default();
    let Some(project) = judge::project_of(ctx, &namespace) else {
        return Held::Unknown;
    };
    let values = ctx.values.of(tenant);
    let Ok(values) = values.as_ref() else {
        return Held::Unknown;
    };
    let node = judge::Node {
        tenant,
        project: &project,
        claim,
        enrollment: Some(record),
        tenant_default: values.private_nodes.default_profile.as_deref(),
    };
    let before = memory.profile.as_ref().and_then(|choice| choice.name.as_deref());
    judge::held(ctx, &node, before).await
}

/// Intent, patch, outcome: in this order, each against the version that was read.
async fn act(
    shared: &Tenant,
    node: &Node,
    record: &api::Enrollment,
    claim: Option<&api::NodeClaim>,
    turn: &Turn,
) -> Result<()> {
    let ctx = &shared.ctx;
    let records: Api<api::Enrollment> =
        Api::namespaced(ctx.client.clone(), &record.namespace().unwrap_or_default());
    let mut record = record.clone();
    if let Some(intent) = &turn.intent {
        record.status = Some(intent.clone());
        record = patch::replace_status(&records, &record).await?;
        ctx.stores.enrollments.wrote(&record);
    }
    if let Some(change) = &turn.patch {
        let nodes: Api<Node> = Api::all(shared.api.client.clone());
        let version = node.resource_version().unwrap_or_default();
        shared
            .nodes
            .wrote(&patch::update(&nodes, &node.name_any(), &version, change.clone()).await?);
        let uid = record.uid().unwrap_or_default();
        if turn.corrections > 0 && shared.contests.corrected(&uid, ctx) {
            let note = format!(
                "something keeps changing what the profile of node {} sets",
                node.name_any()
            );
            warn(ctx, &record, claim, profile::CONTESTED, &note).await;
        }
    }
    for told in &turn.told {
        warn(
            ctx,
            &record,
            claim,
            told.reason,
            &format!("node {}: {}", node.name_any(), told.message),
        )
        .await;
    }
    if let Some(outcome) = &turn.outcome {
        record.status = Some(outcome.clone());
        let recorded = patch::replace_status(&records, &record).await?;
        ctx.stores.enrollments.wrote(&recorded);
    }
    Ok(())
}

/// People look at the claim; a node without one has only its record.
async fn warn(ctx: &Ctx, record: &api::Enrollment, claim: Option<&api::NodeClaim>, reason: &str, note: &str) {
    match claim {
        Some(claim) => ctx.events.warning(claim, reason, "Reconciling", note).await,
        None => ctx.events.warning(record, reason, "Reconciling", note).await,
    }
}

/// Shows on the claim which profile its node has, and that it lost it.
async fn tell_claim(ctx: &Ctx, claim: &api::NodeClaim, held: &Held) -> Result<()> {
    let mut next = claim.clone();
    let Some(status) = next.status.as_mut() else {
        return Ok(());
    };
    let before = status.clone();
    let known = conditions::find(&status.conditions, ASSIGNED).is_some();
    let generation = claim.meta().generation;
    let now = ctx.clock.now();
    match held {
        Held::Profile(choice, _) => {
            status.profile = Some(choice.clone());
            if known {
                conditions::set(
                    &mut status.conditions,
                    &Fact::yes(ASSIGNED, ASSIGNED, ""),
                    generation,
                    now,
                );
            }
        }
        Held::Nothing => {
            if let Some(shown) = status.profile.as_mut() {
                (shown.name, shown.source) = (None, None);
            }
            if known {
                conditions::set(
                    &mut status.conditions,
                    &Fact::yes(ASSIGNED, "NoProfile", ""),
                    generation,
                    now,
                );
            }
        }
        Held::Revoked(reason) => {
            let text = reason.text();
            conditions::set(
                &mut status.conditions,
                &Fact::no(ASSIGNED, "ProfileRevoked", &text),
                generation,
                now,
            );
        }
        Held::Unknown => {}
    }
    if *status == before {
        return Ok(());
    }
    let claims: Api<api::NodeClaim> =
        Api::namespaced(ctx.client.clone(), &claim.namespace().unwrap_or_default());
    match patch::replace_status(&claims, &next).await {
        Err(error) if error.is_conflict() => Err(Error::Busy(error.to_string())),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(told) => {
            ctx.stores.claims.wrote(&told);
            if let Held::Revoked(reason) = held {
                ctx.events
                    .warning(claim, "ProfileRevoked", "Reconciling", &reason.text())
                    .await;
            }
            Ok(())
        }
    }
}
