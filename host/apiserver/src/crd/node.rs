//! Whether a schema is structural, node by node: types everywhere, junctors that only check values, lists and maps that
//! can be merged, defaults that are valid, rules that compile.

use serde_json::Value;

use super::{lists, value};
use crate::cel;
use crate::fault::{self, Path};
use crate::schema::Schema;
use crate::status::Cause;

/// Nesting beyond this is refused, so that no walk over a schema or an object can exhaust the stack.
const DEEPEST: usize = 64;

/// Looks at a version's schema.
pub(super) fn check(schema: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    if schema["nullable"] == true {
        found.push(fault::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let before = found.len();
    let at = At { level: Level::Root, depth: 0, meta: false };
    structure(schema, path, at, found);
    if found.len() == before {
        defaults(schema, path, found);
    }
    if found.len() == before {
        let parsed = Schema::parse(schema);
        rules(schema, &parsed, path, Rules { root: true, times: 1, matched: true }, found);
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
        found.push(fault::forbidden(path, &format!("schemas nested more than {DEEPEST} levels deep are not served")));
        return;
    }
    let kind = node["type"].as_str().unwrap_or_default();
    let unsupported = ["array", "boolean", "integer", "number", "object", "string"];
    if kind == "null" {
        found.push(fault::forbidden(path.child("type"), "type cannot be set to null, use nullable as an alternative"));
    } else if !kind.is_empty() && !unsupported.contains(&kind) {
        found.push(fault::not_supported(path.child("type"), &node["type"], &unsupported));
    }
    for name in ["$ref", "definitions", "dependencies", "patternProperties", "additionalItems", "id"] {
        if !node[name].is_null() {
            found.push(fault::forbidden(path.child(name), &format!("{name} is not supported")));
        }
    }
    if is(node, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        found.push(fault::forbidden(path.child("uniqueItems"), detail));
    }
    let below = At { level: Level::Field, depth: at.depth + 1, meta: false };
    let embedded = is(node, "x-kubernetes-embedded-resource");
    if kind == "array" && !node["items"].is_object() {
        if node["items"].is_array() {
            found.push(fault::forbidden(path.child("items"), "items must be a schema object and not an array"));
        } else {
            found.push(fault::required(path.child("items"), "must be specified"));
        }
    }
    if node["items"].is_object() {
        structure(&node["items"], &path.child("items"), At { level: Level::Item, ..below }, found);
    }
    for (name, child) in fields(node, "properties") {
        let meta = (at.level == Level::Root || embedded) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        let properties = path.child("properties");
        let child_path = properties.key(name);
        if meta && name != "metadata" && child["type"] != "string" {
            found.push(fault::invalid(child_path.child("type"), &child["type"], "must be string"));
        }
        if meta && name == "metadata" {
            metadata(child, &child_path, at.level, found);
            continue;
        }
        structure(child, &child_path, At { meta: at.meta || meta, ..below }, found);
    }
    let additional = &node["additionalProperties"];
    if !additional.is_null() {
        let at_path = path.child("additionalProperties");
        if at.level == Level::Root {
            found.push(fault::forbidden(at_path, "must not be used at the root"));
        }
        if embedded {
            found.push(fault::forbidden(at_path, "must not be used if x-kubernetes-embedded-resource is set"));
        }
        if additional != true && fields(node, "properties").next().is_some() {
            found.push(fault::forbidden(at_path, "additionalProperties and properties are mutual exclusive"));
        }
        if additional.is_object() {
            structure(additional, &at_path, below, found);
        }
    }
    types(node, kind, path, at, found);
    merging(node, kind, path, found);
    written_rules(node, path, found);
    let (skip_any, skip_all) = int_or_string(node);
    values(node, node, path, path, Skip { any: skip_any, all: skip_all }, found);
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
        found.push(fault::invalid(path.child("type"), &node["type"], "must be object at the root"));
    }
    if embedded && !preserves && fields(node, "properties").next().is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        found.push(fault::required(path.child("properties"), detail));
    }
    if at.meta && embedded {
        let name = "x-kubernetes-embedded-resource";
        found.push(fault::forbidden(path.child(name), "must not be used inside of resource meta"));
    }
    let yes = Value::Bool(true);
    let detail = "must be false if x-kubernetes-int-or-string is true";
    for (name, set) in [("x-kubernetes-preserve-unknown-fields", preserves), ("x-kubernetes-embedded-resource", embedded)] {
        if either && set {
            found.push(fault::invalid(path.child(name), &yes, detail));
        }
    }
    if node["x-kubernetes-preserve-unknown-fields"] == false {
        let name = "x-kubernetes-preserve-unknown-fields";
        found.push(fault::invalid(path.child(name), &Value::Bool(false), "must be true or undefined"));
    }
    if let Some(pattern) = node["pattern"].as_str()
        && let Err(error) = regex::Regex::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        found.push(fault::invalid(path.child("pattern"), &node["pattern"], &detail));
    }
}

/// Object metadata is known; a definition may only narrow the name.
fn metadata(node: &Value, path: &Path<'_>, level: Level, found: &mut Vec<Cause>) {
    if node["type"] != "object" {
        found.push(fault::invalid(path.child("type"), &node["type"], "must be object"));
    }
    let only_names = fields(node, "properties").all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
    let nothing_else =
        fields_of(node).all(|name| matches!(name.as_str(), "type" | "properties" | "description" | "default"));
    if level == Level::Root && !(only_names && nothing_else) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        found.push(fault::forbidden(path, detail));
    }
    if level == Level::Root && !node["default"].is_null() {
        found.push(fault::forbidden(path.child("default"), "must not be set in top-level metadata"));
    }
}

fn fields_of(node: &Value) -> impl Iterator<Item = &String> {
    node.as_object().into_iter().flatten().map(|(name, _)| name)
}

fn merging(node: &Value, kind: &str, path: &Path<'_>, found: &mut Vec<Cause>) {
    let typed = |wanted: &str, by: &str| {
        let detail = format!("must be {wanted} if {by} is specified");
        match kind {
            "" => fault::required(path.child("type"), &detail),
            _ => fault::invalid(path.child("type"), &node["type"], &detail),
        }
    };
    if let Some(map) = node["x-kubernetes-map-type"].as_str() {
        if kind != "object" {
            found.push(typed("object", "x-kubernetes-map-type"));
        }
        if !matches!(map, "atomic" | "granular") {
            let at = path.child("x-kubernetes-map-type");
            found.push(fault::not_supported(at, &node["x-kubernetes-map-type"], &["atomic", "granular"]));
        }
    }
    let list = node["x-kubernetes-list-type"].as_str();
    let keys = node["x-kubernetes-list-map-keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let items = &node["items"];
    let items_path = path.child("items");
    if list.is_some() && kind != "array" {
        found.push(typed("array", "x-kubernetes-list-type"));
    } else if list == Some("set") {
        let atomic = |name: &str| matches!(items[name].as_str(), Some("atomic"));
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        if items["type"] == "array" && !items["x-kubernetes-list-type"].is_null() && !atomic("x-kubernetes-list-type") {
            let at = items_path.child("x-kubernetes-list-type");
            found.push(fault::invalid(at, &items["x-kubernetes-list-type"], detail));
        }
        if items["type"] == "object" && !atomic("x-kubernetes-map-type") {
            let at = items_path.child("x-kubernetes-map-type");
            found.push(fault::invalid(at, &items["x-kubernetes-list-type"], detail));
        }
    }
    if list.is_some_and(|list| !matches!(list, "atomic" | "set" | "map")) {
        let at = path.child("x-kubernetes-list-type");
        found.push(fault::not_supported(at, &node["x-kubernetes-list-type"], &["atomic", "set", "map"]));
    }
    if !keys.is_empty() && list != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        let at = path.child("x-kubernetes-list-type");
        found.push(match list {
            None => fault::required(at, detail),
            Some(_) => fault::invalid(at, &node["x-kubernetes-list-type"], detail),
        });
    }
    if matches!(list, Some("set" | "map")) && is(items, "nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {}", list.unwrap_or_default());
        found.push(fault::forbidden(items_path.child("nullable"), &detail));
    }
    if list == Some("map") {
        keyed(node, keys, path, found);
    }
}

fn keyed(node: &Value, keys: &[Value], path: &Path<'_>, found: &mut Vec<Cause>) {
    let items = &node["items"];
    let items_path = path.child("items");
    let at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        found.push(fault::required(at, "must not be empty if x-kubernetes-list-type is map"));
    }
    if items.is_object() && items["type"] != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        found.push(fault::invalid(items_path.child("type"), &items["type"], detail));
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        let written = &node["x-kubernetes-list-map-keys"];
        if keys[..index].contains(key) {
            found.push(fault::invalid(at, written, "must not contain duplicate entries"));
        }
        let Some(field) = items["properties"].get(name) else {
            found.push(fault::invalid(at, written, "entries must all be names of item properties"));
            continue;
        };
        let properties = items_path.child("properties");
        let field_path = properties.key(name);
        if matches!(field["type"].as_str(), Some("array" | "object")) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            found.push(fault::invalid(field_path.child("type"), &items["type"], detail));
        }
        let needed = items["required"].as_array().is_some_and(|required| required.contains(key));
        if !needed && field["default"].is_null() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            found.push(fault::required(field_path.child("default"), detail));
        }
        if is(field, "nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            found.push(fault::forbidden(field_path.child("nullable"), detail));
        }
    }
}

/// Whether the first `anyOf`, or that of the first `allOf`, is the spelling of int-or-string, which may name types.
fn int_or_string(node: &Value) -> (bool, bool) {
    let pattern = serde_json::json!([{"type": "integer"}, {"type": "string"}]);
    let either = is(node, "x-kubernetes-int-or-string");
    (either && node["anyOf"] == pattern, either && node["allOf"][0]["anyOf"] == pattern)
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
            let inner = Skip { any: name == "allOf" && index == 0 && skip.all, all: false };
            nested(branch, known, &at.index(index), known_path, inner, found);
        }
    }
    if node["not"].is_object() {
        nested(&node["not"], known, &path.child("not"), known_path, Skip::default(), found);
    }
}

fn nested(node: &Value, known: &Value, path: &Path<'_>, known_path: &Path<'_>, skip: Skip, found: &mut Vec<Cause>) {
    const EMPTY: [(&str, &str); 12] = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
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
            nested(&node["items"], &known["items"], &at, &known_at, Skip::default(), found);
        } else {
            found.push(fault::required(known_at, &format!("because it is defined in {at}")));
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
            None => found.push(fault::required(known_at, &format!("because it is defined in {at}"))),
        }
    }
}

/// Defaults are pruned and valid.
fn defaults(node: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    if let Some(default) = node.get("default").filter(|default| !default.is_null()) {
        let at = path.child("default");
        let schema = Schema::parse(node);
        let mut pruned = default.clone();
        super::prune(&schema, &mut pruned);
        if pruned != *default {
            found.push(fault::invalid(at, default, "must not have unknown fields"));
        }
        found.extend(value::check_at(&schema, default, None, &at));
        found.extend(lists::check(&schema, default));
    }
    if node["items"].is_object() {
        defaults(&node["items"], &path.child("items"), found);
    }
    for (name, child) in fields(node, "properties") {
        let properties = path.child("properties");
        defaults(child, &properties.key(name), found);
    }
    if node["additionalProperties"].is_object() {
        defaults(&node["additionalProperties"], &path.child("additionalProperties"), found);
    }
}

/// What a rule says beside its expression.
fn written_rules(node: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let list = path.child("x-kubernetes-validations");
    for (index, rule) in node["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let at = list.index(index);
        let text = |name: &str| rule[name].as_str();
        let blank = |name: &str| text(name).is_some_and(|text| !text.is_empty() && text.trim().is_empty());
        let broken = |name: &str| text(name).is_some_and(|text| text.trim().contains(['\n', '\r']));
        if text("rule").unwrap_or_default().trim().is_empty() {
            found.push(fault::required(at.child("rule"), "rule is not specified"));
        } else if blank("message") {
            found.push(fault::invalid(at.child("message"), &rule["message"], "must be non-empty if specified"));
        } else if broken("message") {
            found.push(fault::invalid(at.child("message"), &rule["message"], "must not contain line breaks"));
        } else if broken("rule") && text("message").unwrap_or_default().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            found.push(fault::required(at.child("message"), detail));
        }
        if blank("messageExpression") {
            let detail = "messageExpression must be non-empty if specified";
            found.push(fault::required(at.child("messageExpression"), detail));
        }
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        if text("reason").is_some_and(|reason| !REASONS.contains(&reason)) {
            found.push(fault::not_supported(at.child("reason"), &rule["reason"], &REASONS));
        }
        if let Some(place) = text("fieldPath")
            && !leads_somewhere(node, place)
        {
            found.push(fault::invalid(at.child("fieldPath"), &rule["fieldPath"], "must be a valid path"));
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
            let Some((inner, after)) = quoted.split_once("']") else { return false };
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

#[derive(Clone, Copy)]
struct Rules {
    root: bool,
    /// How often this node can occur.
    times: u64,
    /// Whether old and new values here can be told apart from their neighbours.
    matched: bool,
}

/// Rules compile, and are affordable where they stand.
fn rules(node: &Value, schema: &Schema, path: &Path<'_>, at: Rules, found: &mut Vec<Cause>) {
    let list = path.child("x-kubernetes-validations");
    for (index, rule) in node["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let place = list.index(index);
        for problem in cel::check(schema, at.root, rule, at.times, at.matched) {
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
        rules(&node["properties"][name], below, &properties.key(name), Rules { root: root(below), ..at }, found);
    }
    if let Some(below) = &schema.items {
        let matched = at.matched && node["x-kubernetes-list-type"] == "map";
        let at = Rules { root: root(below), times: at.times.saturating_mul(many("maxItems")), matched };
        rules(&node["items"], below, &path.child("items"), at, found);
    }
    if let Some(below) = &schema.additional {
        let at = Rules { root: root(below), times: at.times.saturating_mul(many("maxProperties")), ..at };
        rules(&node["additionalProperties"], below, &path.child("additionalProperties"), at, found);
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
