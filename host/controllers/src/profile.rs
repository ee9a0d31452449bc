//! Keeps every node of every tenant as its profile says, and each profile's own status.
//!
//! observe: Node, Enrollment, claim, what resolves → next (`core::profile`) → act: record the intent, patch the Node, record the
//! outcome → report: events, conditions.
//!
//! # Guarantees
//! A Node is written by one patch that carries its resourceVersion, so another's taint is never lost. What somebody had changed is told,
//! and counted against contest, only after that patch went through: a cache that is behind accuses nobody.

mod node;
mod status;

use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use hostler_api as api;
use hostler_api::names;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::Controller;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::control_plane::TenantApi;
use crate::ctx::Ctx;
use crate::error::Error;
use crate::tenant::lane::MOST;
use crate::tenant::online;
use crate::turn;
use crate::watched::{self, Watched};

const NAME: &str = "profile";

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let nodes = online::each(ctx.clone(), stop.clone(), |ctx, tenant, stop| {
        tenant_nodes(ctx, tenant, stop).boxed()
    });
    tokio::join!(nodes, status::run(ctx, stop));
}

/// Everything that the turns of one tenant share.
struct Tenant {
    ctx: Arc<Ctx>,
    api: Arc<TenantApi>,
    nodes: Watched<Node>,
    contests: node::Contests,
}

async fn tenant_nodes(ctx: Arc<Ctx>, api: Arc<TenantApi>, stop: CancellationToken) {
    let nodes: Watched<Node> = Watched::start_at_most(
        MOST,
        Api::all(api.client.clone()),
        watcher::Config::default(),
        (),
        stop.clone(),
    );
    nodes.ready().await;
    let uid = api.uid.clone();
    let enrolled = ctx.stores.enrollments.subscribe().filter_map({
        let ctx = ctx.clone();
        move |changed| {
            let enrollment = ctx.stores.enrollments.store().get(&changed);
            let ours = enrollment.filter(|enrollment| enrollment.spec.tenant.uid == uid);
            std::future::ready(ours.map(|enrollment| ObjectRef::new(&enrollment.spec.node_name)))
        }
    });
    let stores = &ctx.stores;
    // What a claim says of its node holds for as long as the node lives.
    let own = api.uid.clone();
    let claims = stores.claims.store();
    let claimed = stores
        .claims
        .subscribe_to(move |claim| {
            let ours = claim.labels().get(names::TENANT_UID) == Some(&own);
            ours.then(|| (watched::stated(claim), node_of(claim)))
        })
        .filter_map(move |changed| {
            let node = claims.get(&changed).and_then(|claim| node_of(&claim));
            std::future::ready(node.map(|node| ObjectRef::new(&node)))
        });
    let own = api.uid.clone();
    let tenants = stores.tenants.subscribe_to(move |tenant| {
        let ours = tenant.meta().uid.as_ref() == Some(&own);
        ours.then(|| watched::stated(tenant))
    });
    let anything = stream::select_all([
        stores.profiles.restated().map(drop).boxed(),
        stores.projects.restated().map(drop).boxed(),
        tenants.map(drop).boxed(),
        crate::plugins_changed(ctx.plugins.clone(), stop.clone()),
    ]);
    let tenant = Arc::new(Tenant {
        ctx: ctx.clone(),
        api,
        nodes: nodes.clone(),
        contests: node::Contests::default(),
    });
    let uid = tenant.api.uid.clone();
    let turns = Controller::for_stream(stream::pending(), nodes.store())
        .reconcile_on(nodes.subscribe())
        .reconcile_on(enrolled.boxed())
        .reconcile_on(claimed.boxed())
        .reconcile_all_on(anything)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            |node: Arc<Node>, tenant: Arc<Tenant>| async move {
                let work = node::reconcile(node.clone(), tenant.clone());
                Box::pin(turn::of(&tenant.ctx, NAME, node.as_ref(), work)).await
            },
            |node: Arc<Node>, error: &Error, tenant: Arc<Tenant>| {
                tracing::debug!(node = node.name_any(), error = %error, "profile turn failed");
                tenant
                    .ctx
                    .retries
                    .after(NAME, &node.uid().unwrap_or_default(), error.class())
            },
            tenant,
        )
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = turns => {}
        // Ends only with the watch.
        () = ctx.nodes.show(&uid, &nodes) => {}
    }
}

fn node_of(claim: &api::NodeClaim) -> Option<String> {
    claim.status.as_ref()?.node_name.clone()
}

/// The record of a node of this tenant.
fn enrollment(ctx: &Ctx, tenant_uid: &str, node: &str) -> Option<Arc<api::Enrollment>> {
    let tenant = tenant(ctx, tenant_uid)?;
    let name = format!("{}.{node}", tenant.name_any());
    ctx.stores
        .enrollments
        .get(tenant.namespace().as_deref(), &name)
        .filter(|found| found.spec.tenant.uid == tenant_uid && found.spec.node_name == node)
}

fn tenant(ctx: &Ctx, uid: &str) -> Option<Arc<api::VirtualClusterInstance>> {
    ctx.stores
        .tenants
        .state()
        .into_iter()
        .find(|tenant| tenant.meta().uid.as_deref() == Some(uid))
}
