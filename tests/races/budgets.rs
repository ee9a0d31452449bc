//! A tenant's disruption budgets: what they keep stays, is told, and holds up nobody else.

use hostler_api as api;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{Place, delete_claim, tenant};
use crate::crashes::{claims, delete_tenant, phase, so_many_available, told};
use crate::harness::eventually;

/// A pod on this node that is always to be there.
async fn keep_a_pod(tenant: &Client, node: &str) {
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), "default");
    let pod = json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "web"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(tenant.clone(), "default");
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    budgets
        .create(&PostParams::default(), &serde_json::from_value(budget).unwrap())
        .await
        .unwrap();
    eventually("the budget counts the pod", || async {
        let budget = budgets.get("web").await.map_err(|error| error.to_string())?;
        let healthy = budget.status.as_ref().and_then(|status| status.current_healthy);
        if healthy == Some(1) {
            Ok(())
        } else {
            Err(format!("{:?}", budget.status))
        }
    })
    .await;
}

async fn claim(place: &Place, name: &str) -> Result<Option<api::NodeClaim>, String> {
    Ok(claims(&place.world)
        .await?
        .into_iter()
        .find(|claim| claim.name_any() == name))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters, since ours has no disruption budgets: make real"]
async fn a_pod_that_its_budget_keeps_stays_and_the_next_machine_joins_meanwhile() {
    let place = Place::new(2).await;
    let host = place.world.host().await;
    let wants = async |quantity| {
        let without_end = tenant("one", quantity, "terminationGracePeriod: Never");
        place.world.apply(&without_end).await;
    };
    wants(1).await;
    so_many_available(&place.world, 1).await;
    let first = claims(&place.world).await.unwrap().remove(0);
    let api = place.world.tenant("one").unwrap();
    let node = first.status.as_ref().unwrap().node_name.clone().unwrap();
    keep_a_pod(&api, &node).await;

    delete_claim(&place.world, &first.name_any()).await;
    eventually("the claim says what it waits for", || async {
        let claim = claim(&place, &first.name_any()).await?.ok_or("it is gone")?;
        let said = told(&claim);
        if said.contains(
            "1 pods are still to leave the node; default/web stays, since a disruption budget keeps it",
        ) {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    eventually("another one takes its place", || async {
        let all = claims(&place.world).await?;
        let is_next = |claim: &&api::NodeClaim| claim.name_any() != first.name_any();
        if all
            .iter()
            .filter(is_next)
            .any(|claim| phase(claim) == "Available")
        {
            Ok(())
        } else {
            Err(all.iter().map(told).collect::<Vec<_>>().join("\n"))
        }
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(api.clone(), "default");
    let web = pods.get("web").await.unwrap();
    assert!(
        web.metadata.deletion_timestamp.is_none(),
        "it was never told to go"
    );
    assert!(claim(&place, &first.name_any()).await.unwrap().is_some());

    let budgets: Api<PodDisruptionBudget> = Api::namespaced(api, "default");
    budgets.delete("web", &DeleteParams::default()).await.unwrap();
    so_many_available(&place.world, 1).await;
    assert!(claim(&place, &first.name_any()).await.unwrap().is_none());
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}
