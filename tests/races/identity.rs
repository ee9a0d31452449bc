//! What is made again under its old name is another one.

use std::time::Duration;

use hostler_api as api;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::json;

use super::{Place, rack, server};
use crate::crashes::{all_free, claims, delete_tenant, essence, nodes_ready, phase, so_many_available, told};
use crate::harness::{Fault, World, eventually};

/// Takes a host away at once, whatever holds it, and registers it anew.
async fn register_anew(world: &World, name: &str) {
    let hosts = world.hosts();
    let before = hosts.get(name).await.unwrap().uid();
    hosts.delete(name, &DeleteParams::default()).await.unwrap();
    let change = json!({"metadata": {"finalizers": null}});
    match hosts
        .patch(name, &PatchParams::default(), &Patch::Merge(&change))
        .await
    {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => panic!("{error}"),
    }
    assert!(
        hosts
            .get_opt(name)
            .await
            .unwrap()
            .is_none_or(|host| host.uid() != before)
    );
    world.apply(&rack(1)).await;
}

#[rstest]
#[case::at_once(Duration::ZERO)]
#[case::though_the_watch_is_late(Duration::from_secs(5))]
#[tokio::test(flavor = "multi_thread")]
async fn a_host_registered_anew_while_claimed_is_lost_to_the_claim_and_not_touched(#[case] late: Duration) {
    let place = Place::new(1).await;
    let fault = Fault::none();
    let host = place.world.host_behind(&fault).await;
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    let old = claims(&place.world).await.unwrap().remove(0);
    fault.delay_watches(late);
    register_anew(&place.world, &server(1)).await;
    eventually("the claim says that its machine is lost", || async {
        let claims = claims(&place.world).await?;
        let claim = claims
            .iter()
            .find(|claim| claim.uid() == old.uid())
            .ok_or("the claim is gone")?;
        let status = claim.status.clone().unwrap_or_default();
        let lost = phase(claim) == "Failed" && status.reason.as_deref() == Some("MachineLost");
        if lost { Ok(()) } else { Err(told(claim)) }
    })
    .await;
    let newcomer = place.world.hosts().get(&server(1)).await.unwrap();
    assert!(!newcomer.annotations().contains_key(api::names::LOAN));
    let mut wanted = place.hosts[&server(1)].clone();
    for own in ["uid", "creationTimestamp"] {
        wanted["metadata"][own] = essence(&newcomer)["metadata"][own].clone();
    }
    let fresh = all_free(&place.world, 1).await;
    assert_eq!(fresh[&server(1)], wanted, "nothing was written to the newcomer");
    fault.delay_watches(Duration::ZERO);
    // The pool replaces the claim, and the new one takes the newcomer.
    eventually("another claim has the newcomer", || async {
        let claims = claims(&place.world).await?;
        match claims.as_slice() {
            [one] if one.uid() != old.uid() && phase(one) == "Available" => Ok(()),
            other => Err(other.iter().map(told).collect::<Vec<_>>().join("\n")),
        }
    })
    .await;
    nodes_ready(&place.world, "one", &[&server(1)]).await;
    let uid = newcomer.uid().unwrap();
    assert!(!place.history.borrowers(&uid).contains(&old.uid().unwrap()));
    delete_tenant(&place.world, "one").await;
    crate::crashes::nothing_left(&place.world).await;
    assert_eq!(all_free(&place.world, 1).await, fresh);
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_made_again_under_its_name_is_another_one() {
    let place = Place::new(1).await;
    let fault = Fault::none();
    let host = place.world.host_behind(&fault).await;
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(place.world.client.clone(), "p-default");
    let secrets: Api<Secret> = Api::namespaced(place.world.client.clone(), "loft-default-v-one");
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    let old = tenants.get("one").await.unwrap();
    let old_claims = place.history.claims();
    let old_clusters = place.world.stack.clusters();
    let old_config = secrets.get("vc-one").await.unwrap();
    let old_node = Api::<Node>::all(place.world.tenant("one").unwrap())
        .get(&server(1))
        .await
        .unwrap();

    fault.delay_watches(Duration::from_secs(2));
    delete_tenant(&place.world, "one").await;
    eventually("the tenant is gone", || async {
        match tenants.get_opt("one").await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(tenant) => Err(format!("{:?}", tenant.status)),
        }
    })
    .await;
    place.wants(1).await;
    fault.delay_watches(Duration::ZERO);
    so_many_available(&place.world, 1).await;

    let new = tenants.get("one").await.unwrap();
    assert_ne!(new.uid(), old.uid());
    let clusters = place.world.stack.clusters();
    assert_eq!(clusters.len(), 2, "{clusters:?}");
    assert_ne!(clusters, old_clusters, "another control plane");
    assert_ne!(
        secrets.get("vc-one").await.unwrap().data,
        old_config.data,
        "another kubeconfig"
    );
    let nodes = Api::<Node>::all(place.world.tenant("one").unwrap())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(nodes.items.len(), 1);
    assert_ne!(nodes.items[0].uid(), old_node.uid());
    let all: std::collections::BTreeSet<_> = place.history.claims().into_iter().collect();
    assert_eq!(
        all.len(),
        old_claims.len() + 1,
        "other names: they are made from the tenant's uid"
    );
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}
