//! Tenants' control planes as logical clusters of the embedded API server.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hostler_apiserver::{Identity, KubeletRoute, Server};
use hostler_controllers::control_plane::{ControlPlane, State, TenantApi, TenantPlace};
use hostler_core::seams::Reason;
use hostler_lab::{Network, scheduler};
use kube::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Gives the host's client for a logical cluster.
pub type Clients = Arc<dyn Fn(&str) -> anyhow::Result<Client> + Send + Sync>;

/// Makes a logical cluster for each tenant and leads its join address to it.
pub struct Embedded {
    server: Arc<Server>,
    clients: Clients,
    network: Network,
    /// URL of the server's socket, like `https://127.0.0.1:6443`.
    base: String,
    /// Where tenants' kubeconfigs go.
    tenants: PathBuf,
    schedulers: Option<Schedulers>,
}

/// The schedulers of the clusters, by the clusters' names.
struct Schedulers {
    stop: CancellationToken,
    running: Mutex<HashMap<String, DropGuard>>,
}

impl Schedulers {
    fn ensure(&self, cluster: &str, server: &Server) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry(cluster.to_owned()).or_insert_with(|| {
            let stop = self.stop.child_token();
            let client = server.client(cluster, Identity::host(SCHEDULER));
            tokio::spawn(scheduler::run(client, stop.clone()));
            stop.drop_guard()
        });
    }

    fn end(&self, cluster: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(cluster);
    }
}

/// User name of the schedulers.
const SCHEDULER: &str = "system:kube-scheduler";

/// How the API of a logical cluster reaches the kubelets on `network`: only those of machines that joined it.
#[must_use]
pub fn kubelets(network: &Network) -> KubeletRoute {
    let network = network.clone();
    Arc::new(move |cluster, address, port| {
        let (at, api) = network.kubelet(address, port)?;
        (api.path() == format!("/clusters/{cluster}")).then_some(at)
    })
}

impl Embedded {
    /// Control planes of `server`, whose socket is at `base`; tenants' kubeconfigs go below `tenants`.
    #[must_use]
    pub fn new(
        server: Arc<Server>,
        clients: Clients,
        network: Network,
        base: String,
        tenants: PathBuf,
    ) -> Self {
        Self {
            server,
            clients,
            network,
            base,
            tenants,
            schedulers: None,
        }
    }

    /// Gives every control plane a scheduler of its own, until `stop`.
    #[must_use]
    pub fn with_schedulers(self, stop: CancellationToken) -> Self {
        let schedulers = Schedulers {
            stop,
            running: Mutex::default(),
        };
        Self {
            schedulers: Some(schedulers),
            ..self
        }
    }

    fn kubeconfig_path(&self, place: &TenantPlace) -> PathBuf {
        self.tenants
            .join(&place.project)
            .join(format!("{}.kubeconfig", place.name))
    }

    /// The tenant's kubeconfig: made once, since each one holds a certificate of its own, and again when the address changed.
    fn kubeconfig(&self, cluster: &str, place: &TenantPlace) -> anyhow::Result<String> {
        let path = self.kubeconfig_path(place);
        let url = self.server.url(cluster, &self.base);
        if let Ok(known) = std::fs::read_to_string(&path)
            && known.lines().any(|line| {
                line.trim_start()
                    .trim_start_matches("- ")
                    .strip_prefix("server: ")
                    .is_some_and(|one| one.trim_matches('"') == url)
            })
        {
            return Ok(known);
        }
        let kubeconfig = self
            .server
            .kubeconfig(cluster, &self.base, &Identity::administrator())?;
        write_private(&path, &kubeconfig)?;
        Ok(kubeconfig)
    }

    async fn online(&self, place: &TenantPlace) -> anyhow::Result<TenantApi> {
        let cluster = cluster_of(place);
        if !self.server.clusters().contains(&cluster) {
            self.server.create_cluster(&cluster).await?;
        }
        if let Some(schedulers) = &self.schedulers {
            schedulers.ensure(&cluster, &self.server);
        }
        let kubeconfig = self.kubeconfig(&cluster, place)?;
        Ok(TenantApi {
            uid: place.uid.clone(),
            client: (self.clients)(&cluster)?,
            join_server: format!("https://{}", address_of(place)),
            ca_pem: self.server.ca_pem().to_owned(),
            kubeconfig: Some(kubeconfig),
            doubt: None,
        })
    }
}

#[async_trait]
impl ControlPlane for Embedded {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        let address = address_of(place);
        let target = self.server.url(&cluster_of(place), &self.base);
        let target = target
            .parse()
            .map_err(|error| Reason::new("EndpointInvalid", format!("{target}: {error}")))?;
        self.network
            .bind(&address, &place.uid, target)
            .map_err(|error| Reason::new("EndpointTaken", format!("controlPlane.endpoint: {error}")))?;
        match self.online(place).await {
            Ok(tenant) => Ok(State::Online(tenant)),
            Err(error) => Err(Reason::new("ControlPlaneFailed", format!("{error:#}"))),
        }
    }

    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason> {
        let cluster = cluster_of(place);
        // By owner: a tenant that goes need not say any more what it named.
        self.network.release(&place.uid);
        if let Some(schedulers) = &self.schedulers {
            schedulers.end(&cluster);
        }
        if self.server.clusters().contains(&cluster) {
            self.server
                .delete_cluster(&cluster)
                .await
                .map_err(|error| Reason::new("ControlPlaneFailed", format!("{error:#}")))?;
        }
        // The next tenant of this name writes its own file; one that is gone already is no error.
        drop(tokio::fs::remove_file(self.kubeconfig_path(place)).await);
        Ok(true)
    }
}

/// Name of the logical cluster: a tenant made again under its old name is another one.
#[must_use]
pub fn cluster_of(place: &TenantPlace) -> String {
    let short: String = place
        .uid
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect();
    format!("{}-{short}", place.virtual_cluster)
}

/// Address that machines join: as the tenant's values say, else a name of the lab's own.
#[must_use]
pub fn address_of(place: &TenantPlace) -> String {
    place
        .endpoint
        .clone()
        .unwrap_or_else(|| format!("{}.tenants.lab:443", cluster_of(place)))
}

/// Writes a file that only its owner reads, whole or not at all.
pub(crate) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let folder = path
        .parent()
        .ok_or_else(|| anyhow::anyhow!("{} has no directory", path.display()))?;
    std::fs::create_dir_all(folder)?;
    let next = path.with_extension("new");
    let mut file = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    Ok(())
}
