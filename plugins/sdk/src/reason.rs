//! Why something is so, and the classes of expected failure.

use serde::Serialize;

/// One text for a condition, an event and a log line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// One CamelCase word from the plugin's own list.
    pub code: String,
    /// One sentence for a person, without a full stop.
    pub message: String,
    /// What that person can do about it.
    pub remedy: Option<String>,
}

impl Reason {
    /// A reason without a remedy.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            remedy: None,
        }
    }

    /// The same reason with what can be done about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// An expected failure, by who has to move next. For anything unexpected, panic: that is a trap, and the host takes it for a bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// The user has to change something.
    Refused(Reason),
    /// Nothing is wrong, but not now.
    Exhausted(Reason),
    /// The world failed; ask again later.
    Broken(Reason),
}

impl Failure {
    /// A refusal: the user has to change something.
    pub fn refused(code: &str, message: impl Into<String>) -> Self {
        Self::Refused(Reason::new(code, message))
    }

    /// Not now.
    pub fn exhausted(code: &str, message: impl Into<String>) -> Self {
        Self::Exhausted(Reason::new(code, message))
    }

    /// The world failed.
    pub fn broken(code: &str, message: impl Into<String>) -> Self {
        Self::Broken(Reason::new(code, message))
    }

    /// The same failure with what can be done about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        match self {
            Self::Refused(reason) => Self::Refused(reason.remedy(remedy)),
            Self::Exhausted(reason) => Self::Exhausted(reason.remedy(remedy)),
            Self::Broken(reason) => Self::Broken(reason.remedy(remedy)),
        }
    }

    /// Why, whatever the class.
    pub fn reason(&self) -> &Reason {
        match self {
            Self::Refused(reason) | Self::Exhausted(reason) | Self::Broken(reason) => reason,
        }
    }
}
