//! Real clusters under a world: one for the platform, one for each tenant, lent from a shelf and put back when the world ends.

use std::collections::{BTreeMap, VecDeque};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use hostler_cli::control_plane::Clients;
use hostler_controllers::control_plane::ControlPlane;
use hostler_controllers::control_plane::given::Connect;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::stack::{PLATFORM, Through};
use super::{components, hostler};
use crate::kubernetes::{ADMINISTRATOR, Binaries, Cluster};

/// What the host is called on the platform: as its pods are.
pub(super) const HOST: (&str, Option<&str>) = ("system:serviceaccount:hostler-system:hostler", None);
/// What it is called at tenants.
pub(super) const AT_TENANTS: (&str, Option<&str>) = ("hostler", None);

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
    cluster: Mutex<Option<Cluster>>,
    shelf: For,
}

impl Lent {
    /// One from the shelf, as it was at first, or a new one.
    async fn take(shelf: For) -> Self {
        let cluster = loop {
            let known = SHELVES[shelf as usize].lock().unwrap().pop_front();
            let Some(cluster) = known else {
                break make(shelf).await;
            };
            match cluster.restore().await {
                Ok(()) => break cluster,
                // It ended on the shelf or under its last user, whose test has told of it.
                Err(error) => eprintln!("a cluster is given up: {error:#}"),
            }
        };
        Self {
            cluster: Mutex::new(Some(cluster)),
            shelf,
        }
    }

    fn with<T>(&self, what: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster.lock().unwrap();
        what(cluster.as_mut().expect("it is lent until it is dropped"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // One whose API server did not come back is nobody's any more.
        let mut cluster = self.cluster.lock().unwrap().take();
        if cluster.as_mut().is_some_and(Cluster::is_whole) {
            SHELVES[self.shelf as usize].lock().unwrap().extend(cluster);
        }
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
            // Metal3's own definitions stand before the laboratory's, where they are.
            let metal3 = crate::metal3::definitions().unwrap_or_default();
            for ours in hostler_lab::crds::all() {
                let theirs = metal3.iter().find(|one| one.metadata.name == ours.metadata.name);
                definitions.push(theirs.cloned().unwrap_or(ours));
            }
            hostler_cli::wire::install(&client, definitions).await.unwrap();
            // The rights of a site that has our driver and the hostile one of the tests, whose machines may be anywhere.
            let site = tempfile::tempdir().unwrap();
            let driver = components().join("driver-metal3.toml");
            std::fs::copy(driver, site.path().join("driver-metal3.toml")).unwrap();
            let hostile = crate::safety::stage::grant(&["*".to_owned()]);
            std::fs::write(site.path().join("driver-hostile.toml"), hostile).unwrap();
            let plugins = site.path().display().to_string();
            grant(&client, &["--plugins", &plugins]).await;
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
            grant(&client, &["--tenant", AT_TENANTS.0]).await;
        }
    }
    cluster.until_settled(&client).await.unwrap();
    cluster.remember().await.unwrap();
    cluster
}

/// Gives the host the rights that `hostler manifests` asks for, and no others.
async fn grant(client: &Client, flags: &[&str]) {
    let output = Command::new(hostler())
        .arg("manifests")
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
        let object: DynamicObject = serde_saphyr::from_str(document).unwrap();
        let types = object.types.clone().unwrap();
        let is_wanted =
            types.kind == "Namespace" || types.api_version.starts_with("rbac.authorization.k8s.io/");
        if !is_wanted {
            continue;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let params = PatchParams::apply("operator").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }
}

/// The clusters of one world.
pub(crate) struct Real {
    platform: Lent,
    /// By the name that the cluster would have in our own server.
    tenants: Mutex<BTreeMap<String, Arc<Lent>>>,
    /// What the host read in the tenants' Secrets.
    configs: Mutex<BTreeMap<String, Config>>,
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
            configs: Mutex::default(),
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

    pub(super) fn with<T>(&self, cluster: &str, what: impl FnOnce(&mut Cluster) -> T) -> Option<T> {
        if cluster == PLATFORM {
            return Some(self.platform.with(what));
        }
        let lent = self.tenants.lock().unwrap().get(cluster).cloned()?;
        Some(lent.with(what))
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

    /// On the platform by a certificate of the host's, at a tenant by what stood in the tenant's Secret.
    pub(super) fn as_host(&self, cluster: &str) -> anyhow::Result<Client> {
        let given = self.configs.lock().unwrap().get(cluster).cloned();
        match given {
            Some(config) => Ok(Through::until(Client::try_from(config)?, self.ended.clone()).client()),
            None if cluster == PLATFORM => self.client(cluster, HOST),
            None => self.client(cluster, AT_TENANTS),
        }
    }

    pub(super) fn url(&self, cluster: &str) -> String {
        self.with(cluster, |one| one.url()).unwrap_or_default()
    }

    pub(super) fn ca_pem(&self, cluster: &str) -> String {
        self.with(cluster, |one| one.ca_pem().to_owned())
            .unwrap_or_default()
    }

    /// Tenants' APIs as the host finds them: by the Secrets that [`super::installer`] writes. `clients` wraps each client.
    pub(super) fn control_planes(self: &Arc<Self>, clients: Clients) -> Arc<dyn ControlPlane> {
        let config = self.platform.with(|one| one.config_for(HOST.0, HOST.1)).unwrap();
        let platform = clients(PLATFORM).unwrap();
        let real = self.clone();
        let connect: Connect = Arc::new(move |config| {
            // What the kubeconfig says is what is connected with; which cluster that is, is only asked for the sake of the wrapping.
            let url = config.cluster_url.to_string();
            let cluster = real
                .cluster_at(&url)
                .expect("the kubeconfig is of a cluster of this world");
            real.configs.lock().unwrap().insert(cluster.clone(), config);
            clients(&cluster).map_err(|error| kube::Error::Service(error.into()))
        });
        hostler_cli::wire::given(platform, &config, connect)
    }

    fn cluster_at(&self, url: &str) -> Option<String> {
        self.clusters()
            .into_iter()
            .find(|cluster| self.url(cluster) == url.trim_end_matches('/'))
    }

    /// A cluster for a tenant, under a name; one that is there already stays.
    pub(super) async fn install(&self, cluster: &str) {
        if !self.clusters().iter().any(|one| one == cluster) {
            let lent = Lent::take(For::Tenant).await;
            self.tenants
                .lock()
                .unwrap()
                .entry(cluster.to_owned())
                .or_insert_with(|| Arc::new(lent));
        }
    }

    /// Takes it away.
    pub(super) fn uninstall(&self, cluster: &str) {
        self.tenants.lock().unwrap().remove(cluster);
        self.configs.lock().unwrap().remove(cluster);
    }

    /// A kubeconfig of somebody for a cluster.
    pub(super) fn kubeconfig(&self, cluster: &str, (user, group): (&str, Option<&str>)) -> Option<String> {
        self.with(cluster, |one| one.kubeconfig_of(user, group).unwrap())
    }
}
