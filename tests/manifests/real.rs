//! What `hostler manifests` prints, on the real Kubernetes: every object is taken without a warning, and the host, started with the
//! arguments of its own pod, as its own account and under its own roles, uses every right and lacks none.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use hostler_api as api;
use hostler_apiserver::{Identity, Server};
use hostler_cli::wire;
use hostler_lab::{Lab, Network};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::objects;
use super::rights::{Exception, compare, granted, used};
use crate::harness::{components, eventually, hostler, root, warm};
use crate::kubernetes::process::{Process, free_port};
use crate::kubernetes::{Binaries, Cluster};

const NAMESPACE: &str = "hostler-system";
/// Where the pods' user is, as the API server calls it.
const ACCOUNT: &str = "system:serviceaccount:hostler-system:hostler";
/// Where tenant `one` says that its machines join.
const ENDPOINT: &str = "192.168.100.2:8443";

/// Rights that this path need not use, with the reason. Nothing is to stand here that a test can bring about.
const EXCEPTIONS: [Exception; 0] = [];

/// The parts of the real Kubernetes that are wanted, or a line that says which is missing.
fn binaries() -> Option<Binaries> {
    let found = Binaries::find().and_then(|binaries| {
        for name in ["kube-controller-manager", "kubectl"] {
            anyhow::ensure!(
                binaries.path(name).is_some(),
                "no {name}; `make kubernetes` builds it"
            );
        }
        Ok(binaries)
    });
    found
        .inspect_err(|why| eprintln!("the manifests were not applied to the real Kubernetes: {why}"))
        .ok()
}

/// Applies as an administrator does; whatever the server warns of is an error.
fn apply(binaries: &Binaries, cluster: &Cluster, text: &str, more: &[&str]) -> Result<(), String> {
    let mut kubectl = Command::new(binaries.path("kubectl").unwrap())
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .args(["apply", "--server-side", "--validate=strict", "-f", "-"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    kubectl.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = kubectl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && !said.contains("Warning") {
        Ok(())
    } else {
        Err(said.into_owned())
    }
}

fn stream(objects: &[Value]) -> String {
    objects
        .iter()
        .map(|object| format!("---\n{}", serde_saphyr::to_string(object).unwrap()))
        .collect()
}

/// The plugin directory of a site whose hosts are in one namespace.
fn plugins(folder: &Path) -> PathBuf {
    let plugins = folder.join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    for entry in std::fs::read_dir(components()).unwrap().flatten() {
        std::fs::copy(entry.path(), plugins.join(entry.file_name())).unwrap();
    }
    let file = plugins.join("driver-metal3.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("namespaces = [\"*\"]"), "{text}");
    std::fs::write(
        &file,
        text.replace("namespaces = [\"*\"]", "namespaces = [\"default\"]"),
    )
    .unwrap();
    plugins
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_is_taken_by_the_real_server_without_a_warning() {
    let Some(binaries) = binaries() else { return };
    let cluster = Cluster::start(&binaries).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plugins = plugins(folder.path()).display().to_string();
    let with_plugins = format!("--plugins={plugins}");
    apply(&binaries, &cluster, &stream(&objects(&[&with_plugins])), &[]).unwrap();
    // Applied once more, nothing of it is another's, and nothing fights with what the server filled in.
    apply(&binaries, &cluster, &stream(&objects(&[&with_plugins])), &[]).unwrap();
    let other = objects(&[
        &with_plugins,
        "--plugin-config-maps",
        "--state=empty-dir",
        "--metrics-from=monitoring",
        "--name=second",
        "--namespace=second-system",
        "--replicas=3",
    ]);
    apply(&binaries, &cluster, &stream(&other), &[]).unwrap();
    let tenant = hostler_cli::manifests::tenant_part("hostler").unwrap();
    apply(&binaries, &cluster, &stream(&tenant.objects), &[]).unwrap();
    // The namespace lets nothing weaker in than our own pods are.
    let weak = "{apiVersion: v1, kind: Pod, metadata: {name: weak, namespace: hostler-system}, spec: {containers: [{name: c, image: i}]}}";
    let refused = apply(&binaries, &cluster, weak, &[]).unwrap_err();
    assert!(refused.contains("violates PodSecurity"), "{refused}");
    for workload in ["StatefulSet", "Deployment"] {
        let all = [objects(&[&with_plugins]), other.clone()].concat();
        let pod = all.into_iter().find(|object| object["kind"] == workload).unwrap();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": workload.to_lowercase(), "namespace": NAMESPACE },
            "spec": pod["spec"]["template"]["spec"],
        });
        if workload == "StatefulSet" {
            let claim =
                json!({ "name": "state", "persistentVolumeClaim": { "claimName": "state-hostler-0" } });
            pod["spec"]["volumes"].as_array_mut().unwrap().push(claim);
        }
        apply(&binaries, &cluster, &stream(&[pod]), &["--dry-run=server"]).unwrap();
    }
}

/// Everything but the host's process.
struct Stage {
    binaries: Binaries,
    // Before the folder and the cluster: it ends first.
    host: Option<Process>,
    cluster: Cluster,
    client: Client,
    network: Network,
    tenants: Arc<Server>,
    base: String,
    objects: Vec<Value>,
    plugins: PathBuf,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    _lab: Lab,
}

impl Stage {
    async fn set(binaries: Binaries) -> Self {
        let mut cluster = Cluster::start(&binaries).await.unwrap();
        cluster.start_controllers().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let plugins = plugins(folder.path());
        let objects = objects(&[&format!("--plugins={}", plugins.display())]);
        apply(&binaries, &cluster, &stream(&objects), &[]).unwrap();
        let client = cluster.client().await.unwrap();
        wire::install(&client, hostler_lab::crds::all()).await.unwrap();
        let stop = CancellationToken::new();
        let network = Network::new();
        let lab = Lab::start(
            client.clone(),
            network.clone(),
            hostler_lab::Options::instant(),
            stop.clone(),
        );
        let tenants =
            Server::open(hostler_apiserver::Options::new(hostler_apiserver::Store::Memory)).unwrap();
        let tenants = Arc::new(tenants);
        tenants.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn({
            let (tenants, stop) = (tenants.clone(), stop.clone());
            async move { tenants.serve(listener, stop).await }
        });
        Self {
            binaries,
            host: None,
            cluster,
            client,
            network,
            tenants,
            base,
            objects,
            plugins,
            folder,
            stop,
            _lab: lab,
        }
    }

    /// Starts the host as its pod would, with the paths of this machine.
    fn start(&mut self) {
        let state = self.folder.path().join("state");
        warm::start(&state);
        let workload = self
            .objects
            .iter()
            .find(|one| one["kind"] == "StatefulSet")
            .unwrap();
        let arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap();
        let port = free_port().unwrap();
        let mut all = vec![
            "POD_NAME=hostler-0".to_owned(),
            format!("POD_NAMESPACE={NAMESPACE}"),
            hostler().display().to_string(),
        ];
        all.extend(arguments.iter().map(|one| {
            let text = one.as_str().unwrap();
            match text.split_once('=').map_or("", |(flag, _)| flag) {
                "--plugins" => format!("--plugins={}", self.plugins.display()),
                "--state" => format!("--state={}", state.display()),
                "--metrics-listen" => format!("--metrics-listen=127.0.0.1:{port}"),
                _ => text.to_owned(),
            }
        }));
        let kubeconfig = self.folder.path().join("account.kubeconfig");
        let text = self.cluster.kubeconfig_of(ACCOUNT, None).unwrap();
        std::fs::write(&kubeconfig, text).unwrap();
        all.push(format!("--kubeconfig={}", kubeconfig.display()));
        let log = self.log();
        let process = Process::start(Path::new("env"), &all, self.folder.path(), &log).unwrap();
        self.host = Some(process);
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("host.log")
    }

    /// Applies a file of the examples, once its namespace is there.
    async fn example(&self, file: &str) {
        let text = std::fs::read_to_string(root().join("examples").join(file)).unwrap();
        eventually(file, || async {
            apply(&self.binaries, &self.cluster, &text, &[])
        })
        .await;
    }

    /// What whoever runs the tenant's API does: it is there, and its kubeconfig is where the host looks.
    async fn give_tenant(&self) {
        self.tenants.create_cluster("one").await.unwrap();
        let url = self.tenants.url("one", &self.base);
        self.network.bind(ENDPOINT, "one", url.parse().unwrap()).unwrap();
        let kubeconfig = self
            .tenants
            .kubeconfig("one", &self.base, &Identity::administrator())
            .unwrap();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "loft-default-v-one");
        let mut secret = Secret {
            data: Some([("config".to_owned(), ByteString(kubeconfig.into_bytes()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some("vc-one".to_owned());
        eventually("the tenant's namespace", || async {
            let made = secrets.create(&PostParams::default(), &secret).await;
            made.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    async fn available(&self, count: usize) {
        let claims: Api<api::NodeClaim> = Api::all(self.client.clone());
        self.until("claims are Available", || async {
            let all = claims
                .list(&ListParams::default())
                .await
                .map_err(|error| error.to_string())?;
            let phases: Vec<_> = all
                .iter()
                .map(|claim| claim.status.clone().unwrap_or_default())
                .map(|status| (status.phase, status.reason, status.message))
                .collect();
            let available = phases
                .iter()
                .filter(|(phase, ..)| phase.as_deref() == Some("Available"))
                .count();
            if available == count && phases.len() == count {
                Ok(())
            } else {
                Err(format!("{phases:?}"))
            }
        })
        .await;
    }

    /// As `eventually`, with the host's log where it fails.
    async fn until<F>(&self, what: &str, ask: impl Fn() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        let log = self.log();
        eventually(what, || async {
            ask().await.map_err(|no| {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(20).collect();
                format!("{no}\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
            })
        })
        .await;
    }

    async fn there<K>(&self, api: &Api<K>, name: &str, is: impl Fn(Option<&K>) -> bool)
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        self.until(name, || async {
            let found = api.get_opt(name).await.map_err(|error| error.to_string())?;
            is(found.as_ref())
                .then_some(())
                .ok_or_else(|| format!("{found:?}"))
        })
        .await;
    }

    /// Two claims go for one reason, which is one event that is counted up; a claim only goes after the tenant was read once more.
    async fn pools_that_shrink_and_grow(&self) {
        let text = std::fs::read_to_string(root().join("examples/01-lab/tenant.yaml")).unwrap();
        assert_eq!(text.matches("quantity: 1").count(), 2, "{text}");
        for (quantity, count) in [("quantity: 0", 0), ("quantity: 1", 2)] {
            let text = text.replace("quantity: 1", quantity);
            apply(&self.binaries, &self.cluster, &text, &[]).unwrap();
            self.available(count).await;
        }
    }

    /// A namespace that was there before its Project is marked, and left standing without the mark.
    async fn project_in_a_namespace_made_by_hand(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let projects: Api<api::Project> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": "p-made" } })).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let project = serde_json::from_value(json!({ "metadata": { "name": "made" }, "spec": {} })).unwrap();
        projects.create(&PostParams::default(), &project).await.unwrap();
        let marked =
            |one: Option<&Namespace>| one.is_some_and(|one| one.labels().contains_key(api::names::PROJECT));
        self.there(&namespaces, "p-made", marked).await;
        projects.delete("made", &DeleteParams::default()).await.unwrap();
        self.there(&projects, "made", |one| one.is_none()).await;
        self.there(&namespaces, "p-made", |one| one.is_some() && !marked(one))
            .await;
    }

    /// A node type comes, changes and goes with its provider's spec.
    async fn node_type_that_comes_and_goes(&self) {
        let providers: Api<api::NodeProvider> = Api::all(self.client.clone());
        let types: Api<api::NodeType> = Api::all(self.client.clone());
        let provider = serde_json::to_value(providers.get("metal3").await.unwrap()).unwrap();
        let pointer = "/spec/metal3/nodeTypes";
        let before = provider.pointer(pointer).unwrap().as_array().unwrap().clone();
        let set = |more: Vec<Value>| {
            let all: Vec<Value> = before.iter().cloned().chain(more).collect();
            let change = json!({ "spec": { "metal3": { "nodeTypes": all } } });
            let providers = providers.clone();
            async move {
                providers
                    .patch("metal3", &PatchParams::default(), &Patch::Merge(change))
                    .await
                    .unwrap();
            }
        };
        let spare = |name: &str| json!({ "name": "spare", "displayName": name, "bareMetalHosts": { "selector": { "matchLabels": { "role": "spare" } } } });
        set(vec![spare("One")]).await;
        self.there(&types, "metal3.spare", |one| one.is_some()).await;
        set(vec![spare("Two")]).await;
        let renamed = |one: Option<&api::NodeType>| {
            serde_json::to_value(one).is_ok_and(|one| one["spec"]["displayName"] == "Two")
        };
        self.there(&types, "metal3.spare", renamed).await;
        set(Vec::new()).await;
        self.there(&types, "metal3.spare", |one| one.is_none()).await;
    }

    /// A file that does not load is told as a Plugin, which goes with the file.
    async fn plugin_that_does_not_load(&self) {
        let plugins: Api<api::Plugin> = Api::all(self.client.clone());
        let file = self.plugins.join("policy-broken.wasm");
        std::fs::write(&file, "no component").unwrap();
        self.there(&plugins, "policy-broken", |one| one.is_some()).await;
        std::fs::remove_file(&file).unwrap();
        self.there(&plugins, "policy-broken", |one| one.is_none()).await;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
        self.host = None;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_uses_every_right_that_it_is_given_and_lacks_none() {
    let Some(binaries) = binaries() else { return };
    let mut stage = Stage::set(binaries).await;
    stage.start();
    for file in ["project.yaml", "provider.yaml", "hosts.yaml"] {
        stage.example(&format!("01-lab/{file}")).await;
    }
    stage.example("02-node-profile/profile.yaml").await;
    stage.example("01-lab/tenant.yaml").await;
    stage.give_tenant().await;
    stage.available(2).await;
    stage.pools_that_shrink_and_grow().await;
    stage.project_in_a_namespace_made_by_hand().await;
    stage.node_type_that_comes_and_goes().await;
    stage.plugin_that_does_not_load().await;

    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(stage.client.clone(), "p-default");
    tenants.delete("one", &DeleteParams::default()).await.unwrap();
    stage.there(&tenants, "one", |one| one.is_none()).await;
    let projects: Api<api::Project> = Api::all(stage.client.clone());
    projects
        .delete("default", &DeleteParams::default())
        .await
        .unwrap();
    stage.there(&projects, "default", |one| one.is_none()).await;
    let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), "default");
    let left: Vec<String> = secrets
        .list(&ListParams::default().labels(api::names::CLAIM_UID))
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(left.is_empty(), "boot Secrets are left: {left:?}");
    stage.host = None;

    let difference = compare(
        &granted(&stage.objects, ACCOUNT),
        &used(&stage.cluster.audit_log(), ACCOUNT),
        &EXCEPTIONS,
    );
    assert!(difference.is_none(), "{difference:#?}");

    let of = async |path: &str| flow_of(&stage, path).await;
    assert_eq!(of("/apis/management.loft.sh/v1/nodeclaims").await, "hostler");
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hostler");
    assert_eq!(of(&lease).await, "hostler-leases");
}

/// Name of the FlowSchema by which the API server lets a request of the host's account wait.
async fn flow_of(stage: &Stage, path: &str) -> String {
    let account = stage.cluster.client_for(ACCOUNT, None).unwrap();
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    let answer = account.send(request).await.unwrap();
    let uid = answer.headers()["x-kubernetes-pf-flowschema-uid"]
        .to_str()
        .unwrap()
        .to_owned();
    let flows: Api<FlowSchema> = Api::all(stage.client.clone());
    let flows = flows.list(&ListParams::default()).await.unwrap();
    let flow = flows.iter().find(|flow| flow.uid().as_ref() == Some(&uid));
    flow.map(ResourceExt::name_any).unwrap_or(uid)
}
