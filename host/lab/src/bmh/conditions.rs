//! The six conditions of a host, from its state and how it fares.
//!
//! One peculiarity of the real thing is kept: `Healthy` is set once and not looked at again, so that its
//! `observedGeneration` stays what it was at first.

use jiff::Timestamp;

use super::status::{Condition, Operational, State, Status};

/// Sets the conditions that follow from the rest of `status`.
pub(super) fn compute(status: &mut Status, generation: i64, now: Timestamp) {
    let state = status.provisioning.state;
    let manageable = match state {
        State::None | State::Unmanaged => ("False", "NotManaged"),
        State::Registering if status.operational_status == Operational::Error => {
            ("False", "RegistrationFailed")
        }
        State::Registering => ("False", "Registering"),
        _ => ("True", "Manageable"),
    };
    let available = match state {
        State::Available => ("True", "Available"),
        _ => ("False", "NotAvailable"),
    };
    let provisioned = match state {
        State::Provisioned | State::ExternallyProvisioned => ("True", "Provisioned"),
        _ => ("False", "NotProvisioned"),
    };
    let ready = match status.operational_status {
        Operational::Error => ("False", "Error"),
        Operational::Servicing => ("False", "Servicing"),
        Operational::Detached => ("False", "Detached"),
        Operational::None | Operational::Discovered | Operational::Ok | Operational::Delayed => provisioned,
    };
    let progressing = match state {
        _ if status.operational_status == Operational::Detached => ("False", "Detached"),
        State::None
        | State::Unmanaged
        | State::Available
        | State::Provisioned
        | State::ExternallyProvisioned => ("False", "NotProgressing"),
        State::Registering => ("True", "Registering"),
        State::Inspecting => ("True", "Inspecting"),
        State::Preparing => ("True", "Preparing"),
        State::Provisioning => ("True", "Provisioning"),
        State::Deprovisioning => ("True", "Deprovisioning"),
        State::PoweringOffBeforeDelete => ("True", "PoweringOffBeforeDelete"),
        State::Deleting => ("True", "Deleting"),
    };
    for (kind, (value, reason)) in [
        ("Manageable", manageable),
        ("AvailableForProvisioning", available),
        ("Provisioned", provisioned),
        ("Ready", ready),
        ("Progressing", progressing),
    ] {
        set(&mut status.conditions, kind, value, reason, generation, now);
    }
    if !status
        .conditions
        .iter()
        .any(|condition| condition.kind == "Healthy")
    {
        set(
            &mut status.conditions,
            "Healthy",
            "Unknown",
            "Unknown",
            generation,
            now,
        );
    }
    status
        .conditions
        .sort_by(|a, b| (a.kind != "Ready", &a.kind).cmp(&(b.kind != "Ready", &b.kind)));
}

fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    value: &str,
    reason: &str,
    generation: i64,
    now: Timestamp,
) {
    let last_transition_time = match conditions.iter().find(|condition| condition.kind == kind) {
        Some(before) if before.status == value => before.last_transition_time,
        _ => now,
    };
    conditions.retain(|condition| condition.kind != kind);
    conditions.push(Condition {
        last_transition_time,
        message: String::new(),
        observed_generation: generation,
        reason: reason.to_owned(),
        status: value.to_owned(),
        kind: kind.to_owned(),
    });
}
