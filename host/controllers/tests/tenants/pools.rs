//! Claims of pools: how many, which, and whether they are accepted.

use hostler_api as api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::house::{GROUP, House, SEED};
use crate::tenants::accepted;

fn quantity(number: i64) -> String {
    format!(
        "privateNodes:\n  enabled: true\n  autoNodes:\n    - provider: metal3\n      static:\n        - name: gpu\n          quantity: {number}\n"
    )
}

fn with_profile(profile: &str) -> String {
    format!("{}          profile: {profile}\n", quantity(1))
}

#[tokio::test]
async fn a_pool_follows_its_quantity() {
    let house = House::open().await;
    for number in [1, 2, 0, 2] {
        house.tenant("one", &quantity(number)).await;
        let number = usize::try_from(number).unwrap();
        house.claims(number).await;
    }
}

#[tokio::test]
async fn a_deleted_claim_is_made_anew_under_another_name_or_uid() {
    let house = House::open().await;
    house.tenant("one", &quantity(1)).await;
    let first = house.claims(1).await.remove(0);
    house
        .delete::<api::NodeClaim>(Some("p-default"), &first.name_any())
        .await;
    let claims: Api<api::NodeClaim> = house.namespaced();
    crate::house::until("another claim stands", async || {
        let all = claims.list(&Default::default()).await.unwrap().items;
        all.into_iter()
            .find(|claim| claim.uid() != first.uid() && claim.metadata.deletion_timestamp.is_none())
    })
    .await;
    house.claims(1).await;
}

#[tokio::test]
async fn ten_thousand_wanted_without_machines_make_five_claims() {
    let house = House::open().await;
    house.tenant("one", &quantity(10_000)).await;
    house.claims(5).await;
    house.tenant("one", &quantity(9_999)).await;
    let full = |tenant: &api::VirtualClusterInstance| {
        tenant.status.as_ref().is_some_and(|status| {
            status
                .pools
                .iter()
                .any(|pool| pool.quantity == 9_999 && pool.claims == 5)
        })
    };
    house.see(Some("p-default"), "one", full).await;
    house.claims(5).await;
}

#[tokio::test]
async fn a_pool_that_cannot_be_served_says_why_and_the_others_go_on() {
    let house = House::open().await;
    let values = "
privateNodes:
  enabled: true
  autoNodes:
    - provider: nowhere
      static: [{name: lost, quantity: 3}]
    - provider: metal3
      static:
        - {name: fine, quantity: 1}
        - {name: pinned, quantity: 1, properties: {metal3.vcluster.com/server-name: gold}}
      dynamic: [{name: burst}]
";
    house.tenant("one", values).await;
    house.claims(1).await;
    let reasons = |tenant: &api::VirtualClusterInstance| -> Vec<String> {
        let pools = tenant.status.clone().unwrap_or_default().pools;
        pools
            .iter()
            .map(|pool| format!("{} {}", pool.name, pool.reason.clone().unwrap_or_default()))
            .collect()
    };
    let told = |tenant: &api::VirtualClusterInstance| {
        let reasons = reasons(tenant);
        [
            "lost UnknownProvider",
            "pinned PropertyNotAllowed",
            "burst NotServedYet",
        ]
        .iter()
        .all(|want| reasons.iter().any(|reason| reason == want))
    };
    let tenant = house.see(Some("p-default"), "one", told).await;
    let conditions = tenant.status.unwrap().conditions;
    assert_eq!(
        crate::house::condition(&conditions, "ValuesServed"),
        ("False", "NotServedYet")
    );
    // Its provider comes later.
    house.apply(json!({"apiVersion": GROUP, "kind": "NodeProvider", "metadata": {"name": "nowhere"}, "spec": {"metal3": {}}})).await;
    house.claims(4).await;
}

#[tokio::test]
async fn what_a_claim_names_must_exist_and_is_judged_again_when_it_comes() {
    let house = House::open().await;
    house
        .tenant("one", &SEED.replace("os-image: ubuntu", "os-image: later"))
        .await;
    let name = house.claims(2).await[0].name_any();
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("False", "OSImageNotFound")
        })
        .await;
    house
        .apply(json!({"apiVersion": GROUP, "kind": "OSImage", "metadata": {"name": "later"}, "spec": {}}))
        .await;
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("True", "Accepted")
        })
        .await;
}

#[tokio::test]
async fn a_profile_that_is_not_allowed_refuses_the_claim_with_its_remedy() {
    let house = House::open().await;
    house.apply(json!({"apiVersion": GROUP, "kind": "NodeProfile", "metadata": {"name": "gpu-training"}, "spec": {}})).await;
    let project = |allowed: serde_json::Value| json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {"allowedNodeProfiles": allowed}});
    house.apply(project(json!([]))).await;
    house.tenant("one", &with_profile("gpu-training")).await;
    let name = house.claims(1).await[0].name_any();
    let claim: api::NodeClaim = house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("False", "ProfileNotAllowed")
        })
        .await;
    let status = claim.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(
        status.message.as_deref(),
        Some("the profile is not allowed; add it to allowedNodeProfiles")
    );
    house.apply(project(json!([{"name": "gpu-training"}]))).await;
    let claim: api::NodeClaim = house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("True", "Accepted")
        })
        .await;
    let profile = claim.status.unwrap().profile.unwrap();
    assert_eq!(
        (profile.name.as_deref(), profile.source.as_deref()),
        (Some("gpu-training"), Some("explicit"))
    );
}

#[tokio::test]
async fn a_claim_that_a_quota_refused_is_accepted_once_another_leaves_room() {
    let house = House::open().await;
    let full = json!({"apiVersion": GROUP, "kind": "Project", "metadata": {"name": "default"}, "spec": {"quotas": {"project": {"nodeclaims": "1"}}}});
    house.apply(full).await;
    house.tenant("one", "privateNodes: {enabled: true}").await;
    for (name, want) in [
        ("first", ("True", "Accepted")),
        ("second", ("False", "QuotaExceeded")),
    ] {
        house
            .apply(json!({"apiVersion": GROUP, "kind": "NodeClaim", "metadata": {"name": name, "namespace": "p-default"},
                "spec": {"providerRef": "metal3", "vClusterRef": "one"}}))
            .await;
        house
            .see(Some("p-default"), name, |claim| accepted(claim) == want)
            .await;
    }
    house.delete::<api::NodeClaim>(Some("p-default"), "first").await;
    house.gone::<api::NodeClaim>(Some("p-default"), "first").await;
    house
        .see(Some("p-default"), "second", |claim| {
            accepted(claim) == ("True", "Accepted")
        })
        .await;
}

#[tokio::test]
async fn without_its_policies_nothing_is_accepted() {
    let house = House::open().await;
    house.plugins.load_policy(false);
    house.tenant("one", &quantity(1)).await;
    let name = house.claims(1).await[0].name_any();
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("False", "PolicyMissing")
        })
        .await;
    house.plugins.load_policy(true);
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("True", "Accepted")
        })
        .await;
}

#[tokio::test]
async fn a_profile_with_a_protected_key_and_a_missing_one_are_refused() {
    let house = House::open().await;
    house.tenant("one", &with_profile("gpu")).await;
    let name = house.claims(1).await[0].name_any();
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("False", "ProfileMissing")
        })
        .await;
    // The definition refuses it today; the profile was stored before it did.
    let definitions: Api<CustomResourceDefinition> = Api::all(house.client.clone());
    let mut definition = definitions.get("nodeprofiles.management.loft.sh").await.unwrap();
    for version in &mut definition.spec.versions {
        let schema = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
            .unwrap();
        let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
        for field in spec.properties.as_mut().unwrap().values_mut() {
            field.x_kubernetes_validations = None;
        }
    }
    definitions
        .replace(
            "nodeprofiles.management.loft.sh",
            &PostParams::default(),
            &definition,
        )
        .await
        .unwrap();
    house
        .apply(
            json!({"apiVersion": GROUP, "kind": "NodeProfile", "metadata": {"name": "gpu"},
            "spec": {"nodeLabels": {"node-restriction.kubernetes.io/x": "y"}}}),
        )
        .await;
    house
        .see(Some("p-default"), &name, |claim| {
            accepted(claim) == ("False", "ProtectedKey")
        })
        .await;
    house
        .see(None, "gpu", |profile: &api::NodeProfile| {
            profile.status.as_ref().is_some_and(|status| {
                crate::house::condition(&status.conditions, "Valid") == ("False", "ProtectedKey")
            })
        })
        .await;
}

#[tokio::test]
async fn a_claim_by_hand_is_marked_judged_and_released_with_its_tenant() {
    let house = House::open().await;
    house.tenant("one", "privateNodes: {enabled: true}").await;
    house.tenant("plain", "").await;
    for (name, tenant, want) in [
        ("mine", json!("one"), ("True", "Accepted")),
        ("alone", json!(null), ("False", "NotServedYet")),
        ("stray", json!("nobody"), ("False", "UnknownTenant")),
        ("shared", json!("plain"), ("False", "PrivateNodesDisabled")),
    ] {
        house
            .apply(json!({"apiVersion": GROUP, "kind": "NodeClaim", "metadata": {"name": name, "namespace": "p-default"},
                "spec": {"providerRef": "metal3", "vClusterRef": tenant}}))
            .await;
        house
            .see(Some("p-default"), name, |claim| accepted(claim) == want)
            .await;
    }
    let claims: Api<api::NodeClaim> = house.namespaced();
    let change = json!({"spec": {"providerRef": "nowhere"}});
    claims
        .patch("mine", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    house
        .see(Some("p-default"), "mine", |claim| {
            accepted(claim) == ("False", "UnknownProvider")
        })
        .await;
    house
        .delete::<api::VirtualClusterInstance>(Some("p-default"), "one")
        .await;
    house
        .gone::<api::VirtualClusterInstance>(Some("p-default"), "one")
        .await;
    house.gone::<api::NodeClaim>(Some("p-default"), "mine").await;
}
