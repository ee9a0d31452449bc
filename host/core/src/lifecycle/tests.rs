//! The life of a claim, step by step.

use hostler_api::NodeClaimSpec;
use hostler_api::claim::{FrozenOrder, MachineRef, OwnedRef};
use hostler_api::conditions::Fact;
use jiff::ToSpan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::values::Grace;

fn noon() -> Timestamp {
    "2026-11-29T12:00:00Z".parse().unwrap()
}

fn claim(change: impl FnOnce(&mut NodeClaim, &mut NodeClaimStatus)) -> NodeClaim {
    let mut claim = NodeClaim::new("one-cqhsw", NodeClaimSpec::default());
    claim.metadata.finalizers = Some(vec![CLAIM_FINALIZER.to_owned()]);
    let mut status = NodeClaimStatus::default();
    change(&mut claim, &mut status);
    claim.status = Some(status);
    claim
}

fn bind(status: &mut NodeClaimStatus) {
    status.machine = Some(MachineRef {
        type_ref: "metal3.gpu".to_owned(),
        object: None,
        uid: Some("h".to_owned()),
        spec_digest: None,
    });
}

fn freeze(status: &mut NodeClaimStatus, boot: Option<&str>) {
    bind(status);
    status.order = Some(FrozenOrder {
        claim: Value::Null,
        component: "driver-metal3".to_owned(),
        digest: "sha256:1".to_owned(),
        provider: Value::Null,
        node_type: "gpu".to_owned(),
        uses: Vec::new(),
        os_image: None,
        environment: None,
        properties: std::collections::BTreeMap::new(),
        boot_secret: Some(OwnedRef {
            object: hostler_api::claim::Ref::default(),
            uid: boot.map(ToOwned::to_owned),
        }),
        token: None,
        tenant_uid: None,
        wants: Vec::new(),
        frozen: Time(noon()),
    });
}

fn delete(claim: &mut NodeClaim) {
    claim.metadata.deletion_timestamp = Some(Time(noon()));
}

fn left(status: &mut NodeClaimStatus, reason: &str) {
    status.release_started = Some(Time(noon()));
    conditions::set(
        &mut status.conditions,
        &Fact::not_yet("Joined", reason, ""),
        None,
        noon(),
    );
}

#[rstest]
#[case::without_a_finalizer(claim(|c, _| c.metadata.finalizers = None), State::Unbound)]
#[case::robbed_of_its_finalizer(claim(|c, s| { bind(s); c.metadata.finalizers = None; }), State::Unguarded)]
#[case::without_a_place(claim(|_, _| ()), State::Unbound)]
#[case::with_a_place(claim(|_, s| bind(s)), State::Bound)]
#[case::refused_before_it_was_bound(claim(|_, s| s.phase = Some("Failed".into())), State::Unbound)]
#[case::with_an_order(claim(|_, s| freeze(s, None)), State::Frozen { since: noon() })]
#[case::with_boot_data(claim(|_, s| freeze(s, Some("b"))), State::Driving { begun: false })]
#[case::at_work(claim(|_, s| { freeze(s, Some("b")); s.step = Some("Writing".into()); }), State::Driving { begun: true })]
#[case::lost(claim(|_, s| { freeze(s, Some("b")); s.phase = Some("Failed".into()); }), State::Failed)]
#[case::deleted_before_the_finalizer(claim(|c, s| { c.metadata.finalizers = None; freeze(s, None); delete(c); }), State::Ended)]
#[case::deleted_unbound(claim(|c, _| delete(c)), State::Ending { ordered: false })]
#[case::deleted_bound(claim(|c, s| { bind(s); delete(c); }), State::Ending { ordered: false })]
#[case::deleted_with_an_order(claim(|c, s| { freeze(s, None); delete(c); }), State::Ending { ordered: true })]
#[case::deleted_when_lost(claim(|c, s| { freeze(s, None); s.phase = Some("Failed".into()); delete(c); }), State::Ending { ordered: true })]
#[case::never_joined_is_no_mark(claim(|c, s| { freeze(s, None); delete(c); left(s, "NotJoined"); }), State::Draining)]
#[case::with_its_node_gone(claim(|c, s| { freeze(s, None); delete(c); left(s, "NodeGone"); }), State::Releasing)]
#[case::with_its_tenant_gone(claim(|c, s| { freeze(s, None); delete(c); left(s, "TenantGone"); }), State::Releasing)]
fn a_claim_is(#[case] claim: NodeClaim, #[case] want: State) {
    assert_eq!(State::of(&claim), want);
}

const HERE: Machine = Machine::Here(Hold::Free);
const OURS: Reservation = Reservation::Ours { complete: true };

fn sight(machine: Machine, reservation: Reservation, holding: bool) -> Sight {
    Sight {
        machine,
        reservation,
        holding,
    }
}

fn word(step: &Step) -> String {
    match step {
        Step::Wait(reason) => format!("Wait {}", reason.code),
        Step::Unbind(reason) => format!("Unbind {}", reason.code),
        Step::Fail(reason) => format!("Fail {}", reason.code),
        Step::Guard
        | Step::Rest
        | Step::Freeze
        | Step::Reserve
        | Step::Admit
        | Step::Drive
        | Step::Begin
        | Step::Drain
        | Step::Withdraw
        | Step::Sweep => format!("{step:?}"),
    }
}

#[rstest]
#[case::a_placed_claim_gets_its_finalizer_first(State::Unguarded, sight(HERE, OURS, false), "Guard")]
#[case::one_without_a_place_waits_for_the_scheduler(
    State::Unbound,
    sight(Machine::NotNeeded, OURS, false),
    "Rest"
)]
#[case::a_placed_one_is_fixed(State::Bound, sight(HERE, OURS, false), "Freeze")]
#[case::without_a_machine_too(State::Bound, sight(Machine::NotNeeded, OURS, false), "Freeze")]
#[case::a_machine_that_went_is_no_place(
    State::Bound,
    sight(Machine::Gone, OURS, false),
    "Unbind MachineGone"
)]
#[case::nor_is_one_that_another_holds(
    State::Bound,
    sight(Machine::Here(Hold::Others), OURS, false),
    "Unbind HeldByClaim"
)]
#[case::the_name_comes_before_the_token(State::Frozen { since: noon() }, sight(HERE, Reservation::Missing, false), "Reserve")]
#[case::a_half_reservation_is_finished(State::Frozen { since: noon() }, sight(HERE, Reservation::Ours { complete: false }, false), "Reserve")]
#[case::then_the_boot_data(State::Frozen { since: noon() }, sight(HERE, OURS, false), "Admit")]
#[case::a_newcomer_gets_no_boot_data(State::Frozen { since: noon() }, sight(Machine::Replaced, OURS, false), "Unbind MachineReplaced")]
#[case::a_leaving_node_is_waited_for(State::Frozen { since: noon() - 1.hour() }, sight(HERE, Reservation::Taken { leaving: true }, false), "Wait NodeNameTaken")]
#[case::a_staying_one_for_a_while(State::Frozen { since: noon() }, sight(HERE, Reservation::Taken { leaving: false }, false), "Wait NodeNameTaken")]
#[case::and_then_no_more(State::Frozen { since: noon() - 1.hour() }, sight(HERE, Reservation::Taken { leaving: false }, false), "Unbind NodeNameTaken")]
#[case::the_driver_takes_a_free_machine(State::Driving { begun: false }, sight(HERE, OURS, false), "Drive")]
#[case::and_keeps_its_own(State::Driving { begun: true }, sight(Machine::Here(Hold::Ours), OURS, true), "Drive")]
#[case::a_machine_lost_in_a_race_is_left(State::Driving { begun: false }, sight(Machine::Here(Hold::Others), OURS, false), "Unbind HeldByClaim")]
#[case::a_machine_that_was_taken_and_went_is_lost(State::Driving { begun: true }, sight(Machine::Gone, OURS, false), "Fail MachineLost")]
#[case::so_is_one_registered_anew(State::Driving { begun: true }, sight(Machine::Replaced, OURS, false), "Fail MachineLost")]
#[case::a_lost_order_is_kept(State::Failed, sight(Machine::Gone, OURS, false), "Rest")]
#[case::nothing_was_ordered_so_nothing_is_released(State::Ending { ordered: false }, sight(HERE, OURS, false), "Sweep")]
#[case::a_release_is_recorded_first(State::Ending { ordered: true }, sight(HERE, OURS, true), "Begin")]
#[case::the_node_goes_before_the_machine(State::Draining, sight(HERE, OURS, true), "Drain")]
#[case::then_the_machine(State::Releasing, sight(Machine::Here(Hold::Ours), OURS, true), "Withdraw")]
#[case::then_the_rest(State::Releasing, sight(HERE, OURS, false), "Sweep")]
#[case::and_then_it_is_nobodys(State::Ended, sight(HERE, OURS, true), "Rest")]
fn next_step(#[case] state: State, #[case] sight: Sight, #[case] want: &str) {
    assert_eq!(word(&next(&state, &sight, noon())), want);
}

fn present(cordoned: bool, pods: usize, deleted: Option<i64>) -> NodeSight {
    NodeSight::Present {
        cordoned,
        pods,
        deleted: deleted.map(|seconds| noon() + seconds.seconds()),
    }
}

const GRACE: Grace = Grace::After(Duration::from_secs(30));

#[rstest]
#[case::new_pods_are_kept_away_first(present(false, 3, None), GRACE, 0, Drain::Cordon)]
#[case::then_pods_are_asked_to_leave(present(true, 3, None), GRACE, 10, Drain::Evict)]
#[case::an_empty_node_goes_at_once(present(true, 0, None), GRACE, 1, Drain::Delete)]
#[case::a_full_one_after_its_grace(present(true, 3, None), GRACE, 30, Drain::Delete)]
#[case::or_never(present(true, 3, None), Grace::Never, 1_000_000, Drain::Evict)]
#[case::a_finalizer_is_waited_for(present(true, 0, Some(0)), GRACE, 59, Drain::Wait)]
#[case::but_not_for_ever(present(true, 0, Some(0)), GRACE, 60, Drain::Done(Left::NodeStuck))]
#[case::not_even_with_a_lying_clock(present(true, 0, Some(9_000)), GRACE, 60, Drain::Done(Left::NodeStuck))]
#[case::or_where_pods_may_stay(present(true, 3, Some(0)), Grace::Never, 60, Drain::Done(Left::NodeStuck))]
#[case::a_node_that_went_is_done(NodeSight::Absent, GRACE, 0, Drain::Done(Left::NodeGone))]
#[case::a_neighbours_node_is_left_alone(NodeSight::NotOurs, GRACE, 0, Drain::Done(Left::NodeNotOurs))]
#[case::a_tenant_that_goes_is_not_waited_for(
    NodeSight::TenantGone,
    Grace::Never,
    0,
    Drain::Done(Left::TenantGone)
)]
#[case::a_host_that_has_just_begun_looks_first(NodeSight::Unknown, GRACE, 6000, Drain::Wait)]
#[case::a_silent_api_is_waited_for(NodeSight::Unreachable, GRACE, 59, Drain::Wait)]
#[case::as_long_as_pods_would_be(
    NodeSight::Unreachable,
    Grace::After(Duration::from_secs(600)),
    599,
    Drain::Wait
)]
#[case::but_not_longer(NodeSight::Unreachable, GRACE, 60, Drain::Done(Left::TenantUnreachable))]
#[case::not_even_for_pods_that_may_stay(
    NodeSight::Unreachable,
    Grace::Never,
    60,
    Drain::Done(Left::TenantUnreachable)
)]
fn next_drain(#[case] sight: NodeSight, #[case] grace: Grace, #[case] after: i64, #[case] want: Drain) {
    let patience = Patience {
        grace,
        unreachable: Duration::from_secs(60),
        deletion: Duration::from_secs(60),
    };
    assert_eq!(drain(sight, noon(), noon() + after.seconds(), patience), want);
}

#[test]
fn every_way_to_leave_is_read_back() {
    for left in Left::ALL {
        assert_eq!(Left::named(left.reason()), Some(left));
        assert!(!left.message().is_empty());
    }
    assert_eq!(Left::named("NotJoined"), None);
}
