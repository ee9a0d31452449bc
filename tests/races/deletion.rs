//! Deletion at the worst moment, and against those who hold it up: it ends, and leaves nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use hostler_api as api;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Place, delete_claim, impatient, server, tenant};
use crate::crashes::{all_free, claims, delete_tenant, nodes_ready, so_many_available, told};
use crate::harness::fault::Moment;
use crate::harness::{Fault, World, eventually};

/// How far a watch is behind.
const LATE: Duration = Duration::from_secs(5);
/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// A host that has a claim deleted under it, right after its first take of a machine, and whose watches are late from then on.
fn robbed_after_the_take(world: &World) -> Arc<Fault> {
    let client = world.client.clone();
    let itself: Arc<OnceLock<Arc<Fault>>> = Arc::default();
    let fault = Fault::meddled(Box::new({
        let itself = itself.clone();
        let done = Arc::new(OnceLock::new());
        move |moment, line| {
            let is_take = moment == Moment::After && line.contains("/baremetalhosts/");
            let (client, itself, done) = (client.clone(), itself.clone(), done.clone());
            async move {
                if !is_take || done.set(()).is_err() {
                    return;
                }
                itself.get().unwrap().delay_watches(LATE);
                let all: Api<api::NodeClaim> = Api::namespaced(client, "p-default");
                for claim in all.list(&ListParams::default()).await.unwrap() {
                    all.delete(&claim.name_any(), &DeleteParams::default())
                        .await
                        .unwrap();
                }
            }
            .boxed()
        }
    }));
    itself.set(fault.clone()).ok().unwrap();
    fault
}

/// The claims that are not among these.
async fn others(world: &World, than: &[String]) -> Result<Vec<api::NodeClaim>, String> {
    Ok(claims(world)
        .await?
        .into_iter()
        .filter(|claim| !than.contains(&claim.uid().unwrap_or_default()))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_deleted_right_after_the_take_leaks_nothing_though_the_watch_is_late() {
    let place = Place::new(1).await;
    let fault = robbed_after_the_take(&place.world);
    let host = place.world.host_behind(&fault).await;
    place.wants(1).await;
    let machine = place.hosts[&server(1)]["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let first = eventually("somebody borrows the machine", || async {
        place.history.borrowers(&machine).pop().ok_or("nobody".to_owned())
    })
    .await;
    eventually("the deleted claim is gone", || async {
        let left: Vec<_> = claims(&place.world)
            .await?
            .into_iter()
            .filter(|claim| claim.uid() == Some(first.clone()))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(left.iter().map(told).collect::<String>())
        }
    })
    .await;
    fault.delay_watches(Duration::ZERO);
    so_many_available(&place.world, 1).await;
    assert_eq!(
        others(&place.world, &[first]).await.unwrap().len(),
        1,
        "another claim took its place"
    );
    fault.delay_watches(LATE);
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_deleted_during_a_long_release_leaks_nothing_though_the_watch_is_late() {
    let mut lab = hostler_lab::Options::default();
    lab.times.deprovision = Duration::from_secs(3);
    let place = Place::with(2, lab).await;
    let fault = Fault::none();
    let host = place.world.host_behind(&fault).await;
    place.wants(2).await;
    so_many_available(&place.world, 2).await;
    let first = claims(&place.world).await.unwrap().remove(0);
    fault.delay_watches(LATE);
    delete_claim(&place.world, &first.name_any()).await;
    let machine = first.status.unwrap().machine.unwrap().object.unwrap().name;
    eventually("the machine is being cleaned", || async {
        let host = place
            .world
            .hosts()
            .get(&machine)
            .await
            .map_err(|error| error.to_string())?;
        let state = host
            .data
            .pointer("/status/provisioning/state")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if state == "deprovisioning" {
            Ok(())
        } else {
            Err(state.to_owned())
        }
    })
    .await;
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_namespace_of_a_project_returns_its_machines() {
    let place = Place::new(2).await;
    let host = place.world.host().await;
    place.wants(2).await;
    so_many_available(&place.world, 2).await;
    let namespaces: Api<Namespace> = Api::all(place.world.client.clone());
    let before = namespaces.get("p-default").await.unwrap().uid();
    namespaces
        .delete("p-default", &DeleteParams::default())
        .await
        .unwrap();
    place.is_as_before().await;
    // The project is still there, and with it a namespace, a new one.
    eventually("the project has a namespace again", || async {
        match namespaces
            .get_opt("p-default")
            .await
            .map_err(|error| error.to_string())?
        {
            Some(now) if now.uid() != before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    host.stop().await;
}

async fn with_finalizer(world: &World, node: &str) -> Api<Node> {
    let nodes: Api<Node> = Api::all(world.tenant("one").unwrap());
    let change = json!({"metadata": {"finalizers": ["example.com/keep"]}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_that_the_tenant_puts_on_its_node_holds_the_machine_no_longer_than_the_cap() {
    let place = Place::new(1).await;
    let host = place.world.host_with(&Fault::none(), impatient()).await;
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    let nodes = with_finalizer(&place.world, &server(1)).await;
    place.wants(0).await;
    so_many_available(&place.world, 0).await;
    assert_eq!(all_free(&place.world, 1).await, place.hosts);
    let node = nodes.get(&server(1)).await.unwrap();
    assert!(node.metadata.deletion_timestamp.is_some(), "it was told to go");
    told_of(&place.world, "NodeStuck").await;
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

async fn told_of(world: &World, reason: &str) {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "p-default");
    eventually(&format!("an event {reason}"), || async {
        let all = events
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let reasons: Vec<_> = all.into_iter().filter_map(|event| event.reason).collect();
        if reasons.iter().any(|one| one == reason) {
            Ok(())
        } else {
            Err(format!("{reasons:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_waited_for_without_end_only_while_there_is_a_tenant() {
    let mut lab = hostler_lab::Options::instant();
    lab.times.stop = HOUR;
    let place = Place::with(1, lab).await;
    let host = place.world.host_with(&Fault::none(), impatient()).await;
    place
        .world
        .apply(&tenant("one", 1, "terminationGracePeriod: Never"))
        .await;
    so_many_available(&place.world, 1).await;
    let pods: Api<Pod> = Api::namespaced(place.world.tenant("one").unwrap(), "default");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "busy", "finalizers": ["example.com/keep"]},
        "spec": {
            "nodeName": server(1), "containers": [{"name": "main", "image": "busy"}],
            "terminationGracePeriodSeconds": HOUR.as_secs(),
        },
    }))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    place
        .world
        .apply(&tenant("one", 0, "terminationGracePeriod: Never"))
        .await;
    eventually("the pod was asked to leave, and is waited for", || async {
        let pod = pods.get("busy").await.map_err(|error| error.to_string())?;
        let claims = claims(&place.world).await?;
        let claim = claims.first().ok_or("no claim")?;
        let waits = told(claim).contains("1 pods are still to leave");
        if waits && pod.metadata.deletion_timestamp.is_some() {
            Ok(())
        } else {
            Err(told(claim))
        }
    })
    .await;
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_api_is_dead_holds_its_machine_no_longer_than_the_cap() {
    let place = Place::new(1).await;
    let fault = Fault::none();
    let host = place.world.host_with(&fault, impatient()).await;
    place
        .world
        .apply(&tenant("one", 1, "terminationGracePeriod: Never"))
        .await;
    so_many_available(&place.world, 1).await;
    fault.cut_tenants(true);
    place
        .world
        .apply(&tenant("one", 0, "terminationGracePeriod: Never"))
        .await;
    so_many_available(&place.world, 0).await;
    assert_eq!(all_free(&place.world, 1).await, place.hosts);
    told_of(&place.world, "TenantUnreachable").await;
    // Back, and with the remains of that node in it, it gets the machine once more.
    fault.cut_tenants(false);
    place
        .world
        .apply(&tenant("one", 1, "terminationGracePeriod: Never"))
        .await;
    so_many_available(&place.world, 1).await;
    nodes_ready(&place.world, "one", &[&server(1)]).await;
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}
