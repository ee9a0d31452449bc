//! Who waits in line, and who of them may be placed.

use hostler_api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Accepted as it is, in its third generation, with nothing against it but this value in this place.
fn claim(place: &str, value: Value) -> api::NodeClaim {
    let mut claim = json!({
        "metadata": {"name": "one", "uid": "one", "generation": 3, "finalizers": [names::CLAIM_FINALIZER]},
        "spec": {"providerRef": "metal3"},
        "status": {"conditions": [{
            "type": "Accepted", "status": "True", "lastTransitionTime": "2026-11-30T00:00:00Z", "observedGeneration": 3,
        }]},
    });
    let (parent, key) = place.rsplit_once('/').unwrap();
    claim.pointer_mut(parent).unwrap()[key] = value;
    serde_json::from_value(claim).unwrap()
}

#[rstest]
#[case::accepted("/metadata/name", json!("two"), 0, "may be placed")]
#[case::accepted_though_it_could_not_be_judged_again("/metadata/name", json!("two"), 2, "may be placed")]
#[case::changed("/metadata/generation", json!(4), 0, "keeps its turn")]
#[case::changed_and_cannot_be_judged("/metadata/generation", json!(4), 1, "is not in line")]
#[case::new("/status", Value::Null, 0, "is not in line")]
#[case::refused("/status/conditions/0/status", json!("False"), 0, "is not in line")]
#[case::has_a_machine("/status/machine", json!({"typeRef": "metal3.cpu"}), 0, "is not in line")]
#[case::failed("/status/phase", json!("Failed"), 0, "is not in line")]
#[case::going("/metadata/deletionTimestamp", json!("2026-11-30T00:00:00Z"), 0, "is not in line")]
#[case::cannot_hold_one("/metadata/finalizers", json!([]), 0, "is not in line")]
fn a_claim_waits(#[case] place: &str, #[case] value: Value, #[case] failures: u32, #[case] want: &str) {
    let claim = claim(place, value);
    let is_in_line = !line(std::slice::from_ref(&claim), |_| failures).is_empty();
    let seen = match (is_in_line, is_in_line && is_accepted(&claim)) {
        (_, true) => "may be placed",
        (true, false) => "keeps its turn",
        (false, false) => "is not in line",
    };
    assert_eq!(seen, want);
}

#[rstest]
#[case::asks_for_none(None, None, None, None, false)]
#[case::asks_for_one(Some("metal3.gpu"), None, None, Some("metal3.gpu"), false)]
#[case::asks_for_one_and_has_it(Some("metal3.gpu"), None, Some("metal3.gpu"), Some("metal3.gpu"), false)]
#[case::placed_and_not_shown(None, None, Some("metal3.gpu"), None, true)]
#[case::placed_and_shown_as_nothing(Some(""), Some("metal3.gpu"), Some("metal3.gpu"), None, true)]
#[case::placed_with_a_provider_that_it_left(None, None, Some("metal3x.gpu"), None, false)]
#[case::placed_and_shown(Some("metal3.gpu"), Some("metal3.gpu"), Some("metal3.gpu"), None, false)]
#[case::gave_its_place_up(Some("metal3.gpu"), Some("metal3.gpu"), None, None, true)]
#[case::gave_its_place_up_and_shows_none(None, Some("metal3.gpu"), None, None, true)]
#[case::gave_its_place_up_and_asks_for_another(
    Some("metal3.cpu"),
    Some("metal3.gpu"),
    None,
    Some("metal3.cpu"),
    true
)]
fn the_type_that_a_claim_shows_is_a_wish_only_if_the_scheduler_did_not_choose_it(
    #[case] shown: Option<&str>,
    #[case] chosen: Option<&str>,
    #[case] place: Option<&str>,
    #[case] want: Option<&str>,
    #[case] is_wrong: bool,
) {
    let mut claim = claim("/spec/typeRef", json!(shown));
    let mark = |name: &str| (names::CHOSEN_TYPE.to_owned(), name.to_owned());
    claim.metadata.annotations = chosen.map(|name| BTreeMap::from([mark(name)]));
    claim.status.as_mut().unwrap().machine = place.map(|name| MachineRef {
        type_ref: name.to_owned(),
        object: None,
        uid: None,
        spec_digest: None,
    });
    assert_eq!((claim.wished_type(), shows_wrong_type(&claim)), (want, is_wrong));
}
