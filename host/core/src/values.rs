//! The values of a tenant (`spec.template.helmRelease.values`): YAML 1.2 text, read strictly where it orders machines.
//!
//! `privateNodes` is known key by key; the other keys of the chart are known by name and opaque inside; anything else is refused.
//! Every problem names the path it was found at and what would mend it. One problem refuses the whole text, so that a typo in one
//! pool can never be read as "this pool is gone".

mod chart;
mod grace;
mod nearest;
mod pools;
mod shape;
pub(crate) mod syntax;

use serde_json::Value;

pub use grace::Grace;
pub use pools::{Kind, MAX_QUANTITY, Pool};

use crate::seams::Reason;
use crate::yaml;

/// Most bytes of values that are read.
pub const MAX_BYTES: usize = yaml::MAX_BYTES;
/// Deepest nesting that is read.
pub const MAX_DEPTH: usize = yaml::MAX_DEPTH;
/// Most problems that one text names; the rest are counted.
const MAX_TOLD: usize = 5;

/// What the host reads of a tenant's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// `controlPlane.endpoint`: `host:port` that machines join.
    pub endpoint: Option<String>,
    /// `privateNodes`
    pub private_nodes: PrivateNodes,
}

/// `privateNodes`: whether the tenant has machines of its own, and which.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrivateNodes {
    /// `enabled`
    pub enabled: bool,
    /// `defaultProfile`
    pub default_profile: Option<String>,
    /// Every pool of `autoNodes`, in the order of the text; empty unless enabled.
    pub pools: Vec<Pool>,
    /// Paths that are written correctly and have no effect here yet.
    pub unserved: Vec<String>,
}

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Problem {
    /// Like `privateNodes.autoNodes[0].static[1].quantity`.
    pub path: String,
    /// `InvalidValues`, or a narrower word such as `ProtectedKey`.
    pub code: &'static str,
    /// What is wrong and what would mend it.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            code: INVALID,
            message: message.into(),
        }
    }
}

/// Code of a problem that has no narrower one.
pub const INVALID: &str = "InvalidValues";

/// Reads the values of a tenant.
///
/// # Errors
/// Everything that is wrong with them, in the order of the text.
pub fn parse(text: &str) -> Result<Values, Vec<Problem>> {
    let tree = yaml::tree(text).map_err(|broken| vec![Problem::new("values", broken.told)])?;
    let mut problems = Vec::new();
    shape::check(&chart::VALUES, "", &tree, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let values = read(&tree, &mut problems);
    if problems.is_empty() {
        Ok(values)
    } else {
        Err(problems)
    }
}

/// All problems as one reason: the code of the first, at most five texts.
#[must_use]
pub fn reason(problems: &[Problem]) -> Reason {
    let told: Vec<String> = problems.iter().take(MAX_TOLD).map(ToString::to_string).collect();
    let more = match problems.len().saturating_sub(MAX_TOLD) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Reason::new(
        problems.first().map_or(INVALID, |problem| problem.code),
        format!("{}{more}", told.join("; ")),
    )
    .remedy("mend spec.template.helmRelease.values; until then nothing is ordered and existing claims stay")
}

fn read(tree: &Value, problems: &mut Vec<Problem>) -> Values {
    let endpoint = shape::at(tree, &["controlPlane", "endpoint"])
        .and_then(Value::as_str)
        .map(ToOwned::to_owned);
    let section = tree.get("privateNodes").filter(|section| !section.is_null());
    let enabled = section
        .and_then(|section| section.get("enabled"))
        .and_then(Value::as_bool)
        .unwrap_or(false);
    if let Some(endpoint) = &endpoint {
        if let Err(message) = syntax::host_port(endpoint) {
            problems.push(Problem::new("controlPlane.endpoint", message));
        } else if !enabled {
            problems.push(Problem::new(
                "controlPlane.endpoint",
                "is only valid with private nodes; set privateNodes.enabled: true or remove it",
            ));
        }
    }
    let Some(section) = section else {
        return Values {
            endpoint,
            ..Values::default()
        };
    };
    let default_profile = shape::text(section, "defaultProfile").map(ToOwned::to_owned);
    if let Some(profile) = &default_profile
        && let Err(message) = syntax::subdomain(profile)
    {
        problems.push(Problem::new("privateNodes.defaultProfile", message));
    }
    let pools = pools::read(section, problems);
    Values {
        endpoint,
        private_nodes: PrivateNodes {
            enabled,
            default_profile,
            pools: if enabled { pools } else { Vec::new() },
            unserved: unserved(section),
        },
    }
}

/// Sections of `privateNodes` that are read and not acted upon.
const UNSERVED: [&str; 5] = ["kubelet", "autoUpgrade", "joinNode", "vpn", "daemon"];

/// Whoever writes something that has no effect is told so.
fn unserved(section: &Value) -> Vec<String> {
    let off = |value: &Value| value.get("enabled").and_then(Value::as_bool) == Some(false);
    let says_something =
        |value: &Value| value.as_object().is_some_and(|fields| !fields.is_empty()) && !off(value);
    let sections = UNSERVED
        .iter()
        .filter(|key| section.get(**key).is_some_and(says_something));
    let mut paths: Vec<String> = sections.map(|key| format!("privateNodes.{key}")).collect();
    for (index, entry) in shape::list(section, "autoNodes").iter().enumerate() {
        if !shape::list(entry, "dynamic").is_empty() {
            paths.push(format!("privateNodes.autoNodes[{index}].dynamic"));
        }
    }
    paths
}

#[cfg(test)]
mod tests;
