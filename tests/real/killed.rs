//! Processes of `hostler run` are killed one after the other, on the way out and on the way back, or stopped for longer than their lease;
//! each time the one that stood by goes on.

use hostler_api::names;
use kube::ResourceExt;
use kube::api::ListParams;
use rstest::rstest;
use serde_json::Value;

use crate::crashes::{all_available, claims, delete_tenant, free_hosts, nothing_left, phase};
use crate::harness::process::Process;
use crate::harness::{History, World, eventually};

/// A lease that is over soon, and that a loaded machine renews in time all the same.
const LEASE: [&str; 4] = ["--lease-duration", "6s", "--lease-renew", "1s"];

/// How far a tenant has come.
struct Sight {
    claims: usize,
    available: usize,
    leaving: usize,
    lent: usize,
    provisioned: usize,
}

async fn sight(world: &World) -> Result<Sight, String> {
    let claims = claims(world).await?;
    let hosts = world
        .hosts()
        .list(&ListParams::default())
        .await
        .map_err(|error| error.to_string())?;
    let state = |host: &kube::api::DynamicObject, wanted: &str| {
        host.data
            .pointer("/status/provisioning/state")
            .and_then(Value::as_str)
            == Some(wanted)
    };
    Ok(Sight {
        claims: claims.len(),
        available: claims.iter().filter(|claim| phase(claim) == "Available").count(),
        leaving: claims
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_some())
            .count(),
        lent: hosts
            .iter()
            .filter(|host| host.annotations().contains_key(names::LOAN))
            .count(),
        provisioned: hosts.iter().filter(|host| state(host, "provisioned")).count(),
    })
}

/// The one that leads, and the one that stands by.
struct Pair<'a> {
    world: &'a World,
    leads: Process,
    stands_by: Process,
    started: usize,
}

impl<'a> Pair<'a> {
    fn start(world: &'a World) -> Self {
        Self {
            world,
            leads: start(world, 0),
            stands_by: start(world, 1),
            started: 2,
        }
    }

    /// Kills the one that leads once it has come so far.
    async fn killed_when(self, what: &str, far: fn(&Sight) -> bool) -> Self {
        eventually(what, || async {
            let sight = sight(self.world).await?;
            if far(&sight) {
                Ok(())
            } else {
                Err(format!("{} claims, {} lent", sight.claims, sight.lent))
            }
        })
        .await;
        self.leads.kill();
        Self {
            world: self.world,
            leads: self.stands_by,
            stands_by: start(self.world, self.started),
            started: self.started + 1,
        }
    }
}

fn start(world: &World, number: usize) -> Process {
    let kubeconfig = world.stack.host_kubeconfig();
    Process::start(world, &format!("host-{number}"), &kubeconfig, &LEASE)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn hosts_that_are_killed_one_after_the_other_leave_the_work_to_the_next() {
    let world = World::new().await;
    let history = History::of(&world.client);
    let pair = Pair::start(&world);
    world.example().await;
    let before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    let pair = pair
        .killed_when("claims exist", |sight| sight.claims > 0)
        .await
        .killed_when("a machine is lent", |sight| sight.lent > 0)
        .await
        .killed_when("an image is written", |sight| sight.provisioned > 0)
        .await
        .killed_when("a claim is Available", |sight| sight.available > 0)
        .await;
    all_available(&world).await;
    assert_eq!(history.claims().len(), 2, "no claim was made twice");
    delete_tenant(&world, "one").await;
    let pair = pair
        .killed_when("claims are on their way out", |sight| {
            sight.leaving > 0 || sight.claims == 0
        })
        .await
        .killed_when("a machine is free", |sight| sight.lent < 2)
        .await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, before, "byte for byte as they were");
    history.is_clean(&world).await;
    history.names_are_exclusive();
    drop(pair);
}

#[rstest]
#[case::as_claims_are_made(|sight: &Sight| sight.claims > 0)]
#[case::as_machines_are_taken(|sight: &Sight| sight.lent > 0)]
#[case::as_nodes_join(|sight: &Sight| sight.provisioned > 0)]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn a_leader_that_sleeps_longer_than_its_lease_does_no_harm_when_it_wakes(
    #[case] far: fn(&Sight) -> bool,
) {
    let world = World::new().await;
    let history = History::of(&world.client);
    let mut first = start(&world, 0);
    eventually("the first one leads", || async {
        let said = first.said();
        if said.contains("this host leads") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    let second = start(&world, 1);
    world.example().await;
    let before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    eventually("it has come so far", || async {
        let sight = sight(&world).await?;
        if far(&sight) {
            Ok(())
        } else {
            Err(format!("{} claims, {} lent", sight.claims, sight.lent))
        }
    })
    .await;
    first.signal("STOP");
    eventually("the second one leads", || async {
        let said = second.said();
        if said.contains("this host leads") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    all_available(&world).await;
    first.signal("CONT");
    let ended = eventually("the first one sees that it was deposed, and ends", || {
        std::future::ready(first.ended().ok_or_else(|| "it runs".to_owned()))
    })
    .await;
    assert_eq!(ended.code(), Some(1), "{}", first.said());
    all_available(&world).await;
    assert_eq!(history.claims().len(), 2, "no claim was made twice");
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, before, "byte for byte as they were");
    history.is_clean(&world).await;
    history.names_are_exclusive();
    drop(second);
}
