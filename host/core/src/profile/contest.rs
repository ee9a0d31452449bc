//! How often a node's keys are put right, and when that is too often.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

/// Corrections in a minute that are still nobody's fault.
const TOLERATED: usize = 6;
/// The minute.
const WINDOW: Duration = Duration::from_secs(60);
/// First rest after too many; doubled as long as it goes on.
const FIRST_REST: Duration = Duration::from_secs(60);
/// Longest rest.
const LONGEST_REST: Duration = Duration::from_secs(960);

/// The corrections of one node.
#[derive(Clone, Debug, Default)]
pub struct Contest {
    times: VecDeque<Timestamp>,
    rest: Option<(Timestamp, Duration)>,
}

impl Contest {
    /// Notes a correction. True when this one was too many: a rest begins.
    pub fn corrected(&mut self, now: Timestamp) -> bool {
        self.forget(now);
        self.times.push_back(now);
        if self.times.len() <= TOLERATED {
            return false;
        }
        self.times.clear();
        let rest = match self.rest {
            // Contested again soon after the last rest: the next one is longer.
            Some((until, rest)) if now < until + WINDOW => (rest * 2).min(LONGEST_REST),
            _ => FIRST_REST,
        };
        self.rest = Some((now + rest, rest));
        true
    }

    /// How long nothing is to be corrected, if a rest is on.
    #[must_use]
    pub fn resting(&self, now: Timestamp) -> Option<Duration> {
        let (until, _) = self.rest?;
        Duration::try_from(until.duration_since(now))
            .ok()
            .filter(|left| !left.is_zero())
    }

    fn forget(&mut self, now: Timestamp) {
        while self.times.front().is_some_and(|first| *first + WINDOW <= now) {
            self.times.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        "2026-11-29T12:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(seconds)
    }

    #[test]
    fn six_in_a_minute_are_fine_and_the_seventh_begins_a_rest() {
        let mut contest = Contest::default();
        for second in 0..6 {
            assert!(!contest.corrected(at(second)));
        }
        assert!(contest.corrected(at(6)));
        assert_eq!(contest.resting(at(6)), Some(FIRST_REST));
        assert_eq!(contest.resting(at(66)), None);
    }

    #[test]
    fn one_every_ten_seconds_is_never_too_often() {
        let mut contest = Contest::default();
        assert!((0..100).all(|step| !contest.corrected(at(step * 10))));
    }

    #[test]
    fn who_does_not_stop_waits_longer_each_time() {
        let mut contest = Contest::default();
        let mut second = 0;
        let mut rests = Vec::new();
        while rests.len() < 6 {
            if contest.corrected(at(second)) {
                let rest = contest.resting(at(second)).unwrap();
                rests.push(rest.as_secs());
                second += rest.as_secs();
            }
            second += 1;
        }
        assert_eq!(rests, [60, 120, 240, 480, 960, 960]);
    }
}
