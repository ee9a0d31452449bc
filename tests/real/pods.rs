//! The seed's four pods on a real tenant: kube-scheduler places them by what the nodes announce, kwok keeps the nodes and moves the
//! pods along.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{nodes, ready, tenant};
use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::{World, eventually, root};
use crate::kubernetes::KEPT;

/// From here on a node is kwok's: its kubelet, which would never be Ready, has registered it and is done.
async fn hand_to_kwok(tenant: &Client, node: &str) {
    let leases: Api<Lease> = Api::namespaced(tenant.clone(), "kube-node-lease");
    // The kubelet's first lease says that somebody else keeps the node.
    eventually(&format!("the first lease of {node}"), || async {
        leases
            .delete(node, &DeleteParams::default())
            .await
            .map_err(|error| error.to_string())
    })
    .await;
    let nodes: Api<Node> = Api::all(tenant.clone());
    let mark = json!({"metadata": {"annotations": {KEPT.0: KEPT.1}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&mark))
        .await
        .unwrap();
}

/// Who holds a node's lease, and since when.
async fn lease(tenant: &Client, node: &str) -> Result<(String, String), String> {
    let leases: Api<Lease> = Api::namespaced(tenant.clone(), "kube-node-lease");
    let lease = leases.get(node).await.map_err(|error| error.to_string())?;
    let spec = lease.spec.ok_or("a lease without a holder")?;
    let renewed = spec.renew_time.map(|time| time.0.to_string());
    Ok((
        spec.holder_identity.unwrap_or_default(),
        renewed.unwrap_or_default(),
    ))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn the_seeds_four_pods_go_where_the_seed_says() {
    let mut lab = hostler_lab::Options::instant();
    // Kubelets register and report that they are not ready; the rest of a node's life is kwok's.
    lab.times.ready = Duration::from_secs(36_000);
    lab.pods = false;
    let world = World::with(lab).await;
    let host = world.host().await;
    world.example().await;
    free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    let tenant = tenant(&world, "one").await;
    for node in nodes(&tenant, 2).await.values() {
        assert_eq!(ready(node).map(|told| told.0), Some("False"), "{node:?}");
        let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        assert!(
            taints
                .iter()
                .any(|taint| taint.key == "node.kubernetes.io/not-ready"),
            "{taints:?}"
        );
    }
    for node in ["bare-metal-1", "bare-metal-2"] {
        hand_to_kwok(&tenant, node).await;
    }
    // Started last: a node that is marked while kwok starts falls between its list and its watch.
    world.stack.start_kwok("one");
    all_available(&world).await;
    for (name, node) in nodes(&tenant, 2).await {
        assert_eq!(
            ready(&node),
            Some(("True", "KubeletReady", "kept by kwok")),
            "{name}"
        );
        let (holder, renewed) = eventually(&format!("kwok renews the lease of {name}"), || {
            lease(&tenant, &name)
        })
        .await;
        assert_ne!(holder, name, "the lease is not the kubelet's");
        eventually(&format!("the lease of {name} is renewed"), || async {
            match lease(&tenant, &name).await? {
                (who, when) if who == holder && when > renewed => Ok(()),
                other => Err(format!("{other:?} after {renewed}")),
            }
        })
        .await;
    }

    let gpus = |node: &Node| {
        let status = node.status.clone().unwrap_or_default();
        status
            .allocatable
            .unwrap_or_default()
            .get("nvidia.com/gpu")
            .map(|amount| amount.0.clone())
    };
    let machines = nodes(&tenant, 2).await;
    assert_eq!(gpus(&machines["bare-metal-2"]), Some("4".to_owned()));
    assert_eq!(gpus(&machines["bare-metal-1"]), None);

    world.stack.start_scheduler("one");
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), "default");
    let text = std::fs::read_to_string(root().join("examples/03-gpu-pods/pods.yaml")).unwrap();
    for document in text.split("\n---\n") {
        let pod: Value = serde_saphyr::from_str(document).unwrap();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let wanted = [
        "cpu-only bare-metal-1 Running",
        "gpu-ok bare-metal-2 Running",
        "gpu-smi bare-metal-2 Succeeded",
        "gpu-too-big <none> Pending",
    ];
    eventually("the pods are where the seed has them", || async {
        let all = pods
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let mut seen: Vec<String> = all
            .iter()
            .map(|pod| {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
                let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
                format!(
                    "{} {} {}",
                    pod.name_any(),
                    node.unwrap_or_else(|| "<none>".to_owned()),
                    phase.unwrap_or_default()
                )
            })
            .collect();
        seen.sort();
        if seen == wanted {
            Ok(())
        } else {
            Err(seen.join(", "))
        }
    })
    .await;
    let events: Api<Event> = Api::namespaced(tenant.clone(), "default");
    let told = eventually("the scheduler says why", || async {
        let all = events
            .list(&ListParams::default().fields("involvedObject.name=gpu-too-big,reason=FailedScheduling"))
            .await
            .map_err(|error| error.to_string())?;
        all.items
            .first()
            .and_then(|event| event.message.clone())
            .ok_or_else(|| "no event".to_owned())
    })
    .await;
    assert!(
        told.starts_with("0/2 nodes are available: ") && told.contains("Insufficient nvidia.com/gpu"),
        "{told}"
    );

    // Pods on its nodes do not keep a tenant.
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    free_hosts(&world).await;
    host.stop().await;
}
