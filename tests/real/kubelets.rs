//! The laboratory's own kubelets on a real tenant: what kube-scheduler places they run, as the nodes that they are, and what is deleted
//! they end.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};

use super::tenant;
use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::{World, eventually, root};

/// Name, node, phase, and why its first container ended, of every pod.
async fn seen(pods: &Api<Pod>) -> Result<Vec<String>, String> {
    let all = pods.list(&ListParams::default()).await;
    let all = all.map_err(|error| error.to_string())?;
    let mut seen: Vec<String> = all
        .iter()
        .map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let status = pod.status.clone().unwrap_or_default();
            let ended = status
                .container_statuses
                .iter()
                .flatten()
                .find_map(|one| one.state.clone()?.terminated?.reason);
            let words = [Some(pod.name_any()), node, status.phase, ended];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
        .collect();
    seen.sort();
    Ok(seen)
}

async fn become_so(pods: &Api<Pod>, what: &str, wanted: &[&str]) {
    eventually(what, || async {
        let seen = seen(pods).await?;
        if seen == wanted {
            Ok(())
        } else {
            Err(seen.join(", "))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn the_laboratorys_kubelets_run_what_kube_scheduler_places() {
    let world = World::new().await;
    let host = world.host().await;
    world.example().await;
    free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    let tenant = tenant(&world, "one").await;
    all_available(&world).await;
    world.stack.start_scheduler("one");
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), "default");
    let text = std::fs::read_to_string(root().join("examples/03-gpu-pods/pods.yaml")).unwrap();
    for document in text.split("\n---\n") {
        let pod: Pod = serde_saphyr::from_str(document).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let placed = [
        "cpu-only bare-metal-1 Running",
        "gpu-ok bare-metal-2 Running",
        "gpu-smi bare-metal-2 Succeeded Completed",
        "gpu-too-big Pending",
    ];
    become_so(&pods, "the pods are where the seed has them", &placed).await;
    let addresses = pods.list(&ListParams::default()).await.unwrap();
    let addresses = addresses
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone());
    assert_eq!(addresses.collect::<std::collections::BTreeSet<_>>().len(), 3);
    // With the usual grace: the kubelet lets go.
    pods.delete("gpu-ok", &DeleteParams::default()).await.unwrap();
    let left = [placed[0], placed[2], placed[3]];
    become_so(&pods, "a deleted pod is gone", &left).await;

    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    free_hosts(&world).await;
    host.stop().await;
}
