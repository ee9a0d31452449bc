//! A tenant's conditions, pools and phase.

use hostler_api as api;
use hostler_api::conditions::{self, Fact, phase};
use hostler_api::tenant::PoolStatus;
use hostler_core::pool;
use hostler_core::seams::Reason;
use kube::{Api, Resource, ResourceExt};

use crate::ctx::Ctx;
use crate::error::Result;
use crate::patch;

const DEPLOYED: &str = "VirtualClusterDeployed";
const ONLINE: &str = "VirtualClusterOnline";
const READY: &str = "VirtualClusterReady";
const PROVISIONED: &str = "NodesProvisioned";
/// Everything that the values say has its effect; shown only where it had not once.
const SERVED: &str = "ValuesServed";

/// How far a turn came.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Nothing is known yet.
    #[default]
    New,
    /// Somebody must change something.
    Refused(Reason),
    /// The control plane is not there yet.
    Pending(Reason),
    /// The control plane is there, but does not answer.
    Deployed(Reason),
    /// Nothing is sent to the control plane before somebody changes something.
    Unusable(Reason),
    /// It answers.
    Online,
    /// It answers, and its kubeconfig is where it belongs.
    Ready,
}

/// What a turn found.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    pub(super) join_address: Option<String>,
    pub(super) pools: Option<Vec<PoolStatus>>,
    /// Paths of the values that have no effect here; none where the values cannot be read.
    pub(super) unserved: Option<Vec<String>>,
    /// Why the values cannot be read, where the control plane stands all the same.
    pub(super) broken: Option<Reason>,
}

/// Writes the status if anything in it changed.
pub(super) async fn write(
    ctx: &Ctx,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    progress: &Progress,
) -> Result<()> {
    let mut next = tenant.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    fill(ctx, status, tenant.meta().generation, progress);
    if *status == before {
        return Ok(());
    }
    let (reason, message) = (status.reason.clone(), status.message.clone());
    match patch::replace_status(tenants, &next).await {
        // The tenant changed in this very turn: the next one tells.
        Err(error) if error.is_conflict() || error.is_not_found() => return Ok(()),
        other => ctx.stores.tenants.wrote(&other?),
    }
    if let (Some(reason), Some(message)) = (reason, message)
        && before.reason.as_deref() != Some(&reason)
        && (matches!(progress.stage, Stage::Refused(_) | Stage::Unusable(_)) || progress.broken.is_some())
    {
        ctx.events.warning(tenant, &reason, "Reconciling", &message).await;
    }
    Ok(())
}

fn show(status: &mut api::VirtualClusterInstanceStatus, phase: &str, reason: Option<&Reason>) {
    status.phase = Some(phase.to_owned());
    status.reason = reason.map(|reason| reason.code.clone());
    status.message = reason.map(Reason::text);
}

fn fill(
    ctx: &Ctx,
    status: &mut api::VirtualClusterInstanceStatus,
    generation: Option<i64>,
    progress: &Progress,
) {
    let now = ctx.clock.now();
    let set = |status: &mut api::VirtualClusterInstanceStatus, fact: &Fact<'_>| {
        conditions::set(&mut status.conditions, fact, generation, now);
    };
    if let Some(address) = &progress.join_address {
        status.join_address = Some(address.clone());
    }
    status.observed_generation = generation;
    match &progress.stage {
        Stage::New => {}
        Stage::Refused(reason) => {
            show(status, phase::FAILED, Some(reason));
            let text = reason.text();
            // A control plane that was there keeps its conditions: the refusal is about what is asked now.
            if !conditions::is_true(&status.conditions, DEPLOYED) {
                set(status, &Fact::no(DEPLOYED, &reason.code, &text));
            }
            set(status, &Fact::no(PROVISIONED, &reason.code, &text));
        }
        Stage::Pending(reason) | Stage::Deployed(reason) | Stage::Unusable(reason) => {
            let text = reason.text();
            let unusable = matches!(progress.stage, Stage::Unusable(_));
            show(
                status,
                if unusable { phase::FAILED } else { phase::PENDING },
                Some(reason),
            );
            for kind in [DEPLOYED, ONLINE, READY] {
                let fact = match &progress.stage {
                    Stage::Deployed(_) if kind == DEPLOYED => Fact::yes(DEPLOYED, "Deployed", ""),
                    Stage::Unusable(_) => Fact::no(kind, &reason.code, &text),
                    _ => Fact::not_yet(kind, &reason.code, &text),
                };
                set(status, &fact);
            }
            if conditions::find(&status.conditions, PROVISIONED).is_none() {
                set(
                    status,
                    &Fact::not_yet(PROVISIONED, "ControlPlaneNotReady", "waits for the control plane"),
                );
            }
        }
        Stage::Online => {
            show(status, phase::PENDING, None);
            set(status, &Fact::yes(DEPLOYED, "Deployed", ""));
            set(status, &Fact::yes(ONLINE, "Online", ""));
        }
        Stage::Ready => {
            show(status, phase::READY, None);
            set(status, &Fact::yes(DEPLOYED, "Deployed", ""));
            set(status, &Fact::yes(ONLINE, "Online", ""));
            set(status, &Fact::yes(READY, "Ready", ""));
        }
    }
    if let Some(reason) = &progress.broken {
        show(status, phase::FAILED, Some(reason));
        let text = reason.text();
        set(status, &Fact::no(PROVISIONED, &reason.code, &text));
    }
    if let Some(paths) = &progress.unserved {
        let known = conditions::find(&status.conditions, SERVED).is_some();
        let text = format!("without effect here: {}", paths.join(", "));
        if !paths.is_empty() {
            set(status, &Fact::not_yet(SERVED, "NotServedYet", &text));
        } else if known {
            set(status, &Fact::yes(SERVED, SERVED, ""));
        }
    }
    if let Some(pools) = &progress.pools {
        status.pools.clone_from(pools);
        let mut text = String::new();
        let fact = pool::filled(pools, &mut text);
        set(status, &fact);
    }
}

/// Says that the tenant is going, and what it waits for.
pub(super) async fn leaving(
    ctx: &Ctx,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    reason: &str,
    message: &str,
) -> Result<()> {
    let mut next = tenant.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    status.phase = Some(phase::PENDING.to_owned());
    status.reason = Some(reason.to_owned());
    status.message = Some(message.to_owned());
    if *status == before {
        return Ok(());
    }
    match patch::replace_status(tenants, &next).await {
        Err(error) if error.is_conflict() || error.is_not_found() => return Ok(()),
        other => ctx.stores.tenants.wrote(&other?),
    }
    if before.reason.as_deref() != Some(reason) {
        tracing::info!(tenant = tenant.name_any(), reason, "tenant is being deleted");
        ctx.events.normal(tenant, reason, "Deleting", message).await;
    }
    Ok(())
}
