//! How many claims are driven at a time: so many that no request of theirs waits long for its place at the platform's API, and so few of
//! one tenant that an API of his that is slow keeps nobody else waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Turns at a time. A turn has one request under way, so this is also the longest queue; a request that waits for
/// longer than an answer may take is given up, and its turn was for nothing.
const ALL: usize = 256;
/// Turns of one tenant's claims: as many as there are places in his lane.
const OF_ONE: usize = 8;

/// What turns pass through.
pub(super) struct Gate {
    all: Semaphore,
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            all: Semaphore::new(ALL),
            tenants: Mutex::default(),
        }
    }
}

/// A turn that has passed; dropped at its end.
pub(super) struct Passed<'a> {
    _of_one: Option<OwnedSemaphorePermit>,
    _of_all: SemaphorePermit<'a>,
}

impl Gate {
    /// Waits until a claim of this tenant may be driven.
    pub(super) async fn pass(&self, tenant: Option<&str>) -> Passed<'_> {
        // First among the tenant's own: who waits for a slow API waits outside.
        let of_one = match tenant {
            Some(tenant) => Some(self.own(tenant).acquire_owned().await.expect("nobody closes it")),
            None => None,
        };
        Passed {
            _of_one: of_one,
            _of_all: self.all.acquire().await.expect("nobody closes it"),
        }
    }

    fn own(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().expect("no holder panics");
        // Those that nobody has passed or waits at.
        tenants.retain(|_, places| Arc::strong_count(places) > 1);
        tenants
            .entry(tenant.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(OF_ONE)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_tenants_keep_nobody_else_waiting_and_leave_nothing_behind() {
        let gate = Gate::default();
        let begun = Instant::now();
        let turn = |tenant: String, takes: u64| {
            let gate = &gate;
            async move {
                let _passed = gate.pass(Some(&tenant)).await;
                tokio::time::sleep(Duration::from_secs(takes)).await;
                begun.elapsed().as_secs()
            }
        };
        let slow = join_all((0..20 * 100).map(|number| turn(format!("slow-{}", number % 20), 10)));
        let quick = join_all((0..100).map(|_| turn("quick".to_owned(), 1)));
        let (slow, quick) = tokio::join!(slow, quick);
        // A hundred turns of one tenant, eight at a time.
        assert_eq!(quick.into_iter().max(), Some(13));
        assert_eq!(slow.into_iter().max(), Some(130));
        drop(gate.own("another"));
        assert_eq!(gate.tenants.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_driven_at_a_time_than_are_served_in_time() {
        let gate = Gate::default();
        let begun = Instant::now();
        let turns = join_all((0..ALL * 2).map(|number| {
            let gate = &gate;
            async move {
                let _passed = gate
                    .pass((number % 2 == 0).then(|| number.to_string()).as_deref())
                    .await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                begun.elapsed().as_secs()
            }
        }));
        let ends = turns.await;
        assert_eq!(ends.iter().filter(|end| **end == 1).count(), ALL);
        assert_eq!(ends.iter().filter(|end| **end == 2).count(), ALL);
    }
}
