//! Whether a host may be promised, to which types, and if not, why not: one reason, the first that somebody has to know.

use hostler_sdk::Reason;
use hostler_sdk::driver::{Availability, Machine};
use serde_json::{Map, Value, json};

use crate::bmh::{Host, IP_ADDRESS, State};
use crate::config::{Config, NodeType};
use crate::describe::SERVER_NAME;
use crate::network;
use crate::quantity;

/// Labels with this prefix say where a host is: rack, rail, block. They become properties of the machine.
const TOPOLOGY: &str = "topology.hostler.dev/";

/// The machine that a host is to this provider; none if no type of it selects the host.
pub(crate) fn machine(config: &Config, host: &Host<'_>) -> Option<Machine> {
    if host.namespace() != config.namespace {
        return None;
    }
    let matching: Vec<&NodeType> = config
        .node_types
        .iter()
        .filter(|kind| kind.selector.matches(host.object))
        .collect();
    if matching.is_empty() {
        return None;
    }
    let resources = resources(host);
    let (fitting, small): (Vec<&NodeType>, Vec<&NodeType>) = matching
        .iter()
        .partition(|kind| shortage(kind, &resources).is_none());
    let availability = match (availability(config, host), fitting.is_empty()) {
        // Only what would be free otherwise: everything else is the more pressing news.
        (Availability::Free, true) => Availability::Broken(too_small(host, small[0], &resources)),
        (other, _) => other,
    };
    let names = if fitting.is_empty() { small } else { fitting };
    Some(Machine {
        node_types: names.iter().map(|kind| kind.name.clone()).collect(),
        availability,
        json: json!({"resources": resources, "properties": properties(host)}),
    })
}

pub(crate) fn availability(config: &Config, host: &Host<'_>) -> Availability {
    let title = host.title();
    if host.is_being_deleted() {
        return broken(
            "BeingDeleted",
            format!("{title} is being deleted"),
            "register it again to use it",
        );
    }
    if host.is_paused() {
        return broken(
            "Paused",
            format!("{title} is paused"),
            "remove its annotation baremetalhost.metal3.io/paused",
        );
    }
    if host.is_detached() {
        let remedy = "remove its annotation baremetalhost.metal3.io/detached";
        return broken("Detached", format!("{title} is detached from Metal3"), remedy);
    }
    if host.is_unhealthy() {
        let remedy = "repair it, then remove its annotation capm3.metal3.io/unhealthy";
        return broken("Unhealthy", format!("{title} is marked unhealthy"), remedy);
    }
    if let Some((kind, message)) = host.error() {
        let remedy = format!(
            "see kubectl describe bmh {} -n {}",
            host.object.name,
            host.namespace()
        );
        return broken("HostError", format!("{title} has a {kind}: {message}"), &remedy);
    }
    match host.state() {
        State::Available => available(config, host),
        State::Unmanaged => broken("Unmanaged", format!("{title} has no BMC"), "set its spec.bmc"),
        State::Provisioning | State::Provisioned | State::ExternallyProvisioned => {
            let holder = host
                .consumer()
                .unwrap_or_else(|| "whoever gave it an image".to_owned());
            held("InUse", format!("{title} is {} for {holder}", host.state_word()))
        }
        State::New => preparing(
            "Registering",
            format!("{title} has not been looked at by Metal3 yet"),
        ),
        State::Registering => preparing("Registering", format!("{title} is registering")),
        State::Inspecting => preparing("Inspecting", format!("{title} is being inspected")),
        State::Preparing => preparing("Preparing", format!("{title} is being prepared")),
        State::Deprovisioning => preparing("Cleaning", format!("{title} is being cleaned")),
        // `is_being_deleted` has taken the first; a state of a later Metal3 is not one to hand a host out in.
        State::Deleting | State::Other => {
            preparing("UnknownState", format!("{title} is {}", host.state_word()))
        }
    }
}

fn available(config: &Config, host: &Host<'_>) -> Availability {
    let title = host.title();
    if let Some(consumer) = host.consumer() {
        return held("InUse", format!("{title} belongs to {consumer}"));
    }
    if host.is_loaded() {
        return held("InUse", format!("{title} was given an image by somebody else"));
    }
    if host
        .object
        .at("/spec/externallyProvisioned")
        .and_then(Value::as_bool)
        == Some(true)
    {
        return held(
            "ExternallyProvisioned",
            format!("{title} runs what somebody else has installed"),
        );
    }
    if !host.is_observed() {
        return preparing(
            "Unobserved",
            format!("Metal3 has not looked at the last change of {title} yet"),
        );
    }
    if host.is_busy() {
        return preparing(
            "Busy",
            format!("{title} is {}", host.operational().unwrap_or_default()),
        );
    }
    if !host.is_settled() {
        let power = if host.is_online() { "on" } else { "off" };
        return preparing("Settling", format!("{title} is being powered {power}"));
    }
    let cleaning = host.text("/spec/automatedCleaningMode");
    if cleaning == Some("disabled") && !config.allow_disabled_cleaning {
        let remedy =
            "set its spec.automatedCleaningMode to metadata, or allowDisabledCleaning in the NodeProvider";
        return broken(
            "CleaningDisabled",
            format!("{title} is not cleaned between tenants"),
            remedy,
        );
    }
    if host.object.annotation(IP_ADDRESS).is_none() {
        let remedy = format!("annotate it with {IP_ADDRESS}, an address with its prefix length");
        return broken(
            "NoAddress",
            format!("{title} has no address to boot with"),
            &remedy,
        );
    }
    match network::document(host, &Default::default()) {
        Ok(_) => Availability::Free,
        Err(reason) => Availability::Broken(reason),
    }
}

fn held(code: &str, message: String) -> Availability {
    Availability::Held(Reason::new(code, message))
}

fn preparing(code: &str, message: String) -> Availability {
    Availability::Preparing(Reason::new(code, message))
}

fn broken(code: &str, message: String, remedy: &str) -> Availability {
    Availability::Broken(Reason::new(code, message).remedy(remedy))
}

/// What inspection found. GPUs are not in Metal3's inventory: a type declares them, and its selector vouches for them.
fn resources(host: &Host<'_>) -> Map<String, Value> {
    let mut found = Map::new();
    let number = |pointer| {
        host.object
            .at(pointer)
            .and_then(Value::as_u64)
            .filter(|number| *number > 0)
    };
    if let Some(count) = number("/status/hardware/cpu/count") {
        found.insert("cpu".to_owned(), json!(count.to_string()));
    }
    if let Some(mebibytes) = number("/status/hardware/ramMebibytes") {
        found.insert("memory".to_owned(), json!(format!("{mebibytes}Mi")));
    }
    found
}

fn properties(host: &Host<'_>) -> Map<String, Value> {
    let labels = host.object.at("/metadata/labels").and_then(Value::as_object);
    let places = labels
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(TOPOLOGY));
    let mut found: Map<String, Value> = places.map(|(key, value)| (key.clone(), value.clone())).collect();
    found.insert(SERVER_NAME.to_owned(), json!(host.object.name));
    found
}

/// What a host lacks for a type, as (resource, has).
fn shortage(kind: &NodeType, resources: &Map<String, Value>) -> Option<(&'static str, String)> {
    ["cpu", "memory"].into_iter().find_map(|resource| {
        let needed = *kind.needs.get(resource)?;
        let has = resources.get(resource).and_then(Value::as_str).unwrap_or("0");
        (quantity::parse(has)? < needed).then(|| (resource, has.to_owned()))
    })
}

fn too_small(host: &Host<'_>, kind: &NodeType, resources: &Map<String, Value>) -> Reason {
    let (resource, has) = shortage(kind, resources).unwrap_or_default();
    Reason::new(
        "TooSmall",
        format!(
            "{} has {resource} {has}, less than type {} promises",
            host.title(),
            kind.name
        ),
    )
    .remedy(format!(
        "lower resources.{resource} of the type in the NodeProvider, or relabel the host"
    ))
}
