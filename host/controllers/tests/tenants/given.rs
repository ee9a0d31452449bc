//! Tenants' APIs that somebody else runs, known by their Secrets: what is made of one, and what a hostile or dead one costs.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use hostler_apiserver::{Identity, Options, Server, Store};
use hostler_controllers::control_plane::given::{Connect, Given};
use hostler_controllers::control_plane::{ControlPlane, State, TenantApi, TenantPlace};
use hostler_core::kubeconfig::Own;
use hostler_core::seams::Reason;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, Config};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::house::until;

const PLACE: &str = "loft-default-v-one";

/// A platform, a server for tenants' APIs with a socket of its own, and what reads the Secrets.
struct Stand {
    client: Client,
    platform: Server,
    tenants: Server,
    base: String,
    given: Arc<Given>,
    /// Clients that were made.
    made: Arc<AtomicUsize>,
    _stop: DropGuard,
}

async fn serve(stop: &CancellationToken) -> (Server, String) {
    let server = Server::open(Options::new(Store::Memory)).unwrap();
    server.start(stop.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{}", listener.local_addr().unwrap());
    let (serving, stop) = (server.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(listener, stop).await });
    (server, base)
}

impl Stand {
    /// Tenants' APIs are reached as their kubeconfigs say.
    async fn new() -> Self {
        Self::through(Arc::new(Client::try_from)).await
    }

    async fn through(connect: Connect) -> Self {
        let stop = CancellationToken::new();
        let (platform, _) = serve(&stop).await;
        let (tenants, base) = serve(&stop).await;
        let client = platform.client("platform", Identity::administrator());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let mut place = Namespace::default();
        place.metadata.name = Some(PLACE.to_owned());
        namespaces.create(&PostParams::default(), &place).await.unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let connect: Connect = Arc::new(move |config| {
            counted.fetch_add(1, Ordering::SeqCst);
            connect(config)
        });
        let own = Own::new(["https://10.0.0.1:6443"]);
        let host = platform.client("platform", Identity::host("hostler"));
        Self {
            client,
            platform,
            tenants,
            base,
            given: Arc::new(Given::new(host, own, connect)),
            made,
            _stop: stop.drop_guard(),
        }
    }

    /// A kubeconfig for a cluster of its own.
    async fn kubeconfig(&self, cluster: &str) -> String {
        if !self.tenants.clusters().contains(&cluster.to_owned()) {
            self.tenants.create_cluster(cluster).await.unwrap();
        }
        self.tenants
            .kubeconfig(cluster, &self.base, &Identity::host("hostler"))
            .unwrap()
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), PLACE)
    }

    /// Puts a Secret there as its tenant's installer would.
    async fn put(&self, name: &str, kubeconfig: &str) -> Secret {
        let mut secret = Secret {
            data: Some([("config".to_owned(), ByteString(kubeconfig.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.to_owned());
        let secrets = self.secrets();
        match secrets.get_opt(name).await.unwrap() {
            None => secrets.create(&PostParams::default(), &secret).await.unwrap(),
            Some(known) => {
                secret.metadata.resource_version = known.metadata.resource_version;
                secrets
                    .replace(name, &PostParams::default(), &secret)
                    .await
                    .unwrap()
            }
        }
    }

    /// Waits until the state is as wanted.
    async fn see<T>(&self, place: &TenantPlace, want: impl Fn(State) -> Option<T>) -> T {
        until(&format!("tenant {}", place.name), async || {
            want(self.given.ensure(place).await.unwrap())
        })
        .await
    }

    async fn online(&self, place: &TenantPlace) -> TenantApi {
        self.see(place, |state| match state {
            State::Online(api) => Some(api),
            _ => None,
        })
        .await
    }

    async fn refused(&self, place: &TenantPlace, code: &str) -> Reason {
        self.see(place, |state| match state {
            State::Pending(reason) | State::Silent(reason) | State::Unusable(reason) => {
                (reason.code == code).then_some(reason)
            }
            State::Unknown | State::Online(_) => None,
        })
        .await
    }
}

fn place(name: &str) -> TenantPlace {
    TenantPlace {
        uid: format!("uid-of-{name}"),
        project: "default".to_owned(),
        namespace: "p-default".to_owned(),
        name: name.to_owned(),
        host_namespace: PLACE.to_owned(),
        virtual_cluster: name.to_owned(),
        endpoint: None,
    }
}

fn bell(api: &TenantApi) -> *const tokio::sync::Notify {
    Arc::as_ptr(api.doubt.as_ref().unwrap())
}

#[tokio::test]
async fn a_secret_that_somebody_else_made_is_the_way_to_a_tenant_and_stays_as_it_is() {
    let stand = Stand::new().await;
    let one = place("one");
    let reason = stand.refused(&one, "TenantKubeconfigMissing").await;
    assert!(
        reason.text().contains("vc-one") && reason.remedy.is_some(),
        "{reason:?}"
    );
    let secret = stand.put("vc-one", &stand.kubeconfig("one").await).await;
    let api = stand.online(&one).await;
    assert_eq!(api.uid, one.uid);
    assert_eq!(api.join_server, format!("{}/clusters/one", stand.base));
    assert_eq!(api.ca_pem.trim(), stand.tenants.ca_pem().trim());
    assert!(api.kubeconfig.is_none(), "the Secret is somebody else's to keep");
    let nodes: Api<Node> = Api::all(api.client);
    assert!(nodes.list(&ListParams::default()).await.unwrap().items.is_empty());
    let endpoint = TenantPlace {
        endpoint: Some("192.168.100.2:8443".to_owned()),
        ..one.clone()
    };
    assert_eq!(
        stand.online(&endpoint).await.join_server,
        "https://192.168.100.2:8443"
    );
    assert!(stand.given.remove(&one).await.unwrap());
    let left = stand.secrets().get("vc-one").await.unwrap();
    assert_eq!(left.metadata, secret.metadata, "nothing was written to it");
    assert_eq!(stand.made.load(Ordering::SeqCst), 1, "one client a tenant");
}

#[tokio::test]
async fn a_client_is_made_anew_for_new_credentials_and_dropped_with_the_secret() {
    let stand = Stand::new().await;
    let one = place("one");
    let first = stand.kubeconfig("one").await;
    stand.put("vc-one", &first).await;
    let before = stand.online(&one).await;
    // The same text again, at another resourceVersion.
    stand.put("vc-one", &format!("{first}\n# touched\n")).await;
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    let after = stand
        .see(&one, |state| match state {
            State::Online(api) if bell(&api) != bell(&before) => Some(api),
            _ => None,
        })
        .await;
    assert_eq!(
        stand.made.load(Ordering::SeqCst),
        2,
        "the same credentials need no new client"
    );
    Api::<Node>::all(after.client)
        .list(&ListParams::default())
        .await
        .unwrap();
    let secrets = stand.secrets();
    secrets.delete("vc-one", &Default::default()).await.unwrap();
    stand.refused(&one, "TenantKubeconfigMissing").await;
    // Made again under its name, it is another one, whatever it says.
    stand.put("vc-one", &first).await;
    stand.online(&one).await;
    assert_eq!(stand.made.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_tenant_made_again_under_its_name_is_another_one() {
    let stand = Stand::new().await;
    let one = place("one");
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    let before = stand.online(&one).await;
    let again = TenantPlace {
        uid: "another".to_owned(),
        ..one.clone()
    };
    let after = stand.online(&again).await;
    assert_eq!(after.uid, "another");
    assert_ne!(bell(&before), bell(&after));
    assert!(stand.given.remove(&one).await.unwrap());
    assert_eq!(
        bell(&stand.online(&again).await),
        bell(&after),
        "the newcomer stays"
    );
}

#[tokio::test]
async fn a_change_of_state_is_told() {
    let stand = Stand::new().await;
    let one = place("one");
    let mut changes = stand.given.changes().unwrap();
    stand.refused(&one, "TenantKubeconfigMissing").await;
    assert_eq!(futures::StreamExt::next(&mut changes).await.unwrap(), one.uid);
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    assert_eq!(futures::StreamExt::next(&mut changes).await.unwrap(), one.uid);
    stand.online(&one).await;
}

#[rstest]
#[case::a_program(json!({"users": [{"name": "u", "user": {"exec": {"command": "touch"}}}]}), "TenantKubeconfigUnsafe")]
#[case::a_proxy(json!({"clusters": [{"name": "c", "cluster": {"proxy-url": "http://127.0.0.1:1"}}]}), "TenantKubeconfigUnsafe")]
#[case::no_kubeconfig(json!("hello"), "TenantKubeconfigInvalid")]
#[tokio::test]
async fn what_is_refused_makes_no_client(#[case] kubeconfig: Value, #[case] code: &str) {
    let stand = Stand::new().await;
    let one = place("one");
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    stand.online(&one).await;
    // Also where there was a good one before.
    stand.put("vc-one", &kubeconfig.to_string()).await;
    let reason = stand.refused(&one, code).await;
    assert!(
        reason.message.starts_with("Secret loft-default-v-one/vc-one: "),
        "{reason:?}"
    );
    assert_eq!(stand.made.load(Ordering::SeqCst), 1);
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    stand.online(&one).await;
}

#[tokio::test]
async fn the_platform_under_another_name_is_told_by_its_uid() {
    let stand = Stand::new().await;
    let stop = CancellationToken::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{}", listener.local_addr().unwrap());
    let (serving, end) = (stand.platform.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(listener, end).await });
    let itself = stand
        .platform
        .kubeconfig("platform", &base, &Identity::host("hostler"))
        .unwrap();
    stand.put("vc-one", &itself).await;
    let reason = stand.refused(&place("one"), "TenantKubeconfigUnsafe").await;
    assert!(reason.message.contains("the platform's own API"), "{reason:?}");
    stop.cancel();
}

#[tokio::test]
async fn who_is_not_known_or_not_let_in_is_told_and_mended_by_a_new_secret() {
    let stand = Stand::new().await;
    let one = place("one");
    let good = stand.kubeconfig("one").await;
    let token = good
        .lines()
        .filter(|line| !line.contains("client-key-data"))
        .map(|line| match line.split_once("client-certificate-data") {
            Some((indent, _)) => format!("{indent}token: nobodys-secret-token"),
            None => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    stand.put("vc-one", &token).await;
    let reason = stand.refused(&one, "TenantCredentialsRefused").await;
    assert!(!reason.text().contains("nobodys"), "{reason:?}");
    let guest = Identity {
        user: "guest".to_owned(),
        groups: Vec::new(),
        ..Identity::host("guest")
    };
    let guest = stand.tenants.kubeconfig("one", &stand.base, &guest).unwrap();
    stand.put("vc-one", &guest).await;
    let reason = stand.refused(&one, "TenantRightsMissing").await;
    assert!(reason.text().contains("hostler manifests --tenant"), "{reason:?}");
    stand.put("vc-one", &good).await;
    stand.online(&one).await;
}

/// What a tenant's API may do to its clients.
#[derive(Clone, Copy)]
enum Mischief {
    Silence,
    Garbage,
    Redirect,
    EndlessBody,
    EndlessPoliteNo,
    SlowDrip,
    WrongNamespace,
}

impl Mischief {
    fn answer(self) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let chunk = |every: Duration| {
            let piece = Bytes::from(vec![b' '; 64 << 10]);
            stream::unfold((), move |()| {
                let piece = piece.clone();
                async move {
                    tokio::time::sleep(every).await;
                    Some((Ok::<_, Infallible>(http_body::Frame::data(piece)), ()))
                }
            })
        };
        let endless = |every| StreamBody::new(chunk(every)).boxed_unsync();
        let whole = |text: String| Full::new(Bytes::from(text)).boxed_unsync();
        let response = Response::builder();
        match self {
            Self::Silence => unreachable!("it gives no answer"),
            Self::Garbage => response.body(whole("<html>hello</html>".to_owned())),
            Self::Redirect => response
                .status(StatusCode::TEMPORARY_REDIRECT)
                .header("location", "https://127.0.0.1:1/elsewhere")
                .body(whole(String::new())),
            Self::EndlessBody => response.body(endless(Duration::ZERO)),
            Self::EndlessPoliteNo => response.status(404).body(endless(Duration::ZERO)),
            Self::SlowDrip => response.body(endless(Duration::from_secs(1))),
            Self::WrongNamespace => response.body(whole(
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
                    .to_string(),
            )),
        }
        .unwrap()
    }
}

/// Sends what is meant for a server called `bad…` to a service that misbehaves, and counts.
fn misled(mischief: Mischief, asked: Arc<Mutex<Vec<String>>>) -> Connect {
    Arc::new(move |config: Config| {
        if !config
            .cluster_url
            .host()
            .is_some_and(|host| host.starts_with("bad"))
        {
            return Client::try_from(config);
        }
        let asked = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            asked.lock().unwrap().push(request.uri().to_string());
            async move {
                if matches!(mischief, Mischief::Silence) {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(mischief.answer())
            }
        });
        Ok(Client::new(service, "default"))
    })
}

#[rstest]
#[case::gives_no_answer(Mischief::Silence, "TenantUnreachable")]
#[case::answers_garbage(Mischief::Garbage, "TenantApiStrange")]
#[case::redirects(Mischief::Redirect, "TenantUnreachable")]
#[case::answers_without_end(Mischief::EndlessBody, "TenantUnreachable")]
#[case::refuses_without_end(Mischief::EndlessPoliteNo, "TenantUnreachable")]
#[case::answers_drop_by_drop(Mischief::SlowDrip, "TenantUnreachable")]
#[case::is_no_cluster(Mischief::WrongNamespace, "TenantApiStrange")]
#[tokio::test]
async fn a_tenant_whose_api(#[case] mischief: Mischief, #[case] code: &str) {
    let asked = Arc::default();
    let stand = Stand::through(misled(mischief, Arc::clone(&asked))).await;
    let (bad, good) = (place("bad"), place("good"));
    let kubeconfig = stand.kubeconfig("good").await;
    stand
        .put(
            "vc-bad",
            &kubeconfig.replace("https://127.0.0.1", "https://bad.example"),
        )
        .await;
    // Asking for it waits for nothing: neither this, nor the other's.
    let first = stand.given.ensure(&bad).await.unwrap();
    assert!(matches!(first, State::Unknown));
    stand.put("vc-good", &kubeconfig).await;
    stand.online(&good).await;
    let reason = stand.refused(&bad, code).await;
    assert!(reason.text().len() < 400, "{reason:?}");
    stand.online(&good).await;
    let asked = asked.lock().unwrap().clone();
    assert!(
        asked.iter().all(|path| path == "/api/v1/namespaces/kube-system"),
        "{asked:?}"
    );
}

#[tokio::test]
async fn an_api_that_dies_is_told_by_the_first_request_that_fails_and_comes_back_by_itself() {
    let dead = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let connect: Connect = Arc::new({
        let dead = dead.clone();
        move |config| {
            let client = Client::try_from(config)?;
            let dead = dead.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let (client, dead) = (client.clone(), dead.load(Ordering::SeqCst));
                async move {
                    if dead {
                        return Err(tower::BoxError::from("nobody listens"));
                    }
                    client.send(request).await.map_err(tower::BoxError::from)
                }
            });
            Ok(Client::new(service, "default"))
        }
    });
    let stand = Stand::through(connect).await;
    let one = place("one");
    stand.put("vc-one", &stand.kubeconfig("one").await).await;
    let api = stand.online(&one).await;
    dead.store(true, Ordering::SeqCst);
    // As the host's way to the tenant does when a request fails.
    api.doubt.as_ref().unwrap().notify_one();
    let reason = stand.refused(&one, "TenantUnreachable").await;
    assert!(reason.message.contains("nobody listens"), "{reason:?}");
    dead.store(false, Ordering::SeqCst);
    assert_eq!(bell(&stand.online(&one).await), bell(&api), "by the same client");
}
