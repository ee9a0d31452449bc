//! Static pools: from the wished number and the claims that there are, to claims to create and to delete.
//!
//! # Guarantees
//! A claim's name follows from the tenant's uid, the pool, the slot and the round. A create that is repeated, after a crash or from a
//! cache that is behind, finds the name taken by its own first try; so a pool never overshoots.

mod fill;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use hostler_api::conditions::{self, phase};
use hostler_api::tenant::PoolStatus;
use hostler_api::{NodeClaim, NodeClaimSpec, VirtualClusterInstance, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sha2::{Digest, Sha256};

pub use fill::{filled, refused, status};

use crate::values::{Kind, Pool};

/// Characters of the last part of a name: no vowels and nothing that looks like another, so that no name spells a word.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of the last part of a name.
const TAIL: usize = 5;
/// Longest name of a claim, so that it fits into a label.
const MAX_NAME: usize = 63;
/// Claims of one pool beyond those that are bound and those for which machines are free: enough to show that more is wanted.
const AHEAD: i64 = 5;
/// Claims that one turn creates; the next turn goes on.
const BATCH: usize = 50;
/// First wait before a claim that failed is replaced; doubled with each that fails in a row.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// Longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1800);

/// The tenant whose pools these are.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The object.
    pub tenant: &'a VirtualClusterInstance,
    /// This installation.
    pub installation: &'a str,
}

impl Owner<'_> {
    fn uid(&self) -> &str {
        self.tenant.metadata.uid.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.tenant.metadata.name.as_deref().unwrap_or_default()
    }
}

/// A claim to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Going {
    /// Name.
    pub name: String,
    /// uid.
    pub uid: String,
    /// Why, in one CamelCase word: `ScaledDown`, `Replaced`, `PoolRemoved`.
    pub why: &'static str,
}

/// What a pool needs now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Claims to create.
    pub creates: Vec<NodeClaim>,
    /// Claims to delete.
    pub deletes: Vec<Going>,
    /// When a failed claim may be replaced.
    pub again: Option<Duration>,
    /// Whether creates were left for the next turn.
    pub more: bool,
}

/// Where a claim stands in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    number: u32,
    round: u32,
}

/// Whether a claim is this tenant's, of this pool.
#[must_use]
pub fn is_of(claim: &NodeClaim, owner: Owner<'_>, pool: &str) -> bool {
    pool_of(claim, owner) == Some(pool)
}

/// Pool of a claim that one of this tenant's pools made.
#[must_use]
pub fn pool_of<'a>(claim: &'a NodeClaim, owner: Owner<'_>) -> Option<&'a str> {
    let labels = claim.metadata.labels.as_ref()?;
    let tenant = labels
        .get(names::TENANT_UID)
        .is_some_and(|uid| uid == owner.uid());
    let pool = labels.get(names::POOL)?;
    (tenant && claim.metadata.namespace == owner.tenant.metadata.namespace).then_some(pool)
}

/// Claims of pools that the values no longer have.
#[must_use]
pub fn orphaned(owner: Owner<'_>, pools: &[Pool], claims: &[&NodeClaim]) -> Vec<Going> {
    let known: BTreeSet<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    claims
        .iter()
        .filter(|claim| is_live(claim) && pool_of(claim, owner).is_some_and(|pool| !known.contains(pool)))
        .map(|claim| going(claim, "PoolRemoved"))
        .collect()
}

/// What a static pool needs. `claims` are all claims of the namespace; `free` counts free machines that would do, `None` is no bound.
#[must_use]
pub fn plan(owner: Owner<'_>, pool: &Pool, claims: &[&NodeClaim], free: Option<i64>, now: Timestamp) -> Plan {
    let Kind::Static { quantity } = pool.kind else {
        return Plan::default();
    };
    let mut live: Vec<&NodeClaim> = claims
        .iter()
        .copied()
        .filter(|claim| is_live(claim) && is_of(claim, owner, &pool.name))
        .collect();
    let mut plan = Plan::default();
    let excess = usize::try_from(
        i64::try_from(live.len())
            .unwrap_or(i64::MAX)
            .saturating_sub(quantity),
    )
    .unwrap_or(0);
    if excess > 0 {
        live.sort_by_key(|claim| keep_rank(claim));
        plan.deletes = live[..excess]
            .iter()
            .map(|claim| going(claim, "ScaledDown"))
            .collect();
        live.drain(..excess);
    }
    let mut attempts = Vec::new();
    live.retain(|claim| {
        if !is_failed(claim) {
            return true;
        }
        let attempt = attempt_of(claim);
        let left = wait(claim, attempt).saturating_sub(since_failed(claim, now));
        if !left.is_zero() {
            plan.again = Some(plan.again.map_or(left, |known| known.min(left)));
            return true;
        }
        plan.deletes.push(going(claim, "Replaced"));
        attempts.push(if had_joined(claim) {
            0
        } else {
            attempt.saturating_add(1)
        });
        false
    });
    let held = i64::try_from(live.len()).unwrap_or(i64::MAX);
    let bound = i64::try_from(live.iter().filter(|claim| is_bound(claim)).count()).unwrap_or(i64::MAX);
    let room = free.map_or(i64::MAX, |free| {
        bound.saturating_add(free.max(0)).saturating_add(AHEAD)
    });
    let wanted = quantity.min(room).saturating_sub(held).max(0);
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if wanted == 0 {
        return plan;
    }
    plan.more = wanted > BATCH;
    let mut used: BTreeSet<u32> = live
        .iter()
        .filter_map(|claim| slot_of(claim, owner, &pool.name))
        .map(|slot| slot.number)
        .collect();
    let mut taken: BTreeSet<&str> = claims
        .iter()
        .filter_map(|claim| claim.metadata.name.as_deref())
        .collect();
    let fresh: Vec<(Slot, String)> = (0..)
        .filter(|number| used.insert(*number))
        .take(wanted.min(BATCH))
        .map(|number| free_name(owner, &pool.name, number, &taken))
        .collect();
    taken.extend(fresh.iter().map(|(_, name)| name.as_str()));
    let mut attempts = attempts.into_iter();
    plan.creates = fresh
        .iter()
        .map(|(slot, name)| claim(owner, pool, name, *slot, attempts.next().unwrap_or(0)))
        .collect();
    plan
}

/// What of a live claim is no longer as its pool would make it today.
#[must_use]
pub fn drift(pool: &Pool, claim: &NodeClaim) -> Vec<String> {
    let today = spec(None, pool);
    let mut fields = Vec::new();
    let mut differs = |field: &str, differs: bool| {
        if differs {
            fields.push(field.to_owned());
        }
    };
    differs("provider", claim.spec.provider_ref != today.provider_ref);
    differs("nodeTypeSelector", claim.spec.requirements != today.requirements);
    differs("properties", claim.spec.properties != today.properties);
    differs("nodeLabels", claim.spec.node_labels != today.node_labels);
    differs("taints", claim.spec.taints != today.taints);
    fields
}

/// Whether a claim is not being deleted.
#[must_use]
pub fn is_live(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
}

fn has_phase(claim: &NodeClaim, phase: &str) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
}

fn is_available(claim: &NodeClaim) -> bool {
    has_phase(claim, phase::AVAILABLE)
}

fn is_failed(claim: &NodeClaim) -> bool {
    has_phase(claim, phase::FAILED)
}

fn is_bound(claim: &NodeClaim) -> bool {
    claim.type_ref().is_some()
        || claim
            .status
            .as_ref()
            .is_some_and(|status| status.machine.is_some())
}

fn had_joined(claim: &NodeClaim) -> bool {
    claim
        .status
        .as_ref()
        .is_some_and(|status| status.node_uid.is_some())
}

/// Lowest goes first: unready (those without a machine before the others), then marked, then newest.
fn keep_rank(claim: &NodeClaim) -> (bool, bool, bool, Reverse<Option<Timestamp>>, Reverse<String>) {
    let marked = claim
        .status
        .as_ref()
        .is_some_and(|status| conditions::is_true(&status.conditions, names::PREFERRED_DELETION));
    let available = is_available(claim);
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let name = claim.metadata.name.clone().unwrap_or_default();
    (
        available,
        !available && is_bound(claim),
        !marked,
        Reverse(created),
        Reverse(name),
    )
}

fn since_failed(claim: &NodeClaim, now: Timestamp) -> Duration {
    let status = claim.status.as_ref();
    let failed = status
        .into_iter()
        .flat_map(|status| &status.conditions)
        .filter(|condition| condition.status == "False")
        .map(|condition| condition.last_transition_time.0)
        .max()
        .or(claim.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(now);
    now.duration_since(failed).try_into().unwrap_or(Duration::ZERO)
}

/// The doubled wait, less up to a fifth that the uid decides: claims that failed together are not replaced together.
fn wait(claim: &NodeClaim, attempt: u32) -> Duration {
    let whole = FIRST_WAIT.saturating_mul(1 << attempt.min(16)).min(LONGEST_WAIT);
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let spread = u32::from(Sha256::digest(uid)[0]);
    whole - whole * spread / (5 * 256)
}

fn going(claim: &NodeClaim, why: &'static str) -> Going {
    Going {
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        why,
    }
}

fn annotation<'a>(claim: &'a NodeClaim, key: &str) -> Option<&'a str> {
    claim
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(key))
        .map(String::as_str)
}

fn attempt_of(claim: &NodeClaim) -> u32 {
    annotation(claim, names::ATTEMPT)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The slot that a claim says it has, if its name bears it out.
fn slot_of(claim: &NodeClaim, owner: Owner<'_>, pool: &str) -> Option<Slot> {
    let (number, round) = annotation(claim, names::SLOT)?.split_once('.')?;
    let slot = Slot {
        number: number.parse().ok()?,
        round: round.parse().ok()?,
    };
    (claim.metadata.name.as_deref() == Some(&name(owner, pool, slot))).then_some(slot)
}

/// The first round of a slot whose name nobody bears.
fn free_name(owner: Owner<'_>, pool: &str, number: u32, taken: &BTreeSet<&str>) -> (Slot, String) {
    let mut slot = Slot { number, round: 0 };
    loop {
        let name = name(owner, pool, slot);
        if !taken.contains(name.as_str()) {
            return (slot, name);
        }
        slot.round += 1;
    }
}

fn name(owner: Owner<'_>, pool: &str, slot: Slot) -> String {
    let mut hash = Sha256::new();
    for part in [
        owner.uid(),
        pool,
        &slot.number.to_string(),
        &slot.round.to_string(),
    ] {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    let mut number = u64::from_be_bytes(
        digest[..8]
            .try_into()
            .expect("a digest has more than eight bytes"),
    );
    let base = ALPHABET.len() as u64;
    let tail: String = (0..TAIL)
        .map(|_| {
            let letter = usize::try_from(number % base).expect("a remainder of 27 fits");
            number /= base;
            char::from(ALPHABET[letter])
        })
        .collect();
    let head: String = owner.name().chars().take(MAX_NAME - TAIL - 1).collect();
    format!("{}-{tail}", head.trim_end_matches(['-', '.']))
}

fn spec(owner: Option<Owner<'_>>, pool: &Pool) -> NodeClaimSpec {
    NodeClaimSpec {
        owner: owner.and_then(|owner| owner.tenant.spec.owner.clone()),
        provider_ref: pool.provider.clone(),
        vcluster_ref: owner.map(|owner| owner.name().to_owned()),
        properties: pool.properties.clone(),
        node_labels: pool.node_labels.clone(),
        taints: pool.taints.clone(),
        profile_ref: pool.profile.clone(),
        requirements: pool.requirements.clone(),
        termination_grace_period: pool.termination_grace_period.clone(),
        ..NodeClaimSpec::default()
    }
}

fn claim(owner: Owner<'_>, pool: &Pool, name: &str, slot: Slot, attempt: u32) -> NodeClaim {
    let mut claim = NodeClaim::new(name, spec(Some(owner), pool));
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    claim
        .metadata
        .namespace
        .clone_from(&owner.tenant.metadata.namespace);
    claim.metadata.labels = Some(
        [
            label(names::POOL, &pool.name),
            label(names::TENANT_UID, owner.uid()),
            label(names::INSTALLATION, owner.installation),
        ]
        .into(),
    );
    let mut annotations = vec![label(names::SLOT, &format!("{}.{}", slot.number, slot.round))];
    if attempt > 0 {
        annotations.push(label(names::ATTEMPT, &attempt.to_string()));
    }
    claim.metadata.annotations = Some(annotations.into_iter().collect());
    claim.metadata.finalizers = Some(vec![names::CLAIM_FINALIZER.to_owned()]);
    // The tenant's finalizer does the deleting; this is for the day on which somebody takes that finalizer off by hand.
    claim.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "management.loft.sh/v1".to_owned(),
        kind: "VirtualClusterInstance".to_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }]);
    claim
}

#[cfg(test)]
mod tests;

/// For the sibling module and the tests.
fn live_of<'a>(owner: Owner<'_>, pool: &Pool, claims: &[&'a NodeClaim]) -> Vec<&'a NodeClaim> {
    claims
        .iter()
        .copied()
        .filter(|claim| is_live(claim) && is_of(claim, owner, &pool.name))
        .collect()
}

/// An empty status of a pool.
fn blank(pool: &Pool) -> PoolStatus {
    let quantity = match pool.kind {
        Kind::Static { quantity } => quantity,
        Kind::Dynamic => 0,
    };
    PoolStatus {
        name: pool.name.clone(),
        provider: pool.provider.clone(),
        quantity,
        ..PoolStatus::default()
    }
}
