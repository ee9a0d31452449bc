//! Real processes of `hostler run` that share the work. The one that leads is stopped (SIGSTOP) in the middle of it for longer than its lease, the
//! other one goes on, and then the first one wakes up: one machine for each claim, no ghost, nothing taken twice.

mod gate;
mod process;
mod sweep;
mod tally;
mod tenants;

use std::collections::BTreeMap;
use std::sync::Arc;

use hostler_api as api;
use hostler_core::loan;
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::crashes::{all_available, claims, delete_tenant, free_hosts, nothing_left};
use crate::harness::{Stack, World, eventually};
use gate::Gate;
use process::Process;
use tally::{Answered, Struck, Tally};
use tenants::Tenants;

/// A write that takes a machine, or undoes that.
fn takes(line: &str) -> bool {
    line.starts_with("PATCH ") && line.contains("/baremetalhosts/")
}

/// Two hosts, of which the first leads, and a tenant that gets its machines.
struct Pair {
    world: World,
    before: BTreeMap<String, Value>,
    first: Process,
    second: Process,
    tenants: Tenants,
}

impl Pair {
    /// The first one is struck at the first write that this is true of.
    async fn start(strike: impl Fn(usize, &str) -> Option<Struck> + Send + Sync + 'static) -> Self {
        let world = World::new().await;
        let tenants = Tenants::start(&world).await;
        let first = start(&world, "first", Tally::new(strike)).await;
        first.leads().await;
        let second = start(&world, "second", Tally::idle()).await;
        second.stands_by().await;
        world.example().await;
        let before = free_hosts(&world).await;
        world.apply_file("examples/01-lab/tenant.yaml").await;
        first.tally().stopped().await;
        Self {
            world,
            before,
            first,
            second,
            tenants,
        }
    }

    /// The first one wakes up, finds the other one in its place, and ends; returns the writes that it began then.
    async fn wake(&mut self) -> Vec<String> {
        wake(&mut self.first, &self.tenants).await
    }

    /// Each claim has one machine, each machine at most one claim, and both say the same.
    async fn one_machine_a_claim(&self) {
        all_available(&self.world).await;
        one_machine_a_claim(&self.world).await;
    }

    /// The tenant goes, and leaves nothing.
    async fn leave(self) {
        delete_tenant(&self.world, "one").await;
        nothing_left(&self.world).await;
        assert_eq!(
            free_hosts(&self.world).await,
            self.before,
            "a host is not as it came"
        );
        let ended = self.second.stop().await;
        assert_eq!(ended.code(), Some(0), "the one that was told to end");
    }
}

/// The records on the machines are those of the claims: each claim has one machine, each machine at most one claim.
async fn one_machine_a_claim(world: &World) {
    eventually("the records on the machines are those of the claims", || async {
        let hosts = world
            .hosts()
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let mut lent: Vec<(String, String)> = hosts
            .iter()
            .filter_map(|host| {
                let holder = loan::holder(&serde_json::to_value(host).unwrap())?;
                Some((holder.claim.uid, host.name_any()))
            })
            .collect();
        let mut named: Vec<(String, String)> = claims(world)
            .await?
            .iter()
            .map(|claim| (claim.uid().unwrap(), machine(claim)))
            .collect();
        lent.sort();
        named.sort();
        if lent == named {
            Ok(())
        } else {
            Err(format!("{lent:?} {named:?}"))
        }
    })
    .await;
}

async fn start(world: &World, name: &str, tally: Arc<Tally>) -> Process {
    Process::start(world, name, Gate::new(world, tally).await).await
}

/// A process that was stopped for longer than its lease wakes up, finds another one in its place, and ends. Returns the writes that it began
/// after it woke up. One that it had begun before may arrive only now: it is refused, or finds what it names as it was seen.
async fn wake(process: &mut Process, tenants: &Tenants) -> Vec<String> {
    let ways = [process.tally(), tenants.counted.now()].map(|tally| (tally.count(), tally));
    let woken = Timestamp::now();
    process.wake();
    let ended = process.ended().await;
    let said = process.said();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("another host leads"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    for (count, tally) in ways {
        let since = eventually("all that it wrote is answered", || async {
            let since = tally.since(count);
            if since.iter().all(|(_, answered)| answered.is_some()) {
                Ok(since)
            } else {
                Err(format!("{since:?}"))
            }
        })
        .await;
        let blind: Vec<_> = since
            .into_iter()
            .filter(|(_, answered)| *answered == Some(Answered::Blind))
            .collect();
        assert_eq!(blind, [], "a late write asked nothing of what it found");
    }
    process.begun(|time| time > woken)
}

fn machine(claim: &api::NodeClaim) -> String {
    let machine = claim.status.as_ref().and_then(|status| status.machine.clone());
    machine
        .and_then(|machine| machine.object)
        .map(|object| object.name)
        .unwrap_or_default()
}

/// Stopped once a write has landed, before it hears of it: what it would do next, it does not.
async fn stopped_after(number: usize) {
    if Stack::only_embedded("the gate in front of the API counts on ours") {
        return;
    }
    let mut pair = Pair::start(move |now, _| (now == number).then_some(Struck::Landed)).await;
    pair.second.leads().await;
    all_available(&pair.world).await;
    let tally = pair.first.tally();
    let none: [&str; 0] = [];
    let woken = Timestamp::now();
    assert_eq!(pair.wake().await, none, "a deposed leader wrote");
    // What was on its way as it was stopped may arrive only now, and by `wake` none of that was blind. All that ever arrived is accounted for.
    let (begun, arrived) = (pair.first.begun(|time| time <= woken), tally.since(0));
    for (line, _) in &arrived {
        let before = begun.iter().filter(|one| *one == line).count();
        let in_all = arrived.iter().filter(|(one, _)| one == line).count();
        assert!(
            in_all <= before,
            "{line} of a deposed leader arrived {in_all} times, and was begun {before} times before it woke"
        );
    }
    pair.one_machine_a_claim().await;
    pair.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_stopped_early_on_writes_nothing_when_it_wakes_up() {
    stopped_after(9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_stopped_later_on_writes_nothing_when_it_wakes_up() {
    stopped_after(24).await;
}

/// Stopped with the take of a machine on its way, which arrives when the other one has taken it for the same claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_arrives_late_takes_nothing() {
    if Stack::only_embedded("the gate in front of the API counts on ours") {
        return;
    }
    let mut pair = Pair::start(|_, line| takes(line).then_some(Struck::Held)).await;
    pair.second.leads().await;
    all_available(&pair.world).await;
    assert_eq!(
        pair.first.tally().release().await,
        409,
        "the machine is not what it was"
    );
    pair.wake().await;
    pair.one_machine_a_claim().await;
    let said = pair.second.said();
    let joined = said
        .lines()
        .find(|line| line.contains("a node may join"))
        .unwrap();
    let line: Value = serde_json::from_str(joined).unwrap();
    assert_eq!(line["span"]["area"], "join", "{line}");
    assert!(line["span"]["object"].is_string(), "{line}");
    pair.leave().await;
}

/// The same, but by then nobody wants the machine any more, and nobody has touched it: the take goes through, and is undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_arrives_late_for_a_claim_that_is_gone_is_undone() {
    if Stack::only_embedded("the gate in front of the API counts on ours") {
        return;
    }
    let mut pair = Pair::start(|_, line| takes(line).then_some(Struck::Held)).await;
    delete_tenant(&pair.world, "one").await;
    // Now, and not when the other one comes to it: until then it would take the machine itself.
    for claim in claims(&pair.world).await.unwrap() {
        let all: Api<api::NodeClaim> = Api::namespaced(pair.world.client.clone(), "p-default");
        all.delete(&claim.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
    pair.second.leads().await;
    nothing_left(&pair.world).await;
    assert_eq!(free_hosts(&pair.world).await, pair.before);
    assert_eq!(
        pair.first.tally().release().await,
        200,
        "nobody has touched the machine"
    );
    let hosts = pair.world.hosts().list(&ListParams::default()).await.unwrap();
    let lent = hosts
        .iter()
        .filter(|host| host.annotations().contains_key(api::names::LOAN));
    assert_eq!(lent.count(), 1, "a ghost holds it");
    let begun = pair.wake().await;
    // As often as somebody else writes the machine meanwhile.
    let undoes = !begun.is_empty() && begun.iter().all(|line| takes(line));
    assert!(undoes, "{begun:?}");
    pair.leave().await;
}

/// Killed instead of stopped: nothing is told to anybody, and the other one leads all the same.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_start_before_their_api_and_its_kinds_and_the_next_one_leads_when_one_is_killed() {
    if Stack::only_embedded("the gate in front of the API counts on ours") {
        return;
    }
    let world = World::new().await;
    let gate = Gate::closed(&world, Tally::idle()).await;
    let mut first = Process::start(&world, "first", gate).await;
    first.waits_for("the API server").await;
    first.gate.open();
    first.leads().await;
    let second = start(&world, "second", Tally::idle()).await;
    second.stands_by().await;
    let counters = first.counters().await;
    assert!(counters.contains("hostler_leader 1\n"), "{counters}");
    assert!(
        counters.contains("hostler_requests_total{target=\"platform\",verb=\"watch\",code=\"200\"}"),
        "{counters}"
    );
    assert!(second.counters().await.contains("hostler_leader 0\n"));
    first.kill();
    second.leads().await;
    assert_eq!(second.stop().await.code(), Some(0));
}
