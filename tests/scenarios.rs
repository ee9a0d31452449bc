//! What operators do to machines that are in use, against the whole host.

use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};

use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::World;

/// What an operator does to every host while it is in use must not hold up the tenant's deletion, and must stay.
#[rstest]
#[case::no_address(json!({ "metadata": { "annotations": { "metal3.vcluster.com/ip-address": null } } }), "/metadata/annotations/metal3.vcluster.com~1ip-address")]
#[case::unhealthy(json!({ "metadata": { "annotations": { "capm3.metal3.io/unhealthy": "disk" } } }), "/metadata/annotations/capm3.metal3.io~1unhealthy")]
#[case::another_rack(json!({ "metadata": { "labels": { "role": "spare" } } }), "/metadata/labels/role")]
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_changed_in_use_goes_back_with_the_change(
    #[case] change: Value,
    #[case] place: &str,
) {
    let world = World::new().await;
    let host = world.host().await;
    world.example().await;
    let mut want = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    for machine in world.hosts().list(&ListParams::default()).await.unwrap() {
        world
            .hosts()
            .patch(
                &machine.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&change),
            )
            .await
            .unwrap();
    }
    for essence in want.values_mut() {
        json_patch::merge(essence, &change);
    }
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    let after = free_hosts(&world).await;
    assert_eq!(after, want, "{place} is the operator's, the rest is as it was");
    host.stop().await;
}
