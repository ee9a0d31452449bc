//! Keeps a host that does not lead from writing: how long the lease still lasts, told by a clock that nothing sets back.
//!
//! # Guarantees
//! The clock goes on while the process, or the machine, sleeps: a host that wakes up finds its lease over before it sends anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether this host may write, and for how long; shared by all of its clients.
#[derive(Clone, Debug)]
pub struct Fence(Option<Arc<AtomicU64>>);

impl Fence {
    /// For a host that shares its work with no other: always open.
    #[must_use]
    pub fn open() -> Self {
        Self(None)
    }

    /// Closed until a lease opens it.
    #[must_use]
    pub fn closed() -> Self {
        Self(Some(Arc::new(AtomicU64::new(0))))
    }

    /// Opens it until a moment of `uptime`.
    pub(crate) fn open_until(&self, moment: Duration) {
        if let Some(until) = &self.0 {
            let moment = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
            until.store(moment, Ordering::SeqCst);
        }
    }

    /// Closes it.
    pub(crate) fn close(&self) {
        self.open_until(Duration::ZERO);
    }

    /// How much longer this host may write: zero when it may not, `None` without an end.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let until = Duration::from_nanos(self.0.as_ref()?.load(Ordering::SeqCst));
        Some(until.saturating_sub(uptime()))
    }

    /// Whether this host may write now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.left().is_none_or(|left| !left.is_zero())
    }
}

/// Time since the machine was started, with the time that it slept.
#[must_use]
pub(crate) fn uptime() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // Elsewhere the monotonic clock counts sleep already.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_closed_until_opened_and_again_after() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.open_until(uptime() + Duration::from_secs(3600));
        assert!(fence.clone().is_open(), "every copy is the same fence");
        fence.open_until(uptime());
        assert!(!fence.is_open());
        fence.open_until(uptime() + Duration::from_secs(3600));
        fence.close();
        assert_eq!(fence.left(), Some(Duration::ZERO));
    }

    #[test]
    fn without_a_lease_there_is_no_end() {
        let fence = Fence::open();
        fence.close();
        assert_eq!(fence.left(), None);
        assert!(fence.is_open());
    }
}
