//! A node that is always Ready, and whose pods are Running as soon as they are bound to it: Kubernetes' tests want one.
//!
//! Nothing runs there. What needs more of a pod than its status is not for these tests.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as Object, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const NAME: &str = "e2e-node";

/// Far more often than a node is given up.
const BEAT: Duration = Duration::from_secs(5);

/// How often pods are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Whether somebody else says which pods run on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// A scheduler of the cluster does.
    Theirs,
    /// All pods do: there is no other node.
    All,
}

/// The node; nobody keeps it Ready after this is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    tasks: [JoinHandle<()>; 2],
}

impl Node {
    /// Makes the node, and keeps it Ready.
    pub(crate) async fn start(client: Client, scheduling: Scheduling) -> Result<Self> {
        beat(&client).await?;
        let own = client.clone();
        let beating = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                // A beat that is missed is made up for by the next one.
                drop(beat(&own).await);
            }
        });
        let running = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                drop(run_pods(&client, scheduling).await);
            }
        });
        Ok(Self {
            tasks: [beating, running],
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn beat(client: &Client) -> Result<()> {
    let now = jiff::Timestamp::now();
    let as_node = PatchParams::apply("e2e-node").force();
    let nodes: Api<Object> = Api::all(client.clone());
    let labels =
        json!({"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": labels}});
    nodes.patch(NAME, &as_node, &Patch::Apply(node)).await?;
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions: Vec<Value> = [
        ("Ready", "True", "KubeletReady"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("NetworkUnavailable", "False", "RouteCreated"),
    ]
    .iter()
    .map(|(kind, status, reason)| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "nothing runs here",
            "lastHeartbeatTime": seconds, "lastTransitionTime": "2024-01-01T00:00:00Z",
        })
    })
    .collect();
    let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let status = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME},
        "status": {
            "capacity": room, "allocatable": room, "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NAME}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "architecture": "amd64", "operatingSystem": "linux",
                "osImage": "none", "kernelVersion": "none", "containerRuntimeVersion": "none://0", "machineID": "",
                "systemUUID": "", "bootID": "",
            },
        },
    });
    nodes.patch_status(NAME, &as_node, &Patch::Apply(status)).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME},
        "spec": {
            "holderIdentity": NAME, "leaseDurationSeconds": 40,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    leases.patch(NAME, &as_node, &Patch::Apply(lease)).await?;
    Ok(())
}

/// Binds pods, says that they run, and lets those go that are being deleted. One that is changed or gone meanwhile is looked
/// at again in the next turn.
async fn run_pods(client: &Client, scheduling: Scheduling) -> Result<()> {
    for pod in Api::<Pod>::all(client.clone())
        .list(&ListParams::default())
        .await?
    {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let spec = pod.spec.clone().unwrap_or_default();
        match spec.node_name.as_deref() {
            None if scheduling == Scheduling::All && pod.metadata.deletion_timestamp.is_none() => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": NAME},
                });
                let request = http::Request::post(path)
                    .header("content-type", "application/json")
                    .body(serde_json::to_vec(&binding)?)?;
                drop(client.request::<Value>(request).await);
            }
            Some(NAME) if pod.metadata.deletion_timestamp.is_some() => {
                drop(pods.delete(&name, &DeleteParams::default().grace_period(0)).await);
            }
            Some(NAME) if !is_running(&pod) => {
                let status = running(
                    &spec
                        .containers
                        .iter()
                        .map(|one| one.name.as_str())
                        .collect::<Vec<_>>(),
                );
                drop(
                    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
                        .await,
                );
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

fn running(containers: &[&str]) -> Value {
    let since = "2024-01-01T00:00:00Z";
    let containers: Vec<Value> = containers
        .iter()
        .map(|name| {
            json!({
                "name": name, "ready": true, "started": true, "restartCount": 0, "image": "none", "imageID": "none",
                "state": {"running": {"startedAt": since}},
            })
        })
        .collect();
    let conditions: Vec<Value> = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
        .iter()
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": since}))
        .collect();
    json!({"status": {
        "phase": "Running", "startTime": since, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "conditions": conditions,
        "containerStatuses": containers,
    }})
}
