//! Each NodeProfile's own status: whether it can be used, and on how many nodes its value met another's.

use std::sync::Arc;

use futures::{StreamExt, stream};
use hostler_api as api;
use hostler_api::conditions::{self, Fact};
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::retries::steadily;
use crate::{judge, patch, turn};

const NAME: &str = "profile.status";
/// The condition.
const VALID: &str = "Valid";

/// Runs until `stop`.
pub(super) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let named = ctx.stores.enrollments.subscribe().filter_map({
        let ctx = ctx.clone();
        move |changed| {
            let profile = ctx
                .stores
                .enrollments
                .store()
                .get(&changed)
                .and_then(|record| profile_of(&record));
            std::future::ready(profile.map(|name| ObjectRef::new(&name)))
        }
    });
    Controller::for_stream(stream::pending(), ctx.stores.profiles.store())
        .reconcile_on(ctx.stores.profiles.subscribe())
        .reconcile_on(named.boxed())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            |profile: Arc<api::NodeProfile>, ctx: Arc<Ctx>| async move {
                let work = reconcile(profile.clone(), ctx.clone());
                turn::of(&ctx, NAME, profile.as_ref(), work).await
            },
            |profile: Arc<api::NodeProfile>, error: &Error, ctx: Arc<Ctx>| {
                tracing::debug!(profile = profile.name_any(), error = %error, "profile status turn failed");
                ctx.retries
                    .after(NAME, &profile.uid().unwrap_or_default(), error.class())
            },
            ctx,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

fn profile_of(record: &api::Enrollment) -> Option<String> {
    record.status.as_ref()?.profile.as_ref()?.name.clone()
}

async fn reconcile(profile: Arc<api::NodeProfile>, ctx: Arc<Ctx>) -> Result<Action> {
    let name = profile.name_any();
    let mut next = profile.as_ref().clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    let wrong = judge::invalid(&profile);
    let text = wrong
        .as_ref()
        .map(hostler_core::seams::Reason::text)
        .unwrap_or_default();
    let fact = match &wrong {
        None => Fact::yes(VALID, VALID, ""),
        Some(reason) => Fact::no(VALID, &reason.code, &text),
    };
    let known = conditions::find(&before.conditions, VALID).and_then(|known| known.message.clone());
    conditions::set(
        &mut status.conditions,
        &fact,
        profile.meta().generation,
        ctx.clock.now(),
    );
    let clashing = ctx
        .stores
        .enrollments
        .state()
        .iter()
        .filter(|record| profile_of(record).as_ref() == Some(&name))
        .filter(|record| {
            record
                .status
                .as_ref()
                .is_some_and(|status| !status.clashes.is_empty())
        })
        .count();
    status.clashes = Some(i64::try_from(clashing).unwrap_or(i64::MAX));
    if *status != before {
        patch::replace_status(&Api::all(ctx.client.clone()), &next).await?;
        if let Some(reason) = wrong.filter(|_| known.as_ref() != Some(&text)) {
            ctx.events
                .warning(profile.as_ref(), &reason.code, "Reconciling", &text)
                .await;
        }
    }
    ctx.retries.reset(NAME, &profile.uid().unwrap_or_default());
    Ok(steadily(ctx.settings.steady))
}
