//! Whether a schema is structural, node by node: types everywhere, junctors that only check values, lists and maps that
//! can be merged, defaults that are valid, rules that compile.

mod defaults;
mod junctors;
mod merging;
mod rules;

use serde_json::Value;

use crate::fault::{self, Path};
use crate::schema::Schema;
use crate::status::Cause;

/// Nesting beyond this is refused, so that no walk over a schema or an object can exhaust the stack.
const DEEPEST: usize = 64;

/// Looks at a version's schema.
pub(super) fn check(schema: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    if schema["nullable"] == true {
        found.push(fault::forbidden(
            format!("{path}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let before = found.len();
    let at = At {
        level: Level::Root,
        depth: 0,
        meta: false,
    };
    structure(schema, path, at, found);
    if found.len() == before {
        defaults::check(schema, path, found);
    }
    if found.len() == before {
        let parsed = Schema::parse(schema);
        rules::check(
            schema,
            &parsed,
            path,
            rules::Rules {
                root: true,
                times: 1,
                matched: true,
            },
            found,
        );
        if found.len() == before {
            defaults::check_rules(&parsed, path, found);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

#[derive(Clone, Copy)]
struct At {
    level: Level,
    depth: usize,
    /// Inside of object metadata, where some things make no sense.
    meta: bool,
}

fn is(node: &Value, name: &str) -> bool {
    node[name] == true
}

fn fields<'v>(node: &'v Value, name: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    node[name].as_object().into_iter().flatten()
}

fn structure(node: &Value, path: &Path<'_>, at: At, found: &mut Vec<Cause>) {
    if at.depth > DEEPEST {
        found.push(fault::forbidden(
            path,
            &format!("schemas nested more than {DEEPEST} levels deep are not served"),
        ));
        return;
    }
    let kind = node["type"].as_str().unwrap_or_default();
    let unsupported = ["array", "boolean", "integer", "number", "object", "string"];
    if kind == "null" {
        found.push(fault::forbidden(
            path.child("type"),
            "type cannot be set to null, use nullable as an alternative",
        ));
    } else if !kind.is_empty() && !unsupported.contains(&kind) {
        found.push(fault::not_supported(
            path.child("type"),
            &node["type"],
            &unsupported,
        ));
    }
    for name in [
        "$ref",
        "definitions",
        "dependencies",
        "patternProperties",
        "additionalItems",
        "id",
    ] {
        if !node[name].is_null() {
            found.push(fault::forbidden(
                path.child(name),
                &format!("{name} is not supported"),
            ));
        }
    }
    if is(node, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        found.push(fault::forbidden(path.child("uniqueItems"), detail));
    }
    let below = At {
        level: Level::Field,
        depth: at.depth + 1,
        meta: false,
    };
    let embedded = is(node, "x-kubernetes-embedded-resource");
    if kind == "array" && !node["items"].is_object() {
        if node["items"].is_array() {
            found.push(fault::forbidden(
                path.child("items"),
                "items must be a schema object and not an array",
            ));
        } else {
            found.push(fault::required(path.child("items"), "must be specified"));
        }
    }
    if node["items"].is_object() {
        structure(
            &node["items"],
            &path.child("items"),
            At {
                level: Level::Item,
                ..below
            },
            found,
        );
    }
    for (name, child) in fields(node, "properties") {
        let meta = (at.level == Level::Root || embedded)
            && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        let properties = path.child("properties");
        let child_path = properties.key(name);
        if meta && name != "metadata" && child["type"] != "string" {
            found.push(fault::invalid(
                child_path.child("type"),
                &child["type"],
                "must be string",
            ));
        }
        if meta && name == "metadata" {
            metadata(child, &child_path, at.level, found);
            continue;
        }
        structure(
            child,
            &child_path,
            At {
                meta: at.meta || meta,
                ..below
            },
            found,
        );
    }
    let additional = &node["additionalProperties"];
    if !additional.is_null() {
        let at_path = path.child("additionalProperties");
        if at.level == Level::Root {
            found.push(fault::forbidden(at_path, "must not be used at the root"));
        }
        if embedded {
            found.push(fault::forbidden(
                at_path,
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
        if additional != true && fields(node, "properties").next().is_some() {
            found.push(fault::forbidden(
                at_path,
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if additional.is_object() {
            structure(additional, &at_path, below, found);
        }
    }
    types(node, kind, path, at, found);
    merging::check(node, kind, path, found);
    rules::check_written(node, path, found);
    junctors::check(node, path, found);
}

fn types(node: &Value, kind: &str, path: &Path<'_>, at: At, found: &mut Vec<Cause>) {
    let embedded = is(node, "x-kubernetes-embedded-resource");
    let preserves = is(node, "x-kubernetes-preserve-unknown-fields");
    let either = is(node, "x-kubernetes-int-or-string");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        found.push(match kind {
            "" => fault::required(path.child("type"), detail),
            _ => fault::invalid(path.child("type"), &node["type"], detail),
        });
    } else if kind.is_empty() && !either && !preserves {
        let detail = match at.level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        found.push(fault::required(path.child("type"), detail));
    }
    if at.level == Level::Root && !kind.is_empty() && kind != "object" {
        found.push(fault::invalid(
            path.child("type"),
            &node["type"],
            "must be object at the root",
        ));
    }
    if embedded && !preserves && fields(node, "properties").next().is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        found.push(fault::required(path.child("properties"), detail));
    }
    if at.meta && embedded {
        let name = "x-kubernetes-embedded-resource";
        found.push(fault::forbidden(
            path.child(name),
            "must not be used inside of resource meta",
        ));
    }
    let yes = Value::Bool(true);
    let detail = "must be false if x-kubernetes-int-or-string is true";
    for (name, set) in [
        ("x-kubernetes-preserve-unknown-fields", preserves),
        ("x-kubernetes-embedded-resource", embedded),
    ] {
        if either && set {
            found.push(fault::invalid(path.child(name), &yes, detail));
        }
    }
    if node["x-kubernetes-preserve-unknown-fields"] == false {
        let name = "x-kubernetes-preserve-unknown-fields";
        found.push(fault::invalid(
            path.child(name),
            &Value::Bool(false),
            "must be true or undefined",
        ));
    }
    if let Some(pattern) = node["pattern"].as_str()
        && let Err(error) = crate::patterns::compiled(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        found.push(fault::invalid(path.child("pattern"), &node["pattern"], &detail));
    }
}

/// Object metadata is known; a definition may only narrow the name.
fn metadata(node: &Value, path: &Path<'_>, level: Level, found: &mut Vec<Cause>) {
    if node["type"] != "object" {
        found.push(fault::invalid(
            path.child("type"),
            &node["type"],
            "must be object",
        ));
    }
    let only_names =
        fields(node, "properties").all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
    let nothing_else = fields_of(node)
        .all(|name| matches!(name.as_str(), "type" | "properties" | "description" | "default"));
    if level == Level::Root && !(only_names && nothing_else) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        found.push(fault::forbidden(path, detail));
    }
    if level == Level::Root && !node["default"].is_null() {
        found.push(fault::forbidden(
            path.child("default"),
            "must not be set in top-level metadata",
        ));
    }
}

fn fields_of(node: &Value) -> impl Iterator<Item = &String> {
    node.as_object().into_iter().flatten().map(|(name, _)| name)
}
