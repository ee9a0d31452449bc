//! A tenant's place is its own, and a tenant exhausts nobody.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use hostler_cli::args::RequiredPlugins;
use hostler_controllers::Settings;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use tower::{BoxError, Service};

use super::stage;
use crate::harness::{Through, World, eventually, fixtures};

async fn yard(world: &World, count: usize) {
    stage::plug(
        world,
        &fixtures().join("driver-hostile.wasm"),
        "driver-hostile",
        &stage::grant(&["racks".to_owned()]),
    );
    stage::apply(world, &stage::namespace("racks")).await;
    for number in 0..count {
        for object in stage::host("racks", &format!("rack-{number}"), number) {
            stage::apply(world, &object).await;
        }
    }
    stage::apply(
        world,
        &stage::provider("yard", "hostile", &json!({"namespace": "racks"})),
    )
    .await;
    for project in ["a", "b"] {
        stage::project(world, project).await;
        stage::apply(world, &stage::tenant(project, "one", stage::PRIVATE)).await;
        let namespace = format!("p-{project}");
        stage::until_true(
            world,
            ("VirtualClusterInstance", Some(&namespace), "one"),
            "VirtualClusterReady",
        )
        .await;
    }
    stage::until(
        world,
        ("NodeProvider", None, "yard"),
        ("Initialized", "Described"),
    )
    .await;
    stage::until_free(world, "racks", count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_one_tenants_and_a_name_in_another_project_is_another_claim() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world, 2).await;
    let before = stage::everything(&world).await;
    let squatters = [
        ("squatter", "loft-a-v-one"),
        ("hosts", "racks"),
        ("system", "kube-system"),
        ("project", "p-a"),
        ("base", "default"),
    ];
    for (name, place) in squatters {
        let mut tenant = stage::tenant("b", name, stage::PRIVATE);
        tenant["spec"]["clusterRef"] = json!({"namespace": place, "virtualCluster": "one"});
        stage::apply(&world, &tenant).await;
        eventually(&format!("{name} is refused"), || async {
            let found = stage::read(&world, "VirtualClusterInstance", Some("p-b"), name)
                .await
                .unwrap();
            if found["status"]["reason"] == "TenantRefTaken" {
                Ok(())
            } else {
                Err(found["status"].to_string())
            }
        })
        .await;
    }
    let after = stage::everything(&world).await;
    let touched: Vec<String> = stage::changes(&before, &after)
        .into_iter()
        .filter(|change| !change.contains(" VirtualClusterInstance p-b/") && !change.ends_with(": /status"))
        .collect();
    assert!(touched.is_empty(), "{}", touched.join("\n"));

    for project in ["a", "b"] {
        stage::apply(&world, &stage::claim(project, "same", "one", "yard")).await;
        stage::until_available(&world, &format!("p-{project}"), "same").await;
    }
    let of = async |project: &str| {
        let claim = stage::read(&world, "NodeClaim", Some(&format!("p-{project}")), "same")
            .await
            .unwrap();
        (claim["status"]["nodeName"].as_str().unwrap().to_owned(), claim)
    };
    let ((first, _), (second, kept)) = (of("a").await, of("b").await);
    assert_ne!(first, second);
    let host_before = stage::read(&world, "BareMetalHost", Some("racks"), &second).await;
    stage::delete(&world, "NodeClaim", Some("p-a"), "same").await;
    stage::until_gone(&world, "NodeClaim", Some("p-a"), "same").await;
    assert_eq!(
        stage::read(&world, "BareMetalHost", Some("racks"), &second).await,
        host_before
    );
    assert_eq!(of("b").await.1["status"]["nodeUid"], kept["status"]["nodeUid"]);

    // A claim for another project's tenant is for nobody.
    stage::apply(&world, &stage::tenant("a", "only-a", stage::PRIVATE)).await;
    stage::apply(&world, &stage::claim("b", "foreign", "only-a", "yard")).await;
    stage::until(
        &world,
        ("NodeClaim", Some("p-b"), "foreign"),
        ("Accepted", "UnknownTenant"),
    )
    .await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_without_measure_order_nothing_and_cost_the_neighbour_nothing() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world, 2).await;
    let pool = |quantity: &str| {
        format!(
            "privateNodes:\n  enabled: true\n  autoNodes:\n  - provider: yard\n    static:\n    - name: all\n      quantity: {quantity}\n"
        )
    };
    let deep = format!("experimental: {}1{}", "{a: ".repeat(70), "}".repeat(70));
    let mut bomb = "experimental:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = format!("*a{}", level - 1);
        bomb.push_str(&format!(
            "  a{level}: &a{level} [{}]\n",
            vec![below; 10].join(", ")
        ));
    }
    let big = stage::tenant(
        "a",
        "big",
        &format!("{}\n# {}", stage::PRIVATE, "x".repeat(300 << 10)),
    );
    let said = world.refusal(&serde_json::to_string(&big).unwrap()).await;
    assert!(said.contains("may not be more than 262144 bytes"), "{said}");
    let wrong = [
        ("deep", deep),
        ("bomb", bomb),
        ("two-billion", pool("2000000000")),
        ("negative", pool("-1")),
    ];
    for (name, values) in &wrong {
        stage::apply(&world, &stage::tenant("a", name, values)).await;
    }
    for (name, _) in &wrong {
        eventually(&format!("{name} is refused"), || async {
            let found = stage::read(&world, "VirtualClusterInstance", Some("p-a"), name)
                .await
                .unwrap();
            if found["status"]["reason"] == "InvalidValues" {
                Ok(())
            } else {
                Err(found["status"].to_string())
            }
        })
        .await;
    }
    // Ten thousand wanted, two there: no more claims than could be served, and a few to show that more is wanted.
    stage::apply(&world, &stage::tenant("b", "greedy", &pool("10000"))).await;
    stage::until_true(
        &world,
        ("VirtualClusterInstance", Some("p-b"), "greedy"),
        "VirtualClusterReady",
    )
    .await;
    let claims = |world: &World| {
        let claims = stage::api(world, "NodeClaim", None);
        async move { claims.list(&ListParams::default()).await.unwrap().items.len() }
    };
    eventually("both machines are the greedy tenant's", || async {
        let all = stage::api(&world, "NodeClaim", None)
            .list(&ListParams::default())
            .await
            .unwrap();
        let available = all
            .iter()
            .filter(|claim| claim.data["status"]["phase"] == "Available")
            .count();
        if available == 2 {
            Ok(())
        } else {
            Err(format!("{available} of {}", all.items.len()))
        }
    })
    .await;
    let count = claims(&world).await;
    assert!((3..=7).contains(&count), "{count} claims for two machines");
    // The neighbour goes on meanwhile.
    stage::apply(&world, &stage::tenant("a", "late", stage::PRIVATE)).await;
    stage::until_true(
        &world,
        ("VirtualClusterInstance", Some("p-a"), "late"),
        "VirtualClusterReady",
    )
    .await;
    assert!((3..=7).contains(&claims(&world).await));
    host.stop().await;
}

/// A client that never gets an answer where its cluster is slow.
#[derive(Clone)]
struct Tar<S> {
    inner: S,
    stuck: bool,
}

impl<S> Service<Request<Body>> for Tar<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.stuck {
            return futures::future::pending().boxed();
        }
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        async move { inner.call(request).await.map_err(Into::into) }.boxed()
    }
}

fn tarred<S, B>(inner: S, stuck: bool) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(Tar { inner, stuck }, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_api_never_answers_costs_the_others_nothing() {
    let world = World::new().await;
    let required = RequiredPlugins {
        resolver: "resolver-precedence".to_owned(),
        policies: vec!["policy-allowlist".to_owned()],
    };
    let stack = world.stack.clone();
    let clients = Arc::new(move |cluster: &str| {
        let service = Through::new(stack.as_host(cluster)?);
        Ok(tarred(service, cluster.starts_with("stuck-")))
    });
    let host = world.host_through(clients, Settings::default(), &required).await;
    yard(&world, 4).await;
    stage::apply(&world, &stage::tenant("a", "stuck", stage::PRIVATE)).await;
    for number in 0..3 {
        stage::apply(
            &world,
            &stage::claim("a", &format!("stuck-{number}"), "stuck", "yard"),
        )
        .await;
    }
    for number in 0..3 {
        stage::until(
            &world,
            ("NodeClaim", Some("p-a"), &format!("stuck-{number}")),
            ("Scheduled", "Bound"),
        )
        .await;
    }
    stage::apply(&world, &stage::claim("b", "quick", "one", "yard")).await;
    stage::until_available(&world, "p-b", "quick").await;
    stage::delete(&world, "NodeClaim", Some("p-b"), "quick").await;
    stage::until_gone(&world, "NodeClaim", Some("p-b"), "quick").await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_over_a_label_ends_in_a_rest() {
    let world = World::new().await;
    let host = world.host().await;
    yard(&world, 1).await;
    stage::apply(
        &world,
        &json!({"apiVersion": "management.loft.sh/v1", "kind": "NodeProfile", "metadata": {"name": "gold"},
            "spec": {"nodeLabels": {"example.com/grade": "gold"}}}),
    )
    .await;
    let mut claim = stage::claim("a", "fought", "one", "yard");
    claim["spec"]["profileRef"] = json!("gold");
    stage::apply(&world, &claim).await;
    stage::until_available(&world, "p-a", "fought").await;
    let cluster = {
        let tenant = stage::read(&world, "VirtualClusterInstance", Some("p-a"), "one")
            .await
            .unwrap();
        let uid = tenant["metadata"]["uid"].as_str().unwrap()[..8].to_owned();
        world
            .stack
            .clusters()
            .into_iter()
            .find(|name| name.ends_with(&uid))
            .unwrap()
    };
    let nodes: Api<Node> = Api::all(world.stack.administrator(&cluster));
    let grade = || async {
        let node = nodes.get("rack-0").await.unwrap();
        node.metadata
            .labels
            .unwrap_or_default()
            .get("example.com/grade")
            .cloned()
            .unwrap_or_default()
    };
    let lead = json!({"metadata": {"labels": {"example.com/grade": "lead"}}});
    for round in 0..7 {
        eventually(&format!("round {round}"), || async {
            match grade().await {
                gold if gold == "gold" => Ok(()),
                other => Err(other),
            }
        })
        .await;
        nodes
            .patch("rack-0", &PatchParams::default(), &Patch::Merge(&lead))
            .await
            .unwrap();
    }
    stage::until_event(&world, "fought", "Contested").await;
    eventually("the last correction", || async {
        let found = grade().await;
        if found == "gold" { Ok(()) } else { Err(found) }
    })
    .await;
    // From here on the host rests: a change stays, until it was quiet for a while.
    nodes
        .patch("rack-0", &PatchParams::default(), &Patch::Merge(&lead))
        .await
        .unwrap();
    // Something else that the host would answer: once it has, it has seen the node with the change on it.
    stage::apply(&world, &stage::tenant("a", "two", stage::PRIVATE)).await;
    stage::until_true(
        &world,
        ("VirtualClusterInstance", Some("p-a"), "two"),
        "VirtualClusterReady",
    )
    .await;
    assert_eq!(grade().await, "lead");
    host.stop().await;
}
