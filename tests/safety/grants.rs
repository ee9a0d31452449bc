//! No grant, no access: what a driver may do is what the operator's file says today, and never what holds the cluster.

use serde_json::json;

use super::stage;
use crate::harness::{World, fixtures};

const HOSTILE: &str = "driver-hostile.wasm";

/// A world with two free hosts in `racks`, a project and a tenant.
async fn racks() -> World {
    let world = World::new().await;
    stage::apply(&world, &stage::namespace("racks")).await;
    for number in 0..2 {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(&world, &object).await;
        }
    }
    world
}

async fn tenant(world: &World) {
    stage::project(world, "default").await;
    stage::apply(world, &stage::tenant("default", "one", stage::PRIVATE)).await;
    stage::until_true(
        world,
        ("VirtualClusterInstance", Some("p-default"), "one"),
        "VirtualClusterReady",
    )
    .await;
    stage::until_free(world, "racks", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_does_not_grant_today_is_not_read_or_written() {
    let world = racks().await;
    let component = fixtures().join(HOSTILE);
    // Without a file there is no grant at all.
    std::fs::write(
        world.plugins().join("driver-bare.wasm"),
        std::fs::read(&component).unwrap(),
    )
    .unwrap();
    stage::plug(
        &world,
        &component,
        "driver-elsewhere",
        &stage::grant(&["other-racks".to_owned()]),
    );
    stage::plug(
        &world,
        &component,
        "driver-crowned",
        "[[kinds]]\napiVersion = \"rbac.authorization.k8s.io/v1\"\nkind = \"ClusterRoleBinding\"\naccess = \"manage\"\nnamespaces = [\"*\"]\n",
    );
    stage::plug(
        &world,
        &component,
        "driver-everywhere",
        &stage::grant(&["*".to_owned()]),
    );
    let host = world.host().await;
    tenant(&world).await;
    let config = json!({"namespace": "racks"});
    let refused = [
        ("bare", &config, "DriverOutOfScope"),
        ("elsewhere", &config, "DriverOutOfScope"),
        ("crowned", &config, "DriverMissing"),
        // Granted everywhere, it still reaches only where its provider points.
        (
            "everywhere",
            &json!({"namespace": "racks", "plan": "other-namespace"}),
            "DriverOutOfScope",
        ),
    ];
    for (driver, config, reason) in refused {
        stage::apply(&world, &stage::provider(driver, driver, config)).await;
        stage::until(&world, ("NodeProvider", None, driver), ("Initialized", reason)).await;
        stage::apply(
            &world,
            &stage::claim("default", &format!("c-{driver}"), "one", driver),
        )
        .await;
    }
    let told = stage::until_event(&world, "driver-crowned", "GrantInvalid").await;
    assert!(told.contains("can never be granted"), "{told}");

    // A grant that is taken back while the host runs: what was read is forgotten, and nothing new is placed.
    stage::plug(
        &world,
        &component,
        "driver-once",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(&world, &stage::provider("once", "once", &config)).await;
    stage::until(
        &world,
        ("NodeProvider", None, "once"),
        ("Initialized", "Described"),
    )
    .await;
    stage::apply(&world, &stage::claim("default", "first", "one", "once")).await;
    stage::until_available(&world, "p-default", "first").await;
    let before = stage::everything(&world).await;
    stage::put(
        &world,
        "driver-once.toml",
        stage::grant(&["other-racks".to_owned()]).as_bytes(),
    );
    stage::until(
        &world,
        ("NodeProvider", None, "once"),
        ("Initialized", "DriverOutOfScope"),
    )
    .await;
    stage::apply(&world, &stage::claim("default", "second", "one", "once")).await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-default"), "second"),
        ("Accepted", "Accepted"),
    )
    .await;
    stage::delete(&world, "NodeClaim", Some("p-default"), "first").await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-default"), "first"),
        ("Destroyed", "DriverOutOfScope"),
    )
    .await;
    let after = stage::everything(&world).await;
    for key in before.keys().filter(|key| key.contains(" BareMetalHost ")) {
        assert_eq!(before[key], after[key], "{key} was touched without a grant");
    }
    for name in ["second", "c-bare", "c-elsewhere", "c-crowned", "c-everywhere"] {
        let claim = stage::read(&world, "NodeClaim", Some("p-default"), name)
            .await
            .unwrap();
        assert!(
            claim["status"]["machine"].is_null() && claim["status"]["order"].is_null(),
            "{name}: {}",
            claim["status"]
        );
    }
    // Granted again, the machine comes back.
    stage::put(
        &world,
        "driver-once.toml",
        stage::grant(&["racks".to_owned()]).as_bytes(),
    );
    stage::until_gone(&world, "NodeClaim", Some("p-default"), "first").await;
    stage::until_available(&world, "p-default", "second").await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_stay_in_their_provider() {
    let world = racks().await;
    let component = fixtures().join(HOSTILE);
    stage::plug(
        &world,
        &component,
        "driver-hostile",
        &stage::grant(&["racks".to_owned()]),
    );
    let host = world.host().await;
    tenant(&world).await;
    // A type of the same full name that somebody else made stays as it is.
    let taken = json!({
        "apiVersion": "management.loft.sh/v1", "kind": "NodeType", "metadata": {"name": "late.server"},
        "spec": {"providerRef": "late", "displayName": "mine"},
    });
    stage::apply(&world, &taken).await;
    let before = stage::read(&world, "NodeType", None, "late.server")
        .await
        .unwrap();
    stage::apply(
        &world,
        &stage::provider("late", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    stage::until(
        &world,
        ("NodeProvider", None, "late"),
        ("Initialized", "NodeTypeTaken"),
    )
    .await;
    let after = stage::read(&world, "NodeType", None, "late.server")
        .await
        .unwrap();
    assert_eq!(before["spec"], after["spec"]);
    assert_eq!(
        before["metadata"]["annotations"],
        after["metadata"]["annotations"]
    );
    stage::apply(&world, &stage::claim("default", "late", "one", "late")).await;

    // A provider's name has no dot, so that `a.b` + `c` is never `a` + `b.c`.
    let dotted =
        serde_saphyr::to_string(&stage::provider("a.b", "hostile", &json!({"namespace": "racks"}))).unwrap();
    assert!(world.refusal(&dotted).await.contains("DNS label"));

    // A provider made again under its old name is another one, and takes no types over until the old ones are gone.
    stage::apply(
        &world,
        &stage::provider("again", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    stage::until(
        &world,
        ("NodeProvider", None, "again"),
        ("Initialized", "Described"),
    )
    .await;
    stage::apply(&world, &stage::claim("default", "good", "one", "again")).await;
    stage::until_available(&world, "p-default", "good").await;
    let late = stage::read(&world, "NodeClaim", Some("p-default"), "late")
        .await
        .unwrap();
    assert!(late["status"]["machine"].is_null(), "{}", late["status"]);
    host.stop().await;
}
