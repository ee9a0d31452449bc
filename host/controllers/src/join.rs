//! Signs off what may join a tenant, denies the rest, and takes used tokens away.
//!
//! # Guarantees
//! The use of a token is written to its Enrollment, against its resourceVersion, before the request is approved: of two requests with one
//! token at most one gets a certificate. Nothing is denied on the word of a cache that may be behind: records and claims are read anew first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use hostler_api as api;
use hostler_api::conditions::{self, Fact};
use hostler_api::names;
use hostler_core::join::{self, Decision};
use hostler_core::seams::Reason;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::control_plane::TenantApi;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::tenant::lane::MOST;
use crate::tenant::online;
use crate::watched::Watched;
use crate::{patch, turn};

const NAME: &str = "join";
/// Namespace of bootstrap tokens, in a tenant.
const TOKENS: &str = "kube-system";
/// Wait before a used token that could not be taken away is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    online::each(ctx, stop, |ctx, tenant, stop| {
        let shared = Arc::new(Shared { ctx, tenant });
        async move {
            tokio::join!(requests(shared.clone(), stop.clone()), used_tokens(shared, stop));
        }
        .boxed()
    })
    .await;
}

/// What the turns of one tenant share.
struct Shared {
    ctx: Arc<Ctx>,
    tenant: Arc<TenantApi>,
}

async fn requests(shared: Arc<Shared>, stop: CancellationToken) {
    let api: Api<CertificateSigningRequest> = Api::all(shared.tenant.client.clone());
    let kubelets = watcher::Config::default().fields(&format!("spec.signerName={}", join::SIGNER));
    let requests = Watched::start_at_most(MOST, api, kubelets, (), stop.clone());
    Controller::for_stream(stream::pending(), requests.store())
        .reconcile_on(requests.subscribe())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            |request: Arc<CertificateSigningRequest>, shared: Arc<Shared>| async move {
                let work = reconcile(request.clone(), shared.clone());
                Box::pin(turn::of(&shared.ctx, NAME, request.as_ref(), work)).await
            },
            |request: Arc<CertificateSigningRequest>, error: &Error, shared: Arc<Shared>| {
                tracing::debug!(request = request.name_any(), error = %error, "join turn failed");
                shared
                    .ctx
                    .retries
                    .after(NAME, &request.uid().unwrap_or_default(), error.class())
            },
            shared,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(request: Arc<CertificateSigningRequest>, shared: Arc<Shared>) -> Result<Action> {
    let ctx = &shared.ctx;
    if join::judge(&request, &[]) == Decision::Ignore {
        return Ok(Action::await_change());
    }
    let Some(namespace) = namespace_of(ctx, &shared.tenant.uid) else {
        return Ok(Action::await_change());
    };
    let mut records = named(ctx, &namespace, &shared.tenant.uid, &request).await?;
    if matches!(join::judge(&request, &refs(&records)), Decision::Deny { .. }) {
        records = all_living(ctx, &namespace, &shared.tenant.uid).await?;
    }
    let seen = refs(&records);
    let all: Api<api::Enrollment> = Api::namespaced(ctx.client.clone(), &namespace);
    let requests: Api<CertificateSigningRequest> = Api::all(shared.tenant.client.clone());
    let called = |name: &str| records.iter().find(|record| record.name_any() == name);
    match join::judge(&request, &seen) {
        Decision::Ignore => {}
        Decision::Join { enrollment } => {
            let record = called(&enrollment).ok_or_else(|| Error::Bug(format!("no record {enrollment}")))?;
            note(ctx, &all, record, &request).await?;
            patch::decide(
                &requests,
                &request,
                "Approved",
                "ReservedNode",
                "the token's claim reserved this name",
            )
            .await?;
            tracing::info!(node = record.spec.node_name, "a node may join");
        }
        Decision::Renew { .. } => {
            patch::decide(
                &requests,
                &request,
                "Approved",
                "OwnNode",
                "the node renews its own certificate",
            )
            .await?;
        }
        Decision::Deny {
            reason,
            token,
            enrollment,
        } => {
            patch::decide(&requests, &request, "Denied", &reason.code, &reason.text()).await?;
            if let Some(token) = token {
                take_token(&shared, &token).await?;
            }
            tracing::warn!(
                request = request.name_any(),
                code = reason.code,
                "a request to join was denied"
            );
            if let Some(record) = enrollment.as_deref().and_then(called) {
                tell(ctx, &all, record, &reason).await;
            }
        }
    }
    ctx.retries.reset(NAME, &request.uid().unwrap_or_default());
    Ok(Action::await_change())
}

fn namespace_of(ctx: &Ctx, tenant: &str) -> Option<String> {
    let tenants = ctx.stores.tenants.state();
    let owner = tenants
        .iter()
        .find(|one| one.meta().uid.as_deref() == Some(tenant))?;
    owner.namespace()
}

fn refs(records: &[api::Enrollment]) -> Vec<&api::Enrollment> {
    records.iter().collect()
}

/// The record that a request is good for as far as the cache knows, read anew, if it lives.
async fn named(
    ctx: &Ctx,
    namespace: &str,
    tenant: &str,
    request: &CertificateSigningRequest,
) -> Result<Vec<api::Enrollment>> {
    let mut known = ctx.stores.enrollments.state();
    known.retain(|record| record.spec.tenant.uid == tenant);
    let known: Vec<&api::Enrollment> = known.iter().map(AsRef::as_ref).collect();
    let (Decision::Join { enrollment } | Decision::Renew { enrollment }) = join::judge(request, &known)
    else {
        return Ok(Vec::new());
    };
    let records: Api<api::Enrollment> = Api::namespaced(ctx.client.clone(), namespace);
    let found = patch::within(
        format!("reading Enrollment {enrollment}"),
        records.get_opt(&enrollment),
    )
    .await?;
    let mut claims = Vec::new();
    if let Some(claim) = found.as_ref().and_then(|record| record.spec.claim.as_ref()) {
        let all: Api<api::NodeClaim> = Api::namespaced(ctx.client.clone(), namespace);
        let doing = format!("reading NodeClaim {}", claim.name);
        claims.extend(patch::within(doing, all.get_opt(&claim.name)).await?);
    }
    Ok(living(tenant, found.into_iter().collect(), &claims))
}

/// The records of a tenant's nodes that may join, all read anew.
async fn all_living(ctx: &Ctx, namespace: &str, tenant: &str) -> Result<Vec<api::Enrollment>> {
    let records: Api<api::Enrollment> = Api::namespaced(ctx.client.clone(), namespace);
    let claims: Api<api::NodeClaim> = Api::namespaced(ctx.client.clone(), namespace);
    let everything = ListParams::default();
    let (records, claims) = tokio::try_join!(
        patch::within(
            format!("listing records in {namespace}"),
            records.list(&everything)
        ),
        patch::within(format!("listing claims in {namespace}"), claims.list(&everything)),
    )?;
    Ok(living(tenant, records.items, &claims.items))
}

/// Those whose own and whose claim's deletion has not begun.
fn living(tenant: &str, records: Vec<api::Enrollment>, claims: &[api::NodeClaim]) -> Vec<api::Enrollment> {
    let lives = |named: &api::enrollment::NamedUid| {
        claims.iter().any(|claim| {
            claim.uid().as_ref() == Some(&named.uid) && claim.meta().deletion_timestamp.is_none()
        })
    };
    records
        .into_iter()
        .filter(|record| record.spec.tenant.uid == tenant && record.meta().deletion_timestamp.is_none())
        .filter(|record| record.spec.claim.as_ref().is_none_or(lives))
        .collect()
}

/// Writes down which request uses the token, before it is approved.
async fn note(
    ctx: &Ctx,
    all: &Api<api::Enrollment>,
    record: &api::Enrollment,
    request: &CertificateSigningRequest,
) -> Result<()> {
    let mut next = record.clone();
    let status = next.status.get_or_insert_default();
    if status.approved_request.as_ref() == request.meta().uid.as_ref() {
        return Ok(());
    }
    status.approved_request.clone_from(&request.meta().uid);
    conditions::set(
        &mut status.conditions,
        &Fact::yes("Enrolled", "Approved", ""),
        None,
        ctx.clock.now(),
    );
    ctx.stores
        .enrollments
        .wrote(&patch::replace_status(all, &next).await?);
    Ok(())
}

/// Says on the record, and on the claim, that somebody tried to join with its token.
async fn tell(ctx: &Ctx, all: &Api<api::Enrollment>, record: &api::Enrollment, reason: &Reason) {
    let text = reason.text();
    let joined = record
        .status
        .as_ref()
        .is_some_and(|status| status.node_uid.is_some());
    if !joined {
        let mut next = record.clone();
        let status = next.status.get_or_insert_default();
        conditions::set(
            &mut status.conditions,
            &Fact::no("Enrolled", &reason.code, &text),
            None,
            ctx.clock.now(),
        );
        if let Err(error) = patch::replace_status(all, &next).await {
            tracing::debug!(error = %error, "the denial is not on the record");
        }
    }
    let claim = record.spec.claim.as_ref().and_then(|named| {
        let found = ctx
            .stores
            .claims
            .get(record.namespace().as_deref(), &named.name)?;
        (found.uid().as_ref() == Some(&named.uid)).then_some(found)
    });
    match claim {
        Some(claim) => {
            ctx.events
                .warning(claim.as_ref(), &reason.code, "Joining", &text)
                .await;
        }
        None => ctx.events.warning(record, &reason.code, "Joining", &text).await,
    }
}

/// Deletes a token of the host's own; one that the tenant made by hand is the tenant's.
async fn take_token(shared: &Shared, id: &str) -> Result<()> {
    // The id comes from a user name; as a part of an object's name it must be one.
    if id.len() != 6
        || !id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    {
        return Ok(());
    }
    let secrets: Api<Secret> = Api::namespaced(shared.tenant.client.clone(), TOKENS);
    let name = format!("bootstrap-token-{id}");
    let found = patch::within(format!("reading Secret {name}"), secrets.get_opt(&name)).await?;
    if let Some(secret) = found.filter(|secret| secret.labels().contains_key(names::TOKEN)) {
        patch::delete(&secrets, &name, &secret.uid().unwrap_or_default()).await?;
    }
    Ok(())
}

/// Takes away the token of each node that has joined.
async fn used_tokens(shared: Arc<Shared>, stop: CancellationToken) {
    let tenant = shared.tenant.uid.clone();
    let used = move |record: &api::Enrollment| {
        let status = record.status.as_ref()?;
        let joined = record.spec.tenant.uid == tenant && status.node_uid.is_some();
        status.token_id.clone().filter(|_| joined)
    };
    let mut changes = shared.ctx.stores.enrollments.subscribe_to(used.clone());
    // Tokens that could not be taken yet, by Enrollment.
    let mut left: HashMap<ObjectRef<api::Enrollment>, String> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN), if !left.is_empty() => {}
            changed = changes.next() => {
                let Some(changed) = changed else { return };
                let record = shared.ctx.stores.enrollments.store().get(&changed);
                match record.and_then(|record| used(&record)) {
                    Some(token) => left.insert(changed, token),
                    None => left.remove(&changed),
                };
            }
        }
        let mut still = HashMap::new();
        for (record, token) in left {
            if let Err(error) = take_token(&shared, &token).await {
                // It is used up in any case.
                tracing::debug!(error = %error, "a used token is still there");
                still.insert(record, token);
            }
        }
        left = still;
    }
}
