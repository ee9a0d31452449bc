//! A tenant comes, is refused, and goes.

use hostler_api as api;
use hostler_api::names;
use hostler_core::seams::{PluginState, Reason};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::house::{GROUP, House, SEED, condition, until};

fn phase(tenant: &api::VirtualClusterInstance) -> (&str, &str) {
    let status = tenant.status.as_ref();
    (
        status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default(),
        status
            .and_then(|status| status.reason.as_deref())
            .unwrap_or_default(),
    )
}

#[tokio::test]
async fn the_tenant_of_the_seed_gets_its_place_its_kubeconfig_and_its_claims() {
    let house = House::open().await;
    house.tenant("one", SEED).await;
    let claims = house.claims(2).await;
    let tenant: api::VirtualClusterInstance = house
        .see(
            Some("p-default"),
            "one",
            |tenant: &api::VirtualClusterInstance| {
                tenant
                    .status
                    .as_ref()
                    .is_some_and(|status| status.pools.iter().map(|pool| pool.claims).sum::<i64>() == 2)
            },
        )
        .await;
    assert_eq!(phase(&tenant).0, "Ready");
    let status = tenant.status.clone().unwrap();
    for (kind, want) in [
        ("VirtualClusterDeployed", "True"),
        ("VirtualClusterOnline", "True"),
        ("VirtualClusterReady", "True"),
        ("NodesProvisioned", "False"),
    ] {
        assert_eq!(condition(&status.conditions, kind).0, want, "{kind}");
    }
    assert_eq!(status.join_address.as_deref(), Some("https://192.168.100.2:8443"));
    assert!(tenant.finalizers().contains(&names::TENANT_FINALIZER.to_owned()));
    let namespace: Namespace = house.find(None, "loft-default-v-one").await;
    assert_eq!(namespace.labels()[names::TENANT_UID], tenant.uid().unwrap());
    let secret: Secret = house.find(Some("loft-default-v-one"), "vc-one").await;
    assert_eq!(secret.data.unwrap()["config"].0, b"kubeconfig of one");
    for claim in &claims {
        assert!(
            claim.name_any().starts_with("one-") && claim.name_any().len() == 9,
            "{}",
            claim.name_any()
        );
        assert!(claim.finalizers().contains(&names::CLAIM_FINALIZER.to_owned()));
        let name = claim.name_any();
        house
            .see(Some("p-default"), &name, |claim: &api::NodeClaim| {
                accepted(claim) == ("True", "Accepted")
            })
            .await;
    }
}

pub(crate) fn accepted(claim: &api::NodeClaim) -> (&str, &str) {
    claim
        .status
        .as_ref()
        .map_or(("", ""), |status| condition(&status.conditions, "Accepted"))
}

#[tokio::test]
async fn a_typo_orders_nothing_says_where_and_leaves_live_claims_alone() {
    let house = House::open().await;
    let typo = SEED.replace(
        "nodeTypeSelector:\n            - property: vcluster.com/node-type\n              value: cpu",
        "nodeTypeSelectr:\n            - property: vcluster.com/node-type\n              value: cpu",
    );
    house.tenant("one", &typo).await;
    let refused = |tenant: &api::VirtualClusterInstance| phase(tenant) == ("Failed", "InvalidValues");
    let tenant = house.see(Some("p-default"), "one", refused).await;
    let message = tenant.status.unwrap().message.unwrap();
    assert!(
        message.contains("privateNodes.autoNodes[0].static[1].nodeTypeSelectr: unknown field, did you mean nodeTypeSelector"),
        "{message}"
    );
    house.claims(0).await;
    house.tenant("one", SEED).await;
    let before = house.claims(2).await;
    house.tenant("one", &typo).await;
    house.see(Some("p-default"), "one", refused).await;
    let after = house.claims(2).await;
    let uids = |claims: &[api::NodeClaim]| claims.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    assert_eq!(uids(&before), uids(&after));
}

#[tokio::test]
async fn a_place_that_is_taken_is_not_touched() {
    let house = House::open().await;
    house.tenant("one", SEED).await;
    house.claims(2).await;
    let values = SEED.replace("192.168.100.2", "192.168.100.3");
    house.tenant_at("two", &values, "loft-default-v-one").await;
    let taken = |tenant: &api::VirtualClusterInstance| phase(tenant) == ("Failed", "TenantRefTaken");
    let two = house.see(Some("p-default"), "two", taken).await;
    let message = two.status.unwrap().message.unwrap();
    assert!(
        !message.contains("p-default") && !message.contains(" one"),
        "nothing of the other tenant: {message}"
    );
    let secrets: Api<Secret> = Api::namespaced(house.client.clone(), "loft-default-v-one");
    assert!(secrets.get_opt("vc-two").await.unwrap().is_none());
    for foreign in ["kube-system", "p-default", "p-other", "default"] {
        let name = format!("in-{foreign}");
        house.tenant_at(&name, "", foreign).await;
        house.see(Some("p-default"), &name, taken).await;
    }
    house.tenant_at("three", SEED, "loft-default-v-three").await;
    house
        .see(
            Some("p-default"),
            "three",
            |tenant: &api::VirtualClusterInstance| phase(tenant) == ("Failed", "EndpointTaken"),
        )
        .await;
    // A refused tenant goes without a trace, and takes nothing of the other's with it.
    house
        .delete::<api::VirtualClusterInstance>(Some("p-default"), "two")
        .await;
    house
        .gone::<api::VirtualClusterInstance>(Some("p-default"), "two")
        .await;
    house.find::<Secret>(Some("loft-default-v-one"), "vc-one").await;
    house.claims(2).await;
}

#[tokio::test]
async fn another_cluster_and_another_place_are_refused() {
    let house = House::open().await;
    house
        .apply(json!({
            "apiVersion": GROUP, "kind": "VirtualClusterInstance", "metadata": {"name": "far", "namespace": "p-default"},
            "spec": {"clusterRef": {"cluster": "elsewhere"}},
        }))
        .await;
    house
        .see(
            Some("p-default"),
            "far",
            |tenant: &api::VirtualClusterInstance| phase(tenant) == ("Failed", "UnknownCluster"),
        )
        .await;
    house
        .apply(json!({
            "apiVersion": GROUP, "kind": "VirtualClusterInstance", "metadata": {"name": "moves", "namespace": "p-default"},
            "spec": {},
        }))
        .await;
    house.find::<Namespace>(None, "loft-default-v-moves").await;
    house.tenant_at("moves", "", "loft-default-v-else").await;
    house
        .see(
            Some("p-default"),
            "moves",
            |tenant: &api::VirtualClusterInstance| phase(tenant) == ("Failed", "TenantRefChanged"),
        )
        .await;
}

#[tokio::test]
async fn a_deleted_tenant_takes_its_claims_its_control_plane_and_its_namespace_along() {
    let house = House::open().await;
    house.tenant("one", SEED).await;
    house.claims(2).await;
    let (_, uid) = house.tenant_client("one").await;
    house
        .delete::<api::VirtualClusterInstance>(Some("p-default"), "one")
        .await;
    house
        .gone::<api::VirtualClusterInstance>(Some("p-default"), "one")
        .await;
    house.claims(0).await;
    assert!(!house.server.clusters().contains(&format!("tenant-{uid}")));
    house.gone::<Namespace>(None, "loft-default-v-one").await;
    // Made again under its old name it is another one.
    house.tenant("one", SEED).await;
    house.claims(2).await;
    assert_ne!(house.tenant_client("one").await.1, uid);
}

#[tokio::test]
async fn deleting_the_projects_namespace_ends_and_it_comes_back_empty() {
    let house = House::open().await;
    house.tenant("one", SEED).await;
    house.claims(2).await;
    let before: Namespace = house.find(None, "p-default").await;
    house.delete::<Namespace>(None, "p-default").await;
    house
        .see(None, "p-default", |namespace: &Namespace| {
            namespace.uid() != before.uid()
        })
        .await;
    house.claims(0).await;
    house.gone::<Namespace>(None, "loft-default-v-one").await;
}

#[tokio::test]
async fn a_deleted_project_takes_its_namespace_along_unless_somebody_else_made_it() {
    let house = House::open().await;
    house
        .apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "p-mine"}}))
        .await;
    house
        .apply(json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "mine"}, "spec": {}}))
        .await;
    house
        .see(None, "p-mine", |namespace: &Namespace| {
            namespace.labels().contains_key(names::PROJECT)
        })
        .await;
    for name in ["mine", "default"] {
        house.delete::<api::Project>(None, name).await;
        house.gone::<api::Project>(None, name).await;
    }
    let kept: Namespace = house.find(None, "p-mine").await;
    assert!(kept.metadata.deletion_timestamp.is_none() && !kept.labels().contains_key(names::PROJECT));
    house.gone::<Namespace>(None, "p-default").await;
}

#[tokio::test]
async fn the_projects_default_is_shown_on_the_tenant() {
    let house = House::open().await;
    house.tenant("one", "").await;
    let project = |default: Option<&str>| json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {"defaultNodeProfile": default}});
    house.apply(project(Some("gpu"))).await;
    let shown = |tenant: &api::VirtualClusterInstance| {
        tenant.annotations().get(names::PROJECT_DEFAULT_PROFILE).cloned()
    };
    house
        .see(Some("p-default"), "one", |tenant| {
            shown(tenant).as_deref() == Some("gpu")
        })
        .await;
    house
        .apply(json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {}}))
        .await;
    house
        .see(Some("p-default"), "one", |tenant| shown(tenant).is_none())
        .await;
}

#[tokio::test]
async fn the_kubeconfig_comes_back_when_somebody_takes_it_away_or_changes_it() {
    let house = House::open().await;
    house.tenant("one", "").await;
    let place = Some("loft-default-v-one");
    let right = |secret: &Secret| {
        secret
            .data
            .as_ref()
            .is_some_and(|data| data["config"].0 == b"kubeconfig of one")
    };
    let first: Secret = house.see(place, "vc-one", right).await;
    house.delete::<Secret>(place, "vc-one").await;
    house
        .see(place, "vc-one", |secret| {
            right(secret) && secret.uid() != first.uid()
        })
        .await;
    house
        .apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vc-one", "namespace": "loft-default-v-one"},
            "stringData": {"config": "another"}}))
        .await;
    house.see(place, "vc-one", right).await;
}

#[tokio::test]
async fn components_are_shown_as_they_stand() {
    let house = House::open().await;
    let state = PluginState {
        name: "driver-metal3".into(),
        serving: Some("sha256:aa".into()),
        on_disk: Some("sha256:aa".into()),
        world: Some("machine-driver@0.1.0".into()),
        size: Some(64_000),
        grant: json!({"kinds": []}),
        healthy: true,
        error: None,
        faults: 0,
    };
    house.plugins.show(vec![state.clone()]);
    let healthy = |plugin: &api::Plugin| {
        plugin
            .status
            .as_ref()
            .map_or(("", ""), |status| condition(&status.conditions, "Healthy"))
            .0
            == "True"
    };
    house.see(None, "driver-metal3", healthy).await;
    let broken = PluginState {
        on_disk: Some("sha256:bb".into()),
        healthy: false,
        error: Some(Reason::new("InvalidComponent", "not a component")),
        ..state
    };
    house.plugins.show(vec![broken]);
    let plugin: api::Plugin = house.see(None, "driver-metal3", |plugin| !healthy(plugin)).await;
    let status = plugin.status.unwrap();
    assert_eq!(
        condition(&status.conditions, "Healthy"),
        ("False", "InvalidComponent")
    );
    assert_eq!(condition(&status.conditions, "Loaded").0, "True");
    assert_eq!(status.digest.as_deref(), Some("sha256:aa"));
    house.plugins.show(vec![]);
    house.gone::<api::Plugin>(None, "driver-metal3").await;
    until("live orders are told", async || {
        house
            .plugins
            .retained()
            .filter(std::collections::BTreeSet::is_empty)
    })
    .await;
}

/// Everything of the seed's tenant that must be there in the end, and nothing twice.
async fn complete(house: &House) {
    for claim in house.claims(2).await {
        house
            .see(Some("p-default"), &claim.name_any(), |claim| {
                accepted(claim) == ("True", "Accepted")
            })
            .await;
    }
    house.find::<Secret>(Some("loft-default-v-one"), "vc-one").await;
    let full = |tenant: &api::VirtualClusterInstance| {
        phase(tenant).0 == "Ready"
            && tenant
                .status
                .as_ref()
                .is_some_and(|status| status.pools.iter().all(|pool| pool.claims == 1))
    };
    house.see(Some("p-default"), "one", full).await;
    let tenants: Api<Namespace> = Api::all(house.client.clone());
    let marked = kube::api::ListParams::default().labels(names::TENANT_UID);
    assert_eq!(tenants.list(&marked).await.unwrap().items.len(), 1);
}

/// Runs a story for a host that stops after its first write, its second, and so on, until one comes to its end before. A story tells
/// whether its host stopped. (Side by side: they wait far more than they work.)
async fn after_each_write(fewest: usize, story: impl AsyncFn(usize) -> bool) {
    const AT_ONCE: usize = 8;
    let mut limit = 0;
    loop {
        let stopped = futures::future::join_all((1..=AT_ONCE).map(|step| story(limit + step))).await;
        limit += stopped.iter().filter(|stopped| **stopped).count();
        if stopped.contains(&false) {
            assert!(limit >= fewest, "it takes more than {limit} writes");
            return;
        }
    }
}

#[tokio::test]
async fn a_host_that_stops_after_any_of_its_writes_is_followed_by_one_that_ends_at_the_same_place() {
    after_each_write(10, async |limit| {
        let house = House::empty().await;
        // The host may be dead before it made the project's namespace: so it is there.
        house
            .apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "p-default"}}))
            .await;
        house.furnish().await;
        house.tenant("one", SEED).await;
        let (first, writes) = house.start(Some(limit));
        let stopped = tokio::select! {
            () = writes.ended() => true,
            () = complete(&house) => false,
        };
        first.cancel();
        let (second, _) = house.start(None);
        complete(&house).await;
        house
            .delete::<api::VirtualClusterInstance>(Some("p-default"), "one")
            .await;
        house
            .gone::<api::VirtualClusterInstance>(Some("p-default"), "one")
            .await;
        house.claims(0).await;
        second.cancel();
        stopped
    })
    .await;
}

#[tokio::test]
async fn a_host_that_stops_after_any_write_of_a_deletion_is_followed_by_one_that_ends_it() {
    after_each_write(3, async |limit| {
        let house = House::open().await;
        house.tenant("one", SEED).await;
        complete(&house).await;
        let house = house.dead();
        house
            .delete::<api::VirtualClusterInstance>(Some("p-default"), "one")
            .await;
        let (first, writes) = house.start(Some(limit));
        let stopped = tokio::select! {
            () = writes.ended() => true,
            () = house.gone::<api::VirtualClusterInstance>(Some("p-default"), "one") => false,
        };
        first.cancel();
        let (second, _) = house.start(None);
        house
            .gone::<api::VirtualClusterInstance>(Some("p-default"), "one")
            .await;
        house.claims(0).await;
        house.gone::<Namespace>(None, "loft-default-v-one").await;
        second.cancel();
        stopped
    })
    .await;
}
