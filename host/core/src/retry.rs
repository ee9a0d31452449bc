//! How long to wait before a turn is tried again: a class and the number of failures in a row give a delay.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

/// First wait after something broke; doubled each time.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait after something broke.
const LONGEST: Duration = Duration::from_secs(300);
/// Longest wait after a conflict or a busy answer: nothing is wrong, so it is tried again at once, but not by all at the same time.
const BUSY: Duration = Duration::from_secs(1);
/// Wait after a bug of our own: long enough to read the log, short enough to notice that a restart helped.
const BUG: Duration = Duration::from_secs(600);
/// A doubling from one second passes five minutes after nine of them; the rest need no counting.
const DOUBLINGS: u32 = 16;

/// What the end of a turn means for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The user must move; nothing is tried before they do.
    Refused,
    /// Nothing is wrong, but not now: a conflict, a full API server, no capacity.
    Busy,
    /// The world failed.
    Broken,
    /// A belief of ours did not hold.
    Bug,
}

/// When to try again after `attempt` failures in a row (the first is 1); `None` waits for a change.
///
/// `spread` is a random number from 0 to 1 that the caller draws: many objects that fail together are not tried together.
#[must_use]
pub fn delay(class: Class, attempt: u32, spread: f64) -> Option<Duration> {
    let spread = if spread.is_finite() {
        spread.clamp(0.0, 1.0)
    } else {
        1.0
    };
    match class {
        Class::Refused => None,
        // Never nothing at all: a conflict with a cache that is behind needs the cache to move.
        Class::Busy => Some(BUSY.mul_f64(0.05 + 0.95 * spread)),
        Class::Broken => {
            let step = usize::try_from(attempt.clamp(1, DOUBLINGS) - 1).unwrap_or(0);
            let whole = doubling().nth(step).unwrap_or(LONGEST);
            // Full jitter with a floor, so that bad luck is no hot loop.
            Some(whole.mul_f64(spread).max(FIRST / 4))
        }
        Class::Bug => Some(BUG),
    }
}

fn doubling() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_factor(2.0)
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_refusal_waits_for_its_user(Class::Refused, 1, None)]
    #[case::a_conflict_is_tried_within_a_second(Class::Busy, 40, Some(Duration::from_secs(1)))]
    #[case::the_first_break_waits_a_second(Class::Broken, 1, Some(Duration::from_secs(1)))]
    #[case::the_second_two(Class::Broken, 2, Some(Duration::from_secs(2)))]
    #[case::the_fifth_sixteen(Class::Broken, 5, Some(Duration::from_secs(16)))]
    #[case::and_none_more_than_five_minutes(Class::Broken, 4_000_000_000, Some(Duration::from_secs(300)))]
    #[case::a_count_of_nothing_is_a_first(Class::Broken, 0, Some(Duration::from_secs(1)))]
    #[case::a_bug_rests(Class::Bug, 1, Some(Duration::from_secs(600)))]
    fn the_longest_wait(#[case] class: Class, #[case] attempt: u32, #[case] want: Option<Duration>) {
        assert_eq!(delay(class, attempt, 1.0), want);
    }

    proptest! {
        #[test]
        fn no_wait_is_nothing_and_none_is_longer_than_its_bound(attempt: u32, spread: f64) {
            for class in [Class::Busy, Class::Broken, Class::Bug] {
                let wait = delay(class, attempt, spread).unwrap();
                prop_assert!(wait >= Duration::from_millis(50), "{class:?}: {wait:?}");
                prop_assert!(wait <= BUG, "{class:?}: {wait:?}");
            }
        }
    }
}
