//! What the measured host works for: a real platform, simulated racks, and tenants' APIs.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use hostler_api as api;
use hostler_api::names;
use hostler_apiserver::{Identity, Server};
use hostler_cli::wire;
use hostler_lab::inventory::Rack;
use hostler_lab::{Lab, Network, Options};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::beside::kubernetes::{Binaries, Cluster};
use super::until;

/// Requests of ours at a time.
const AT_ONCE: usize = 16;
const PROJECT: &str = "scale";

/// Everything but the host.
pub(crate) struct Site {
    platform: Cluster,
    client: Client,
    server: Arc<Server>,
    base: String,
    tenants: u16,
    machines: usize,
    stop: CancellationToken,
    _lab: Lab,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn named(number: u16) -> String {
    format!("t{number:03}")
}

fn endpoint(number: u16) -> String {
    format!("{}.tenants.lab:443", named(number))
}

impl Site {
    /// Starts the platform, the tenants' APIs and the racks; returns when every host is free.
    pub(crate) async fn start(binaries: &Binaries, tenants: u16, machines: u16) -> Result<Self> {
        let mut platform = Cluster::start(binaries).await?;
        platform.start_controllers()?;
        let client = platform.client().await?;
        let mut definitions = api::all_crds();
        definitions.extend(hostler_lab::crds::all());
        wire::install(&client, definitions).await?;
        let stop = CancellationToken::new();
        let server = Arc::new(Server::open(hostler_apiserver::Options::new(
            hostler_apiserver::Store::Memory,
        ))?);
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("https://{}", listener.local_addr()?);
        tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve(listener, stop).await }
        });
        let network = Network::new();
        for number in 1..=tenants {
            server.create_cluster(&named(number)).await?;
            let target = server.url(&named(number), &base).parse()?;
            network.bind(&endpoint(number), &named(number), target)?;
        }
        let lab = Lab::start(
            client.clone(),
            network.clone(),
            Options {
                pods: false,
                ..Options::instant()
            },
            stop.clone(),
        );
        let site = Self {
            platform,
            client,
            server,
            base,
            tenants,
            machines: machines.into(),
            stop,
            _lab: lab,
        };
        site.racks(machines).await?;
        site.offer().await?;
        eprintln!("racks are built");
        until("all hosts free", || site.all_free()).await?;
        Ok(site)
    }

    async fn racks(&self, servers: u16) -> Result<()> {
        let rack = Rack {
            name: "rack",
            namespace: "default",
            servers,
            labels: &[("role", "gpu")],
            network: 10,
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "default");
        let hosts = self.hosts();
        stream::iter(rack.manifests())
            .map(|(secret, host)| {
                let (secrets, hosts) = (&secrets, &hosts);
                async move {
                    secrets.create(&PostParams::default(), &secret).await?;
                    hosts.create(&PostParams::default(), &host).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    fn hosts(&self) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.client.clone(),
            "default",
            &hostler_lab::crds::bare_metal_hosts(),
        )
    }

    /// The project, the provider and the image.
    async fn offer(&self) -> Result<()> {
        let project = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "Project",
            "metadata": {"name": PROJECT}, "spec": {"displayName": "Scale"},
        });
        let provider = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "NodeProvider",
            "metadata": {"name": "metal3"},
            "spec": {"displayName": "Racks", "metal3": {
                "clusterRef": {"cluster": "loft-cluster", "namespace": "default"},
                "nodeTypes": [{"name": "gpu-server", "bareMetalHosts": {"selector": {"matchLabels": {"role": "gpu"}}}}],
            }},
        });
        let image = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "OSImage",
            "metadata": {"name": "ubuntu"},
            "spec": {"displayName": "Ubuntu", "properties": {
                "metal3.vcluster.com/image-url": "http://images.lab/ubuntu.qcow2",
                "metal3.vcluster.com/image-checksum": "http://images.lab/ubuntu.qcow2.sha256",
                "metal3.vcluster.com/image-checksum-type": "sha256",
            }},
        });
        create::<api::Project>(Api::all(self.client.clone()), project).await?;
        create::<api::NodeProvider>(Api::all(self.client.clone()), provider).await?;
        create::<api::OSImage>(Api::all(self.client.clone()), image).await
    }

    /// The kubeconfig that the host is started with.
    pub(crate) fn host_kubeconfig(&self) -> Result<String> {
        self.platform
            .kubeconfig_of("system:hostler", Some("system:masters"))
    }

    fn tenants(&self) -> Api<api::VirtualClusterInstance> {
        Api::namespaced(self.client.clone(), &names::project_namespace(PROJECT))
    }

    /// Creates the tenants, and gives each its Secret once its namespace is there.
    pub(crate) async fn create_tenants(&self, each: u16) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let own = names::project_namespace(PROJECT);
        until("the project's namespace", || async {
            Ok(namespaces.get_opt(&own).await?.is_some())
        })
        .await?;
        stream::iter(1..=self.tenants)
            .map(|number| self.create_tenant(number, each))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn create_tenant(&self, number: u16, each: u16) -> Result<()> {
        let (name, endpoint) = (named(number), endpoint(number));
        let namespace = format!("loft-{PROJECT}-v-{name}");
        let values = format!(
            "controlPlane:\n  endpoint: {endpoint}\nprivateNodes:\n  enabled: true\n  autoNodes:\n  - provider: metal3\n    static:\n    \
             - name: pool\n      quantity: {each}\n      nodeTypeSelector:\n      - property: vcluster.com/node-type\n        \
             value: gpu-server\n    properties:\n      vcluster.com/os-image: ubuntu\n"
        );
        let tenant = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "VirtualClusterInstance",
            "metadata": {"name": name},
            "spec": {
                "template": {"helmRelease": {"chart": {"version": "0.37.3"}, "values": values}},
                "clusterRef": {"cluster": "loft-cluster", "namespace": namespace, "virtualCluster": name},
                "owner": {"user": "admin"},
            },
        });
        create(self.tenants(), tenant).await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        until("a tenant's namespace", || async {
            Ok(namespaces.get_opt(&namespace).await?.is_some())
        })
        .await?;
        let kubeconfig = self
            .server
            .kubeconfig(&name, &self.base, &Identity::administrator())?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": format!("vc-{name}")}, "stringData": {"config": kubeconfig},
        });
        create::<Secret>(Api::namespaced(self.client.clone(), &namespace), secret).await
    }

    /// Deletes every tenant.
    pub(crate) async fn delete_tenants(&self) -> Result<()> {
        let tenants = self.tenants();
        stream::iter(1..=self.tenants)
            .map(|number| {
                let tenants = &tenants;
                async move {
                    tenants.delete(&named(number), &DeleteParams::default()).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Whether every host is available, off and nobody's.
    pub(crate) async fn all_free(&self) -> Result<bool> {
        let hosts = self.hosts().list(&ListParams::default()).await?;
        let free = hosts.iter().filter(|host| is_free(host)).count();
        eprintln!("{free} of {} hosts are free", self.machines);
        Ok(free == self.machines)
    }

    /// Whether nothing of the tenants is left: no claim, no enrollment, no boot Secret, no node, no address.
    pub(crate) async fn nothing_left(&self) -> Result<bool> {
        let all = ListParams::default();
        let claims = Api::<api::NodeClaim>::all(self.client.clone())
            .list_metadata(&all)
            .await?;
        let enrollments = Api::<api::Enrollment>::all(self.client.clone())
            .list_metadata(&all)
            .await?;
        let tenants = self.tenants().list_metadata(&all).await?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), "default")
            .list_metadata(&all)
            .await?;
        let boot = secrets
            .iter()
            .filter(|one| !one.name_any().ends_with("-bmc"))
            .count();
        eprintln!(
            "left: {} claims, {} enrollments, {} tenants, {boot} boot Secrets",
            claims.items.len(),
            enrollments.items.len(),
            tenants.items.len()
        );
        Ok(claims.items.is_empty() && enrollments.items.is_empty() && tenants.items.is_empty() && boot == 0)
    }
}

async fn create<K>(all: Api<K>, object: Value) -> Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let name = object["metadata"]["name"].to_string();
    all.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .with_context(|| format!("creating {name}"))?;
    Ok(())
}

fn is_free(host: &DynamicObject) -> bool {
    let status = |path: &str| host.data.pointer(path);
    status("/status/provisioning/state").and_then(Value::as_str) == Some("available")
        && status("/status/poweredOn").and_then(Value::as_bool) == Some(false)
        && status("/spec/consumerRef").is_none()
        && !host.annotations().contains_key(names::LOAN)
}
