//! Pools grow and shrink: the right claim goes, and nothing of it stays in the tenant.

use hostler_api as api;
use hostler_api::names;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Place, server};
use crate::crashes::{all_free, claims, delete_tenant, nodes_ready, so_many_available};
use crate::harness::World;

/// Names of the tokens by which nodes could still join.
async fn tokens(world: &World) -> Vec<String> {
    let secrets: Api<Secret> = Api::namespaced(world.tenant("one").unwrap(), "kube-system");
    let all = secrets.list(&ListParams::default()).await.unwrap();
    all.iter()
        .filter(|secret| secret.type_.as_deref() == Some("bootstrap.kubernetes.io/token"))
        .map(ResourceExt::name_any)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_goes_from_one_to_two_to_none_and_leaves_no_node() {
    let place = Place::new(2).await;
    let host = place.world.host().await;
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    let first = claims(&place.world).await.unwrap().remove(0);
    place.wants(2).await;
    so_many_available(&place.world, 2).await;
    nodes_ready(&place.world, "one", &[&server(1), &server(2)]).await;
    let now = claims(&place.world).await.unwrap();
    assert!(
        now.iter().any(|claim| claim.uid() == first.uid()),
        "the first one stays"
    );
    assert_eq!(tokens(&place.world).await, [""; 0], "used tokens are gone");

    place.wants(0).await;
    so_many_available(&place.world, 0).await;
    nodes_ready(&place.world, "one", &[]).await;
    assert_eq!(all_free(&place.world, 2).await, place.hosts);
    assert_eq!(tokens(&place.world).await, [""; 0]);
    let enrollments = Api::<api::Enrollment>::all(place.world.client.clone());
    assert_eq!(
        enrollments
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        0
    );
    let tenant = place.world.tenant("one").unwrap();
    let requests = Api::<CertificateSigningRequest>::all(tenant)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(
        requests.items.iter().all(|request| request.status.is_some()),
        "none is open"
    );
    assert_eq!(place.history.claims().len(), 2);
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_ready_claims_the_marked_one_goes_first() {
    let place = Place::new(2).await;
    let host = place.world.host().await;
    place.wants(2).await;
    so_many_available(&place.world, 2).await;
    let mut both = claims(&place.world).await.unwrap();
    // The older one (by name, where they are of the same second) would stay: so that one is marked.
    both.sort_by_key(|claim| (claim.creation_timestamp(), claim.name_any()));
    let marked = both.remove(0);
    let all: Api<api::NodeClaim> = Api::namespaced(place.world.client.clone(), "p-default");
    let mut status = serde_json::to_value(marked.status.clone().unwrap()).unwrap();
    let mark = json!({"type": names::PREFERRED_DELETION, "status": "True", "lastTransitionTime": "2026-09-26T00:00:00Z"});
    status["conditions"].as_array_mut().unwrap().push(mark);
    let change = json!({"status": {"conditions": status["conditions"]}});
    let written = all
        .patch_status(
            &marked.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&change),
        )
        .await
        .unwrap();
    let shown = serde_json::to_value(&written).unwrap();
    let conditions = shown["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == names::PREFERRED_DELETION)
    );

    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    let left = claims(&place.world).await.unwrap();
    assert_eq!(left[0].uid(), both[0].uid(), "the unmarked one stays");
    let machine = left[0]
        .status
        .clone()
        .unwrap()
        .machine
        .unwrap()
        .object
        .unwrap()
        .name;
    nodes_ready(&place.world, "one", &[&machine]).await;
    let tenant = Api::<Node>::all(place.world.tenant("one").unwrap());
    assert_eq!(tenant.list(&ListParams::default()).await.unwrap().items.len(), 1);
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}
