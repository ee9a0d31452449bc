//! What the operator lets one component do: the file `NAME.toml` beside `NAME.wasm`. Nothing is granted by default.

use std::time::Duration;

use serde_json::Value;

use crate::seams::Access;

/// One component's grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// `[settings]`: handed to resolvers and policies as JSON text.
    pub settings: Value,
    /// `[limits]`
    pub limits: Limits,
    /// `[[kinds]]`
    pub kinds: Vec<KindGrant>,
}

/// Bounds of one call; always on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sum of all memories and tables of one call, in bytes; 64 MiB by default.
    pub memory: u64,
    /// Time that the guest may run; 500 ms by default.
    pub time: Duration,
    /// Size of an answer, in bytes; 1 MiB by default.
    pub output: u64,
}

/// What may be done with one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindGrant {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// The most that is allowed.
    pub access: Access,
    /// Namespaces; `*` for any.
    pub namespaces: Vec<String>,
    /// JSON pointers that may be borrowed; a trailing `*` makes a prefix of the last segment.
    pub places: Vec<String>,
    /// ServiceAccount that the host sets on kinds that run things.
    pub service_account: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 64 << 20, time: Duration::from_millis(500), output: 1 << 20 }
    }
}
