//! A machine joins a cluster with a bootstrap token, over a real socket, and can do no more than a node should.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::Future;
use std::time::Duration;

use hostler_apiserver::{Identity, Issued, Options, Proof, Server, Store, kubeconfig};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "abcdef.0123456789abcdef";

/// A server with a cluster `tenant`, on a socket.
struct House {
    server: Server,
    url: String,
    _stop: tokio_util::sync::DropGuard,
}

impl House {
    async fn open() -> Self {
        let server = Server::open(Options::new(Store::Memory)).unwrap();
        server.create_cluster("tenant").await.unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (serving, ending) = (server.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, ending).await });
        Self {
            server,
            url,
            _stop: stop.drop_guard(),
        }
    }

    fn administrator(&self) -> Client {
        self.server.client("tenant", Identity::administrator())
    }

    async fn with(&self, cluster: &str, proof: Proof<'_>) -> Client {
        let url = self.server.url(cluster, &self.url);
        client(&kubeconfig(cluster, "me", &url, self.server.ca_pem(), proof)).await
    }

    async fn make_token(&self) {
        let secrets: Api<Secret> = Api::namespaced(self.administrator(), "kube-system");
        let secret = object(json!({
            "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true"},
        }));
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }

    async fn approve(&self, name: &str) {
        let requests: Api<CertificateSigningRequest> = Api::all(self.administrator());
        requests
            .patch_approval(name, &PatchParams::default(), &verdict("Approved"))
            .await
            .unwrap();
    }
}

/// A decision on a request.
fn verdict(kind: &str) -> Patch<Value> {
    Patch::Merge(json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "Test"}]}}))
}

async fn client(text: &str) -> Client {
    let read = Kubeconfig::from_yaml(text).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A request for the certificate of a node, and the key that only the machine has.
fn request(name: &str, node: &str, alternatives: &[&str]) -> (CertificateSigningRequest, String) {
    let key = KeyPair::generate().unwrap();
    let alternatives: Vec<String> = alternatives.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(alternatives).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let mut request: CertificateSigningRequest = object(json!({
        "metadata": {"name": name},
        "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"], "username": "system:admin"},
    }));
    request.spec.request = k8s_openapi::ByteString(pem.into_bytes());
    (request, key.serialize_pem())
}

/// Asks again and again until there is an answer.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let polling = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polling)
        .await
        .unwrap_or_else(|_| panic!("waited for {what}"))
}

/// The code and the message of a refusal.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("no answer: {other}"),
    }
}

async fn signed(requests: &Api<CertificateSigningRequest>, name: &str) -> String {
    let bytes = until("the certificate", || async {
        requests.get(name).await.unwrap().status?.certificate
    })
    .await;
    String::from_utf8(bytes.0).unwrap()
}

fn own_node(name: &str) -> Node {
    object(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}))
}

fn report(status: &str) -> Patch<Value> {
    Patch::Strategic(
        json!({"status": {"conditions": [{"type": "Ready", "status": status,
        "lastHeartbeatTime": "2026-08-20T12:00:00Z"}]}}),
    )
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    taints
        .into_iter()
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_joins_with_a_token_and_is_then_one_node_and_no_more() {
    let house = House::open().await;
    house.make_token().await;
    let machine = house.with("tenant", Proof::Token(TOKEN)).await;
    let requests: Api<CertificateSigningRequest> = Api::all(machine.clone());
    let (wanted, key) = request("join-a", "a", &[]);
    let created = requests.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(created.spec.username.as_deref(), Some("system:bootstrap:abcdef"));

    // With the token alone it sees its own request and nothing else.
    let (code, message) = refusal(
        Api::<Node>::all(machine.clone())
            .list(&ListParams::default())
            .await,
    );
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "nodes is forbidden: User \"system:bootstrap:abcdef\" cannot list resource \"nodes\" in API group \"\" at \
         the cluster scope"
    );
    assert_eq!(refusal(requests.list(&ListParams::default()).await).0, 403);
    let administrator = house.administrator();
    let (others, _) = request("join-b", "b", &[]);
    Api::all(administrator.clone())
        .create(&PostParams::default(), &others)
        .await
        .unwrap();
    assert_eq!(refusal(requests.get("join-b").await).0, 403);
    let approval = requests
        .patch_approval("join-a", &PatchParams::default(), &verdict("Approved"))
        .await;
    assert_eq!(refusal(approval).0, 403);

    house.approve("join-a").await;
    let certificate = signed(&requests, "join-a").await;
    let issued = Issued { certificate, key };
    let node = house.with("tenant", Proof::Certificate(&issued)).await;
    let nodes: Api<Node> = Api::all(node.clone());
    let params = PatchParams::default();

    let registered = nodes
        .create(&PostParams::default(), &own_node("a"))
        .await
        .unwrap();
    assert_eq!(taints(&registered), ["node.kubernetes.io/not-ready:NoSchedule"]);
    let (code, message) = refusal(nodes.create(&PostParams::default(), &own_node("b")).await);
    assert_eq!(
        (code, message.as_str()),
        (
            403,
            "nodes \"b\" is forbidden: node \"a\" is not allowed to modify node \"b\""
        )
    );
    let untaint = Patch::Merge(json!({"spec": {"taints": null}}));
    let (_, message) = refusal(nodes.patch("a", &params, &untaint).await);
    assert_eq!(
        message,
        "nodes \"a\" is forbidden: node \"a\" is not allowed to modify taints"
    );
    let label = Patch::Merge(json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}));
    assert_eq!(refusal(nodes.patch("a", &params, &label).await).0, 403);
    assert_eq!(refusal(nodes.delete("a", &DeleteParams::default()).await).0, 403);

    nodes.patch_status("a", &params, &report("True")).await.unwrap();
    until("the taint to go", || async {
        taints(&nodes.get("a").await.unwrap()).is_empty().then_some(())
    })
    .await;

    let leases: Api<Lease> = Api::namespaced(node.clone(), "kube-node-lease");
    let lease = |name: &str| object::<Lease>(json!({"metadata": {"name": name}}));
    leases.create(&PostParams::default(), &lease("a")).await.unwrap();
    assert_eq!(
        refusal(leases.create(&PostParams::default(), &lease("b")).await).0,
        403
    );
    let secrets: Api<Secret> = Api::namespaced(node.clone(), "kube-system");
    assert_eq!(refusal(secrets.get("bootstrap-token-abcdef").await).0, 403);

    // A token that is gone opens nothing, and neither does the certificate elsewhere or later.
    let tokens: Api<Secret> = Api::namespaced(administrator, "kube-system");
    tokens
        .delete("bootstrap-token-abcdef", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(refusal(requests.get("join-a").await).0, 401);
    let elsewhere: Api<Node> = Api::all(house.with("platform", Proof::Certificate(&issued)).await);
    assert_eq!(refusal(elsewhere.get("a").await).0, 401);
    house.server.delete_cluster("tenant").await.unwrap();
    house.server.create_cluster("tenant").await.unwrap();
    let later: Api<Node> = Api::all(house.with("tenant", Proof::Certificate(&issued)).await);
    assert_eq!(refusal(later.get("a").await).0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_request_for_more_than_a_node_fails_and_a_denied_one_is_never_signed() {
    let house = House::open().await;
    let requests: Api<CertificateSigningRequest> = Api::all(house.administrator());
    for (name, alternatives) in [("greedy", &["a.example"][..]), ("denied", &[]), ("good", &[])] {
        requests
            .create(&PostParams::default(), &request(name, "a", alternatives).0)
            .await
            .unwrap();
    }
    requests
        .patch_approval("denied", &PatchParams::default(), &verdict("Denied"))
        .await
        .unwrap();
    house.approve("greedy").await;
    house.approve("good").await;
    signed(&requests, "good").await;
    let failed = until("the failure", || async {
        let status = requests.get("greedy").await.unwrap().status?;
        status
            .conditions?
            .into_iter()
            .find(|condition| condition.type_ == "Failed")
    })
    .await;
    assert_eq!(failed.reason.as_deref(), Some("SignerValidationFailure"));
    assert_eq!(
        failed.message.as_deref(),
        Some("DNS subjectAltNames are not allowed")
    );
    for name in ["greedy", "denied"] {
        assert!(
            requests
                .get(name)
                .await
                .unwrap()
                .status
                .unwrap()
                .certificate
                .is_none()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_falls_silent_is_unknown_and_kept_free_of_work() {
    let server = Server::open(Options::new(Store::Memory)).unwrap();
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    server.start(stop);
    let nodes: Api<Node> = Api::all(server.client("platform", Identity::administrator()));
    nodes
        .create(&PostParams::default(), &own_node("a"))
        .await
        .unwrap();
    nodes
        .patch_status("a", &PatchParams::default(), &report("True"))
        .await
        .unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(600);
    loop {
        let node = nodes.get("a").await.unwrap();
        let conditions = node
            .status
            .clone()
            .unwrap_or_default()
            .conditions
            .unwrap_or_default();
        let ready = conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        if ready.status == "Unknown" && taints(&node).len() == 2 {
            assert_eq!(ready.reason.as_deref(), Some("NodeStatusUnknown"));
            assert_eq!(
                taints(&node),
                [
                    "node.kubernetes.io/unreachable:NoSchedule",
                    "node.kubernetes.io/unreachable:NoExecute"
                ]
            );
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "still {ready:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_told_apart_from_those_with_bad_papers() {
    let house = House::open().await;
    let bad: Api<Node> = Api::all(
        house
            .with("tenant", Proof::Token("abcdef.ffffffffffffffff"))
            .await,
    );
    assert_eq!(refusal(bad.get("a").await), (401, "Unauthorized".to_owned()));
    let made = house.server.token("tenant", Identity::administrator());
    let good: Api<Node> = Api::all(house.with("tenant", Proof::Token(&made)).await);
    assert_eq!(refusal(good.get("a").await).0, 404);
    let elsewhere: Api<Node> = Api::all(house.with("platform", Proof::Token(&made)).await);
    assert_eq!(refusal(elsewhere.get("a").await).0, 401);
    let text = house
        .server
        .kubeconfig("tenant", &house.url, &Identity::administrator())
        .unwrap();
    let by_certificate: Api<Node> = Api::all(client(&text).await);
    assert_eq!(refusal(by_certificate.get("a").await).0, 404);
}
