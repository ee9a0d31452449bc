//! Claims on the real API server in memory, with toy machines: what is true in the end.

mod toy;
mod world;

use std::time::Duration;

use hostler_core::loan;
use hostler_core::seams::{Loan, Outcome, Plan, Progress};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::{Value, json};

use crate::ctx::Settings;
use toy::{MACHINES, Mood, reference};
use world::{PROJECT, World, essence, object, until};

const ENDLESS: usize = usize::MAX;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_becomes_a_node_and_its_machine_comes_back_as_it_was() {
    let world = World::open().await;
    let machine = world
        .register("m1", json!({"online": false, "bmc": {"address": "x"}}))
        .await;
    let before = world.machine("m1").await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    let claim = world.phase("one-aaaaa", "Available").await;
    let status = claim.status.clone().unwrap();
    for kind in ["Provisioned", "Joined", "NotDrifted"] {
        assert!(
            hostler_api::conditions::is_true(&status.conditions, kind),
            "{kind}: {:?}",
            status.conditions
        );
    }
    assert_eq!(status.provider_id.as_deref(), Some("toy://m1"));
    assert_eq!(status.order.unwrap().digest, "sha256:toy");
    let taken = world.machine("m1").await;
    assert_eq!(loan::holder(&taken).unwrap().claim.uid, claim.uid().unwrap());
    let boot: Api<Secret> = world.namespaced(MACHINES);
    let boot = boot
        .get(&format!("hostler-{}", claim.uid().unwrap()))
        .await
        .unwrap();
    let user_data = String::from_utf8(boot.data.unwrap()["userData"].0.clone()).unwrap();
    assert!(user_data.contains("--node-labels=workload=gpu"), "{user_data}");
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    until("the node has its provider id and the token is gone", || async {
        let node = nodes.get("m1").await.unwrap();
        let tokens: Api<Secret> = Api::namespaced(world.tenant.clone(), "kube-system");
        let left = tokens
            .list(&ListParams::default().labels(hostler_api::names::TOKEN))
            .await
            .unwrap()
            .items;
        (node.spec?.provider_id.as_deref() == Some("toy://m1") && left.is_empty()).then_some(())
    })
    .await;

    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert_eq!(essence(&world.machine("m1").await), essence(&before));
    world.is_clean().await;
    host.kill().await;
}

/// A null that stands as a value cannot be written by a merge patch, and the host has no right to replace what it borrows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_null_that_stood_on_a_machine_stands_there_again() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": null})).await;
    let before = world.machine("m1").await;
    assert!(before.pointer("/spec/online").is_some_and(Value::is_null));
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert_eq!(essence(&world.machine("m1").await), essence(&before));
    host.kill().await;
}

/// The host hears of every change late, so it acts on old news all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_hears_late_gives_every_machine_back() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let before = world.machine("m1").await;
    let lag = Duration::from_millis(400);
    let host = world
        .start_with(Mood::Honest, ENDLESS, lag, Settings::default())
        .await;
    // Deleted as soon as the machine is taken, while the host does not know yet that it has it.
    world.claim("one-early", &machine).await;
    until("the machine is taken", || async {
        loan::holder(&world.machine("m1").await)
    })
    .await;
    let note = json!({"metadata": {"annotations": {"toys.example.com/address": "10.0.0.9/24"}}});
    world
        .machines()
        .patch("m1", &PatchParams::default(), &Patch::Merge(&note))
        .await
        .unwrap();
    world.delete_claim("one-early").await;
    world.gone("one-early").await;
    let mut want = essence(&before);
    want["metadata"]["annotations"]["toys.example.com/address"] = json!("10.0.0.9/24");
    assert_eq!(essence(&world.machine("m1").await), want);
    world.is_clean().await;
    // And once through the whole life.
    world.claim("one-whole", &machine).await;
    world.phase("one-whole", "Available").await;
    world.delete_claim("one-whole").await;
    world.gone("one-whole").await;
    assert_eq!(essence(&world.machine("m1").await), want);
    world.is_clean().await;
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_asked_to_leave_and_waited_for() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let host = world
        .start_with(Mood::Honest, ENDLESS, Duration::ZERO, Settings::default())
        .await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    let claims: Api<hostler_api::NodeClaim> = world.namespaced(PROJECT);
    let patient = json!({"spec": {"terminationGracePeriod": "1h"}});
    claims
        .patch("one-aaaaa", &PatchParams::default(), &Patch::Merge(&patient))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(world.tenant.clone(), "default");
    let pod = json!({"metadata": {"name": "work"}, "spec": {"nodeName": "m1", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    let ended = json!({"metadata": {"name": "ended", "finalizers": ["example.com/keep"]}, "spec": {"nodeName": "m1", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &object(ended)).await.unwrap();
    let ended = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status("ended", &PatchParams::default(), &Patch::Merge(&ended))
        .await
        .unwrap();
    world.delete_claim("one-aaaaa").await;
    until("the pod is told to go", || async {
        pods.get("work").await.unwrap().metadata.deletion_timestamp
    })
    .await;
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    assert_eq!(
        nodes.get("m1").await.unwrap().spec.unwrap().unschedulable,
        Some(true)
    );
    assert!(loan::holder(&world.machine("m1").await).is_some());
    drop(
        pods.delete("work", &DeleteParams::default().grace_period(0))
            .await
            .unwrap(),
    );
    world.gone("one-aaaaa").await;
    assert!(
        pods.get_opt("ended").await.unwrap().is_some(),
        "a pod that has ended is waited for by nobody, though a finalizer keeps it"
    );
    world.is_clean().await;
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_lives_as_long_as_its_machine_is_on_the_way() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let slow = Mood::Answers(Box::new(lent(json!({"spec": {"online": true}}))));
    let host = world.start(slow.clone(), ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.reason("one-aaaaa", "Provisioned", "Plotting").await;
    host.kill().await;
    let tokens: Api<Secret> = Api::namespaced(world.tenant.clone(), "kube-system");
    let ours = ListParams::default().labels(hostler_api::names::TOKEN);
    let end = || async {
        let found = tokens.list(&ours).await.unwrap().items;
        assert_eq!(found.len(), 1, "one token for one claim");
        let data = found[0].data.clone().unwrap();
        String::from_utf8(data["expiration"].0.clone())
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    let first = end().await;
    let longer = Settings {
        token_lifetime: Duration::from_secs(36_000),
        ..Settings::default()
    };
    let host = world.start_with(slow, ENDLESS, Duration::ZERO, longer).await;
    until("the token lives longer", || async {
        (end().await > first).then_some(())
    })
    .await;
    host.kill().await;
}

/// The host stops after each of its writes in turn, and is started again: the end is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_dies_after_any_write_ends_in_the_same_place() {
    let world = World::open().await;
    let machine = world
        .register("m1", json!({"online": true, "bmc": {"address": "x"}}))
        .await;
    let before = world.machine("m1").await;
    let mut deaths = 0;
    for writes in 1.. {
        let name = format!("one-{writes}");
        let host = world.start(Mood::Honest, writes).await;
        world.claim(&name, &machine).await;
        let dead = host.dead.clone();
        let deleted = tokio::select! {
            () = dead.cancelled() => false,
            _ = world.phase(&name, "Available") => {
                world.delete_claim(&name).await;
                tokio::select! {
                    () = dead.cancelled() => {}
                    () = world.gone(&name) => {}
                }
                true
            }
        };
        let died = dead.is_cancelled();
        host.kill().await;
        deaths += usize::from(died);
        let again = world.start(Mood::Honest, ENDLESS).await;
        if !deleted {
            world.phase(&name, "Available").await;
            world.delete_claim(&name).await;
        }
        world.gone(&name).await;
        assert_eq!(
            essence(&world.machine("m1").await),
            essence(&before),
            "after {writes} writes"
        );
        world.is_clean().await;
        again.kill().await;
        if !died {
            break;
        }
    }
    assert!(deaths > 15, "a life takes more writes than {deaths}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_never_had_a_place_goes_at_once() {
    let world = World::open().await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    let claims: Api<hostler_api::NodeClaim> = world.namespaced(PROJECT);
    let claim = object(json!({
        "metadata": {"name": "one-bbbbb", "finalizers": ["hostler.dev/release"]}, "spec": {"providerRef": "nowhere", "vClusterRef": "one"},
    }));
    claims.create(&PostParams::default(), &claim).await.unwrap();
    world.delete_claim("one-bbbbb").await;
    world.gone("one-bbbbb").await;
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_claims_on_one_machine_end_with_one() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    for name in ["one-first", "one-other"] {
        world.claim(name, &machine).await;
    }
    let host = world.start(Mood::Honest, ENDLESS).await;
    let (winner, loser) = until("one is available and the other looks again", || async {
        let first = world.find_claim("one-first").await?.status?;
        let other = world.find_claim("one-other").await?.status?;
        match (first.machine.is_some(), other.machine.is_some()) {
            (true, false) if first.phase.as_deref() == Some("Available") => Some(("one-first", "one-other")),
            (false, true) if other.phase.as_deref() == Some("Available") => Some(("one-other", "one-first")),
            _ => None,
        }
    })
    .await;
    let held = loan::holder(&world.machine("m1").await).unwrap();
    assert_eq!(held.claim.name, winner);
    let loser = world.find_claim(loser).await.unwrap().status.unwrap();
    assert!(loser.order.is_none() && loser.node_name.is_none());
    host.kill().await;
}

fn lent(patch: Value) -> Plan {
    Plan {
        owned: Vec::new(),
        loans: vec![Loan {
            target: reference("m1"),
            patch,
        }],
        wants: Vec::new(),
        memo: String::new(),
        outcome: Outcome::Working(Progress {
            step: "Plotting".to_owned(),
            message: String::new(),
            recheck: None,
        }),
    }
}

fn owning(object: Value) -> Plan {
    Plan {
        owned: vec![object],
        ..lent(json!({"spec": {"online": true}}))
    }
}

#[rstest]
#[case::another_machine(Plan { loans: vec![Loan { target: reference("m2"), patch: json!({"spec": {"online": true}}) }], ..lent(json!({})) })]
#[case::the_bmc(lent(json!({"spec": {"bmc": {"address": "evil"}}})))]
#[case::another_claims_secret(lent(json!({"spec": {"userData": {"name": "boot-of-another", "namespace": MACHINES}}})))]
#[case::a_role_binding(owning(json!({
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
})))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_answer_writes_nothing(#[case] plan: Plan) {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    world.register("m2", json!({"online": false})).await;
    let before = [world.machine("m1").await, world.machine("m2").await];
    let host = world.start(Mood::Answers(Box::new(plan)), ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    let claim = world.reason("one-aaaaa", "Provisioned", "DriverOutOfScope").await;
    assert_ne!(claim.status.unwrap().phase.as_deref(), Some("Available"));
    assert_eq!([world.machine("m1").await, world.machine("m2").await], before);
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    world.is_clean().await;
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_object_is_never_adopted() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = world.namespaced(MACHINES);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": MACHINES}, "data": {"a": "b"}});
    maps.create(&PostParams::default(), &object(map.clone()))
        .await
        .unwrap();
    let mut wanted = map;
    wanted["data"]["a"] = json!("mine");
    let host = world
        .start(Mood::Answers(Box::new(owning(wanted))), ENDLESS)
        .await;
    world.claim("one-aaaaa", &machine).await;
    world.reason("one-aaaaa", "Provisioned", "NotOurs").await;
    assert!(
        loan::holder(&world.machine("m1").await).is_none(),
        "the rest of the answer was carried out"
    );
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert_eq!(maps.get("theirs").await.unwrap().data.unwrap()["a"], "b");
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_gives_up_early_changes_nothing() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let before = world.machine("m1").await;
    let host = world.start(Mood::GivesUp, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    world.delete_claim("one-aaaaa").await;
    world.reason("one-aaaaa", "Destroyed", "DriverGaveUpEarly").await;
    let held = world.machine("m1").await;
    assert!(loan::holder(&held).is_some() && !held["spec"]["image"].is_null());
    host.kill().await;
    // An honest version goes on where it stopped.
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.gone("one-aaaaa").await;
    assert_eq!(essence(&world.machine("m1").await), essence(&before));
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_waits_for_its_own_driver() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    host.kill().await;
    let taken = world.machine("m1").await;
    let host = world.start(Mood::Replaced, ENDLESS).await;
    world.reason("one-aaaaa", "Provisioned", "DriverMissing").await;
    world.delete_claim("one-aaaaa").await;
    world.reason("one-aaaaa", "Destroyed", "DriverMissing").await;
    assert_eq!(world.machine("m1").await, taken);
    host.kill().await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.gone("one-aaaaa").await;
    assert!(loan::holder(&world.machine("m1").await).is_none());
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_name_that_is_taken_orders_nothing() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let enrollments: Api<hostler_api::Enrollment> = world.namespaced(PROJECT);
    let by_hand = object(json!({
        "metadata": {"name": "one.m1"}, "spec": {"tenant": {"name": "one", "uid": world.tenant_uid}, "nodeName": "m1"},
    }));
    enrollments
        .create(&PostParams::default(), &by_hand)
        .await
        .unwrap();
    let before = world.machine("m1").await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.reason("one-aaaaa", "Provisioned", "NodeNameTaken").await;
    assert_eq!(world.machine("m1").await, before);
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert!(
        enrollments.get_opt("one.m1").await.unwrap().is_some(),
        "the other node's enrollment went"
    );
    host.kill().await;
}

/// A kubelet may die on a machine that is well: that is told, with its time, for those who repair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_of_its_node_is_told_by_a_claim() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    let kubelet_says = async |ready: &str| {
        let change = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        nodes
            .patch_status("m1", &PatchParams::default(), &Patch::Merge(&change))
            .await
            .unwrap();
    };
    // The loop that watches nodes is not here; it wakes a claim by its node.
    let wake = async |why: &str| {
        let claims: Api<hostler_api::NodeClaim> = world.namespaced(PROJECT);
        let change = json!({"metadata": {"annotations": {"example.com/woken": why}}});
        claims
            .patch("one-aaaaa", &PatchParams::default(), &Patch::Merge(&change))
            .await
            .unwrap();
    };
    let joined = async |reason: &str| {
        wake(reason).await;
        let status = world.reason("one-aaaaa", "Joined", reason).await.status.unwrap();
        hostler_api::conditions::find(&status.conditions, "Joined")
            .unwrap()
            .clone()
    };
    let first = joined("Joined").await;
    // Times are told in seconds.
    let later = first.last_transition_time.0 + Duration::from_secs(1);
    until("it is a second later", || async {
        (jiff::Timestamp::now() > later).then_some(())
    })
    .await;
    kubelet_says("Unknown").await;
    let lost = joined("NodeNotReady").await;
    assert!(
        lost.last_transition_time > first.last_transition_time,
        "the time is that of the change"
    );
    assert_ne!(lost.status, first.status);
    kubelet_says("True").await;
    joined("Joined").await;
    nodes.delete("m1", &DeleteParams::default()).await.unwrap();
    let missing = joined("NodeMissing").await;
    let told = missing.message.unwrap_or_default();
    assert!(
        told.contains("restart its kubelet, or delete the claim"),
        "{told}"
    );
    assert!(
        loan::holder(&world.machine("m1").await).is_some(),
        "nothing is given up for that"
    );
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert!(loan::holder(&world.machine("m1").await).is_none());
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_registered_anew_is_another_one() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    drop(
        world
            .machines()
            .delete("m1", &DeleteParams::default())
            .await
            .unwrap(),
    );
    until("the machine is gone", || async {
        world
            .machines()
            .get_opt("m1")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    world.register("m1", json!({"online": false})).await;
    let newcomer = world.machine("m1").await;
    let claim = world.reason("one-aaaaa", "Provisioned", "MachineLost").await;
    assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Failed"));
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert_eq!(world.machine("m1").await, newcomer);
    world.is_clean().await;
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_gone_holds_no_machine() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let before = world.machine("m1").await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    let never = json!({"spec": {"terminationGracePeriod": "Never"}});
    let claims: Api<hostler_api::NodeClaim> = world.namespaced(PROJECT);
    claims
        .patch("one-aaaaa", &PatchParams::default(), &Patch::Merge(&never))
        .await
        .unwrap();
    let tenants: Api<hostler_api::VirtualClusterInstance> = world.namespaced(PROJECT);
    drop(tenants.delete("one", &DeleteParams::default()).await.unwrap());
    world.server.delete_cluster("tenant").await.unwrap();
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    assert_eq!(essence(&world.machine("m1").await), essence(&before));
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_label_stays_and_a_nodes_finalizer_is_waited_for_no_longer_than_a_cap() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let before = world.machine("m1").await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    let label = json!({"metadata": {"labels": {"rack": "7"}}});
    world
        .machines()
        .patch("m1", &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    let held = json!({"metadata": {"finalizers": ["evil.example.com/hold"]}});
    nodes
        .patch("m1", &PatchParams::default(), &Patch::Merge(&held))
        .await
        .unwrap();
    world.delete_claim("one-aaaaa").await;
    world.gone("one-aaaaa").await;
    let mut want = essence(&before);
    want["metadata"]["labels"] = json!({"rack": "7"});
    assert_eq!(essence(&world.machine("m1").await), want);
    assert!(
        nodes
            .get("m1")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    host.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_reaches_no_live_machine_and_shows_as_drift() {
    let world = World::open().await;
    let machine = world.register("m1", json!({"online": false})).await;
    let host = world.start(Mood::Honest, ENDLESS).await;
    world.claim("one-aaaaa", &machine).await;
    world.phase("one-aaaaa", "Available").await;
    let taken = world.machine("m1").await;
    let claims: Api<hostler_api::NodeClaim> = world.namespaced(PROJECT);
    let edit = json!({"spec": {"nodeLabels": {"workload": "cpu"}}});
    claims
        .patch("one-aaaaa", &PatchParams::default(), &Patch::Merge(&edit))
        .await
        .unwrap();
    let claim = world.reason("one-aaaaa", "NotDrifted", "Drifted").await;
    let status = claim.status.unwrap();
    let drifted = hostler_api::conditions::find(&status.conditions, "NotDrifted")
        .unwrap()
        .message
        .clone()
        .unwrap();
    assert!(drifted.contains("spec.nodeLabels"), "{drifted}");
    assert_eq!(world.machine("m1").await, taken);
    assert_eq!(status.phase.as_deref(), Some("Available"));
    assert!(host.ctx.retries.count(super::NAME, &claim.metadata.uid.unwrap()) == 0);
    host.kill().await;
}
