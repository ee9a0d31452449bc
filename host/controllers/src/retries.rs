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

    /// Counts a failure and says when to try again.
    pub fn after(&self, area: &'static str, uid: &str, class: Class) -> Action {
        let mut all = self.attempts.lock().expect("no holder panics");
        let attempt = all.entry((area, uid.to_owned())).or_insert(0);
        *attempt = attempt.saturating_add(1);
        match retry::delay(class, *attempt, rand::random::<f64>()) {
            Some(wait) => {
                self.metrics.retry(area);
                Action::requeue(wait)
            }
            None => Action::await_change(),
        }
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
