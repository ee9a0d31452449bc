//! Defaults are what the schema would accept.

use serde_json::Value;

use super::super::{lists, prune, value};
use super::fields;
use crate::cel;
use crate::fault::{self, Path};
use crate::schema::Schema;
use crate::status::Cause;

/// Defaults are pruned and valid.
pub(super) fn check(node: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    if let Some(default) = node.get("default").filter(|default| !default.is_null()) {
        let at = path.child("default");
        let schema = Schema::parse(node);
        let mut pruned = default.clone();
        prune(&schema, &mut pruned);
        if pruned != *default {
            found.push(fault::invalid(at, default, "must not have unknown fields"));
        }
        // The real server checks a default by itself, so its words name no place.
        let place = format!("{at} in body");
        found.extend(
            value::check_at(&schema, default, None, &at)
                .into_iter()
                .map(|mut cause| {
                    cause.message = cause.message.replace(&place, " in body");
                    cause
                }),
        );
        found.extend(lists::check(&schema, default));
    }
    if node["items"].is_object() {
        check(&node["items"], &path.child("items"), found);
    }
    for (name, child) in fields(node, "properties") {
        let properties = path.child("properties");
        check(child, &properties.key(name), found);
    }
    if node["additionalProperties"].is_object() {
        check(
            &node["additionalProperties"],
            &path.child("additionalProperties"),
            found,
        );
    }
}

/// Defaults keep the rules of the place where they stand.
pub(super) fn check_rules(schema: &Schema, path: &Path<'_>, found: &mut Vec<Cause>) {
    if !schema.ruled {
        return;
    }
    if let Some(default) = &schema.default {
        found.extend(cel::validate_at(
            schema,
            default,
            None,
            &path.child("default"),
            schema.embedded,
        ));
    }
    for (name, below) in &schema.properties {
        let properties = path.child("properties");
        check_rules(below, &properties.key(name), found);
    }
    if let Some(below) = &schema.items {
        check_rules(below, &path.child("items"), found);
    }
    if let Some(below) = &schema.additional {
        check_rules(below, &path.child("additionalProperties"), found);
    }
}
