//! Nodes of a tenant: who may join, and what their profile makes of them.

use hostler_api as api;
use hostler_apiserver::{Identity, Role};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::house::{GROUP, House, condition, see, until};

/// A tenant with one reserved node that has not joined.
struct Site {
    house: House,
    tenant: Client,
    uid: String,
}

const VALUES: &str = "privateNodes: {enabled: true, defaultProfile: gpu-training}";

impl Site {
    async fn open() -> Self {
        let house = House::open().await;
        house.tenant("one", VALUES).await;
        let (tenant, uid) = house.tenant_client("one").await;
        Self { house, tenant, uid }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.tenant.clone())
    }

    fn records(&self) -> Api<api::Enrollment> {
        self.house.namespaced()
    }

    /// Reserves a node name by hand, with a token if it has still to join.
    async fn enroll(&self, node: &str, token: Option<&str>) {
        let record: api::Enrollment = serde_json::from_value(json!({
            "apiVersion": "hostler.dev/v1alpha1", "kind": "Enrollment",
            "metadata": {"name": format!("one.{node}")},
            "spec": {"tenant": {"name": "one", "uid": self.uid}, "nodeName": node},
        }))
        .unwrap();
        self.records()
            .create(&PostParams::default(), &record)
            .await
            .unwrap();
        let status = match token {
            Some(id) => json!({"tokenId": id}),
            None => json!({"approvedRequest": "earlier"}),
        };
        if let Some(id) = token {
            let secrets: Api<Secret> = Api::namespaced(self.tenant.clone(), "kube-system");
            let secret: Secret = serde_json::from_value(json!({
                "metadata": {"name": format!("bootstrap-token-{id}"), "labels": {"vcluster.loft.sh/token": "true"}},
                "type": "bootstrap.kubernetes.io/token",
                "stringData": {"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
            }))
            .unwrap();
            secrets.create(&PostParams::default(), &secret).await.unwrap();
        }
        let patch = Patch::Merge(json!({ "status": status }));
        self.records()
            .patch_status(&format!("one.{node}"), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn register(&self, node: Value) {
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
    }

    async fn change(&self, name: &str, change: Value) {
        self.nodes()
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
    }

    async fn ready(&self, name: &str) {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn profile(&self, spec: Value) {
        self.house.apply(json!({"apiVersion": GROUP, "kind": "NodeProfile", "metadata": {"name": "gpu-training"}, "spec": spec})).await;
    }

    fn token_name(id: &str) -> String {
        format!("bootstrap-token-{id}")
    }

    async fn ask(&self, name: &str, token: &str, node: &str) -> CertificateSigningRequest {
        let user = Identity {
            user: format!("system:bootstrap:{token}"),
            groups: vec!["system:bootstrappers".into(), "system:authenticated".into()],
            extra: Default::default(),
            role: Role::Bootstrapper,
        };
        let cluster = format!("tenant-{}", self.uid);
        let requests: Api<CertificateSigningRequest> = Api::all(self.house.server.client(&cluster, user));
        requests
            .create(&PostParams::default(), &request(name, node))
            .await
            .unwrap();
        let all: Api<CertificateSigningRequest> = Api::all(self.tenant.clone());
        see(&all, name, |request: &CertificateSigningRequest| {
            decision(request).is_some()
        })
        .await
    }
}

fn request(name: &str, node: &str) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    let mut request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]},
    }))
    .unwrap();
    request.spec.request = ByteString(pem.into_bytes());
    request
}

fn decision(request: &CertificateSigningRequest) -> Option<(String, String)> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| matches!(one.type_.as_str(), "Approved" | "Denied"))?;
    Some((found.type_.clone(), found.reason.clone().unwrap_or_default()))
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.labels().get(key).map(String::as_str)
}

fn taints(node: &Node) -> Vec<String> {
    let all = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    all.iter()
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .filter(|id| !id.starts_with("node.kubernetes.io/"))
        .collect()
}

fn gpu_training() -> Value {
    json!({
        "nodeLabels": {"workload.vcluster.com/class": "gpu"},
        "nodeAnnotations": {"ops.vcluster.com/owner": "ml-platform"},
        "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "node.vcluster.com/bootstrap", "value": "true", "effect": "NoSchedule"}],
    })
}

#[tokio::test]
async fn a_profile_is_kept_from_the_join_on() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1", "labels": {"foreign": "stays", "vcluster.com/node-profile": "forged"}}})).await;
    let nodes = site.nodes();
    let node = see(&nodes, "n1", |node: &Node| taints(node).len() == 2).await;
    assert_eq!(label(&node, "workload.vcluster.com/class"), Some("gpu"));
    assert_eq!(label(&node, "vcluster.com/node-profile"), Some("gpu-training"));
    assert_eq!(
        label(&node, "node-restriction.kubernetes.io/node-profile"),
        None,
        "a default is not promoted"
    );
    site.ready("n1").await;
    see(&nodes, "n1", |node: &Node| {
        taints(node) == ["nvidia.com/gpu:NoSchedule"]
    })
    .await;
    // An edit arrives by itself, prunes, and leaves what is foreign.
    let mut edited = gpu_training();
    edited["nodeLabels"] = json!({"compliance.vcluster.com/audited": "true"});
    site.profile(edited).await;
    let node = see(&nodes, "n1", |node: &Node| {
        label(node, "compliance.vcluster.com/audited").is_some()
    })
    .await;
    assert_eq!(
        (
            label(&node, "workload.vcluster.com/class"),
            label(&node, "foreign")
        ),
        (None, Some("stays"))
    );
    // What somebody takes away comes back; what another controller adds stays.
    site.change(
        "n1",
        json!({"metadata": {"labels": {"compliance.vcluster.com/audited": null}},
        "spec": {"taints": [{"key": "other", "effect": "NoExecute"}]}}),
    )
    .await;
    let node = see(&nodes, "n1", |node: &Node| taints(node).len() == 2).await;
    assert!(taints(&node).contains(&"other:NoExecute".to_owned()));
    see(&nodes, "n1", |node: &Node| {
        label(node, "compliance.vcluster.com/audited").is_some()
    })
    .await;
}

#[tokio::test]
async fn a_node_in_the_right_state_is_not_written() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    site.ready("n1").await;
    let record: api::Enrollment = see(&site.records(), "one.n1", |record: &api::Enrollment| {
        record
            .status
            .as_ref()
            .is_some_and(|status| status.startup_taints.as_deref() == Some("removed"))
    })
    .await;
    let node = site.nodes().get("n1").await.unwrap();
    // Another node is brought to its state after more changes that concern the first one too.
    site.house.apply(json!({"apiVersion": GROUP, "kind": "NodeProfile", "metadata": {"name": "unrelated"}, "spec": {}})).await;
    site.enroll("n2", None).await;
    site.register(json!({"metadata": {"name": "n2"}})).await;
    see(&site.nodes(), "n2", |node: &Node| !taints(node).is_empty()).await;
    assert_eq!(
        site.nodes().get("n1").await.unwrap().resource_version(),
        node.resource_version()
    );
    assert_eq!(
        site.records().get("one.n1").await.unwrap().resource_version(),
        record.resource_version()
    );
}

#[tokio::test]
async fn a_deleted_profile_takes_its_labels_and_leaves_its_taints() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    site.ready("n1").await;
    let nodes = site.nodes();
    see(&nodes, "n1", |node: &Node| {
        taints(node) == ["nvidia.com/gpu:NoSchedule"]
    })
    .await;
    site.house.delete::<api::NodeProfile>(None, "gpu-training").await;
    let node = see(&nodes, "n1", |node: &Node| {
        label(node, "workload.vcluster.com/class").is_none()
    })
    .await;
    assert_eq!(taints(&node), ["nvidia.com/gpu:NoSchedule"]);
    let told = |project: &api::Project| {
        project.status.as_ref().is_some_and(|status| {
            condition(&status.conditions, "ProfilesAllowed") == ("False", "ProfileRevoked")
        })
    };
    site.house.see(None, "default", told).await;
    site.profile(json!({})).await;
    see(&nodes, "n1", |node: &Node| taints(node).is_empty()).await;
    site.house.see(None, "default", |project| !told(project)).await;
}

#[tokio::test]
async fn a_profile_that_is_no_longer_allowed_is_taken_off_and_comes_back_when_it_is() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    site.ready("n1").await;
    let nodes = site.nodes();
    let has = |node: &Node| label(node, "workload.vcluster.com/class").is_some();
    see(&nodes, "n1", |node: &Node| {
        has(node) && taints(node) == ["nvidia.com/gpu:NoSchedule"]
    })
    .await;
    let allowed = |list: Value| json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {"allowedNodeProfiles": list}});
    site.house.apply(allowed(json!([]))).await;
    let node = see(&nodes, "n1", |node: &Node| !has(node)).await;
    assert_eq!(taints(&node), ["nvidia.com/gpu:NoSchedule"]);
    // While no policy can be asked nothing changes, in either direction.
    site.house.plugins.load_policy(false);
    site.house.apply(allowed(json!([{"name": "gpu-training"}]))).await;
    site.house.plugins.load_policy(true);
    see(&nodes, "n1", has).await;
}

#[tokio::test]
async fn taints_of_another_controller_survive_edits_of_the_profile() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    site.ready("n1").await;
    let nodes = site.nodes();
    see(&nodes, "n1", |node: &Node| !taints(node).is_empty()).await;
    for round in 0..10 {
        let mut edited = gpu_training();
        edited["taints"][0]["value"] = json!(format!("v{round}"));
        site.profile(edited).await;
        // As a careful controller does it: read, add, replace, and again on a conflict.
        until("the other controller's taint is written", async || {
            let mut node = nodes.get("n1").await.unwrap();
            let taint =
                serde_json::from_value(json!({"key": format!("other-{round}"), "effect": "NoSchedule"}))
                    .unwrap();
            node.spec
                .get_or_insert_default()
                .taints
                .get_or_insert_default()
                .push(taint);
            nodes
                .replace("n1", &PostParams::default(), &node)
                .await
                .ok()
                .map(drop)
        })
        .await;
    }
    let node = see(&nodes, "n1", |node: &Node| {
        let all = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        all.iter()
            .any(|taint| taint.key == "nvidia.com/gpu" && taint.value.as_deref() == Some("v9"))
    })
    .await;
    assert_eq!(
        taints(&node).iter().filter(|id| id.starts_with("other-")).count(),
        10,
        "{:?}",
        taints(&node)
    );
}

#[tokio::test]
async fn a_label_that_is_changed_again_and_again_is_contested() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    let nodes = site.nodes();
    let records = site.records();
    let settled = |record: &api::Enrollment| {
        let applied = record.status.as_ref().and_then(|status| status.applied.as_ref());
        applied.is_some_and(|applied| applied.profile.is_some())
    };
    for _ in 0..7 {
        see(&nodes, "n1", |node: &Node| {
            label(node, "workload.vcluster.com/class") == Some("gpu")
        })
        .await;
        see(&records, "one.n1", settled).await;
        site.change(
            "n1",
            json!({"metadata": {"labels": {"workload.vcluster.com/class": "mine"}}}),
        )
        .await;
    }
    // The seventh is put right; the eighth is left.
    see(&nodes, "n1", |node: &Node| {
        label(node, "workload.vcluster.com/class") == Some("gpu")
    })
    .await;
    site.change(
        "n1",
        json!({"metadata": {"labels": {"workload.vcluster.com/class": "mine"}}}),
    )
    .await;
    see(&records, "one.n1", |record: &api::Enrollment| {
        record
            .status
            .as_ref()
            .is_some_and(|status| condition(&status.conditions, "Contested").0 == "True")
    })
    .await;
    let clashes = |profile: &api::NodeProfile| {
        profile
            .status
            .as_ref()
            .is_some_and(|status| status.clashes == Some(1))
    };
    site.house.see(None, "gpu-training", clashes).await;
}

#[tokio::test]
async fn a_node_that_did_not_join_by_the_host_is_left_alone() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", Some("abcdef")).await;
    for name in ["n1", "stranger"] {
        site.register(json!({"metadata": {"name": name}})).await;
    }
    site.enroll("n2", None).await;
    site.register(json!({"metadata": {"name": "n2"}})).await;
    see(&site.nodes(), "n2", |node: &Node| !taints(node).is_empty()).await;
    for name in ["n1", "stranger"] {
        let node = site.nodes().get(name).await.unwrap();
        assert_eq!(
            (taints(&node), label(&node, "vcluster.com/node-profile")),
            (vec![], None),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_node_registered_anew_gets_all_again_but_the_startup_taint() {
    let site = Site::open().await;
    site.profile(gpu_training()).await;
    site.enroll("n1", None).await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    site.ready("n1").await;
    let nodes = site.nodes();
    let first = see(&nodes, "n1", |node: &Node| {
        taints(node) == ["nvidia.com/gpu:NoSchedule"]
    })
    .await;
    see(&site.records(), "one.n1", |record: &api::Enrollment| {
        record
            .status
            .as_ref()
            .is_some_and(|status| status.startup_taints.as_deref() == Some("removed"))
    })
    .await;
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    site.register(json!({"metadata": {"name": "n1"},
        "spec": {"taints": [{"key": "node.vcluster.com/bootstrap", "value": "true", "effect": "NoSchedule"}]}})).await;
    let again = see(&nodes, "n1", |node: &Node| {
        taints(node) == ["nvidia.com/gpu:NoSchedule"]
    })
    .await;
    assert_ne!(first.uid(), again.uid());
    assert_eq!(label(&again, "workload.vcluster.com/class"), Some("gpu"));
}

#[tokio::test]
async fn a_token_joins_the_node_that_was_reserved_for_it_and_only_once() {
    let site = Site::open().await;
    site.enroll("n1", Some("abcdef")).await;
    let request = site.ask("first", "abcdef", "n1").await;
    assert_eq!(decision(&request).unwrap().0, "Approved");
    let record = site.records().get("one.n1").await.unwrap();
    assert_eq!(record.status.unwrap().approved_request, request.uid());
    let second = site.ask("second", "abcdef", "n1").await;
    assert_eq!(decision(&second).unwrap(), ("Denied".into(), "TokenUsed".into()));
    let secrets: Api<Secret> = Api::namespaced(site.tenant.clone(), "kube-system");
    until("the token is gone", async || {
        secrets
            .get_opt(&Site::token_name("abcdef"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn who_asks_for_a_neighbour_is_denied_and_loses_the_token() {
    let site = Site::open().await;
    site.enroll("n1", Some("abcdef")).await;
    site.enroll("n2", Some("ghijkl")).await;
    let request = site.ask("thief", "abcdef", "n2").await;
    assert_eq!(
        decision(&request).unwrap(),
        ("Denied".into(), "NameRefused".into())
    );
    let secrets: Api<Secret> = Api::namespaced(site.tenant.clone(), "kube-system");
    until("the token is gone", async || {
        secrets
            .get_opt(&Site::token_name("abcdef"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    assert!(
        secrets
            .get_opt(&Site::token_name("ghijkl"))
            .await
            .unwrap()
            .is_some()
    );
    see(&site.records(), "one.n1", |record: &api::Enrollment| {
        record
            .status
            .as_ref()
            .is_some_and(|status| condition(&status.conditions, "Enrolled") == ("False", "NameRefused"))
    })
    .await;
}

#[tokio::test]
async fn a_token_of_no_claim_is_denied_and_the_tenants_own_token_stays() {
    let site = Site::open().await;
    let secrets: Api<Secret> = Api::namespaced(site.tenant.clone(), "kube-system");
    let own: Secret = serde_json::from_value(json!({"metadata": {"name": "bootstrap-token-zzzzzz"},
        "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "zzzzzz", "token-secret": "0123456789abcdef"}}))
    .unwrap();
    secrets.create(&PostParams::default(), &own).await.unwrap();
    let request = site.ask("stray", "zzzzzz", "n9").await;
    assert_eq!(
        decision(&request).unwrap(),
        ("Denied".into(), "TokenUnknown".into())
    );
    assert!(secrets.get_opt("bootstrap-token-zzzzzz").await.unwrap().is_some());
}

#[tokio::test]
async fn the_token_of_a_node_that_has_joined_is_taken_away() {
    let site = Site::open().await;
    site.enroll("n1", Some("abcdef")).await;
    site.ask("first", "abcdef", "n1").await;
    site.register(json!({"metadata": {"name": "n1"}})).await;
    let secrets: Api<Secret> = Api::namespaced(site.tenant.clone(), "kube-system");
    until("the token is gone", async || {
        secrets
            .get_opt(&Site::token_name("abcdef"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}
