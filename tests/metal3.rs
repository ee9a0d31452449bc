//! Metal3's own definitions, at the release that `tests/kubernetes/metal3/go.mod` names: both servers take them, and whatever the
//! laboratory's own definition accepts passes them unchanged.

mod kept;
mod lives;
mod made;
mod narrow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;

use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::World;
use crate::modules::METAL3;

/// Every definition of the release, where it was fetched.
pub(crate) fn definitions() -> Option<Vec<CustomResourceDefinition>> {
    METAL3.definitions()
}

/// The example of the README, with Metal3's own definitions in place of the laboratory's: everything joins, and all goes back.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_host_works_under_the_real_definitions() {
    let Some(definitions) = definitions() else { return };
    assert!(
        definitions.len() > 10,
        "{} definitions were found",
        definitions.len()
    );
    let world = World::new().await;
    hostler_cli::wire::install(&world.client, definitions)
        .await
        .unwrap();
    let host = world.host().await;
    world.example().await;
    let before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    let taken = world.hosts().list(&ListParams::default()).await.unwrap();
    for machine in taken {
        let spec = &machine.data["spec"];
        for place in ["image", "userData", "networkData", "consumerRef"] {
            assert!(spec[place].is_object(), "{place} of {spec}");
        }
        assert_eq!(machine.data["status"]["provisioning"]["image"], spec["image"]);
    }
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, before, "every host is as it was");
    host.stop().await;
}
