//! How a tenant's node is taken out of use, and how long that is waited for.

use std::time::Duration;

use jiff::Timestamp;

use super::elapsed;
use crate::values::Grace;

/// What the tenant's API shows of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSight {
    /// The tenant is gone or going: nobody is left to wait for.
    TenantGone,
    /// Whether the tenant's API answers, this host does not know yet: it has just begun.
    Unknown,
    /// The tenant's API does not answer.
    Unreachable,
    /// There is no Node of that name.
    Absent,
    /// There is one, and it is not the one that this claim joined.
    NotOurs,
    /// There it is.
    Present {
        /// Whether it takes no new pods.
        cordoned: bool,
        /// Pods that are still to leave.
        pods: usize,
        /// When it was told to go.
        deleted: Option<Timestamp>,
    },
}

/// How long things are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For pods to leave.
    pub grace: Grace,
    /// For a tenant's API to come back.
    pub unreachable: Duration,
    /// For a Node that somebody's finalizer holds.
    pub deletion: Duration,
}

/// What to do about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Keep new pods away.
    Cordon,
    /// Ask the pods to leave.
    Evict,
    /// Delete the Node.
    Delete,
    /// Look again.
    Wait,
    /// The node is out of the way.
    Done(Left),
}

/// Why the node is out of the way; the reason of the claim's `Joined` condition from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It is gone.
    NodeGone,
    /// Its tenant is.
    TenantGone,
    /// Its tenant's API did not answer for too long.
    TenantUnreachable,
    /// Something in the tenant holds the Node longer than a release waits.
    NodeStuck,
    /// The Node of that name is somebody else's.
    NodeNotOurs,
}

impl Left {
    pub(super) const ALL: [Self; 5] = [
        Self::NodeGone,
        Self::TenantGone,
        Self::TenantUnreachable,
        Self::NodeStuck,
        Self::NodeNotOurs,
    ];

    /// One CamelCase word.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::NodeGone => "NodeGone",
            Self::TenantGone => "TenantGone",
            Self::TenantUnreachable => "TenantUnreachable",
            Self::NodeStuck => "NodeStuck",
            Self::NodeNotOurs => "NodeNotOurs",
        }
    }

    /// One sentence.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::NodeGone => "the node has left the tenant",
            Self::TenantGone => "the tenant is being deleted; its node is not drained",
            Self::TenantUnreachable => {
                "the tenant's API does not answer; the machine is released without draining its node"
            }
            Self::NodeStuck => "a finalizer keeps the Node; the machine is released all the same",
            Self::NodeNotOurs => {
                "the Node of this name is not the one that this claim joined; it is left alone"
            }
        }
    }

    /// The one with this reason.
    #[must_use]
    pub fn named(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|left| left.reason() == reason)
    }
}

/// The next thing to do about the node of a claim whose release started then.
#[must_use]
pub fn drain(sight: NodeSight, started: Timestamp, now: Timestamp, patience: Patience) -> Drain {
    let waited = elapsed(started, now);
    match sight {
        NodeSight::TenantGone => Drain::Done(Left::TenantGone),
        NodeSight::Absent => Drain::Done(Left::NodeGone),
        NodeSight::NotOurs => Drain::Done(Left::NodeNotOurs),
        NodeSight::Unknown => Drain::Wait,
        NodeSight::Unreachable => {
            // `Never` is about pods. Whether there are any, nobody can say now: so it has a bound here.
            let grace = match patience.grace {
                Grace::Never => Duration::ZERO,
                Grace::After(grace) => grace,
            };
            if waited >= grace.max(patience.unreachable) {
                Drain::Done(Left::TenantUnreachable)
            } else {
                Drain::Wait
            }
        }
        NodeSight::Present {
            deleted: Some(since), ..
        } => {
            // The tenant's clock is the tenant's to set: a moment that is still to come counts as the start of the release.
            let since = if since > now { started } else { since };
            if elapsed(since, now) >= patience.deletion {
                Drain::Done(Left::NodeStuck)
            } else {
                Drain::Wait
            }
        }
        NodeSight::Present { cordoned: false, .. } => Drain::Cordon,
        NodeSight::Present { pods: 0, .. } => Drain::Delete,
        NodeSight::Present { .. } => match patience.grace {
            Grace::After(grace) if waited >= grace => Drain::Delete,
            Grace::After(_) | Grace::Never => Drain::Evict,
        },
    }
}
