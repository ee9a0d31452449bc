//! Rules of a node: what they say beside their expression, that they compile, that they are affordable where they stand.

use serde_json::Value;

use crate::cel;
use crate::fault::{self, Path};
use crate::schema::Schema;
use crate::status::Cause;

/// What a rule says beside its expression.
pub(super) fn check_written(node: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let list = path.child("x-kubernetes-validations");
    for (index, rule) in node["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let at = list.index(index);
        let text = |name: &str| rule[name].as_str();
        let blank = |name: &str| text(name).is_some_and(|text| !text.is_empty() && text.trim().is_empty());
        let broken = |name: &str| text(name).is_some_and(|text| text.trim().contains(['\n', '\r']));
        if text("rule").unwrap_or_default().trim().is_empty() {
            found.push(fault::required(at.child("rule"), "rule is not specified"));
        } else if blank("message") {
            found.push(fault::invalid(
                at.child("message"),
                &rule["message"],
                "must be non-empty if specified",
            ));
        } else if broken("message") {
            found.push(fault::invalid(
                at.child("message"),
                &rule["message"],
                "must not contain line breaks",
            ));
        } else if broken("rule") && text("message").unwrap_or_default().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            found.push(fault::required(at.child("message"), detail));
        }
        if blank("messageExpression") {
            let detail = "messageExpression must be non-empty if specified";
            found.push(fault::required(at.child("messageExpression"), detail));
        }
        const REASONS: [&str; 4] = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        if text("reason").is_some_and(|reason| !REASONS.contains(&reason)) {
            found.push(fault::not_supported(
                at.child("reason"),
                &rule["reason"],
                &REASONS,
            ));
        }
        if let Some(place) = text("fieldPath")
            && !leads_somewhere(node, place)
        {
            found.push(fault::invalid(
                at.child("fieldPath"),
                &rule["fieldPath"],
                "must be a valid path",
            ));
        }
    }
}

/// Whether a relative path like `.spec.labels['a.b']` names a declared field.
fn leads_somewhere(node: &Value, path: &str) -> bool {
    let mut node = node;
    let mut rest = path;
    while !rest.is_empty() {
        let name;
        if let Some(quoted) = rest.strip_prefix("['") {
            let Some((inner, after)) = quoted.split_once("']") else {
                return false;
            };
            (name, rest) = (inner, after);
        } else if let Some(plain) = rest.strip_prefix('.') {
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            (name, rest) = plain.split_at(end);
        } else {
            return false;
        }
        node = match node["properties"].get(name) {
            Some(below) => below,
            None if node["additionalProperties"].is_object() => &node["additionalProperties"],
            None => return false,
        };
    }
    true
}

/// Where rules stand.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) root: bool,
    /// How often this node can occur.
    pub(super) times: u64,
    /// Whether old and new values here can be told apart from their neighbours.
    pub(super) matched: bool,
}

/// Rules compile, and are affordable where they stand.
pub(super) fn check(node: &Value, schema: &Schema, path: &Path<'_>, at: Rules, found: &mut Vec<Cause>) {
    let list = path.child("x-kubernetes-validations");
    for (index, (rule, parsed)) in schema.rules.iter().zip(&schema.programs).enumerate() {
        let place = list.index(index);
        for problem in cel::check(schema, at.root, rule, parsed, at.times, at.matched) {
            found.push(match problem {
                cel::Problem::Rule(detail) => fault::invalid(place.child("rule"), &as_go(rule), &detail),
                cel::Problem::MessageExpression(detail) => {
                    fault::invalid(place.child("messageExpression"), &as_go(rule), &detail)
                }
                cel::Problem::Cost(detail) => fault::forbidden(place.child("rule"), &detail),
                cel::Problem::OldSelf => {
                    let detail = "oldSelf cannot be used on the uncorrelatable portion of the schema";
                    fault::invalid(place.child("rule"), &rule["rule"], detail)
                }
                cel::Problem::OptionalOldSelf => {
                    let detail = "may not be set if oldSelf is not used in rule";
                    fault::invalid(place.child("optionalOldSelf"), &rule["optionalOldSelf"], detail)
                }
            });
        }
    }
    let many = |name: &str| node[name].as_u64().unwrap_or(1 << 18);
    let root = |below: &Schema| below.embedded;
    for (name, below) in &schema.properties {
        let properties = path.child("properties");
        check(
            &node["properties"][name],
            below,
            &properties.key(name),
            Rules {
                root: root(below),
                ..at
            },
            found,
        );
    }
    if let Some(below) = &schema.items {
        let matched = at.matched && node["x-kubernetes-list-type"] == "map";
        let at = Rules {
            root: root(below),
            times: at.times.saturating_mul(many("maxItems")),
            matched,
        };
        check(&node["items"], below, &path.child("items"), at, found);
    }
    if let Some(below) = &schema.additional {
        let at = Rules {
            root: root(below),
            times: at.times.saturating_mul(many("maxProperties")),
            ..at
        };
        check(
            &node["additionalProperties"],
            below,
            &path.child("additionalProperties"),
            at,
            found,
        );
    }
}

/// A rule as the real server shows it in a message.
fn as_go(rule: &Value) -> Value {
    let text = |name: &str| rule[name].as_str().unwrap_or_default();
    serde_json::json!({
        "Rule": text("rule"), "Message": text("message"), "MessageExpression": text("messageExpression"),
        "Reason": rule["reason"], "FieldPath": text("fieldPath"), "OptionalOldSelf": rule["optionalOldSelf"],
    })
}
