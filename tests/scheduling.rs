//! The laboratory's scheduler beside the real one: the same nodes and pods, the same places, and the same words for why not.

use hostler_apiserver::{Identity, Server, Store};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::eventually;
use crate::kubernetes::{Binaries, Cluster};

/// Nodes: name, spec, and what each has besides the usual.
fn nodes() -> Vec<(Value, Value)> {
    let node = |name: &str, workload: &str, spec: Value, has: Value| {
        let metadata =
            json!({"name": name, "labels": {"workload": workload, "kubernetes.io/hostname": name}});
        (json!({"metadata": metadata, "spec": spec}), has)
    };
    let taint = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    vec![
        node("bare-metal-1", "cpu", json!({}), json!({})),
        node("bare-metal-2", "gpu", json!({}), json!({"nvidia.com/gpu": "4"})),
        node("cordoned", "cpu", json!({"unschedulable": true}), json!({})),
        node(
            "tainted",
            "gpu",
            json!({"taints": [taint]}),
            json!({"nvidia.com/gpu": "4"}),
        ),
    ]
}

/// Pods in the order in which they come: each is placed, or told why not, before the next one does.
fn pods() -> Vec<(&'static str, Value)> {
    let asking = |resource: &str, amount: &str| json!({"containers": [{"name": "main", "image": "i:1", "resources": {"limits": {resource: amount}}}]});
    let with = |mut spec: Value, more: Value| {
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        spec
    };
    let plain = json!({"containers": [{"name": "main", "image": "i:1"}]});
    let named = |name: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}})
    };
    let starting = json!({"initContainers": [
        {"name": "i", "image": "i:1", "resources": {"requests": {"cpu": "64"}}}]});
    let port = json!({"containers": [{"name": "main", "image": "i:1", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let on_cpu = json!({"nodeSelector": {"workload": "cpu"}});
    vec![
        ("gpu-ok", asking("nvidia.com/gpu", "1")),
        ("gpu-too-big", asking("nvidia.com/gpu", "5")),
        ("cpu-only", with(plain.clone(), on_cpu.clone())),
        ("gpu-three", asking("nvidia.com/gpu", "3")),
        ("gpu-one-more", asking("nvidia.com/gpu", "1")),
        (
            "gpu-on-a-cpu-server",
            with(asking("nvidia.com/gpu", "1"), on_cpu.clone()),
        ),
        ("too-much-to-start", with(plain.clone(), starting)),
        (
            "nowhere",
            with(plain.clone(), json!({"nodeSelector": {"workload": "none"}})),
        ),
        ("named", with(plain.clone(), named("bare-metal-1"))),
        ("named-elsewhere", with(plain.clone(), named("bare-metal-9"))),
        ("greedy", asking("memory", "2Ti")),
        (
            "tolerant",
            with(
                with(
                    plain,
                    json!({"nodeSelector": {"kubernetes.io/hostname": "tainted"}}),
                ),
                json!({"tolerations": [{"key": "dedicated", "operator": "Exists"}]}),
            ),
        ),
        ("listening", with(port.clone(), on_cpu.clone())),
        ("listening-too", with(port, on_cpu)),
    ]
}

/// What became of a pod: its node, or reason and message of its condition.
type Outcome = Result<String, (String, String)>;

async fn outcomes(client: &Client) -> Vec<(&'static str, Outcome)> {
    let all: Api<Node> = Api::all(client.clone());
    for (node, has) in nodes() {
        let node: Node = serde_json::from_value(node).unwrap();
        let node = all.create(&PostParams::default(), &node).await.unwrap();
        let name = node.metadata.name.clone().unwrap();
        let mut amounts = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
        amounts
            .as_object_mut()
            .unwrap()
            .extend(has.as_object().unwrap().clone());
        let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": ""});
        let status = json!({"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}});
        let params = PatchParams::default();
        all.patch_status(&name, &params, &Patch::Merge(status))
            .await
            .unwrap();
        // A new node is tainted until a controller sees that it is ready; here that is the test.
        let mut taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
        taints.retain(|taint| taint.key != "node.kubernetes.io/not-ready");
        let spec = json!({"spec": {"taints": taints}});
        all.patch(&name, &params, &Patch::Merge(spec)).await.unwrap();
    }
    let all: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut outcomes = Vec::new();
    for (name, spec) in pods() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        all.create(&PostParams::default(), &pod).await.unwrap();
        let outcome = eventually(&format!("{name} is placed, or told why not"), async || {
            let pod = all.get(name).await.unwrap();
            if let Some(node) = pod.spec.and_then(|spec| spec.node_name) {
                return Ok(Ok(node));
            }
            let conditions = pod
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let scheduled = conditions.into_iter().find(|one| one.type_ == "PodScheduled");
            let scheduled = scheduled.ok_or_else(|| "nobody has looked at it".to_owned())?;
            Ok(Err((
                scheduled.reason.unwrap_or_default(),
                scheduled.message.unwrap_or_default(),
            )))
        })
        .await;
        outcomes.push((name, outcome));
    }
    outcomes
}

async fn ours() -> Vec<(&'static str, Outcome)> {
    let server = Server::open(hostler_apiserver::Options::new(Store::Memory)).unwrap();
    let stop = CancellationToken::new();
    server.start(stop.clone());
    let client = server.client("platform", Identity::administrator());
    let scheduler = tokio::spawn(hostler_lab::scheduler::run(
        server.client("platform", Identity::host("system:kube-scheduler")),
        stop.clone(),
    ));
    let outcomes = outcomes(&client).await;
    stop.cancel();
    scheduler.await.unwrap();
    outcomes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laboratorys_scheduler_decides_and_speaks_as_the_real_one() {
    let found = Binaries::find().and_then(|binaries| match binaries.path("kube-scheduler") {
        Some(_) => Ok(binaries),
        None => anyhow::bail!("no kube-scheduler; `make kubernetes` builds it"),
    });
    let binaries = match found {
        Ok(binaries) => binaries,
        Err(why) => return eprintln!("not compared with the real scheduler: {why:#}"),
    };
    let mut cluster = Cluster::start(&binaries).await.unwrap();
    cluster.start_scheduler().unwrap();
    let real = outcomes(&cluster.client().await.unwrap()).await;
    let ours = ours().await;
    let different: Vec<_> = ours
        .iter()
        .zip(&real)
        .filter(|(ours, real)| ours != real)
        .collect();
    assert!(different.is_empty(), "ours, and the real one's: {different:#?}");
}
