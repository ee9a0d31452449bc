//! The real Kubernetes beside ours: etcd, kube-apiserver and its companions on loopback, always stopped again.
//!
//! `make kubernetes` builds the binaries into a cache of the user; `KUBEBUILDER_ASSETS` names others.

mod certificates;
mod kept;
pub(crate) mod process;
mod restore;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tempfile::TempDir;

use self::certificates::Authority;
pub(crate) use self::kept::KEPT;
use self::process::{Process, free_port};

/// The release that the tests are held against; `tests/kubernetes/control-plane/go.mod` says the same.
const RELEASE: &str = "v1.36.3";
/// How long a server may take to answer. Far more than it needs on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Name and group of whoever may do everything.
pub(crate) const ADMINISTRATOR: (&str, Option<&str>) = ("kubernetes-admin", Some("system:masters"));

/// Everything is written down: whole requests are too much, their metadata is what a test looks for.
const AUDIT_POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n";

/// Where binaries of the real Kubernetes are.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The folder that holds them, or a line that says how to get them.
    pub(crate) fn find() -> Result<Self> {
        let folder = match std::env::var_os("KUBEBUILDER_ASSETS") {
            Some(folder) => PathBuf::from(folder),
            None => {
                let cache = std::env::var_os("XDG_CACHE_HOME")
                    .map(PathBuf::from)
                    .or_else(|| Some(std::env::home_dir()?.join(".cache")))
                    .context("neither XDG_CACHE_HOME nor HOME is set, so there is no cache to look in")?;
                cache.join("hostler/kubernetes").join(RELEASE).join("bin")
            }
        };
        let found = Self { folder };
        // What controller tests usually download has no controller manager.
        for name in ["etcd", "kube-apiserver", "kube-controller-manager"] {
            if found.path(name).is_none() {
                bail!(
                    "not run beside the real Kubernetes: no {name} in {}; `make kubernetes` builds it, and is found where \
                     KUBEBUILDER_ASSETS is not set",
                    found.folder.display()
                );
            }
        }
        Ok(found)
    }

    /// One of them, if it is there.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(name)).filter(|path| path.is_file())
    }

    fn demand(&self, name: &str) -> Result<PathBuf> {
        self.path(name).with_context(|| {
            format!(
                "no {name} in {}; `make kubernetes` builds it",
                self.folder.display()
            )
        })
    }
}

/// A running cluster without nodes. Everything is stopped and removed when it is dropped, or when this process ends.
#[derive(Debug)]
pub(crate) struct Cluster {
    // Before the folder: processes end before their files go.
    processes: Vec<Process>,
    folder: TempDir,
    binaries: Binaries,
    authority: Authority,
    port: u16,
    /// Where etcd listens.
    store: u16,
    /// Everything in etcd when the cluster was ready for its first user.
    first: restore::Everything,
}

impl Cluster {
    /// Starts etcd and kube-apiserver, and waits until the API answers.
    pub(crate) async fn start(binaries: &Binaries) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hostler-kubernetes-").tempdir()?;
        let authority = Authority::create(folder.path())?;
        let mut cluster = Self {
            processes: Vec::new(),
            folder,
            binaries: binaries.clone(),
            authority,
            port: 0,
            store: 0,
            first: restore::Everything::default(),
        };
        // A port that was free may be taken before the server listens; then another is tried.
        let mut last = None;
        for _ in 0..3 {
            match cluster.try_start().await {
                Ok(()) => return Ok(cluster),
                Err(error) => last = Some(error),
            }
            cluster.processes.clear();
        }
        Err(last.context("no attempt was made")?)
    }

    async fn try_start(&mut self) -> Result<()> {
        let (store, peers) = (free_port()?, free_port()?);
        self.port = free_port()?;
        self.store = store;
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = [
            format!("--data-dir={}", at(&format!("etcd-{store}"))),
            format!("--listen-client-urls={}", local(store)),
            format!("--advertise-client-urls={}", local(store)),
            format!("--listen-peer-urls={}", local(peers)),
            format!("--initial-advertise-peer-urls={}", local(peers)),
            format!("--initial-cluster=default={}", local(peers)),
            // The folder is gone with the test; waiting for its disk would be waste.
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        std::fs::write(at("audit-policy.yaml"), AUDIT_POLICY)?;
        self.start_process("etcd", &etcd)?;
        self.start_server()?;
        std::fs::write(
            self.kubeconfig(),
            self.kubeconfig_of(ADMINISTRATOR.0, ADMINISTRATOR.1)?,
        )?;
        let client = self.client().await?;
        self.wait_ready(&client).await
    }

    /// Starts kube-apiserver, again after `stop_server`: on the port that it has had, on what is in etcd.
    pub(crate) fn start_server(&mut self) -> Result<()> {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let arguments = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.store),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port),
            format!("--tls-cert-file={}", at("server.crt")),
            format!("--tls-private-key-file={}", at("server.key")),
            format!("--client-ca-file={}", at("ca.crt")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            // Pods here name no service account token, and no controller is needed to create one.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            format!("--audit-log-path={}", at("audit.log")),
            format!("--audit-policy-file={}", at("audit-policy.yaml")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", at("accounts.pub")),
            format!("--service-account-signing-key-file={}", at("accounts.key")),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            // There is no address but the loopback one, which would be refused as an endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        self.start_process("kube-apiserver", &arguments)
    }

    /// Ends kube-apiserver, without a word to those that it serves. Everything else of the cluster goes on.
    pub(crate) fn stop_server(&mut self) {
        self.processes
            .retain(|process| process.name() != "kube-apiserver");
    }

    /// Starts kube-apiserver if it does not run.
    pub(crate) fn keep_server(&mut self) -> Result<()> {
        if self.is_whole() {
            return Ok(());
        }
        self.stop_server();
        self.start_server()
    }

    /// Whether kube-apiserver runs.
    pub(crate) fn is_whole(&mut self) -> bool {
        let mut servers = self
            .processes
            .iter_mut()
            .filter(|process| process.name() == "kube-apiserver");
        servers.any(|server| matches!(server.ended(), Ok(None)))
    }

    fn start_process(&mut self, name: &str, arguments: &[String]) -> Result<()> {
        let (folder, program) = (self.folder.path(), self.binaries.demand(name)?);
        let log = folder.join(format!("{name}.log"));
        self.processes
            .push(Process::start(&program, arguments, folder, &log)?);
        Ok(())
    }

    async fn wait_ready(&mut self, client: &Client) -> Result<()> {
        let begin = Instant::now();
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let Err(last) = client.request_text(request).await else {
                return Ok(());
            };
            for process in &mut self.processes {
                if let Some(log) = process.ended()? {
                    bail!(
                        "{} ended while starting; its log ends with:\n{log}",
                        process.name()
                    );
                }
            }
            if begin.elapsed() > PATIENCE {
                bail!("kube-apiserver was not ready after {PATIENCE:?}: {last}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Starts kube-controller-manager: garbage collection, end of namespaces, signing of certificates, service accounts.
    pub(crate) fn start_controllers(&mut self) -> Result<()> {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let port = free_port()?;
        let arguments = [
            format!("--kubeconfig={}", self.own_kubeconfig("kube-controller-manager")?),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            // Each controller is somebody of its own, with the rights that Kubernetes gives it.
            "--use-service-account-credentials=true".to_owned(),
            format!("--cluster-signing-cert-file={}", at("ca.crt")),
            format!("--cluster-signing-key-file={}", at("ca.key")),
            format!("--root-ca-file={}", at("ca.crt")),
            format!("--service-account-private-key-file={}", at("accounts.key")),
            // Nobody else is on this server to be spared: what is deleted shall be gone soon.
            "--kube-api-qps=300".to_owned(),
            "--kube-api-burst=600".to_owned(),
            // Requests for certificates are approved by whom the test says, not by the controller for kubelets.
            "--controllers=*,bootstrap-signer-controller,token-cleaner-controller,-certificatesigningrequest-approving-controller"
                .to_owned(),
        ];
        self.start_process("kube-controller-manager", &arguments)
    }

    /// Starts kube-scheduler.
    pub(crate) fn start_scheduler(&mut self) -> Result<()> {
        let port = free_port()?;
        let arguments = [
            format!("--kubeconfig={}", self.own_kubeconfig("kube-scheduler")?),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        self.start_process("kube-scheduler", &arguments)
    }

    /// Path of a kubeconfig of a part of the control plane, under its own name.
    fn own_kubeconfig(&self, part: &str) -> Result<String> {
        let path = self.folder.path().join(format!("{part}.kubeconfig"));
        std::fs::write(&path, self.kubeconfig_of(&format!("system:{part}"), None)?)?;
        Ok(path.display().to_string())
    }

    /// A client with the rights of an administrator.
    pub(crate) async fn client(&self) -> Result<Client> {
        client_of(&std::fs::read_to_string(self.kubeconfig())?).await
    }

    /// Path of the administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A kubeconfig for anyone, by a certificate of the cluster.
    pub(crate) fn kubeconfig_of(&self, user: &str, group: Option<&str>) -> Result<String> {
        self.authority.kubeconfig(&self.url(), user, group)
    }

    /// The same for a client of this process.
    pub(crate) fn client_for(&self, user: &str, group: Option<&str>) -> Result<Client> {
        Ok(Client::try_from(self.config_for(user, group)?)?)
    }

    /// What such a client is made of.
    pub(crate) fn config_for(&self, user: &str, group: Option<&str>) -> Result<Config> {
        self.authority.config(&self.url(), user, group)
    }

    /// Where the API server listens.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The authority of its certificate and of all certificates that it signs, as PEM.
    pub(crate) fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// One line of JSON for each request that the server answered.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    /// What a process of the cluster has written so far.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The folder of the cluster; gone with it.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A client from the text of a kubeconfig.
pub(crate) async fn client_of(kubeconfig: &str) -> Result<Client> {
    let read = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    Ok(Client::try_from(config)?)
}

#[tokio::test]
async fn the_real_server_starts_keeps_an_audit_log_and_leaves_nothing_behind() {
    let binaries = match Binaries::find() {
        Ok(binaries) => binaries,
        Err(why) => return eprintln!("{why}"),
    };
    let cluster = Cluster::start(&binaries).await.unwrap();
    let version = cluster.client().await.unwrap().apiserver_version().await.unwrap();
    assert!(version.git_version.starts_with("v1."), "{version:?}");
    let guest = client_of(&cluster.kubeconfig_of("jane", None).unwrap())
        .await
        .unwrap();
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::default_namespaced(guest);
    assert!(
        secrets.list(&kube::api::ListParams::default()).await.is_err(),
        "RBAC lets nobody in by itself"
    );
    let audit = std::fs::read_to_string(cluster.audit_log()).unwrap();
    assert!(
        audit.lines().any(|line| line.contains("\"jane\"")),
        "the audit log has every request"
    );
    assert!(!cluster.log("kube-apiserver").is_empty());
    let (folder, port) = (cluster.folder().to_owned(), cluster.port);
    drop(cluster);
    assert!(!folder.exists(), "the folder is gone");
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "nothing listens any more"
    );
}

#[tokio::test]
async fn the_real_scheduler_says_that_there_is_no_node_for_a_pod() {
    let binaries = match Binaries::find() {
        Ok(binaries) if binaries.path("kube-scheduler").is_some() => binaries,
        Ok(_) => return eprintln!("no kube-scheduler to run; `make kubernetes` builds it"),
        Err(why) => return eprintln!("{why}"),
    };
    let mut cluster = Cluster::start(&binaries).await.unwrap();
    cluster.start_scheduler().unwrap();
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::default_namespaced(cluster.client().await.unwrap());
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    pods.create(
        &kube::api::PostParams::default(),
        &serde_json::from_value(pod).unwrap(),
    )
    .await
    .unwrap();
    let begin = Instant::now();
    loop {
        let status = pods.get("p").await.unwrap().status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if conditions
            .iter()
            .any(|one| one.reason.as_deref() == Some("Unschedulable"))
        {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{conditions:?}\n{}",
            cluster.log("kube-scheduler")
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
