//! The pods of one node: its kubelet watches those that are bound to it, as the node's own identity, and takes each through
//! its life ([`super::life`]).
//!
//! # Guarantees
//! Every write names the uid of the pod that was looked at, and is decided from a version of it that nothing was written to yet.
//! What the API refuses is tried again; what has gone is forgotten.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::life::{Home, Said, Turn, turn};
use crate::options::Times;
use crate::records::{Record, record};
use crate::scheduler::has_ended;
use crate::scheduler::resources::{Lack, allocatable, lacks, requests, used};

/// Who says what a kubelet says.
const KUBELET: &str = "kubelet";
/// After a refusal by the API.
const AGAIN: Duration = Duration::from_secs(1);
/// A watch is ended by the server before that, so that silence means a broken connection.
pub(super) const SILENCE: Duration = Duration::from_secs(330);

/// The pods of a node by namespace and name, for whoever asks for their logs.
pub(super) type Known = Arc<BTreeMap<(String, String), Arc<Pod>>>;

/// The part of a kubelet that runs pods.
pub(super) struct Pods<'a> {
    pub(super) client: Client,
    pub(super) node: &'a str,
    pub(super) address: IpAddr,
    pub(super) boot: &'a str,
    pub(super) times: &'a Times,
    pub(super) known: &'a watch::Sender<Known>,
}

/// What a kubelet remembers of a pod while it runs itself.
struct Memory {
    /// Since when the pod is as it is: bound, or told to end.
    since: Instant,
    deleting: bool,
    /// The version that the last write was decided from.
    done: Option<String>,
    /// The address that it has, or gets.
    address: Option<String>,
}

impl Pods<'_> {
    /// Runs the pods until it is dropped.
    pub(super) async fn run(&self) -> Infallible {
        let (store, writer) = reflector::store();
        let own = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut changes = watcher(Api::<Pod>::all(self.client.clone()), own)
            .default_backoff()
            .reflect(writer)
            .boxed();
        let mut memories: HashMap<String, Memory> = HashMap::new();
        let mut look: Option<Duration> = None;
        loop {
            let timer = async {
                match look {
                    Some(wait) => sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(event) = changes.next() => told(event),
                () = timer => {}
            }
            while let Some(Some(event)) = changes.next().now_or_never() {
                told(event);
            }
            if store.wait_until_ready().now_or_never().is_none() {
                continue;
            }
            let pods = store.state();
            let known = pods
                .iter()
                .map(|pod| ((pod.namespace().unwrap_or_default(), pod.name_any()), pod.clone()));
            self.known.send_replace(Arc::new(known.collect()));
            look = self.look(pods, &mut memories).await;
        }
    }

    /// Looks at every pod; says when to look again.
    async fn look(
        &self,
        mut pods: Vec<Arc<Pod>>,
        memories: &mut HashMap<String, Memory>,
    ) -> Option<Duration> {
        let present: HashSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        memories.retain(|uid, _| present.contains(uid));
        // Those that were here first have the first claim on what there is.
        pods.sort_by_key(|pod| (pod.creation_timestamp().map(|time| time.0), pod.name_any()));
        let mut taken: HashSet<String> = pods
            .iter()
            .filter_map(|pod| address_of(pod))
            .map(Into::into)
            .collect();
        taken.extend(memories.values().filter_map(|memory| memory.address.clone()));
        let mut range = None;
        let mut look: Option<Duration> = None;
        for pod in &pods {
            let deleting = pod.metadata.deletion_timestamp.is_some();
            let memory = memories
                .entry(pod.uid().unwrap_or_default())
                .or_insert_with(|| Memory {
                    since: Instant::now(),
                    deleting,
                    done: None,
                    address: None,
                });
            if memory.deleting != deleting {
                (memory.since, memory.deleting) = (Instant::now(), deleting);
            }
            if memory.done.is_some() && memory.done == pod.resource_version() {
                continue;
            }
            let lacks = if is_new(pod) && !deleting {
                match self.lacks(pod, &pods).await {
                    Ok(lacks) => lacks,
                    Err(error) => {
                        debug!(node = self.node, %error, "the own node was not read");
                        look = sooner(look, Some(AGAIN));
                        continue;
                    }
                }
            } else {
                Vec::new()
            };
            if needs_address(pod) && memory.address.is_none() {
                let range = match &range {
                    Some(range) => range,
                    None => range.insert(self.range().await),
                };
                let address = free(range, &taken);
                taken.insert(address.clone());
                memory.address = Some(address);
            }
            let host_ip = self.address.to_string();
            let home = Home {
                host_ip: &host_ip,
                pod_ip: memory.address.as_deref().unwrap_or_default(),
                boot: self.boot,
                times: self.times,
                lacks: &lacks,
                known: memory.since.elapsed(),
                now: Timestamp::now(),
            };
            let acted = match turn(pod, &home) {
                Turn::Rest(wait) => {
                    look = sooner(look, wait);
                    continue;
                }
                Turn::Report(status, said) => self.report(pod, status, said).await,
                Turn::LetGo => self.let_go(pod).await,
            };
            match acted {
                Ok(()) => memory.done = pod.resource_version(),
                // Another by now, or gone: the watch tells.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    memory.done = pod.resource_version();
                }
                Err(error) => {
                    debug!(pod = pod.name_any(), node = self.node, %error, "a write for a pod failed");
                    look = sooner(look, Some(AGAIN));
                }
            }
        }
        look
    }

    async fn report(&self, pod: &Pod, status: serde_json::Value, said: Vec<Said>) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        api.patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await?;
        for Said {
            warning,
            action,
            reason,
            note,
        } in said
        {
            let said = Record {
                by: (KUBELET, self.node),
                action,
                warning,
                reason: &reason,
                note: &note,
            };
            record(&self.client, pod, said).await;
        }
        Ok(())
    }

    async fn let_go(&self, pod: &Pod) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        api.delete(&pod.name_any(), &params).await.map(drop)
    }

    /// Of what the node has too little for a pod that is new on it.
    async fn lacks(&self, pod: &Pod, pods: &[Arc<Pod>]) -> Result<Vec<Lack>, kube::Error> {
        let node = Api::<Node>::all(self.client.clone()).get(self.node).await?;
        let here = pods
            .iter()
            .map(AsRef::as_ref)
            .filter(|other| other.metadata.uid != pod.metadata.uid && !is_new(other) && !has_ended(other));
        Ok(lacks(&requests(pod), &allocatable(&node), &used(here)))
    }

    /// The first three numbers of the addresses of the node's pods.
    async fn range(&self) -> String {
        let node = Api::<Node>::all(self.client.clone()).get(self.node).await.ok();
        let range = node.and_then(|node| node.spec?.pod_cidr);
        range
            .as_deref()
            .and_then(begin)
            .unwrap_or_else(|| own_range(self.address))
    }
}

fn told(event: Result<watcher::Event<Pod>, watcher::Error>) {
    if let Err(error) = event {
        debug!(%error, "the watch of a node's pods was interrupted");
    }
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn is_new(pod: &Pod) -> bool {
    !has_ended(pod)
        && pod
            .status
            .as_ref()
            .is_none_or(|status| status.start_time.is_none())
}

fn address_of(pod: &Pod) -> Option<&str> {
    pod.status
        .as_ref()?
        .pod_ip
        .as_deref()
        .filter(|address| !address.is_empty())
}

fn needs_address(pod: &Pod) -> bool {
    address_of(pod).is_none()
        && !has_ended(pod)
        && !is_new(pod)
        && pod.spec.as_ref().and_then(|spec| spec.host_network) != Some(true)
}

/// `10.244.3` of `10.244.3.0/24`.
fn begin(range: &str) -> Option<String> {
    let address: std::net::Ipv4Addr = range.split('/').next()?.parse().ok()?;
    let [a, b, c, _] = address.octets();
    Some(format!("{a}.{b}.{c}"))
}

/// Where nobody gave the node a range: one that no other node of its rack has.
fn own_range(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [_, _, c, d] = address.octets();
            format!("10.{}.{d}", 128 + c % 128)
        }
        IpAddr::V6(address) => {
            let [.., c, d] = address.octets();
            format!("10.{}.{d}", 128 + c % 128)
        }
    }
}

/// The lowest address of the range that no pod has.
fn free(range: &str, taken: &HashSet<String>) -> String {
    (2..255_u16)
        .map(|last| format!("{range}.{last}"))
        .find(|address| !taken.contains(address))
        .unwrap_or_else(|| format!("{range}.254"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("192.168.100.11", "10.228.11")]
    #[case("10.1.1.1", "10.129.1")]
    #[case("fd00::102", "10.129.2")]
    fn a_node_without_a_range_takes_one_of_its_own(#[case] address: &str, #[case] range: &str) {
        assert_eq!(own_range(address.parse().unwrap()), range);
    }

    #[test]
    fn pods_of_a_node_share_no_address() {
        let taken = |last: &[u8]| last.iter().map(|last| format!("10.244.3.{last}")).collect();
        assert_eq!(begin("10.244.3.0/24").as_deref(), Some("10.244.3"));
        assert_eq!(free("10.244.3", &taken(&[])), "10.244.3.2");
        assert_eq!(free("10.244.3", &taken(&[2, 4])), "10.244.3.3");
    }
}
