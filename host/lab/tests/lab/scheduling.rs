//! The scheduler on an API server in memory, with nodes that nobody runs.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::world::{World, create, eventually};

/// A cluster with a scheduler.
struct Cluster {
    client: Client,
    _world: World,
    _stop: DropGuard,
}

impl Cluster {
    async fn new() -> Self {
        let world = World::start().await;
        let stop = CancellationToken::new();
        tokio::spawn(hostler_lab::scheduler::run(world.tenant.clone(), stop.clone()));
        Self {
            client: world.tenant.clone(),
            _world: world,
            _stop: stop.drop_guard(),
        }
    }

    /// A ready node, with its labels and what it has.
    async fn node(&self, name: &str, labels: Value, has: Value) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        create(&self.client, node).await;
        let mut all = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        all.as_object_mut()
            .unwrap()
            .extend(has.as_object().unwrap().clone());
        let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": ""});
        self.patch_node(
            name,
            json!({"status": {"capacity": all, "allocatable": all, "conditions": [ready]}}),
            true,
        )
        .await;
    }

    async fn patch_node(&self, name: &str, patch: Value, status: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        if status {
            nodes.patch_status(name, &params, &patch).await.unwrap();
        } else {
            nodes.patch(name, &params, &patch).await.unwrap();
        }
    }

    async fn pod(&self, name: &str, more: Value) {
        let mut spec = json!({"containers": [{"name": "main", "image": "i:1"}]});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        create(&self.client, pod).await;
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn is_on(&self, pod: &str, node: &str) {
        eventually(&format!("{pod} is on {node}"), async || {
            self.pods()
                .get(pod)
                .await
                .unwrap()
                .spec
                .unwrap()
                .node_name
                .as_deref()
                == Some(node)
        })
        .await;
        let status = self.pods().get(pod).await.unwrap().status.unwrap();
        let scheduled = status
            .conditions
            .unwrap()
            .into_iter()
            .find(|one| one.type_ == "PodScheduled");
        assert_eq!(scheduled.unwrap().status, "True");
    }

    /// Waits until a pod is told why it waits.
    async fn waits(&self, pod: &str, why: &str) {
        eventually(&format!("{pod} waits: {why}"), async || {
            let status = self.pods().get(pod).await.unwrap().status.unwrap();
            let conditions = status.conditions.unwrap_or_default();
            conditions.iter().any(|one| {
                one.type_ == "PodScheduled"
                    && one.reason.as_deref() == Some("Unschedulable")
                    && one.message.as_deref().is_some_and(|told| told.starts_with(why))
            })
        })
        .await;
    }
}

fn cards(count: u32) -> Value {
    json!({"containers": [{"name": "main", "image": "i:1", "resources": {"limits": {"nvidia.com/gpu": count.to_string()}}}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_go_where_they_fit_and_wait_until_something_changes() {
    let cluster = Cluster::new().await;
    cluster.pod("early", json!({})).await;
    cluster
        .waits("early", "no nodes available to schedule pods")
        .await;
    cluster.node("cpu", json!({"workload": "cpu"}), json!({})).await;
    cluster.is_on("early", "cpu").await;

    cluster
        .node("gpu", json!({"workload": "gpu"}), json!({"nvidia.com/gpu": "4"}))
        .await;
    cluster.pod("three", cards(3)).await;
    cluster.is_on("three", "gpu").await;
    cluster.pod("two", cards(2)).await;
    cluster
        .waits("two", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/2 nodes are available: 1 No \
            preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.")
        .await;
    // Room is made by another pod's end, and by a node's growth.
    cluster
        .pods()
        .delete("three", &kube::api::DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    cluster.is_on("two", "gpu").await;
    cluster.pod("five", cards(5)).await;
    cluster
        .waits("five", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
        .await;
    cluster
        .patch_node(
            "gpu",
            json!({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}),
            true,
        )
        .await;
    cluster.is_on("five", "gpu").await;

    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let of = async |pod: &str| {
        let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let all = events.list(&about).await.unwrap().items;
        let mut all: Vec<String> = all.into_iter().filter_map(|event| event.reason).collect();
        all.sort();
        all
    };
    eventually("each was told once a reason", async || {
        of("two").await == ["FailedScheduling", "Scheduled"]
            && of("five").await == ["FailedScheduling", "Scheduled"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordoned_or_tainted_node_takes_no_pod() {
    let cluster = Cluster::new().await;
    cluster.node("n", json!({}), json!({})).await;
    cluster
        .patch_node("n", json!({"spec": {"unschedulable": true}}), false)
        .await;
    cluster.pod("p", json!({})).await;
    cluster
        .waits("p", "0/1 nodes are available: 1 node(s) were unschedulable.")
        .await;
    let taint = json!({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"});
    cluster
        .patch_node(
            "n",
            json!({"spec": {"unschedulable": false, "taints": [taint]}}),
            false,
        )
        .await;
    cluster
        .waits(
            "p",
            "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
        )
        .await;
    let tolerant = json!({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]});
    cluster.pod("tolerant", tolerant).await;
    cluster.is_on("tolerant", "n").await;
    cluster
        .patch_node("n", json!({"spec": {"taints": null}}), false)
        .await;
    cluster.is_on("p", "n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_for_this_scheduler_is_left_alone() {
    let cluster = Cluster::new().await;
    cluster
        .pod(
            "gated",
            json!({"schedulingGates": [{"name": "example.com/wait"}]}),
        )
        .await;
    cluster.pod("others", json!({"schedulerName": "another"})).await;
    cluster
        .pod(
            "spread",
            json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}),
        )
        .await;
    cluster.node("n", json!({}), json!({})).await;
    cluster.pod("plain", json!({})).await;
    cluster.is_on("plain", "n").await;
    cluster
        .waits(
            "spread",
            "the laboratory's scheduler does not read spec.topologySpreadConstraints",
        )
        .await;
    for (name, why) in [("gated", Some("SchedulingGated")), ("others", None)] {
        let pod = cluster.pods().get(name).await.unwrap();
        assert_eq!(pod.spec.unwrap().node_name, None, "{name}");
        let conditions = pod.status.unwrap().conditions.unwrap_or_default();
        let reason = conditions.first().and_then(|one| one.reason.as_deref());
        assert_eq!(reason, why, "{name}");
    }
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    cluster
        .pods()
        .patch("gated", &PatchParams::default(), &open)
        .await
        .unwrap();
    cluster.is_on("gated", "n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_more_important_pod_is_placed_first() {
    let cluster = Cluster::new().await;
    let with = |priority: i32| {
        let mut spec = cards(1);
        spec["priority"] = json!(priority);
        spec
    };
    cluster.pod("first", with(0)).await;
    cluster.pod("later", with(1000)).await;
    for pod in ["first", "later"] {
        cluster.waits(pod, "no nodes available to schedule pods").await;
    }
    cluster.node("n", json!({}), json!({"nvidia.com/gpu": "1"})).await;
    cluster.is_on("later", "n").await;
    cluster
        .waits("first", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
        .await;
}
