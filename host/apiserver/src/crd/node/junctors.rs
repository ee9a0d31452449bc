//! `allOf`, `anyOf`, `oneOf` and `not`: they may only check values, and only those that the structure knows.

use serde_json::Value;

use super::{fields, is};
use crate::fault::{self, Path};
use crate::status::Cause;

/// The junctors of a node.
pub(super) fn check(node: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let (any, all) = int_or_string(node);
    values(node, node, path, path, Skip { any, all }, found);
}

/// Whether the first `anyOf`, or that of the first `allOf`, is the spelling of int-or-string, which may name types.
fn int_or_string(node: &Value) -> (bool, bool) {
    let pattern = serde_json::json!([{"type": "integer"}, {"type": "string"}]);
    let either = is(node, "x-kubernetes-int-or-string");
    (
        either && node["anyOf"] == pattern,
        either && node["allOf"][0]["anyOf"] == pattern,
    )
}

#[derive(Clone, Copy, Default)]
struct Skip {
    any: bool,
    all: bool,
}

/// The junctors of a node: they may only check values, and only those that the structure knows.
fn values(
    node: &Value,
    known: &Value,
    path: &Path<'_>,
    known_path: &Path<'_>,
    skip: Skip,
    found: &mut Vec<Cause>,
) {
    for name in ["allOf", "anyOf", "oneOf"] {
        if name == "anyOf" && skip.any {
            continue;
        }
        for (index, branch) in node[name].as_array().into_iter().flatten().enumerate() {
            let at = path.child(name);
            let inner = Skip {
                any: name == "allOf" && index == 0 && skip.all,
                all: false,
            };
            nested(branch, known, &at.index(index), known_path, inner, found);
        }
    }
    if node["not"].is_object() {
        nested(
            &node["not"],
            known,
            &path.child("not"),
            known_path,
            Skip::default(),
            found,
        );
    }
}

fn nested(
    node: &Value,
    known: &Value,
    path: &Path<'_>,
    known_path: &Path<'_>,
    skip: Skip,
    found: &mut Vec<Cause>,
) {
    const EMPTY: [(&str, &str); 12] = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (name, detail) in EMPTY {
        let value = &node[name];
        if !value.is_null() && value != false && value != "" {
            found.push(fault::forbidden(path.child(name), detail));
        }
    }
    if !node["x-kubernetes-list-map-keys"].is_null() {
        let at = path.child("x-kubernetes-list-map-keys");
        found.push(fault::forbidden(at, "must be empty to be structural"));
    }
    values(node, known, path, known_path, skip, found);
    if node["items"].is_object() {
        let (at, known_at) = (path.child("items"), known_path.child("items"));
        if known["items"].is_object() {
            nested(
                &node["items"],
                &known["items"],
                &at,
                &known_at,
                Skip::default(),
                found,
            );
        } else {
            found.push(fault::required(
                known_at,
                &format!("because it is defined in {at}"),
            ));
        }
    }
    for (name, child) in fields(node, "properties") {
        let (at, known_at) = (path.child("properties"), known_path.child("properties"));
        let (at, known_at) = (at.key(name), known_at.key(name));
        if name == "metadata" {
            found.push(fault::forbidden(at, "must not be specified in a nested context"));
        }
        match known["properties"].get(name) {
            Some(below) => nested(child, below, &at, &known_at, Skip::default(), found),
            None => found.push(fault::required(
                known_at,
                &format!("because it is defined in {at}"),
            )),
        }
    }
}
