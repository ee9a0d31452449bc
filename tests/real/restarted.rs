//! The platform's API server ends under a host that works, and comes back.

use std::time::Duration;

use crate::crashes::{all_available, delete_tenant, free_hosts, nodes_ready, nothing_left};
use crate::harness::process::Process;
use crate::harness::{PLATFORM, World, eventually};

async fn says(host: &mut Process, what: &str) {
    // Who asks may not have been answered for a while, too.
    for _ in 0..600 {
        if host.said().contains(what) {
            return;
        }
        assert!(host.ended().is_none(), "it ended: {}", host.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it never said {what:?}: {}", host.said());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn a_host_goes_on_when_its_api_server_comes_back() {
    let world = World::new().await;
    let mut host = Process::start(&world, "host", &world.stack.host_kubeconfig(), &[]);
    says(&mut host, "this host leads").await;
    world.example().await;
    let hosts = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    // In the middle of the work, and for longer than the lease lasts.
    eventually("a machine is lent", || async {
        let lent = crate::crashes::claims(&world).await?;
        let lent = lent.iter().any(|claim| claim.machine().is_some());
        lent.then_some(()).ok_or("none".to_owned())
    })
    .await;
    world
        .stack
        .without_server(PLATFORM, Duration::from_secs(12))
        .await;
    says(&mut host, "the lease was not renewed").await;
    says(&mut host, "the lease is renewed again").await;
    all_available(&world).await;
    nodes_ready(&world, "one", &["bare-metal-1", "bare-metal-2"]).await;

    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, hosts, "byte for byte what they were");
    assert!(
        host.ended().is_none(),
        "one and the same process: {}",
        host.said()
    );
    host.kill();
}
