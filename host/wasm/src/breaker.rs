//! Rests a component that fails again and again, and lets it try again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Faults in a row after which a component rests.
const STRIKES: u32 = 5;

/// First rest; doubles with each fault that follows, up to the longest.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// While one call tries whether a component has recovered, the others wait at most so long.
const TRIAL: Duration = Duration::from_secs(2);

/// Counts faults in a row. One success forgets them all; a new version starts with a breaker of its own.
#[derive(Default)]
pub(crate) struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    in_a_row: u32,
    resting_until: Option<Instant>,
}

/// A component that rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resting {
    pub(crate) in_a_row: u32,
    pub(crate) left: Duration,
}

impl Breaker {
    /// Lets a call through, or says how long the component rests. The first call after a rest is a trial: the others wait for it.
    pub(crate) fn admit(&self, now: Instant) -> Result<(), Resting> {
        let mut state = self.lock();
        let Some(until) = state.resting_until else {
            return Ok(());
        };
        if now < until {
            return Err(Resting {
                in_a_row: state.in_a_row,
                left: until - now,
            });
        }
        state.resting_until = Some(now + TRIAL);
        Ok(())
    }

    /// How long the component rests, if it does.
    pub(crate) fn resting(&self, now: Instant) -> Option<Resting> {
        let state = self.lock();
        let until = state.resting_until?;
        Some(Resting {
            in_a_row: state.in_a_row,
            left: until.saturating_duration_since(now),
        })
    }

    /// Whether this ended a rest.
    pub(crate) fn succeeded(&self) -> bool {
        let mut state = self.lock();
        state.in_a_row = 0;
        state.resting_until.take().is_some()
    }

    pub(crate) fn failed(&self, now: Instant) {
        let mut state = self.lock();
        state.in_a_row = state.in_a_row.saturating_add(1);
        if let Some(beyond) = state.in_a_row.checked_sub(STRIKES) {
            let rest = FIRST_REST.saturating_mul(1 << beyond.min(16)).min(LONGEST_REST);
            state.resting_until = Some(now + rest);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(times: u32, now: Instant) -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..times {
            breaker.failed(now);
        }
        breaker
    }

    #[test]
    fn a_component_rests_after_five_faults_in_a_row_and_longer_each_time() {
        let now = Instant::now();
        assert_eq!(struck(4, now).admit(now), Ok(()));
        for (times, seconds) in [(5, 1), (6, 2), (7, 4), (11, 60), (500, 60)] {
            let left = Duration::from_secs(seconds);
            assert_eq!(
                struck(times, now).admit(now),
                Err(Resting {
                    in_a_row: times,
                    left
                })
            );
        }
    }

    #[test]
    fn one_call_tries_after_the_rest_and_its_success_lets_all_in() {
        let now = Instant::now();
        let breaker = struck(5, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(breaker.admit(later), Ok(()));
        assert!(breaker.admit(later).is_err(), "the others wait for the trial");
        assert!(breaker.succeeded());
        assert_eq!(breaker.admit(later), Ok(()));
        assert_eq!(breaker.resting(later), None);
    }

    #[test]
    fn a_trial_that_never_ends_does_not_shut_the_component_out_for_ever() {
        let now = Instant::now();
        let breaker = struck(5, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(breaker.admit(later), Ok(()));
        assert_eq!(breaker.admit(later + TRIAL), Ok(()));
    }

    #[test]
    fn a_success_in_between_forgets_the_faults() {
        let now = Instant::now();
        let breaker = struck(4, now);
        assert!(!breaker.succeeded());
        breaker.failed(now);
        assert_eq!(breaker.admit(now), Ok(()));
    }
}
