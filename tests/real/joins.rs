//! A machine joins with a credential of its own: a request with its token, approved by the host, signed by kube-controller-manager;
//! from then on it is a node like any other, and NodeRestriction holds it to itself.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::{nodes, tenant};
use crate::crashes::{all_available, free_hosts};
use crate::harness::{World, eventually};

/// One request in an audit log.
struct Asked {
    user: String,
    verb: String,
    /// Resource, subresource after a slash.
    what: String,
    name: String,
    code: u64,
}

/// What was asked, by the audit log.
fn audited(log: &str) -> Vec<Asked> {
    let text = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|event| {
            let resource = text(&event, "/objectRef/resource");
            let what = match text(&event, "/objectRef/subresource").as_str() {
                "" => resource,
                subresource => format!("{resource}/{subresource}"),
            };
            Asked {
                user: text(&event, "/user/username"),
                verb: text(&event, "/verb"),
                what,
                name: text(&event, "/objectRef/name"),
                code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs real clusters: make real"]
async fn a_machine_joins_by_its_token_the_hosts_approval_and_the_controllers_signature() {
    let begun = Timestamp::now();
    let world = World::new().await;
    let host = world.host().await;
    world.example().await;
    free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    let tenant = tenant(&world, "one").await;
    let machines = nodes(&tenant, 2).await;

    let requests: Api<CertificateSigningRequest> = Api::all(tenant.clone());
    let requests = requests.list(&ListParams::default()).await.unwrap().items;
    let mut by_node = BTreeMap::new();
    for request in &requests {
        let asked = request.spec.username.clone().unwrap_or_default();
        let status = request.status.clone().unwrap_or_default();
        let decided = status.conditions.unwrap_or_default();
        assert_eq!(decided.len(), 1, "{request:?}");
        assert_eq!(decided[0].type_, "Approved", "{request:?}");
        assert!(
            status.certificate.is_some_and(|pem| !pem.0.is_empty()),
            "signed: {request:?}"
        );
        assert!(asked.starts_with("system:bootstrap:"), "{asked}");
        by_node.insert(asked, decided[0].reason.clone().unwrap_or_default());
    }
    assert_eq!(by_node.len(), 2, "one token for one node: {by_node:?}");

    // A lease comes after the first report, and the log is written behind the answers.
    let log = eventually("leases of both nodes in the audit log", || async {
        let log = audited(&world.stack.audit_log("one", begun).unwrap());
        let has_lease = |name: &String| {
            let node = format!("system:node:{name}");
            log.iter()
                .any(|asked| asked.user == node && asked.what == "leases" && asked.code < 300)
        };
        if machines.keys().all(has_lease) {
            Ok(log)
        } else {
            Err(format!("{} requests", log.len()))
        }
    })
    .await;
    for name in machines.keys() {
        let node = format!("system:node:{name}");
        let done = |verb: &str, what: &str| {
            log.iter().any(|asked| {
                asked.user == node
                    && asked.verb == verb
                    && asked.what == what
                    && asked.name == *name
                    && asked.code < 300
            })
        };
        assert!(done("create", "nodes"), "{name} registered itself");
        assert!(done("patch", "nodes/status"), "{name} reported itself");
        assert!(done("create", "leases"), "{name} has a lease of its own");
    }
    let signed = log.iter().filter(|asked| {
        asked.user == "system:serviceaccount:kube-system:certificate-controller"
            && asked.what == "certificatesigningrequests/status"
            && asked.code < 300
    });
    assert_eq!(signed.count(), 2, "both were signed by the real controller");
    let strangers: Vec<_> = log
        .iter()
        .filter(|asked| {
            asked.what == "nodes" && asked.verb == "create" && !asked.user.starts_with("system:node:")
        })
        .map(|asked| &asked.user)
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");

    let tokens: Api<Secret> = Api::namespaced(tenant, "kube-system");
    eventually("tokens of nodes that have joined are gone", || async {
        let left = tokens
            .list(&ListParams::default().fields("type=bootstrap.kubernetes.io/token"))
            .await
            .map_err(|error| error.to_string())?;
        if left.items.is_empty() {
            Ok(())
        } else {
            Err(format!("{} are left", left.items.len()))
        }
    })
    .await;
    host.stop().await;
}
