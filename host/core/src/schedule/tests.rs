//! Claims, types and machines that are made up, and who gets what.

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
        accepted: true,
        denied: BTreeMap::new(),
    }
}

/// The first pass over these claims.
fn assign(
    pending: Vec<Pending>,
    types: &[TypeOffer],
    free: &[FreeMachine],
) -> Vec<(Pending, Result<Binding, Reason>)> {
    super::assign(pending, &mut Arrivals::default(), types, free)
}

#[rstest]
#[case::the_older_one("a2 b1", "b a")]
#[case::by_name_when_nothing_else_tells("b1 a1", "a b")]
#[case::who_waits_already_though_made_in_the_same_second("b1, a1 b1", "b a")]
#[case::the_older_one_though_accepted_later("b2, a1 b2", "a b")]
#[case::who_left_comes_anew("b1, a1, a1 b1", "a b")]
fn the_one_that_came_first_is_served_first(#[case] passes: &str, #[case] order: &str) {
    let mut arrivals = Arrivals::default();
    let mut answers = Vec::new();
    // In each pass: who waits, and the second in which it was made.
    for pass in passes.split(", ") {
        let made = pass.split(' ').map(|one| one.split_at(1));
        let pending = made.map(|(name, second)| Pending {
            created: second.parse().unwrap(),
            ..claim(name, None)
        });
        answers = super::assign(pending.collect(), &mut arrivals, &[], &[]);
    }
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
    fn assignments_are_injective_and_repeatable(
        accepted in proptest::collection::vec(any::<bool>(), 0..20),
        hosts in 0_usize..20,
    ) {
        let pending: Vec<_> = accepted
            .iter()
            .enumerate()
            .map(|(n, accepted)| Pending { accepted: *accepted, ..claim(&format!("c{n:02}"), None) })
            .collect();
        let free: Vec<_> = (0..hosts).map(|n| host(&format!("h{n}"), "metal3.cpu")).collect();
        let types = [offer("cpu", &[])];
        let answers = assign(pending.clone(), &types, &free);
        let machines: Vec<_> =
            answers.iter().filter_map(|(_, place)| Some(place.as_ref().ok()?.machine.as_ref()?.1.clone())).collect();
        let distinct: BTreeSet<_> = machines.iter().collect();
        prop_assert_eq!(distinct.len(), machines.len());
        // Whoever is judged again is told nothing, and what it would get goes to nobody else.
        prop_assert_eq!(answers.len(), accepted.iter().filter(|accepted| **accepted).count());
        let first_in_line = accepted.iter().take(hosts);
        prop_assert_eq!(machines.len(), first_in_line.filter(|accepted| **accepted).count());
        prop_assert_eq!(answers, assign(pending.into_iter().rev().collect(), &types, &free));
    }
}
