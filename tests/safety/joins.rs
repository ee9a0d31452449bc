//! A token joins one node: whoever reads a machine's boot data can make that machine's node of it, and nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hostler_apiserver::{Issued, Proof, kubeconfig};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use std::time::Duration;

use super::stage;
use crate::harness::stack::is_real;
use crate::harness::{World, eventually, fixtures};

/// What somebody with a token asks for.
struct Asked {
    cn: String,
    organizations: &'static [&'static str],
    alternatives: &'static [&'static str],
    usages: &'static [&'static str],
}

impl Asked {
    fn node(name: &str) -> Self {
        Self {
            cn: format!("system:node:{name}"),
            organizations: &["system:nodes"],
            alternatives: &[],
            usages: &["digital signature", "client auth"],
        }
    }

    fn request(&self, name: &str) -> (CertificateSigningRequest, String) {
        let key = KeyPair::generate().unwrap();
        let alternatives: Vec<String> = self.alternatives.iter().map(|one| (*one).to_owned()).collect();
        let mut params = CertificateParams::new(alternatives).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for organization in self.organizations {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *organization);
        }
        params.distinguished_name.push(DnType::CommonName, &self.cn);
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = json!({
            "metadata": {"name": name},
            "spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": self.usages, "username": "system:node:admin", "groups": ["system:masters"]},
        });
        (serde_json::from_value(request).unwrap(), key.serialize_pem())
    }
}

/// Makes of the name of one's own node what is asked for.
type Ask = Box<dyn Fn(&str) -> Asked>;

/// The cluster of tenant `one`.
fn cluster(world: &World) -> String {
    world
        .stack
        .clusters()
        .into_iter()
        .find(|name| name.starts_with("one-"))
        .unwrap()
}

/// A client over the socket, as an outsider has it.
async fn outside(world: &World, cluster: &str, proof: Proof<'_>) -> Client {
    let url = world.stack.url(cluster);
    let text = kubeconfig(cluster, "me", &url, &world.stack.ca_pem(cluster), proof);
    let read = Kubeconfig::from_yaml(&text).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

/// The token in the boot data of a claim, once its machine was switched on with it.
async fn stolen(world: &World, claim: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "racks");
    eventually(&format!("boot data of {claim}"), || async {
        let claim = stage::read(world, "NodeClaim", Some("p-default"), claim)
            .await
            .unwrap();
        let told = stage::condition(&claim, "Provisioned").unwrap_or_default();
        if told.status != "True" {
            return Err(format!("{told:?}"));
        }
        let named = format!(
            "hostler.dev/claim={}",
            claim["metadata"]["name"].as_str().unwrap()
        );
        let found = secrets
            .list(&ListParams::default().labels(&named))
            .await
            .map_err(|error| error.to_string())?;
        let secret = found.items.into_iter().next().ok_or("no boot Secret")?;
        let data = String::from_utf8(secret.data.unwrap()["userData"].0.clone()).unwrap();
        let after = data.split("token: ").nth(1).ok_or("no token in it")?;
        Ok(after
            .chars()
            .filter(|c| !matches!(c, '"' | '\''))
            .take(23)
            .collect())
    })
    .await
}

fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("it was let through: {other:?}"),
    }
}

/// What was decided on a request: the condition's type and reason.
async fn decided(administrator: &Client, name: &str) -> (String, String) {
    let requests: Api<CertificateSigningRequest> = Api::all(administrator.clone());
    eventually(&format!("a decision on {name}"), || async {
        let request = requests.get(name).await.map_err(|error| error.to_string())?;
        let all = request.status.unwrap_or_default().conditions.unwrap_or_default();
        let one = all.first().ok_or("none yet")?;
        Ok((one.type_.clone(), one.reason.clone().unwrap_or_default()))
    })
    .await
}

async fn until_token_is_gone(administrator: &Client, token: &str) {
    let name = format!("bootstrap-token-{}", &token[..6]);
    let secrets: Api<Secret> = Api::namespaced(administrator.clone(), "kube-system");
    eventually(&format!("{name} is gone"), || async {
        match secrets.get_opt(&name).await.unwrap() {
            None => Ok(()),
            Some(_) => Err("it is there".to_owned()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_joins_its_own_node_once_and_nothing_else() {
    let mut lab = hostler_lab::Options::instant();
    // The attacker is first: the servers themselves never get as far as their boot data.
    lab.times.boot = Duration::from_secs(36_000);
    let world = World::with(lab).await;
    stage::plug(
        &world,
        &fixtures().join("driver-hostile.wasm"),
        "driver-hostile",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(&world, &stage::namespace("racks")).await;
    let attacks: Vec<(&str, &str, Ask)> = vec![
        ("neighbour", "NameRefused", Box::new(|_| Asked::node("rack-99"))),
        (
            "masters",
            "OrganizationRefused",
            Box::new(|node| Asked {
                organizations: &["system:masters"],
                ..Asked::node(node)
            }),
        ),
        (
            "both",
            "OrganizationRefused",
            Box::new(|node| Asked {
                organizations: &["system:nodes", "system:masters"],
                ..Asked::node(node)
            }),
        ),
        (
            "server",
            "UsageRefused",
            Box::new(|node| Asked {
                usages: &["digital signature", "server auth"],
                ..Asked::node(node)
            }),
        ),
        (
            "more",
            "UsageRefused",
            Box::new(|node| Asked {
                usages: &["digital signature", "client auth", "cert sign"],
                ..Asked::node(node)
            }),
        ),
        (
            "names",
            "AlternativeNamesRefused",
            Box::new(|node| Asked {
                alternatives: &["kubernetes.default"],
                ..Asked::node(node)
            }),
        ),
        (
            "admin",
            "NameRefused",
            Box::new(|_| Asked {
                cn: "kubernetes-admin".to_owned(),
                ..Asked::node("")
            }),
        ),
    ];
    for number in 0..=attacks.len() {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(&world, &object).await;
        }
    }
    let host = world.host().await;
    stage::project(&world, "default").await;
    stage::project(&world, "other").await;
    stage::apply(&world, &stage::tenant("default", "one", stage::PRIVATE)).await;
    stage::apply(&world, &stage::tenant("other", "two", stage::PRIVATE)).await;
    stage::until_true(
        &world,
        ("VirtualClusterInstance", Some("p-other"), "two"),
        "VirtualClusterReady",
    )
    .await;
    stage::until_free(&world, "racks", attacks.len() + 1).await;
    stage::apply(
        &world,
        &stage::provider("yard", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    stage::apply(&world, &stage::claim("default", "good", "one", "yard")).await;
    for (name, ..) in &attacks {
        stage::apply(&world, &stage::claim("default", name, "one", "yard")).await;
    }
    let own = cluster(&world);
    let administrator = world.stack.administrator(&own);

    for (name, reason, ask) in &attacks {
        let token = stolen(&world, name).await;
        let thief = outside(&world, &own, Proof::Token(&token)).await;
        let node = stage::read(&world, "NodeClaim", Some("p-default"), name)
            .await
            .unwrap()["status"]["nodeName"]
            .clone();
        let requests: Api<CertificateSigningRequest> = Api::all(thief.clone());
        let (request, _) = ask(node.as_str().unwrap()).request(name);
        let made = requests.create(&PostParams::default(), &request).await.unwrap();
        // The API server says who asks, not the request.
        assert_eq!(
            made.spec.username,
            Some(format!("system:bootstrap:{}", &token[..6]))
        );
        let verdict = decided(&administrator, name).await;
        assert_eq!(verdict, ("Denied".to_owned(), (*reason).to_owned()), "{name}");
        until_token_is_gone(&administrator, &token).await;
        stage::until_event(&world, name, reason).await;
        // A real API server remembers for some seconds that a token was good.
        eventually(&format!("{name}: the token opens nothing any more"), || async {
            match requests.get(name).await {
                Err(kube::Error::Api(status)) if status.code == 401 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let request = Api::<CertificateSigningRequest>::all(administrator.clone())
            .get(name)
            .await
            .unwrap();
        assert!(request.status.unwrap().certificate.is_none(), "{name} was signed");
    }

    let token = stolen(&world, "good").await;
    let thief = outside(&world, &own, Proof::Token(&token)).await;
    a_token_opens_nothing_but_its_request(&world, &thief, &token).await;
    let node = stage::read(&world, "NodeClaim", Some("p-default"), "good")
        .await
        .unwrap()["status"]["nodeName"]
        .clone();
    let node = node.as_str().unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(thief.clone());
    let (request, key) = Asked::node(node).request("good-1");
    requests.create(&PostParams::default(), &request).await.unwrap();
    assert_eq!(decided(&administrator, "good-1").await.0, "Approved");
    let (second, _) = Asked::node(node).request("good-2");
    requests.create(&PostParams::default(), &second).await.unwrap();
    assert_eq!(
        decided(&administrator, "good-2").await,
        ("Denied".to_owned(), "TokenUsed".to_owned())
    );
    until_token_is_gone(&administrator, &token).await;

    let signed: Api<CertificateSigningRequest> = Api::all(administrator.clone());
    let certificate = eventually("the certificate", || async {
        let request = signed.get("good-1").await.map_err(|error| error.to_string())?;
        let bytes = request
            .status
            .and_then(|status| status.certificate)
            .ok_or("none yet")?;
        Ok(String::from_utf8(bytes.0).unwrap())
    })
    .await;
    a_node_reaches_itself_alone(&world, &own, node, &Issued { certificate, key }).await;
    host.stop().await;
}

async fn a_token_opens_nothing_but_its_request(world: &World, thief: &Client, token: &str) {
    let everything = ListParams::default();
    assert_eq!(
        code(Api::<Secret>::all(thief.clone()).list(&everything).await),
        403
    );
    assert_eq!(code(Api::<Node>::all(thief.clone()).list(&everything).await), 403);
    // The rules of a real cluster know no requests of one's own: who may ask may read all of them, and that is how kubelets wait.
    if !is_real() {
        assert_eq!(
            code(
                Api::<CertificateSigningRequest>::all(thief.clone())
                    .list(&everything)
                    .await
            ),
            403
        );
        assert_eq!(
            code(
                Api::<CertificateSigningRequest>::all(thief.clone())
                    .get("masters")
                    .await
            ),
            403
        );
    }
    let secret = format!("bootstrap-token-{}", &token[..6]);
    assert_eq!(
        code(
            Api::<Secret>::namespaced(thief.clone(), "kube-system")
                .get(&secret)
                .await
        ),
        403
    );
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "rack-99"}})).unwrap();
    assert_eq!(
        code(
            Api::all(thief.clone())
                .create(&PostParams::default(), &node)
                .await
        ),
        403
    );
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Me"}]}});
    let requests: Api<CertificateSigningRequest> = Api::all(thief.clone());
    assert_eq!(
        code(
            requests
                .patch_approval("masters", &PatchParams::default(), &Patch::Merge(&approve))
                .await
        ),
        403
    );
    // Nor anywhere else: not on the platform, not at another tenant's.
    for elsewhere in world
        .stack
        .clusters()
        .into_iter()
        .filter(|name| !name.starts_with("one-"))
    {
        let client = outside(world, &elsewhere, Proof::Token(token)).await;
        assert_eq!(
            code(Api::<Secret>::all(client).list(&everything).await),
            401,
            "{elsewhere}"
        );
    }
}

async fn a_node_reaches_itself_alone(world: &World, own: &str, name: &str, issued: &Issued) {
    let client = outside(world, own, Proof::Certificate(issued)).await;
    let everything = ListParams::default();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = |name: &str, labels: Value| -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    };
    let create = async |node: Node| nodes.create(&PostParams::default(), &node).await;
    assert_eq!(code(create(node("rack-99", json!({}))).await), 403);
    assert_eq!(
        code(
            create(node(
                name,
                json!({"node-restriction.kubernetes.io/node-profile": "gold"})
            ))
            .await
        ),
        403
    );
    create(node(name, json!({"kubernetes.io/hostname": name})))
        .await
        .unwrap();
    let promote = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/node-profile": "gold"}}});
    assert_eq!(
        code(
            nodes
                .patch(name, &PatchParams::default(), &Patch::Merge(&promote))
                .await
        ),
        403
    );
    let untaint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    assert_eq!(
        code(
            nodes
                .patch(name, &PatchParams::default(), &Patch::Merge(&untaint))
                .await
        ),
        403
    );
    assert_eq!(code(nodes.list(&everything).await), 403);
    assert_eq!(
        code(Api::<Secret>::all(client.clone()).list(&everything).await),
        403
    );
    let lease = json!({"metadata": {"name": "rack-99", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "rack-99"}});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    assert_eq!(code(leases.create(&PostParams::default(), &lease).await), 403);
    // Its certificate is no other node's, and no other cluster's.
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let (request, _) = Asked::node("rack-99").request("from-a-node");
    match requests.create(&PostParams::default(), &request).await {
        Ok(made) => {
            let administrator = world.stack.administrator(own);
            assert_eq!(decided(&administrator, &made.name_any()).await.0, "Denied");
        }
        refused => assert_eq!(code(refused), 403),
    }
    for elsewhere in world.stack.clusters().into_iter().filter(|name| name != own) {
        let client = outside(world, &elsewhere, Proof::Certificate(issued)).await;
        assert_eq!(
            code(Api::<Node>::all(client).list(&everything).await),
            401,
            "{elsewhere}"
        );
    }
    // The same for whoever may do everything at one tenant's.
    let text = std::fs::read_to_string(world.folder.path().join("tenants/default/one.kubeconfig")).unwrap();
    for elsewhere in world.stack.clusters().into_iter().filter(|name| name != own) {
        let (here, there) = (world.stack.url(own), world.stack.url(&elsewhere));
        // With the authority of the place where it goes: it is the place that must not know the proof.
        let authority = |cluster: &str| STANDARD.encode(world.stack.ca_pem(cluster));
        let text = text
            .replace(&here, &there)
            .replace(&authority(own), &authority(&elsewhere));
        let read = Kubeconfig::from_yaml(&text).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .unwrap();
        let client = Client::try_from(config).unwrap();
        assert_eq!(
            code(Api::<Secret>::all(client).list(&everything).await),
            401,
            "{elsewhere}"
        );
    }
}
