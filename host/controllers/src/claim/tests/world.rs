//! A platform and a tenant on the real API server in memory, toy machines that move, and a host that can be started again.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use hostler_api as api;
use hostler_apiserver::{Identity, Options, Server, Store};
use hostler_core::seams::Reason;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::toy::{MACHINES, Mood, Mortal, Shelf, TOYS, Toy};
use crate::control_plane::{ControlPlane, State, TenantApi, TenantPlace};
use crate::ctx::{Ctx, Settings, SystemClock};

pub(super) const PROJECT: &str = "p-default";
const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

struct NoControlPlane;

#[async_trait]
impl ControlPlane for NoControlPlane {
    async fn ensure(&self, _: &TenantPlace) -> Result<State, Reason> {
        Err(Reason::new("NotHere", "tenants are made by the test"))
    }

    async fn remove(&self, _: &TenantPlace) -> Result<bool, Reason> {
        Ok(true)
    }
}

pub(super) struct World {
    pub(super) server: Server,
    pub(super) client: Client,
    pub(super) tenant: Client,
    pub(super) tenant_uid: String,
    _stop: tokio_util::sync::DropGuard,
}

/// A running host.
pub(super) struct Host {
    pub(super) ctx: Arc<Ctx>,
    stop: CancellationToken,
    loops: Vec<tokio::task::JoinHandle<()>>,
    /// Cancelled once it has written all that it may.
    pub(super) dead: CancellationToken,
}

impl Host {
    /// Ends it; what it was doing is not finished.
    pub(super) async fn kill(self) {
        self.dead.cancel();
        self.stop.cancel();
        for one in self.loops {
            one.abort();
            drop(one.await);
        }
    }
}

pub(super) fn object<K: DeserializeOwned>(json: Value) -> K {
    serde_json::from_value(json).unwrap()
}

/// Asks again until there is an answer.
pub(super) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"))
}

impl World {
    pub(super) async fn open() -> Self {
        let server = Server::open(Options::new(Store::Memory)).unwrap();
        server.create_cluster("tenant").await.unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        let moving = stop.clone();
        let client = server.client("platform", Identity::administrator());
        let tenant = server.client("tenant", Identity::administrator());
        let mut world = Self {
            server,
            client,
            tenant,
            tenant_uid: String::new(),
            _stop: stop.drop_guard(),
        };
        let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
        for definition in api::all_crds().into_iter().chain([toys()]) {
            definitions
                .create(&PostParams::default(), &definition)
                .await
                .unwrap();
        }
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        for name in [PROJECT, MACHINES] {
            let namespace = object(json!({"metadata": {"name": name}}));
            namespaces
                .create(&PostParams::default(), &namespace)
                .await
                .unwrap();
        }
        until("the kinds are served", || async {
            let definitions = definitions.list(&ListParams::default()).await.unwrap();
            let served = |crd: &CustomResourceDefinition| {
                let conditions = crd
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.clone())
                    .unwrap_or_default();
                conditions
                    .iter()
                    .any(|condition| condition.type_ == "Established" && condition.status == "True")
            };
            definitions.items.iter().all(served).then_some(())
        })
        .await;
        let tenants: Api<api::VirtualClusterInstance> = world.namespaced(PROJECT);
        let made = tenants
            .create(
                &PostParams::default(),
                &object(json!({"metadata": {"name": "one"}, "spec": {}})),
            )
            .await;
        world.tenant_uid = made.unwrap().uid().unwrap();
        let providers: Api<api::NodeProvider> = Api::all(world.client.clone());
        let provider = object(
            json!({"metadata": {"name": "toys"}, "spec": {"driver": {"name": "toy", "config": {"namespace": MACHINES}}}}),
        );
        providers.create(&PostParams::default(), &provider).await.unwrap();
        tokio::spawn(run_rack(world.client.clone(), world.tenant.clone(), moving));
        world
    }

    pub(super) fn namespaced<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Starts a host that may write so often.
    pub(super) async fn start(&self, mood: Mood, writes: usize) -> Host {
        let settings = Settings {
            unreachable_after: Duration::ZERO,
            node_deletion_cap: Duration::ZERO,
            ..Settings::default()
        };
        self.start_with(mood, writes, Duration::ZERO, settings).await
    }

    /// Starts a host that may write so often, and hears of changes so late.
    pub(super) async fn start_with(
        &self,
        mood: Mood,
        writes: usize,
        lag: Duration,
        settings: Settings,
    ) -> Host {
        let (stop, dead) = (CancellationToken::new(), CancellationToken::new());
        let left = Arc::new(AtomicUsize::new(writes));
        let way = |cluster: &str| {
            let local = self.server.service(cluster, Identity::administrator());
            Client::new(Mortal::new(local, left.clone(), dead.clone(), lag), "default")
        };
        let plugins = Arc::new(Shelf(Arc::new(Toy { mood })));
        let clock = Arc::new(SystemClock);
        let ctx = Ctx::start(
            way("platform"),
            plugins,
            Arc::new(NoControlPlane),
            clock,
            settings,
            &stop,
        );
        ctx.tenants.insert(
            &self.tenant_uid,
            Arc::new(TenantApi {
                uid: self.tenant_uid.clone(),
                client: way("tenant"),
                join_server: "https://192.168.100.2:8443".to_owned(),
                ca_pem: CA.to_owned(),
                kubeconfig: None,
                doubt: None,
            }),
        );
        ctx.stores.ready().await;
        let loops = vec![
            tokio::spawn(crate::provider::run(ctx.clone(), stop.clone())),
            tokio::spawn(crate::claim::run(ctx.clone(), stop.clone())),
        ];
        Host {
            ctx,
            stop,
            loops,
            dead,
        }
    }

    pub(super) fn machines(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), MACHINES, &toy_resource())
    }

    /// Registers a machine and returns it.
    pub(super) async fn register(&self, name: &str, spec: Value) -> DynamicObject {
        let machine: DynamicObject = object(json!({
            "apiVersion": TOYS, "kind": "ToyMachine",
            "metadata": {"name": name, "annotations": {"toys.example.com/address": "10.0.0.7/24"}},
            "spec": spec,
        }));
        self.machines()
            .create(&PostParams::default(), &machine)
            .await
            .unwrap();
        until("the machine is free", || async {
            let found = self.machines().get(name).await.unwrap();
            (found.data["status"]["state"] == "free").then_some(found)
        })
        .await
    }

    pub(super) async fn machine(&self, name: &str) -> Value {
        serde_json::to_value(self.machines().get(name).await.unwrap()).unwrap()
    }

    /// Makes a claim that is placed on this machine, as the scheduler would.
    pub(super) async fn claim(&self, name: &str, machine: &DynamicObject) -> api::NodeClaim {
        let claims: Api<api::NodeClaim> = self.namespaced(PROJECT);
        let claim = object(json!({
            "metadata": {"name": name, "finalizers": ["hostler.dev/release"]},
            "spec": {"providerRef": "toys", "typeRef": "toys.small", "vClusterRef": "one", "nodeLabels": {"workload": "gpu"}},
        }));
        claims.create(&PostParams::default(), &claim).await.unwrap();
        let place = json!({"status": {"machine": {
            "typeRef": "toys.small",
            "ref": {"apiVersion": TOYS, "kind": "ToyMachine", "namespace": MACHINES, "name": machine.name_any()},
            "uid": machine.uid(),
            "specDigest": hostler_core::order::spec_digest(&claim),
        }}});
        claims
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&place))
            .await
            .unwrap()
    }

    pub(super) async fn find_claim(&self, name: &str) -> Option<api::NodeClaim> {
        self.namespaced::<api::NodeClaim>(PROJECT)
            .get_opt(name)
            .await
            .unwrap()
    }

    pub(super) async fn delete_claim(&self, name: &str) {
        let claims: Api<api::NodeClaim> = self.namespaced(PROJECT);
        drop(claims.delete(name, &DeleteParams::default()).await.unwrap());
    }

    /// Waits for a condition of a claim to have this reason.
    pub(super) async fn reason(&self, name: &str, kind: &str, reason: &str) -> api::NodeClaim {
        until(&format!("{name} has {kind} with reason {reason}"), || async {
            let claim = self.find_claim(name).await?;
            let conditions = &claim.status.as_ref()?.conditions;
            let found = api::conditions::find(conditions, kind)?.reason.clone();
            (found.as_deref() == Some(reason)).then_some(claim)
        })
        .await
    }

    pub(super) async fn phase(&self, name: &str, phase: &str) -> api::NodeClaim {
        until(&format!("{name} is {phase}"), || async {
            let claim = self.find_claim(name).await?;
            (claim.status.as_ref()?.phase.as_deref() == Some(phase)).then_some(claim)
        })
        .await
    }

    pub(super) async fn gone(&self, name: &str) {
        until(&format!("{name} is gone"), || async {
            self.find_claim(name).await.is_none().then_some(())
        })
        .await;
    }

    /// Nothing of any claim is left anywhere but on machines.
    pub(super) async fn is_clean(&self) {
        let ours = ListParams::default().labels(api::names::CLAIM_UID);
        let secrets: Api<Secret> = Api::all(self.client.clone());
        assert_eq!(
            names(&secrets.list(&ours).await.unwrap().items),
            Vec::<String>::new()
        );
        let tokens: Api<Secret> = Api::all(self.tenant.clone());
        assert_eq!(
            names(&tokens.list(&ours).await.unwrap().items),
            Vec::<String>::new()
        );
        let enrollments: Api<api::Enrollment> = Api::all(self.client.clone());
        assert_eq!(
            names(&enrollments.list(&ListParams::default()).await.unwrap().items),
            Vec::<String>::new()
        );
        let nodes: Api<Node> = Api::all(self.tenant.clone());
        assert_eq!(
            names(&nodes.list(&ListParams::default()).await.unwrap().items),
            Vec::<String>::new()
        );
    }
}

/// An object less what a release may change.
pub(super) fn essence(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(key);
    }
    object
}

fn names<K: ResourceExt>(items: &[K]) -> Vec<String> {
    items.iter().map(ResourceExt::name_any).collect()
}

fn toy_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("toys.example.com", "v1", "ToyMachine"),
        "toymachines",
    )
}

fn toys() -> CustomResourceDefinition {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    object(json!({
        "metadata": {"name": "toymachines.toys.example.com"},
        "spec": {
            "group": "toys.example.com", "scope": "Namespaced",
            "names": {"kind": "ToyMachine", "plural": "toymachines", "singular": "toymachine", "listKind": "ToyMachineList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    }))
}

/// Moves every machine one step at a time, and lets those that run join.
async fn run_rack(client: Client, tenant: Client, stop: CancellationToken) {
    let machines: Api<DynamicObject> = Api::namespaced_with(client.clone(), MACHINES, &toy_resource());
    let mut joined = HashSet::new();
    while !stop.is_cancelled() {
        let Ok(all) = machines.list(&ListParams::default()).await else {
            return;
        };
        for machine in all.items {
            let has_image = !machine.data["spec"]["image"].is_null();
            let next = match (
                machine.data["status"]["state"].as_str().unwrap_or_default(),
                has_image,
            ) {
                ("free", true) => "installing",
                ("installing", true) => "running",
                ("running" | "installing", false) => "wiping",
                ("wiping" | "", false) => "free",
                _ => continue_join(&client, &tenant, &machine, &mut joined).await,
            };
            if next == "wiping" {
                joined.remove(&machine.uid());
            }
            if next.is_empty() {
                continue;
            }
            let status = json!({"metadata": {"resourceVersion": machine.resource_version()}, "status": {"state": next}});
            drop(
                machines
                    .patch_status(
                        &machine.name_any(),
                        &PatchParams::default(),
                        &Patch::Merge(&status),
                    )
                    .await,
            );
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// What a kubelet and the host's own approver do together.
async fn continue_join(
    client: &Client,
    tenant: &Client,
    machine: &DynamicObject,
    joined: &mut HashSet<Option<String>>,
) -> &'static str {
    if machine.data["status"]["state"] != "running" || joined.contains(&machine.uid()) {
        return "";
    }
    let name = machine.name_any();
    let enrollments: Api<api::Enrollment> = Api::namespaced(client.clone(), PROJECT);
    let signed = json!({"status": {"approvedRequest": "csr"}});
    let written = enrollments
        .patch_status(
            &format!("one.{name}"),
            &PatchParams::default(),
            &Patch::Merge(&signed),
        )
        .await;
    if written.is_err() {
        return "";
    }
    let nodes: Api<Node> = Api::all(tenant.clone());
    let node = object(json!({"metadata": {"name": name}}));
    drop(nodes.create(&PostParams::default(), &node).await);
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    drop(
        nodes
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&ready))
            .await,
    );
    joined.insert(machine.uid());
    ""
}
