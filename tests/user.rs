//! The user's view: a real `hostler lab` process and the real kubectl, nothing else.

pub(crate) mod bad_input;
pub(crate) mod kubectl;
pub(crate) mod lab;
pub(crate) mod plugins;
pub(crate) mod profiles;
mod real;
pub(crate) mod table;

use std::time::{Duration, Instant};

/// Longest wait for anything; far above what a loaded machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until the answer is yes; fails with the last no.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let no = match ask() {
            Ok(yes) => return yes,
            Err(no) => no,
        };
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}: {no}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
