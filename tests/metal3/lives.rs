//! What the laboratory writes in every state that a host can be in.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use hostler_lab::{Lab, Network, Options};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::eventually;

/// Every state of a host.
const STATES: [&str; 11] = [
    "unmanaged",
    "registering",
    "inspecting",
    "preparing",
    "available",
    "provisioning",
    "provisioned",
    "externally provisioned",
    "deprovisioning",
    "powering off before delete",
    "deleting",
];

/// Leads hosts through all states under the laboratory's own definition; returns every version of every host.
pub(super) async fn all(client: &Client) -> Vec<Value> {
    let hosts: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &hostler_lab::crds::bare_metal_hosts());
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let stop = CancellationToken::new();
    let watch = watcher(hosts.clone(), watcher::Config::default())
        .default_backoff()
        .touched_objects();
    let into = seen.clone();
    let _watch = AbortOnDropHandle::new(tokio::spawn(watch.for_each(move |event| {
        if let Ok(object) = event {
            into.lock().unwrap().push(serde_json::to_value(object).unwrap());
        }
        std::future::ready(())
    })));
    let lab = Lab::start(client.clone(), Network::new(), Options::instant(), stop.clone());
    for name in ["bmc", "spare"] {
        secret(client, name).await;
    }
    let bmc = |secret: &str| json!({"address": "redfish://127.0.0.1/redfish/v1/Systems/1", "credentialsName": secret});
    let image = json!({"url": "http://images.lab/a.qcow2", "checksum": "abc", "checksumType": "sha256", "format": "qcow2"});
    let host = |name: &str, annotations: Value, change: Value| {
        let mut spec = json!({"online": false, "bootMACAddress": "52:54:00:00:00:01", "bmc": bmc("bmc")});
        json_patch::merge(&mut spec, &change);
        json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": spec})
    };
    let plain = json!({});
    for object in [
        host("whole", plain.clone(), plain.clone()),
        host(
            "online",
            json!({"metal3.vcluster.com/ip-address": "192.168.100.10/24"}),
            json!({"online": true, "image": image}),
        ),
        host(
            "deployed",
            plain.clone(),
            json!({"online": true, "customDeploy": {"method": "site"}}),
        ),
        host("no-bmc", plain.clone(), json!({"bmc": null})),
        host("no-secret", plain.clone(), json!({"bmc": bmc("nothing")})),
        host(
            "bad-scheme",
            plain.clone(),
            json!({"bmc": {"address": "carrier-pigeon://127.0.0.1/1"}}),
        ),
        host(
            "elsewhere",
            plain.clone(),
            json!({"externallyProvisioned": true, "online": true}),
        ),
        host(
            "uninspected",
            plain.clone(),
            json!({"inspectionMode": "disabled", "bootMode": "legacy",
            "rootDeviceHints": {"deviceName": "/dev/sda", "minSizeGigabytes": 10}}),
        ),
        host(
            "supplied",
            json!({"inspect.metal3.io/hardwaredetails":
            "{\"cpu\": {\"arch\": \"aarch64\", \"count\": 4}, \"hostname\": \"supplied\"}"}),
            plain.clone(),
        ),
        host(
            "detached",
            json!({"baremetalhost.metal3.io/detached": ""}),
            plain.clone(),
        ),
    ] {
        hosts
            .create(&PostParams::default(), &serde_json::from_value(object).unwrap())
            .await
            .unwrap();
    }
    reach(
        &hosts,
        &[
            ("whole", "available"),
            ("online", "provisioned"),
            ("deployed", "provisioned"),
            ("no-bmc", "unmanaged"),
            ("elsewhere", "externally provisioned"),
            ("uninspected", "available"),
            ("supplied", "available"),
        ],
    )
    .await;
    change(&hosts, "whole", json!({"metadata": {"labels": {"metal3.vcluster.com/node-claim": "one-bcdfg"}},
        "spec": {"online": true, "image": image, "userData": {"name": "boot", "namespace": "default"},
        "networkData": {"name": "boot"}, "metaData": {"name": "boot"},
        "consumerRef": {"apiVersion": "management.loft.sh/v1", "kind": "NodeClaim", "name": "one-bcdfg", "namespace": "p-default", "uid": "u"}}})).await;
    change(
        &hosts,
        "online",
        json!({"metadata": {"annotations": {"reboot.metal3.io": ""}}}),
    )
    .await;
    change(
        &hosts,
        "deployed",
        json!({"metadata": {"annotations": {"baremetalhost.metal3.io/detached": ""}}}),
    )
    .await;
    change(
        &hosts,
        "no-secret",
        json!({"spec": {"bmc": {"credentialsName": "spare"}}}),
    )
    .await;
    change(
        &hosts,
        "supplied",
        json!({"metadata": {"annotations": {"inspect.metal3.io": ""}}}),
    )
    .await;
    reach(&hosts, &[("whole", "provisioned"), ("no-secret", "available")]).await;
    change(
        &hosts,
        "whole",
        json!({"spec": {"online": false, "image": null, "userData": null}}),
    )
    .await;
    reach(&hosts, &[("whole", "available")]).await;
    for host in hosts.list(&Default::default()).await.unwrap() {
        hosts
            .delete(host.metadata.name.as_deref().unwrap(), &DeleteParams::default())
            .await
            .unwrap();
    }
    eventually("every host is gone", || async {
        let left = hosts.list(&Default::default()).await.unwrap().items;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} are left", left.len()))
        }
    })
    .await;
    stop.cancel();
    lab.stop().await.unwrap();
    let all = std::mem::take(&mut *seen.lock().unwrap());
    let found: BTreeSet<_> = all
        .iter()
        .filter_map(|object| object["status"]["provisioning"]["state"].as_str())
        .filter(|state| !state.is_empty())
        .collect();
    assert_eq!(found, BTreeSet::from(STATES), "every state was seen");
    all
}

async fn secret(client: &Client, name: &str) {
    let text = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        data: Some(
            [
                ("username".to_owned(), text("admin")),
                ("password".to_owned(), text("secret")),
            ]
            .into(),
        ),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &secret).await.unwrap();
}

async fn change(hosts: &Api<DynamicObject>, name: &str, patch: Value) {
    hosts
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn reach(hosts: &Api<DynamicObject>, wanted: &[(&str, &str)]) {
    for (name, state) in wanted {
        eventually(&format!("{name} is {state}"), || async {
            let status = hosts.get(name).await.unwrap().data["status"].clone();
            if status["provisioning"]["state"] == *state {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
    }
}
