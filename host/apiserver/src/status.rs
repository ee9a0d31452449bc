//! Every refusal as a `v1.Status`, worded as the real server words it.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// One reason among several why an object is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldValueForbidden`, …
    pub(crate) reason: &'static str,
    /// Path of the field, like `spec.pools[0].quantity`.
    pub(crate) field: String,
    /// What is wrong, without the path: `Invalid value: -1: must be at least 0`.
    pub(crate) message: String,
}

impl Cause {
    /// `Invalid value: <shown>: <detail>`
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: impl AsRef<str>) -> Self {
        Self::worded(
            "FieldValueInvalid",
            field,
            format!("Invalid value: {}", shown(value)),
            detail.as_ref(),
        )
    }

    /// `Required value: <detail>`
    pub(crate) fn required(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::worded(
            "FieldValueRequired",
            field,
            "Required value".to_owned(),
            detail.as_ref(),
        )
    }

    /// `Forbidden: <detail>`
    pub(crate) fn forbidden(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::worded(
            "FieldValueForbidden",
            field,
            "Forbidden".to_owned(),
            detail.as_ref(),
        )
    }

    fn worded(reason: &'static str, field: impl Into<String>, start: String, detail: &str) -> Self {
        let message = if detail.is_empty() {
            start
        } else {
            format!("{start}: {detail}")
        };
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    /// The cause with its path, as it stands in the message of the whole.
    fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// A value as the real server shows it in `Invalid value: …`.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

/// A refusal: what the client gets instead of an answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) code: StatusCode,
    /// `NotFound`, `Conflict`, …; empty where the real server gives none.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
    /// `details` of the Status: name, group, kind, uid, causes, retryAfterSeconds.
    pub(crate) details: Box<Map<String, Value>>,
    /// `metadata.continue`: how to go on with a list whose moment is forgotten.
    pub(crate) continues: Option<String>,
}

impl ApiError {
    /// A refusal without details.
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Box::default(),
            continues: None,
        }
    }

    /// `nodes "x" not found`
    pub(crate) fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(group, plural));
        Self::about(StatusCode::NOT_FOUND, "NotFound", message, group, plural, name)
    }

    /// `nodes "x" already exists`
    pub(crate) fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(group, plural));
        Self::about(
            StatusCode::CONFLICT,
            "AlreadyExists",
            message,
            group,
            plural,
            name,
        )
    }

    /// `Operation cannot be fulfilled on nodes "x": <why>`
    pub(crate) fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            qualified(group, plural)
        );
        Self::about(StatusCode::CONFLICT, "Conflict", message, group, plural, name)
    }

    /// The conflict of someone who read an older version.
    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(&resource.group, &resource.plural, name, why)
    }

    /// `NodeClaim.management.loft.sh "a" is invalid: spec.x: Invalid value: …`
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(Cause::text).collect();
        let list = match texts.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(group, kind));
        let mut error = Self::about(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            message,
            group,
            kind,
            name,
        );
        let causes = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        error.details.insert("causes".to_owned(), Value::Array(causes));
        error
    }

    /// The request makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// `nodes "x" is forbidden: <why>`; without a name `nodes is forbidden: <why>`.
    pub(crate) fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let subject = qualified(group, plural);
        let message = if name.is_empty() {
            format!("{subject} is forbidden: {why}")
        } else {
            format!("{subject} \"{name}\" is forbidden: {why}")
        };
        Self::about(StatusCode::FORBIDDEN, "Forbidden", message, group, plural, name)
    }

    /// Nobody we know.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// What was asked for is no longer in the history.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// A path that we serve, with a verb that we do not.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// A path that we do not serve.
    pub(crate) fn unknown_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// A body in a format that we do not read here.
    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    /// A body over the limit.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// A revision that does not exist yet.
    pub(crate) fn future_revision(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut error = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: {message}"),
        );
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        error.details.insert("causes".to_owned(), json!([cause]));
        error.details.insert("retryAfterSeconds".to_owned(), json!(1));
        error
    }

    /// Our own fault.
    pub(crate) fn internal(why: impl std::fmt::Display) -> Self {
        let why = why.to_string();
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {why}"),
        );
        error
            .details
            .insert("causes".to_owned(), json!([{"message": why}]));
        error
    }

    /// Adds a cause with a reason of its own, like `NamespaceTerminating`.
    pub(crate) fn with_cause(mut self, reason: &str, field: &str, message: &str) -> Self {
        let cause = json!({"reason": reason, "message": message, "field": field});
        match self.details.get_mut("causes") {
            Some(Value::Array(causes)) => causes.push(cause),
            _ => {
                self.details.insert("causes".to_owned(), json!([cause]));
            }
        }
        self
    }

    fn about(
        code: StatusCode,
        reason: &'static str,
        message: String,
        group: &str,
        kind: &str,
        name: &str,
    ) -> Self {
        let mut error = Self::new(code, reason, message);
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                error
                    .details
                    .insert(key.to_owned(), Value::String(value.to_owned()));
            }
        }
        error
    }

    /// The `v1.Status`.
    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
        });
        let fields = body.as_object_mut().expect("a literal object");
        if let Some(token) = &self.continues {
            fields.insert("metadata".to_owned(), json!({"continue": token}));
        }
        if !self.reason.is_empty() {
            fields.insert("reason".to_owned(), Value::String(self.reason.to_owned()));
        }
        // Where the real server has nothing to detail, some refusals say so and some say nothing.
        let is_silent = matches!(
            self.reason,
            "" | "BadRequest" | "Unauthorized" | "Expired" | "NotAcceptable" | "UnsupportedMediaType"
        );
        if !self.details.is_empty() || !is_silent {
            fields.insert("details".to_owned(), Value::Object((*self.details).clone()));
        }
        fields.insert("code".to_owned(), json!(self.code.as_u16()));
        body
    }
}

/// `nodes`, or `nodeclaims.management.loft.sh` with a group.
pub(crate) fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_worded_as_the_real_server_words_them() {
        let cases = [
            (ApiError::not_found("", "nodes", "x"), r#"nodes "x" not found"#),
            (
                ApiError::not_found("a.b", "nodes", "x"),
                r#"nodes.a.b "x" not found"#,
            ),
            (
                ApiError::already_exists("", "pods", "x"),
                r#"pods "x" already exists"#,
            ),
            (
                ApiError::conflict("", "nodes", "x", "no"),
                r#"Operation cannot be fulfilled on nodes "x": no"#,
            ),
            (
                ApiError::forbidden("", "nodes", "", "no"),
                "nodes is forbidden: no",
            ),
            (
                ApiError::forbidden("", "nodes", "x", "no"),
                r#"nodes "x" is forbidden: no"#,
            ),
            (
                ApiError::invalid("g", "K", "a", &[Cause::invalid("spec.x", &json!("y"), "bad")]),
                r#"K.g "a" is invalid: spec.x: Invalid value: "y": bad"#,
            ),
            (
                ApiError::invalid(
                    "",
                    "K",
                    "a",
                    &[Cause::required("a", ""), Cause::forbidden("b", "never")],
                ),
                r#"K "a" is invalid: [a: Required value, b: Forbidden: never]"#,
            ),
        ];
        for (error, message) in cases {
            assert_eq!(error.message, message);
        }
    }

    #[test]
    fn a_status_carries_what_clients_branch_on() {
        let body = ApiError::not_found("a.b", "nodes", "x").body();
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "nodes.a.b \"x\" not found", "reason": "NotFound",
            "details": {"name": "x", "group": "a.b", "kind": "nodes"}, "code": 404,
        });
        assert_eq!(body, expected);
    }
}
