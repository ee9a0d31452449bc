//! Shows each component as a Plugin object, and says which versions live orders still need.
//!
//! The files are the cause; an object edited or deleted by hand comes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hostler_api as api;
use hostler_api::conditions::{self, Fact};
use hostler_core::seams::PluginState;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::Result;
use crate::patch::{self, Created};
use crate::turn;

/// Wait after a turn that failed.
const AGAIN: Duration = Duration::from_secs(2);
/// Changes that come within this time are shown together.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let mut triggers = futures::stream::select_all([
        crate::plugins_changed(ctx.plugins.clone(), stop.clone()),
        ctx.stores.plugins.subscribe().map(drop).boxed(),
        // Components that orders were made with are kept.
        ctx.stores.claims.subscribe_to(ordered_with).map(drop).boxed(),
    ]);
    let mut kept: Option<BTreeSet<String>> = None;
    let mut again = true;
    ctx.stores.claims.ready().await;
    ctx.stores.plugins.ready().await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN), if again => {}
            trigger = triggers.next() => if trigger.is_none() { return },
        }
        tokio::time::sleep(SETTLE).await;
        while futures::FutureExt::now_or_never(triggers.next())
            .flatten()
            .is_some()
        {}
        let shown = Box::pin(turn::over_all(&ctx, "plugin", show(&ctx))).await;
        let retained = retain(&ctx, &mut kept).await;
        again = false;
        for result in [shown, retained] {
            if let Err(error) = result {
                tracing::debug!(error = %error, "plugins not shown; trying again");
                again = true;
            }
        }
    }
}

async fn show(ctx: &Ctx) -> Result<()> {
    let plugins: Api<api::Plugin> = Api::all(ctx.client.clone());
    let states = ctx.plugins.states();
    for state in &states {
        let object = match ctx.stores.plugins.get(None, &state.name) {
            Some(known) => known.as_ref().clone(),
            None => {
                match patch::create(&plugins, &api::Plugin::new(&state.name, api::PluginSpec {})).await? {
                    Created::New(made) => made,
                    // The cache is behind; its next change brings us back.
                    Created::Exists => continue,
                }
            }
        };
        if object.meta().deletion_timestamp.is_none() {
            report(ctx, &plugins, &object, state).await?;
        }
    }
    for known in ctx.stores.plugins.state() {
        if !states.iter().any(|state| state.name == known.name_any()) {
            patch::delete(&plugins, &known.name_any(), &known.uid().unwrap_or_default()).await?;
        }
    }
    Ok(())
}

async fn report(
    ctx: &Ctx,
    plugins: &Api<api::Plugin>,
    object: &api::Plugin,
    state: &PluginState,
) -> Result<()> {
    let mut next = object.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    let now = ctx.clock.now();
    let error = state.error.as_ref().map(hostler_core::seams::Reason::text);
    status.digest.clone_from(&state.serving);
    status.file_digest.clone_from(&state.on_disk);
    status.world.clone_from(&state.world);
    status.size = state.size.and_then(|size| i64::try_from(size).ok());
    status.grant = (!state.grant.is_null()).then(|| state.grant.clone());
    status.faults = i64::try_from(state.faults).unwrap_or(i64::MAX);
    if error.is_some() {
        status.last_error.clone_from(&error);
    }
    let code = state
        .error
        .as_ref()
        .map_or("NotServing", |error| error.code.as_str());
    let text = error.clone().unwrap_or_default();
    let loaded = match &state.serving {
        Some(digest) => Fact::yes("Loaded", "Loaded", digest),
        None => Fact::no("Loaded", code, &text),
    };
    let healthy = if state.healthy {
        Fact::yes("Healthy", "Healthy", "")
    } else {
        Fact::no("Healthy", code, &text)
    };
    conditions::set(&mut status.conditions, &loaded, None, now);
    conditions::set(&mut status.conditions, &healthy, None, now);
    if *status == before {
        return Ok(());
    }
    patch::replace_status(plugins, &next).await?;
    if before.digest != state.serving
        && let Some(digest) = &state.serving
    {
        ctx.events
            .normal(object, "Serving", "Loading", &format!("{digest} serves now"))
            .await;
    }
    let known = conditions::find(&before.conditions, "Healthy").and_then(|known| known.message.clone());
    if let Some(error) = error.filter(|error| known.as_ref() != Some(error)) {
        ctx.events.warning(object, code, "Loading", &error).await;
    }
    Ok(())
}

/// The component that a claim's machine was ordered with.
fn ordered_with(claim: &api::NodeClaim) -> Option<String> {
    Some(claim.status.as_ref()?.order.as_ref()?.digest.clone())
}

/// Tells which digests live orders name, from a live list: bytes that are dropped do not come back.
async fn retain(ctx: &Ctx, kept: &mut Option<BTreeSet<String>>) -> Result<()> {
    let cached: BTreeSet<String> = ctx
        .stores
        .claims
        .state()
        .iter()
        .filter_map(|claim| ordered_with(claim))
        .collect();
    if kept.as_ref() == Some(&cached) {
        return Ok(());
    }
    let claims: Api<api::NodeClaim> = Api::all(ctx.client.clone());
    let live = patch::within("listing claims".to_owned(), claims.list(&ListParams::default())).await?;
    let digests: BTreeSet<String> = live.items.iter().filter_map(ordered_with).collect();
    ctx.plugins.retain(&digests);
    *kept = Some(cached);
    Ok(())
}
