//! The kubelet of a server once it has a certificate: its Node, its Lease, its reports, its port, and the pods that it runs.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{debug, warn};

use super::disk::Disk;
use super::kubelet::certificates;
use super::logs::{Door, ServeError};
use super::node::{EXTENDED_RESOURCES, Extended, KUBELET_PORT, Machine, parse_extended};
use super::pods::{Known, Pods};
use super::{Problem, Site, unreachable_or_refused};
use crate::bmh::Host;
use crate::network::Plug;
use crate::notices::Source;

/// Leases of nodes live here, in every cluster.
const LEASES: &str = "kube-node-lease";
/// After this many seconds without a renewal a node counts as lost.
const LEASE_SECONDS: i32 = 40;

/// A kubelet with a certificate.
pub(super) struct Kubelet<'a> {
    site: &'a Site,
    host: &'a Host,
    /// The host as it is now.
    view: watch::Receiver<Arc<Host>>,
    machine: Machine,
    watching: Client,
    nodes: Api<Node>,
    leases: Api<Lease>,
    /// Extended resources that the Node names: what is no more is reported as none.
    announced: Mutex<BTreeSet<String>>,
    pods: watch::Sender<Known>,
}

/// How a kubelet reaches its API server.
pub(super) struct Clients {
    pub(super) client: Client,
    /// For watches: it is patient.
    pub(super) watching: Client,
}

/// How a look at one's own objects ended.
enum Beat {
    Well,
    NodeGone,
}

impl<'a> Kubelet<'a> {
    pub(super) fn new(
        site: &'a Site,
        host: &'a Host,
        view: watch::Receiver<Arc<Host>>,
        Clients { client, watching }: Clients,
        machine: Machine,
    ) -> Self {
        let leases = Api::namespaced(client.clone(), LEASES);
        Self {
            site,
            host,
            view,
            machine,
            watching,
            nodes: Api::all(client),
            leases,
            announced: Mutex::default(),
            pods: watch::Sender::default(),
        }
    }

    /// Registers the Node, unless it ran already, and keeps it alive until it is dropped; runs its pods meanwhile.
    pub(super) async fn run(&self, disk: &mut Disk, ran: bool) -> Result<Infallible, Problem> {
        let door = self.open(disk).await;
        let serve = async {
            match door {
                Some((door, _plug)) => door.serve(self.pods.subscribe()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = self.live(disk, ran) => result,
            never = serve => Ok(never),
        }
    }

    /// Opens the kubelet's port and makes the rack lead there. A kubelet without one does all else.
    async fn open(&self, disk: &Disk) -> Option<(Door, Plug)> {
        if !self.site.options.pods {
            return None;
        }
        let address = self.machine.address;
        let opened = async {
            let door = Door::open(
                certificates(&disk.authority),
                &self.machine.name,
                &address.to_string(),
            )
            .await?;
            let at = door.address()?;
            Ok::<_, ServeError>((door, at))
        };
        match opened.await {
            Ok((door, at)) => Some((
                door,
                self.site.network.plug(address, KUBELET_PORT, at, &disk.server),
            )),
            Err(error) => {
                warn!(node = self.machine.name, %error, "a kubelet has no port; its logs cannot be read");
                None
            }
        }
    }

    async fn live(&self, disk: &mut Disk, ran: bool) -> Result<Infallible, Problem> {
        let uid = self.host.meta.uid.as_deref().unwrap_or_default();
        if let Err(why) = self.extended() {
            self.say_ignored(&why);
        }
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
            tokio::select! {
                () = self.keep(since) => {}
                never = self.run_pods() => match never {},
            }
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

    async fn run_pods(&self) -> Infallible {
        if !self.site.options.pods {
            return std::future::pending().await;
        }
        let pods = Pods {
            client: self.watching.clone(),
            node: &self.machine.name,
            address: self.machine.address,
            boot: &self.machine.boot,
            times: &self.site.options.times,
            known: &self.pods,
        };
        pods.run().await
    }

    /// What the annotation of the host says now; what cannot be read is told, and is nothing.
    fn extended(&self) -> Result<Extended, String> {
        let host = self.view.borrow().clone();
        host.annotation(EXTENDED_RESOURCES)
            .map_or_else(|| Ok(Extended::new()), parse_extended)
    }

    fn say_ignored(&self, why: &str) {
        self.site
            .notices
            .say(self.host, Source::Server, true, "ExtendedResourcesIgnored", why);
    }

    /// What is to be reported: nothing of what was announced before and is no more.
    fn to_announce(&self) -> Extended {
        let mut extended = self.extended().unwrap_or_default();
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        for name in announced.iter() {
            extended.entry(name.clone()).or_default();
        }
        announced.extend(extended.keys().cloned());
        extended
    }

    async fn register(&self) -> Result<(), Problem> {
        let now = Timestamp::now();
        let node = self.machine.node(&self.to_announce(), now);
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
                let node = patched.map_err(|error| refused(&error))?;
                // What an earlier life announced holds no longer, unless it is announced again.
                let before = node.status.and_then(|status| status.capacity).unwrap_or_default();
                let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
                announced.extend(before.into_keys().filter(|name| name.contains('/')));
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
        let mut view = self.view.clone();
        let mut extended = self.extended();
        loop {
            tokio::select! {
                _ = beat.tick() => {}
                () = changed(&mut view) => {
                    let now = self.extended();
                    if now == extended {
                        continue;
                    }
                    extended = now;
                    missed = true;
                    if let Err(why) = &extended {
                        self.say_ignored(why);
                    }
                }
            }
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
        let extended = self.to_announce();
        let status = json!({"status": self.machine.status(ready, &extended, since, Timestamp::now())});
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

/// Waits for another version of the host; for ever when there will be none.
async fn changed(view: &mut watch::Receiver<Arc<Host>>) {
    if view.changed().await.is_err() {
        std::future::pending::<()>().await;
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
