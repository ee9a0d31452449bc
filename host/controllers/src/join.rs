//! Signs off what may join a tenant, denies the rest, and takes used tokens away.
//!
//! # Guarantees
//! The use of a token is written to its Enrollment, against its resourceVersion, before the request is approved: of two requests with one
//! token at most one gets a certificate. Nothing is denied on the word of a cache that may be behind: records and claims are read anew first.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

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

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    online::each(ctx, stop, |ctx, tenant, stop| {
        let shared = Arc::new(Shared {
            ctx,
            tenant,
            cleaned: Mutex::default(),
        });
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
    /// uids of Enrollments whose token is gone.
    cleaned: Mutex<HashSet<String>>,
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
    let Some((namespace, records)) = live(ctx, &shared.tenant.uid).await? else {
        return Ok(Action::await_change());
    };
    let seen: Vec<&api::Enrollment> = records.iter().collect();
    let all: Api<api::Enrollment> = Api::namespaced(ctx.client.clone(), &namespace);
    let requests: Api<CertificateSigningRequest> = Api::all(shared.tenant.client.clone());
    let named = |name: &str| records.iter().find(|record| record.name_any() == name);
    match join::judge(&request, &seen) {
        Decision::Ignore => {}
        Decision::Join { enrollment } => {
            let record = named(&enrollment).ok_or_else(|| Error::Bug(format!("no record {enrollment}")))?;
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
            if let Some(record) = enrollment.as_deref().and_then(named) {
                tell(ctx, &all, record, &reason).await;
            }
        }
    }
    ctx.retries.reset(NAME, &request.uid().unwrap_or_default());
    Ok(Action::await_change())
}

/// The tenant's namespace and the records of nodes that may join: theirs and their claims' deletion has not begun. Read anew.
async fn live(ctx: &Ctx, tenant: &str) -> Result<Option<(String, Vec<api::Enrollment>)>> {
    let tenants = ctx.stores.tenants.state();
    let Some(owner) = tenants.iter().find(|one| one.uid().as_deref() == Some(tenant)) else {
        return Ok(None);
    };
    let namespace = owner.namespace().unwrap_or_default();
    let records: Api<api::Enrollment> = Api::namespaced(ctx.client.clone(), &namespace);
    let claims: Api<api::NodeClaim> = Api::namespaced(ctx.client.clone(), &namespace);
    let everything = ListParams::default();
    let (records, claims) = tokio::try_join!(
        patch::within(
            format!("listing records in {namespace}"),
            records.list(&everything)
        ),
        patch::within(format!("listing claims in {namespace}"), claims.list(&everything)),
    )?;
    let living = |named: &api::enrollment::NamedUid| {
        claims.items.iter().any(|claim| {
            claim.uid().as_ref() == Some(&named.uid) && claim.meta().deletion_timestamp.is_none()
        })
    };
    let live = records
        .items
        .into_iter()
        .filter(|record| record.spec.tenant.uid == tenant && record.meta().deletion_timestamp.is_none())
        .filter(|record| record.spec.claim.as_ref().is_none_or(living))
        .collect();
    Ok(Some((namespace, live)))
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
    patch::replace_status(all, &next).await?;
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
    let mut changes = shared.ctx.stores.enrollments.subscribe();
    loop {
        let changed = tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.next() => match changed { Some(changed) => changed, None => return },
        };
        let Some(record) = shared.ctx.stores.enrollments.store().get(&changed) else {
            continue;
        };
        let uid = record.uid().unwrap_or_default();
        let status = record.status.clone().unwrap_or_default();
        let (Some(_), Some(token)) = (&status.node_uid, &status.token_id) else {
            continue;
        };
        let ours = record.spec.tenant.uid == shared.tenant.uid;
        if !ours || shared.cleaned.lock().expect("no holder panics").contains(&uid) {
            continue;
        }
        match take_token(&shared, token).await {
            Ok(()) => {
                shared.cleaned.lock().expect("no holder panics").insert(uid);
            }
            // The record changes again soon enough; the token is used up in any case.
            Err(error) => tracing::debug!(error = %error, "a used token is still there"),
        }
    }
}
