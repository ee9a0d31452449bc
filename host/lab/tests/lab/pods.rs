//! Pods on simulated servers: over the socket of a real API server, as nodes, and through it to the kubelets' own port.

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::world::{JOIN_ADDRESS, World, create, eventually};

const HOST: &str = "bare-metal-2";
const CARDS: &str = "lab.hostler.dev/extended-resources";

/// A server with four cards that has joined a cluster with a scheduler.
async fn rack() -> (World, DropGuard) {
    let world = World::start().await;
    let stop = CancellationToken::new();
    tokio::spawn(hostler_lab::scheduler::run(world.tenant.clone(), stop.clone()));
    world.available(HOST, Some("192.168.100.11/24")).await;
    announce(&world, json!("nvidia.com/gpu=4")).await;
    world.install(HOST, &world.user_data(HOST)).await;
    has(&world, Some("4")).await;
    (world, stop.drop_guard())
}

async fn announce(world: &World, cards: Value) {
    world
        .patch(HOST, json!({"metadata": {"annotations": {CARDS: cards}}}))
        .await;
}

/// Waits until the Node announces so many cards.
async fn has(world: &World, cards: Option<&str>) {
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    eventually(&format!("{HOST} has {cards:?} cards"), async || {
        let Some(node) = nodes.get_opt(HOST).await.unwrap() else {
            return false;
        };
        let status = node.status.unwrap_or_default();
        let both = [status.capacity, status.allocatable].map(|list| {
            let list = list.unwrap_or_default();
            (
                list["cpu"].0.clone(),
                list.get("nvidia.com/gpu").map(|amount| amount.0.clone()),
            )
        });
        both.iter()
            .all(|(cpu, found)| cpu == "32" && found.as_deref() == cards)
    })
    .await;
}

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.tenant.clone(), "default")
}

async fn run(world: &World, name: &str, annotations: Value, more: Value) {
    let mut spec = json!({
        "containers": [{"name": "main", "image": "i:1"}], "tolerations": [{"key": "example.com/startup", "operator": "Exists"}],
    });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let metadata = json!({"name": name, "namespace": "default", "annotations": annotations});
    create(
        &world.tenant,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
    )
    .await;
}

async fn becomes(world: &World, pod: &str, what: &str, is_so: impl Fn(&PodStatus) -> bool) {
    eventually(&format!("{pod} {what}"), async || {
        pods(world)
            .get(pod)
            .await
            .unwrap()
            .status
            .is_some_and(|status| is_so(&status))
    })
    .await;
}

async fn is_in(world: &World, pod: &str, phase: &str) {
    becomes(world, pod, &format!("is {phase}"), |status| {
        status.phase.as_deref() == Some(phase)
    })
    .await;
}

fn cards(count: u32) -> Value {
    json!({"containers": [{"name": "main", "image": "i:1", "resources": {"limits": {"nvidia.com/gpu": count.to_string()}}}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_runs_pods_and_its_api_reads_their_logs() {
    let (world, _stop) = rack().await;
    run(&world, "stays", json!({}), cards(1)).await;
    let mut once = cards(1);
    once["restartPolicy"] = json!("Never");
    let said = json!({"lab.hostler.dev/logs": "one\ntwo\n", "lab.hostler.dev/exit-code": "0", "lab.hostler.dev/runs-for": "0"});
    run(&world, "ends", said.clone(), once).await;
    is_in(&world, "stays", "Running").await;
    is_in(&world, "ends", "Succeeded").await;
    let stays = pods(&world).get("stays").await.unwrap().status.unwrap();
    let ends = pods(&world).get("ends").await.unwrap().status.unwrap();
    assert_eq!(stays.host_ip.as_deref(), Some("192.168.100.11"));
    assert!(
        stays.pod_ip.is_some() && stays.pod_ip != ends.pod_ip,
        "{stays:?} {ends:?}"
    );

    let log = |params: LogParams| {
        let pods = pods(&world);
        async move { pods.logs("ends", &params).await }
    };
    assert_eq!(log(LogParams::default()).await.unwrap(), "one\ntwo\n");
    let last = LogParams {
        tail_lines: Some(1),
        follow: true,
        ..LogParams::default()
    };
    assert_eq!(log(last).await.unwrap(), "two\n");
    let refused = |params: LogParams| async { log(params).await.unwrap_err().to_string() };
    let previous = LogParams {
        previous: true,
        ..LogParams::default()
    };
    assert!(
        refused(previous)
            .await
            .contains("previous terminated container \"main\" in pod \"ends\" not found")
    );
    let negative = LogParams {
        tail_lines: Some(-1),
        ..LogParams::default()
    };
    assert!(
        refused(negative)
            .await
            .contains("tailLines: Invalid value: -1: must be greater than or equal to 0")
    );

    // A pod that is told to end is gone only when its kubelet has let go of it.
    pods(&world)
        .delete("stays", &DeleteParams::default())
        .await
        .unwrap();
    eventually("it has gone", async || {
        pods(&world).get_opt("stays").await.unwrap().is_none()
    })
    .await;

    // Another API than the one that the machine joined has no way to it.
    let (at, api) = world.network.kubelet("192.168.100.11", 10250).unwrap();
    assert!(at.ip().is_loopback() && api == world.join_url);
    world.network.release("tenant");
    let unreachable = refused(LogParams::default()).await;
    assert!(
        unreachable.contains("dial tcp 192.168.100.11:10250: no route to host"),
        "{unreachable}"
    );
    world
        .network
        .bind(JOIN_ADDRESS, "tenant", world.join_url.clone())
        .unwrap();
    assert_eq!(log(LogParams::default()).await.unwrap(), "one\ntwo\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cards_come_and_go_with_the_annotation() {
    let (world, _stop) = rack().await;
    run(&world, "big", json!({}), cards(6)).await;
    becomes(&world, "big", "waits for cards", |status| {
        let all = status.conditions.clone().unwrap_or_default();
        all.iter().any(|one| {
            one.message
                .as_deref()
                .is_some_and(|why| why.starts_with("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
        })
    })
    .await;
    announce(&world, json!("nvidia.com/gpu=8")).await;
    is_in(&world, "big", "Running").await;
    announce(&world, Value::Null).await;
    has(&world, Some("0")).await;
    // What runs goes on; what is bound past the scheduler is refused.
    let mut late = cards(1);
    late["nodeName"] = json!(HOST);
    run(&world, "late", json!({}), late).await;
    becomes(&world, "late", "is refused", |status| {
        status.reason.as_deref() == Some("OutOfnvidia.com/gpu")
    })
    .await;
    is_in(&world, "big", "Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_outlive_the_laboratory_and_are_started_again_after_a_reboot() {
    let (mut world, _stop) = rack().await;
    run(&world, "p", json!({"lab.hostler.dev/logs": "hello"}), json!({})).await;
    is_in(&world, "p", "Running").await;
    let container = async |world: &World| {
        let status = pods(world).get("p").await.unwrap().status.unwrap();
        let one = status.container_statuses.unwrap().remove(0);
        (one.restart_count, one.container_id)
    };
    let before = container(&world).await;
    world.restart().await;
    eventually("its log can be read again", async || {
        pods(&world)
            .logs("p", &LogParams::default())
            .await
            .is_ok_and(|log| log == "hello\n")
    })
    .await;
    assert_eq!(container(&world).await, before, "only the simulation was away");

    world
        .patch(
            HOST,
            json!({"metadata": {"annotations": {"reboot.metal3.io": ""}}}),
        )
        .await;
    eventually("it was started again", async || container(&world).await.0 == 1).await;
    assert_ne!(container(&world).await.1, before.1);
    is_in(&world, "p", "Running").await;

    // Without power nobody answers, and nobody reports.
    world.patch(HOST, json!({"spec": {"online": false}})).await;
    eventually("nobody answers", async || {
        pods(&world).logs("p", &LogParams::default()).await.is_err()
    })
    .await;
    is_in(&world, "p", "Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taint_that_evicts_ends_the_pods_that_do_not_bear_it() {
    let (world, _stop) = rack().await;
    run(&world, "leaves", json!({}), json!({})).await;
    let bears = json!({"tolerations": [{"operator": "Exists"}]});
    run(&world, "bears", json!({}), bears).await;
    is_in(&world, "leaves", "Running").await;
    is_in(&world, "bears", "Running").await;
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    let taint = json!({"key": "example.com/repair", "effect": "NoExecute"});
    let patch = Patch::Strategic(json!({"spec": {"taints": [taint]}}));
    nodes.patch(HOST, &PatchParams::default(), &patch).await.unwrap();
    eventually("one has left", async || {
        pods(&world).get_opt("leaves").await.unwrap().is_none()
    })
    .await;
    is_in(&world, "bears", "Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_is_its_node_and_touches_the_pods_of_no_other() {
    let (world, _stop) = rack().await;
    let node = world.as_node(HOST).await;
    let own: Api<Pod> = Api::namespaced(node.clone(), "default");
    run(&world, "own", json!({}), json!({})).await;
    run(&world, "other", json!({}), json!({"nodeName": "bare-metal-1"})).await;
    is_in(&world, "own", "Running").await;
    let refused = |result: Result<Pod, kube::Error>| match result {
        Err(kube::Error::Api(status)) => status.message,
        other => panic!("not refused: {other:?}"),
    };
    let params = PatchParams::default();
    let failed = Patch::Strategic(json!({"status": {"message": "seen"}}));
    own.patch_status("own", &params, &failed).await.unwrap();
    assert_eq!(
        refused(own.patch_status("other", &params, &failed).await),
        "pods \"other\" is forbidden: node \"bare-metal-2\" can only update pod status for pods with spec.nodeName set to itself"
    );
    assert!(
        refused(own.get("other").await)
            .contains("no relationship found between node 'bare-metal-2' and this object")
    );
    let all = own.list(&ListParams::default()).await.unwrap_err().to_string();
    assert!(
        all.contains("can only list/watch pods with spec.nodeName field selector"),
        "{all}"
    );
    let deleted = own
        .delete("other", &DeleteParams::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        deleted.contains("can only delete pods with spec.nodeName set to itself"),
        "{deleted}"
    );
    // Nor does it place pods, or read what they say on other servers.
    assert!(own.logs("other", &LogParams::default()).await.is_err());
    let stays = pods(&world).get("other").await.unwrap();
    assert_eq!(stays.status.unwrap().phase.as_deref(), Some("Pending"));
}
