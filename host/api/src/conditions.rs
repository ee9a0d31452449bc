//! Conditions: facts in the positive, with a reason that is one CamelCase word, and how to set one.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// One fact about an object, in the older Cluster API form (with a severity) that the reference API uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.severity) || self.severity == '' || self.status == 'False'")
    .message("severity is for a condition that does not hold; leave it out unless status is False")
    .field_path(".severity"))]
pub struct Condition {
    /// The fact.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(schema_with = "status")]
    pub status: String,
    /// `Error`, `Warning`, `Info` or empty; only where `status` is `False`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "severity")]
    pub severity: Option<String>,
    /// When `status` last changed.
    pub last_transition_time: Time,
    /// One CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::reason")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::shape::message")]
    pub message: Option<String>,
    /// `metadata.generation` that this was judged from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["True", "False", "Unknown"]})
}

fn severity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Error", "Warning", "Info", ""]})
}

/// What a condition says, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact<'a> {
    /// The fact.
    pub kind: &'a str,
    /// Yes, no, or not known.
    pub status: Option<bool>,
    /// One CamelCase word.
    pub reason: &'a str,
    /// One sentence; may be empty.
    pub message: &'a str,
    /// For a no that a person must act on.
    pub severity: Option<&'a str>,
}

impl<'a> Fact<'a> {
    /// The fact holds.
    #[must_use]
    pub fn yes(kind: &'a str, reason: &'a str, message: &'a str) -> Self {
        Self {
            kind,
            status: Some(true),
            reason,
            message,
            severity: None,
        }
    }

    /// The fact does not hold yet; nobody need act.
    #[must_use]
    pub fn not_yet(kind: &'a str, reason: &'a str, message: &'a str) -> Self {
        Self {
            kind,
            status: Some(false),
            reason,
            message,
            severity: Some("Info"),
        }
    }

    /// The fact does not hold and somebody must act.
    #[must_use]
    pub fn no(kind: &'a str, reason: &'a str, message: &'a str) -> Self {
        Self {
            kind,
            status: Some(false),
            reason,
            message,
            severity: Some("Error"),
        }
    }

    /// It cannot be told.
    #[must_use]
    pub fn unknown(kind: &'a str, reason: &'a str, message: &'a str) -> Self {
        Self {
            kind,
            status: None,
            reason,
            message,
            severity: None,
        }
    }
}

/// Sets one condition; the transition time moves only with the status. True when anything but times changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    fact: &Fact<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let status = match fact.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let next = Condition {
        kind: fact.kind.to_owned(),
        status: status.to_owned(),
        severity: fact.severity.map(ToOwned::to_owned),
        last_transition_time: Time(now),
        reason: Some(fact.reason.to_owned()),
        message: (!fact.message.is_empty()).then(|| fact.message.to_owned()),
        observed_generation: generation,
    };
    let Some(known) = conditions.iter_mut().find(|known| known.kind == fact.kind) else {
        conditions.push(next);
        return true;
    };
    let time = if known.status == next.status {
        known.last_transition_time.clone()
    } else {
        next.last_transition_time.clone()
    };
    let next = Condition {
        last_transition_time: time,
        ..next
    };
    let changed = *known != next;
    *known = next;
    changed
}

/// The condition of this type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// Whether the condition of this type is `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Of a claim: that it may be placed.
pub const ACCEPTED: &str = "Accepted";

/// Phases of claims, types, providers and environments.
pub mod phase {
    /// Under way.
    pub const PENDING: &str = "Pending";
    /// In use or usable.
    pub const AVAILABLE: &str = "Available";
    /// Cannot go on without a change.
    pub const FAILED: &str = "Failed";
    /// A tenant that works.
    pub const READY: &str = "Ready";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut all = Vec::new();
        let noon: Timestamp = "2026-11-29T12:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-11-29T13:00:00Z".parse().unwrap();
        assert!(set(
            &mut all,
            &Fact::not_yet("Joined", "NotJoined", "waiting"),
            Some(1),
            noon
        ));
        assert!(!set(
            &mut all,
            &Fact::not_yet("Joined", "NotJoined", "waiting"),
            Some(1),
            later
        ));
        assert!(set(
            &mut all,
            &Fact::not_yet("Joined", "NotJoined", "still waiting"),
            Some(1),
            later
        ));
        assert_eq!(all[0].last_transition_time, Time(noon));
        assert!(set(&mut all, &Fact::yes("Joined", "Joined", ""), Some(1), later));
        assert_eq!(all[0].last_transition_time, Time(later));
        assert!(is_true(&all, "Joined"));
    }
}
