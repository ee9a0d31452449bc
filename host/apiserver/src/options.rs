//! What a server is opened with, and why it could not be.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::{Clock, machine_clock};
use crate::kubelets::KubeletRoute;

/// Where objects are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In one file, created when it does not exist.
    File(PathBuf),
    /// Nowhere: gone with the server.
    Memory,
}

/// How to open a server.
#[derive(Clone)]
pub struct Options {
    /// Where objects are kept.
    pub store: Store,
    /// The cluster that paths without `/clusters/<name>` mean; created when it does not exist.
    pub cluster: String,
    /// How many changes of a kind watches and pages may reach back.
    pub window: usize,
    /// How long Events are kept after their last change.
    pub event_ttl: Duration,
    /// Host names and addresses in the server's certificate, beyond the loopback ones.
    pub names: Vec<String>,
    /// The time of day.
    pub clock: Clock,
    /// Where the kubelets of the clusters' nodes listen; without it nothing that only a kubelet knows can be asked for.
    pub kubelets: Option<KubeletRoute>,
}

impl Options {
    /// The usual options over `store`.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            cluster: "platform".to_owned(),
            window: 10_000,
            event_ttl: Duration::from_secs(3600),
            names: Vec::new(),
            clock: machine_clock(),
            kubelets: None,
        }
    }
}

/// Why a server could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the file.
    #[error("store {path} is in use by another process; stop that one, or choose another directory")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by another version, or by another program.
    #[error(
        "store {path} has format {found} and this version reads format {expected}; use the version that wrote it, or move the file away to start empty"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// The file is cut short, damaged, or no store at all.
    #[error("store {path} is damaged ({why}); restore it from a copy, or move it away to start empty")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The directory does not exist.
    #[error(
        "store {path} cannot be created because the directory {directory} does not exist; create it first"
    )]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// What is missing.
        directory: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("store {path} cannot be opened ({source}); check its permissions and the space on its disk")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The certificates of the server could not be made or read.
    #[error(
        "the certificate authority in store {path} cannot be used ({why}); move the store away to start with a new one"
    )]
    Authority {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
}
