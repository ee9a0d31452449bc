//! The log of one plugin: its lines under its name, limited in length, per call and in rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::text;

/// Lines that are kept of one call, as `wit/v0.1/log.wit` promises.
const LINES_PER_CALL: u32 = 32;

/// Lines of one plugin: so many at once, then so many a second.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 20.0;

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loudness {
    Debug,
    Info,
    Warn,
    Error,
}

/// Where the lines of one plugin go.
pub(crate) struct PluginLog {
    name: Arc<str>,
    digest: Arc<str>,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
    dropped: u64,
}

/// The lines of one call.
pub(crate) struct CallLog {
    plugin: Arc<PluginLog>,
    function: &'static str,
    left: u32,
    dropped: u32,
}

impl PluginLog {
    pub(crate) fn new(name: Arc<str>, digest: Arc<str>) -> Arc<Self> {
        let bucket = Bucket {
            tokens: BURST,
            filled: Instant::now(),
            dropped: 0,
        };
        Arc::new(Self {
            name,
            digest,
            bucket: Mutex::new(bucket),
        })
    }

    pub(crate) fn of_call(self: &Arc<Self>, function: &'static str) -> CallLog {
        CallLog {
            plugin: self.clone(),
            function,
            left: LINES_PER_CALL,
            dropped: 0,
        }
    }

    fn write(&self, loudness: Loudness, function: &str, line: &str) {
        let dropped = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            if !bucket.take(Instant::now()) {
                return;
            }
            std::mem::take(&mut bucket.dropped)
        };
        if dropped > 0 {
            tracing::warn!(target: "hostler::plugin", plugin = %self.name, digest = %self.digest, dropped,
                "lines of this plugin were dropped: it logs too much");
        }
        self.emit(loudness, function, line);
    }

    fn emit(&self, loudness: Loudness, function: &str, line: &str) {
        let (plugin, digest) = (&*self.name, &*self.digest);
        match loudness {
            Loudness::Debug => tracing::debug!(target: "hostler::plugin", plugin, digest, function, "{line}"),
            Loudness::Info => tracing::info!(target: "hostler::plugin", plugin, digest, function, "{line}"),
            Loudness::Warn => tracing::warn!(target: "hostler::plugin", plugin, digest, function, "{line}"),
            Loudness::Error => tracing::error!(target: "hostler::plugin", plugin, digest, function, "{line}"),
        }
    }
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.filled).as_secs_f64() * PER_SECOND;
        self.tokens = (self.tokens + gained).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            self.dropped += 1;
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

impl CallLog {
    /// A budget of its own for another stream of the same call.
    pub(crate) fn sibling(&self) -> Self {
        self.plugin.of_call(self.function)
    }

    /// One line of the guest.
    pub(crate) fn write(&mut self, loudness: Loudness, line: &str) {
        if self.left == 0 {
            self.dropped += 1;
            return;
        }
        self.left -= 1;
        self.plugin.write(loudness, self.function, &text::message(line));
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        if self.dropped > 0 {
            let line = format!("{} more lines of this call were dropped", self.dropped);
            self.plugin.write(Loudness::Warn, self.function, &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_plugin_that_logs_without_end_is_limited_and_recovers() {
        let start = Instant::now();
        let mut bucket = Bucket {
            tokens: BURST,
            filled: start,
            dropped: 0,
        };
        let kept = (0..10_000).filter(|_| bucket.take(start)).count();
        assert_eq!(kept, 200);
        assert_eq!(bucket.dropped, 9_800);
        assert!(
            bucket.take(start + Duration::from_secs(1)),
            "a second later there is room again"
        );
    }
}
