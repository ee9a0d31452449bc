//! Lines for the host's log. Natively they go nowhere, so that a test's output is its own.

/// Writes a line that only somebody who debugs this plugin wants.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Writes a line that is worth keeping.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Writes a line about something odd that did not stop the plugin.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Writes a line about something that did.
pub fn error(message: &str) {
    write(Level::Error, message);
}

#[cfg_attr(
    not(target_arch = "wasm32"),
    allow(dead_code, reason = "there is no log to write to")
)]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[cfg(target_arch = "wasm32")]
fn write(level: Level, message: &str) {
    use crate::bindings::shared::log;
    let level = match level {
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    log::write(level, message);
}

#[cfg(not(target_arch = "wasm32"))]
fn write(_: Level, _: &str) {}
