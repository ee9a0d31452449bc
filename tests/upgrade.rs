//! A host that is newer than the definitions on its platform.

use hostler_api as api;
use hostler_cli::wire::install;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::harness::process::Process;
use crate::harness::{World, eventually};

/// A field that came with a later version.
const FIELD: &str = "specDigest";

/// Each look is told, and not only each thirtieth.
const LOG: [&str; 2] = ["--log-level", "info,hostler_cli=debug"];

/// The claims' definition of a time when they had no such field.
fn earlier() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(api::NodeClaim::crd()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["machine"]
        ["properties"]
        .as_object_mut()
        .unwrap()
        .remove(FIELD)
        .unwrap();
    serde_json::from_value(definition).unwrap()
}

/// What the API says of its kinds follows their definitions a moment later.
async fn until_described(world: &World, has_field: bool) {
    eventually("the API describes its kinds as they are", || async {
        let request = http::Request::get("/openapi/v3/apis/management.loft.sh/v1").body(Vec::new());
        let told = world
            .client
            .request_text(request.unwrap())
            .await
            .map_err(|error| error.to_string())?;
        let is_right = told.contains(&format!("\"{FIELD}\":")) == has_field;
        is_right
            .then_some(())
            .ok_or_else(|| format!("{FIELD}: {}", !has_field))
    })
    .await;
}

async fn says(host: &Process, what: &str) {
    eventually(what, || async {
        let said = host.said();
        said.contains(what).then_some(()).ok_or(said)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_waits_for_the_fields_that_it_knows_and_says_which_they_are() {
    let world = World::new().await;
    until_described(&world, true).await;
    install(&world.client, vec![earlier()]).await.unwrap();
    until_described(&world, false).await;
    // Where its lease is to be.
    world
        .apply("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: hostler-system\n")
        .await;
    let host = Process::start(&world, "host", &world.stack.host_kubeconfig(), &LOG);
    says(
        &host,
        "nodeclaims.management.loft.sh/v1 without status.machine.specDigest",
    )
    .await;
    says(&host, "still waiting for kinds and fields").await;
    let said = host.said();
    assert!(said.contains("apply what `hostler crds` prints"), "{said}");
    assert!(!said.contains("this host leads"), "{said}");
    install(&world.client, vec![api::NodeClaim::crd()]).await.unwrap();
    says(&host, "this host leads").await;
    host.kill();
}
