//! The kubelet of a server once it has a certificate: its Node, its Lease, and its reports.

use std::convert::Infallible;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::debug;

use super::disk::Disk;
use super::node::Machine;
use super::{Problem, Site, unreachable_or_refused};
use crate::bmh::Host;
use crate::notices::Source;

/// Leases of nodes live here, in every cluster.
const LEASES: &str = "kube-node-lease";
/// After this many seconds without a renewal a node counts as lost.
const LEASE_SECONDS: i32 = 40;

/// A kubelet with a certificate.
pub(super) struct Kubelet<'a> {
    site: &'a Site,
    host: &'a Host,
    machine: Machine,
    nodes: Api<Node>,
    leases: Api<Lease>,
}

/// How a look at one's own objects ended.
enum Beat {
    Well,
    NodeGone,
}

impl<'a> Kubelet<'a> {
    pub(super) fn new(site: &'a Site, host: &'a Host, client: Client, machine: Machine) -> Self {
        let leases = Api::namespaced(client.clone(), LEASES);
        Self {
            site,
            host,
            machine,
            nodes: Api::all(client),
            leases,
        }
    }

    /// Registers the Node, unless it ran already, and keeps it alive until it is dropped.
    pub(super) async fn run(&self, disk: &mut Disk, ran: bool) -> Result<Infallible, Problem> {
        let uid = self.host.meta.uid.as_deref().unwrap_or_default();
        let mut since = None;
        if ran && disk.registered {
            // Nothing happened to this server: only the simulation was away.
            since = self.ready_since().await?;
        } else {
            self.register().await?;
        }
        if !disk.registered {
            disk.registered = true;
            let lost = |error: kube::Error| {
                Problem::passing("DiskNotReady", format!("its disk cannot be reached: {error}"))
            };
            self.site.disks.write(uid, disk).await.map_err(lost)?;
        }
        loop {
            let since = match since.take() {
                Some(since) => since,
                None => self.become_ready().await?,
            };
            self.keep(since).await;
            if !self.site.options.reregister {
                return Err(Problem::lasting(
                    "NodeGone",
                    format!(
                        "Node {} was deleted; the kubelet registers again when it is started again",
                        self.machine.name
                    ),
                ));
            }
            self.register().await?;
        }
    }

    async fn register(&self) -> Result<(), Problem> {
        let now = Timestamp::now();
        let node = self.machine.node(now);
        match self.nodes.create(&PostParams::default(), &node).await {
            Ok(_) => {
                let message = format!("Node {} was registered", self.machine.name);
                self.site
                    .notices
                    .say(self.host, Source::Server, false, "NodeRegistered", &message);
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // A kubelet that is started again keeps its Node. What --node-labels says counts only for a new one.
                let patch = Patch::Strategic(json!({"metadata": {"labels": self.machine.own_labels()}}));
                let patched = self
                    .nodes
                    .patch(&self.machine.name, &PatchParams::default(), &patch)
                    .await;
                patched.map_err(|error| refused(&error))?;
            }
            Err(error) => return Err(refused(&error)),
        }
        self.report(false, now).await.map_err(|error| refused(&error))?;
        if let Err(error) = self.renew().await {
            // A kubelet registers without a lease, too, and tries again with each heartbeat.
            debug!(node = self.machine.name, %error, "the first lease was refused");
        }
        Ok(())
    }

    async fn become_ready(&self) -> Result<Timestamp, Problem> {
        sleep(self.site.options.times.ready).await;
        let now = Timestamp::now();
        match self.report(true, now).await.map_err(|error| refused(&error))? {
            Beat::Well => {
                let message = format!("Node {} is ready", self.machine.name);
                self.site
                    .notices
                    .say(self.host, Source::Server, false, "NodeReady", &message);
            }
            Beat::NodeGone => debug!(
                node = self.machine.name,
                "the node was deleted before it was ready"
            ),
        }
        Ok(now)
    }

    /// Since when the Node is Ready, if it is.
    async fn ready_since(&self) -> Result<Option<Timestamp>, Problem> {
        let node = self
            .nodes
            .get_opt(&self.machine.name)
            .await
            .map_err(|error| refused(&error))?;
        let conditions = node
            .and_then(|node| node.status)
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready" && condition.status == "True");
        Ok(ready
            .and_then(|condition| condition.last_transition_time)
            .map(|time| time.0))
    }

    /// Renews and reports until the Node is gone. An API server that does not answer is waited for.
    async fn keep(&self, since: Timestamp) {
        let times = &self.site.options.times;
        let mut beat = interval(times.heartbeat.max(std::time::Duration::from_millis(1)));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Instant::now();
        // A report that was missed while the API server was away makes up for what others wrote meanwhile.
        let mut missed = false;
        loop {
            beat.tick().await;
            let renewed = self.renew().await;
            let due = missed || reported.elapsed() >= times.report;
            let result = match renewed {
                Ok(Beat::Well) if due => self.report(true, since).await,
                other => other,
            };
            match result {
                Ok(Beat::Well) if due => {
                    reported = Instant::now();
                    missed = false;
                }
                Ok(Beat::Well) => {}
                Ok(Beat::NodeGone) => return,
                Err(error) => {
                    missed = true;
                    debug!(node = self.machine.name, %error, "a heartbeat was missed");
                }
            }
        }
    }

    async fn report(&self, ready: bool, since: Timestamp) -> Result<Beat, kube::Error> {
        let status = json!({"status": self.machine.status(ready, since, Timestamp::now())});
        let patch = Patch::Strategic(status);
        found(
            self.nodes
                .patch_status(&self.machine.name, &PatchParams::default(), &patch)
                .await,
        )
    }

    /// Renews the lease; makes it when there is none and the Node exists.
    async fn renew(&self) -> Result<Beat, kube::Error> {
        let name = &self.machine.name;
        let now = MicroTime(Timestamp::now());
        let patch = Patch::Merge(json!({"spec": {"renewTime": now}}));
        if let Beat::Well = found(self.leases.patch(name, &PatchParams::default(), &patch).await)? {
            return Ok(Beat::Well);
        }
        let Some(node) = self.nodes.get_opt(name).await? else {
            return Ok(Beat::NodeGone);
        };
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": name, "namespace": LEASES,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
        });
        let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        self.leases
            .create(&PostParams::default(), &lease)
            .await
            .map(|_| Beat::Well)
    }
}

fn refused(error: &kube::Error) -> Problem {
    unreachable_or_refused("NodeRefused", error)
}

fn found<T>(result: Result<T, kube::Error>) -> Result<Beat, kube::Error> {
    match result {
        Ok(_) => Ok(Beat::Well),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Beat::NodeGone),
        Err(error) => Err(error),
    }
}
