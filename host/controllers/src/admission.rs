//! Accepts claims or says why not. The scheduler places only what was accepted for its present generation.
//!
//! observe: everything that the claim names → judge: `core::admission`, resolver, policies → report: `status.profile`, `Accepted`.
//!
//! # Guarantees
//! The finalizer is on the claim before it can be accepted. A claim that holds a machine is not judged here any more.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hostler_api as api;
use hostler_api::claim::ProfileChoice;
use hostler_api::conditions::{self, ACCEPTED, Fact, phase};
use hostler_api::names;
use hostler_core::admission::{self, Seen, Usage};
use hostler_core::properties;
use hostler_core::seams::Reason;
use hostler_core::verdict;
use kube::api::ListParams;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::judge::{self, Admission, Node};
use crate::retries::steadily;
use crate::watched;
use crate::{patch, turn};

pub(crate) const NAME: &str = "admission";

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let stores = &ctx.stores;
    let by_name = stream::select_all([
        // A claim that lost its machine is judged anew, should it have changed since it was accepted.
        stores
            .claims
            .subscribe_to(|claim| Some((watched::stated(claim), claim.machine().is_some()))),
        woken(&ctx, stores.projects.restated(), |project, claim| {
            claim.meta().namespace.as_deref().and_then(names::project_of) == Some(&project.name)
        }),
        woken(&ctx, stores.tenants.restated(), |tenant, claim| {
            claim.spec.vcluster_ref.as_ref() == Some(&tenant.name)
                && claim.meta().namespace == tenant.namespace
        }),
        woken(&ctx, stores.providers.restated(), |provider, claim| {
            claim.spec.provider_ref == provider.name
        }),
        woken(&ctx, stores.node_types.restated(), |changed, claim| {
            claim.type_ref() == Some(&changed.name)
        }),
        woken(&ctx, freed(&ctx), |gone, claim| {
            claim.meta().namespace == gone.namespace && !admission::counts(claim)
        }),
    ]);
    let anything = stream::select_all([
        stores.profiles.restated().map(drop).boxed(),
        stores.images.restated().map(drop).boxed(),
        stores.ssh_keys.restated().map(drop).boxed(),
        stores.environments.restated().map(drop).boxed(),
        crate::plugins_changed(ctx.plugins.clone(), stop.clone()),
    ]);
    // Quotas are counted one claim after the other: two that are judged side by side would both be the last one that fits.
    let counting = Arc::new(Mutex::new(()));
    Controller::for_stream(stream::pending(), stores.claims.store())
        .reconcile_on(by_name)
        .reconcile_all_on(anything)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            move |claim: Arc<api::NodeClaim>, ctx: Arc<Ctx>| {
                let counting = counting.clone();
                async move {
                    let work = reconcile(claim.clone(), ctx.clone(), counting);
                    Box::pin(turn::of(&ctx, NAME, claim.as_ref(), work)).await
                }
            },
            |claim: Arc<api::NodeClaim>, error: &Error, ctx| {
                tracing::debug!(claim = claim.name_any(), error = %error, "admission turn failed");
                ctx.retries
                    .after(NAME, &claim.uid().unwrap_or_default(), error.class())
            },
            ctx.clone(),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Claims without a machine that a change concerns.
fn woken<K>(
    ctx: &Arc<Ctx>,
    changes: BoxStream<'static, ObjectRef<K>>,
    concerns: impl Fn(&ObjectRef<K>, &api::NodeClaim) -> bool + Send + 'static,
) -> BoxStream<'static, ObjectRef<api::NodeClaim>>
where
    K: Resource<DynamicType = ()> + 'static,
{
    let claims = ctx.stores.claims.store();
    changes
        .flat_map(move |changed| {
            let mut named = claims.state();
            named.retain(|claim| claim.machine().is_none() && concerns(&changed, claim));
            stream::iter(named).map(|claim| ObjectRef::from_obj(claim.as_ref()))
        })
        .boxed()
}

/// Claims that no longer count against any quota: there may be room for one that was refused.
fn freed(ctx: &Ctx) -> BoxStream<'static, ObjectRef<api::NodeClaim>> {
    let store = ctx.stores.claims.store();
    let counts = |claim: &api::NodeClaim| admission::counts(claim).then_some(());
    ctx.stores
        .claims
        .subscribe_to(counts)
        .filter(move |changed| {
            let goes_on = store.get(changed).is_some_and(|claim| admission::counts(&claim));
            std::future::ready(!goes_on)
        })
        .boxed()
}

async fn reconcile(claim: Arc<api::NodeClaim>, ctx: Arc<Ctx>, counting: Arc<Mutex<()>>) -> Result<Action> {
    if claim.meta().deletion_timestamp.is_some() || claim.machine().is_some() {
        ctx.retries.reset(NAME, &claim.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    if ctx.stores.claims.is_behind(&claim) {
        return Ok(Action::requeue(watched::BEHIND));
    }
    let namespace = claim.namespace().unwrap_or_default();
    let claims: Api<api::NodeClaim> = Api::namespaced(ctx.client.clone(), &namespace);
    let tenant = judge::tenant_of(&ctx, &claim);
    if mark(&ctx, &claims, &claim, tenant.as_deref()).await? {
        return Ok(Action::await_change());
    }
    let project =
        judge::project_of(&ctx, &namespace).filter(|project| project.meta().deletion_timestamp.is_none());
    let counted = project
        .as_ref()
        .is_some_and(|project| project.spec.quotas.is_some());
    let _alone = if counted {
        Some(counting.lock().await)
    } else {
        None
    };
    let admission = decide(
        &ctx,
        &claims,
        &claim,
        project.as_deref(),
        tenant.as_deref(),
        counted,
    )
    .await?;
    report(&ctx, &claims, &claim, &admission).await?;
    ctx.retries.reset(NAME, &claim.uid().unwrap_or_default());
    Ok(admission
        .valid_for
        .map_or_else(|| steadily(ctx.settings.steady), Action::requeue))
}

/// Puts on what every claim carries: the finalizer, and whose it is. True when something was written.
async fn mark(
    ctx: &Ctx,
    claims: &Api<api::NodeClaim>,
    claim: &api::NodeClaim,
    tenant: Option<&api::VirtualClusterInstance>,
) -> Result<bool> {
    let mut metadata = json!({});
    if !claim.finalizers().iter().any(|one| one == names::CLAIM_FINALIZER) {
        let mut finalizers = claim.finalizers().to_vec();
        finalizers.push(names::CLAIM_FINALIZER.to_owned());
        metadata["finalizers"] = json!(finalizers);
    }
    if let Some(uid) = tenant
        .and_then(ResourceExt::uid)
        .filter(|_| !claim.labels().contains_key(names::TENANT_UID))
    {
        metadata["labels"] = json!({ names::TENANT_UID: uid });
    }
    if metadata.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(false);
    }
    let version = claim.resource_version().unwrap_or_default();
    let change = json!({ "metadata": metadata });
    let marked = patch::update(claims, &claim.name_any(), &version, change).await?;
    ctx.stores.claims.wrote(&marked);
    Ok(true)
}

async fn decide(
    ctx: &Ctx,
    claims: &Api<api::NodeClaim>,
    claim: &api::NodeClaim,
    project: Option<&api::Project>,
    tenant: Option<&api::VirtualClusterInstance>,
    counted: bool,
) -> Result<Admission> {
    let stores = &ctx.stores;
    let namespace = claim.namespace();
    let values = tenant.map(|tenant| ctx.values.of(tenant));
    let private = values
        .as_ref()
        .and_then(|values| values.as_ref().as_ref().ok())
        .map(|values| &values.private_nodes);
    let provider = stores.providers.get(None, &claim.spec.provider_ref);
    let node_type = claim
        .type_ref()
        .and_then(|name| stores.node_types.get(None, name));
    let image = claim.spec.properties.get(names::PROPERTY_OS_IMAGE);
    let keys = claim
        .spec
        .properties
        .get(names::PROPERTY_SSH_KEYS)
        .map(String::as_str)
        .unwrap_or_default();
    let missing: Vec<String> = properties::values(keys)
        .filter(|name| stores.ssh_keys.get(None, name).is_none())
        .map(ToOwned::to_owned)
        .collect();
    let environment =
        admission::environment(claim).and_then(|name| stores.environments.get(namespace.as_deref(), name));
    let seen = Seen {
        project,
        tenant,
        private_nodes: private.map(|private| private.enabled),
        provider: provider
            .as_deref()
            .filter(|provider| provider.meta().deletion_timestamp.is_none()),
        node_type: node_type.as_deref(),
        os_image: image.is_none_or(|name| stores.images.get(None, name).is_some()),
        missing_ssh_keys: &missing,
        environment: environment.as_deref(),
    };
    let refused = |reasons: &[Reason]| {
        let code = reasons.first().map_or("Refused", |reason| reason.code.as_str());
        Admission {
            profile: ProfileChoice::default(),
            verdict: Err(Reason::new(code, verdict::text(reasons))),
            valid_for: None,
        }
    };
    if let Err(reasons) = admission::check(claim, &seen) {
        return Ok(refused(&reasons));
    }
    let (Some(project), Some(tenant)) = (project, tenant) else {
        return Ok(refused(&[]));
    };
    let usage = if counted {
        let doing = format!("listing claims beside {}", claim.name_any());
        let live = patch::within(doing, claims.list(&ListParams::default())).await?;
        Usage::beside(claim, live.items.iter())
    } else {
        Usage::beside(claim, stores.claims.state().iter().map(AsRef::as_ref))
    };
    let node = Node {
        tenant,
        project,
        claim: Some(claim),
        enrollment: None,
        tenant_default: private.and_then(|private| private.default_profile.as_deref()),
    };
    Ok(judge::admit(ctx, &node, claim, &usage).await)
}

async fn report(
    ctx: &Ctx,
    claims: &Api<api::NodeClaim>,
    claim: &api::NodeClaim,
    admission: &Admission,
) -> Result<()> {
    let mut next = claim.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    let told = conditions::find(&before.conditions, ACCEPTED).and_then(|known| known.reason.clone());
    let text;
    let fact = match &admission.verdict {
        Ok(warnings) => {
            text = verdict::text(warnings);
            Fact::yes(ACCEPTED, ACCEPTED, &text)
        }
        Err(reason) => {
            text = reason.text();
            Fact::no(ACCEPTED, &reason.code, &text)
        }
    };
    conditions::set(
        &mut status.conditions,
        &fact,
        claim.meta().generation,
        ctx.clock.now(),
    );
    status.profile = Some(admission.profile.clone());
    if status.phase.as_deref() != Some(phase::FAILED) {
        match &admission.verdict {
            Err(reason) => {
                status.phase = Some(phase::PENDING.to_owned());
                status.reason = Some(reason.code.clone());
                status.message = Some(text.clone());
            }
            Ok(_) if told.as_deref() != Some(ACCEPTED) => {
                status.phase = Some(phase::PENDING.to_owned());
                status.reason = Some(ACCEPTED.to_owned());
                status.message = Some("waits for a machine".to_owned());
            }
            Ok(_) => {}
        }
    }
    if *status == before {
        return Ok(());
    }
    ctx.stores
        .claims
        .wrote(&patch::replace_status(claims, &next).await?);
    if told.as_deref() == Some(fact.reason) {
        return Ok(());
    }
    match &admission.verdict {
        Ok(_) => {
            ctx.events
                .normal(claim, ACCEPTED, "Judging", "the claim may have a machine")
                .await;
        }
        Err(reason) => ctx.events.warning(claim, &reason.code, "Judging", &text).await,
    }
    Ok(())
}
