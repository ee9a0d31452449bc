//! What every loop is handed: clients, clock, seams, caches, and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hostler_api as api;
use hostler_core::seams::Plugins;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::control_plane::{ControlPlane, TenantApi};
use crate::events::Events;
use crate::machines::Machines;
use crate::retries::Retries;
use crate::tenant::ReadValues;
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
    /// Namespaces.
    pub namespaces: Watched<Namespace>,
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
    changes: watch::Sender<u64>,
}

impl Default for TenantApis {
    fn default() -> Self {
        Self {
            online: RwLock::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl TenantApis {
    /// The API of this tenant.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<TenantApi>> {
        self.online.read().expect("no holder panics").get(uid).cloned()
    }

    /// Puts a tenant online.
    pub fn insert(&self, uid: &str, tenant: Arc<TenantApi>) {
        self.online
            .write()
            .expect("no holder panics")
            .insert(uid.to_owned(), tenant);
        self.changes.send_modify(|generation| *generation += 1);
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
            self.changes.send_modify(|generation| *generation += 1);
        }
    }

    /// Tells of each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// Everything that a loop needs.
pub struct Ctx {
    /// The platform's API.
    pub client: Client,
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
    /// Starts the caches.
    #[must_use]
    pub fn start(
        client: Client,
        plugins: Arc<dyn Plugins>,
        control_planes: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            stores: Stores::start(&client, stop),
            events: Events::new(client.clone()),
            client,
            plugins,
            control_planes,
            clock,
            settings,
            tenants: TenantApis::default(),
            machines: Machines::default(),
            retries: Retries::default(),
            values: ReadValues::default(),
        })
    }
}
