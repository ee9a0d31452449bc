//! Drives one NodeClaim from its place to a ready node, and back to nothing.
//!
//! observe (reads) → `core::lifecycle::next` (pure) → act (writes) → report (one status write, checked against the claim that was read).
//!
//! # Guarantees
//! A turn may end after any write; the turns that follow reach the same place. Nothing outside is touched before the finalizer and
//! the frozen order are written. The finalizer goes, in a write checked against a live read, only when a live look finds nothing held.

mod admit;
mod drive;
mod freeze;
mod gate;
pub(crate) mod kinds;
mod look;
mod node;
mod observe;
mod pods;
mod release;
mod report;
mod sweep;
#[cfg(test)]
mod tests;
mod token;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};
use hostler_api as api;
use hostler_api::NodeClaimStatus;
use hostler_api::claim::FrozenOrder;
use hostler_api::names::{CLAIM_FINALIZER, TENANT_UID};
use hostler_core::lifecycle::{self, State, Step};
use hostler_core::loan::Holder;
use hostler_core::order;
use hostler_core::seams::{Driver, ObjectRef, Reason};
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::control_plane::TenantApi;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::{patch, turn, watched};
use gate::Gate;
use kinds::Kinds;

const NAME: &str = "claim.lifecycle";

/// Bounds of what a driver may ask to wait.
const RECHECK: (u32, u32) = (5, 60);
/// Wait for what no watch tells of: a tenant's node, an API that is away.
const POLL: Duration = Duration::from_secs(2);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let kinds = Arc::new(Kinds::default());
    let gate = Arc::new(Gate::default());
    Controller::for_stream(stream::pending(), ctx.stores.claims.store())
        .reconcile_on(ctx.stores.claims.subscribe())
        .reconcile_on(by_machine(&ctx))
        .reconcile_on(by_enrollment(&ctx))
        .reconcile_on(by_provider(&ctx))
        .reconcile_on(by_tenant(&ctx))
        .reconcile_on(by_tenant_api(&ctx))
        .reconcile_on(by_node(&ctx))
        .reconcile_all_on(ctx.stores.images.restated().map(drop))
        .reconcile_all_on(ctx.stores.environments.restated().map(drop))
        .reconcile_all_on(crate::plugins_changed(ctx.plugins.clone(), stop.clone()))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            move |claim: Arc<api::NodeClaim>, ctx: Arc<Ctx>| {
                let (kinds, gate) = (kinds.clone(), gate.clone());
                async move {
                    let _passed = gate
                        .pass(claim.labels().get(TENANT_UID).map(String::as_str))
                        .await;
                    // As it is by now.
                    let name = reflector::ObjectRef::from_obj(claim.as_ref());
                    let Some(claim) = ctx.stores.claims.store().get(&name) else {
                        return Ok(Action::await_change());
                    };
                    let work = reconcile(&claim, &ctx, &kinds);
                    Box::pin(turn::of(&ctx, NAME, claim.as_ref(), work)).await
                }
                .boxed()
            },
            |claim: Arc<api::NodeClaim>, error: &Error, ctx| {
                tracing::debug!(claim = claim.name_any(), error = %error, "claim turn ended early");
                ctx.retries
                    .after(NAME, &claim.uid().unwrap_or_default(), error.class())
            },
            ctx,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(claim: &Arc<api::NodeClaim>, ctx: &Ctx, kinds: &Kinds) -> Result<Action> {
    if ctx.stores.claims.is_behind(claim) {
        return Ok(Action::requeue(watched::BEHIND));
    }
    let mut claim = api::NodeClaim::clone(claim);
    if claim.meta().deletion_timestamp.is_some() {
        // What is cleaned up is decided from what the claim says now, not from what a watch that is behind remembers.
        match live(ctx, &claim).await? {
            Some(now) => claim = now,
            None => return Ok(Action::await_change()),
        }
    }
    let uid = claim.uid().unwrap_or_default();
    let mut turn = Turn::new(ctx, kinds, claim);
    let state = State::of(&turn.claim);
    let sight = turn.observe(&state).await?;
    let step = lifecycle::next(&state, &sight, ctx.clock.now());
    let done = turn.act(step).await;
    if let Err(error) = &done {
        turn.note_failure(error);
    }
    turn.report().await?;
    let action = done?;
    ctx.retries.reset(NAME, &uid);
    Ok(action)
}

/// The claim as it is now; `None` if it is gone, or another one has its name.
async fn live(ctx: &Ctx, claim: &api::NodeClaim) -> Result<Option<api::NodeClaim>> {
    let claims: Api<api::NodeClaim> =
        Api::namespaced(ctx.client.clone(), &claim.namespace().unwrap_or_default());
    let name = claim.name_any();
    let found = patch::within(format!("reading NodeClaim {name}"), claims.get_opt(&name)).await?;
    Ok(found.filter(|found| found.uid() == claim.uid()))
}

/// One turn for one claim.
pub(super) struct Turn<'a> {
    ctx: &'a Ctx,
    kinds: &'a Kinds,
    claim: api::NodeClaim,
    /// What the status will be; written once, at the end.
    status: NodeClaimStatus,
    holder: Holder,
    /// Reason and text of a warning that goes with the report, if the report changes anything.
    warnings: Vec<(String, String)>,
    /// Whether the claim has been let go: nothing is reported of it any more.
    finished: bool,
}

impl<'a> Turn<'a> {
    fn new(ctx: &'a Ctx, kinds: &'a Kinds, claim: api::NodeClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let holder = order::holder(&claim, &ctx.settings.installation);
        Self {
            ctx,
            kinds,
            claim,
            status,
            holder,
            warnings: Vec::new(),
            finished: false,
        }
    }

    async fn act(&mut self, step: Step) -> Result<Action> {
        match step {
            Step::Guard => self.guard().await,
            Step::Rest => Ok(self.rest()),
            Step::Wait(reason) => {
                self.provisioned_not_yet(&reason);
                Ok(Action::requeue(POLL / 4))
            }
            Step::Freeze => self.freeze().await,
            Step::Reserve => self.reserve().await,
            Step::Admit => self.admit().await,
            Step::Drive => self.drive().boxed().await,
            Step::Unbind(reason) => self.unbind(&reason).await,
            Step::Fail(reason) => {
                self.fail(&reason);
                Ok(self.rest())
            }
            Step::Begin => self.begin().await,
            Step::Drain => self.drain().await,
            Step::Withdraw => self.withdraw().await,
            Step::Sweep => self.sweep().await,
        }
    }

    async fn guard(&self) -> Result<Action> {
        let mut finalizers = self.claim.finalizers().to_vec();
        finalizers.push(CLAIM_FINALIZER.to_owned());
        let version = self.claim.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        let guarded = patch::update(&self.claims(), &self.claim.name_any(), &version, change).await?;
        self.ctx.stores.claims.wrote(&guarded);
        Ok(Action::await_change())
    }

    fn rest(&mut self) -> Action {
        if self.status.order.is_some() {
            self.note_drift();
        }
        Action::await_change()
    }

    fn claims(&self) -> Api<api::NodeClaim> {
        Api::namespaced(self.ctx.client.clone(), &self.namespace())
    }

    fn client(&self) -> &Client {
        &self.ctx.client
    }

    fn namespace(&self) -> String {
        self.claim.namespace().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        &self.holder.claim.uid
    }

    fn frozen(&self) -> Result<FrozenOrder> {
        let order = self.claim.status.as_ref().and_then(|status| status.order.clone());
        order.ok_or_else(|| Error::Bug(format!("NodeClaim {} has no order", self.claim.name_any())))
    }

    /// The very component that the order was made with: another version might do something else to a machine that it did not take.
    fn driver(&self, frozen: &FrozenOrder) -> Result<Arc<dyn Driver>> {
        Ok(self.ctx.plugins.driver(&frozen.component, Some(&frozen.digest))?)
    }

    fn machine(&self) -> Option<ObjectRef> {
        self.status
            .machine
            .as_ref()?
            .object
            .as_ref()
            .map(order::object_ref)
    }

    fn machine_uid(&self) -> Option<&str> {
        self.status.machine.as_ref()?.uid.as_deref()
    }

    /// The tenant of the order, if its API is there.
    fn tenant(&self, frozen: &FrozenOrder) -> Option<Arc<TenantApi>> {
        self.ctx.tenants.get(frozen.tenant_uid.as_deref()?)
    }

    /// Whether the claim, on a live read, still wants what this turn is about to do.
    async fn confirm(&self) -> Result<()> {
        if self.is_wanted().await? {
            return Ok(());
        }
        Err(Error::Busy(format!(
            "NodeClaim {} has changed meanwhile",
            self.claim.name_any()
        )))
    }

    async fn is_wanted(&self) -> Result<bool> {
        let now = live(self.ctx, &self.claim).await?;
        Ok(now.is_some_and(|now| {
            let status = now.status.unwrap_or_default();
            let before = self.claim.status.clone().unwrap_or_default();
            now.metadata.deletion_timestamp == self.claim.metadata.deletion_timestamp
                && status.machine == before.machine
                && status.order.map(|order| (order.digest, order.token))
                    == before.order.map(|order| (order.digest, order.token))
        }))
    }

    fn warn(&mut self, reason: &Reason) {
        self.warnings.push((reason.code.clone(), reason.text()));
    }
}

/// Claims that a change concerns.
fn named<T: 'static>(
    ctx: &Ctx,
    changes: impl Stream<Item = T> + Send + 'static,
    concerns: impl Fn(&T, &api::NodeClaim) -> bool + Send + 'static,
) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    let store = ctx.stores.claims.store();
    changes
        .flat_map(move |changed| {
            let mut claims = store.state();
            claims.retain(|claim| concerns(&changed, claim));
            stream::iter(claims).map(|claim| reflector::ObjectRef::from_obj(claim.as_ref()))
        })
        .boxed()
}

/// Claims whose machine has changed.
fn by_machine(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    named(ctx, crate::told(ctx.machines.changes()), |changed, claim| {
        let machine = claim.machine().and_then(|machine| machine.object.as_ref());
        machine.is_some_and(|machine| {
            changed
                .as_ref()
                .is_none_or(|changed| order::is_ref_to(machine, changed))
        })
    })
}

/// Claims whose enrollment has changed: it is reserved with its token, its node joined, or became ready. One that is made only to get
/// its token in the next write wakes nobody: the turn that makes it is not over.
fn by_enrollment(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    let store = ctx.stores.enrollments.store();
    let named = move |name: reflector::ObjectRef<api::Enrollment>| {
        let reserved = store.get(&name).filter(|found| {
            found
                .status
                .as_ref()
                .is_some_and(|status| status.token_id.is_some())
        });
        let claim = reserved.and_then(|found| found.spec.claim.clone());
        let namespace = name.namespace.unwrap_or_default();
        std::future::ready(claim.map(|claim| reflector::ObjectRef::new(&claim.name).within(&namespace)))
    };
    ctx.stores.enrollments.subscribe().filter_map(named).boxed()
}

/// Claims of a provider that has changed.
fn by_provider(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    named(ctx, ctx.stores.providers.restated(), |provider, claim| {
        claim.spec.provider_ref == provider.name
    })
}

/// Claims of a tenant that has changed: its pools may be others now.
fn by_tenant(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    named(ctx, ctx.stores.tenants.restated(), |tenant, claim| {
        claim.spec.vcluster_ref.as_ref() == Some(&tenant.name) && claim.meta().namespace == tenant.namespace
    })
}

/// Claims of a tenant whose API has come or gone, and those that were ordered for it.
fn by_tenant_api(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    named(ctx, crate::told(ctx.tenants.changes()), |changed, claim| {
        let Some(uid) = changed else { return true };
        let order = claim.status.as_ref().and_then(|status| status.order.as_ref());
        claim.labels().get(TENANT_UID) == Some(uid)
            || order.is_some_and(|order| order.tenant_uid.as_ref() == Some(uid))
    })
}

/// The claim whose node has changed.
fn by_node(ctx: &Ctx) -> BoxStream<'static, reflector::ObjectRef<api::NodeClaim>> {
    named(ctx, crate::told(ctx.nodes.changes()), |changed, claim| {
        let Some(changed) = changed else { return true };
        let node = claim.status.as_ref().and_then(|status| status.node_name.as_ref());
        node == Some(&changed.node) && claim.labels().get(TENANT_UID) == Some(&changed.tenant)
    })
}
