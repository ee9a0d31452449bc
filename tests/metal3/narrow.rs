//! Whether one schema is nowhere wider than another: what the first accepts, the second accepts and keeps as it is.

use serde_json::Value;

/// Every place where `ours` is wider, or fills in something else.
pub(super) fn wider(path: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(path, ours, theirs, &mut found);
    found
}

fn compare(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    for keyword in theirs.as_object().unwrap().keys() {
        // A check of theirs that is not compared below would be overlooked.
        if !KNOWN.contains(&keyword.as_str()) {
            found.push(format!("{path}: {keyword} is not known to this comparison"));
        }
    }
    for same in [
        "type",
        "format",
        "default",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
    ] {
        if ours.get(same) != theirs.get(same) {
            found.push(format!("{path}: {same} differs"));
        }
    }
    if ours["nullable"] == true && theirs["nullable"] != true {
        found.push(format!("{path}: nullable"));
    }
    if theirs["pattern"].is_string() && ours["pattern"] != theirs["pattern"] {
        found.push(format!("{path}: pattern"));
    }
    if let Some(allowed) = theirs["enum"].as_array() {
        let within = ours["enum"]
            .as_array()
            .is_some_and(|all| all.iter().all(|value| allowed.contains(value)));
        // Both values of a flag are no restriction.
        if !within && ours["type"] != "boolean" {
            found.push(format!("{path}: enum"));
        }
    }
    let number = |schema: &Value, name: &str| schema[name].as_f64();
    for (name, least) in [
        ("maxLength", false),
        ("maxItems", false),
        ("maximum", false),
        ("minLength", true),
        ("minItems", true),
        ("minimum", true),
    ] {
        let Some(bound) = number(theirs, name) else {
            continue;
        };
        let tight = number(ours, name).is_some_and(|own| if least { own >= bound } else { own <= bound });
        if !tight {
            found.push(format!("{path}: {name}"));
        }
    }
    for name in theirs["required"].as_array().into_iter().flatten() {
        let required = ours["required"].as_array().is_some_and(|all| all.contains(name));
        if !required {
            found.push(format!("{path}: {name} is required"));
        }
    }
    for (name, below) in theirs["properties"].as_object().into_iter().flatten() {
        if below.get("default").is_some() && ours["properties"].get(name).is_none() {
            found.push(format!("{path}.{name}: default differs"));
        }
    }
    for (name, below) in ours["properties"].as_object().into_iter().flatten() {
        match theirs["properties"].get(name) {
            Some(other) => compare(&format!("{path}.{name}"), below, other, found),
            None => found.push(format!("{path}.{name}: is pruned")),
        }
    }
    for (name, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        match (ours.get(name), theirs.get(name)) {
            (Some(own), Some(other)) => compare(&format!("{path}{mark}"), own, other, found),
            (None, None) => {}
            (own, _) => found.push(format!(
                "{path}: only {} has {name}",
                if own.is_some() { "ours" } else { "theirs" }
            )),
        }
    }
}

const KNOWN: [&str; 21] = [
    "type",
    "description",
    "format",
    "default",
    "nullable",
    "pattern",
    "enum",
    "maxLength",
    "maxItems",
    "maximum",
    "minLength",
    "minItems",
    "minimum",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
];

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"type": "string"}), json!({"type": "string", "maxLength": 3}), "a: maxLength")]
    #[case(json!({"type": "string", "maxLength": 4}), json!({"type": "string", "maxLength": 3}), "a: maxLength")]
    #[case(json!({"type": "integer", "minimum": 0}), json!({"type": "integer", "minimum": 1}), "a: minimum")]
    #[case(json!({"type": "string", "enum": ["x", "y"]}), json!({"type": "string", "enum": ["x"]}), "a: enum")]
    #[case(json!({"type": "string"}), json!({"type": "string", "enum": ["x"]}), "a: enum")]
    #[case(json!({"type": "string"}), json!({"type": "string", "pattern": "x"}), "a: pattern")]
    #[case(json!({"type": "string"}), json!({"type": "integer"}), "a: type differs")]
    #[case(json!({"type": "string"}), json!({"type": "string", "default": "x"}), "a: default differs")]
    #[case(json!({"type": "string", "nullable": true}), json!({"type": "string"}), "a: nullable")]
    #[case(json!({"type": "object"}), json!({"type": "object", "required": ["b"]}), "a: \"b\" is required")]
    #[case(json!({"type": "object", "properties": {"b": {}}}), json!({"type": "object"}), "a.b: is pruned")]
    #[case(json!({"type": "object"}), json!({"type": "object", "properties": {"b": {"default": 1}}}), "a.b: default differs")]
    #[case(
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": "array", "items": {"type": "string", "pattern": "x"}}),
        "a[]: pattern"
    )]
    #[case(json!({}), json!({"x-kubernetes-validations": []}), "a: x-kubernetes-validations is not known to this comparison")]
    fn every_way_to_be_wider_is_told(#[case] ours: Value, #[case] theirs: Value, #[case] told: &str) {
        assert_eq!(wider("a", &ours, &theirs), [told]);
        assert_eq!(
            wider("a", &theirs, &theirs)
                .iter()
                .filter(|one| !one.contains("not known"))
                .count(),
            0
        );
    }
}
