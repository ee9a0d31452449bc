//! How full pools are, for the tenant's status.

use hostler_api::NodeClaim;
use hostler_api::conditions::Fact;
use hostler_api::tenant::PoolStatus;

use super::{Owner, blank, is_available, live_of};
use crate::seams::Reason;
use crate::values::{Kind, Pool};

/// Reason where a pool is full.
const FULL: &str = "NodesProvisioned";
/// Reason where its claims are under way.
const UNDER_WAY: &str = "NodesPending";

/// State of a pool.
#[must_use]
pub fn status(owner: Owner<'_>, pool: &Pool, claims: &[&NodeClaim]) -> PoolStatus {
    let live = live_of(owner, pool, claims);
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let mut status = PoolStatus {
        claims: count(live.len()),
        available: count(live.iter().filter(|claim| is_available(claim)).count()),
        ..blank(pool)
    };
    if pool.kind == Kind::Dynamic {
        status.reason = Some("NotServedYet".to_owned());
        status.message = Some(format!(
            "{}: dynamic pools are not served yet; use a static pool",
            pool.path
        ));
        return status;
    }
    if status.available >= status.quantity && status.claims <= status.quantity {
        return status;
    }
    let waiting = live
        .iter()
        .filter(|claim| !is_available(claim))
        .find_map(|claim| {
            let status = claim.status.as_ref()?;
            Some((
                status.reason.clone()?,
                claim.metadata.name.as_deref()?,
                status.message.clone(),
            ))
        });
    let (reason, message) = match waiting {
        Some((reason, name, Some(message))) => (reason, format!("{name}: {message}")),
        Some((reason, name, None)) => (reason, format!("{name} is not available yet")),
        None if status.claims < status.quantity => (
            UNDER_WAY.to_owned(),
            format!("{} of {} claims exist", status.claims, status.quantity),
        ),
        None => (
            UNDER_WAY.to_owned(),
            format!("{} of {} nodes are available", status.available, status.quantity),
        ),
    };
    status.reason = Some(reason);
    status.message = Some(message);
    status
}

/// State of a pool that cannot be served as it is written; its claims stay as they are.
#[must_use]
pub fn refused(owner: Owner<'_>, pool: &Pool, claims: &[&NodeClaim], reason: &Reason) -> PoolStatus {
    PoolStatus {
        reason: Some(reason.code.clone()),
        message: Some(reason.text()),
        ..status(owner, pool, claims)
    }
}

/// Whether all static pools are full, and which is not. The words outlive the fact: `text` holds them.
#[must_use]
pub fn filled<'a>(pools: &'a [PoolStatus], text: &'a mut String) -> Fact<'a> {
    let short = pools.iter().find(|pool| {
        pool.reason
            .as_deref()
            .is_some_and(|reason| reason != "NotServedYet")
    });
    let Some(pool) = short else {
        let nodes: i64 = pools.iter().map(|pool| pool.available).sum();
        *text = format!("{nodes} nodes are available");
        return Fact::yes("NodesProvisioned", FULL, text);
    };
    *text = format!(
        "pool {}: {}",
        pool.name,
        pool.message.as_deref().unwrap_or_default()
    );
    Fact::not_yet(
        "NodesProvisioned",
        pool.reason.as_deref().unwrap_or(UNDER_WAY),
        text,
    )
}
