//! What the attacks have in common: things to attack, and a way to see that nothing was touched.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, verbs};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{World, eventually};

/// Kinds that move by themselves, or tell what is going on.
const COMMENTARY: [&str; 2] = ["Event", "Lease"];

/// Every object of every kind in every cluster, by `cluster Kind namespace/name`.
pub(crate) type Dump = BTreeMap<String, Value>;

/// Reads all that there is.
pub(crate) async fn everything(world: &World) -> Dump {
    let mut all = Dump::new();
    for cluster in world.stack.clusters() {
        let client = world.stack.administrator(&cluster);
        let known = Discovery::new(client.clone()).run().await.unwrap();
        for (resource, capabilities) in known
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
        {
            if !capabilities.supports_operation(verbs::LIST) || COMMENTARY.contains(&resource.kind.as_str()) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            for object in api.list(&ListParams::default()).await.unwrap() {
                let place = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
                let value = serde_json::to_value(&object).unwrap();
                all.insert(format!("{cluster} {} {place}", resource.kind), value);
            }
        }
    }
    all
}

/// What differs, as `+ key`, `- key` or `~ key: /pointer …`.
pub(crate) fn changes(before: &Dump, after: &Dump) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in after {
        match before.get(key) {
            None => found.push(format!("+ {key}")),
            Some(old) if old != value => found.push(format!("~ {key}: {}", parts(old, value).join(" "))),
            Some(_) => {}
        }
    }
    found.extend(
        before
            .keys()
            .filter(|key| !after.contains_key(*key))
            .map(|key| format!("- {key}")),
    );
    found
}

/// Parts of an object that differ, bookkeeping aside.
fn parts(old: &Value, new: &Value) -> Vec<String> {
    let keys = |value: &Value| {
        value
            .as_object()
            .map(|map| map.keys().cloned().collect())
            .unwrap_or_default()
    };
    let mut all: Vec<String> = keys(old);
    all.extend(keys(new));
    all.sort();
    all.dedup();
    let mut differing: Vec<String> = all
        .into_iter()
        .filter(|key| key != "metadata" && old.get(key) != new.get(key))
        .map(|key| format!("/{key}"))
        .collect();
    let stated = |value: &Value| {
        let mut metadata = value["metadata"].clone();
        for counted in ["resourceVersion", "managedFields", "generation"] {
            metadata.as_object_mut().unwrap().remove(counted);
        }
        metadata
    };
    if stated(old) != stated(new) {
        differing.push("/metadata".to_owned());
    }
    differing
}

/// A condition: status, reason, message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// API of a kind of ours.
pub(crate) fn api(world: &World, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = match kind {
        "Plugin" | "Enrollment" => ("hostler.dev", "v1alpha1"),
        "BareMetalHost" => ("metal3.io", "v1alpha1"),
        "Secret" | "ConfigMap" | "Namespace" | "Node" => ("", "v1"),
        _ => ("management.loft.sh", "v1"),
    };
    let resource = kube::api::ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(world.client.clone(), namespace, &resource),
        None => Api::all_with(world.client.clone(), &resource),
    }
}

/// Reads an object as it is.
pub(crate) async fn read(world: &World, kind: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
    let found = api(world, kind, namespace).get_opt(name).await.unwrap();
    found.map(|found| serde_json::to_value(found).unwrap())
}

/// One condition of an object.
pub(crate) fn condition(object: &Value, kind: &str) -> Option<Told> {
    let all = object.pointer("/status/conditions")?.as_array()?;
    let one = all.iter().find(|one| one["type"] == kind)?;
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    Some(Told {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
    })
}

/// Waits until a condition of an object has a reason; returns it.
pub(crate) async fn until(
    world: &World,
    (kind, namespace, name): (&str, Option<&str>, &str),
    (condition_kind, reason): (&str, &str),
) -> Told {
    eventually(
        &format!("{kind} {name}: {condition_kind} because of {reason}"),
        || async {
            let object = read(world, kind, namespace, name)
                .await
                .ok_or_else(|| "it does not exist".to_owned())?;
            match condition(&object, condition_kind) {
                Some(told) if told.reason == reason => Ok(told),
                _ => Err(object["status"]["conditions"].to_string()),
            }
        },
    )
    .await
}

/// Waits until any condition of a claim has a reason.
pub(crate) async fn until_somewhere(world: &World, namespace: &str, name: &str, reason: &str) {
    eventually(&format!("claim {name} tells of {reason}"), || async {
        let claim = read(world, "NodeClaim", Some(namespace), name)
            .await
            .unwrap_or_default();
        let all = claim["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if all.iter().any(|one| one["reason"] == reason) {
            Ok(())
        } else {
            Err(claim["status"]["conditions"].to_string())
        }
    })
    .await;
}

/// Waits until a condition of an object is true.
pub(crate) async fn until_true(
    world: &World,
    (kind, namespace, name): (&str, Option<&str>, &str),
    condition_kind: &str,
) {
    eventually(&format!("{kind} {name}: {condition_kind}"), || async {
        let object = read(world, kind, namespace, name)
            .await
            .ok_or_else(|| "it does not exist".to_owned())?;
        match condition(&object, condition_kind) {
            Some(told) if told.status == "True" => Ok(()),
            _ => Err(object["status"]["conditions"].to_string()),
        }
    })
    .await;
}

/// Waits until an event of this reason was told on an object; returns what it says.
pub(crate) async fn until_event(world: &World, name: &str, reason: &str) -> String {
    let events: Api<Event> = Api::all(world.client.clone());
    eventually(&format!("an event {reason} on {name}"), || async {
        let all = events
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let on = all.iter().filter(|event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|on| on.name.as_deref() == Some(name))
        });
        let mut told = Vec::new();
        for event in on {
            let note = event.note.clone().unwrap_or_default();
            if event.reason.as_deref() == Some(reason) {
                return Ok(note);
            }
            told.push(format!("{}: {note}", event.reason.clone().unwrap_or_default()));
        }
        Err(told.join("\n"))
    })
    .await
}

/// Waits until an object is gone.
pub(crate) async fn until_gone(world: &World, kind: &str, namespace: Option<&str>, name: &str) {
    eventually(&format!("{kind} {name} is gone"), || async {
        match read(world, kind, namespace, name).await {
            None => Ok(()),
            Some(object) => Err(object["status"].to_string()),
        }
    })
    .await;
}

/// Waits until a claim is Available.
pub(crate) async fn until_available(world: &World, namespace: &str, name: &str) {
    eventually(&format!("claim {name} is Available"), || async {
        let claim = read(world, "NodeClaim", Some(namespace), name)
            .await
            .unwrap_or_default();
        if claim["status"]["phase"] == "Available" {
            Ok(())
        } else {
            Err(claim["status"].to_string())
        }
    })
    .await;
}

/// Deletes an object.
pub(crate) async fn delete(world: &World, kind: &str, namespace: Option<&str>, name: &str) {
    api(world, kind, namespace)
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
}

/// Changes an object by a merge patch.
pub(crate) async fn change(world: &World, kind: &str, namespace: Option<&str>, name: &str, patch: Value) {
    let api = api(world, kind, namespace);
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Applies one object, waiting for its namespace.
pub(crate) async fn apply(world: &World, object: &Value) {
    world.apply(&serde_saphyr::to_string(object).unwrap()).await;
}

/// A project, once its namespace is there.
pub(crate) async fn project(world: &World, name: &str) {
    apply(world, &json!({"apiVersion": "management.loft.sh/v1", "kind": "Project", "metadata": {"name": name}, "spec": {}}))
        .await;
    until(
        world,
        ("Project", None, name),
        ("NamespaceReady", "NamespaceReady"),
    )
    .await;
}

/// A tenant with these values.
pub(crate) fn tenant(project: &str, name: &str, values: &str) -> Value {
    json!({
        "apiVersion": "management.loft.sh/v1", "kind": "VirtualClusterInstance",
        "metadata": {"name": name, "namespace": format!("p-{project}")},
        "spec": {"template": {"helmRelease": {"values": values}}},
    })
}

/// Values of a tenant whose claims are made by hand.
pub(crate) const PRIVATE: &str = "privateNodes: {enabled: true}";

/// A provider with a driver by name.
pub(crate) fn provider(name: &str, driver: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "management.loft.sh/v1", "kind": "NodeProvider", "metadata": {"name": name},
        "spec": {"driver": {"name": driver, "config": config}},
    })
}

/// A claim of a tenant.
pub(crate) fn claim(project: &str, name: &str, tenant: &str, provider: &str) -> Value {
    json!({
        "apiVersion": "management.loft.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "namespace": format!("p-{project}")},
        "spec": {"vClusterRef": tenant, "providerRef": provider},
    })
}

/// A namespace.
pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A host with the Secret of its management controller.
pub(crate) fn host(namespace: &str, name: &str, number: usize) -> [Value; 2] {
    let secret = format!("{name}-bmc");
    let address = format!(
        "10.{}.{}.{}/8",
        1 + number / 62_500,
        number / 250 % 250,
        1 + number % 250
    );
    [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": namespace},
            "stringData": {"username": "admin", "password": "hunter2-of-the-bmc"},
        }),
        json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": namespace, "labels": {"example.com/type": "gpu"},
                "annotations": {"metal3.vcluster.com/ip-address": address, "metal3.vcluster.com/gateway": "10.0.0.1"}},
            "spec": {"online": false, "bootMACAddress": format!("52:54:00:00:{:02x}:{:02x}", number / 256, number % 256),
                "bmc": {"address": format!("redfish+http://bmc-of-{name}.lab/redfish/v1/Systems/1"), "credentialsName": secret}},
        }),
    ]
}

/// Whether a host is available, off and settled.
fn is_settled(host: &Value) -> bool {
    host["status"]["provisioning"]["state"] == "available" && host["status"]["poweredOn"] == false
}

/// Whether a host is settled and nobody's.
pub(crate) fn is_free(host: &Value) -> bool {
    is_settled(host)
        && host["spec"].get("consumerRef").is_none_or(Value::is_null)
        && host["metadata"]["annotations"].get("hostler.dev/loan").is_none()
}

/// Waits until all hosts of a namespace are free.
pub(crate) async fn until_free(world: &World, namespace: &str, count: usize) {
    until_all(world, namespace, count, is_free).await;
}

/// Waits until all hosts of a namespace are available, whoever has them.
pub(crate) async fn until_settled(world: &World, namespace: &str, count: usize) {
    until_all(world, namespace, count, is_settled).await;
}

async fn until_all(world: &World, namespace: &str, count: usize, is: fn(&Value) -> bool) {
    eventually(&format!("{count} hosts of {namespace} are free"), || async {
        let all = api(world, "BareMetalHost", Some(namespace))
            .list(&ListParams::default())
            .await
            .unwrap();
        let hosts: Vec<Value> = all
            .iter()
            .map(|host| serde_json::to_value(host).unwrap())
            .collect();
        let busy: Vec<String> = hosts
            .iter()
            .filter(|host| !is(host))
            .map(|host| {
                format!(
                    "{} {} {}",
                    host["metadata"]["name"], host["spec"], host["status"]["provisioning"]
                )
            })
            .collect();
        if busy.is_empty() && hosts.len() == count {
            Ok(())
        } else {
            Err(busy.join("\n"))
        }
    })
    .await;
}

/// Puts a component into the plugin directory under a name, with its operator file, as an operator would: whole.
pub(crate) fn plug(world: &World, component: &Path, name: &str, operator: &str) {
    std::fs::create_dir_all(world.plugins()).unwrap();
    put(world, &format!("{name}.toml"), operator.as_bytes());
    put(world, &format!("{name}.wasm"), &std::fs::read(component).unwrap());
}

/// Writes a file of the plugin directory in one step.
pub(crate) fn put(world: &World, file: &str, bytes: &[u8]) {
    let next = world.plugins().join(".next-of-a-test");
    std::fs::write(&next, bytes).unwrap();
    std::fs::rename(next, world.plugins().join(file)).unwrap();
}

/// The operator file of the hostile driver, for some namespaces.
pub(crate) fn grant(namespaces: &[String]) -> String {
    let namespaces = serde_json::to_string(namespaces).unwrap();
    format!(
        r#"
[limits]
memory = "64MiB"
time = "500ms"
output = "2MiB"

[[kinds]]
apiVersion = "metal3.io/v1alpha1"
kind = "BareMetalHost"
access = "borrow-fields"
namespaces = {namespaces}
places = ["/spec/image", "/spec/userData", "/spec/online", "/spec/consumerRef", "/metadata/labels/metal3.vcluster.com~1*"]

[[kinds]]
apiVersion = "v1"
kind = "ConfigMap"
access = "manage"
namespaces = {namespaces}
"#
    )
}
