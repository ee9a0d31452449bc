//! One claim, from its machine's name to a ready node and back to nothing: what is to be done next.
//!
//! ```text
//! Unbound ─(admission, scheduler)─► Bound ─freeze─► Frozen ─reserve, admit─► Driving ─drive─► Available
//!    ▲                                │                │                        │
//!    └───────────── unbind ───────────┴────────────────┴──(machine not taken)───┤
//!                                                                             fail ─► Failed
//! deleted: Ending ─begin─► Draining ─drain─► Releasing ─withdraw─► (nothing held) ─sweep─► Ended
//! ```
//!
//! The state is what the claim's own status records; the sight is what the world shows. Nothing here reads or writes.

mod drain;
#[cfg(test)]
mod tests;

use std::time::Duration;

use hostler_api::conditions::{self, phase};
use hostler_api::names::CLAIM_FINALIZER;
use hostler_api::{NodeClaim, NodeClaimStatus};
use jiff::Timestamp;

pub use drain::{Drain, Left, NodeSight, Patience, drain};

use crate::seams::Reason;

/// How long a node name that another live node has is waited for before another machine is looked for.
pub const NAME_PATIENCE: Duration = Duration::from_secs(30);

/// Condition: what stands in the way of the release, or that it is over.
pub const DESTROYED: &str = "Destroyed";

/// How far a claim is, by its own record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits for acceptance, which puts the finalizer on, and for a place.
    Unbound,
    /// Placed, and somebody took the finalizer off: nothing outside may be touched until it is on again.
    Unguarded,
    /// Placed.
    Bound,
    /// The order is fixed; name, token and boot data follow.
    Frozen {
        /// When.
        since: Timestamp,
    },
    /// The driver is at work.
    Driving {
        /// Whether the driver has answered for this order: then the machine may have been taken.
        begun: bool,
    },
    /// The order can not become, or stay, ready. It is kept until the claim is deleted.
    Failed,
    /// Deleted; the release has not begun.
    Ending {
        /// Whether an order was ever fixed: without one nothing outside was ever touched.
        ordered: bool,
    },
    /// Deleted; pods and Node go.
    Draining,
    /// Deleted; the Node is gone, or is not waited for any more.
    Releasing,
    /// Deleted, and not ours to hold up any more.
    Ended,
}

/// What the world shows of the machine that the claim names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The type is not made of machines.
    NotNeeded,
    /// There, under the recorded uid.
    Here(Hold),
    /// Not there, on a live read.
    Gone,
    /// Another object has its name, on a live read.
    Replaced,
}

/// Whose a machine is, by the loan record on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody's.
    Free,
    /// This claim's.
    Ours,
    /// Another claim's, or one cannot tell whose.
    Others,
}

/// What the world shows of the node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Nobody has it.
    Missing,
    /// This claim has it; `complete` once its token is named in it too.
    Ours {
        /// Whether the token's id is recorded.
        complete: bool,
    },
    /// Another node of the tenant has it.
    Taken {
        /// Whether that one is on its way out.
        leaving: bool,
    },
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The machine.
    pub machine: Machine,
    /// The node's name.
    pub reservation: Reservation,
    /// Whether anything that the driver asked for is still held: a loan or an owned object.
    pub holding: bool,
}

/// What to do next. Each step can be repeated, and can end after any of its writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put the finalizer on.
    Guard,
    /// Somebody else moves next.
    Rest,
    /// Wait, and say why.
    Wait(Reason),
    /// Fix the order in the status.
    Freeze,
    /// Reserve the node's name.
    Reserve,
    /// Make the token and the boot data.
    Admit,
    /// Ask the driver what must stand, and see to it.
    Drive,
    /// Give the place up, so that the scheduler finds another one.
    Unbind(Reason),
    /// Keep what there is and say that it is lost.
    Fail(Reason),
    /// Record that the release begins.
    Begin,
    /// Cordon, evict, delete the Node.
    Drain,
    /// Ask the driver what must stand on the way back; give back what is free.
    Withdraw,
    /// Remove what the host made, look again, and let the claim go.
    Sweep,
}

impl State {
    /// Reads the state out of a claim. The spec is not looked at: a claim with a bad one must be deletable.
    #[must_use]
    pub fn of(claim: &NodeClaim) -> Self {
        let guarded = claim
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|one| one == CLAIM_FINALIZER);
        let none = NodeClaimStatus::default();
        let status = claim.status.as_ref().unwrap_or(&none);
        if claim.metadata.deletion_timestamp.is_some() {
            return Self::ending(guarded, status);
        }
        if status.machine.is_none() {
            return Self::Unbound;
        }
        if !guarded {
            return Self::Unguarded;
        }
        if status.phase.as_deref() == Some(phase::FAILED) && status.order.is_some() {
            return Self::Failed;
        }
        match &status.order {
            None => Self::Bound,
            Some(order) if order.boot_secret.as_ref().is_none_or(|boot| boot.uid.is_none()) => Self::Frozen {
                since: order.frozen.0,
            },
            Some(_) => Self::Driving {
                begun: status.step.is_some(),
            },
        }
    }

    fn ending(guarded: bool, status: &NodeClaimStatus) -> Self {
        if !guarded {
            return Self::Ended;
        }
        if status.release_started.is_none() {
            return Self::Ending {
                ordered: status.order.is_some(),
            };
        }
        let left = conditions::find(&status.conditions, "Joined").and_then(|joined| joined.reason.as_deref());
        if left.is_some_and(|reason| Left::named(reason).is_some()) {
            Self::Releasing
        } else {
            Self::Draining
        }
    }
}

/// What to do for a claim in this state, as the world looks.
#[must_use]
pub fn next(state: &State, sight: &Sight, now: Timestamp) -> Step {
    match state {
        State::Unguarded => Step::Guard,
        State::Unbound | State::Failed | State::Ended => Step::Rest,
        State::Bound => elsewhere(sight.machine).map_or(Step::Freeze, Step::Unbind),
        State::Frozen { since } => match elsewhere(sight.machine) {
            Some(reason) => Step::Unbind(reason),
            None => named(sight.reservation, *since, now),
        },
        State::Driving { begun } => match (elsewhere(sight.machine), begun) {
            (None, _) => Step::Drive,
            (Some(reason), false) => Step::Unbind(reason),
            (Some(reason), true) => Step::Fail(Reason {
                code: "MachineLost".to_owned(),
                ..reason
            }),
        },
        State::Ending { ordered: false } => Step::Sweep,
        State::Ending { ordered: true } => Step::Begin,
        State::Draining => Step::Drain,
        State::Releasing if sight.holding => Step::Withdraw,
        State::Releasing => Step::Sweep,
    }
}

/// Why the machine is not this claim's to have, if it is not.
fn elsewhere(machine: Machine) -> Option<Reason> {
    match machine {
        Machine::NotNeeded | Machine::Here(Hold::Free | Hold::Ours) => None,
        Machine::Here(Hold::Others) => Some(
            Reason::new("HeldByClaim", "the machine is held by another claim")
                .remedy("another one is looked for"),
        ),
        Machine::Gone => Some(Reason::new("MachineGone", "the machine no longer exists")),
        Machine::Replaced => Some(Reason::new(
            "MachineReplaced",
            "the machine was removed, and another one was registered under its name",
        )),
    }
}

fn named(reservation: Reservation, since: Timestamp, now: Timestamp) -> Step {
    let reason = Reason::new(
        "NodeNameTaken",
        "another node of this tenant has the name that this machine's node would get",
    )
    .remedy("remove that node from the tenant, or wait until it has left");
    match reservation {
        Reservation::Missing | Reservation::Ours { complete: false } => Step::Reserve,
        Reservation::Ours { complete: true } => Step::Admit,
        Reservation::Taken { leaving: true } => Step::Wait(reason),
        Reservation::Taken { leaving: false } if elapsed(since, now) < NAME_PATIENCE => Step::Wait(reason),
        Reservation::Taken { leaving: false } => Step::Unbind(reason),
    }
}

/// Time from one moment to another; none if the clock went back.
#[must_use]
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}
