//! Pending claims × node types × machines → bindings. One pass: the same input gives the same answer.
//!
//! For each claim, oldest first: which types fit (every test is run, so that a refusal can say which failed), cheapest
//! first; then the first free machine of the type in an order that depends on the claim alone.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hostler_api::ResourceList;
use hostler_api::node_type::Requirement;
use sha2::{Digest, Sha256};

use crate::seams::{Capacity, ObjectRef, Reason};
use crate::selector::{self, TypeFacts};

/// A node type that claims can be placed on.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeOffer {
    /// Name of the provider.
    pub provider: String,
    /// Facts that selectors read.
    pub facts: TypeFacts,
    /// How many there are.
    pub capacity: Capacity,
    /// What one machine has, as declared.
    pub resources: ResourceList,
    /// Effective cost.
    pub cost: i64,
    /// Seats taken by bound claims, for types that are not made of machines.
    pub claimed: u32,
    /// What there is of it, for whoever waits.
    pub stock: Stock,
}

/// What there is of a type that is made of machines, so that a claim that waits can say for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// Whether the provider's machines were read at all.
    pub is_read: bool,
    /// Machines of the type, whatever their state.
    pub machines: usize,
    /// Why some of them need a person, and how many for each reason.
    pub broken: BTreeMap<String, usize>,
}

/// A machine that is free, or will be by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMachine {
    /// The object.
    pub object: ObjectRef,
    /// Its uid.
    pub uid: String,
    /// Full names of the types that it can serve.
    pub types: BTreeSet<String>,
    /// What it has, as far as known; an absent resource is not checked.
    pub resources: ResourceList,
    /// What it still waits for before it is free, like `Inspecting`.
    pub preparing: Option<String>,
}

/// A claim that waits for a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// `namespace/name`, for order and hashing.
    pub key: String,
    /// uid.
    pub uid: String,
    /// `spec.providerRef`
    pub provider: String,
    /// `spec.typeRef`, where the claim asks for it: what the scheduler shows there is no wish.
    pub type_ref: Option<String>,
    /// `spec.requirements`
    pub requirements: Vec<Requirement>,
    /// `spec.desiredCapacity`
    pub desired: ResourceList,
    /// Creation, for the order: seconds since the epoch.
    pub created: i64,
    /// Whether it was accepted for what it says now. One that is to be judged again keeps its turn, and is given nothing until then.
    pub accepted: bool,
    /// Full names of types that policies deny this claim, with the reason.
    pub denied: BTreeMap<String, Reason>,
}

/// In which pass each waiting claim was first met: an API server tells creation in whole seconds, and a claim that has been told to wait
/// is not overtaken by one that came within the same second. The memory of one leader: with the next one all are met at once, and the
/// name decides between those of a second.
#[derive(Debug, Default)]
pub struct Arrivals {
    pass: u64,
    /// By uid.
    met: HashMap<String, u64>,
}

impl Arrivals {
    /// Begins a pass with these claims; all others are forgotten.
    fn begin_pass(&mut self, pending: &[Pending]) {
        self.pass = self.pass.saturating_add(1);
        let before = std::mem::take(&mut self.met);
        let met = |claim: &Pending| before.get(&claim.uid).copied().unwrap_or(self.pass);
        self.met = pending
            .iter()
            .map(|claim| (claim.uid.clone(), met(claim)))
            .collect();
    }
}

/// A claim's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Full name of the type.
    pub type_name: String,
    /// The machine and its uid, where the type is made of machines.
    pub machine: Option<(ObjectRef, String)>,
}

/// Reason of a claim whose machine will be free by itself.
pub const PREPARING: &str = "MachinesPreparing";
/// Reason of a claim that comes before its provider's machines were read.
pub const NOT_READ: &str = "InventoryNotRead";

/// Resources that every type has; all others make a type special (decision 6 of the domain).
const PLAIN: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// Places each accepted claim, or says why not. Answers come in the order in which the claims were judged: by creation, then by arrival.
#[must_use]
pub fn assign(
    mut pending: Vec<Pending>,
    arrivals: &mut Arrivals,
    types: &[TypeOffer],
    free: &[FreeMachine],
) -> Vec<(Pending, Result<Binding, Reason>)> {
    arrivals.begin_pass(&pending);
    let turn = |claim: &Pending| (claim.created, arrivals.met[&claim.uid]);
    pending.sort_by(|a, b| (turn(a), &a.key).cmp(&(turn(b), &b.key)));
    // Machines that this pass gives away, or that an earlier claim waits for or is to be given.
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut seats: BTreeMap<String, u32> = BTreeMap::new();
    pending
        .into_iter()
        .filter_map(|claim| {
            let place = place(&claim, types, free, &taken, &seats);
            match &place {
                Ok(binding) => {
                    *seats.entry(binding.type_name.clone()).or_default() += 1;
                    taken.extend(binding.machine.iter().map(|(_, uid)| uid.clone()));
                }
                Err(Refusal { awaited, .. }) => taken.extend(awaited.clone()),
            }
            let answer = place.map_err(|refusal| refusal.reason);
            claim.accepted.then_some((claim, answer))
        })
        .collect()
}

/// Why a claim has no place.
struct Refusal {
    reason: Reason,
    /// uid of the machine that it will have, if nothing happens to that.
    awaited: Option<String>,
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            awaited: None,
        }
    }
}

fn place(
    claim: &Pending,
    types: &[TypeOffer],
    free: &[FreeMachine],
    taken: &BTreeSet<String>,
    seats: &BTreeMap<String, u32>,
) -> Result<Binding, Refusal> {
    let mut misfits: Vec<String> = Vec::new();
    let mut denials: Vec<Reason> = Vec::new();
    let mut full: Vec<&TypeOffer> = Vec::new();
    let mut fitting: Vec<&TypeOffer> = Vec::new();
    for offer in types.iter().filter(|offer| offer.provider == claim.provider) {
        let name = &offer.facts.full_name;
        match misfit(claim, offer) {
            Some(why) => misfits.push(format!("{name} {why}")),
            None => match claim.denied.get(name) {
                Some(reason) => denials.push(reason.clone()),
                None => fitting.push(offer),
            },
        }
    }
    fitting.sort_by(|a, b| (a.cost, &a.facts.full_name).cmp(&(b.cost, &b.facts.full_name)));
    for offer in &fitting {
        let name = &offer.facts.full_name;
        match offer.capacity {
            Capacity::Machines => match machine(claim, offer, free, taken, false) {
                Some(machine) => {
                    let machine = Some((machine.object.clone(), machine.uid.clone()));
                    return Ok(Binding {
                        type_name: name.clone(),
                        machine,
                    });
                }
                None => full.push(offer),
            },
            Capacity::AtMost(most) => {
                let used = offer
                    .claimed
                    .saturating_add(seats.get(name).copied().unwrap_or(0));
                if used < most {
                    return Ok(Binding {
                        type_name: name.clone(),
                        machine: None,
                    });
                }
                full.push(offer);
            }
            Capacity::Unlimited => {
                return Ok(Binding {
                    type_name: name.clone(),
                    machine: None,
                });
            }
        }
    }
    let coming = full
        .iter()
        .find_map(|offer| Some((*offer, machine(claim, offer, free, taken, true)?)));
    if let Some((offer, machine)) = coming {
        return Err(Refusal {
            reason: preparing(offer, machine),
            awaited: Some(machine.uid.clone()),
        });
    }
    Err(refusal(claim, &misfits, denials, &full).into())
}

fn preparing(offer: &TypeOffer, machine: &FreeMachine) -> Reason {
    let state = machine.preparing.as_deref().unwrap_or_default();
    let text = format!(
        "no machine of {} is free yet; {} is on its way ({state})",
        offer.facts.full_name, machine.object.name
    );
    Reason::new(PREPARING, text).remedy("waiting for it; nothing need be done")
}

/// Why nothing of these types, which would do, can be had.
fn full_up(full: &[&TypeOffer]) -> Option<Reason> {
    let names: Vec<&str> = full.iter().map(|offer| offer.facts.full_name.as_str()).collect();
    let first = full.first()?;
    if full
        .iter()
        .any(|offer| offer.capacity == Capacity::Machines && !offer.stock.is_read)
    {
        let text = format!(
            "the machines of provider {} have not been read yet",
            first.provider
        );
        return Some(
            Reason::new(NOT_READ, text).remedy("waiting for them; see the conditions of the NodeProvider"),
        );
    }
    if full
        .iter()
        .all(|offer| offer.capacity == Capacity::Machines && offer.stock.machines == 0)
    {
        let text = format!("no machine matches {}", names.join(", "));
        let remedy = format!(
            "add machines that its selector in NodeProvider {} matches, or change nodeTypes[].…selector there",
            first.provider
        );
        return Some(Reason::new("NoCapacity", text).remedy(remedy));
    }
    let mut broken: BTreeMap<&str, usize> = BTreeMap::new();
    for (code, count) in full.iter().flat_map(|offer| &offer.stock.broken) {
        *broken.entry(code).or_default() += count;
    }
    let mut text = format!("no machine of {} is free", names.join(", "));
    if !broken.is_empty() {
        let causes: Vec<String> = broken
            .iter()
            .map(|(code, count)| format!("{count} {code}"))
            .collect();
        text = format!("{text}; not usable as they are: {}", causes.join(", "));
    }
    Some(
        Reason::new("NoCapacity", text)
            .remedy("waiting for one to come free; add machines or release claims"),
    )
}

fn refusal(claim: &Pending, misfits: &[String], denials: Vec<Reason>, full: &[&TypeOffer]) -> Reason {
    if let Some(reason) = full_up(full) {
        return reason;
    }
    if let Some(denial) = denials.into_iter().next() {
        return denial;
    }
    if let Some(wanted) = &claim.type_ref {
        return match misfits.iter().find(|why| why.starts_with(&format!("{wanted} "))) {
            Some(why) => Reason::new("NoMatchingNodeType", format!("node type {why}")),
            None => Reason::new("UnknownNodeType", format!("node type {wanted} does not exist")).remedy(
                format!("set spec.typeRef to a NodeType of provider {}", claim.provider),
            ),
        };
    }
    if misfits.is_empty() {
        return Reason::new(
            "NoNodeTypes",
            format!("provider {} offers no node type", claim.provider),
        )
        .remedy("see the conditions of the NodeProvider");
    }
    Reason::new(
        "NoMatchingNodeType",
        format!("no node type fits: {}", misfits.join("; ")),
    )
    .remedy("change the pool's nodeTypeSelector or the provider's node types")
}

/// Why a type cannot serve a claim, if so.
fn misfit(claim: &Pending, offer: &TypeOffer) -> Option<String> {
    let mut why: Vec<String> = Vec::new();
    if claim
        .type_ref
        .as_ref()
        .is_some_and(|wanted| *wanted != offer.facts.full_name)
    {
        why.push("is not the one asked for".to_owned());
    }
    if let Err(mismatch) = selector::matches(&claim.requirements, &offer.facts) {
        why.push(mismatch.to_string());
    }
    for (resource, wanted) in &claim.desired {
        let has = offer.resources.get(resource);
        let fits = match (wanted.millis(), has.and_then(hostler_api::Amount::millis)) {
            (Some(wanted), Some(has)) => has >= wanted,
            (Some(_), None) => offer.resources.is_empty() && PLAIN.contains(&resource.as_str()),
            (None, _) => false,
        };
        if !fits {
            why.push(format!("has too little {resource}"));
        }
    }
    if is_guarded(claim, offer) {
        why.push("has extra resources that the claim neither asks for nor selects by name".to_owned());
    }
    (!why.is_empty()).then(|| why.join(" and "))
}

fn is_guarded(claim: &Pending, offer: &TypeOffer) -> bool {
    let extra: Vec<&String> = offer
        .resources
        .keys()
        .filter(|name| !PLAIN.contains(&name.as_str()))
        .collect();
    if extra.is_empty() || claim.type_ref.is_some() {
        return false;
    }
    let asked = extra.iter().any(|name| claim.desired.contains_key(*name));
    let named = claim.requirements.iter().any(|one| {
        one.key == hostler_api::names::PROPERTY_NODE_TYPE
            && one.operator == "In"
            && one
                .values
                .iter()
                .any(|value| *value == offer.facts.full_name || *value == offer.facts.short_name)
    });
    !asked && !named
}

fn machine<'a>(
    claim: &Pending,
    offer: &TypeOffer,
    free: &'a [FreeMachine],
    taken: &BTreeSet<String>,
    coming: bool,
) -> Option<&'a FreeMachine> {
    free.iter()
        .filter(|machine| machine.preparing.is_some() == coming)
        .filter(|machine| !taken.contains(&machine.uid) && machine.types.contains(&offer.facts.full_name))
        .filter(|machine| is_big_enough(&offer.resources, &machine.resources))
        // An order that depends on claim and machine alone: a turn that is repeated after a crash chooses the same again.
        .min_by_key(|machine| Sha256::digest(format!("{}/{}", claim.uid, machine.uid)).to_vec())
}

/// Whether a machine has at least what its type declares; what it does not report is not checked.
fn is_big_enough(declared: &ResourceList, has: &ResourceList) -> bool {
    declared.iter().all(|(name, wanted)| {
        match (
            wanted.millis(),
            has.get(name).and_then(hostler_api::Amount::millis),
        ) {
            (Some(wanted), Some(has)) => has >= wanted,
            _ => true,
        }
    })
}

/// Effective cost of a type: as set, else 10 per CPU, 2 per GiB of memory and 10000 per other resource.
#[must_use]
pub fn cost(set: Option<i64>, resources: &ResourceList) -> i64 {
    set.unwrap_or_else(|| {
        resources.iter().fold(0_i64, |sum, (name, amount)| {
            let millis = amount.millis().unwrap_or(0);
            let part = match name.as_str() {
                "cpu" => millis * 10 / 1_000,
                "memory" => millis * 2 / (1_000 << 30),
                "pods" | "ephemeral-storage" => 0,
                _ => millis * 10_000 / 1_000,
            };
            sum.saturating_add(i64::try_from(part).unwrap_or(i64::MAX))
        })
    })
}
