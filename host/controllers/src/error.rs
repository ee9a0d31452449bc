//! Why a turn ended early, and what that means for the next one.

use hostler_core::retry::Class;
use hostler_core::seams::Failure;

/// One variant for each thing that the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API refused or did not answer.
    #[error("{doing}: {source}")]
    Api {
        /// What was being done, with the object's name.
        doing: String,
        /// The client's error.
        #[source]
        source: kube::Error,
    },
    /// The API did not answer in time.
    #[error("{doing}: no answer within {seconds} s")]
    Timeout {
        /// What was being done.
        doing: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A plugin gave no answer.
    #[error("{0}")]
    Plugin(#[from] Failure),
    /// Somebody must change something first.
    #[error("{0}")]
    Refused(String),
    /// Not now.
    #[error("{0}")]
    Busy(String),
    /// A belief of ours did not hold.
    #[error("bug: {0}")]
    Bug(String),
}

/// Result of a turn's step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What it means for the next turn.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Api { source, .. } => match code(source) {
                Some(409 | 429) => Class::Busy,
                Some(400 | 403 | 422) => Class::Refused,
                Some(_) | None => Class::Broken,
            },
            Self::Plugin(Failure::Refused(_)) | Self::Refused(_) => Class::Refused,
            Self::Plugin(Failure::Exhausted(_)) | Self::Busy(_) => Class::Busy,
            Self::Timeout { .. } | Self::Plugin(_) => Class::Broken,
            Self::Bug(_) => Class::Bug,
        }
    }

    /// One word for metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { source, .. } if code(source) == Some(409) => "Conflict",
            Self::Api { .. } => "ApiError",
            Self::Timeout { .. } => "Timeout",
            Self::Plugin(_) => "PluginFailed",
            Self::Refused(_) => "Refused",
            Self::Busy(_) => "Busy",
            Self::Bug(_) => "Bug",
        }
    }

    /// Whether the object that was written or deleted is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if code(source) == Some(404))
    }

    /// Whether a write may have landed, or may yet land, though it failed here.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        match self {
            Self::Api { source, .. } => code(source).is_none_or(|code| code >= 500),
            Self::Timeout { .. } => true,
            Self::Plugin(_) | Self::Refused(_) | Self::Busy(_) | Self::Bug(_) => false,
        }
    }

    /// Whether somebody else wrote first, or the object exists already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if code(source) == Some(409))
    }
}

/// HTTP status of an API error.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
