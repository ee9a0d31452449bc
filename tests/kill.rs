//! The whole process of `hostler lab` is killed with SIGKILL, again and again, and started again on the same data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hostler_api as api;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::Value;
use tempfile::TempDir;

use crate::crashes::{essence, phase, told};
use crate::harness::{components, eventually, hostler, root, warm};

/// The laboratory of one data directory, dead or alive.
struct Laboratory {
    folder: TempDir,
    process: Option<Child>,
    starts: usize,
}

/// What an eye on the platform sees.
struct Sight {
    claims: Vec<api::NodeClaim>,
    hosts: Vec<DynamicObject>,
}

impl Laboratory {
    fn new() -> Self {
        let lab = Self {
            folder: tempfile::tempdir().unwrap(),
            process: None,
            starts: 0,
        };
        warm::start(&lab.data().join("components"));
        lab
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    fn tenant_kubeconfig(&self) -> PathBuf {
        self.data().join("tenants/default/one.kubeconfig")
    }

    /// Starts the process and waits until kubectl may be used.
    async fn start(&mut self, more: &[&str]) {
        self.starts += 1;
        let said = self.folder.path().join(format!("said.{}", self.starts));
        let out = std::fs::File::create(&said).unwrap();
        let child = Command::new(hostler())
            .args(["lab", "--imaging-time", "1500ms", "--data"])
            .arg(self.data())
            .arg("--plugins")
            .arg(components())
            .args(more)
            .current_dir(root())
            .stdin(Stdio::null())
            .stderr(out.try_clone().unwrap())
            .stdout(out)
            .spawn()
            .unwrap();
        self.process = Some(child);
        eventually("the laboratory is ready", || async {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            if text.lines().any(|line| line == "lab ready") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        assert_eq!(process.try_wait().unwrap(), None, "it ran until now");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    async fn sight(&self) -> Result<Sight, String> {
        let client = client(&self.kubeconfig()).await?;
        let all = ListParams::default();
        let text = |error: kube::Error| error.to_string();
        let claims = Api::<api::NodeClaim>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?
            .items;
        let hosts =
            Api::<DynamicObject>::namespaced_with(client, "default", &hostler_lab::crds::bare_metal_hosts());
        let hosts = hosts.list(&all).await.map_err(text)?.items;
        Ok(Sight { claims, hosts })
    }

    /// Waits for a moment of the way, kills the process in it, and starts it again.
    async fn die_when(&mut self, moment: &str, is_there: impl Fn(&Sight) -> bool) {
        eventually(moment, || async {
            let sight = self.sight().await?;
            if is_there(&sight) {
                Ok(())
            } else {
                Err(sight.tell())
            }
        })
        .await;
        self.kill();
        self.start(&[]).await;
    }

    /// The hosts, once both are free.
    async fn free_hosts(&self) -> BTreeMap<String, Value> {
        eventually("both hosts are free and off", || async {
            let sight = self.sight().await?;
            let free = sight.hosts.iter().filter(|host| {
                state(host) == "available"
                    && host.data.pointer("/status/poweredOn") == Some(&Value::Bool(false))
                    && !is_lent(host)
            });
            if free.count() == 2 {
                Ok(sight
                    .hosts
                    .iter()
                    .map(|host| (host.name_any(), essence(host)))
                    .collect())
            } else {
                Err(sight.tell())
            }
        })
        .await
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Already gone is as good.
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Sight {
    fn tell(&self) -> String {
        let hosts = self
            .hosts
            .iter()
            .map(|host| format!("{} {} lent: {}", host.name_any(), state(host), is_lent(host)));
        self.claims
            .iter()
            .map(told)
            .chain(hosts)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn any_host(&self, wanted: &str) -> bool {
        self.hosts.iter().any(|host| state(host) == wanted)
    }
}

fn state(host: &DynamicObject) -> &str {
    host.data
        .pointer("/status/provisioning/state")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn is_lent(host: &DynamicObject) -> bool {
    host.annotations().contains_key(api::names::LOAN)
}

async fn client(kubeconfig: &Path) -> Result<Client, String> {
    let read = Kubeconfig::read_from(kubeconfig).map_err(|error| error.to_string())?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Client::try_from(config.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

/// Runs the kubectl on the PATH.
fn kubectl(kubeconfig: &Path, args: &[&str]) -> String {
    let output = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .output();
    let output = output.expect("kubectl is on the PATH");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "kubectl {args:?}: {err}");
    out.into_owned()
}

fn copy(from: &Path, to: PathBuf) -> PathBuf {
    std::fs::copy(from, &to).unwrap();
    to
}

#[tokio::test(flavor = "multi_thread")]
async fn a_laboratory_killed_on_the_way_out_and_on_the_way_back_reaches_the_same_end() {
    let mut lab = Laboratory::new();
    lab.start(&[
        "--apply",
        "examples/01-lab/project.yaml",
        "--apply",
        "examples/01-lab/provider.yaml",
        "--apply",
        "examples/01-lab/hosts.yaml",
    ])
    .await;
    let before = lab.free_hosts().await;
    let listen = std::fs::read_to_string(lab.data().join("listen")).unwrap();
    let kubeconfig = copy(&lab.kubeconfig(), lab.folder.path().join("first.kubeconfig"));
    kubectl(
        &kubeconfig,
        &[
            "apply",
            "-f",
            root().join("examples/01-lab/tenant.yaml").to_str().unwrap(),
        ],
    );

    lab.die_when("claims exist", |sight| !sight.claims.is_empty())
        .await;
    lab.die_when("a host is lent", |sight| sight.hosts.iter().any(is_lent))
        .await;
    lab.die_when("an image is being written", |sight| {
        sight.any_host("provisioning") || sight.any_host("provisioned")
    })
    .await;
    lab.die_when("an image is written", |sight| sight.any_host("provisioned"))
        .await;
    lab.die_when("a node has joined", |sight| {
        sight.claims.iter().any(|claim| phase(claim) == "Available")
    })
    .await;
    eventually("two claims Available", || async {
        let sight = lab.sight().await?;
        let available = sight
            .claims
            .iter()
            .filter(|claim| phase(claim) == "Available")
            .count();
        if available == 2 && sight.claims.len() == 2 {
            Ok(())
        } else {
            Err(sight.tell())
        }
    })
    .await;
    let tenant = copy(
        &lab.tenant_kubeconfig(),
        lab.folder.path().join("first.tenant.kubeconfig"),
    );
    ready_nodes(&tenant, 2).await;

    lab.kill();
    lab.start(&[]).await;
    assert_eq!(
        std::fs::read_to_string(lab.data().join("listen")).unwrap(),
        listen,
        "the port is kept"
    );
    ready_nodes(&tenant, 2).await;
    let nodes = kubectl(&tenant, &["get", "nodes", "--no-headers"]);
    assert_eq!(
        nodes.lines().filter(|line| line.contains(" Ready ")).count(),
        2,
        "{nodes}"
    );
    let shown = kubectl(
        &kubeconfig,
        &["get", "nodeclaims.management.loft.sh", "-A", "--no-headers"],
    );
    assert_eq!(
        shown.lines().filter(|line| line.contains("Available")).count(),
        2,
        "{shown}"
    );
    assert_eq!(
        std::fs::read(lab.tenant_kubeconfig()).unwrap(),
        std::fs::read(&tenant).unwrap()
    );

    kubectl(
        &kubeconfig,
        &[
            "delete",
            "virtualclusterinstances.management.loft.sh",
            "one",
            "-n",
            "p-default",
            "--wait=false",
        ],
    );
    lab.die_when("claims are on their way out", |sight| {
        sight
            .claims
            .iter()
            .any(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    lab.die_when("a host is being cleaned", |sight| {
        sight.any_host("deprovisioning") || sight.hosts.iter().all(|host| state(host) == "available")
    })
    .await;
    lab.die_when("a host is free", |sight| {
        sight.hosts.iter().any(|host| !is_lent(host))
    })
    .await;
    assert_eq!(
        lab.free_hosts().await,
        before,
        "the hosts are byte for byte what they were"
    );
    let client = client(&kubeconfig).await.unwrap();
    eventually("nothing of the tenant is left", || async {
        let (all, text) = (ListParams::default(), |error: kube::Error| error.to_string());
        let tenants = Api::<api::VirtualClusterInstance>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?
            .items
            .len();
        let claims = Api::<api::NodeClaim>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?
            .items
            .len();
        let enrollments = Api::<api::Enrollment>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?
            .items
            .len();
        let secrets = Api::<Secret>::namespaced(client.clone(), "default")
            .list(&all)
            .await
            .map_err(text)?;
        let secrets = secrets
            .iter()
            .filter(|secret| !secret.name_any().ends_with("-bmc"))
            .count();
        let files = usize::from(lab.tenant_kubeconfig().exists());
        let left = [tenants, claims, enrollments, secrets, files];
        if left == [0; 5] {
            Ok(())
        } else {
            Err(format!("tenants, claims, enrollments, secrets, files: {left:?}"))
        }
    })
    .await;
    lab.kill();
}

/// So many nodes are Ready, told by a kubeconfig that was written before some of the kills.
async fn ready_nodes(kubeconfig: &Path, count: usize) {
    let client = client(kubeconfig).await.unwrap();
    eventually("the tenant's nodes are Ready", || async {
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let ready = nodes.iter().filter(|node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions
                .into_iter()
                .flatten()
                .any(|one| one.type_ == "Ready" && one.status == "True")
        });
        if ready.count() == count {
            Ok(())
        } else {
            Err(format!("{} nodes", nodes.items.len()))
        }
    })
    .await;
}
