//! Policies fail closed: missing, broken, slow or lost, the answer is no; what served well goes on serving.

use hostler_cli::args::RequiredPlugins;
use hostler_controllers::Settings;
use serde_json::json;
use std::sync::Arc;

use super::stage;
use crate::harness::{Host, World, components, fixtures};

/// A host that wants the hostile policy besides ours.
async fn strict(world: &World) -> Host {
    let required = RequiredPlugins {
        resolver: "resolver-precedence".to_owned(),
        policies: vec!["policy-allowlist".to_owned(), "policy-hostile".to_owned()],
    };
    let stack = world.stack.clone();
    let clients = Arc::new(move |cluster: &str| stack.as_host(cluster));
    world.host_through(clients, Settings::default(), &required).await
}

fn operator(plan: &str) -> String {
    format!(
        "[settings]\nplan = \"{plan}\"\n[limits]\nmemory = \"16MiB\"\ntime = \"200ms\"\noutput = \"4MiB\"\n"
    )
}

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
    stage::project(world, "default").await;
    stage::apply(world, &stage::tenant("default", "one", stage::PRIVATE)).await;
    stage::until_free(world, "racks", 3).await;
    stage::until(
        world,
        ("NodeProvider", None, "yard"),
        ("Initialized", "Described"),
    )
    .await;
}

async fn denied(world: &World, name: &str, reason: &str) -> String {
    stage::apply(world, &stage::claim("default", name, "one", "yard")).await;
    let told = stage::until(
        world,
        ("NodeClaim", Some("p-default"), name),
        ("Accepted", reason),
    )
    .await;
    assert_eq!(told.status, "False", "{told:?}");
    assert!(
        !told.message.chars().any(char::is_control) && told.message.len() < 4096,
        "{told:?}"
    );
    let claim = stage::read(world, "NodeClaim", Some("p-default"), name)
        .await
        .unwrap();
    assert!(claim["status"]["machine"].is_null(), "{}", claim["status"]);
    told.message
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_a_policy_the_answer_is_no_until_it_says_yes() {
    let world = World::new().await;
    let host = strict(&world).await;
    yard(&world).await;
    denied(&world, "missing", "PolicyMissing").await;
    // A namespace that looks like a project's, without a Project: no yes either.
    stage::apply(&world, &stage::namespace("p-ghost")).await;
    stage::apply(&world, &stage::claim("ghost", "ghost", "one", "yard")).await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-ghost"), "ghost"),
        ("Accepted", "ProjectNotRead"),
    )
    .await;

    let hostile = fixtures().join("policy-hostile.wasm");
    for (plan, reason) in [
        ("deny", "Unwilling"),
        ("trap", "PolicyFailed"),
        ("loop", "PolicyFailed"),
        ("recurse", "PolicyFailed"),
        ("eat", "PolicyFailed"),
        ("shout", "PluginReason"),
    ] {
        stage::plug(&world, &hostile, "policy-hostile", &operator(plan));
        let name = format!("c-{plan}");
        denied(&world, &name, reason).await;
        stage::delete(&world, "NodeClaim", Some("p-default"), &name).await;
        stage::until_gone(&world, "NodeClaim", Some("p-default"), &name).await;
    }
    stage::plug(&world, &hostile, "policy-hostile", &operator("allow"));
    stage::until_available(&world, "p-default", "missing").await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_or_broken_policy_leaves_the_last_good_one_serving_across_restarts() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world).await;
    let forbid = |name: &str| json!({"apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": name}, "spec": {"allowedNodeTypes": []}});
    stage::apply(&world, &forbid("closed")).await;
    stage::until(
        &world,
        ("Project", None, "closed"),
        ("NamespaceReady", "NamespaceReady"),
    )
    .await;
    stage::apply(&world, &stage::tenant("closed", "one", stage::PRIVATE)).await;
    stage::apply(&world, &stage::claim("default", "before", "one", "yard")).await;
    stage::until_available(&world, "p-default", "before").await;

    let file = world.plugins().join("policy-allowlist.wasm");
    std::fs::remove_file(&file).unwrap();
    stage::apply(&world, &stage::claim("default", "without", "one", "yard")).await;
    stage::until_available(&world, "p-default", "without").await;
    host.stop().await;

    // Not even the file of the last start is there: the host remembers what served.
    let host = world.host().await;
    stage::apply(&world, &stage::claim("closed", "no", "one", "yard")).await;
    let told = stage::until_event(&world, "no", "TypeNotAllowed").await;
    assert!(told.contains("allowedNodeTypes"), "{told}");
    stage::put(
        &world,
        "policy-allowlist.wasm",
        b"\0asm\x0d\0\x01\0, but only at first sight",
    );
    stage::until_event(&world, "policy-allowlist", "InvalidComponent").await;
    stage::apply(&world, &stage::claim("default", "garbage", "one", "yard")).await;
    stage::until_available(&world, "p-default", "garbage").await;
    let no = stage::read(&world, "NodeClaim", Some("p-closed"), "no")
        .await
        .unwrap();
    assert!(no["status"]["machine"].is_null(), "{}", no["status"]);
    stage::put(
        &world,
        "policy-allowlist.wasm",
        &std::fs::read(components().join("policy-allowlist.wasm")).unwrap(),
    );
    host.stop().await;
}
