//! The whole life of a host as real Metal3 was recorded, event by event, against the whole driver.

use hostler_sdk::Object;
use hostler_sdk::driver::{Availability, Driver, Outcome};
use serde_json::{Value, json};

use crate::Metal3;

const ONE_HOST: &str = include_str!("../../../tests/traces/metal3/one-host.jsonl");
const ERRORS: &str = include_str!("../../../tests/traces/metal3/errors.jsonl");

fn provider() -> Object {
    Object::from_value(json!({
        "kind": "NodeProvider",
        "metadata": {"name": "metal3"},
        "spec": {"metal3": {"clusterRef": {"namespace": "metal3-system"}, "nodeTypes": [{"name": "any"}]}},
    }))
}

fn events(trace: &str) -> Vec<Value> {
    trace
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn word(availability: &Availability) -> &str {
    match availability {
        Availability::Free => "free",
        Availability::Held(reason) | Availability::Preparing(reason) | Availability::Broken(reason) => {
            &reason.code
        }
    }
}

/// The words of a sequence, each once as long as it lasts.
fn sequence(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = words.collect();
    found.dedup();
    found
}

fn availabilities(trace: &str, name: &str, change: impl Fn(&mut Value)) -> Vec<String> {
    let objects = events(trace).into_iter().map(|mut event| event["object"].take());
    let of_host = objects.filter(|object| object["metadata"]["name"] == name);
    sequence(of_host.map(|mut object| {
        change(&mut object);
        let machine = Metal3::machine_of(&provider(), &Object::from_value(object), &[])
            .unwrap()
            .unwrap();
        word(&machine.availability).to_owned()
    }))
}

#[test]
fn a_host_is_free_only_while_it_is_available_settled_and_nobodys() {
    assert_eq!(
        availabilities(ONE_HOST, "server1", |_| {}),
        [
            "Registering",
            "Inspecting",
            "Preparing",
            "free", // registered
            "InUse",
            "Paused",
            "InUse", // claimed, paused for a while
            "Cleaning",
            "InUse",
            "Unobserved",
            "free", // released: the consumer goes last
            "InUse",
            "BeingDeleted", // taken once more and deleted
        ]
    );
}

#[test]
fn with_our_marks_hidden_a_released_host_is_free_when_its_power_is_off_and_not_before() {
    let hide = |object: &mut Value| {
        object["spec"].as_object_mut().unwrap().remove("consumerRef");
        object["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("metal3.vcluster.com/node-claim");
    };
    let after_release = availabilities(ONE_HOST, "server1", hide);
    let cleaning = after_release.iter().position(|word| word == "Cleaning").unwrap();
    assert_eq!(
        after_release[cleaning..cleaning + 3],
        ["Cleaning", "Settling", "free"]
    );
}

#[test]
fn hosts_in_trouble_are_never_free_while_they_are() {
    let addressed = |object: &mut Value| {
        object["metadata"]["annotations"]["metal3.vcluster.com/ip-address"] = json!("10.0.0.12/24");
    };
    let seen = availabilities(ERRORS, "no-secret", addressed);
    assert!(
        seen.contains(&"HostError".to_owned()) && seen.contains(&"free".to_owned()),
        "{seen:?}"
    );
    assert!(
        seen.iter().position(|word| word == "HostError") < seen.iter().position(|word| word == "free"),
        "{seen:?}"
    );
    assert!(!availabilities(ERRORS, "detached", addressed).contains(&"free".to_owned()));
    assert!(!availabilities(ERRORS, "no-bmc", addressed).contains(&"free".to_owned()));
}

#[test]
fn an_order_follows_the_recorded_host_to_ready_and_back() {
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "metal3-system", "name": "server1-user"});
    let mut order: hostler_sdk::driver::Order = serde_json::from_value(json!({
        "claim": {
            "apiVersion": "management.loft.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": "one-abcde", "namespace": "p-default", "uid": "claim-uid"},
        },
        "provider": provider().value(),
        "nodeType": "any",
        "machine": {
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "namespace": "metal3-system", "name": "server1",
        },
        "bootSecret": secret,
        "properties": {
            "metal3.vcluster.com/image-url": "http://127.0.0.1/ubuntu.qcow2",
            "metal3.vcluster.com/image-checksum": "http://127.0.0.1/ubuntu.sha256",
            "metal3.vcluster.com/image-checksum-type": "sha256",
        },
    }))
    .unwrap();
    let events = events(ONE_HOST);
    let object = |index: usize| [Object::from_value(events[index]["object"].clone())];
    let step = |outcome: &Outcome| match outcome {
        Outcome::Working(progress) => progress.step.clone(),
        Outcome::Ready(_) => "ready".to_owned(),
        Outcome::Gone => "gone".to_owned(),
        Outcome::Lost(reason) => reason.code.clone(),
    };
    // From the moment in which it is free until it is released.
    let forth = sequence((9..25).map(|index| {
        let plan = Metal3::provision(&order, &object(index)).unwrap();
        assert_eq!(plan.loans.len(), 1, "the loan stands throughout");
        order.memo = plan.memo;
        step(&plan.outcome)
    }));
    assert_eq!(
        forth,
        [
            "Taking",
            "Taken",
            "Provisioning",
            "PoweringOn",
            "ready", // installed
            "Paused",
            "ready", // somebody takes the power in the pause, and gives it back
            "PoweringOn",
            "ready", // and once more
        ]
    );
    let back = sequence((25..30).map(|index| {
        let plan = Metal3::release(&order, &object(index)).unwrap();
        assert_eq!(
            plan.loans.is_empty(),
            plan.outcome == Outcome::Gone,
            "held until it is clean"
        );
        step(&plan.outcome)
    }));
    assert_eq!(back, ["Releasing", "Cleaning", "PoweringOff", "gone"]);
}
