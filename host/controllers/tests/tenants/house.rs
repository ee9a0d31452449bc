//! One host with all its loops, an API of its own, and small native fakes behind the seams.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hostler_api as api;
use hostler_apiserver::{Identity, Options, Server, Store};
use hostler_controllers::control_plane::{ControlPlane, State, TenantApi, TenantPlace};
use hostler_controllers::{Ctx, Settings, SystemClock};
use hostler_core::seams::{
    Candidate, Driver, Failure, PluginState, Plugins, Policy, Reason, Request, Resolution, Resolver, Subject,
    Verdict,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a test waits for what must become true; far longer than it ever takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The values of the third seed, less what machines do not read.
pub(crate) const SEED: &str = "
controlPlane:
  endpoint: 192.168.100.2:8443
privateNodes:
  enabled: true
  autoNodes:
    - provider: metal3
      static:
        - name: gpu
          quantity: 1
          nodeTypeSelector:
            - property: vcluster.com/node-type
              value: gpu-server
          nodeLabels:
            workload: gpu
        - name: cpu
          quantity: 1
          nodeTypeSelector:
            - property: vcluster.com/node-type
              value: cpu-server
      properties:
        vcluster.com/os-image: ubuntu
";

/// Everything that a test needs.
pub(crate) struct House {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) plugins: Arc<Fakes>,
    _server: DropGuard,
    stop: DropGuard,
}

/// The writes of one host, of which one is its last.
pub(crate) struct Writes {
    done: AtomicUsize,
    limit: Option<usize>,
    dead: CancellationToken,
}

impl Writes {
    /// Returns when the last write was done.
    pub(crate) async fn ended(&self) {
        self.dead.cancelled().await;
    }

    /// Whether this write may be answered; the last one is carried out, and its answer is lost.
    fn next(&self) -> bool {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if self.limit == Some(number) {
            self.dead.cancel();
        }
        self.limit.is_none_or(|limit| number < limit)
    }
}

/// Runs all loops of one host until the token.
fn run(server: &Server, plugins: &Arc<Fakes>, limit: Option<usize>) -> (CancellationToken, Arc<Writes>) {
    let stop = CancellationToken::new();
    let writes = Arc::new(Writes {
        done: AtomicUsize::new(0),
        limit,
        dead: CancellationToken::new(),
    });
    let inner = server.service("platform", Identity::host("hostler"));
    let counted = writes.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (mut inner, writes) = (inner.clone(), counted.clone());
        async move {
            // Events are a courtesy, and come when they like: they are no step of anything.
            let step = request.method() != http::Method::GET && !request.uri().path().contains("/events");
            let refused = step && writes.dead.is_cancelled();
            let lost = step && !refused && !writes.next();
            if refused {
                std::future::pending::<()>().await;
            }
            let answer = tower::Service::call(&mut inner, request).await;
            if lost {
                std::future::pending::<()>().await;
            }
            answer
        }
    });
    let ctx = Ctx::start(
        Client::new(service, "default"),
        plugins.clone(),
        Arc::new(ControlPlanes(server.clone())),
        Arc::new(SystemClock),
        Settings::default(),
        &stop,
    );
    tokio::spawn(hostler_controllers::run(ctx, stop.clone()));
    (stop, writes)
}

impl House {
    /// A host that runs, with a project, a provider and an image.
    pub(crate) async fn open() -> Self {
        let mut house = Self::empty().await;
        house.stop = run(&house.server, &house.plugins, None).0.drop_guard();
        house.furnish().await;
        house
            .find::<k8s_openapi::api::core::v1::Namespace>(None, "p-default")
            .await;
        house
    }

    /// The API with its definitions, and nobody who acts on it.
    pub(crate) async fn empty() -> Self {
        let server = Server::open(Options::new(Store::Memory)).unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        let client = server.client("platform", Identity::administrator());
        define(&client).await;
        Self {
            server,
            client,
            plugins: Arc::default(),
            _server: stop.drop_guard(),
            stop: CancellationToken::new().drop_guard(),
        }
    }

    /// What an operator puts there first.
    pub(crate) async fn furnish(&self) {
        self.apply(
            json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {}}),
        )
        .await;
        self.apply(json!({"apiVersion": GROUP, "kind": "NodeProvider", "metadata": {"name": "metal3"}, "spec": {"metal3": {}}})).await;
        self.apply(
            json!({"apiVersion": GROUP, "kind": "OSImage", "metadata": {"name": "ubuntu"}, "spec": {}}),
        )
        .await;
    }

    /// The same with the host stopped.
    pub(crate) fn dead(self) -> Self {
        self.stop.disarm().cancel();
        Self {
            stop: CancellationToken::new().drop_guard(),
            ..self
        }
    }

    /// Starts another host beside whoever runs, or ran; it dies with the token, and without an answer at its write number `limit`.
    pub(crate) fn start(&self, limit: Option<usize>) -> (CancellationToken, Arc<Writes>) {
        run(&self.server, &self.plugins, limit)
    }

    /// Applies any object as kubectl would.
    pub(crate) async fn apply(&self, object: Value) -> DynamicObject {
        let (group, version) = object["apiVersion"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap_or(("", "v1"));
        let kind = object["kind"].as_str().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        api.patch(
            name,
            &PatchParams::apply("kubectl").force(),
            &Patch::Apply(&object),
        )
        .await
        .unwrap()
    }

    /// Applies a tenant with these values in its usual place.
    pub(crate) async fn tenant(&self, name: &str, values: &str) {
        self.tenant_at(name, values, &format!("loft-default-v-{name}"))
            .await;
    }

    pub(crate) async fn tenant_at(&self, name: &str, values: &str, namespace: &str) {
        self.apply(json!({
            "apiVersion": GROUP, "kind": "VirtualClusterInstance",
            "metadata": {"name": name, "namespace": "p-default"},
            "spec": {
                "template": {"helmRelease": {"values": values}},
                "clusterRef": {"cluster": "loft-cluster", "namespace": namespace, "virtualCluster": name},
                "owner": {"user": "admin"},
            },
        }))
        .await;
    }

    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "p-default")
    }

    /// The object, as soon as it is there.
    pub(crate) async fn find<K>(&self, namespace: Option<&str>, name: &str) -> K
    where
        K: Kind,
    {
        self.see(namespace, name, |_: &K| true).await
    }

    /// The object, as soon as it is as it must be.
    pub(crate) async fn see<K: Kind>(
        &self,
        namespace: Option<&str>,
        name: &str,
        is: impl Fn(&K) -> bool,
    ) -> K {
        see(&K::api(&self.client, namespace), name, is).await
    }

    /// Returns as soon as the object is gone.
    pub(crate) async fn gone<K: Kind>(&self, namespace: Option<&str>, name: &str) {
        let api = K::api(&self.client, namespace);
        until(&format!("{name} is gone"), async || {
            api.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }

    pub(crate) async fn delete<K: Kind>(&self, namespace: Option<&str>, name: &str) {
        K::api(&self.client, namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// The claims that are not being deleted, in name order, as soon as there are so many.
    pub(crate) async fn claims(&self, count: usize) -> Vec<api::NodeClaim> {
        let claims: Api<api::NodeClaim> = self.namespaced();
        until(&format!("there are {count} claims"), async || {
            let mut all = claims.list(&Default::default()).await.unwrap().items;
            all.retain(|claim| claim.metadata.deletion_timestamp.is_none());
            (all.len() == count).then_some(all)
        })
        .await
    }

    /// A client of a tenant's own API, once it is online.
    pub(crate) async fn tenant_client(&self, name: &str) -> (Client, String) {
        let tenant: api::VirtualClusterInstance = self
            .see(Some("p-default"), name, |tenant: &api::VirtualClusterInstance| {
                tenant
                    .status
                    .as_ref()
                    .is_some_and(|status| status.phase.as_deref() == Some("Ready"))
            })
            .await;
        let uid = tenant.uid().unwrap();
        (
            self.server.client(&cluster_of(&uid), Identity::administrator()),
            uid,
        )
    }
}

pub(crate) const GROUP: &str = "management.loft.sh/v1";

/// Kinds that tests look at, wherever they live.
pub(crate) trait Kind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize
{
    fn api(client: &Client, namespace: Option<&str>) -> Api<Self>;
}

macro_rules! kinds {
    ($make:ident: $($kind:ty),+) => { $(
        impl Kind for $kind {
            fn api(client: &Client, namespace: Option<&str>) -> Api<Self> {
                kinds!(@$make client, namespace)
            }
        }
    )+ };
    (@here $client:ident, $namespace:ident) => { Api::namespaced($client.clone(), $namespace.unwrap()) };
    (@all $client:ident, $namespace:ident) => {{ assert!($namespace.is_none()); Api::all($client.clone()) }};
}
kinds!(here: api::NodeClaim, api::VirtualClusterInstance, api::Enrollment, k8s_openapi::api::core::v1::Secret);
kinds!(all: api::Project, api::NodeProfile, api::Plugin, k8s_openapi::api::core::v1::Namespace,
    k8s_openapi::api::core::v1::Node, k8s_openapi::api::certificates::v1::CertificateSigningRequest);

pub(crate) async fn see<K: Kind>(api: &Api<K>, name: &str, is: impl Fn(&K) -> bool) -> K {
    let last: Mutex<Option<K>> = Mutex::default();
    let asked = tokio::time::timeout(PATIENCE, async {
        loop {
            let found = api.get_opt(name).await.unwrap();
            if let Some(found) = found {
                if is(&found) {
                    return found;
                }
                *last.lock().unwrap() = Some(found);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    match asked.await {
        Ok(found) => found,
        Err(_) => panic!("{name} never became what it must be: {:#?}", last.lock().unwrap()),
    }
}

pub(crate) async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let asked = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    asked.await.unwrap_or_else(|_| panic!("never: {what}"))
}

pub(crate) fn condition<'a>(conditions: &'a [api::Condition], kind: &str) -> (&'a str, &'a str) {
    api::conditions::find(conditions, kind).map_or(("", ""), |found| {
        (found.status.as_str(), found.reason.as_deref().unwrap_or_default())
    })
}

async fn define(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in api::all_crds() {
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
    }
    until("every definition is established", async || {
        let all = definitions.list(&Default::default()).await.unwrap().items;
        let established = |definition: &CustomResourceDefinition| {
            let status = definition.status.as_ref();
            let mut conditions = status
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten();
            conditions.any(|one| one.type_ == "Established" && one.status == "True")
        };
        all.iter().all(established).then_some(())
    })
    .await;
}

fn cluster_of(uid: &str) -> String {
    format!("tenant-{uid}")
}

/// Each tenant is a logical cluster of the same server.
struct ControlPlanes(Server);

#[async_trait]
impl ControlPlane for ControlPlanes {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        let name = cluster_of(&place.uid);
        if !self.0.clusters().contains(&name) {
            self.0
                .create_cluster(&name)
                .await
                .map_err(|error| Reason::new("NotMade", error.to_string()))?;
            return Ok(State::Pending(Reason::new(
                "Starting",
                "the control plane starts",
            )));
        }
        Ok(State::Online(TenantApi {
            uid: place.uid.clone(),
            client: self.0.client(&name, Identity::host("hostler")),
            join_server: format!(
                "https://{}",
                place.endpoint.as_deref().unwrap_or("127.0.0.1:6443")
            ),
            ca_pem: self.0.ca_pem().to_owned(),
            kubeconfig: Some(format!("kubeconfig of {}", place.name)),
            doubt: None,
        }))
    }

    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason> {
        let name = cluster_of(&place.uid);
        if self.0.clusters().contains(&name) {
            self.0
                .delete_cluster(&name)
                .await
                .map_err(|error| Reason::new("NotRemoved", error.to_string()))?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// Components: a resolver and a policy, no driver.
pub(crate) struct Fakes {
    policy_loaded: Mutex<bool>,
    retained: Mutex<Option<BTreeSet<String>>>,
    states: Mutex<Vec<PluginState>>,
    generation: watch::Sender<u64>,
}

impl Default for Fakes {
    fn default() -> Self {
        Self {
            policy_loaded: Mutex::new(true),
            retained: Mutex::default(),
            states: Mutex::default(),
            generation: watch::Sender::new(1),
        }
    }
}

impl Fakes {
    pub(crate) fn load_policy(&self, loaded: bool) {
        *self.policy_loaded.lock().unwrap() = loaded;
        self.generation.send_modify(|generation| *generation += 1);
    }

    pub(crate) fn show(&self, states: Vec<PluginState>) {
        *self.states.lock().unwrap() = states;
        self.generation.send_modify(|generation| *generation += 1);
    }

    pub(crate) fn retained(&self) -> Option<BTreeSet<String>> {
        self.retained.lock().unwrap().clone()
    }
}

#[async_trait]
impl Plugins for Fakes {
    fn driver(&self, name: &str, _: Option<&str>) -> Result<Arc<dyn Driver>, Failure> {
        Err(Failure::Missing(Reason::new(
            "DriverMissing",
            format!("{name} is not loaded"),
        )))
    }

    fn resolver(&self) -> Result<Arc<dyn Resolver>, Failure> {
        Ok(Arc::new(FirstThatExists))
    }

    fn policies(&self) -> Result<Vec<Arc<dyn Policy>>, Failure> {
        if *self.policy_loaded.lock().unwrap() {
            Ok(vec![Arc::new(Allowlist(vec![
                ("claim".into(), vec!["usage".into()]),
                ("profile-assignment".into(), vec![]),
            ]))])
        } else {
            Err(Failure::Missing(Reason::new(
                "PolicyMissing",
                "policy-allowlist is not loaded",
            )))
        }
    }

    fn states(&self) -> Vec<PluginState> {
        self.states.lock().unwrap().clone()
    }

    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    async fn changed(&self, seen: u64) -> u64 {
        let mut receiver = self.generation.subscribe();
        *receiver
            .wait_for(|now| *now != seen)
            .await
            .expect("the sender lives as long as this")
    }

    fn retain(&self, digests: &BTreeSet<String>) {
        *self.retained.lock().unwrap() = Some(digests.clone());
    }
}

struct FirstThatExists;

#[async_trait]
impl Resolver for FirstThatExists {
    async fn resolve(&self, _: &Subject, candidates: &[Candidate]) -> Result<Resolution, Failure> {
        if let Some(missing) = candidates
            .iter()
            .find(|one| one.source == "explicit" && !one.exists)
        {
            return Err(Failure::Refused(Reason::new(
                "ProfileMissing",
                format!("no profile {}", missing.profile),
            )));
        }
        let chosen = candidates.iter().position(|candidate| candidate.exists);
        Ok(Resolution {
            chosen,
            why: "the first that exists".into(),
        })
    }
}

/// Allows the profiles that the Project lists, all where it lists none; and as many claims as it has a quota for.
struct Allowlist(Vec<(String, Vec<String>)>);

#[async_trait]
impl Policy for Allowlist {
    fn name(&self) -> &str {
        "policy-allowlist"
    }

    fn interests(&self) -> &[(String, Vec<String>)] {
        &self.0
    }

    async fn review(&self, request: &Request) -> Result<Verdict, Failure> {
        let list = request.json["project"]["spec"]["allowedNodeProfiles"].as_array();
        let name = request.json["profile"]["name"].as_str();
        let allowed = match (list, name) {
            (Some(list), Some(name)) => list.iter().any(|entry| entry["name"] == name),
            _ => true,
        };
        let mut reasons = Vec::new();
        if !allowed {
            let reason = Reason::new("ProfileNotAllowed", "the profile is not allowed");
            reasons.push(reason.remedy("add it to allowedNodeProfiles"));
        }
        let quota = request.json["project"]["spec"]["quotas"]["project"]["nodeclaims"]
            .as_str()
            .and_then(|quota| quota.parse().ok());
        let used = request.json["usage"]["project"]["nodeclaims"].as_u64();
        if quota
            .zip(used)
            .is_some_and(|(quota, used): (u64, u64)| used >= quota)
        {
            reasons.push(Reason::new("QuotaExceeded", "the project is full"));
        }
        Ok(Verdict {
            allowed: reasons.is_empty(),
            reasons,
            valid_for: None,
        })
    }
}
