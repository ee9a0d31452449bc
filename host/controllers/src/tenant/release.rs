//! The end of a tenant: its claims first, then its control plane, then its namespace, then the finalizer.
//!
//! Reads no values: a tenant with broken ones can still be deleted.

use std::sync::Arc;
use std::time::Duration;

use hostler_api as api;
use hostler_api::names;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::{NAME, place, report};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::patch;

/// Wait before claims that are being released are counted again, if no change of theirs comes before.
const COUNT_AGAIN: Duration = Duration::from_secs(5);
/// Wait before a control plane that is being removed is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long a control plane that cannot be removed may hold up the deletion once no claim is left. It holds no machine.
const CONTROL_PLANE_CAP: Duration = Duration::from_secs(600);

/// One turn.
pub(super) async fn turn(
    ctx: &Arc<Ctx>,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
) -> Result<Action> {
    if !tenant
        .finalizers()
        .iter()
        .any(|one| one == names::TENANT_FINALIZER)
    {
        return Ok(Action::await_change());
    }
    let left = claims(ctx, tenant).await?;
    if left > 0 {
        let message = format!("{left} claims are being released");
        report::leaving(ctx, tenants, tenant, "ReleasingClaims", &message).await?;
        return Ok(Action::requeue(COUNT_AGAIN));
    }
    let uid = tenant.uid().unwrap_or_default();
    enrollments(ctx, tenant).await?;
    ctx.tenants.forget(&uid);
    let project = names::project_of(&tenant.namespace().unwrap_or_default())
        .unwrap_or_default()
        .to_owned();
    let mut leaves = place::named(tenant, &project, None);
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let marked = marked(&namespaces, &uid).await?;
    if let Some(held) = &marked {
        // Where it really lives, should the spec say something else by now.
        leaves.host_namespace = held.name_any();
        if let Some(name) = held.annotations().get(names::VIRTUAL_CLUSTER) {
            leaves.virtual_cluster.clone_from(name);
        }
    }
    match ctx.control_planes.remove(&leaves).await {
        Ok(true) => {}
        Ok(false) => {
            report::leaving(
                ctx,
                tenants,
                tenant,
                "RemovingControlPlane",
                "the control plane is being removed",
            )
            .await?;
            return Ok(Action::requeue(ASK_AGAIN));
        }
        Err(reason) if overdue(ctx, tenant) => {
            let message = format!("the control plane is left behind: {}", reason.text());
            ctx.events
                .warning(tenant, "ControlPlaneLeft", "Deleting", &message)
                .await;
        }
        Err(reason) => {
            report::leaving(ctx, tenants, tenant, &reason.code, &reason.text()).await?;
            return Ok(Action::requeue(COUNT_AGAIN));
        }
    }
    // One that somebody else made and marked is left to them, with what is in it.
    let made_here =
        |held: &Namespace| held.labels().get(names::INSTALLATION) == Some(&ctx.settings.installation);
    if let Some(held) = marked.filter(|held| made_here(held) && held.meta().deletion_timestamp.is_none()) {
        patch::delete(&namespaces, &held.name_any(), &held.uid().unwrap_or_default()).await?;
    }
    ctx.values.forget(&uid);
    ctx.retries.reset(NAME, &uid);
    let finalizers: Vec<_> = tenant
        .finalizers()
        .iter()
        .filter(|one| *one != names::TENANT_FINALIZER)
        .cloned()
        .collect();
    let version = tenant.resource_version().unwrap_or_default();
    let change = json!({ "metadata": { "finalizers": finalizers } });
    match patch::update(tenants, &tenant.name_any(), &version, change).await {
        Err(error) if error.is_not_found() => {}
        other => drop(other?),
    }
    Ok(Action::await_change())
}

/// Deletes this tenant's claims, however they came, and says how many are still there. While all that the cache shows are on their way
/// out, there is nothing to do but to wait; what is deleted, and that none is left, is said by a live list: the finalizer hangs on it.
async fn claims(ctx: &Ctx, tenant: &api::VirtualClusterInstance) -> Result<usize> {
    let mut seen = ctx.stores.claims.state();
    seen.retain(|claim| claim.meta().namespace == tenant.meta().namespace && is_of(claim, tenant));
    if !seen.is_empty() && seen.iter().all(|claim| is_going(claim)) {
        return Ok(seen.len());
    }
    let claims: Api<api::NodeClaim> =
        Api::namespaced(ctx.client.clone(), &tenant.namespace().unwrap_or_default());
    let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
    let mut left = 0;
    // Its own, and those that nobody has marked yet.
    for selector in [
        format!("{}={uid}", names::TENANT_UID),
        format!("!{}", names::TENANT_UID),
    ] {
        let doing = format!("listing claims of tenant {name}");
        let params = ListParams::default().labels(&selector);
        let live = patch::within(doing, claims.list(&params)).await?;
        for claim in live.items.iter().filter(|claim| is_of(claim, tenant)) {
            let uid = claim.uid().unwrap_or_default();
            if is_going(claim) || !patch::delete(&claims, &claim.name_any(), &uid).await? {
                left += 1;
            }
        }
    }
    Ok(left)
}

fn is_going(claim: &api::NodeClaim) -> bool {
    claim.meta().deletion_timestamp.is_some()
}

/// Marked with its uid, or naming it and marked with none.
fn is_of(claim: &api::NodeClaim, tenant: &api::VirtualClusterInstance) -> bool {
    match claim.labels().get(names::TENANT_UID) {
        Some(uid) => Some(uid) == tenant.meta().uid.as_ref(),
        None => claim.spec.vcluster_ref.as_deref() == tenant.meta().name.as_deref(),
    }
}

/// Records of nodes that outlived their claims.
async fn enrollments(ctx: &Ctx, tenant: &api::VirtualClusterInstance) -> Result<()> {
    let all: Api<api::Enrollment> =
        Api::namespaced(ctx.client.clone(), &tenant.namespace().unwrap_or_default());
    for enrollment in ctx.stores.enrollments.state() {
        if enrollment.namespace() == tenant.namespace()
            && Some(&enrollment.spec.tenant.uid) == tenant.meta().uid.as_ref()
        {
            patch::delete(
                &all,
                &enrollment.name_any(),
                &enrollment.uid().unwrap_or_default(),
            )
            .await?;
        }
    }
    Ok(())
}

async fn marked(namespaces: &Api<Namespace>, uid: &str) -> Result<Option<Namespace>> {
    let params = ListParams::default().labels(&format!("{}={uid}", names::TENANT_UID));
    let listed = patch::within(
        format!("listing namespaces of tenant {uid}"),
        namespaces.list(&params),
    )
    .await?;
    Ok(listed.items.into_iter().next())
}

fn overdue(ctx: &Ctx, tenant: &api::VirtualClusterInstance) -> bool {
    tenant.meta().deletion_timestamp.as_ref().is_some_and(|since| {
        Duration::try_from(ctx.clock.now().duration_since(since.0))
            .is_ok_and(|waited| waited > CONTROL_PLANE_CAP)
    })
}
