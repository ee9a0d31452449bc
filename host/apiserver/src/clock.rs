//! The time, handed in so that a test can choose it.

use std::sync::Arc;

use jiff::Timestamp;

/// Says what time it is.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of the machine.
pub fn machine_clock() -> Clock {
    Arc::new(Timestamp::now)
}

/// A time in the form in which objects carry it: whole seconds, UTC.
pub(crate) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_whole_seconds() {
        let at: Timestamp = "2026-08-20T12:00:00.75Z".parse().unwrap();
        assert_eq!(stamp(at), "2026-08-20T12:00:00Z");
    }
}
