//! Logs and complaints of the process.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Logs to standard error, for a process that serves.
pub(crate) fn to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let plain = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // Set twice only in tests that start several hosts in one process: the first one stays.
    if std::io::stderr().is_terminal() {
        drop(plain.try_init());
    } else {
        drop(plain.json().try_init());
    }
}

/// Logs to a file, for a process whose terminal is for people.
pub(crate) fn to_file(path: &std::path::Path) -> anyhow::Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("log file {} cannot be opened", path.display()))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    drop(
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(Mutex::new(file))
            .try_init(),
    );
    Ok(())
}

/// One line to a person.
pub(crate) fn say(line: &str) {
    // A terminal that is gone ends the process by its signal, not by this.
    drop(writeln!(std::io::stdout().lock(), "{line}"));
}

/// An error with its causes, each once.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    drop(writeln!(std::io::stderr().lock(), "hostler: {text}"));
}
