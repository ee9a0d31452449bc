//! Several clusters in this one server, in process and on a socket.

use hostler_apiserver::{Identity, Options, Server, ServerError, Store};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::harness::{CONFIG_MAPS, Lab, config_map, names, widgets};

/// A server on a socket of its own.
pub(crate) struct Listening {
    pub(crate) server: Server,
    pub(crate) url: String,
    pub(crate) stop: CancellationToken,
}

impl Listening {
    pub(crate) async fn start() -> Self {
        let server = Server::open(Options::new(Store::Memory)).unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (serving, until) = (server.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, until).await.unwrap() });
        Self { server, url, stop }
    }

    pub(crate) fn kubeconfig(&self, cluster: &str) -> String {
        self.server
            .kubeconfig(cluster, &self.url, &Identity::administrator())
            .unwrap()
    }

    async fn client(&self, text: &str) -> Client {
        let parsed = Kubeconfig::from_yaml(text).unwrap();
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn clusters_share_nothing() {
    let lab = Lab::new();
    lab.server.create_cluster("one").await.unwrap();
    lab.server.create_cluster("two").await.unwrap();
    assert_eq!(lab.server.clusters(), ["one", "platform", "two"]);
    let one = lab.of("one");
    let two = lab.of("two");
    one.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        widgets(),
    )
    .await
    .ok();
    one.post(CONFIG_MAPS, config_map("a")).await.ok();
    assert_eq!(one.get("/apis/example.com/v1/widgets").await.code, 200);
    for other in [&two, &lab] {
        assert_eq!(other.get("/apis/example.com/v1/widgets").await.code, 404);
        assert_eq!(names(&other.get(CONFIG_MAPS).await.ok()), [""; 0]);
    }
}

#[tokio::test]
async fn a_cluster_made_again_is_another() {
    let lab = Lab::new();
    lab.server.create_cluster("one").await.unwrap();
    assert!(matches!(
        lab.server.create_cluster("one").await,
        Err(ServerError::Exists(_))
    ));
    let uid = lab.server.cluster_uid("one");
    let one = lab.of("one");
    one.post(CONFIG_MAPS, config_map("a")).await.ok();
    let old = one.get(CONFIG_MAPS).await.ok()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    lab.server.delete_cluster("one").await.unwrap();
    assert_eq!(one.get(CONFIG_MAPS).await.code, 404);
    assert!(matches!(
        lab.server.delete_cluster("one").await,
        Err(ServerError::Missing(_))
    ));
    assert!(matches!(
        lab.server.delete_cluster("platform").await,
        Err(ServerError::Own(_))
    ));
    assert!(matches!(
        lab.server.create_cluster("No/Good").await,
        Err(ServerError::Name { .. })
    ));
    lab.server.create_cluster("one").await.unwrap();
    assert_ne!(lab.server.cluster_uid("one"), uid);
    assert_eq!(names(&one.get(CONFIG_MAPS).await.ok()), [""; 0]);
    // Whoever watched the old one learns that the new one is not it.
    let mut watch = one.watch(CONFIG_MAPS, &format!("resourceVersion={old}")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn a_kubeconfig_leads_into_its_cluster_and_no_other() {
    let lab = Listening::start().await;
    lab.server.create_cluster("tenant").await.unwrap();
    let tenant = lab.client(&lab.kubeconfig("tenant")).await;
    let api: Api<ConfigMap> = Api::default_namespaced(tenant);
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    api.create(&PostParams::default(), &map).await.unwrap();
    let platform = lab.client(&lab.kubeconfig("platform")).await;
    let namespaces: Api<Namespace> = Api::all(platform.clone());
    assert_eq!(
        namespaces.list(&ListParams::default()).await.unwrap().items.len(),
        4
    );
    let maps: Api<ConfigMap> = Api::default_namespaced(platform);
    assert!(maps.get_opt("a").await.unwrap().is_none());

    // The certificate of one cluster is worth nothing in another.
    let strayed = lab.kubeconfig("tenant").replace("/clusters/tenant", "");
    let strayed: Api<Namespace> = Api::all(lab.client(&strayed).await);
    let error = strayed.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 401),
        "{error}"
    );
    // Nor after the cluster is gone, though another has its name.
    let old = lab.kubeconfig("tenant");
    lab.server.delete_cluster("tenant").await.unwrap();
    lab.server.create_cluster("tenant").await.unwrap();
    let old: Api<ConfigMap> = Api::default_namespaced(lab.client(&old).await);
    let error = old.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 401),
        "{error}"
    );
}

#[tokio::test]
async fn a_token_stands_for_its_identity_and_no_token_for_nobody() {
    let lab = Listening::start().await;
    let token = lab.server.token("platform", Identity::administrator());
    let list = async |token: Option<&str>| {
        let mut config = Config::new(lab.url.parse().unwrap());
        config.root_cert = Some(vec![der(lab.server.ca_pem())]);
        config.auth_info.token = token.map(|token| token.to_owned().into());
        let api: Api<Namespace> = Api::all(Client::try_from(config).unwrap());
        match api.list(&ListParams::default()).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(list(Some(&token)).await, 200);
    assert_eq!(list(Some("wrong")).await, 401);
    assert_eq!(list(None).await, 403);
}

fn der(pem: &str) -> Vec<u8> {
    use base64::Engine;
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::engine::general_purpose::STANDARD.decode(body).unwrap()
}

#[tokio::test]
async fn a_certificate_is_signed_once_it_is_approved() {
    let lab = Lab::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "someone");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    use base64::Engine;
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r"},
        "spec": {
            "request": base64::engine::general_purpose::STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], "username": "liar",
        },
    });
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut created = lab.post(path, request).await.ok();
    assert_eq!(created["spec"]["username"], Identity::administrator().user);
    created["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    lab.put(&format!("{path}/r/approval"), created).await.ok();
    let one = format!("{path}/r");
    let signed = lab
        .until(&one, |answer| answer.body["status"]["certificate"].is_string())
        .await;
    assert!(signed.body["status"]["conditions"][0]["lastUpdateTime"].is_string());
}

#[tokio::test]
async fn what_is_offered_is_listed() {
    let lab = Lab::new();
    lab.widgets().await;
    assert_eq!(lab.get("/api").await.ok()["versions"], json!(["v1"]));
    let group = lab.get("/apis/example.com").await.ok();
    assert_eq!(group["preferredVersion"]["groupVersion"], "example.com/v1");
    let resources = lab.get("/apis/example.com/v1").await.ok();
    let all: Vec<&str> = resources["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(all, ["widgets", "widgets/status"]);
    let accept = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    )];
    let aggregated = lab.send("GET", "/apis", &accept, Vec::new()).await.ok();
    assert_eq!(aggregated["kind"], "APIGroupDiscoveryList");
    assert!(
        lab.get("/version").await.ok()["gitVersion"]
            .as_str()
            .unwrap()
            .starts_with("v1.")
    );
    for path in ["/healthz", "/readyz", "/livez"] {
        assert_eq!(lab.get(path).await.ok(), Value::from("ok"));
    }
    let index = lab.get("/openapi/v3").await.ok();
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    assert!(lab.get(url).await.ok()["components"]["schemas"].is_object());
}
