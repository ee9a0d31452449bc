//! Least privilege in a tenant: the host uses every right that it has there, and asks for no other.

use std::time::Duration;

use hostler_controllers::Settings;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::{nodes, tenant};
use crate::crashes::{all_available, free_hosts};
use crate::harness::{Fault, World, eventually};
use crate::manifests::rights::{Exception, compare, granted, used};

/// The user of the tenant's kubeconfig.
const USER: &str = "hostler";
/// Rights that no request is made of. Without this one the server refuses to take an approval, which the joins of this test are.
const EXCEPTIONS: [Exception; 1] = [Exception {
    verb: "approve",
    resource: "signers.certificates.k8s.io",
    why: "the server asks for it by itself when a request is approved, and the audit log has only the approval",
}];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn the_host_uses_every_right_that_it_has_in_a_tenant_and_asks_for_no_other() {
    let begun = Timestamp::now();
    let mut lab = hostler_lab::Options::instant();
    // A token whose half is over while its machine boots is moved forward.
    lab.times.boot = Duration::from_secs(20);
    let settings = Settings {
        token_lifetime: Duration::from_secs(30),
        ..Settings::default()
    };
    let world = World::with(lab).await;
    let host = world.host_with(&Fault::none(), settings).await;
    world.example().await;
    free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    let tenant = tenant(&world, "one").await;
    let machines = nodes(&tenant, 2).await;
    let pods: Api<Pod> = Api::default_namespaced(tenant.clone());
    for node in machines.keys() {
        let pod = json!({
            "metadata": {"name": format!("on-{node}")},
            "spec": {
                "nodeName": node, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "anything"}],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
            .await
            .unwrap();
    }
    let claims = crate::safety::stage::api(&world, "NodeClaim", Some("p-default"));
    for claim in claims.list(&ListParams::default()).await.unwrap() {
        let name = claim.metadata.name.unwrap();
        claims.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    let all: Api<Node> = Api::all(tenant);
    eventually("the nodes of the claims are gone", || async {
        let now = all
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let left = now
            .iter()
            .filter(|node| machines.values().any(|was| was.metadata.uid == node.metadata.uid));
        match left.count() {
            0 => Ok(()),
            left => Err(format!("{left} nodes")),
        }
    })
    .await;
    let log = world.folder.path().join("audit.log");
    let rights = hostler_cli::manifests::tenant_part(USER).unwrap();
    let granted = granted(&rights.objects, USER);
    // The log is written behind the answers.
    eventually("every right is used, and no other", || async {
        std::fs::write(&log, world.stack.audit_log("one", begun).unwrap()).unwrap();
        let difference = compare(&granted, &used(&log, USER), &EXCEPTIONS);
        if difference.is_none() {
            Ok(())
        } else {
            Err(format!("{difference:#?}"))
        }
    })
    .await;
    host.stop().await;
}
