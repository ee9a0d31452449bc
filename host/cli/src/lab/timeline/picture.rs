//! What one look shows: a line for each tenant, claim, host and node, in words that a person follows.

use std::collections::BTreeMap;

use hostler_api as api;
use hostler_api::{conditions, names};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

/// One look: what is shown of each thing, by kind and name.
pub(super) type Picture = BTreeMap<Subject, Line>;

/// A thing that is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    /// Name within the kind, unique: with the namespace or the tenant.
    pub(super) key: String,
}

/// Kinds of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Tenant,
    Claim,
    Host,
    Node,
}

/// What is shown of a thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) detail: String,
    pub(super) mood: Mood,
    /// Order among lines of one moment: causes before effects.
    pub(super) rank: u8,
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// As wished.
    Good,
    /// On its way.
    Moving,
    /// Somebody must do something.
    Bad,
    /// Neither here nor there.
    Plain,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Claim => "claim",
            Self::Host => "host",
            Self::Node => "node",
        }
    }
}

fn subject(kind: Kind, object: &impl ResourceExt) -> Subject {
    Subject {
        kind,
        key: format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()),
    }
}

/// A tenant, and why it is not finished, if it is not.
pub(super) fn tenant(tenant: &api::VirtualClusterInstance) -> (Subject, Line, Option<String>) {
    let name = tenant.name_any();
    let status = tenant.status.clone().unwrap_or_default();
    let is = |condition: &str| conditions::is_true(&status.conditions, condition);
    let seen = status.observed_generation == tenant.metadata.generation;
    let failed = status.phase.as_deref() == Some("Failed");
    let nodes = conditions::find(&status.conditions, "NodesProvisioned");
    let message = status
        .message
        .clone()
        .or_else(|| nodes.and_then(|nodes| nodes.message.clone()))
        .unwrap_or_else(|| "not looked at yet".to_owned());
    let reason = status
        .reason
        .clone()
        .or_else(|| nodes.and_then(|nodes| nodes.reason.clone()))
        .unwrap_or_default();
    let (state, detail, mood, rank) = if tenant.metadata.deletion_timestamp.is_some() {
        ("leaving", message.clone(), Mood::Moving, 1)
    } else if failed {
        ("Failed", format!("{reason}: {message}"), Mood::Bad, 1)
    } else if seen && is("NodesProvisioned") {
        ("complete", message.clone(), Mood::Good, 10)
    } else if is("VirtualClusterReady") {
        ("Ready", "its control plane answers".to_owned(), Mood::Good, 1)
    } else if is("VirtualClusterDeployed") {
        (
            "starting",
            "its control plane is coming up".to_owned(),
            Mood::Moving,
            0,
        )
    } else {
        ("new", String::new(), Mood::Plain, 0)
    };
    let wait = (state != "complete").then(|| {
        let message = if seen {
            message
        } else {
            "its last change was not looked at yet".to_owned()
        };
        format!("tenant {name}: {}", because(&reason, &message))
    });
    let line = Line {
        name,
        state: state.to_owned(),
        detail,
        mood,
        rank,
    };
    (subject(Kind::Tenant, tenant), line, wait)
}

/// A claim, and why it is not Available, if it is not.
pub(super) fn claim(claim: &api::NodeClaim) -> (Subject, Line, Option<String>) {
    let name = claim.name_any();
    let status = claim.status.clone().unwrap_or_default();
    let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    let place = status.machine.as_ref().map(|machine| match &machine.object {
        Some(object) => format!("{} on {}", machine.type_ref, object.name),
        None => machine.type_ref.clone(),
    });
    let pool = claim
        .labels()
        .get(names::POOL)
        .map(|pool| format!("for pool {pool}"));
    let (reason, message) = (
        status.reason.clone().unwrap_or_default(),
        status.message.clone().unwrap_or_default(),
    );
    let trouble = status.conditions.iter().find(|condition| {
        condition.status == "False" && matches!(condition.severity.as_deref(), Some("Error"))
    });
    let (state, detail, mood, rank) = if claim.metadata.deletion_timestamp.is_some() {
        ("releasing".to_owned(), place.unwrap_or_default(), Mood::Moving, 2)
    } else if let Some(trouble) = trouble {
        let text = because(
            trouble.reason.as_deref().unwrap_or_default(),
            trouble.message.as_deref().unwrap_or_default(),
        );
        (phase.clone(), text, Mood::Bad, 4)
    } else if phase == "Available" {
        (phase.clone(), place.unwrap_or_default(), Mood::Good, 9)
    } else if let Some(place) = place {
        (phase.clone(), place, Mood::Moving, 4)
    } else if matches!(reason.as_str(), "" | "Accepted") {
        (phase.clone(), pool.unwrap_or_default(), Mood::Moving, 2)
    } else {
        // What follows changes with every machine that moves, and is told by `kubectl describe`.
        let first = message.split("; ").next().unwrap_or_default();
        (phase.clone(), because(&reason, first), Mood::Moving, 2)
    };
    let wait = (phase != "Available").then(|| format!("claim {name}: {}", because(&reason, &message)));
    (
        subject(Kind::Claim, claim),
        Line {
            name,
            state,
            detail,
            mood,
            rank,
        },
        wait,
    )
}

/// A host in the data centre.
pub(super) fn host(host: &DynamicObject) -> (Subject, Line) {
    let state = match host
        .data
        .pointer("/status/provisioning/state")
        .and_then(Value::as_str)
    {
        Some("") | None => "registering",
        Some(state) => state,
    };
    let error = host
        .data
        .pointer("/status/errorMessage")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let consumer = consumer(host)
        .map(|name| format!("for {name}"))
        .unwrap_or_default();
    let (mood, rank) = match state {
        "available" => (Mood::Plain, 3),
        "provisioned" => (Mood::Good, 6),
        "provisioning" => (Mood::Moving, 5),
        _ => (Mood::Moving, 0),
    };
    let (detail, mood) = if error.is_empty() {
        (consumer, mood)
    } else {
        (error.chars().take(100).collect(), Mood::Bad)
    };
    let line = Line {
        name: host.name_any(),
        state: state.to_owned(),
        detail,
        mood,
        rank,
    };
    (subject(Kind::Host, host), line)
}

/// Name of whoever has a host.
pub(super) fn consumer(host: &DynamicObject) -> Option<&str> {
    host.data
        .pointer("/spec/consumerRef/name")
        .and_then(Value::as_str)
}

/// A node of the tenant whose logical cluster this is.
pub(super) fn node(cluster: &str, node: &Node) -> (Subject, Line) {
    let ready = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|all| {
            all.iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
    let (state, mood, rank) = if ready {
        ("Ready", Mood::Good, 8)
    } else {
        ("NotReady", Mood::Moving, 7)
    };
    let tenant = cluster.rsplit_once('-').map_or(cluster, |(tenant, _)| tenant);
    let detail = format!("in {tenant}");
    let line = Line {
        name: node.name_any(),
        state: state.to_owned(),
        detail,
        mood,
        rank,
    };
    (
        Subject {
            kind: Kind::Node,
            key: format!("{cluster}/{}", node.name_any()),
        },
        line,
    )
}

fn because(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", "") => "not looked at yet".to_owned(),
        (one, "") | ("", one) => one.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_claim(status: &Value, spec: &Value) -> api::NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "management.loft.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "one-abcde", "namespace": "p-default"}, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_shows_its_place_not_the_steps_on_the_way() {
        let spec = json!({"providerRef": "metal3", "typeRef": "metal3.gpu-server"});
        let at = |reason: &str| {
            let machine = json!({"typeRef": "metal3.gpu-server", "uid": "1", "ref":
                {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "namespace": "default", "name": "bare-metal-2"}});
            claim(&read_claim(
                &json!({"phase": "Pending", "reason": reason, "machine": machine}),
                &spec,
            ))
            .1
        };
        assert_eq!(
            at("Preparing"),
            at("PoweringOn"),
            "no new line for what is not news"
        );
        assert_eq!(at("Preparing").detail, "metal3.gpu-server on bare-metal-2");
    }

    #[test]
    fn a_claim_that_waits_says_for_what() {
        let status = json!({"phase": "Pending", "reason": "MachinesPreparing", "message": "none is free yet; one is on its way"});
        let (_, line, wait) = claim(&read_claim(&status, &json!({"providerRef": "metal3"})));
        assert_eq!(line.detail, "MachinesPreparing: none is free yet");
        assert_eq!(
            wait.unwrap(),
            "claim one-abcde: MachinesPreparing: none is free yet; one is on its way"
        );
    }

    #[test]
    fn a_tenant_is_complete_only_for_what_it_asks_now() {
        let mut read: api::VirtualClusterInstance = serde_json::from_value(json!({
            "apiVersion": "management.loft.sh/v1", "kind": "VirtualClusterInstance",
            "metadata": {"name": "one", "namespace": "p-default", "generation": 2}, "spec": {},
            "status": {"phase": "Ready", "observedGeneration": 2, "conditions": [
                {"type": "VirtualClusterReady", "status": "True", "lastTransitionTime": "2026-11-29T20:00:00Z"},
                {"type": "NodesProvisioned", "status": "True", "message": "2 nodes are available",
                 "lastTransitionTime": "2026-11-29T20:00:00Z"}]},
        }))
        .unwrap();
        assert_eq!(tenant(&read).2, None);
        read.metadata.generation = Some(3);
        assert!(tenant(&read).2.unwrap().contains("not looked at yet"));
    }
}
