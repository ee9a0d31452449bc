//! The driver when it behaves: every host of the namespace is a machine of one type, `server`.

use hostler_sdk::driver::{
    Access, Availability, Capacity, Description, Identity, KindUse, Machine, NodeType, Order, Outcome, Plan,
    Preparation, Role,
};
use hostler_sdk::{Failure, Object, Reason};
use serde_json::{Value, json};

pub(crate) const TYPE: &str = "server";

pub(crate) fn description(provider: &Object) -> Result<Description, Failure> {
    let config = provider.field("spec").key("driver").key("config");
    let namespace = match config.key("namespace").optional_text()? {
        Some(namespace) => namespace,
        None => provider
            .field("spec")
            .key("metal3")
            .key("clusterRef")
            .key("namespace")
            .optional_text()?
            .unwrap_or("default"),
    };
    let kind = |api_version: &str, kind: &str, access, role| KindUse {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        access,
        role,
        selector: String::new(),
    };
    Ok(Description {
        config_schema: json!({"type": "object"}),
        cluster: None,
        uses: vec![
            kind(
                "metal3.io/v1alpha1",
                "BareMetalHost",
                Access::BorrowFields,
                Role::Machine,
            ),
            // Never used while it behaves: the plans that try to take one over are to fail for that, and not for the kind.
            kind("v1", "ConfigMap", Access::Manage, Role::Product),
        ],
        node_types: vec![NodeType {
            name: TYPE.to_owned(),
            capacity: Capacity::Machines,
            json: json!({}),
        }],
        properties: ["hostile/plan", "hostile/victim", "hostile/at"]
            .map(str::to_owned)
            .to_vec(),
    })
}

pub(crate) fn machine(host: &Object) -> Machine {
    let availability = if host.is_being_deleted() {
        Availability::Broken(Reason::new("BeingDeleted", "the host is being deleted"))
    } else if set(host, "/spec/consumerRef").is_some() || set(host, "/spec/image").is_some() {
        Availability::Held(Reason::new("InUse", "the host is in use"))
    } else if is_clean(host) {
        Availability::Free
    } else {
        Availability::Preparing(Reason::new("NotReady", "the host is not ready yet"))
    };
    Machine {
        node_types: vec![TYPE.to_owned()],
        availability,
        json: json!({"resources": {}, "properties": {}}),
    }
}

pub(crate) fn prepare(order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
    let host = order
        .machine_in(seen)
        .ok_or_else(|| Failure::exhausted("MachineLost", "the host is gone"))?;
    Ok(Preparation {
        node_name: host.name.clone(),
        boot_namespace: host.namespace.clone().unwrap_or_default(),
        network_data: None,
    })
}

pub(crate) fn provision(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
    let Some(host) = order.machine_in(seen) else {
        return Ok(Plan::new(Outcome::Lost(Reason::new(
            "MachineLost",
            "the host is gone",
        ))));
    };
    let secret = order
        .boot_secret
        .as_ref()
        .ok_or_else(|| Failure::broken("NoBootData", "nothing to boot with"))?;
    let image = json!({"url": "http://127.0.0.1/image.qcow2", "checksum": "abc", "checksumType": "md5"});
    let runs = host.text("/status/provisioning/state") == Some("provisioned") && is_powered_on(host);
    let outcome = if runs {
        Outcome::Ready(Identity {
            provider_id: Some(format!("hostile://{}", host.uid)),
            addresses: Vec::new(),
        })
    } else {
        Outcome::working("Installing", "the host is being installed")
    };
    let spec = json!({
        "consumerRef": consumer(order),
        "image": image,
        "userData": {"name": secret.name, "namespace": secret.namespace},
        "online": true,
    });
    Ok(Plan::new(outcome).borrowing(host.reference(), json!({"spec": spec})))
}

pub(crate) fn release(order: &Order, seen: &[Object]) -> Plan {
    let Some(host) = order.machine_in(seen) else {
        return Plan::new(Outcome::Gone);
    };
    let claimed = host.text("/spec/consumerRef/name") == Some(&order.claim.name);
    let empty = ["/spec/image", "/spec/userData"]
        .iter()
        .all(|place| set(host, place).is_none());
    if !claimed || empty && is_clean(host) {
        return Plan::new(Outcome::Gone);
    }
    let spec = json!({"consumerRef": consumer(order), "image": null, "userData": null, "online": false});
    Plan::new(Outcome::working("Cleaning", "the host is being cleaned"))
        .borrowing(host.reference(), json!({"spec": spec}))
}

fn consumer(order: &Order) -> Value {
    let claim = &order.claim;
    json!({"apiVersion": claim.api_version, "kind": claim.kind, "name": claim.name, "namespace": claim.namespace})
}

fn set<'a>(host: &'a Object, pointer: &str) -> Option<&'a Value> {
    host.at(pointer).filter(|value| !value.is_null())
}

fn is_powered_on(host: &Object) -> bool {
    host.at("/status/poweredOn") == Some(&json!(true))
}

fn is_clean(host: &Object) -> bool {
    let online = host.at("/spec/online") == Some(&json!(true));
    let conditions = host.at("/status/conditions").and_then(Value::as_array);
    let observed = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition["type"] == "AvailableForProvisioning")
        .all(|condition| condition["observedGeneration"].as_i64() >= Some(host.generation()));
    host.text("/status/provisioning/state") == Some("available") && online == is_powered_on(host) && observed
}
