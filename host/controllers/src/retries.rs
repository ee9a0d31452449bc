//! How often each object's turn has failed in a row; kube's controller keeps no count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostler_core::retry::{self, Class};
use kube::runtime::controller::Action;

use crate::metrics::Metrics;

/// Attempts by (loop, object uid).
pub struct Retries {
    metrics: Arc<Metrics>,
    attempts: Mutex<HashMap<(&'static str, String), u32>>,
}

impl Retries {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            attempts: Mutex::default(),
        }
    }

    /// Counts a failure and says when to try again. Busy is no failure: nothing is wrong.
    pub fn after(&self, area: &'static str, uid: &str, class: Class) -> Action {
        let attempt = match class {
            Class::Busy => self.count(area, uid),
            Class::Refused | Class::Broken | Class::Bug => self.failed(area, uid),
        };
        match retry::delay(class, attempt, rand::random::<f64>()) {
            Some(wait) => {
                self.metrics.retry(area);
                Action::requeue(wait)
            }
            None => Action::await_change(),
        }
    }

    /// One more; says how many there are now.
    fn failed(&self, area: &'static str, uid: &str) -> u32 {
        let mut all = self.attempts.lock().expect("no holder panics");
        let attempts = all.entry((area, uid.to_owned())).or_insert(0);
        *attempts = attempts.saturating_add(1);
        *attempts
    }

    /// How many turns in a row have failed.
    pub fn count(&self, area: &'static str, uid: &str) -> u32 {
        self.attempts
            .lock()
            .expect("no holder panics")
            .get(&(area, uid.to_owned()))
            .copied()
            .unwrap_or(0)
    }

    /// Forgets the failures.
    pub fn reset(&self, area: &'static str, uid: &str) {
        self.attempts
            .lock()
            .expect("no holder panics")
            .remove(&(area, uid.to_owned()));
    }
}

/// The next turn of a steady object: `around`, ten percent more or less.
#[must_use]
pub fn steadily(around: Duration) -> Action {
    Action::requeue(around.mul_f64(0.9 + 0.2 * rand::random::<f64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_answer_is_no_failure_and_success_forgets_all() {
        let retries = Retries::new(Metrics::new());
        let tell = |class| retries.after("here", "one", class);
        tell(Class::Busy);
        assert_eq!(retries.count("here", "one"), 0);
        assert_eq!(tell(Class::Refused), Action::await_change());
        tell(Class::Broken);
        tell(Class::Busy);
        assert_eq!(retries.count("here", "one"), 2);
        assert_eq!(retries.count("there", "one"), 0, "each loop counts its own");
        retries.reset("here", "one");
        assert_eq!(retries.count("here", "one"), 0);
    }
}
