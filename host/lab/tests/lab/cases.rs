//! What was not recorded, but is how the real controller works: one host, virtual time.

use std::time::Duration;

use hostler_lab::bmh::Hardware;
use rstest::rstest;
use serde_json::{Value, json};

use crate::pure::World;
use crate::recording::distinct;

const HOST: &str = "server1";

/// A host with an extended spec and annotations, and a minute later.
fn world(spec: Value, annotations: Value) -> World {
    let mut world = World::new();
    let mut full = json!({
        "online": false, "bootMACAddress": "52:54:00:00:00:01",
        "bmc": {"address": "redfish://127.0.0.1/redfish/v1/Systems/1", "credentialsName": "server1-bmc"},
    });
    for (key, value) in spec.as_object().unwrap() {
        full[key] = value.clone();
    }
    let object = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "spec": full,
        "metadata": {"name": HOST, "namespace": "metal3-system", "annotations": annotations},
    });
    world.create(serde_json::from_value(object).unwrap(), Hardware::default());
    later(&mut world);
    world
}

fn later(world: &mut World) {
    world.run(world.now + Duration::from_secs(60), |_| false);
}

fn patch(world: &mut World, patch: &Value) {
    world.patch(HOST, patch);
    later(world);
}

fn now(world: &World) -> Value {
    serde_json::to_value(&world.hosts[HOST].object).unwrap()
}

fn state(world: &World) -> (String, bool) {
    let status = &now(world)["status"];
    (
        status["provisioning"]["state"].as_str().unwrap().to_owned(),
        status["poweredOn"] == true,
    )
}

fn states(world: &World) -> Vec<String> {
    let states = world.seen[HOST]
        .iter()
        .flatten()
        .filter_map(|object| Some(object["status"]["provisioning"]["state"].as_str()?.to_owned()));
    distinct(states)
}

fn image() -> Value {
    json!({"url": "http://images/a.qcow2", "checksum": "abc"})
}

#[rstest]
#[case::is_available_and_off(json!({}), "available", false)]
#[case::that_is_online_is_available_and_on(json!({"online": true}), "available", true)]
#[case::with_an_image_but_not_online_is_not_provisioned(json!({"image": image()}), "available", false)]
#[case::with_an_image_and_online_is_provisioned(json!({"online": true, "image": image()}), "provisioned", true)]
#[case::with_a_deployment_is_provisioned(json!({"online": true, "customDeploy": {"method": "x"}}), "provisioned", true)]
#[case::of_somebody_else_is_only_powered(json!({"online": true, "externallyProvisioned": true}), "externally provisioned", true)]
fn a_host(#[case] spec: Value, #[case] want: &str, #[case] powered_on: bool) {
    let world = world(spec, json!({}));
    assert_eq!(state(&world), (want.to_owned(), powered_on));
    let operational = &now(&world)["status"]["operationalStatus"];
    assert_eq!(operational, "OK");
}

#[test]
fn inspection_is_skipped_where_it_is_disabled() {
    let world = world(json!({"inspectionMode": "disabled"}), json!({}));
    assert_eq!(states(&world), ["registering", "preparing", "available"]);
}

#[test]
fn an_available_host_is_inspected_again_when_it_is_asked_for() {
    let mut world = world(json!({}), json!({}));
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"inspect.metal3.io": ""}}}),
    );
    assert_eq!(
        states(&world),
        [
            "registering",
            "inspecting",
            "preparing",
            "available",
            "inspecting",
            "preparing",
            "available"
        ]
    );
    assert_eq!(
        now(&world)["metadata"]["annotations"]
            .as_object()
            .map(serde_json::Map::len),
        Some(0)
    );
}

#[test]
fn an_inventory_given_by_hand_is_taken_over() {
    let given = json!({"cpu": {"arch": "aarch64", "count": 4}, "ramMebibytes": 2048}).to_string();
    let world = world(json!({}), json!({"inspect.metal3.io/hardwaredetails": given}));
    let host = now(&world);
    assert_eq!(host["spec"]["architecture"], "aarch64");
    assert!(
        host["metadata"]["annotations"]
            .get("inspect.metal3.io/hardwaredetails")
            .is_none()
    );
}

#[test]
fn a_keyed_reboot_keeps_the_power_off_until_it_is_taken_back() {
    let mut world = world(json!({"online": true, "image": image()}), json!({}));
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"reboot.metal3.io/repair": ""}}}),
    );
    assert_eq!(state(&world), ("provisioned".to_owned(), false));
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"reboot.metal3.io/repair": null}}}),
    );
    assert_eq!(state(&world), ("provisioned".to_owned(), true));
}

#[test]
fn an_image_taken_back_while_it_is_written_is_cleaned_away() {
    let mut world = world(json!({}), json!({}));
    world.patch(HOST, &json!({"spec": {"online": true, "image": image()}}));
    world.run(world.now + Duration::from_secs(3), |_| false);
    assert_eq!(state(&world).0, "provisioning");
    patch(&mut world, &json!({"spec": {"online": false, "image": null}}));
    assert_eq!(state(&world), ("available".to_owned(), false));
    assert_eq!(
        states(&world)[4..],
        ["provisioning", "deprovisioning", "available"]
    );
}

#[test]
fn only_what_is_installed_and_has_power_runs() {
    let mut world = world(json!({}), json!({}));
    let running = |world: &World| world.hosts[HOST].hardware.running();
    assert_eq!(running(&world), None);
    patch(&mut world, &json!({"spec": {"online": true, "image": image()}}));
    let first = running(&world).unwrap();
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"reboot.metal3.io": ""}}}),
    );
    let second = running(&world).unwrap();
    assert_eq!((&second.disk, second.boot), (&first.disk, first.boot + 1));
    patch(
        &mut world,
        &json!({"spec": {"image": {"url": "http://images/b.qcow2"}}}),
    );
    assert_ne!(running(&world).unwrap().disk, first.disk);
    patch(&mut world, &json!({"spec": {"online": false}}));
    assert_eq!(running(&world), None);
}

#[test]
fn a_paused_host_is_not_even_deleted() {
    let mut world = world(json!({}), json!({"baremetalhost.metal3.io/paused": ""}));
    assert!(now(&world).get("status").is_none());
    assert!(
        now(&world)["metadata"].get("finalizers").is_none(),
        "nothing was written"
    );
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": null}}}),
    );
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": "again"}}}),
    );
    world.delete(HOST);
    later(&mut world);
    assert_eq!(state(&world).0, "available");
    patch_last(
        &mut world,
        &json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": null}}}),
    );
    assert!(world.hosts.is_empty());
}

fn patch_last(world: &mut World, change: &Value) {
    world.patch(HOST, change);
    world.run(world.now + Duration::from_secs(60), |world| {
        world.hosts.is_empty()
    });
}

#[test]
fn a_detached_host_waits_with_its_deletion_when_that_is_asked_for() {
    let mut world = world(json!({"online": true, "image": image()}), json!({}));
    let wait = json!({"deleteAction": "delay"}).to_string();
    patch(
        &mut world,
        &json!({"metadata": {"annotations": {"baremetalhost.metal3.io/detached": wait}}}),
    );
    world.delete(HOST);
    later(&mut world);
    assert_eq!(state(&world).0, "provisioned");
    patch_last(
        &mut world,
        &json!({"metadata": {"annotations": {"baremetalhost.metal3.io/detached": null}}}),
    );
    assert!(world.hosts.is_empty());
    // It was still reported as detached at that moment, so it goes as a detached host does: at once, uncleaned.
    assert_eq!(states(&world)[4..], ["provisioning", "provisioned", "deleting"]);
}

#[test]
fn a_host_whose_secret_has_gone_can_still_be_deleted() {
    let mut world = world(json!({"online": true, "image": image()}), json!({}));
    world.secrets.clear();
    world.delete(HOST);
    world.run(world.now + Duration::from_secs(60), |world| {
        world.hosts.is_empty()
    });
    assert!(world.hosts.is_empty());
}

#[rstest]
#[case::ipmi("ipmi://10.0.0.1", true)]
#[case::redfish_over_http("redfish+http://10.0.0.1/redfish/v1", true)]
#[case::virtual_media("redfish-virtualmedia+https://10.0.0.1/redfish/v1", true)]
#[case::an_address_alone("10.0.0.1:6230", true)]
#[case::ipmi_over_http("ipmi+http://10.0.0.1", false)]
#[case::redfish_over_smoke("redfish+smoke://10.0.0.1", false)]
fn a_protocol_is_known(#[case] address: &str, #[case] known: bool) {
    let world = world(
        json!({"bmc": {"address": address, "credentialsName": "server1-bmc"}}),
        json!({}),
    );
    assert_eq!(
        state(&world).0 == "available",
        known,
        "{}",
        now(&world)["status"]["errorMessage"]
    );
}
