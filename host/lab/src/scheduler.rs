//! A small scheduler: plays kube-scheduler for clusters that have none, such as the embedded ones of tenants.
//!
//! ```text
//! watch Nodes ─┐
//! watch Pods ──┴─► every pod without a node, most important first: place (pure) ─► bind, or say why not
//! ```
//!
//! # Guarantees
//! A pod is bound through its `binding` subresource for the very uid that was looked at. Pods that another scheduler is named
//! for, that wait behind scheduling gates, or that are being deleted are left alone. What finds no node is told once a
//! reason, as condition `PodScheduled` and as Event, and looked at again whenever a Node or a Pod changes.

mod place;
mod quantity;
pub(crate) mod resources;
mod wishes;

use std::collections::HashMap;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::place::{Place, place, priority};
use crate::records::{Record, record};

/// Name of the scheduler that pods get that name none.
const NAME: &str = "default-scheduler";
/// Which instance of it this is.
const INSTANCE: &str = "default-scheduler-laboratory";
/// After a refusal by the API that says nothing about the pod itself.
const AGAIN: Duration = Duration::from_secs(1);

/// Schedules the pods of the cluster behind `client` until `stop`. The client must be allowed to bind pods.
pub async fn run(client: Client, stop: CancellationToken) {
    let (nodes, node_writer) = reflector::store();
    let (pods, pod_writer) = reflector::store();
    let mut node_changes = watcher(Api::<Node>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(node_writer)
        .boxed();
    let mut pod_changes = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(pod_writer)
        .boxed();
    let mut scheduler = Scheduler {
        client,
        assumed: HashMap::new(),
    };
    let mut again = None;
    loop {
        let timer = async {
            match again {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = node_changes.next() => told(&event.map(drop)),
            Some(event) = pod_changes.next() => told(&event.map(drop)),
            () = timer => {}
        }
        // What comes together is looked at together.
        while let Some(Some(event)) = node_changes.next().now_or_never() {
            told(&event.map(drop));
        }
        while let Some(Some(event)) = pod_changes.next().now_or_never() {
            told(&event.map(drop));
        }
        // Without both lists every answer would be wrong.
        let listed = async { nodes.wait_until_ready().await.and(pods.wait_until_ready().await) };
        if listed.now_or_never().is_none() {
            continue;
        }
        again = scheduler.turn(&nodes, &pods).await.then_some(AGAIN);
    }
}

fn told(event: &Result<(), watcher::Error>) {
    if let Err(error) = event {
        debug!(%error, "a watch of the scheduler was interrupted");
    }
}

struct Scheduler {
    client: Client,
    /// Node by uid of pods that were bound and whose watch has not shown it yet.
    assumed: HashMap<String, String>,
}

impl Scheduler {
    /// Looks at every pod that waits. Whether something is to be tried again.
    async fn turn(&mut self, nodes: &Store<Node>, pods: &Store<Pod>) -> bool {
        let (nodes, pods) = (nodes.state(), pods.state());
        self.assumed.retain(|uid, _| {
            let known = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
            known.is_some_and(|pod| node_of(pod).is_none())
        });
        let mut queue: Vec<&Pod> = pods
            .iter()
            .map(AsRef::as_ref)
            .filter(|pod| self.waits(pod))
            .collect();
        queue.sort_by_key(|pod| {
            let created = pod.creation_timestamp().map(|time| time.0);
            (
                -i64::from(priority(pod)),
                created,
                pod.namespace(),
                pod.name_any(),
            )
        });
        let mut again = false;
        for pod in queue {
            let mut places: Vec<Place<'_>> = nodes
                .iter()
                .map(|node| {
                    let name = node.name_any();
                    let on = pods.iter().filter(|pod| {
                        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                        let on = node_of(pod).or_else(|| self.assumed.get(uid).map(String::as_str));
                        on == Some(name.as_str()) && !has_ended(pod)
                    });
                    Place {
                        node: node.as_ref(),
                        pods: on.map(AsRef::as_ref).collect(),
                    }
                })
                .collect();
            places.sort_by_key(|place| place.node.metadata.name.clone());
            match place(pod, &places) {
                Ok(node) => {
                    let node = node.to_owned();
                    again |= !self.bind(pod, &node).await;
                }
                Err(why) => again |= !self.tell(pod, &why).await,
            }
        }
        again
    }

    fn waits(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return false };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        node_of(pod).is_none()
            && !self.assumed.contains_key(uid)
            && spec
                .scheduler_name
                .as_deref()
                .is_none_or(|name| name.is_empty() || name == NAME)
            && spec.scheduling_gates.iter().flatten().next().is_none()
            && pod.metadata.deletion_timestamp.is_none()
            && !has_ended(pod)
    }

    /// Binds a pod. False when that is to be tried again.
    async fn bind(&mut self, pod: &Pod, node: &str) -> bool {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        let sent = api.create_subresource::<Value, Value>("binding", &name, &params, &binding);
        match sent.await {
            Ok(_) => {
                info!(pod = name, namespace, node, "bound");
                self.assumed
                    .insert(pod.uid().unwrap_or_default(), node.to_owned());
                let note = format!("Successfully assigned {namespace}/{name} to {node}");
                self.record(pod, false, "Binding", "Scheduled", &note).await;
                true
            }
            // It is another one by now, or gone: the watch tells.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => true,
            Err(error) => {
                warn!(pod = name, namespace, node, %error, "a pod was not bound; it is tried again");
                false
            }
        }
    }

    /// Says why a pod has no node. False when that is to be tried again.
    async fn tell(&self, pod: &Pod, why: &str) -> bool {
        let known = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|one| one.type_ == "PodScheduled");
        if known.is_some_and(|known| known.message.as_deref() == Some(why) && known.status == "False") {
            return true;
        }
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let patch = json!({
            "metadata": {"uid": pod.metadata.uid},
            "status": {"conditions": [condition(pod, known, why)]},
        });
        match api
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            Ok(_) => {
                self.record(pod, true, "Scheduling", "FailedScheduling", why)
                    .await;
                true
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => true,
            Err(error) => {
                debug!(pod = name, namespace, %error, "a pod was not told why it waits");
                false
            }
        }
    }

    async fn record(&self, pod: &Pod, warning: bool, action: &str, reason: &str, note: &str) {
        let said = Record {
            by: (NAME, INSTANCE),
            action,
            warning,
            reason,
            note,
        };
        record(&self.client, pod, said).await;
    }
}

fn condition(pod: &Pod, known: Option<&PodCondition>, why: &str) -> Value {
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let since = known
        .filter(|known| known.status == "False")
        .and_then(|known| known.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "lastProbeTime": null, "lastTransitionTime": since, "observedGeneration": pod.metadata.generation,
    })
}

/// The node that a pod is bound to.
fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

/// Whether nothing of a pod runs any more.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
