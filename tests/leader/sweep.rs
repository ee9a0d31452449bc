//! The leader is stopped before each of its writes in turn, on the way out and on the way back, for longer than its lease.

use std::sync::Arc;

use super::process::Process;
use super::tally::{Struck, Tally};
use super::tenants::Tenants;
use super::{one_machine_a_claim, start, takes, wake};
use crate::crashes::{
    Life, all_available, are_available, delete_tenant, each_in_turn, free_hosts, is_gone, nodes_ready_at,
    nothing_left,
};
use crate::harness::{History, Stack, Strikes, World, eventually};

/// Lives that go on at a time: most of each is waiting for a lease to run out.
const AT_ONCE: usize = 8;

/// When the write that was on its way as its process was stopped arrives.
#[derive(Clone, Copy)]
enum Arrives {
    /// As the next one begins.
    AtOnce,
    /// When the next one has done all.
    InTheEnd,
}

/// The one that leads, and how many there were.
struct Shift<'a> {
    world: &'a World,
    tenants: Tenants,
    leads: Process,
    begun: usize,
}

impl<'a> Shift<'a> {
    async fn begin(world: &'a World) -> Self {
        let tenants = Tenants::start(world).await;
        let leads = start(world, "host-1", Tally::idle()).await;
        leads.leads().await;
        Self {
            world,
            tenants,
            leads,
            begun: 1,
        }
    }

    /// Lets `work` be begun and waits until it is done, with the one that leads counted and another one standing by. If the first is stopped
    /// on the way, the other one does the rest, and the first one wakes up.
    async fn through(
        mut self,
        tally: &Arc<Tally>,
        arrives: Arrives,
        work: impl Future<Output = ()>,
        done: impl AsyncFn(&World) -> Result<bool, String>,
    ) -> Self {
        self.begun += 1;
        let next = start(self.world, &format!("host-{}", self.begun), Tally::idle()).await;
        next.stands_by().await;
        self.leads.is_counted_by(tally);
        self.tenants.counted.change(tally.clone());
        work.await;
        eventually("the leader is stopped, or has nothing more to write", || async {
            if tally.is_stopped() || done(self.world).await? {
                Ok(())
            } else {
                Err(tally.log().join("\n"))
            }
        })
        .await;
        if !tally.spares() {
            assert_eq!(next.stop().await.code(), Some(0));
            return self;
        }
        tally.stopped().await;
        self.tenants.counted.change(Tally::idle());
        next.leads().await;
        if matches!(arrives, Arrives::AtOnce) {
            tally.release().await;
        }
        eventually("the next one does the rest", || async {
            if done(self.world).await? {
                Ok(())
            } else {
                Err(format!("{:?}: {}", tally.struck_at(), next.said()))
            }
        })
        .await;
        if matches!(arrives, Arrives::InTheEnd) {
            tally.release().await;
        }
        let begun = wake(&mut self.leads, &self.tenants).await;
        let work: Vec<_> = begun.iter().filter(|line| !takes(line)).collect();
        assert!(
            work.is_empty(),
            "a deposed leader undoes a take, and writes nothing else: {begun:?}"
        );
        self.leads = next;
        self
    }
}

async fn life(out: Arc<Tally>, back: Arc<Tally>, arrives: (Arrives, Arrives)) {
    let world = World::new().await;
    let history = History::of(&world.client);
    let shift = Shift::begin(&world).await;
    world.example().await;
    let hosts = free_hosts(&world).await;
    let order = world.apply_file("examples/01-lab/tenant.yaml");
    let shift = shift.through(&out, arrives.0, order, are_available).await;
    all_available(&world).await;
    one_machine_a_claim(&world).await;
    let nodes = || Some(shift.tenants.administrator());
    nodes_ready_at(nodes, &["bare-metal-1", "bare-metal-2"]).await;
    assert_eq!(history.claims().len(), 2, "a third claim: {:?}", history.claims());

    let end = delete_tenant(&world, "one");
    let shift = shift.through(&back, arrives.1, end, is_gone).await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, hosts, "byte for byte what they were");
    history.is_clean(&world).await;
    history.names_are_exclusive();
    for host in hosts.values() {
        let borrowers = history.borrowers(host["metadata"]["uid"].as_str().unwrap());
        assert_eq!(borrowers.len(), 1, "each machine was lent once, to one claim");
    }
    assert_eq!(shift.leads.stop().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_stopped_before_any_of_its_writes_does_no_harm_and_the_next_one_finishes() {
    if Stack::only_embedded("the gate in front of the API counts on ours") {
        return;
    }
    each_in_turn(1, AT_ONCE, |number| {
        let at = move |now: usize, _: &str| (now == number).then_some(Struck::Held);
        let (out, back) = (Tally::new(at), Tally::new(at));
        let arrives = if number % 2 == 0 {
            (Arrives::AtOnce, Arrives::InTheEnd)
        } else {
            (Arrives::InTheEnd, Arrives::AtOnce)
        };
        Life {
            strikes: vec![("out", out.clone()), ("back", back.clone())],
            lived: Box::pin(life(out, back, arrives)),
        }
    })
    .await;
}
