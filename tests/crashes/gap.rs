//! Somebody else writes in the gap between a look of the host and its write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::fault::Moment;
use crate::harness::{Fault, History, World};

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_writes_before_each_write_of_a_loan_keeps_his_value() {
    let world = World::new().await;
    let history = History::of(&world.client);
    let hosts = world.hosts();
    let edits = Arc::new(AtomicUsize::new(0));
    let fault = Fault::meddled(Box::new({
        let (hosts, edits) = (hosts.clone(), edits.clone());
        move |moment, line| {
            let (hosts, edits) = (hosts.clone(), edits.clone());
            let host = line.split("/baremetalhosts/").nth(1).map(ToOwned::to_owned);
            async move {
                let Some(host) = host.filter(|_| moment == Moment::Before) else {
                    return;
                };
                let number = edits.fetch_add(1, Ordering::SeqCst);
                // Each second write of the host is left in peace: nobody gets anywhere against one who never rests.
                if number % 2 == 0 {
                    let change =
                        json!({"metadata": {"annotations": {"rack.example.com/edit": number.to_string()}}});
                    hosts
                        .patch(&host, &PatchParams::default(), &Patch::Merge(&change))
                        .await
                        .unwrap();
                }
            }
            .boxed()
        }
    }));
    let host = world.host_behind(&fault).await;
    world.example().await;
    let mut before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    let after = free_hosts(&world).await;
    let note = |host: &str| {
        after[host]["metadata"]["annotations"]["rack.example.com/edit"]
            .as_str()
            .map(ToOwned::to_owned)
    };
    assert!(
        note("bare-metal-1").or(note("bare-metal-2")).is_some(),
        "somebody wrote"
    );
    for (name, host) in &mut before {
        if let Some(note) = note(name) {
            host["metadata"]["annotations"]["rack.example.com/edit"] = json!(note);
        }
    }
    assert_eq!(after, before);
    assert!(
        edits.load(Ordering::SeqCst) >= 8,
        "take and return of two hosts, each tried twice"
    );
    history.is_clean(&world).await;
    host.stop().await;
}
