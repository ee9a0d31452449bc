//! A platform, a tenant that servers may join, and a laboratory with little patience.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use hostler_apiserver::{Identity, Server};
use hostler_lab::{Lab, Network, Options, Times, crds};
use http::Uri;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The namespace of all hosts.
const NAMESPACE: &str = "metal3-system";
/// Where servers find the tenant, as in the report.
pub(crate) const JOIN_ADDRESS: &str = "192.168.100.2:8443";

/// Polls until `holds`; fails when that takes far longer than it may.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Everything a test needs.
pub(crate) struct World {
    pub(crate) platform: Client,
    pub(crate) tenant: Client,
    pub(crate) network: Network,
    pub(crate) join_url: Uri,
    authority: String,
    token: String,
    lab: Option<Lab>,
    stop: CancellationToken,
    _approver: AbortOnDropHandle<()>,
}

fn options() -> Options {
    let step = Duration::from_millis(20);
    Options {
        times: Times {
            heartbeat: step,
            provision: step,
            deprovision: step,
            power: step,
            ..Options::instant().times
        },
        ..Options::default()
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let Backing {
            platform,
            tenant,
            join_url,
            authority,
            token,
            stop,
            network,
        } = open().await;
        for (name, client) in [(NAMESPACE, &platform), ("kube-node-lease", &tenant)] {
            create(
                client,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )
            .await;
        }
        network.bind(JOIN_ADDRESS, "tenant", join_url.clone()).unwrap();
        let approver = AbortOnDropHandle::new(tokio::spawn(approve(tenant.clone())));
        let lab = Lab::start(
            platform.clone(),
            network.clone(),
            options(),
            CancellationToken::new(),
        );
        let world = Self {
            platform,
            tenant,
            network,
            join_url,
            authority,
            token,
            lab: Some(lab),
            stop,
            _approver: approver,
        };
        for name in ["server1-bmc", "server2-bmc"] {
            world
                .secret(name, &[("username", "admin"), ("password", "secret")])
                .await;
        }
        world
    }

    /// Stops the laboratory and starts another one on what it left behind.
    pub(crate) async fn restart(&mut self) {
        self.lab.take().unwrap().stop().await.unwrap();
        self.lab = Some(Lab::start(
            self.platform.clone(),
            self.network.clone(),
            options(),
            CancellationToken::new(),
        ));
    }

    pub(crate) fn hosts(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.platform.clone(), NAMESPACE, &crds::bare_metal_hosts())
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.platform.clone(), NAMESPACE)
    }

    async fn secret(&self, name: &str, data: &[(&str, &str)]) {
        let data: serde_json::Map<_, _> = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let secret = json!({"metadata": {"name": name}, "stringData": data});
        self.secrets()
            .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
            .await
            .unwrap();
    }

    pub(crate) async fn patch(&self, host: &str, patch: Value) {
        self.hosts()
            .patch(host, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Registers a host and waits until it is free.
    pub(crate) async fn available(&self, name: &str, address: Option<&str>) {
        let annotations = address.map(|address| json!({"metal3.vcluster.com/ip-address": address}));
        let host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "annotations": annotations.unwrap_or(json!({}))},
            "spec": {
                "online": false, "bootMACAddress": "52:54:00:00:00:01",
                "bmc": {"address": "redfish+http://127.0.0.1:8000/redfish/v1/Systems/1", "credentialsName": "server1-bmc"},
            },
        });
        self.hosts()
            .create(&PostParams::default(), &serde_json::from_value(host).unwrap())
            .await
            .unwrap();
        eventually(&format!("{name} is available"), async || {
            self.hosts().get(name).await.unwrap().data["status"]["provisioning"]["state"] == "available"
        })
        .await;
    }

    /// Orders an image, with user data.
    pub(crate) async fn install(&self, host: &str, user_data: &str) {
        let secret = format!("{host}-boot");
        self.secret(&secret, &[("userData", user_data)]).await;
        let image = json!({"url": "http://images/ubuntu.qcow2", "checksum": "abc", "checksumType": "md5"});
        let user_data = json!({"name": secret, "namespace": NAMESPACE});
        self.patch(
            host,
            json!({"spec": {"online": true, "image": image, "userData": user_data}}),
        )
        .await;
    }

    /// The tenant's API with the certificate that lies on a server's disk: whoever steals the disk can do no more than this.
    pub(crate) async fn as_node(&self, host: &str) -> Client {
        let uid = self.hosts().get(host).await.unwrap().metadata.uid.unwrap();
        let disks: Api<Secret> = Api::namespaced(self.platform.clone(), "hostler-lab");
        let disk = disks.get(&format!("disk-{uid}")).await.unwrap();
        let disk: Value = serde_json::from_slice(&disk.data.unwrap()["contents"].0).unwrap();
        let text = |key: &str| STANDARD.encode(disk[key].as_str().unwrap());
        let mut config = kube::Config::new(self.join_url.clone());
        let pem = self.authority.lines().filter(|line| !line.starts_with("-----"));
        config.root_cert = Some(vec![STANDARD.decode(pem.collect::<String>()).unwrap()]);
        config.auth_info.client_certificate_data = Some(text("certificate"));
        config.auth_info.client_key_data = Some(text("key").into());
        Client::try_from(config).unwrap()
    }

    /// User data that joins the tenant.
    pub(crate) fn user_data(&self, host: &str) -> String {
        self.user_data_trusting(host, &self.authority)
    }

    /// User data that joins the tenant if `authority` signed its certificate.
    pub(crate) fn user_data_trusting(&self, host: &str, authority: &str) -> String {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bootstrap",
            "clusters": [{"name": "tenant", "cluster": {
                "server": format!("https://{JOIN_ADDRESS}"), "certificate-authority-data": STANDARD.encode(authority),
            }}],
            "users": [{"name": "bootstrap", "user": {"token": self.token}}],
            "contexts": [{"name": "bootstrap", "context": {"cluster": "tenant", "user": "bootstrap"}}],
        });
        let arguments = format!(
            "--node-labels=workload=gpu,run.ai/simulated-gpu-node-pool=default \
             --register-with-taints=example.com/startup=yes:NoSchedule --provider-id=metal3://{NAMESPACE}/{host}"
        );
        let config = json!({
            "hostname": host,
            "write_files": [
                {"path": "/etc/kubernetes/bootstrap-kubelet.conf", "permissions": "0600", "content": kubeconfig.to_string()},
                {"path": "/etc/default/kubelet", "content": format!("KUBELET_EXTRA_ARGS=\"{arguments}\"\n")},
            ],
            "runcmd": ["systemctl enable --now kubelet"],
        });
        format!("#cloud-config\n{config}\n")
    }
}

/// Creates an object; one that exists already is left as it is.
pub(crate) async fn create(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.clone().unwrap();
    let kind = kube::core::GroupVersionKind::try_from(types).unwrap();
    let kind = kube::core::ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other.unwrap()),
    }
}

/// Approves every signing request once.
async fn approve(client: Client) {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let mut events = watcher(requests.clone(), watcher::Config::default())
        .applied_objects()
        .boxed();
    let mut approved = BTreeSet::new();
    while let Some(request) = events.next().await {
        let request = request.unwrap();
        if !approved.insert(request.name_any()) {
            continue;
        }
        let condition =
            json!({"type": "Approved", "status": "True", "reason": "Test", "message": "by the test"});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        requests
            .patch_approval(&request.name_any(), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

struct Backing {
    platform: Client,
    tenant: Client,
    join_url: Uri,
    authority: String,
    token: String,
    stop: CancellationToken,
    network: Network,
}

/// An API server in memory, with a socket for those who join.
async fn open() -> Backing {
    let mut options = hostler_apiserver::Options::new(hostler_apiserver::Store::Memory);
    options.cluster = "platform".to_owned();
    let network = Network::new();
    options.kubelets = Some(Arc::new({
        let network = network.clone();
        move |cluster, address, port| {
            let (at, api) = network.kubelet(address, port)?;
            (api.path() == format!("/clusters/{cluster}")).then_some(at)
        }
    }));
    let server = Arc::new(Server::open(options).unwrap());
    let stop = CancellationToken::new();
    server.start(stop.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    server.create_cluster("tenant").await.unwrap();
    let platform = server.client("platform", Identity::administrator());
    let tenant = server.client("tenant", Identity::administrator());
    let definitions: Api<CustomResourceDefinition> = Api::all(platform.clone());
    for definition in crds::all() {
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
    }
    let hosts: Api<DynamicObject> = Api::all_with(platform.clone(), &crds::bare_metal_hosts());
    eventually("hosts are served", async || {
        hosts.list(&Default::default()).await.is_ok()
    })
    .await;
    let (id, secret) = ("abcdef", "0123456789abcdef");
    let expires = jiff::Timestamp::now() + Duration::from_secs(3600);
    let token = json!({
        "metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true", "expiration": expires.to_string(),
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        },
    });
    let secrets: Api<Secret> = Api::namespaced(tenant.clone(), "kube-system");
    secrets
        .create(&PostParams::default(), &serde_json::from_value(token).unwrap())
        .await
        .unwrap();
    Backing {
        platform,
        tenant,
        join_url: format!("{base}/clusters/tenant").parse().unwrap(),
        authority: server.ca_pem().to_owned(),
        token: format!("{id}.{secret}"),
        stop,
        network,
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
