//! A tenant's pools: claims made and deleted as `core::pool` plans.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use hostler_api as api;
use hostler_api::conditions;
use hostler_core::pool::{self, Going, Owner, Plan};
use hostler_core::properties;
use hostler_core::seams::Reason;
use hostler_core::selector::{self, TypeFacts};
use hostler_core::values::{self, Pool};
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::report::Progress;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::patch::{self, Created};
use crate::watched;

/// Wait before the next batch of creates.
const NEXT_BATCH: Duration = Duration::from_millis(200);

/// Brings the claims of all pools to what the values say; returns when to look again.
pub(super) async fn turn(
    ctx: &Arc<Ctx>,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    pools: &[Pool],
    progress: &mut Progress,
) -> Result<Option<Duration>> {
    let claims: Api<api::NodeClaim> =
        Api::namespaced(ctx.client.clone(), &tenant.namespace().unwrap_or_default());
    let owner = Owner {
        tenant,
        installation: &ctx.settings.installation,
    };
    let seen: Vec<_> = ctx
        .stores
        .claims
        .state()
        .into_iter()
        .filter(|claim| claim.metadata.namespace == tenant.metadata.namespace)
        .collect();
    let seen: Vec<&api::NodeClaim> = seen.iter().map(AsRef::as_ref).collect();
    let own: Vec<&api::NodeClaim> = seen
        .iter()
        .copied()
        .filter(|claim| pool::pool_of(claim, owner).is_some())
        .collect();
    let mut again: Option<Duration> = None;
    let mut shrinks = !pool::orphaned(owner, pools, &own).is_empty();
    let mut plans = Vec::new();
    let mut statuses = Vec::new();
    for pool in pools {
        if let Err(reason) = servable(ctx, pool) {
            statuses.push(pool::refused(owner, pool, &own, &reason));
            continue;
        }
        statuses.push(pool::status(owner, pool, &own));
        let plan = pool::plan(owner, pool, &seen, free(ctx, pool), ctx.clock.now());
        shrinks |= !plan.deletes.is_empty();
        plans.push(plan);
    }
    progress.pools = Some(statuses);
    if shrinks {
        plans = live(ctx, tenants, tenant, &claims).await?;
    }
    for plan in plans {
        for wait in [plan.again, plan.more.then_some(NEXT_BATCH)]
            .into_iter()
            .flatten()
        {
            again = Some(again.map_or(wait, |known| known.min(wait)));
        }
        act(ctx, &claims, tenant, plan).await?;
    }
    Ok(again)
}

/// The same plans from live reads of tenant and claims: a claim is never deleted on the word of a cache that may be behind.
async fn live(
    ctx: &Ctx,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    claims: &Api<api::NodeClaim>,
) -> Result<Vec<Plan>> {
    let name = tenant.name_any();
    let now = patch::within(format!("reading tenant {name}"), tenants.get(&name)).await?;
    if now.uid() != tenant.uid() || now.metadata.deletion_timestamp.is_some() {
        return Ok(Vec::new());
    }
    let read = ctx.values.of(&now);
    let Ok(values) = read.as_ref() else {
        return Ok(Vec::new());
    };
    let pools = &values.private_nodes.pools;
    let owner = Owner {
        tenant: &now,
        installation: &ctx.settings.installation,
    };
    let own = format!("{}={}", api::names::TENANT_UID, now.uid().unwrap_or_default());
    let own = ListParams::default().labels(&own);
    let listed = patch::within(format!("listing claims of tenant {name}"), claims.list(&own)).await?;
    // Of the others only the names matter: a new claim takes none of them.
    let mut others = ctx.stores.claims.state();
    others.retain(|claim| {
        claim.metadata.namespace == now.metadata.namespace && pool::pool_of(claim, owner).is_none()
    });
    let seen: Vec<&api::NodeClaim> = listed
        .items
        .iter()
        .chain(others.iter().map(AsRef::as_ref))
        .collect();
    let mut plans = vec![Plan {
        deletes: pool::orphaned(owner, pools, &seen),
        ..Plan::default()
    }];
    for pool in pools.iter().filter(|pool| servable(ctx, pool).is_ok()) {
        plans.push(pool::plan(owner, pool, &seen, free(ctx, pool), ctx.clock.now()));
    }
    Ok(plans)
}

async fn act(
    ctx: &Ctx,
    claims: &Api<api::NodeClaim>,
    tenant: &api::VirtualClusterInstance,
    plan: Plan,
) -> Result<()> {
    for Going { name, uid, why } in plan.deletes {
        patch::delete(claims, &name, &uid).await?;
        ctx.events
            .normal(tenant, why, "Scaling", &format!("claim {name} is released"))
            .await;
    }
    for claim in plan.creates {
        // One that exists is our own first try, or shows in the cache soon and sends us to the next name.
        if let Created::New(made) = patch::create(claims, &claim).await? {
            let pool = made.labels().get(api::names::POOL).cloned().unwrap_or_default();
            let note = format!("claim {} for pool {pool}", made.name_any());
            ctx.events
                .normal_about(tenant, &made, "ClaimCreated", "Scaling", &note)
                .await;
        }
    }
    Ok(())
}

/// What of a claim its tenant's turn looks at.
pub(super) fn concern(claim: &api::NodeClaim) -> Option<impl PartialEq + Send + use<>> {
    let status = claim.status.as_ref();
    let text =
        |pick: fn(&api::NodeClaimStatus) -> &Option<String>| status.and_then(|status| pick(status).clone());
    Some((
        watched::stated(claim),
        text(|status| &status.phase),
        // Told of the pool while it is not full.
        (text(|status| &status.reason), text(|status| &status.message)),
        claim.machine().is_some(),
        status.is_some_and(|status| status.node_uid.is_some()),
    ))
}

/// Ticks when a node type has more free machines than before, or is another one.
pub(super) fn came_free(ctx: &Arc<Ctx>) -> BoxStream<'static, ()> {
    let mut known: HashMap<ObjectRef<api::NodeType>, (u64, i64)> = HashMap::new();
    let store = ctx.stores.node_types.store();
    ctx.stores
        .node_types
        .subscribe()
        .filter_map(move |name| {
            let Some(node_type) = store.get(&name) else {
                known.remove(&name);
                return std::future::ready(None);
            };
            let now = (watched::stated(node_type.as_ref()), left(&node_type));
            let before = known.insert(name, now);
            let more = before.is_none_or(|before| before.0 != now.0 || before.1 < now.1);
            std::future::ready(more.then_some(()))
        })
        .boxed()
}

/// Free machines of a type by its status.
fn left(node_type: &api::NodeType) -> i64 {
    let status = node_type.status.as_ref();
    status.map_or(0, |status| {
        if is_boundless(status) {
            i64::MAX
        } else {
            status.capacity.total - status.capacity.claimed
        }
    })
}

/// A type without bound counts what is claimed as its total, and has capacity all the same.
fn is_boundless(status: &api::NodeTypeStatus) -> bool {
    status.capacity.total <= status.capacity.claimed && conditions::is_true(&status.conditions, "HasCapacity")
}

/// Whether a tenant has fewer claims than its pools want, as far as it was told.
pub(super) fn is_short(tenant: &api::VirtualClusterInstance) -> bool {
    tenant
        .status
        .as_ref()
        .is_some_and(|status| status.pools.iter().any(|pool| pool.claims < pool.quantity))
}

/// Whether a pool may make claims as it is written.
fn servable(ctx: &Ctx, pool: &Pool) -> Result<(), Reason> {
    let Some(provider) = ctx.stores.providers.get(None, &pool.provider) else {
        return Err(Reason::new(
            "UnknownProvider",
            format!("{}: no NodeProvider {}", pool.path, pool.provider),
        )
        .remedy("create it, or name one that `kubectl get nodeproviders` shows"));
    };
    let path = |key: &str| {
        pool.property_paths
            .get(key)
            .cloned()
            .unwrap_or_else(|| pool.path.clone())
    };
    let refused = properties::refused(pool.properties.keys(), &provider, path);
    if refused.is_empty() {
        Ok(())
    } else {
        Err(values::reason(&refused))
    }
}

/// Claims, of anybody, that have a machine of a type.
fn bound_to(ctx: &Ctx, full_name: &str) -> i64 {
    let claims = ctx.stores.claims.state();
    let bound = claims.iter().filter(|claim| {
        claim
            .machine()
            .is_some_and(|machine| machine.type_ref == full_name)
    });
    i64::try_from(bound.count()).unwrap_or(i64::MAX)
}

/// Free machines of all types that the pool may use; `None` is no bound.
fn free(ctx: &Ctx, pool: &Pool) -> Option<i64> {
    let mut free: i64 = 0;
    for node_type in ctx.stores.node_types.state() {
        let fits = node_type.spec.provider_ref == pool.provider
            && selector::matches(&pool.requirements, &TypeFacts::from(node_type.as_ref())).is_ok();
        let Some(status) = node_type.status.as_ref().filter(|_| fits) else {
            continue;
        };
        let (total, claimed) = (status.capacity.total, status.capacity.claimed);
        if is_boundless(status) {
            return None;
        }
        // The count may be older than the claims: a machine that a claim names is not free any more.
        let left = total - claimed.max(bound_to(ctx, &node_type.name_any()));
        free = free.saturating_add(left.max(0));
    }
    Some(free)
}
