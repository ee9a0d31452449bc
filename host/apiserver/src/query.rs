//! The parameters of a request, parsed.

use axum::extract::Query as Pairs;
use http::{Method, StatusCode, Uri};

use crate::status::{ApiError, Cause};

/// How unknown and duplicate fields are met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Dropped in silence.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// Refused.
    Strict,
}

/// What a list's `resourceVersion` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// Not said.
    #[default]
    Unset,
    /// At least this one.
    NotOlderThan,
    /// This very one.
    Exact,
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They go after it.
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

impl Propagation {
    /// Reads `propagationPolicy`.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, ApiError> {
        match text {
            "" => Ok(None),
            "Background" => Ok(Some(Self::Background)),
            "Foreground" => Ok(Some(Self::Foreground)),
            "Orphan" => Ok(Some(Self::Orphan)),
            other => {
                let cause = Cause {
                    reason: "FieldValueNotSupported",
                    field: "propagationPolicy".to_owned(),
                    message: format!(
                        "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                    ),
                };
                Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[cause]))
            }
        }
    }
}

/// All parameters that any operation reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// `labelSelector`
    pub(crate) label_selector: String,
    /// `fieldSelector`
    pub(crate) field_selector: String,
    /// `limit`; 0 is no limit.
    pub(crate) limit: usize,
    /// `continue`
    pub(crate) continues: String,
    /// `resourceVersion`; none when absent or empty.
    pub(crate) revision: Option<u64>,
    /// Why `resourceVersion` is none.
    wrong_revision: Option<String>,
    /// `resourceVersionMatch`
    pub(crate) version_match: VersionMatch,
    /// `watch`
    pub(crate) watch: bool,
    /// `timeoutSeconds`
    pub(crate) timeout: Option<u64>,
    /// `allowWatchBookmarks`
    pub(crate) bookmarks: bool,
    /// `sendInitialEvents`
    pub(crate) initial_events: Option<bool>,
    /// `fieldManager`
    pub(crate) manager: String,
    /// `force`
    pub(crate) force: Option<bool>,
    /// `fieldValidation`
    pub(crate) validation: FieldValidation,
    /// `dryRun=All`
    pub(crate) dry_run: bool,
    /// `gracePeriodSeconds`
    pub(crate) grace: Option<i64>,
    /// `propagationPolicy`
    pub(crate) propagation: Option<Propagation>,
    /// `includeObject`, of tables.
    pub(crate) include_object: String,
    /// What only a subresource reads.
    pub(crate) others: Vec<(String, String)>,
}

/// Checks the time that a client gives a request, in the words of Go. Nothing here takes so long that it would matter.
pub(crate) fn check_timeout(uri: &Uri) -> Result<(), ApiError> {
    let Ok(Pairs(pairs)) = Pairs::<Vec<(String, String)>>::try_from_uri(uri) else {
        return Ok(());
    };
    let said = |wanted: &str| {
        let found = pairs.iter().find(|(name, _)| name == wanted);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    };
    let is_watch = said("watch").is_some_and(|value| matches!(value, "1" | "true"));
    match said("timeout").filter(|_| !is_watch).map(check_duration) {
        Some(Err(why)) => Err(ApiError::bad_request(format!(
            "invalid timeout specified in the request URL - time: {why}"
        ))),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Numbers with units, like `1m30s` or `1.5h`.
fn check_duration(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(format!("invalid duration {text:?}"));
    }
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let unit = rest.trim_start_matches(is_number);
        let number = &rest[..rest.len() - unit.len()];
        if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
            return Err(format!("invalid duration {text:?}"));
        }
        rest = unit.trim_start_matches(|c: char| !is_number(c));
        match &unit[..unit.len() - rest.len()] {
            "" => return Err(format!("missing unit in duration {text:?}")),
            "ns" | "us" | "\u{b5}s" | "\u{3bc}s" | "ms" | "s" | "m" | "h" => {}
            other => return Err(format!("unknown unit {other:?} in duration {text:?}")),
        }
    }
    Ok(())
}

impl Query {
    /// Reads the parameters of a request.
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Result<Self, ApiError> {
        let options_kind = match method.as_str() {
            "PUT" => "UpdateOptions",
            "PATCH" => "PatchOptions",
            "DELETE" => "DeleteOptions",
            _ => "CreateOptions",
        };
        let Pairs(pairs) = Pairs::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| ApiError::bad_request(error.body_text()))?;
        let mut query = Self::default();
        for (name, value) in pairs {
            query.set(&name, value, options_kind)?;
        }
        // Where a watch begins is read by another part of the real server, which has its own words.
        if let (true, Some(why)) = (query.watch, query.wrong_revision.as_ref()) {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", why.clone()));
        }
        if let Some(why) = &query.wrong_revision {
            return Err(ApiError::bad_request(format!("invalid resource version: {why}")));
        }
        query.check()?;
        Ok(query)
    }

    fn set(&mut self, name: &str, value: String, options_kind: &str) -> Result<(), ApiError> {
        match name {
            "labelSelector" => self.label_selector = value,
            "fieldSelector" => self.field_selector = value,
            "limit" => {
                self.limit = number::<i64>(&value)?
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(0);
            }
            "continue" => self.continues = value,
            "resourceVersion" if !value.is_empty() => {
                self.revision = value.parse().ok();
                let why = format!(
                    "resourceVersion: Invalid value: {value:?}: {}",
                    not_a_number("ParseUint", &value)
                );
                self.wrong_revision = self.revision.is_none().then_some(why);
            }
            "resourceVersionMatch" => {
                self.version_match = match value.as_str() {
                    "" => VersionMatch::Unset,
                    "NotOlderThan" => VersionMatch::NotOlderThan,
                    "Exact" => VersionMatch::Exact,
                    other => {
                        let text = format!(
                            "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                        );
                        return Err(list_options("FieldValueNotSupported", text));
                    }
                }
            }
            "watch" => self.watch = truth(name, &value)?,
            "timeoutSeconds" => self.timeout = number(&value)?.filter(|seconds| *seconds > 0),
            "allowWatchBookmarks" => self.bookmarks = truth(name, &value)?,
            "sendInitialEvents" => self.initial_events = Some(truth(name, &value)?),
            "fieldManager" => self.manager = value,
            "force" => self.force = Some(truth(name, &value)?),
            "fieldValidation" => {
                self.validation = match value.as_str() {
                    "Ignore" => FieldValidation::Ignore,
                    "Strict" => FieldValidation::Strict,
                    "" | "Warn" => FieldValidation::Warn,
                    other => {
                        let message = format!(
                            "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                        );
                        return Err(options(
                            options_kind,
                            "FieldValueNotSupported",
                            "fieldValidation",
                            message,
                        ));
                    }
                }
            }
            "dryRun" => match value.as_str() {
                "All" => self.dry_run = true,
                "" => {}
                other => {
                    let message = format!("Unsupported value: [{other:?}]: supported values: \"All\"");
                    return Err(options(options_kind, "FieldValueNotSupported", "dryRun", message));
                }
            },
            "gracePeriodSeconds" => self.grace = number(&value)?,
            "propagationPolicy" => self.propagation = Propagation::parse(&value)?,
            "includeObject" => self.include_object = value,
            _ => self.others.push((name.to_owned(), value)),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ApiError> {
        let matched = self.version_match != VersionMatch::Unset;
        if self.initial_events.is_some() && (!self.watch || self.version_match != VersionMatch::NotOlderThan)
        {
            let text = if self.watch {
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            } else {
                "Forbidden: sendInitialEvents is forbidden for list"
            };
            return Err(list_options("FieldValueForbidden", text.to_owned()));
        }
        if self.watch && matched && self.initial_events.is_none() {
            let text =
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(list_options("FieldValueForbidden", text.to_owned()));
        }
        if !self.watch && matched && self.revision.is_none() {
            let text = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
            return Err(list_options("FieldValueForbidden", text.to_owned()));
        }
        if !self.continues.is_empty() && matched {
            let text = "Forbidden: resourceVersionMatch is forbidden when continue is provided";
            return Err(list_options("FieldValueForbidden", text.to_owned()));
        }
        if self.version_match == VersionMatch::Exact && self.revision == Some(0) {
            let text = "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            return Err(list_options("FieldValueForbidden", text.to_owned()));
        }
        Ok(())
    }
}

fn list_options(reason: &'static str, message: String) -> ApiError {
    options("ListOptions", reason, "resourceVersionMatch", message)
}

fn options(kind: &str, reason: &'static str, field: &str, message: String) -> ApiError {
    ApiError::invalid(
        "meta.k8s.io",
        kind,
        "",
        &[Cause {
            reason,
            field: field.to_owned(),
            message,
        }],
    )
}

/// A number, or none for nothing.
fn number<N: std::str::FromStr>(text: &str) -> Result<Option<N>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| ApiError::bad_request(not_a_number("ParseInt", text)))
}

/// The real server's words for what is no number.
pub(crate) fn not_a_number(parser: &str, text: &str) -> String {
    format!("strconv.{parser}: parsing {text:?}: invalid syntax")
}

/// `?watch` and `?watch=1` are as true as `?watch=true`.
fn truth(name: &str, text: &str) -> Result<bool, ApiError> {
    match text {
        "" | "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        other => Err(ApiError::bad_request(format!(
            "{name}: Invalid value: {other:?}: must be true or false"
        ))),
    }
}
