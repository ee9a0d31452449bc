//! What every loop is handed: clients, clock, seams, caches, and nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hostler_api as api;
use hostler_core::seams::{Availability, PluginState, Plugins};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::control_plane::{ControlPlane, TenantApi};
use crate::events::Events;
use crate::fence::Fence;
use crate::machines::Machines;
use crate::metered::Metered;
use crate::metrics::{Census, Metrics};
use crate::requests::{self, Way};
use crate::retries::Retries;
use crate::tenant::ReadValues;
use crate::tenant::nodes::Nodes;
use crate::turn::Turns;
use crate::watched::Watched;

/// Tells the time; the only clock that loops read.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// What an operator sets for the whole host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this installation; two hosts on one data centre must differ in it.
    pub installation: String,
    /// Name of the cluster that the host runs in, as tenants and providers write it.
    pub cluster_name: String,
    /// How long a release waits for a tenant's API before it goes on without it.
    pub unreachable_after: Duration,
    /// How long a Node that will not go away may hold up a release.
    pub node_deletion_cap: Duration,
    /// How long a bootstrap token is valid; moved forward while a machine is being installed.
    pub token_lifetime: Duration,
    /// Turn of a steady object, before jitter.
    pub steady: Duration,
    /// Wait before a claim for which there was no room is looked at again, if nothing came free before.
    pub capacity_retry: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            installation: "default".to_owned(),
            cluster_name: api::names::PLATFORM_CLUSTER.to_owned(),
            unreachable_after: Duration::from_secs(60),
            node_deletion_cap: Duration::from_secs(60),
            token_lifetime: Duration::from_secs(3600),
            steady: Duration::from_secs(600),
            capacity_retry: Duration::from_secs(30),
        }
    }
}

/// Caches of what the platform holds, one watch a kind, shared by all loops.
pub struct Stores {
    /// Namespaces: only their marks matter, so no more than their metadata is sent and kept.
    pub namespaces: Watched<PartialObjectMeta<Namespace>>,
    /// Projects.
    pub projects: Watched<api::Project>,
    /// Tenants.
    pub tenants: Watched<api::VirtualClusterInstance>,
    /// Providers.
    pub providers: Watched<api::NodeProvider>,
    /// Node types.
    pub node_types: Watched<api::NodeType>,
    /// Claims.
    pub claims: Watched<api::NodeClaim>,
    /// Profiles.
    pub profiles: Watched<api::NodeProfile>,
    /// Environments.
    pub environments: Watched<api::NodeEnvironment>,
    /// Images.
    pub images: Watched<api::OSImage>,
    /// SSH keys.
    pub ssh_keys: Watched<api::SSHKey>,
    /// Enrollments.
    pub enrollments: Watched<api::Enrollment>,
    /// Plugins.
    pub plugins: Watched<api::Plugin>,
}

impl Stores {
    /// Starts one watch for each kind.
    #[must_use]
    pub fn start(client: &Client, stop: &CancellationToken) -> Self {
        macro_rules! all {
            () => {
                Watched::start(
                    Api::all(client.clone()),
                    watcher::Config::default(),
                    (),
                    stop.clone(),
                )
            };
        }
        Self {
            namespaces: all!(),
            projects: all!(),
            tenants: all!(),
            providers: all!(),
            node_types: all!(),
            claims: all!(),
            profiles: all!(),
            environments: all!(),
            images: all!(),
            ssh_keys: all!(),
            enrollments: all!(),
            plugins: all!(),
        }
    }

    /// Returns when each has listed once.
    pub async fn ready(&self) {
        self.namespaces.ready().await;
        self.projects.ready().await;
        self.tenants.ready().await;
        self.providers.ready().await;
        self.node_types.ready().await;
        self.claims.ready().await;
        self.profiles.ready().await;
        self.environments.ready().await;
        self.images.ready().await;
        self.ssh_keys.ready().await;
        self.enrollments.ready().await;
        self.plugins.ready().await;
    }
}

/// The tenants' APIs that are online, by tenant uid: a tenant made again under its old name is another one.
pub struct TenantApis {
    online: RwLock<HashMap<String, Arc<TenantApi>>>,
    /// Tenants that this process has looked for, with whatever end.
    looked: RwLock<HashSet<String>>,
    changes: broadcast::Sender<String>,
}

/// Changed tenants held for a reader that is behind.
const BACKLOG: usize = 1024;

impl Default for TenantApis {
    fn default() -> Self {
        Self {
            online: RwLock::default(),
            looked: RwLock::default(),
            changes: broadcast::Sender::new(BACKLOG),
        }
    }
}

impl TenantApis {
    /// The API of this tenant.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<TenantApi>> {
        self.online.read().expect("no holder panics").get(uid).cloned()
    }

    /// Whether this process has looked for the tenant's API: one that is not online before that may well be there.
    #[must_use]
    pub fn looked_for(&self, uid: &str) -> bool {
        self.looked.read().expect("no holder panics").contains(uid)
    }

    /// Says that it was looked for.
    pub(crate) fn look(&self, uid: &str) {
        if !self.looked_for(uid) {
            self.looked
                .write()
                .expect("no holder panics")
                .insert(uid.to_owned());
            self.tell(uid);
        }
    }

    /// Forgets a tenant that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.remove(uid);
        self.looked.write().expect("no holder panics").remove(uid);
    }

    /// Puts a tenant online.
    pub fn insert(&self, uid: &str, tenant: Arc<TenantApi>) {
        self.look(uid);
        self.online
            .write()
            .expect("no holder panics")
            .insert(uid.to_owned(), tenant);
        self.tell(uid);
    }

    /// Takes a tenant off.
    pub fn remove(&self, uid: &str) {
        if self
            .online
            .write()
            .expect("no holder panics")
            .remove(uid)
            .is_some()
        {
            self.tell(uid);
        }
    }

    fn tell(&self, uid: &str) {
        // No reader is no error: the map itself is the state.
        drop(self.changes.send(uid.to_owned()));
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.online.read().expect("no holder panics").len()
    }

    /// uids of tenants that came or went; a reader that falls behind gets an error and should look at everything.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }
}

/// How a host stands among others, and to its APIs.
#[derive(Clone)]
pub struct Standing {
    /// Lets writes through while this host leads.
    pub fence: Fence,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Most requests to the platform's API at a time, watches apart.
    pub most_requests: usize,
}

impl Default for Standing {
    /// Alone.
    fn default() -> Self {
        Self {
            fence: Fence::open(),
            metrics: Metrics::new(),
            most_requests: MOST_REQUESTS,
        }
    }
}

/// Requests to the platform's API at a time: what a full turn of every loop needs, and a small part of what an API server serves at once.
pub const MOST_REQUESTS: usize = 50;

/// Everything that a loop needs.
pub struct Ctx {
    /// The platform's API.
    pub client: Client,
    /// The same for a host that may no longer lead: only to take back what it has just written.
    pub(crate) undoing: Client,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Turns that run.
    pub turns: Turns,
    fence: Fence,
    /// Components.
    pub plugins: Arc<dyn Plugins>,
    /// Where tenants' APIs come from.
    pub control_planes: Arc<dyn ControlPlane>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Settings.
    pub settings: Settings,
    /// Caches of the platform's objects.
    pub stores: Stores,
    /// Tenants' APIs.
    pub tenants: TenantApis,
    /// Tenants' nodes.
    pub(crate) nodes: Nodes,
    /// What providers hold.
    pub machines: Machines,
    /// Events.
    pub events: Events,
    /// Attempts per object.
    pub retries: Retries,
    /// Tenants' values as they were read.
    pub(crate) values: ReadValues,
}

impl Ctx {
    /// Starts the caches of a host that is alone.
    #[must_use]
    pub fn start(
        client: Client,
        plugins: Arc<dyn Plugins>,
        control_planes: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let alone = Standing::default();
        Self::start_as(alone, client, plugins, control_planes, clock, settings, stop)
    }

    /// Starts the caches.
    #[must_use]
    pub fn start_as(
        standing: Standing,
        client: Client,
        plugins: Arc<dyn Plugins>,
        control_planes: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let Standing {
            fence,
            metrics,
            most_requests,
        } = standing;
        let places = Some(Arc::new(Semaphore::new(most_requests.max(1))));
        let way = |fence| Way::new(requests::PLATFORM, fence, metrics.clone(), places.clone());
        let undoing = requests::through(&client, way(Fence::open()));
        let client = requests::through(&client, way(fence.clone()));
        Arc::new(Self {
            stores: Stores::start(&client, stop),
            events: Events::new(client.clone()),
            client,
            undoing,
            turns: Turns::default(),
            fence,
            plugins: Metered::new(plugins, metrics.clone()),
            control_planes,
            clock,
            settings,
            tenants: TenantApis::default(),
            nodes: Nodes::default(),
            machines: Machines::default(),
            retries: Retries::new(metrics.clone()),
            metrics,
            values: ReadValues::default(),
        })
    }

    /// The client of a tenant's API, on its own way: fenced and counted, in none of the platform's places.
    pub(crate) fn of_tenant(&self, client: &Client) -> Client {
        let way = Way::new(requests::TENANT, self.fence.clone(), self.metrics.clone(), None);
        requests::through(client, way)
    }

    /// Whether this host may write now.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.fence.is_open()
    }

    /// All counters, with what is there counted now: content type and text.
    #[must_use]
    pub fn counters(&self) -> (&'static str, String) {
        self.metrics.lease_left(self.fence.left());
        self.metrics.count(self.census());
        self.metrics.text()
    }

    fn census(&self) -> Census {
        let mut census = Census {
            tenants: i64::try_from(self.tenants.count()).unwrap_or(i64::MAX),
            ..Census::default()
        };
        for claim in self.stores.claims.state() {
            let phase = claim.status.as_ref().and_then(|status| status.phase.clone());
            *census
                .claims
                .entry(phase.unwrap_or_else(|| "Pending".to_owned()))
                .or_default() += 1;
        }
        for provider in self.stores.providers.state() {
            let holdings = provider
                .meta()
                .uid
                .as_deref()
                .and_then(|uid| self.machines.of(uid));
            for entry in holdings.iter().flat_map(|holdings| holdings.machines.values()) {
                let state = match &entry.machine {
                    Ok(None) => continue,
                    Ok(Some(_)) if entry.held_by.is_some() => "claimed",
                    Ok(Some(machine)) => match machine.availability {
                        Availability::Free => "free",
                        Availability::Held(_) => "held",
                        Availability::Preparing(_) => "preparing",
                        Availability::Broken(_) => "broken",
                    },
                    Err(_) => "unknown",
                };
                *census.machines.entry(state).or_default() += 1;
            }
        }
        for state in self.plugins.states() {
            *census.plugins.entry(standing_of(&state)).or_default() += 1;
        }
        census
    }
}

fn standing_of(plugin: &PluginState) -> &'static str {
    match (plugin.healthy, plugin.serving.is_some()) {
        (true, _) => "healthy",
        (false, true) => "outdated",
        (false, false) => "failed",
    }
}
