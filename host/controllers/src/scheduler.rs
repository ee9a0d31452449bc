//! The one loop that places claims. Never concurrent with itself.
//!
//! observe: a live list of claims, node types, free machines → `core::schedule::assign` → act: one resourceVersion-checked
//! status write per placed claim → report: a condition on each claim that waits.
//!
//! # Guarantees
//! A claim names its machine before anything is written to the machine, and a machine that any claim names is not free.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use hostler_api as api;
use hostler_api::claim::{MachineRef, Ref};
use hostler_api::conditions::{self, ACCEPTED, Fact, phase};
use hostler_api::{ResourceList, names};
use hostler_core::order;
use hostler_core::retry::Class;
use hostler_core::schedule::{self, Arrivals, Binding, FreeMachine, Pending, Stock, TypeOffer};
use hostler_core::seams::{Availability, Reason};
use hostler_core::selector::TypeFacts;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::machines::Holdings;
use crate::{judge, patch, turn};

/// Changes that come within this time are placed together, so that the oldest claim gets the first machine.
const SETTLE: Duration = Duration::from_millis(20);
/// Claims that are written at a time.
const AT_ONCE: usize = 16;

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let mut triggers = stream::select_all([
        ctx.stores.claims.subscribe().map(drop).boxed(),
        ctx.stores.node_types.subscribe().map(drop).boxed(),
        ctx.stores.projects.subscribe().map(drop).boxed(),
        ctx.stores.providers.subscribe().map(drop).boxed(),
        crate::generations(ctx.machines.generation()).boxed(),
        crate::plugins_changed(ctx.plugins.clone(), stop.clone()).boxed(),
    ]);
    let mut arrivals = Arrivals::default();
    let mut failures: u32 = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(ctx.settings.capacity_retry) => {}
            trigger = triggers.next() => if trigger.is_none() { return },
        }
        tokio::time::sleep(SETTLE).await;
        while triggers.next().now_or_never().flatten().is_some() {}
        while let Err(error) = Box::pin(turn::over_all(&ctx, "scheduler", turn(&ctx, &mut arrivals))).await {
            failures = failures.saturating_add(1);
            tracing::warn!(error = %error, "scheduling turn failed; trying again");
            let wait = hostler_core::retry::delay(error.class(), failures, rand::random());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait.unwrap_or(ctx.settings.capacity_retry)) => {}
            }
        }
        failures = 0;
    }
}

/// One pass over all claims that wait.
async fn turn(ctx: &Arc<Ctx>, arrivals: &mut Arrivals) -> Result<()> {
    if !ctx
        .stores
        .claims
        .state()
        .iter()
        .any(|claim| is_waiting(claim) || shows_wrong_type(claim))
    {
        return Ok(());
    }
    let all: Api<api::NodeClaim> = Api::all(ctx.client.clone());
    let claims = patch::within("listing claims".to_owned(), all.list(&ListParams::default()))
        .await?
        .items;
    let mut shown = Vec::new();
    for claim in claims.iter().filter(|claim| shows_wrong_type(claim)) {
        shown.push(async { or_next_turn(ctx, claim, show_type(ctx, claim).await).await }.boxed());
    }
    let shown = each(shown).await;
    place(ctx, arrivals, &claims).await.and(shown)
}

/// Decides on all claims that wait, and writes it.
async fn place(ctx: &Arc<Ctx>, arrivals: &mut Arrivals, claims: &[api::NodeClaim]) -> Result<()> {
    let line = line(claims, |uid| ctx.retries.count(admission::NAME, uid));
    if !line.iter().any(|claim| is_accepted(claim)) {
        return Ok(());
    }
    let offers = offers(ctx, claims);
    let free = free_machines(ctx, claims);
    let mut pending = Vec::new();
    for claim in &line {
        pending.push(pending_of(ctx, claim, &offers).await);
    }
    let by_uid: HashMap<String, &api::NodeClaim> = line
        .iter()
        .map(|claim| (claim.uid().unwrap_or_default(), *claim))
        .collect();
    // Decided in one; what is written of one claim need not wait for another, since no two of them name the same machine.
    let mut writes = Vec::new();
    for (pending, place) in schedule::assign(pending, arrivals, &offers, &free) {
        writes.push(place_one(ctx, by_uid[&pending.uid], place).boxed());
    }
    each(writes).await
}

async fn place_one(ctx: &Ctx, claim: &api::NodeClaim, place: Result<Binding, Reason>) -> Result<()> {
    let written = match place {
        Ok(binding) => bind(ctx, claim, &binding).await,
        Err(reason) => wait(ctx, claim, &reason).await,
    };
    or_next_turn(ctx, claim, written).await
}

/// A claim that changed meanwhile, or is gone, is no fault: the next turn sees what it is now. One whose write the API server refuses ends
/// no turn, and is told.
async fn or_next_turn(ctx: &Ctx, claim: &api::NodeClaim, written: Result<()>) -> Result<()> {
    match written {
        Err(error) if error.is_conflict() || error.is_not_found() => {
            tracing::debug!(
                claim = claim.name_any(),
                "claim changed meanwhile; left to the next turn"
            );
            Ok(())
        }
        Err(error) if error.class() == Class::Refused => {
            tracing::warn!(claim = claim.name_any(), %error, "a write of the scheduler was refused");
            let told = format!("the API server refused what the scheduler wrote: {error}");
            ctx.events
                .warning(claim, "WriteRefused", "Scheduling", &told)
                .await;
            Ok(())
        }
        other => other,
    }
}

/// Writes, a few at a time, to the end of all of them; the first error is told after it.
async fn each(writes: Vec<BoxFuture<'_, Result<()>>>) -> Result<()> {
    let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
    written.into_iter().collect()
}

/// Claims that wait. One that changed keeps its turn while it is judged again, but not once that has failed, since then nobody knows for
/// how long: `failures` says how often in a row, by uid.
fn line(claims: &[api::NodeClaim], failures: impl Fn(&str) -> u32) -> Vec<&api::NodeClaim> {
    let is_judged = |claim: &api::NodeClaim| failures(&claim.uid().unwrap_or_default()) == 0;
    claims
        .iter()
        .filter(|claim| is_in_line(claim) && (is_accepted(claim) || is_judged(claim)))
        .collect()
}

/// Without a machine, ready to hold one, and accepted, though perhaps for what it said before.
fn is_in_line(claim: &api::NodeClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    conditions::is_true(&status.conditions, ACCEPTED)
        && status.machine.is_none()
        && status.phase.as_deref() != Some(phase::FAILED)
        && claim.meta().deletion_timestamp.is_none()
        && claim.finalizers().iter().any(|one| one == names::CLAIM_FINALIZER)
}

/// Accepted for what it says now.
fn is_accepted(claim: &api::NodeClaim) -> bool {
    let status = claim.status.as_ref();
    status
        .and_then(|status| conditions::find(&status.conditions, ACCEPTED))
        .is_some_and(|accepted| {
            accepted.status == "True" && accepted.observed_generation == claim.meta().generation
        })
}

/// In line, and may be placed now.
fn is_waiting(claim: &api::NodeClaim) -> bool {
    is_in_line(claim) && is_accepted(claim)
}

/// Bound, but stopped before its type was shown; or with the mark of a place that it has given up.
fn shows_wrong_type(claim: &api::NodeClaim) -> bool {
    claim.meta().deletion_timestamp.is_none()
        && match claim.machine() {
            // Where it names another provider by now there is no type of that to show.
            Some(machine) => {
                claim.type_ref().is_none() && names::is_type_of(&machine.type_ref, &claim.spec.provider_ref)
            }
            None => claim.chosen_type().is_some(),
        }
}

fn offers(ctx: &Ctx, claims: &[api::NodeClaim]) -> Vec<TypeOffer> {
    let providers: HashMap<String, String> = ctx
        .stores
        .providers
        .state()
        .iter()
        .filter(|provider| provider.meta().deletion_timestamp.is_none())
        .map(|provider| (provider.name_any(), provider.uid().unwrap_or_default()))
        .collect();
    let mut bound: HashMap<&str, u32> = HashMap::new();
    for machine in claims.iter().filter_map(api::NodeClaim::machine) {
        *bound.entry(machine.type_ref.as_str()).or_default() += 1;
    }
    ctx.stores
        .node_types
        .state()
        .iter()
        .filter_map(|node_type| {
            let provider_uid = providers.get(&node_type.spec.provider_ref)?;
            if node_type.annotations().get(names::PROVIDER_UID) != Some(provider_uid) {
                return None;
            }
            let facts = TypeFacts::from(node_type.as_ref());
            let holdings = ctx.machines.of(provider_uid)?;
            let description = holdings.description.clone()?;
            let offer = description
                .node_types
                .iter()
                .find(|offer| offer.name == facts.short_name)?;
            Some(TypeOffer {
                provider: node_type.spec.provider_ref.clone(),
                capacity: offer.capacity,
                resources: node_type.spec.resources.clone(),
                cost: schedule::cost(node_type.spec.cost, &node_type.spec.resources),
                claimed: bound.get(facts.full_name.as_str()).copied().unwrap_or(0),
                stock: stock(&holdings, &facts.short_name),
                facts,
            })
        })
        .collect()
}

/// What a provider has of a type.
fn stock(holdings: &Holdings, short_name: &str) -> Stock {
    let mut stock = Stock {
        is_read: holdings.listed,
        ..Stock::default()
    };
    for entry in holdings.machines.values() {
        let Ok(Some(machine)) = &entry.machine else {
            continue;
        };
        if !machine.node_types.iter().any(|name| name == short_name) {
            continue;
        }
        stock.machines += 1;
        if let Availability::Broken(reason) = &machine.availability {
            *stock.broken.entry(reason.code.clone()).or_default() += 1;
        }
    }
    stock
}

/// Machines that are free or will be by themselves, that nothing of ours holds and that no claim names.
fn free_machines(ctx: &Ctx, claims: &[api::NodeClaim]) -> Vec<FreeMachine> {
    let named: BTreeSet<&str> = claims
        .iter()
        .filter_map(|claim| claim.machine()?.uid.as_deref())
        .collect();
    let mut free = Vec::new();
    for provider in ctx.stores.providers.state() {
        let Some(holdings) = ctx.machines.of(&provider.uid().unwrap_or_default()) else {
            continue;
        };
        for (object, entry) in &holdings.machines {
            let Ok(Some(machine)) = &entry.machine else {
                continue;
            };
            let uid = entry.object.uid().unwrap_or_default();
            let preparing = match &machine.availability {
                Availability::Free if entry.held_by.is_none() && !named.contains(uid.as_str()) => None,
                // Also one that a claim is giving back: it is cleaned, and then it is free.
                Availability::Preparing(reason) => Some(reason.code.clone()),
                Availability::Free | Availability::Held(_) | Availability::Broken(_) => continue,
            };
            let resources: ResourceList =
                serde_json::from_value(machine.json["resources"].clone()).unwrap_or_default();
            free.push(FreeMachine {
                object: object.clone(),
                uid,
                types: machine
                    .node_types
                    .iter()
                    .map(|short| names::node_type(&provider.name_any(), short))
                    .collect(),
                resources,
                preparing,
            });
        }
    }
    free
}

async fn pending_of(ctx: &Arc<Ctx>, claim: &api::NodeClaim, offers: &[TypeOffer]) -> Pending {
    let mut denied = BTreeMap::new();
    for offer in offers
        .iter()
        .filter(|offer| offer.provider == claim.spec.provider_ref)
    {
        if let Err(reason) = judge::type_choice(ctx, claim, &offer.provider, &offer.facts).await {
            denied.insert(offer.facts.full_name.clone(), reason);
        }
    }
    Pending {
        key: format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any()),
        uid: claim.uid().unwrap_or_default(),
        provider: claim.spec.provider_ref.clone(),
        type_ref: claim.wished_type().map(str::to_owned),
        requirements: claim.spec.requirements.clone(),
        desired: claim.spec.desired_capacity.clone(),
        created: claim.creation_timestamp().map_or(0, |time| time.0.as_second()),
        // Taking the type back makes another claim of it; it keeps its turn.
        accepted: is_accepted(claim) && !shows_wrong_type(claim),
        denied,
    }
}

async fn bind(ctx: &Ctx, claim: &api::NodeClaim, binding: &Binding) -> Result<()> {
    let mut next = claim.clone();
    let status = next.status.get_or_insert_default();
    let on = binding
        .machine
        .as_ref()
        .map_or(String::new(), |(object, _)| format!(" on {}", object.name));
    let message = format!("placed as {}{on}", binding.type_name);
    let fact = Fact::yes("Scheduled", "Bound", &message);
    conditions::set(
        &mut status.conditions,
        &fact,
        claim.meta().generation,
        ctx.clock.now(),
    );
    status.machine = Some(MachineRef {
        type_ref: binding.type_name.clone(),
        object: binding.machine.as_ref().map(|(object, _)| Ref {
            api_version: object.api_version.clone(),
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
        }),
        uid: binding.machine.as_ref().map(|(_, uid)| uid.clone()),
        spec_digest: Some(order::spec_digest(claim)),
    });
    status.phase = Some(phase::PENDING.to_owned());
    status.reason = Some("Bound".to_owned());
    status.message = Some(message.clone());
    let written = patch::replace_status(&claims(ctx, claim), &next).await?;
    ctx.stores.claims.wrote(&written);
    ctx.events.normal(claim, "Bound", "Scheduling", &message).await;
    if shows_wrong_type(&written) {
        show_type(ctx, &written).await?;
    }
    Ok(())
}

/// Shows the type of its place, or takes it back with the place; decided from the claim alone, so that it can be done again.
async fn show_type(ctx: &Ctx, claim: &api::NodeClaim) -> Result<()> {
    let place = claim.machine().map(|machine| machine.type_ref.as_str());
    let mut change = json!({ "metadata": { "annotations": { names::CHOSEN_TYPE: place } } });
    if claim.wished_type().is_none() {
        change["spec"] = json!({ "typeRef": place });
    }
    let version = claim.resource_version().unwrap_or_default();
    let shown = patch::update(&claims(ctx, claim), &claim.name_any(), &version, change).await?;
    ctx.stores.claims.wrote(&shown);
    Ok(())
}

async fn wait(ctx: &Ctx, claim: &api::NodeClaim, reason: &Reason) -> Result<()> {
    let mut next = claim.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    let text = reason.text();
    let fact = Fact::not_yet("Scheduled", &reason.code, &text);
    conditions::set(
        &mut status.conditions,
        &fact,
        claim.meta().generation,
        ctx.clock.now(),
    );
    status.phase = Some(phase::PENDING.to_owned());
    status.reason = Some(reason.code.clone());
    status.message = Some(text.clone());
    if *status == before {
        return Ok(());
    }
    let written = patch::replace_status(&claims(ctx, claim), &next).await?;
    ctx.stores.claims.wrote(&written);
    if [schedule::PREPARING, schedule::NOT_READ].contains(&reason.code.as_str()) {
        ctx.events.normal(claim, &reason.code, "Scheduling", &text).await;
    } else {
        ctx.events.warning(claim, &reason.code, "Scheduling", &text).await;
    }
    Ok(())
}

fn claims(ctx: &Ctx, claim: &api::NodeClaim) -> Api<api::NodeClaim> {
    Api::namespaced(ctx.client.clone(), &claim.namespace().unwrap_or_default())
}
