//! Why a file of the plugin directory does not serve. One class each, because each has another remedy.

use hostler_core::seams::Reason;

use crate::text;

/// Why a component was not taken. The text names what was found and ends with what to do; the catalog adds the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A name that no `Plugin` object could have.
    #[error("{0:?} is no name for a plugin; use lower-case letters, digits and dashes, at most 63")]
    NameInvalid(String),
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}; make it readable for the host")]
    FileUnreadable(String),
    /// A directory, a pipe, a device or a socket.
    #[error("is {0} and not a file; put the component itself there")]
    NotAFile(&'static str),
    /// Zero bytes.
    #[error("is empty; copy the component again")]
    FileEmpty,
    /// Larger than the host takes; found before it was read.
    #[error(
        "has {size} bytes, the host takes at most {limit}; build it smaller, or raise the limit on component size"
    )]
    FileTooLarge {
        /// Size of the file.
        size: u64,
        /// The most that is taken.
        limit: u64,
    },
    /// Does not start as WebAssembly does.
    #[error("is not WebAssembly; build it with `hostler plugin build`")]
    NotWebAssembly,
    /// Compiled code, under whatever name.
    #[error("is compiled code, which this host never takes from outside; put the component itself there")]
    Precompiled,
    /// A core module.
    #[error("is a core module and not a component; build it with `hostler plugin build`")]
    CoreModule,
    /// Does not validate; the text has the offset.
    #[error("is not a valid component: {0}; copy or build it again")]
    InvalidComponent(String),
    /// Exports no interface that this host calls, or not in a version that it knows.
    #[error("{found}; this host has {has}")]
    UnknownWorld {
        /// What was found.
        found: String,
        /// The worlds of this host.
        has: String,
    },
    /// Wants something that no component gets.
    #[error(
        "imports {import}, which this host gives to no component, and no line of {name}.toml can grant it; build it without ({hint})"
    )]
    ImportRefused {
        /// The import.
        import: String,
        /// Name of the component.
        name: String,
        /// Where such an import mostly comes from.
        hint: &'static str,
    },
    /// The exports have other shapes than the world says.
    #[error("does not fit its world: {0}; build it against wit/v0.1 as it was published")]
    LinkFailed(String),
    /// Needs more memories, tables or modules than any call has.
    #[error("needs {0}; build it smaller")]
    TooManyParts(String),
    /// `NAME.toml` does not parse, or grants what can never be granted.
    #[error("{0}")]
    GrantInvalid(String),
    /// The compiler ran out of time.
    #[error(
        "was not compiled within {seconds} s; a component of this size should take less: simplify it, or raise the limit"
    )]
    CompileTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The compiler ran out of memory.
    #[error("took the compiler more than {mebibytes} MiB ({how}); simplify it, or raise the limit")]
    CompileMemory {
        /// The limit.
        mebibytes: u64,
        /// How the compiler ended.
        how: String,
    },
    /// The compiler said no, or could not be run.
    #[error("was not compiled: {0}")]
    CompileFailed(String),
    /// Failed at its first, trial call.
    #[error("failed its trial call: {}", .0.text())]
    ProbeFailed(Reason),
    /// A policy does not take the settings of its operator file.
    #[error("does not take the [settings] of its operator file: {} ({})", .0.text(), .0.code)]
    SettingsRefused(Reason),
    /// The host's own directory cannot be written.
    #[error("cannot be kept: {0}; check space and rights of the state directory")]
    StateFailed(String),
    /// It was there, and is needed.
    #[error(
        "is gone from the plugin directory; the last good version goes on: put it back, or remove it from the configuration"
    )]
    FileMissing,
    /// Still being validated or compiled.
    #[error("is being loaded")]
    Loading,
}

impl LoadError {
    /// The class, as one CamelCase word.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NameInvalid(_) => "NameInvalid",
            Self::FileUnreadable(_) => "FileUnreadable",
            Self::NotAFile(_) => "NotAFile",
            Self::FileEmpty => "FileEmpty",
            Self::FileTooLarge { .. } => "FileTooLarge",
            Self::NotWebAssembly => "NotWebAssembly",
            Self::Precompiled => "Precompiled",
            Self::CoreModule => "CoreModule",
            Self::InvalidComponent(_) => "InvalidComponent",
            Self::UnknownWorld { .. } => "UnknownWorld",
            Self::ImportRefused { .. } => "ImportRefused",
            Self::LinkFailed(_) => "LinkFailed",
            Self::TooManyParts(_) => "TooManyParts",
            Self::GrantInvalid(_) => "GrantInvalid",
            Self::CompileTimeout { .. } => "CompileTimeout",
            Self::CompileMemory { .. } => "CompileMemory",
            Self::CompileFailed(_) => "CompileFailed",
            Self::ProbeFailed(_) => "ProbeFailed",
            Self::SettingsRefused(_) => "SettingsRefused",
            Self::StateFailed(_) => "StateFailed",
            Self::FileMissing => "FileMissing",
            Self::Loading => "Loading",
        }
    }

    /// Whether the same bytes may do better later: the machine was at fault, or may have been.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::FileUnreadable(_)
                | Self::CompileTimeout { .. }
                | Self::CompileMemory { .. }
                | Self::CompileFailed(_)
                | Self::ProbeFailed(_)
                | Self::StateFailed(_)
        )
    }

    /// The error of one file, as it stands on its `Plugin`.
    #[must_use]
    pub fn reason(&self, name: &str) -> Reason {
        let file = if matches!(self, Self::GrantInvalid(_)) {
            "toml"
        } else {
            "wasm"
        };
        let text = self.to_string();
        let text = if matches!(self, Self::GrantInvalid(_)) {
            format!("{name}.{file}: {text}")
        } else {
            format!("{name}.{file} {text}")
        };
        // The remedy stands last, and must survive the cut.
        match text.rsplit_once("; ") {
            Some((what, remedy)) => {
                Reason::new(self.code(), text::message(what)).remedy(text::message(remedy))
            }
            None => Reason::new(self.code(), text::message(&text)),
        }
    }
}
