//! Services: an address for a set of pods. The address is given here, as the real server does; who carries traffic there is
//! not this server's business.

use std::collections::BTreeSet;

use rand::Rng as _;
use serde_json::{Map, Value, json};

use super::columns::{age_column, column};
use crate::fault;
use crate::resource::Column;
use crate::status::Cause;

/// The kinds of services that are served: those that need nobody outside the API.
const TYPES: [&str; 2] = ["ClusterIP", "ExternalName"];

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Begin of every address: `10.96.0.0/16`.
const RANGE: &str = "10.96.";

/// The address of the API itself.
pub(crate) const FIRST: &str = "10.96.0.1";

fn is_external(spec: &Map<String, Value>) -> bool {
    spec.get("type").is_some_and(|kind| kind == "ExternalName")
}

/// What a service says if nobody says otherwise; an address, once given, stays.
pub(super) fn prepare(object: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        object["status"] = json!({"loadBalancer": {}});
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.entry("type").or_insert_with(|| json!("ClusterIP"));
    spec.entry("sessionAffinity").or_insert_with(|| json!("None"));
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        let number = port.get("port").cloned().unwrap_or_default();
        port.entry("protocol").or_insert_with(|| json!("TCP"));
        port.entry("targetPort").or_insert(number);
    }
    if is_external(spec) {
        return;
    }
    spec.entry("internalTrafficPolicy")
        .or_insert_with(|| json!("Cluster"));
    for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let was = old.map(|old| old["spec"][name].clone()).unwrap_or_default();
        let is_open = spec.get(name).is_none_or(|value| value.is_null() || value == "");
        if is_open && !was.is_null() {
            spec.insert(name.to_owned(), was);
        }
    }
}

/// Gives a new service its address, other than those that are taken.
pub(crate) fn allocate(service: &mut Value, taken: &BTreeSet<String>) {
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if is_external(spec) {
        return;
    }
    let asked = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default();
    let address = match asked {
        "" => free(taken),
        asked => asked.to_owned(),
    };
    let lone = json!([address]);
    spec.insert("clusterIP".to_owned(), json!(address));
    spec.entry("clusterIPs").or_insert(lone);
    spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
    spec.entry("ipFamilyPolicy")
        .or_insert_with(|| json!("SingleStack"));
}

fn free(taken: &BTreeSet<String>) -> String {
    let mut random = rand::rng();
    loop {
        // The lowest are for those that ask for a certain one.
        let address = format!(
            "{RANGE}{}.{}",
            random.random_range(1..=255),
            random.random_range(1..=254)
        );
        if !taken.contains(&address) {
            return address;
        }
    }
}

/// That an address that was asked for can be given.
pub(crate) fn check_address(service: &Value, taken: &BTreeSet<String>) -> Option<Cause> {
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    if matches!(address, "" | "None") {
        return None;
    }
    let why = if !address.starts_with(RANGE) || address.parse::<std::net::Ipv4Addr>().is_err() {
        "the provided network does not match the current range"
    } else if taken.contains(address) {
        "provided IP is already allocated"
    } else {
        return None;
    };
    let detail = format!("failed to allocate IP {address}: {why}");
    Some(fault::invalid("spec.clusterIPs", &json!([address]), &detail))
}

/// What is wrong with a service.
pub(super) fn check(new: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    let spec = &new["spec"];
    let kind = spec["type"].as_str().unwrap_or_default();
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() && kind != "ExternalName" && spec["clusterIP"] != "None" {
        found.push(fault::required("spec.ports", ""));
    }
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        if ports.len() > 1 && port["name"].as_str().unwrap_or_default().is_empty() {
            found.push(fault::required(format!("{path}.name"), ""));
        }
        let protocol = &port["protocol"];
        for name in ["port", "targetPort"] {
            let is_good = port[name]
                .as_i64()
                .map_or(name == "targetPort", |number| (1..=65535).contains(&number));
            if !is_good {
                let detail = "must be between 1 and 65535, inclusive";
                found.push(fault::invalid(format!("{path}.{name}"), &port[name], detail));
            }
            if name == "port" && !PROTOCOLS.iter().any(|known| protocol == known) {
                found.push(fault::not_supported(
                    format!("{path}.protocol"),
                    protocol,
                    &PROTOCOLS,
                ));
            }
        }
        if ports[..index]
            .iter()
            .any(|other| other["port"] == port["port"] && other["protocol"] == *protocol)
        {
            found.push(fault::duplicate(&path, port));
        }
    }
    if !TYPES.contains(&kind) {
        found.push(fault::not_supported("spec.type", &spec["type"], &TYPES));
    }
    let before = old.map(|old| &old["spec"]["clusterIP"]);
    if kind != "ExternalName"
        && before.is_some_and(|before| before.is_string() && *before != spec["clusterIP"])
    {
        let detail = "may not change once set";
        found.push(fault::invalid("spec.clusterIPs[0]", &spec["clusterIP"], detail));
    }
}

fn ports(service: &Value) -> Value {
    let ports = service["spec"]["ports"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let shown: Vec<String> = ports
        .iter()
        .map(|port| {
            format!(
                "{}/{}",
                port["port"],
                port["protocol"].as_str().unwrap_or_default()
            )
        })
        .collect();
    or_none(&shown.join(","))
}

fn or_none(text: &str) -> Value {
    json!(if text.is_empty() { "<none>" } else { text })
}

fn text<'v>(service: &'v Value, name: &str) -> &'v str {
    service["spec"][name].as_str().unwrap_or_default()
}

fn pairs(map: &Value) -> Value {
    let mut shown: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    shown.sort();
    or_none(&shown.join(","))
}

/// What `kubectl get services` shows.
pub(super) fn columns() -> Vec<Column> {
    vec![
        column("Type", false, "How the service is reached.", |service| {
            json!(text(service, "type"))
        }),
        column("Cluster-IP", false, "Its address in the cluster.", |service| {
            or_none(text(service, "clusterIP"))
        }),
        column("External-IP", false, "Its address elsewhere.", |service| {
            let listed = service["spec"]["externalIPs"].as_array();
            let shown: Vec<&str> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
            match text(service, "externalName") {
                "" => or_none(&shown.join(",")),
                name => json!(name),
            }
        }),
        column("Port(s)", false, "Where it listens.", ports),
        age_column(),
        column("Selector", true, "The pods behind it.", |service| {
            pairs(&service["spec"]["selector"])
        }),
    ]
}

/// What `kubectl get podtemplates` shows.
pub(super) fn template_columns() -> Vec<Column> {
    vec![
        column("Containers", false, "Names of the containers.", |template| {
            listed(template, "name")
        }),
        column("Images", false, "What they run.", |template| {
            listed(template, "image")
        }),
        column("Pod Labels", false, "Labels of the pods.", |template| {
            pairs(&template["template"]["metadata"]["labels"])
        }),
    ]
}

fn listed(template: &Value, what: &str) -> Value {
    let containers = template
        .pointer("/template/spec/containers")
        .and_then(Value::as_array);
    let shown: Vec<&str> = containers
        .into_iter()
        .flatten()
        .map(|container| container[what].as_str().unwrap_or_default())
        .collect();
    json!(shown.join(","))
}
