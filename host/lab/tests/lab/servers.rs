//! Servers that boot, join and go: over the socket of a real API server, with its certificates.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::json;

use crate::world::{JOIN_ADDRESS, World, eventually};

async fn requests(world: &World) -> usize {
    let requests: Api<CertificateSigningRequest> = Api::all(world.tenant.clone());
    requests.list(&ListParams::default()).await.unwrap().items.len()
}

async fn ready(world: &World, name: &str) -> Option<Node> {
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    let node = nodes.get_opt(name).await.unwrap()?;
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .any(|one| one.type_ == "Ready" && one.status == "True")
        .then_some(node)
}

async fn is_ready(world: &World, name: &str) {
    eventually(&format!("{name} is ready"), async || {
        ready(world, name).await.is_some()
    })
    .await;
}

async fn is_told(world: &World, host: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(world.platform.clone(), "metal3-system");
    let mut message = String::new();
    eventually(&format!("{host} has an event {reason}"), async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let found = all.items.into_iter().find(|event| {
            event.involved_object.name.as_deref() == Some(host) && event.reason.as_deref() == Some(reason)
        });
        message = found
            .as_ref()
            .and_then(|event| event.message.clone())
            .unwrap_or_default();
        found.is_some()
    })
    .await;
    message
}

async fn state(world: &World, host: &str, state: &str, powered_on: bool) {
    eventually(
        &format!("{host} is {state}, powered on: {powered_on}"),
        async || {
            let host = world.hosts().get(host).await.unwrap();
            let status = &host.data["status"];
            status["provisioning"]["state"] == state && status["poweredOn"] == powered_on
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_an_image_becomes_the_node_of_the_report() {
    let world = World::start().await;
    world.available("bare-metal-2", Some("192.168.100.11/24")).await;
    world
        .install("bare-metal-2", &world.user_data("bare-metal-2"))
        .await;
    is_ready(&world, "bare-metal-2").await;
    let node = ready(&world, "bare-metal-2").await.unwrap();
    assert_eq!(node.labels()["workload"], "gpu");
    assert_eq!(node.labels()["run.ai/simulated-gpu-node-pool"], "default");
    let spec = node.spec.clone().unwrap();
    assert!(
        spec.taints
            .unwrap()
            .iter()
            .any(|taint| taint.key == "example.com/startup")
    );
    assert_eq!(
        spec.provider_id.as_deref(),
        Some("metal3://metal3-system/bare-metal-2")
    );
    let status = node.status.unwrap();
    assert_eq!(status.addresses.unwrap()[0].address, "192.168.100.11");
    let info = status.node_info.unwrap();
    assert_eq!(
        (
            info.os_image.as_str(),
            info.kernel_version.as_str(),
            info.kubelet_version.as_str()
        ),
        ("Ubuntu 24.04.5 LTS", "6.8.0-142-generic", "v1.36.0")
    );
    let leases: Api<Lease> = Api::namespaced(world.tenant.clone(), "kube-node-lease");
    let renewed = async || leases.get("bare-metal-2").await.unwrap().spec.unwrap().renew_time;
    let first = renewed().await;
    eventually("the lease is renewed", async || renewed().await != first).await;
    let lease = leases.get("bare-metal-2").await.unwrap();
    assert_eq!(
        lease.metadata.owner_references.unwrap()[0].uid,
        node.metadata.uid.unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_keeps_the_certificate_and_a_new_image_forgets_it() {
    let world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    is_ready(&world, "bare-metal-1").await;
    let boot = async || {
        ready(&world, "bare-metal-1")
            .await
            .map(|node| node.status.unwrap().node_info.unwrap().boot_id)
    };
    let first = boot().await;
    world
        .patch(
            "bare-metal-1",
            json!({"metadata": {"annotations": {"reboot.metal3.io": ""}}}),
        )
        .await;
    eventually("it booted again", async || {
        let now = boot().await;
        now.is_some() && now != first
    })
    .await;
    assert_eq!(requests(&world).await, 1);
    world
        .patch(
            "bare-metal-1",
            json!({"spec": {"image": {"url": "http://images/other.qcow2"}}}),
        )
        .await;
    eventually("it asked for another certificate", async || {
        requests(&world).await == 2
    })
    .await;
    state(&world, "bare-metal-1", "provisioned", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_laboratory_that_starts_again_goes_on_where_it_was() {
    let mut world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    is_ready(&world, "bare-metal-1").await;
    let leases: Api<Lease> = Api::namespaced(world.tenant.clone(), "kube-node-lease");
    world.restart().await;
    let before = ready(&world, "bare-metal-1").await.unwrap();
    let renewed = leases.get("bare-metal-1").await.unwrap().spec.unwrap().renew_time;
    eventually("the lease is renewed again", async || {
        leases.get("bare-metal-1").await.unwrap().spec.unwrap().renew_time > renewed
    })
    .await;
    let after = ready(&world, "bare-metal-1").await.unwrap();
    let info = |node: &Node| node.status.clone().unwrap().node_info.unwrap();
    assert_eq!(
        info(&before).boot_id,
        info(&after).boot_id,
        "nothing happened to the server"
    );
    assert_eq!(requests(&world).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_power_is_silent_and_its_disk_goes_with_the_host() {
    let world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    is_ready(&world, "bare-metal-1").await;
    world
        .patch("bare-metal-1", json!({"spec": {"online": false}}))
        .await;
    state(&world, "bare-metal-1", "provisioned", false).await;
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    let leases: Api<Lease> = Api::namespaced(world.tenant.clone(), "kube-node-lease");
    nodes
        .delete("bare-metal-1", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the lease went with the node", async || {
        leases.get_opt("bare-metal-1").await.unwrap().is_none()
    })
    .await;
    // Another server's heartbeats show that time passed; nothing of the silent one came back meanwhile.
    world.available("bare-metal-2", Some("192.168.100.11/24")).await;
    world
        .install("bare-metal-2", &world.user_data("bare-metal-2"))
        .await;
    is_ready(&world, "bare-metal-2").await;
    assert!(nodes.get_opt("bare-metal-1").await.unwrap().is_none());
    assert!(leases.get_opt("bare-metal-1").await.unwrap().is_none());
    let disks: Api<Secret> = Api::namespaced(world.platform.clone(), "hostler-lab");
    let count = async || disks.list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!(count().await, 2);
    world
        .hosts()
        .delete("bare-metal-1", &DeleteParams::default())
        .await
        .unwrap();
    eventually("its disk is erased", async || count().await == 1).await;
}

#[rstest]
#[case::a_script("#!/bin/sh\nkubeadm join\n", "UserDataIgnored")]
#[case::nothing_to_start(
    "#cloud-config\nwrite_files: [{path: /etc/kubernetes/bootstrap-kubelet.conf}]\n",
    "UserDataIgnored"
)]
#[case::no_kubeconfig(
    "#cloud-config\nruncmd: ['systemctl enable --now kubelet']\n",
    "UserDataIgnored"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_boots_and_joins_nothing_with(#[case] user_data: &str, #[case] reason: &str) {
    let world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world.install("bare-metal-1", user_data).await;
    is_told(&world, "bare-metal-1", reason).await;
    state(&world, "bare-metal-1", "provisioned", true).await;
    assert_eq!(requests(&world).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_an_address_joins_after_it_got_one_and_was_booted() {
    let world = World::start().await;
    world.available("bare-metal-1", None).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    let message = is_told(&world, "bare-metal-1", "NoNetwork").await;
    assert!(message.contains("metal3.vcluster.com/ip-address"), "{message}");
    state(&world, "bare-metal-1", "provisioned", true).await;
    assert_eq!(requests(&world).await, 0);
    let annotations = json!({"metal3.vcluster.com/ip-address": "192.168.100.10/24", "reboot.metal3.io": ""});
    world
        .patch("bare-metal-1", json!({"metadata": {"annotations": annotations}}))
        .await;
    is_ready(&world, "bare-metal-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_waits_for_a_control_plane_that_is_not_there_yet() {
    let world = World::start().await;
    assert!(world.network.release("tenant") == 1);
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    let message = is_told(&world, "bare-metal-1", "ApiUnreachable").await;
    assert!(message.contains("no route to 192.168.100.2:8443"), "{message}");
    world
        .network
        .bind(JOIN_ADDRESS, "tenant", world.join_url.clone())
        .unwrap();
    is_ready(&world, "bare-metal-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_trusts_only_the_authority_in_its_kubeconfig() {
    let world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let other = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap()
        .pem();
    world
        .install("bare-metal-1", &world.user_data_trusting("bare-metal-1", &other))
        .await;
    let message = is_told(&world, "bare-metal-1", "ApiUnreachable").await;
    assert!(message.contains("certificate"), "{message}");
    assert_eq!(requests(&world).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_deleted_stays_away_until_the_server_boots_again() {
    let world = World::start().await;
    world.available("bare-metal-1", Some("192.168.100.10/24")).await;
    world
        .install("bare-metal-1", &world.user_data("bare-metal-1"))
        .await;
    is_ready(&world, "bare-metal-1").await;
    let nodes: Api<Node> = Api::all(world.tenant.clone());
    nodes
        .delete("bare-metal-1", &DeleteParams::default())
        .await
        .unwrap();
    is_told(&world, "bare-metal-1", "NodeGone").await;
    assert!(nodes.get_opt("bare-metal-1").await.unwrap().is_none());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"reboot.metal3.io": ""}}}));
    world
        .hosts()
        .patch("bare-metal-1", &PatchParams::default(), &patch)
        .await
        .unwrap();
    is_ready(&world, "bare-metal-1").await;
    assert_eq!(requests(&world).await, 1);
}
