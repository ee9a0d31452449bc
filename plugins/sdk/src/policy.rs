//! Policies: judge one thing that is about to happen. `wit/v0.1/policy.wit` is the reference.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Reason;

/// A policy: two pure functions.
pub trait Policy {
    /// The `[settings]` of the operator's file. Settings that do not parse are refused at load and deny afterwards.
    type Settings: DeserializeOwned;

    /// Which kinds of request this policy judges with these settings, or what is wrong with the settings.
    fn accepts(settings: &Self::Settings) -> Result<Vec<Interest>, Reason>;

    /// May this happen?
    fn review(settings: &Self::Settings, request: &Request) -> Verdict;
}

/// One kind of request that a policy wants to judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interest {
    /// For example `claim`.
    pub kind: String,
    /// Facts beyond the request itself: `now`, `usage`.
    pub wants: Vec<String>,
}

impl Interest {
    /// A kind, with nothing wanted beyond the request.
    pub fn in_kind(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            wants: Vec::new(),
        }
    }

    /// The same interest with one more fact.
    #[must_use]
    pub fn wanting(mut self, fact: &str) -> Self {
        self.wants.push(fact.to_owned());
        self
    }
}

/// What is about to happen.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// One of the kinds that `accepts` named.
    pub kind: String,
    /// The facts, as `wit/README.md` describes them for this kind.
    pub json: Value,
}

/// Yes or no, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Whether it may happen.
    pub allowed: bool,
    /// For a denial: why. For an allowance: warnings.
    pub reasons: Vec<Reason>,
    /// Ask again after so many seconds even if no fact changed.
    pub valid_for: Option<u32>,
}

impl Verdict {
    /// It may happen.
    pub fn allow() -> Self {
        Self {
            allowed: true,
            reasons: Vec::new(),
            valid_for: None,
        }
    }

    /// It may not.
    pub fn deny(reason: Reason) -> Self {
        Self {
            allowed: false,
            reasons: vec![reason],
            valid_for: None,
        }
    }
}

/// What is wrong with settings that do not parse.
pub(crate) fn bad_settings(error: &serde_json::Error) -> Reason {
    Reason::new("BadSettings", format!("settings do not fit: {error}"))
        .remedy("correct [settings] in the operator file beside the component")
}
