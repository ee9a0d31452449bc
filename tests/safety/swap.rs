//! A swapped driver reimages nobody: live claims go on with the very bytes that they were ordered with.

use serde_json::{Value, json};

use super::stage;
use crate::harness::{World, eventually, fixtures};

/// The same component with other bytes: a section that nobody reads is at its end.
fn other_version(number: u8) -> Vec<u8> {
    let mut bytes = std::fs::read(fixtures().join("driver-hostile.wasm")).unwrap();
    let name = b"version";
    bytes.extend([
        0,
        u8::try_from(name.len() + 2).unwrap(),
        u8::try_from(name.len()).unwrap(),
    ]);
    bytes.extend(name);
    bytes.push(number);
    bytes
}

async fn serving(world: &World) -> String {
    let plugin = stage::read(world, "Plugin", None, "driver-hostile")
        .await
        .unwrap_or_default();
    plugin["status"]["digest"].as_str().unwrap_or_default().to_owned()
}

async fn ordered_with(world: &World, claim: &str) -> String {
    let claim = stage::read(world, "NodeClaim", Some("p-default"), claim)
        .await
        .unwrap();
    claim["status"]["order"]["digest"].as_str().unwrap().to_owned()
}

async fn hosts(world: &World) -> Vec<Value> {
    let mut all = Vec::new();
    for number in 0..3 {
        all.push(
            stage::read(world, "BareMetalHost", Some("racks"), &format!("rack-{number}"))
                .await
                .unwrap(),
        );
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swapped_or_lost_driver_touches_no_live_machine_and_gives_none_up() {
    let world = World::new().await;
    stage::put(
        &world,
        "driver-hostile.toml",
        stage::grant(&["racks".to_owned()]).as_bytes(),
    );
    stage::put(&world, "driver-hostile.wasm", &other_version(1));
    stage::apply(&world, &stage::namespace("racks")).await;
    for number in 0..3 {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(&world, &object).await;
        }
    }
    let host = world.host().await;
    stage::apply(
        &world,
        &stage::provider("yard", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    stage::project(&world, "default").await;
    stage::apply(&world, &stage::tenant("default", "one", stage::PRIVATE)).await;
    stage::until_free(&world, "racks", 3).await;
    for name in ["a", "b"] {
        stage::apply(&world, &stage::claim("default", name, "one", "yard")).await;
        stage::until_available(&world, "p-default", name).await;
    }
    let (first, before) = (serving(&world).await, hosts(&world).await);
    assert_eq!(ordered_with(&world, "a").await, first);

    stage::put(&world, "driver-hostile.wasm", &other_version(2));
    let second = eventually("the new version serves", || async {
        let now = serving(&world).await;
        if now != first && !now.is_empty() {
            Ok(now)
        } else {
            Err(now)
        }
    })
    .await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-default"), "a"),
        ("NotDrifted", "Drifted"),
    )
    .await;
    assert_eq!(hosts(&world).await, before, "the swap wrote to a machine");
    stage::apply(&world, &stage::claim("default", "c", "one", "yard")).await;
    stage::until_available(&world, "p-default", "c").await;
    assert_eq!(ordered_with(&world, "c").await, second);
    assert_eq!(ordered_with(&world, "a").await, first);

    // The bytes that live claims name survive a restart, though their file is long gone.
    host.stop().await;
    let host = world.host().await;
    stage::delete(&world, "NodeClaim", Some("p-default"), "a").await;
    stage::until_gone(&world, "NodeClaim", Some("p-default"), "a").await;
    host.stop().await;

    // Without file and without memory: the claim waits, and its machine is nobody else's.
    for file in ["driver-hostile.wasm", "driver-hostile.toml"] {
        std::fs::remove_file(world.plugins().join(file)).unwrap();
    }
    std::fs::remove_dir_all(world.folder.path().join("state")).unwrap();
    let before = hosts(&world).await;
    let host = world.host().await;
    stage::delete(&world, "NodeClaim", Some("p-default"), "b").await;
    let told = stage::until(
        &world,
        ("NodeClaim", Some("p-default"), "b"),
        ("Destroyed", "DriverMissing"),
    )
    .await;
    assert!(told.message.contains("driver-hostile"), "{told:?}");
    stage::until_event(&world, "b", "DriverMissing").await;
    assert_eq!(
        hosts(&world).await,
        before,
        "a machine was given up without its driver"
    );
    assert!(
        stage::read(&world, "NodeClaim", Some("p-default"), "b")
            .await
            .is_some()
    );

    // The very bytes come back, beside whatever serves by then.
    stage::put(
        &world,
        "driver-hostile.toml",
        stage::grant(&["racks".to_owned()]).as_bytes(),
    );
    stage::put(&world, "driver-hostile.wasm", &other_version(1));
    stage::until_gone(&world, "NodeClaim", Some("p-default"), "b").await;
    host.stop().await;
}
