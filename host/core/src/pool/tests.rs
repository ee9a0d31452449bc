//! Tests of static pools: never too many, never the wrong ones, and the same again after a crash.

use std::collections::BTreeMap;

use hostler_api::conditions::Fact;
use hostler_api::node_type::Requirement;
use hostler_api::{NodeClaimStatus, VirtualClusterInstanceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;

const NOON: &str = "2026-11-29T12:00:00Z";

fn noon() -> Timestamp {
    NOON.parse().unwrap()
}

fn after(seconds: u64) -> Timestamp {
    noon() + Duration::from_secs(seconds)
}

fn tenant() -> VirtualClusterInstance {
    let mut tenant = VirtualClusterInstance::new("one", VirtualClusterInstanceSpec::default());
    tenant.metadata.namespace = Some("p-default".into());
    tenant.metadata.uid = Some("t-1".into());
    tenant
}

fn owner(tenant: &VirtualClusterInstance) -> Owner<'_> {
    Owner {
        tenant,
        installation: "test",
    }
}

fn pool(quantity: i64) -> Pool {
    Pool {
        path: "privateNodes.autoNodes[0].static[0]".into(),
        name: "gpu".into(),
        provider: "metal3".into(),
        kind: Kind::Static { quantity },
        requirements: vec![Requirement {
            key: names::PROPERTY_NODE_TYPE.into(),
            operator: "In".into(),
            values: vec!["gpu-server".into()],
        }],
        node_labels: BTreeMap::from([("workload".to_owned(), "gpu".to_owned())]),
        taints: Vec::new(),
        properties: BTreeMap::new(),
        property_paths: BTreeMap::new(),
        profile: Some("gpu-training".into()),
        termination_grace_period: None,
    }
}

/// The world of one namespace: creates and deletes as an API server would.
#[derive(Default)]
struct World(Vec<NodeClaim>);

impl World {
    fn seen(&self) -> Vec<&NodeClaim> {
        self.0.iter().collect()
    }

    fn apply(&mut self, plan: &Plan) {
        for claim in &plan.creates {
            if self
                .0
                .iter()
                .any(|known| known.metadata.name == claim.metadata.name)
            {
                continue;
            }
            let mut made = claim.clone();
            let number = self.0.len();
            made.metadata.uid = Some(format!("c-{number}-{}", made.metadata.name.as_deref().unwrap()));
            made.metadata.creation_timestamp = Some(Time(after(number as u64)));
            self.0.push(made);
        }
        for going in &plan.deletes {
            if let Some(claim) = self
                .0
                .iter_mut()
                .find(|claim| claim.metadata.uid.as_deref() == Some(&going.uid))
            {
                claim.metadata.deletion_timestamp = Some(Time(noon()));
            }
        }
    }

    fn live(&self) -> Vec<&NodeClaim> {
        self.0.iter().filter(|claim| is_live(claim)).collect()
    }

    fn set(&mut self, index: usize, phase: &str) {
        let status = self.0[index].status.get_or_insert_with(NodeClaimStatus::default);
        status.phase = Some(phase.into());
        conditions::set(
            &mut status.conditions,
            &Fact::no("Provisioned", "Lost", ""),
            None,
            noon(),
        );
    }

    fn turn(&mut self, quantity: i64, free: Option<i64>, now: Timestamp) -> Plan {
        let tenant = tenant();
        let plan = plan(owner(&tenant), &pool(quantity), &self.seen(), free, now);
        self.apply(&plan);
        plan
    }
}

#[test]
fn a_claim_is_made_as_the_pool_says() {
    let plan = World::default().turn(1, Some(1), noon());
    let claim = &plan.creates[0];
    insta::assert_yaml_snapshot!(claim);
}

#[test]
fn names_are_of_the_alphabet_and_follow_from_tenant_pool_slot_and_round() {
    let tenant = tenant();
    let first = name(owner(&tenant), "gpu", Slot { number: 0, round: 0 });
    assert_eq!(first, name(owner(&tenant), "gpu", Slot { number: 0, round: 0 }));
    let tail = first.strip_prefix("one-").unwrap();
    assert!(
        tail.len() == 5 && tail.bytes().all(|letter| ALPHABET.contains(&letter)),
        "{first}"
    );
    for (pool, number, round) in [("cpu", 0, 0), ("gpu", 1, 0), ("gpu", 0, 1)] {
        assert_ne!(first, name(owner(&tenant), pool, Slot { number, round }));
    }
    let mut again = tenant.clone();
    again.metadata.uid = Some("t-2".into());
    assert_ne!(first, name(owner(&again), "gpu", Slot { number: 0, round: 0 }));
    again.metadata.name = Some("x".repeat(80));
    assert_eq!(
        name(owner(&again), "gpu", Slot { number: 0, round: 0 }).len(),
        MAX_NAME
    );
}

#[test]
fn a_turn_from_an_empty_cache_after_a_crash_ends_with_exactly_as_many() {
    let mut world = World::default();
    world.turn(3, None, noon());
    let tenant = tenant();
    let blind = plan(owner(&tenant), &pool(3), &[], None, noon());
    world.apply(&blind);
    let half: Vec<&NodeClaim> = world.0.iter().take(1).collect();
    let behind = plan(owner(&tenant), &pool(3), &half, None, noon());
    world.apply(&behind);
    assert_eq!(world.0.len(), 3);
    assert_eq!(world.turn(3, None, noon()), Plan::default());
}

#[test]
fn ten_thousand_wanted_and_no_machine_free_makes_five_claims_and_no_more() {
    let mut world = World::default();
    for _ in 0..20 {
        world.turn(10_000, Some(0), noon());
    }
    assert_eq!(world.0.len(), 5);
    for claim in &mut world.0 {
        claim.spec.type_ref = Some("metal3.gpu-server".into());
    }
    for _ in 0..20 {
        world.turn(10_000, Some(2), noon());
    }
    assert_eq!(world.0.len(), 5 + 2 + 5);
}

#[test]
fn many_are_made_in_batches() {
    let mut world = World::default();
    let first = world.turn(120, None, noon());
    assert!(first.creates.len() == BATCH && first.more);
    world.turn(120, None, noon());
    assert!(!world.turn(120, None, noon()).more);
    assert_eq!(world.live().len(), 120);
}

#[test]
fn the_unready_go_first_then_the_marked_then_the_newest() {
    let mut world = World::default();
    world.turn(4, None, noon());
    for index in [0, 1, 2] {
        world.set(index, phase::AVAILABLE);
    }
    let marked = world.0[1].status.as_mut().unwrap();
    conditions::set(
        &mut marked.conditions,
        &Fact::yes(names::PREFERRED_DELETION, "Asked", ""),
        None,
        noon(),
    );
    let order: Vec<Option<String>> = world.0.iter().map(|claim| claim.metadata.name.clone()).collect();
    let mut gone = |quantity| -> Vec<Option<String>> {
        let plan = world.turn(quantity, None, noon());
        assert!(plan.creates.is_empty());
        plan.deletes.into_iter().map(|going| Some(going.name)).collect()
    };
    assert_eq!(gone(3), [order[3].clone()]);
    assert_eq!(gone(2), [order[1].clone()]);
    assert_eq!(gone(1), [order[2].clone()]);
    assert_eq!(gone(0), [order[0].clone()]);
}

#[test]
fn a_failed_claim_is_replaced_once_its_wait_is_over_and_under_another_name() {
    let mut world = World::default();
    world.turn(1, None, noon());
    world.set(0, phase::FAILED);
    let early = world.turn(1, None, after(1));
    assert!(early.creates.is_empty() && early.deletes.is_empty() && early.again.is_some());
    let late = world.turn(1, None, after(11));
    assert_eq!(late.deletes[0].why, "Replaced");
    assert_ne!(late.creates[0].metadata.name, world.0[0].metadata.name);
    assert_eq!(
        late.creates[0].metadata.annotations.as_ref().unwrap()[names::ATTEMPT],
        "1"
    );
    assert_eq!(world.turn(1, None, after(12)), Plan::default());
}

#[test]
fn without_capacity_a_failing_pool_makes_few_objects_in_ten_minutes() {
    let mut world = World::default();
    let mut made = 0;
    for second in 0..600 {
        made += world.turn(2, Some(0), after(second)).creates.len();
        for index in 0..world.0.len() {
            if is_live(&world.0[index]) && world.0[index].status.is_none() {
                world.set(index, phase::FAILED);
                let now = after(second);
                for condition in &mut world.0[index].status.as_mut().unwrap().conditions {
                    condition.last_transition_time = Time(now);
                }
            }
        }
    }
    assert!((2..=14).contains(&made), "{made}");
}

#[test]
fn a_claim_that_had_joined_starts_its_waits_anew() {
    let mut world = World::default();
    world.turn(1, None, noon());
    world.set(0, phase::FAILED);
    world.0[0]
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(names::ATTEMPT.into(), "3".into());
    world.0[0].status.as_mut().unwrap().node_uid = Some("n-1".into());
    let plan = world.turn(1, None, after(3600));
    assert!(
        !plan.creates[0]
            .metadata
            .annotations
            .as_ref()
            .unwrap()
            .contains_key(names::ATTEMPT)
    );
}

#[test]
fn claims_of_others_are_neither_counted_nor_touched() {
    let mut world = World::default();
    world.turn(1, None, noon());
    let mut by_hand = NodeClaim::new("one-mine", NodeClaimSpec::default());
    by_hand.metadata.namespace = Some("p-default".into());
    let mut earlier = world.0[0].clone();
    earlier
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(names::TENANT_UID.into(), "t-0".into());
    world.0[0] = earlier;
    world.0.push(by_hand);
    let plan = world.turn(1, None, noon());
    assert!(plan.deletes.is_empty());
    assert_eq!(
        plan.creates[0].metadata.annotations.as_ref().unwrap()[names::SLOT],
        "0.1"
    );
    let tenant = tenant();
    assert_eq!(orphaned(owner(&tenant), &[], &world.seen()).len(), 1);
}

#[test]
fn an_edited_pool_leaves_its_claims_and_says_what_differs() {
    let mut world = World::default();
    world.turn(1, None, noon());
    let mut edited = pool(1);
    assert_eq!(drift(&edited, &world.0[0]), [""; 0]);
    edited.node_labels.insert("new".into(), "label".into());
    edited.requirements.clear();
    assert_eq!(drift(&edited, &world.0[0]), ["nodeTypeSelector", "nodeLabels"]);
    let tenant = tenant();
    assert_eq!(
        plan(owner(&tenant), &edited, &world.seen(), None, noon()),
        Plan::default()
    );
}

#[test]
fn the_status_says_how_full_and_why_not() {
    let tenant = tenant();
    let mut world = World::default();
    world.turn(2, None, noon());
    world.set(0, phase::AVAILABLE);
    let waiting = world.0[1].status.get_or_insert_with(NodeClaimStatus::default);
    waiting.reason = Some("NoCapacity".into());
    waiting.message = Some("every machine is taken".into());
    let one = status(owner(&tenant), &pool(2), &world.seen());
    assert_eq!(
        (one.quantity, one.claims, one.available, one.reason.as_deref()),
        (2, 2, 1, Some("NoCapacity"))
    );
    let mut text = String::new();
    assert_eq!(filled(&[one], &mut text).status, Some(false));
    world.set(1, phase::AVAILABLE);
    let full = status(owner(&tenant), &pool(2), &world.seen());
    let dynamic = status(
        owner(&tenant),
        &Pool {
            kind: Kind::Dynamic,
            name: "d".into(),
            ..pool(0)
        },
        &world.seen(),
    );
    assert_eq!(dynamic.reason.as_deref(), Some("NotServedYet"));
    let mut text = String::new();
    assert_eq!(filled(&[full, dynamic], &mut text).status, Some(true));
}

proptest! {
    #[test]
    fn whatever_is_seen_a_pool_settles_at_its_quantity(
        steps in proptest::collection::vec((0i64..8, any::<u8>()), 1..20),
    ) {
        let mut world = World::default();
        let tenant = tenant();
        for (step, (quantity, lag)) in steps.iter().enumerate() {
            // A cache that shows only part of what was created.
            let shown: Vec<&NodeClaim> =
                world.0.iter().enumerate().filter(|(index, _)| lag >> (index % 8) & 1 == 0).map(|(_, claim)| claim).collect();
            let behind = plan(owner(&tenant), &pool(*quantity), &shown, None, after(step as u64));
            // Deletions are planned from a live list only, as the controller does.
            world.apply(&Plan { deletes: Vec::new(), ..behind });
        }
        let (last, _) = steps[steps.len() - 1];
        for _ in 0..3 {
            world.turn(last, None, after(100));
        }
        prop_assert_eq!(world.live().len() as i64, last);
        let names: BTreeSet<_> = world.0.iter().map(|claim| &claim.metadata.name).collect();
        prop_assert_eq!(names.len(), world.0.len());
    }
}
