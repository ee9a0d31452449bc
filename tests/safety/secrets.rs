//! Secrets do not cross: not to a guest, and not into what a tenant may read.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::stage::{self, Dump};
use crate::harness::{PLATFORM, World, fixtures};

/// Everything that a tenant of a project may read: its project's namespace, its own, and all of its cluster.
fn readable(all: &Dump, project: &str, tenant: &str, cluster: &str) -> Vec<(String, String)> {
    let places = [format!(" p-{project}/"), format!(" loft-{project}-v-{tenant}/")];
    all.iter()
        .filter(|(key, _)| {
            key.starts_with(&format!("{cluster} ")) || places.iter().any(|place| key.contains(place))
        })
        .map(|(key, value)| (key.clone(), told(value)))
        .collect()
}

/// An object as text, with what is encoded in it read as well.
fn told(value: &Value) -> String {
    use base64::Engine as _;
    let mut text = value.to_string();
    for data in value["data"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, data)| data.as_str())
    {
        let decoded = base64::engine::general_purpose::STANDARD
            .decode(data)
            .unwrap_or_default();
        text.push_str(&String::from_utf8_lossy(&decoded));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_sees_no_secret_and_a_tenant_sees_nobody_else() {
    let world = World::new().await;
    let hostile = fixtures().join("driver-hostile.wasm");
    stage::plug(
        &world,
        &hostile,
        "driver-echo",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(&world, &stage::namespace("racks")).await;
    for number in 0..2 {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(&world, &object).await;
        }
    }
    // What operators do write where it does not belong.
    stage::change(
        &world,
        "BareMetalHost",
        Some("racks"),
        "rack-0",
        json!({"metadata": {"annotations": {
        "example.com/ipmi-password": "hunter2-in-an-annotation"}}}),
    )
    .await;
    stage::change(
        &world,
        "BareMetalHost",
        Some("racks"),
        "rack-1",
        json!({"metadata": {"annotations": {
        "example.com/ipmi-password": "hunter2-in-an-annotation"}}}),
    )
    .await;
    let host = world.host().await;
    let config = json!({"namespace": "racks", "plan": "echo", "apiToken": "hunter2-in-the-config",
        "loginSecretRef": {"name": "login-of-the-operator", "namespace": "racks"}});
    stage::apply(&world, &stage::provider("yard", "echo", &config)).await;
    for (project, tenant) in [("red", "crimson"), ("blue", "azure")] {
        stage::project(&world, project).await;
        stage::apply(&world, &stage::tenant(project, tenant, stage::PRIVATE)).await;
        let namespace = format!("p-{project}");
        stage::until_true(
            &world,
            ("VirtualClusterInstance", Some(&namespace), tenant),
            "VirtualClusterReady",
        )
        .await;
        stage::apply(
            &world,
            &stage::claim(project, &format!("{tenant}-claim"), tenant, "yard"),
        )
        .await;
    }
    for (project, tenant) in [("red", "crimson"), ("blue", "azure")] {
        stage::until_available(&world, &format!("p-{project}"), &format!("{tenant}-claim")).await;
    }
    let claim = stage::read(&world, "NodeClaim", Some("p-red"), "crimson-claim")
        .await
        .unwrap();
    let seen = claim["status"]["memo"]
        .as_str()
        .unwrap_or_else(|| panic!("{}", claim["status"]))
        .to_owned();
    assert!(
        seen.contains("\"kind\":\"BareMetalHost\""),
        "the guest saw no host: {seen}"
    );
    for secret in [
        "hunter2",
        "hostler.dev/loan",
        "managedFields",
        "last-applied-configuration",
        "login-of-the-operator",
    ] {
        assert!(!seen.contains(secret), "a guest saw {secret}: {seen}");
    }

    let all = stage::everything(&world).await;
    let clusters = world.stack.clusters();
    for (project, tenant, other) in [
        ("red", "crimson", ["blue", "azure"]),
        ("blue", "azure", ["red", "crimson"]),
    ] {
        let cluster = clusters
            .iter()
            .find(|name| name.starts_with(&format!("{tenant}-")))
            .unwrap();
        let theirs = clusters
            .iter()
            .find(|name| name.starts_with(&format!("{}-", other[1])))
            .unwrap();
        let found = readable(&all, project, tenant, cluster);
        let kinds = [" NodeClaim ", " Secret loft-", " Node /"];
        for kind in kinds {
            assert!(
                found.iter().any(|(key, _)| key.contains(kind)),
                "{kind} is not among what a tenant may read"
            );
        }
        for (key, text) in found {
            // What the driver itself keeps in its memo is what it saw, and it is told so in its contract.
            let text = if key.contains(" NodeClaim ") {
                text.replace(&seen, "")
            } else {
                text
            };
            let forbidden = [
                format!("p-{}", other[0]),
                format!("{}-claim", other[1]),
                theirs.clone(),
                "hunter2".to_owned(),
                "login-of-the-operator".to_owned(),
            ];
            for word in forbidden {
                assert!(!text.contains(&word), "{key} names {word}: {text}");
            }
        }
    }
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_driver_tells_of_a_management_controller_stays_with_the_operator() {
    let world = World::new().await;
    let hostile = fixtures().join("driver-hostile.wasm");
    stage::plug(
        &world,
        &hostile,
        "driver-gossip",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(&world, &stage::namespace("racks")).await;
    for object in stage::host("racks", "rack-0", 0) {
        stage::apply(&world, &object).await;
    }
    let host = world.host().await;
    stage::project(&world, "default").await;
    stage::apply(&world, &stage::tenant("default", "one", stage::PRIVATE)).await;
    stage::apply(
        &world,
        &stage::provider("yard", "gossip", &json!({"namespace": "racks", "plan": "gossip"})),
    )
    .await;
    stage::apply(&world, &stage::claim("default", "told", "one", "yard")).await;
    let told = stage::until(
        &world,
        ("NodeClaim", Some("p-default"), "told"),
        ("Provisioned", "Gossip"),
    )
    .await;
    assert_eq!(told.message, "[hidden] opens [hidden]");
    let claim = stage::read(&world, "NodeClaim", Some("p-default"), "told")
        .await
        .unwrap()
        .to_string();
    let client = world.stack.administrator(PLATFORM);
    let events: Api<Event> = Api::namespaced(client, "p-default");
    let events = events.list(&ListParams::default()).await.unwrap();
    for text in [claim, serde_json::to_string(&events).unwrap()] {
        assert!(
            !text.contains("rack-0-bmc") && !text.contains("bmc-of-rack-0"),
            "{text}"
        );
    }
    host.stop().await;
}
