//! Logs and complaints of the process.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::args::{LogFormat, LogOptions};

/// What is logged where nobody says otherwise. The client logs each answer that it does not like as an error of its own, and the whole text of
/// one that it cannot read, which may be a tenant's: whoever asked says what it means.
const USUAL: &str = "info,kube_client::client=off";

/// Logs to standard error, for a process that serves.
///
/// # Errors
/// A filter that is none.
pub(crate) fn to_stderr(options: &LogOptions) -> anyhow::Result<()> {
    let filter = match &options.log_level {
        Some(filter) => EnvFilter::try_new(filter).with_context(|| {
            format!("--log-level {filter:?} is no filter; write one like debug or info,hostler_wasm=debug")
        })?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL)),
    };
    let plain = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let for_people = match options.log_format {
        Some(format) => format == LogFormat::Text,
        None => std::io::stderr().is_terminal(),
    };
    // Set twice only in tests that start several hosts in one process: the first one stays.
    if for_people {
        drop(plain.with_ansi(std::io::stderr().is_terminal()).try_init());
    } else {
        drop(plain.json().try_init());
    }
    Ok(())
}

/// Logs to a file, for a process whose terminal is for people.
pub(crate) fn to_file(path: &std::path::Path) -> anyhow::Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("log file {} cannot be opened", path.display()))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
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
