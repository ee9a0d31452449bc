//! Pending claims × node types × machines → bindings. One pass: the same input gives the same answer.
//!
//! For each claim, oldest first: which types fit (every test is run, so that a refusal can say which failed), cheapest
//! first; then the first free machine of the type in an order that depends on the claim alone.

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
    /// `spec.typeRef`, where set.
    pub type_ref: Option<String>,
    /// `spec.requirements`
    pub requirements: Vec<Requirement>,
    /// `spec.desiredCapacity`
    pub desired: ResourceList,
    /// Creation, for the order: seconds since the epoch.
    pub created: i64,
    /// The pass that first met it, for the order of those made in the same second; see [`Arrivals`].
    pub arrived: u64,
    /// Whether it was accepted for what it says now. One that is to be judged again keeps its turn, and is given nothing until then.
    pub accepted: bool,
    /// Full names of types that policies deny this claim, with the reason.
    pub denied: BTreeMap<String, Reason>,
}

/// In which pass each waiting claim was first met: an API server tells creation in whole seconds, and a claim that has been told to wait
/// is not overtaken by one that came within the same second.
#[derive(Debug, Default)]
pub struct Arrivals {
    pass: u64,
    met: HashMap<String, u64>,
}

impl Arrivals {
    /// Marks each of the claims of a pass, and forgets all others.
    pub fn mark(&mut self, pending: &mut [Pending]) {
        self.pass = self.pass.saturating_add(1);
        let before = std::mem::take(&mut self.met);
        for claim in pending {
            claim.arrived = before.get(&claim.uid).copied().unwrap_or(self.pass);
            self.met.insert(claim.uid.clone(), claim.arrived);
        }
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

/// Places each accepted claim, or says why not. Answers come in the order in which the claims were judged.
#[must_use]
pub fn assign(
    mut pending: Vec<Pending>,
    types: &[TypeOffer],
    free: &[FreeMachine],
) -> Vec<(Pending, Result<Binding, Reason>)> {
    pending.sort_by(|a, b| (a.created, a.arrived, &a.key).cmp(&(b.created, b.arrived, &b.key)));
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

#[cfg(test)]
mod tests {
    use hostler_api::Amount;
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn offer(name: &str, resources: &[(&str, &str)]) -> TypeOffer {
        let resources: ResourceList = resources
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Amount((*amount).to_owned())))
            .collect();
        TypeOffer {
            provider: "metal3".to_owned(),
            facts: TypeFacts {
                full_name: format!("metal3.{name}"),
                short_name: name.to_owned(),
                properties: BTreeMap::new(),
            },
            capacity: Capacity::Machines,
            cost: cost(None, &resources),
            resources,
            claimed: 0,
            stock: Stock {
                is_read: true,
                machines: 1,
                broken: BTreeMap::new(),
            },
        }
    }

    fn host(name: &str, type_name: &str) -> FreeMachine {
        FreeMachine {
            object: ObjectRef {
                api_version: "metal3.io/v1alpha1".to_owned(),
                kind: "BareMetalHost".to_owned(),
                namespace: Some("metal3-system".to_owned()),
                name: name.to_owned(),
            },
            uid: format!("uid-{name}"),
            types: BTreeSet::from([type_name.to_owned()]),
            resources: ResourceList::new(),
            preparing: None,
        }
    }

    fn claim(name: &str, wanted: Option<&str>) -> Pending {
        Pending {
            key: format!("p-default/{name}"),
            uid: format!("uid-{name}"),
            provider: "metal3".to_owned(),
            type_ref: None,
            requirements: wanted
                .map(|wanted| Requirement {
                    key: hostler_api::names::PROPERTY_NODE_TYPE.to_owned(),
                    operator: "In".to_owned(),
                    values: vec![wanted.to_owned()],
                })
                .into_iter()
                .collect(),
            desired: ResourceList::new(),
            created: 0,
            arrived: 0,
            accepted: true,
            denied: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case::the_older_one("a2 b1", "b a")]
    #[case::by_name_when_nothing_else_tells("b1 a1", "a b")]
    #[case::who_waits_already_though_made_in_the_same_second("b1, a1 b1", "b a")]
    #[case::the_older_one_though_accepted_later("b2, a1 b2", "a b")]
    #[case::who_left_comes_anew("b1, a1, a1 b1", "a b")]
    fn the_one_that_came_first_is_served_first(#[case] passes: &str, #[case] order: &str) {
        let mut arrivals = Arrivals::default();
        let mut pending = Vec::new();
        // In each pass: who waits, and the second in which it was made.
        for pass in passes.split(", ") {
            let made = pass.split(' ').map(|one| one.split_at(1));
            pending = made
                .map(|(name, second)| Pending {
                    created: second.parse().unwrap(),
                    ..claim(name, None)
                })
                .collect();
            arrivals.mark(&mut pending);
        }
        let answers = assign(pending, &[], &[]);
        let served: Vec<_> = answers
            .iter()
            .map(|(claim, _)| claim.key.strip_prefix("p-default/").unwrap())
            .collect();
        assert_eq!(served.join(" "), order);
    }

    #[rstest]
    #[case::short("gpu-server")]
    #[case::full("metal3.gpu-server")]
    fn a_type_is_selected_by_either_name(#[case] wanted: &str) {
        let answers = assign(
            vec![claim("a", Some(wanted))],
            &[offer("cpu-server", &[]), offer("gpu-server", &[])],
            &[host("one", "metal3.cpu-server"), host("two", "metal3.gpu-server")],
        );
        let binding = answers[0].1.as_ref().unwrap();
        assert_eq!(binding.type_name, "metal3.gpu-server");
        assert_eq!(binding.machine.as_ref().unwrap().1, "uid-two");
    }

    #[test]
    fn two_claims_never_share_a_machine_and_the_second_waits() {
        let answers = assign(
            vec![claim("b", None), claim("a", None)],
            &[offer("cpu-server", &[])],
            &[host("one", "metal3.cpu-server")],
        );
        assert!(answers[0].1.is_ok(), "the first by name wins among equals");
        assert_eq!(answers[0].0.key, "p-default/a");
        assert_eq!(answers[1].1.as_ref().unwrap_err().code, "NoCapacity");
    }

    #[test]
    fn a_claim_that_is_to_be_judged_again_keeps_its_turn() {
        let older = Pending {
            accepted: false,
            ..claim("a", None)
        };
        let pass = |machines: &[FreeMachine]| {
            let all = vec![claim("b", None), older.clone()];
            assign(all, &[offer("cpu-server", &[])], machines)
        };
        let one = host("one", "metal3.cpu-server");
        let answers = pass(std::slice::from_ref(&one));
        assert_eq!(answers.len(), 1, "nothing is said of the other one");
        assert_eq!(answers[0].0.key, "p-default/b");
        assert_eq!(answers[0].1.as_ref().unwrap_err().code, "NoCapacity");
        let answers = pass(&[one, host("two", "metal3.cpu-server")]);
        assert!(answers[0].1.is_ok(), "there is one for each");
    }

    #[test]
    fn a_claim_waits_for_a_machine_that_is_on_its_way_and_the_next_one_does_not_wait_for_the_same() {
        let mut machine = host("one", "metal3.cpu-server");
        machine.preparing = Some("Inspecting".to_owned());
        let answers = assign(
            vec![claim("a", None), claim("b", None)],
            &[offer("cpu-server", &[])],
            &[machine],
        );
        let reasons: Vec<_> = answers
            .iter()
            .map(|(_, place)| place.clone().unwrap_err())
            .collect();
        assert_eq!(reasons[0].code, "MachinesPreparing");
        assert!(
            reasons[0].message.contains("one is on its way (Inspecting)"),
            "{reasons:?}"
        );
        assert_eq!(reasons[1].code, "NoCapacity");
    }

    #[rstest]
    #[case::unread(Stock::default(), "InventoryNotRead", "have not been read")]
    #[case::unmatched(Stock { is_read: true, ..Stock::default() }, "NoCapacity", "no machine matches metal3.cpu-server")]
    #[case::broken(
        Stock { is_read: true, machines: 2, broken: BTreeMap::from([("NoAddress".to_owned(), 2)]) },
        "NoCapacity",
        "not usable as they are: 2 NoAddress"
    )]
    fn a_claim_without_a_machine_says_why_there_is_none(
        #[case] stock: Stock,
        #[case] code: &str,
        #[case] text: &str,
    ) {
        let mut kind = offer("cpu-server", &[]);
        kind.stock = stock;
        let reason = assign(vec![claim("a", None)], &[kind], &[])[0]
            .1
            .clone()
            .unwrap_err();
        assert_eq!(reason.code, code);
        assert!(reason.message.contains(text), "{reason:?}");
    }

    #[test]
    fn a_type_with_gpus_is_only_used_when_asked_for() {
        let types = [offer("gpu", &[("cpu", "4"), ("nvidia.com/gpu", "8")])];
        let free = [host("one", "metal3.gpu")];
        let plain = assign(vec![claim("a", None)], &types, &free);
        assert_eq!(plain[0].1.as_ref().unwrap_err().code, "NoMatchingNodeType");
        let named = assign(vec![claim("a", Some("gpu"))], &types, &free);
        assert!(named[0].1.is_ok());
        let mut asking = claim("a", None);
        asking
            .desired
            .insert("nvidia.com/gpu".to_owned(), Amount("1".to_owned()));
        assert!(assign(vec![asking], &types, &free)[0].1.is_ok());
    }

    #[test]
    fn the_cheapest_fitting_type_wins_and_a_denied_one_is_passed_over() {
        let types = [offer("big", &[("cpu", "64")]), offer("small", &[("cpu", "4")])];
        let free = [host("one", "metal3.big"), host("two", "metal3.small")];
        let answers = assign(vec![claim("a", None)], &types, &free);
        assert_eq!(answers[0].1.as_ref().unwrap().type_name, "metal3.small");
        let mut denied = claim("a", None);
        denied.denied.insert(
            "metal3.small".to_owned(),
            Reason::new("NodeTypeNotAllowed", "not allowed"),
        );
        let answers = assign(vec![denied], &types, &free);
        assert_eq!(answers[0].1.as_ref().unwrap().type_name, "metal3.big");
    }

    #[rstest]
    #[case::set(Some(7), &[("cpu", "2")], 7)]
    #[case::small(None, &[("cpu", "2"), ("memory", "4Gi")], 28)]
    #[case::larger(None, &[("cpu", "4"), ("memory", "16Gi")], 72)]
    #[case::gpus(None, &[("nvidia.com/gpu", "2")], 20_000)]
    #[case::none(None, &[], 0)]
    fn cost_follows_the_resources(
        #[case] set: Option<i64>,
        #[case] resources: &[(&str, &str)],
        #[case] want: i64,
    ) {
        let resources: ResourceList = resources
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Amount((*amount).to_owned())))
            .collect();
        assert_eq!(cost(set, &resources), want);
    }

    #[test]
    fn seats_are_counted_with_this_pass_own_decisions() {
        let mut seats = offer("vm", &[]);
        seats.capacity = Capacity::AtMost(2);
        seats.claimed = 1;
        let answers = assign(vec![claim("a", None), claim("b", None)], &[seats], &[]);
        assert!(answers[0].1.is_ok());
        assert_eq!(answers[1].1.as_ref().unwrap_err().code, "NoCapacity");
    }

    proptest! {
        #[test]
        fn assignments_are_injective_and_repeatable(claims in 0_usize..20, hosts in 0_usize..20) {
            let pending: Vec<_> = (0..claims).map(|n| claim(&format!("c{n}"), None)).collect();
            let free: Vec<_> = (0..hosts).map(|n| host(&format!("h{n}"), "metal3.cpu")).collect();
            let types = [offer("cpu", &[])];
            let answers = assign(pending.clone(), &types, &free);
            let machines: Vec<_> =
                answers.iter().filter_map(|(_, place)| Some(place.as_ref().ok()?.machine.as_ref()?.1.clone())).collect();
            let distinct: BTreeSet<_> = machines.iter().collect();
            prop_assert_eq!(distinct.len(), machines.len());
            prop_assert_eq!(machines.len(), claims.min(hosts));
            prop_assert_eq!(answers, assign(pending.into_iter().rev().collect(), &types, &free));
        }
    }
}
