//! Keeps the status of each NodeType: how many there are, how many are claimed, what it costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hostler_api as api;
use hostler_api::conditions::{self, Fact, phase};
use hostler_api::names;
use hostler_api::node_type::{Requirement, TypeCapacity};
use hostler_core::schedule;
use hostler_core::seams::{Availability, Capacity};
use hostler_core::selector::TypeFacts;
use kube::{Api, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::Result;
use crate::{patch, turn};

/// Changes that come within this time are counted together.
const SETTLE: Duration = Duration::from_millis(50);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let mut triggers = futures::stream::select_all([
        ctx.stores.claims.subscribe().map(drop).boxed(),
        ctx.stores.node_types.subscribe().map(drop).boxed(),
        crate::generations(ctx.machines.generation()).boxed(),
    ]);
    let mut again = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)), if again => {}
            trigger = triggers.next() => if trigger.is_none() { return },
        }
        tokio::time::sleep(SETTLE).await;
        while futures::FutureExt::now_or_never(triggers.next())
            .flatten()
            .is_some()
        {}
        again = false;
        for node_type in ctx.stores.node_types.state() {
            if let Err(error) = turn::of(&ctx, "capacity", node_type.as_ref(), report(&ctx, &node_type)).await
            {
                // The next change brings the newer object; a conflict is only a cache that lags.
                tracing::debug!(node_type = node_type.name_any(), error = %error, "capacity not written");
                again = true;
            }
        }
    }
}

async fn report(ctx: &Ctx, node_type: &api::NodeType) -> Result<()> {
    let name = node_type.name_any();
    let facts = TypeFacts::from(node_type);
    let claimed = ctx
        .stores
        .claims
        .state()
        .iter()
        .filter(|claim| claim.machine().is_some_and(|one| one.type_ref == name))
        .count();
    let claimed = i64::try_from(claimed).unwrap_or(i64::MAX);
    let holdings = node_type
        .annotations()
        .get(names::PROVIDER_UID)
        .and_then(|uid| ctx.machines.of(uid));
    let Some(holdings) = holdings.filter(|holdings| holdings.listed) else {
        return Ok(());
    };
    let offer = holdings.description.as_ref().and_then(|description| {
        description
            .node_types
            .iter()
            .find(|offer| offer.name == facts.short_name)
    });
    let mut aside: BTreeMap<String, usize> = BTreeMap::new();
    let machines = holdings
        .machines
        .values()
        .filter(|entry| {
            let Ok(Some(machine)) = &entry.machine else {
                return false;
            };
            if !machine.node_types.contains(&facts.short_name) {
                return false;
            }
            if let Availability::Broken(reason) | Availability::Preparing(reason) = &machine.availability
                && entry.held_by.is_none()
            {
                *aside.entry(reason.code.clone()).or_default() += 1;
            }
            entry.held_by.is_some() || machine.availability == Availability::Free
        })
        .count();
    let total = match offer.map(|offer| offer.capacity) {
        Some(Capacity::AtMost(most)) => i64::from(most),
        Some(Capacity::Unlimited) => claimed,
        // A claim that was bound a moment ago has its machine counted as free still: never less than what is claimed.
        Some(Capacity::Machines) | None => i64::try_from(machines).unwrap_or(i64::MAX),
    };
    let unlimited = matches!(offer.map(|offer| offer.capacity), Some(Capacity::Unlimited));
    let mut status = node_type.status.clone().unwrap_or_default();
    let before = status.clone();
    status.capacity = TypeCapacity { total, claimed };
    status.cost = schedule::cost(node_type.spec.cost, &node_type.spec.resources);
    status.requirements = requirements(node_type);
    let now = ctx.clock.now();
    let generation = node_type.meta().generation;
    conditions::set(
        &mut status.conditions,
        &Fact::yes("Synced", "Described", ""),
        generation,
        now,
    );
    let causes: Vec<_> = aside
        .iter()
        .map(|(code, count)| format!("{count} {code}"))
        .collect();
    let text = match aside.len() {
        0 if total == 0 => {
            format!("no machine matches {name}; see the node type's selector in its NodeProvider")
        }
        0 => format!("{claimed} of {total} are claimed"),
        _ => format!(
            "{claimed} of {total} are claimed; not counted: {}",
            causes.join(", ")
        ),
    };
    let has_capacity = unlimited || claimed < total;
    let fact = match (has_capacity, total) {
        (true, _) => Fact::yes("HasCapacity", "MachinesFree", &text),
        (false, 0) => Fact::not_yet("HasCapacity", "NoMachines", &text),
        (false, _) => Fact::not_yet("HasCapacity", "AllClaimed", &text),
    };
    conditions::set(&mut status.conditions, &fact, generation, now);
    status.phase = Some(phase::AVAILABLE.to_owned());
    status.reason = None;
    status.message = None;
    if status == before {
        return Ok(());
    }
    let mut whole = node_type.clone();
    whole.status = Some(status);
    patch::replace_status(&Api::all(ctx.client.clone()), &whole).await?;
    Ok(())
}

/// What a claim may require of the type, from its properties.
fn requirements(node_type: &api::NodeType) -> Vec<Requirement> {
    node_type
        .spec
        .properties
        .iter()
        .map(|(key, value)| match value.as_str() {
            "*" => Requirement {
                key: key.clone(),
                operator: "Exists".to_owned(),
                values: Vec::new(),
            },
            value => Requirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: value.split(',').map(|one| one.trim().to_owned()).collect(),
            },
        })
        .collect()
}
