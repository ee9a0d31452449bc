//! A claim that its user changes between its placing and its order: what is ordered is what was judged.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use hostler_api as api;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Place, delete_claim, server};
use crate::crashes::{claims, delete_tenant, phase, so_many_available, told};
use crate::harness::fault::Moment;
use crate::harness::{Fault, World, eventually, root};

/// A second provider, with types of the same short names and no machines; the project allows the types of the first one alone.
async fn forbidden(world: &World) {
    let first = std::fs::read_to_string(root().join("examples/01-lab/provider.yaml")).unwrap();
    let second = first
        .replace("name: metal3\n", "name: forbidden\n")
        .replace("role: ", "role: no-");
    world.apply(&second).await;
    let project = json!({
        "apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": "default"},
        "spec": {"displayName": "Default", "allowedNodeTypes": [{"name": "metal3.*"}]},
    });
    world.apply(&project.to_string()).await;
    eventually("the second provider's types are there", || async {
        let types: Api<api::NodeType> = Api::all(world.client.clone());
        let found = types
            .get_opt("forbidden.gpu-server")
            .await
            .map_err(|error| error.to_string())?;
        found.map(drop).ok_or("no forbidden.gpu-server".to_owned())
    })
    .await;
}

/// Changes the claim; a server knows a moment after it has stored a definition that the rule against it is gone.
async fn change(client: &Client, change: &Value) {
    let all: Api<api::NodeClaim> = Api::namespaced(client.clone(), "p-default");
    eventually("the change is taken", || async {
        let taken = all
            .patch("wish", &PatchParams::default(), &Patch::Merge(change))
            .await;
        taken.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// A host whose claim `wish` is changed as soon as it is placed, once.
fn changed_once_placed(world: &World, to: Value) -> Arc<Fault> {
    let client = world.client.clone();
    let done = Arc::new(OnceLock::new());
    Fault::meddled(Box::new(move |moment, line| {
        let is_told = moment == Moment::After && line.ends_with("/nodeclaims/wish/status");
        let (client, done, to) = (client.clone(), done.clone(), to.clone());
        async move {
            if !is_told || done.get().is_some() {
                return;
            }
            let all: Api<api::NodeClaim> = Api::namespaced(client.clone(), "p-default");
            if all.get("wish").await.unwrap().machine().is_some() && done.set(()).is_ok() {
                change(&client, &to).await;
            }
        }
        .boxed()
    }))
}

/// The claims' definition as it is, or without the rules that keep a claim from being changed so.
async fn define(world: &World, strict: bool) {
    let definition = api::NodeClaim::crd();
    let definition = if strict {
        definition
    } else {
        crate::definitions::loosened(&definition)
    };
    hostler_cli::wire::install(&world.client, vec![definition])
        .await
        .unwrap();
}

/// A claim is changed so as soon as it is placed, under its definition or one without rules: it gives its place up before the machine was
/// taken, and waits for this reason.
async fn is_placed_again(to: Value, strict: bool, reason: &str) {
    let place = Place::new(1).await;
    let fault = changed_once_placed(&place.world, json!({"spec": to}));
    let host = place.world.host_behind(&fault).await;
    forbidden(&place.world).await;
    if !strict {
        define(&place.world, false).await;
    }
    place.wishes(&json!({})).await;
    eventually("the claim waits, as changed", || async {
        let claim = claims(&place.world).await?.pop().ok_or("no claim")?;
        let told_now = claim.status.as_ref().and_then(|status| status.reason.as_deref());
        let spec = serde_json::to_value(&claim.spec).unwrap();
        let is_changed = to
            .as_object()
            .unwrap()
            .iter()
            .all(|(field, value)| spec.get(field).unwrap_or(&Value::Null) == value);
        if is_changed && claim.machine().is_none() && told_now == Some(reason) {
            Ok(())
        } else {
            Err(told(&claim))
        }
    })
    .await;
    let machine = place.hosts[&server(1)]["metadata"]["uid"].as_str().unwrap();
    assert_eq!(place.history.borrowers(machine), [""; 0]);
    delete_claim(&place.world, "wish").await;
    // The machine is free for whoever comes next.
    place.wants(1).await;
    so_many_available(&place.world, 1).await;
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_changed_once_it_is_placed_is_judged_and_placed_again() {
    let to = json!({"requirements": [{"key": "vcluster.com/node-type", "operator": "In", "values": ["cpu-server"]}]});
    is_placed_again(to, true, "NoCapacity").await;
}

/// Claims that were changed before the rules were there that refuse it now. Not on real clusters: a definition that is changed ends the
/// watches of its kind there, and with them the history.
mod earlier {
    use super::*;

    #[rstest]
    #[case::another_provider(json!({"providerRef": "forbidden", "typeRef": null}), "TypeNotAllowed")]
    #[case::another_provider_and_a_type_of_it(json!({"providerRef": "forbidden", "typeRef": "forbidden.gpu-server"}), "TypeNotAllowed")]
    #[case::another_type(json!({"typeRef": "metal3.cpu-server"}), "NoCapacity")]
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_ordered_is_what_was_judged(#[case] to: Value, #[case] reason: &str) {
        is_placed_again(to, false, reason).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_that_names_another_provider_than_its_machines_holds_nobody_up() {
        let place = Place::new(2).await;
        let host = place.world.host().await;
        forbidden(&place.world).await;
        place.wishes(&json!({})).await;
        so_many_available(&place.world, 1).await;
        define(&place.world, false).await;
        let to = json!({"spec": {"providerRef": "forbidden", "typeRef": null}});
        change(&place.world.client, &to).await;
        define(&place.world, true).await;
        place.wants(1).await;
        so_many_available(&place.world, 2).await;
        let all = claims(&place.world).await.unwrap();
        let wish = all.iter().find(|claim| claim.name_any() == "wish").unwrap();
        assert_eq!(
            (phase(wish), wish.type_ref(), wish.spec.provider_ref.as_str()),
            ("Available", None, "forbidden"),
            "what it holds stays, and is not shown as a type of another provider"
        );
        delete_claim(&place.world, "wish").await;
        delete_tenant(&place.world, "one").await;
        place.is_as_before().await;
        host.stop().await;
    }
}
