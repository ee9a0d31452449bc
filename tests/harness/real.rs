//! Real clusters under a world: one for the platform, one for each tenant, lent from a shelf and put back when the world ends.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use hostler_cli::control_plane::{Clients, address_of, cluster_of};
use hostler_controllers::control_plane::{ControlPlane, State, TenantApi, TenantPlace};
use hostler_core::seams::Reason;
use hostler_lab::Network;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::stack::{PLATFORM, Through, keep_kubeconfig};
use crate::kubernetes::{ADMINISTRATOR, Binaries, Cluster};

/// What the host is called in the clusters.
const HOST: (&str, Option<&str>) = ("system:hostler", Some("system:masters"));

/// Clusters that nobody has now. They end with this process.
static SHELVES: [Mutex<VecDeque<Cluster>>; 2] = [Mutex::new(VecDeque::new()), Mutex::new(VecDeque::new())];

/// What a cluster is prepared for.
#[derive(Clone, Copy, Debug)]
enum For {
    Platform = 0,
    Tenant = 1,
}

/// A cluster on loan.
struct Lent {
    cluster: Option<Cluster>,
    shelf: For,
}

impl Lent {
    /// One from the shelf, as it was at first, or a new one.
    async fn take(shelf: For) -> Self {
        let known = SHELVES[shelf as usize].lock().unwrap().pop_front();
        let cluster = match known {
            Some(cluster) => {
                cluster.restore().await.unwrap();
                cluster
            }
            None => make(shelf).await,
        };
        Self {
            cluster: Some(cluster),
            shelf,
        }
    }

    fn get(&self) -> &Cluster {
        self.cluster.as_ref().expect("it is lent until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let cluster = self.cluster.take();
        SHELVES[self.shelf as usize].lock().unwrap().extend(cluster);
    }
}

/// A new cluster, with all that its users find there.
async fn make(shelf: For) -> Cluster {
    let binaries = Binaries::find().unwrap();
    let mut cluster = Cluster::start(&binaries).await.unwrap();
    cluster.start_controllers().unwrap();
    let client = cluster.client().await.unwrap();
    match shelf {
        For::Platform => {
            let mut definitions = hostler_api::all_crds();
            definitions.extend(hostler_lab::crds::all());
            hostler_cli::wire::install(&client, definitions).await.unwrap();
        }
        For::Tenant => {
            // As kubeadm does: whoever has a token may ask for a certificate. Nothing is approved by that.
            let binding: ClusterRoleBinding = serde_json::from_value(json!({
                "metadata": {"name": "bootstrap"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
            }))
            .unwrap();
            Api::all(client.clone())
                .create(&PostParams::default(), &binding)
                .await
                .unwrap();
        }
    }
    cluster.until_settled(&client).await.unwrap();
    cluster.remember().await.unwrap();
    cluster
}

/// The clusters of one world.
pub(crate) struct Real {
    platform: Lent,
    /// By the name that the cluster would have in our own server.
    tenants: Mutex<BTreeMap<String, Arc<Lent>>>,
    ended: CancellationToken,
    _turn: OwnedSemaphorePermit,
}

impl Real {
    pub(super) async fn start(ended: CancellationToken) -> Self {
        static TURNS: OnceLock<Arc<Semaphore>> = OnceLock::new();
        // Each world is some processes that want a core now and then.
        let turns = TURNS.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            Arc::new(Semaphore::new(cores + 1))
        });
        let turn = turns.clone().acquire_owned().await.unwrap();
        Self {
            platform: Lent::take(For::Platform).await,
            tenants: Mutex::default(),
            ended,
            _turn: turn,
        }
    }

    pub(super) fn clusters(&self) -> Vec<String> {
        let tenants = self.tenants.lock().unwrap();
        let mut all: Vec<_> = tenants.keys().cloned().collect();
        all.push(PLATFORM.to_owned());
        all
    }

    fn with<T>(&self, cluster: &str, what: impl FnOnce(&Cluster) -> T) -> Option<T> {
        if cluster == PLATFORM {
            return Some(what(self.platform.get()));
        }
        let lent = self.tenants.lock().unwrap().get(cluster).cloned()?;
        Some(what(lent.get()))
    }

    fn client(&self, cluster: &str, (user, group): (&str, Option<&str>)) -> anyhow::Result<Client> {
        let client = self
            .with(cluster, |one| one.client_for(user, group))
            .ok_or_else(|| anyhow::anyhow!("there is no cluster {cluster}"))??;
        Ok(Through::until(client, self.ended.clone()).client())
    }

    pub(super) fn administrator(&self, cluster: &str) -> Client {
        self.client(cluster, ADMINISTRATOR).unwrap()
    }

    pub(super) fn as_host(&self, cluster: &str) -> anyhow::Result<Client> {
        self.client(cluster, HOST)
    }

    pub(super) fn url(&self, cluster: &str) -> String {
        self.with(cluster, Cluster::url).unwrap_or_default()
    }

    pub(super) fn ca_pem(&self, cluster: &str) -> String {
        self.with(cluster, |one| one.ca_pem().to_owned())
            .unwrap_or_default()
    }

    pub(super) fn control_planes(
        self: &Arc<Self>,
        clients: Clients,
        network: Network,
        tenants: PathBuf,
    ) -> Arc<dyn ControlPlane> {
        Arc::new(Planes {
            real: self.clone(),
            clients,
            network,
            tenants,
        })
    }
}

/// A cluster of its own for each tenant.
struct Planes {
    real: Arc<Real>,
    clients: Clients,
    network: Network,
    tenants: PathBuf,
}

#[async_trait]
impl ControlPlane for Planes {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        let (cluster, address) = (cluster_of(place), address_of(place));
        if !self.real.clusters().contains(&cluster) {
            let lent = Lent::take(For::Tenant).await;
            let mut tenants = self.real.tenants.lock().unwrap();
            // Two hosts may have begun at a time; the cluster that nobody uses goes back.
            tenants.entry(cluster.clone()).or_insert_with(|| Arc::new(lent));
        }
        let url = self.real.url(&cluster);
        self.network
            .bind(&address, &place.uid, url.parse().unwrap())
            .map_err(|error| Reason::new("EndpointTaken", format!("controlPlane.endpoint: {error}")))?;
        let kubeconfig = self
            .real
            .with(&cluster, |one| std::fs::read_to_string(one.kubeconfig()).unwrap())
            .unwrap();
        keep_kubeconfig(&self.tenants, place, &kubeconfig);
        Ok(State::Online(TenantApi {
            uid: place.uid.clone(),
            client: (self.clients)(&cluster)
                .map_err(|error| Reason::new("ControlPlaneFailed", format!("{error:#}")))?,
            join_server: format!("https://{address}"),
            ca_pem: self.real.ca_pem(&cluster),
            kubeconfig: Some(kubeconfig),
            doubt: None,
        }))
    }

    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason> {
        self.network.release(&place.uid);
        self.real.tenants.lock().unwrap().remove(&cluster_of(place));
        let kubeconfig = self
            .tenants
            .join(&place.project)
            .join(format!("{}.kubeconfig", place.name));
        drop(std::fs::remove_file(kubeconfig));
        Ok(true)
    }
}
