//! The host ends after each of its writes in turn, or loses the answer of one; the next host must reach the same place.

use std::collections::BTreeMap;

use hostler_api as api;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::harness::fault::Ends;
use crate::harness::{Fault, World, eventually};

/// A host as it must be again after release: all but status and what the server counts.
pub(crate) fn essence(host: &DynamicObject) -> Value {
    let mut whole = serde_json::to_value(host).unwrap();
    whole.as_object_mut().unwrap().remove("status");
    let metadata = whole["metadata"].as_object_mut().unwrap();
    for counted in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(counted);
    }
    whole
}

/// The hosts once they are free, settled and known.
pub(crate) async fn free_hosts(world: &World) -> BTreeMap<String, Value> {
    eventually("both hosts are available and off", || async {
        let hosts = world.hosts().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let busy: Vec<String> = hosts
            .iter()
            .filter(|host| {
                host.data.pointer("/status/provisioning/state").and_then(Value::as_str) != Some("available")
                    || host.data.pointer("/status/poweredOn").and_then(Value::as_bool) != Some(false)
                    || host.data.pointer("/spec/consumerRef").is_some_and(|one| !one.is_null())
            })
            .map(|host| format!("{} {}", host.name_any(), host.data))
            .collect();
        if busy.is_empty() && hosts.items.len() == 2 {
            Ok(hosts.iter().map(|host| (host.name_any(), essence(host))).collect())
        } else {
            Err(busy.join("\n"))
        }
    })
    .await
}

/// Both claims are Available and both nodes Ready.
pub(crate) async fn all_available(world: &World) {
    eventually("two claims Available", || async {
        let claims: Api<api::NodeClaim> = Api::all(world.client.clone());
        let claims = claims.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let phases: Vec<_> = claims
            .iter()
            .map(|claim| {
                let status = claim.status.clone().unwrap_or_default();
                format!("{} {:?} {:?} {:?}", claim.name_any(), status.phase, status.reason, status.message)
            })
            .collect();
        let available = claims
            .iter()
            .filter(|claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available"))
            .count();
        if available == 2 && claims.items.len() == 2 { Ok(()) } else { Err(phases.join("\n")) }
    })
    .await;
}

/// Nothing of a tenant is left on the platform.
pub(crate) async fn nothing_left(world: &World) {
    eventually("no claim, enrollment, boot secret or cluster is left", || async {
        let all = ListParams::default();
        let text = |error: kube::Error| error.to_string();
        let claims = Api::<api::NodeClaim>::all(world.client.clone()).list(&all).await.map_err(text)?;
        let tenants =
            Api::<api::VirtualClusterInstance>::all(world.client.clone()).list(&all).await.map_err(text)?;
        let enrollments = Api::<api::Enrollment>::all(world.client.clone()).list(&all).await.map_err(text)?;
        let secrets = Api::<Secret>::namespaced(world.client.clone(), "default").list(&all).await.map_err(text)?;
        let secrets: Vec<_> =
            secrets.iter().map(ResourceExt::name_any).filter(|name| !name.ends_with("-bmc")).collect();
        let left = (claims.items.len(), tenants.items.len(), enrollments.items.len(), secrets.len());
        let clusters = world.server.clusters().len();
        if left == (0, 0, 0, 0) && clusters == 1 {
            Ok(())
        } else {
            Err(format!("claims, tenants, enrollments, secrets: {left:?} {secrets:?}; clusters: {clusters}"))
        }
    })
    .await;
}

async fn delete_tenant(world: &World) {
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(world.client.clone(), "p-default");
    match tenants.delete("one", &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => panic!("{error}"),
    }
}

/// Provision and release, the first host ending as told in one of them; the second one goes on.
async fn life(on_the_way_out: Ends, on_the_way_back: Ends) -> (Vec<String>, Vec<String>) {
    let world = World::new().await;
    let out = Fault::new(on_the_way_out);
    let host = world.host_behind(&out).await;
    world.example().await;
    let before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    let host = if on_the_way_out == Ends::Never {
        host
    } else {
        eventually("the first host ends, or had nothing more to write", || async {
            let claims: Api<api::NodeClaim> = Api::all(world.client.clone());
            let done = claims.list(&ListParams::default()).await.is_ok_and(|claims| {
                claims.items.len() == 2
                    && claims.iter().all(|claim| {
                        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
                    })
            });
            if out.has_struck() || done { Ok(()) } else { Err(out.log().join("\n")) }
        })
        .await;
        host.stop().await;
        world.host().await
    };
    all_available(&world).await;
    let nodes: Api<Node> = Api::all(world.tenant("one").expect("the tenant has a cluster"));
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 2);

    host.stop().await;
    let back = Fault::new(on_the_way_back);
    let host = world.host_behind(&back).await;
    delete_tenant(&world).await;
    let host = if on_the_way_back == Ends::Never {
        host
    } else {
        eventually("the host ends on the way back, or is done", || async {
            let claims: Api<api::NodeClaim> = Api::all(world.client.clone());
            let left = claims.list(&ListParams::default()).await.map_or(1, |claims| claims.items.len());
            if back.has_struck() || left == 0 { Ok(()) } else { Err(back.log().join("\n")) }
        })
        .await;
        host.stop().await;
        world.host().await
    };
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, before, "the hosts are byte for byte what they were");
    host.stop().await;
    (out.log(), back.log())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_comes_and_goes_and_leaves_the_hosts_as_they_were() {
    life(Ends::Never, Ends::Never).await;
}
