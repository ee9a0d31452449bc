//! Drives one VirtualClusterInstance: its place, its control plane, its pools; and back to nothing.
//!
//! observe: project, values, place → act: namespace, control plane, Secret, claims → report: conditions, pools.
//!
//! # Guarantees
//! The finalizer is on before anything is made. Values that cannot be read order nothing and leave every claim as it is. Nothing is read
//! or written in a namespace that is not marked with this tenant's uid. The control plane goes after the last claim.

pub(crate) mod lane;
pub(crate) mod nodes;
pub(crate) mod online;
mod place;
mod pools;
mod read;
mod release;
mod report;
mod secret;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use hostler_api as api;
use hostler_api::names;
use hostler_core::seams::Reason;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use read::ReadValues;

use crate::control_plane::{State, TenantApi};
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::retries::steadily;
use crate::watched::{self, Watched};
use crate::{judge, patch, turn};
use report::{Progress, Stage};

const NAME: &str = "tenant";
/// Wait for a control plane that is coming up: it tells nobody when it is there.
const COMING_UP: Duration = Duration::from_millis(500);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let stores = &ctx.stores;
    let claims = stores.claims.subscribe_to(pools::concern).map({
        let ctx = ctx.clone();
        // A deleted claim can no longer say whose it was.
        let mut owners: HashMap<ObjectRef<api::NodeClaim>, Option<String>> = HashMap::new();
        move |changed| {
            let namespace = changed.namespace.clone().unwrap_or_default();
            let owner = match ctx.stores.claims.store().get(&changed) {
                Some(claim) => {
                    let owner = claim.spec.vcluster_ref.clone();
                    owners.insert(changed, owner.clone());
                    owner
                }
                None => owners.remove(&changed).flatten(),
            };
            owner
                .map(|name| ObjectRef::new(&name).within(&namespace))
                .into_iter()
                .collect::<Vec<_>>()
        }
    });
    let projects = stores.projects.restated().map({
        let ctx = ctx.clone();
        move |changed| {
            let namespace = names::project_namespace(&changed.name);
            in_namespace(&ctx, &namespace)
                .iter()
                .map(|name| ObjectRef::new(name).within(&namespace))
                .collect::<Vec<_>>()
        }
    });
    let secrets = secret::watch(&ctx, &stop);
    secrets.ready().await;
    let by_secret = secrets.subscribe().filter_map({
        let ctx = ctx.clone();
        move |changed| {
            let namespace = changed.namespace.unwrap_or_default();
            std::future::ready(
                place::tenant_in(&ctx, &namespace).map(|tenant| vec![ObjectRef::from_obj(tenant.as_ref())]),
            )
        }
    });
    let by_api = ctx
        .control_planes
        .changes()
        .unwrap_or_else(|| stream::pending().boxed())
        .filter_map({
            let ctx = ctx.clone();
            move |uid| std::future::ready(of_uid(&ctx, &uid).map(|tenant| vec![tenant]))
        });
    let of_namespace = stores.namespaces.subscribe().map({
        let ctx = ctx.clone();
        move |changed| some(&ctx, |tenant| place::is_about(&ctx, &changed.name, tenant))
    });
    // Who was refused an endpoint may have it once the one who had it is gone, or has another.
    let of_endpoint = stores.tenants.restated().map({
        let ctx = ctx.clone();
        move |_| {
            some(&ctx, |tenant| {
                let status = tenant.status.as_ref();
                status.and_then(|status| status.reason.as_deref()) == Some(place::ENDPOINT_TAKEN)
            })
        }
    });
    // Machines that came free may be anybody's who wants more than there is.
    let by_free = pools::came_free(&ctx).map({
        let ctx = ctx.clone();
        move |()| some(&ctx, pools::is_short)
    });
    let by_name = stream::select_all([
        claims.boxed(),
        projects.boxed(),
        by_secret.boxed(),
        by_api.boxed(),
        of_namespace.boxed(),
        of_endpoint.boxed(),
        by_free.boxed(),
    ])
    .flat_map(stream::iter);
    Controller::for_stream(stream::pending(), stores.tenants.store())
        .with_config(kube::runtime::controller::Config::default().debounce(Duration::from_millis(20)))
        .reconcile_on(stores.tenants.subscribe())
        .reconcile_on(by_name.boxed())
        .reconcile_all_on(stores.providers.restated().map(drop))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            move |tenant: Arc<api::VirtualClusterInstance>, ctx: Arc<Ctx>| {
                let secrets = secrets.clone();
                async move {
                    let work = reconcile(tenant.clone(), ctx.clone(), secrets);
                    Box::pin(turn::of(&ctx, NAME, tenant.as_ref(), work)).await
                }
            },
            |tenant: Arc<api::VirtualClusterInstance>, error: &Error, ctx| {
                tracing::debug!(tenant = tenant.name_any(), error = %error, "tenant turn failed");
                ctx.retries
                    .after(NAME, &tenant.uid().unwrap_or_default(), error.class())
            },
            ctx.clone(),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Those tenants.
fn some(
    ctx: &Ctx,
    which: impl Fn(&api::VirtualClusterInstance) -> bool,
) -> Vec<ObjectRef<api::VirtualClusterInstance>> {
    let mut tenants = ctx.stores.tenants.state();
    tenants.retain(|tenant| which(tenant));
    tenants
        .iter()
        .map(|tenant| ObjectRef::from_obj(tenant.as_ref()))
        .collect()
}

/// Names of the tenants in a project's namespace.
fn in_namespace(ctx: &Ctx, namespace: &str) -> Vec<String> {
    let tenants = ctx.stores.tenants.state();
    tenants
        .iter()
        .filter(|one| one.meta().namespace.as_deref() == Some(namespace))
        .map(|one| one.name_any())
        .collect()
}

fn of_uid(ctx: &Ctx, uid: &str) -> Option<ObjectRef<api::VirtualClusterInstance>> {
    let tenants = ctx.stores.tenants.state();
    let found = tenants
        .iter()
        .find(|one| one.meta().uid.as_deref() == Some(uid))?;
    Some(ObjectRef::from_obj(found.as_ref()))
}

async fn reconcile(
    tenant: Arc<api::VirtualClusterInstance>,
    ctx: Arc<Ctx>,
    secrets: Watched<Secret>,
) -> Result<Action> {
    let namespace = tenant.namespace().unwrap_or_default();
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(ctx.client.clone(), &namespace);
    if ctx.stores.tenants.is_behind(&tenant) {
        return Ok(Action::requeue(watched::BEHIND));
    }
    if tenant.meta().deletion_timestamp.is_some() {
        return release::turn(&ctx, &tenants, &tenant).await;
    }
    if !tenant
        .finalizers()
        .iter()
        .any(|one| one == names::TENANT_FINALIZER)
    {
        let mut finalizers = tenant.finalizers().to_vec();
        finalizers.push(names::TENANT_FINALIZER.to_owned());
        let version = tenant.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        let kept = patch::update(&tenants, &tenant.name_any(), &version, change).await?;
        ctx.stores.tenants.wrote(&kept);
        return Ok(Action::await_change());
    }
    let mut progress = Progress::default();
    let driven = drive(&ctx, &tenants, &tenant, &secrets, &mut progress).await;
    if driven.is_err() || !matches!(progress.stage, Stage::New) {
        ctx.tenants.look(&tenant.uid().unwrap_or_default());
    }
    // Also when the turn failed: what was reached is told.
    let reported = report::write(&ctx, &tenants, &tenant, &progress).await;
    let action = driven?;
    reported?;
    ctx.retries.reset(NAME, &tenant.uid().unwrap_or_default());
    Ok(action)
}

async fn drive(
    ctx: &Arc<Ctx>,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    secrets: &Watched<Secret>,
    progress: &mut Progress,
) -> Result<Action> {
    let namespace = tenant.namespace().unwrap_or_default();
    let steady = steadily(ctx.settings.steady);
    let Some(project) = judge::project_of(ctx, &namespace) else {
        let reason = Reason::new(
            "ProjectNotRead",
            format!("no Project of namespace {namespace} was read"),
        )
        .remedy("create the Project, or move the tenant into the namespace p-<project>");
        progress.stage = Stage::Refused(reason);
        return Ok(steady);
    };
    let values = ctx.values.of(tenant);
    let values = values.as_ref().as_ref();
    let endpoint = match values {
        Ok(values) => values.endpoint.clone(),
        // What was agreed before the values broke: live machines go on.
        Err(_) => tenant
            .status
            .as_ref()
            .and_then(|status| place::endpoint_of(status.join_address.as_deref()?)),
    };
    let wanted = match place::find(ctx, tenant, &project, endpoint) {
        Ok(place) => place,
        Err(reason) => {
            progress.stage = Stage::Refused(reason);
            return Ok(steady);
        }
    };
    progress.unserved = values.ok().map(|values| values.private_nodes.unserved.clone());
    let broken = values.err();
    if let Some(reason) = broken
        && !place::is_held(ctx, &wanted)
    {
        // Nothing exists yet, and nothing is made.
        progress.stage = Stage::Refused(reason.clone());
        return Ok(steady);
    }
    if let Err(reason) = place::hold(ctx, tenant, &wanted).await? {
        progress.stage = Stage::Refused(reason);
        return Ok(steady);
    }
    let online = match ctx.control_planes.ensure(&wanted).await {
        Err(reason) => {
            progress.stage = Stage::Refused(reason);
            return Ok(Action::requeue(ctx.settings.capacity_retry));
        }
        Ok(State::Online(online)) => online,
        Ok(other) => {
            // What was there before is not used any more.
            ctx.tenants.remove(&wanted.uid);
            progress.stage = match other {
                State::Pending(reason) => Stage::Pending(reason),
                State::Silent(reason) => Stage::Deployed(reason),
                State::Unusable(reason) => Stage::Unusable(reason),
                State::Unknown | State::Online(_) => Stage::New,
            };
            let told = ctx.control_planes.changes().is_some();
            return Ok(Action::requeue(if told {
                ctx.settings.capacity_retry
            } else {
                COMING_UP
            }));
        }
    };
    progress.stage = Stage::Online;
    progress.join_address = Some(online.join_server.clone());
    put_online(ctx, &wanted.uid, &online);
    if let Some(kubeconfig) = &online.kubeconfig {
        secret::ensure(ctx, secrets, &wanted, kubeconfig).await?;
    }
    progress.stage = Stage::Ready;
    if annotate(ctx, tenants, tenant, project.spec.default_node_profile.as_deref()).await? {
        // Its own event brings the next turn, with the newer object.
        return Ok(Action::await_change());
    }
    let pools = match values {
        Ok(values) => &values.private_nodes.pools,
        Err(reason) => {
            progress.broken = Some(reason.clone());
            return Ok(steady);
        }
    };
    let again = pools::turn(ctx, tenants, tenant, pools, progress).await?;
    Ok(again.map_or(steady, Action::requeue))
}

fn put_online(ctx: &Ctx, uid: &str, online: &TenantApi) {
    let known = ctx.tenants.get(uid);
    let same = known.is_some_and(|known| {
        known.join_server == online.join_server
            && known.ca_pem == online.ca_pem
            && known.kubeconfig == online.kubeconfig
            && known.doubt.as_ref().map(Arc::as_ptr) == online.doubt.as_ref().map(Arc::as_ptr)
    });
    if !same {
        let client = ctx.of_tenant(&lane::narrow(&online.client, online.doubt.clone()));
        ctx.tenants.insert(
            uid,
            Arc::new(TenantApi {
                client,
                ..online.clone()
            }),
        );
    }
}

/// Shows the project's default profile on the tenant. True when the tenant was written.
async fn annotate(
    ctx: &Ctx,
    tenants: &Api<api::VirtualClusterInstance>,
    tenant: &api::VirtualClusterInstance,
    default: Option<&str>,
) -> Result<bool> {
    let default = default.filter(|name| !name.is_empty());
    if tenant
        .annotations()
        .get(names::PROJECT_DEFAULT_PROFILE)
        .map(String::as_str)
        == default
    {
        return Ok(false);
    }
    let change = json!({ "metadata": { "annotations": { names::PROJECT_DEFAULT_PROFILE: default } } });
    let version = tenant.resource_version().unwrap_or_default();
    let annotated = patch::update(tenants, &tenant.name_any(), &version, change).await?;
    ctx.stores.tenants.wrote(&annotated);
    Ok(true)
}
