//! Who leads: what a candidate does about the one record that all candidates read.
//!
//! Nobody's clock is compared with anybody else's. The times in a record are for people; a candidate judges a record by how long it
//! has itself seen it unchanged, on a clock that only runs forward. The holder counts from before it asked for its last renewal,
//! so it stops earlier than the first other candidate can start, whatever their clocks show.

use std::time::Duration;

use jiff::Timestamp;

/// Share of a lease that its holder does not use: clocks that run at different speeds, and a write that arrives after its sender gave up.
const MARGIN: u32 = 5;
/// Renewals that a holder tries before its part of the lease is over.
const TRIES: u32 = 3;

/// What the record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who leads; nobody after a clean stop.
    pub holder: Option<String>,
    /// How long the others wait after the last change.
    pub duration: Duration,
    /// When the holder took it.
    pub acquired: Option<Timestamp>,
    /// When it was last renewed.
    pub renewed: Option<Timestamp>,
    /// How often it went to another holder.
    pub transitions: i32,
}

/// The record as one candidate knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was read last; none where there is no record.
    pub record: Option<Record>,
    /// When this candidate first read it so, on its own clock.
    pub since: Duration,
    /// How long what was read last, or stood before it was taken away, is waited for.
    wait: Duration,
}

/// How long the lease is, and how often it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    lease: Duration,
    renew: Duration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// There is no record: make this one.
    Create(Record),
    /// Nobody holds it any more: write this over what was read.
    Take(Record),
    /// It is ours: write this over what was read.
    Renew(Record),
    /// Somebody else leads; look again after this long.
    Wait(Duration),
}

impl Seen {
    /// What is known after another look.
    #[must_use]
    pub fn next(before: Option<Self>, record: Option<Record>, now: Duration) -> Self {
        match before {
            Some(before) if before.record == record => before,
            before => {
                // A record that somebody took away may still be believed in by its holder.
                let waited = before.map_or(Duration::ZERO, |before| before.wait);
                let wait = record.as_ref().map_or(waited, |record| record.duration);
                Self {
                    record,
                    since: now,
                    wait,
                }
            }
        }
    }
}

impl Terms {
    /// Terms that leave the holder room for a few renewals.
    ///
    /// # Errors
    /// Which time to change.
    pub fn new(lease: Duration, renew: Duration) -> Result<Self, String> {
        let terms = Self { lease, renew };
        if lease.subsec_nanos() != 0 || lease.is_zero() || i32::try_from(lease.as_secs()).is_err() {
            return Err(format!(
                "a lease of {lease:?} cannot be written down; give it whole seconds, at least one"
            ));
        }
        if renew.is_zero() || renew * TRIES > terms.usable() {
            return Err(format!(
                "a lease of {lease:?} is used for {:?}; renew it every {:?} or sooner, not every {renew:?}",
                terms.usable(),
                terms.usable() / TRIES
            ));
        }
        Ok(terms)
    }

    /// How long the holder acts after it asked for a renewal that was granted.
    #[must_use]
    pub fn usable(&self) -> Duration {
        self.lease - self.lease / MARGIN
    }

    /// Time between renewals, and between looks of those who wait.
    #[must_use]
    pub fn renew(&self) -> Duration {
        self.renew
    }

    /// Longest wait for one answer about the record: after it there is time for another try.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.usable() / 2
    }
}

/// The next move of candidate `me`; `now` is on the clock of `Seen::since`, `wall` is only written down.
#[must_use]
pub fn next(me: &str, terms: &Terms, seen: &Seen, now: Duration, wall: Timestamp) -> Move {
    let waited = now.saturating_sub(seen.since);
    let fresh = |transitions| Record {
        holder: Some(me.to_owned()),
        duration: terms.lease,
        acquired: Some(wall),
        renewed: Some(wall),
        transitions,
    };
    let Some(record) = &seen.record else {
        return match seen.wait.checked_sub(waited).filter(|left| !left.is_zero()) {
            Some(left) => Move::Wait(left.min(terms.renew)),
            None => Move::Create(fresh(0)),
        };
    };
    match record.holder.as_deref().filter(|holder| !holder.is_empty()) {
        Some(holder) if holder == me => Move::Renew(Record {
            duration: terms.lease,
            renewed: Some(wall),
            ..record.clone()
        }),
        None => Move::Take(fresh(record.transitions.saturating_add(1))),
        Some(_) => {
            // Of two opinions on how long a lease is, as during an upgrade, the longer one is safe.
            let left = record.duration.max(terms.lease).saturating_sub(waited);
            if left.is_zero() {
                Move::Take(fresh(record.transitions.saturating_add(1)))
            } else {
                Move::Wait(left.min(terms.renew))
            }
        }
    }
}

/// What a holder leaves behind when it stops on its own account: anybody may lead at once.
#[must_use]
pub fn given_up(record: &Record, wall: Timestamp) -> Record {
    Record {
        holder: None,
        duration: Duration::from_secs(1),
        renewed: Some(wall),
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn terms() -> Terms {
        Terms::new(secs(10), secs(2)).unwrap()
    }

    fn held_by(holder: &str, renewed: i64) -> Record {
        Record {
            holder: Some(holder.to_owned()),
            duration: secs(10),
            acquired: None,
            renewed: Timestamp::from_second(renewed).ok(),
            transitions: 3,
        }
    }

    fn seen(record: Option<Record>, since: u64) -> Seen {
        Seen::next(None, record, secs(since))
    }

    fn decide(seen: &Seen, now: u64) -> Move {
        next(
            "me",
            &terms(),
            seen,
            secs(now),
            Timestamp::from_second(77).unwrap(),
        )
    }

    #[rstest]
    #[case::whole_seconds(10, 2_000, true)]
    #[case::just_often_enough(15, 4_000, true)]
    #[case::no_room_for_a_third_try(10, 2_700, false)]
    #[case::never(10, 0, false)]
    #[case::no_lease(0, 1, false)]
    #[case::short_ones_for_tests(1, 200, true)]
    fn terms_leave_room_for_renewals(#[case] lease: u64, #[case] renew: u64, #[case] fits: bool) {
        assert_eq!(
            Terms::new(secs(lease), Duration::from_millis(renew)).is_ok(),
            fits
        );
    }

    #[test]
    fn a_part_of_a_second_cannot_be_written_down() {
        let refusal = Terms::new(Duration::from_millis(1500), Duration::from_millis(200)).unwrap_err();
        assert!(refusal.contains("whole seconds"), "{refusal}");
    }

    #[test]
    fn where_there_is_no_record_it_is_made() {
        let Move::Create(made) = decide(&seen(None, 0), 0) else {
            panic!("not made")
        };
        assert_eq!((made.holder.as_deref(), made.transitions), (Some("me"), 0));
    }

    #[test]
    fn ours_is_renewed_and_keeps_when_it_was_taken() {
        let mut ours = held_by("me", 5);
        ours.acquired = Timestamp::from_second(1).ok();
        let Move::Renew(next) = decide(&seen(Some(ours.clone()), 0), 9) else {
            panic!("not renewed")
        };
        assert_eq!((next.acquired, next.transitions), (ours.acquired, 3));
        assert_eq!(next.renewed, Timestamp::from_second(77).ok());
    }

    #[rstest]
    #[case::nobody(None)]
    #[case::an_empty_name(Some(String::new()))]
    fn one_that_was_given_up_is_taken_at_once(#[case] holder: Option<String>) {
        let record = Record {
            holder,
            ..held_by("other", 5)
        };
        let Move::Take(next) = decide(&seen(Some(record), 4), 4) else {
            panic!("not taken")
        };
        assert_eq!(next.transitions, 4);
    }

    #[test]
    fn a_record_counts_from_when_it_was_first_seen_so() {
        let first = seen(Some(held_by("other", 5)), 0);
        let same = Seen::next(Some(first), Some(held_by("other", 5)), secs(6));
        assert_eq!(decide(&same, 9), Move::Wait(secs(1)), "not longer than is left");
        assert!(matches!(decide(&same, 10), Move::Take(_)));
        let renewed = Seen::next(Some(same), Some(held_by("other", 6)), secs(9));
        assert_eq!(decide(&renewed, 18), Move::Wait(secs(1)));
        assert!(matches!(decide(&renewed, 19), Move::Take(_)));
    }

    #[rstest]
    #[case::far_in_the_past(-4_000_000)]
    #[case::far_in_the_future(4_000_000_000)]
    fn the_clock_of_the_holder_says_nothing(#[case] renewed: i64) {
        assert_eq!(
            decide(&seen(Some(held_by("other", renewed)), 100), 101),
            Move::Wait(secs(2))
        );
    }

    #[test]
    fn the_longer_of_two_opinions_counts() {
        let long = Record {
            duration: secs(60),
            ..held_by("other", 5)
        };
        assert!(matches!(decide(&seen(Some(long.clone()), 0), 59), Move::Wait(_)));
        assert!(matches!(decide(&seen(Some(long), 0), 60), Move::Take(_)));
        let short = Record {
            duration: secs(1),
            ..held_by("other", 5)
        };
        assert!(matches!(decide(&seen(Some(short), 0), 9), Move::Wait(_)));
    }

    #[test]
    fn a_record_taken_away_by_hand_is_waited_for_as_if_it_stood() {
        let known = seen(Some(held_by("other", 5)), 0);
        let gone = Seen::next(Some(known), None, secs(3));
        assert_eq!(decide(&gone, 12), Move::Wait(secs(1)));
        assert!(matches!(decide(&gone, 13), Move::Create(_)));
    }

    #[test]
    fn giving_up_names_nobody() {
        let after = given_up(&held_by("me", 5), Timestamp::from_second(9).unwrap());
        assert_eq!((after.holder, after.transitions), (None, 3));
    }

    proptest! {
        /// The holder's last moment is before anybody else's first, however late the other looked.
        #[test]
        fn two_never_lead_at_a_time(lease in 1_u64..120, asked in 0_u64..1_000_000, delay in 0_u64..60_000) {
            let renew = Duration::from_millis(lease * 200);
            let terms = Terms::new(secs(lease), renew).unwrap();
            let asked = Duration::from_millis(asked);
            // Nobody reads a renewal before it was asked for.
            let read = asked + Duration::from_millis(delay);
            let record = Record { duration: secs(lease), ..held_by("other", 5) };
            let seen = Seen::next(None, Some(record), read);
            let last = asked + terms.usable();
            prop_assert!(matches!(next("me", &terms, &seen, last, Timestamp::UNIX_EPOCH), Move::Wait(_)));
        }
    }
}
