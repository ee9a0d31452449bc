//! A whole host in one process: API servers, the simulated data centre without waits, real components, real loops.
//!
//! `World` outlives hosts: a test may stop one after any of its writes and start another.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostler_cli::args::RequiredPlugins;
use hostler_cli::control_plane::Clients;
use hostler_cli::wire;
use hostler_controllers::Settings;
use hostler_lab::{Lab, Network};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) mod fault;
mod history;
mod installer;
mod late;
mod planes;
pub(crate) mod process;
mod real;
mod self_signed;
pub(crate) mod stack;
pub(crate) mod warm;

pub(crate) use fault::{Fault, Strikes};
pub(crate) use history::History;
pub(crate) use self_signed::SelfSigned;
pub(crate) use stack::{PLATFORM, Stack, Through, patience};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

/// The `hostler` binary, which `make test` builds.
pub(crate) fn hostler() -> PathBuf {
    let path = root().join("target/debug/hostler");
    assert!(
        path.exists(),
        "{} is missing: run the tests with `make test`",
        path.display()
    );
    path
}

/// Directory of our components, which `make test` builds.
pub(crate) fn components() -> PathBuf {
    let path = root().join("target/components");
    assert!(
        path.join("driver-metal3.wasm").exists(),
        "no components in {}: run `make test`",
        path.display()
    );
    path
}

/// Directory of the components that only tests load.
pub(crate) fn fixtures() -> PathBuf {
    let path = root().join("target/fixtures");
    assert!(
        path.is_dir(),
        "no fixtures in {}: run `make test`",
        path.display()
    );
    path
}

/// Everything but the host.
pub(crate) struct World {
    pub(crate) stack: Stack,
    pub(crate) client: Client,
    pub(crate) network: Network,
    pub(crate) folder: TempDir,
    stop: CancellationToken,
    _lab: Lab,
}

/// A running host.
pub(crate) struct Host {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl World {
    /// A world with all kinds installed and a data centre that takes no time.
    pub(crate) async fn new() -> Self {
        Self::with(hostler_lab::Options::instant()).await
    }

    pub(crate) async fn with(lab: hostler_lab::Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let stack = Stack::start(&stop).await;
        let client = stack.administrator(PLATFORM);
        let network = Network::new();
        let lab = Lab::start(client.clone(), network.clone(), lab, stop.clone());
        stack.serve(network.clone(), folder.path().join("tenants"), stop.clone());
        let world = Self {
            stack,
            client,
            network,
            folder,
            stop,
            _lab: lab,
        };
        world.plug(&components()).await;
        world
    }

    /// Directory that hosts of this world read plugins from.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.folder.path().join("plugins")
    }

    /// A state directory of this name in which the components need not be compiled any more.
    pub(crate) fn warm_state(&self, name: &str) -> PathBuf {
        let state = self.folder.path().join(name);
        warm::start(&state);
        state
    }

    /// Copies components into the plugin directory.
    pub(crate) async fn plug(&self, from: &Path) {
        std::fs::create_dir_all(self.plugins()).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            let next = self.plugins().join(".next");
            std::fs::copy(entry.path(), &next).unwrap();
            std::fs::rename(next, self.plugins().join(entry.file_name())).unwrap();
        }
    }

    /// Starts a host.
    pub(crate) async fn host(&self) -> Host {
        self.host_behind(&Fault::none()).await
    }

    /// Starts a host whose every request passes a fault.
    pub(crate) async fn host_behind(&self, fault: &Arc<Fault>) -> Host {
        self.host_with(fault, Settings::default()).await
    }

    pub(crate) async fn host_with(&self, fault: &Arc<Fault>, settings: Settings) -> Host {
        self.host_at("state", fault, settings).await
    }

    /// Starts a host with a state directory of this name: two that run at a time have one each.
    pub(crate) async fn host_at(&self, state: &str, fault: &Arc<Fault>, settings: Settings) -> Host {
        let required = RequiredPlugins {
            resolver: "resolver-precedence".to_owned(),
            policies: vec!["policy-allowlist".to_owned()],
        };
        let clients: Clients = Arc::new({
            let (stack, fault) = (self.stack.clone(), fault.clone());
            move |cluster| {
                let service = Through::new(stack.as_host(cluster)?);
                Ok(if cluster == PLATFORM {
                    fault.client(service)
                } else {
                    fault.tenant_client(service)
                })
            }
        });
        self.start(state, clients, fault, settings, &required).await
    }

    /// Starts a host that reaches each cluster through a client of the caller's making, with other required components.
    pub(crate) async fn host_through(
        &self,
        clients: Clients,
        settings: Settings,
        required: &RequiredPlugins,
    ) -> Host {
        self.start("state", clients, &Fault::none(), settings, required)
            .await
    }

    async fn start(
        &self,
        state: &str,
        clients: Clients,
        fault: &Arc<Fault>,
        settings: Settings,
        required: &RequiredPlugins,
    ) -> Host {
        let stop = self.stop.child_token();
        fault.ends(stop.clone());
        let state = self.folder.path().join(state);
        warm::start(&state);
        let catalog = wire::catalog(&self.plugins(), &state, required, hostler())
            .await
            .unwrap();
        let client = clients(PLATFORM).unwrap();
        let tenants = self.folder.path().join("tenants");
        let control_planes = Arc::new(planes::Planes {
            inner: self.stack.control_planes(clients, self.network.clone(), tenants),
            stack: self.stack.clone(),
            fault: fault.clone(),
        });
        Self::run(client, catalog, control_planes, settings, stop)
    }

    /// Starts a host that knows tenants' APIs by Secrets that somebody else makes, as `hostler run` does.
    pub(crate) async fn host_given(&self) -> Host {
        let state = self.folder.path().join("state");
        warm::start(&state);
        let required = RequiredPlugins {
            resolver: "resolver-precedence".to_owned(),
            policies: vec!["policy-allowlist".to_owned()],
        };
        let catalog = wire::catalog(&self.plugins(), &state, &required, hostler())
            .await
            .unwrap();
        let client = self.stack.as_host(PLATFORM).unwrap();
        let config = kube::Config::new(self.stack.url(PLATFORM).parse().unwrap());
        let given = wire::given(client.clone(), &config, Arc::new(Client::try_from));
        let stop = self.stop.child_token();
        Self::run(client, catalog, given, Settings::default(), stop)
    }

    /// Makes an address of the rack lead to a tenant's API somewhere else.
    pub(crate) fn lead(&self, address: &str, to: &str) {
        self.network
            .bind(address, "elsewhere", to.parse().unwrap())
            .unwrap();
    }

    fn run(
        client: Client,
        catalog: Arc<hostler_wasm::Catalog>,
        control_planes: Arc<dyn hostler_controllers::control_plane::ControlPlane>,
        settings: Settings,
        stop: CancellationToken,
    ) -> Host {
        let settings = Settings {
            installation: "test".to_owned(),
            ..settings
        };
        let task = tokio::spawn(wire::controllers(
            client,
            catalog,
            control_planes,
            settings,
            stop.clone(),
        ));
        Host { stop, task }
    }

    /// Applies manifests of a file below the repository.
    pub(crate) async fn apply_file(&self, path: &str) {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        self.apply(&text).await;
    }

    /// Applies manifests, waiting for namespaces that are only now being made.
    pub(crate) async fn apply(&self, text: &str) {
        for document in text.split("\n---\n") {
            let value: Value = serde_saphyr::from_str(document).unwrap();
            if !value.is_null() {
                self.apply_one(serde_json::from_value(value).unwrap()).await;
            }
        }
    }

    async fn apply_one(&self, object: DynamicObject) {
        let api = self.api_of(&object).await;
        let name = object.name_any();
        let params = PatchParams::apply("tester").force();
        eventually(&format!("applying {name}"), || async {
            api.patch(&name, &params, &Patch::Apply(&object))
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    /// Tries to create an object and returns the refusal.
    pub(crate) async fn refusal(&self, text: &str) -> String {
        let object: DynamicObject =
            serde_json::from_value(serde_saphyr::from_str::<Value>(text).unwrap()).unwrap();
        let api = self.api_of(&object).await;
        api.create(&PostParams::default(), &object)
            .await
            .unwrap_err()
            .to_string()
    }

    async fn api_of(&self, object: &DynamicObject) -> Api<DynamicObject> {
        let types = object.types.clone().unwrap();
        let (group, version) = types
            .api_version
            .split_once('/')
            .unwrap_or(("", &types.api_version));
        let kind = GroupVersionKind::gvk(group, version, &types.kind);
        let (resource, capabilities) = pinned_kind(&self.client, &kind).await.unwrap();
        match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
                Api::namespaced_with(self.client.clone(), &namespace, &resource)
            }
        }
    }

    /// The example of the README: project, provider, hosts and tenant.
    pub(crate) async fn example(&self) {
        for file in ["project.yaml", "provider.yaml", "hosts.yaml"] {
            self.apply_file(&format!("examples/01-lab/{file}")).await;
        }
    }

    /// All hosts as JSON, by name.
    pub(crate) fn hosts(&self) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.client.clone(),
            "default",
            &hostler_lab::crds::bare_metal_hosts(),
        )
    }

    /// Administrator's client of the tenant whose control plane has this name.
    pub(crate) fn tenant(&self, name: &str) -> Option<Client> {
        let cluster = self.stack.clusters().into_iter().find(|cluster| {
            cluster
                .rsplit_once('-')
                .is_some_and(|(virtual_cluster, _)| virtual_cluster == name)
        })?;
        Some(self.stack.administrator(&cluster))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Host {
    /// Stops it and waits until it is gone.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(patience(), self.task)
            .await
            .expect("a host ends when told")
            .unwrap()
            .unwrap();
    }
}

/// Asks until the answer is yes; fails with the last no.
pub(crate) async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let end = tokio::time::Instant::now() + patience();
    let mut pause = Duration::from_millis(10);
    loop {
        let no = match ask().await {
            Ok(yes) => return yes,
            Err(no) => no,
        };
        assert!(
            tokio::time::Instant::now() < end,
            "{what}: not within {:?}: {no}",
            patience()
        );
        // Asking is work for the server, too: of many who wait at a time each asks less and less often.
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(Duration::from_millis(150));
    }
}
