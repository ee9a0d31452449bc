//! OpenAPI version 2, which older clients read: the definitions of all kinds in one document, without what it cannot say.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::made;
use crate::resource::Resource;

/// Says which kind a schema stands for.
const KIND: &str = "x-kubernetes-group-version-kind";
/// Says that a schema does not know all fields.
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// Versions that are served, each once.
fn versions(resources: &[Resource]) -> Vec<(&str, &str)> {
    let mut all: Vec<_> = resources
        .iter()
        .map(|resource| (resource.group.as_str(), resource.version.as_str()))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What the document is known by: another when any definition changes.
pub(crate) fn tag(resources: &[Resource]) -> String {
    let mut digest = Sha256::new();
    for (group, version) in versions(resources) {
        if let Some((_, hash)) = made(resources, group, version) {
            digest.update(format!("{group}/{version}={hash};").as_bytes());
        }
    }
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

/// `/openapi/v2`
pub(crate) fn document(resources: &[Resource]) -> Value {
    let mut definitions = Map::new();
    for (group, version) in versions(resources) {
        let Some((document, _)) = made(resources, group, version) else {
            continue;
        };
        let is_custom = resources
            .iter()
            .any(|resource| resource.custom && resource.group == group && resource.version == version);
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        for (name, schema) in schemas.into_iter().flatten() {
            let is_shared = name.starts_with("io.k8s.");
            definitions
                .entry(name.clone())
                .or_insert_with(|| node(schema, is_custom && !is_shared));
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": {},
        "definitions": definitions,
    })
}

/// A schema in the words of version 2. What clients of custom kinds cannot cope with is left open.
fn node(schema: &Value, is_custom: bool) -> Value {
    let Some(fields) = schema.as_object() else {
        return schema.clone();
    };
    let mut out = Map::new();
    for (name, value) in fields {
        match name.as_str() {
            "$ref" => {
                let target = value
                    .as_str()
                    .unwrap_or_default()
                    .replace("#/components/schemas/", "#/definitions/");
                out.insert(name.clone(), target.into());
            }
            // A name with a description of its own.
            "allOf" if value[0].get("$ref").is_some() => {
                if let Value::Object(inner) = node(&value[0], is_custom) {
                    out.extend(inner);
                }
            }
            "allOf" | "anyOf" | "oneOf" | "not" | "nullable" => {}
            "properties" => {
                let below = value.as_object().into_iter().flatten();
                let below: Map<_, _> = below
                    .map(|(name, schema)| (name.clone(), node(schema, is_custom)))
                    .collect();
                out.insert(name.clone(), below.into());
            }
            "items" | "additionalProperties" => {
                out.insert(name.clone(), node(value, is_custom));
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    if is_custom {
        let is_root = fields.contains_key(KIND);
        if is_root && is_true(fields, OPEN) {
            // A kind of which nothing is known.
            return json!({"type": "object", KIND: fields[KIND]});
        }
        loosen(fields, &mut out);
    }
    Value::Object(out)
}

fn is_true(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).is_some_and(|value| value == true)
}

fn loosen(fields: &Map<String, Value>, out: &mut Map<String, Value>) {
    let (is_nullable, is_open) = (is_true(fields, "nullable"), is_true(fields, OPEN));
    if is_nullable || is_open {
        out.remove("items");
        out.remove("properties");
    }
    let kind = out.get("type").and_then(Value::as_str).unwrap_or_default();
    if is_nullable || is_open && kind == "object" || kind == "array" && !out.contains_key("items") {
        out.remove("type");
    }
    let may_be_null = |schema: Option<&Value>| schema.is_some_and(|schema| schema["nullable"] == true);
    if may_be_null(fields.get("additionalProperties")) {
        out.remove("required");
    }
    if let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) {
        let properties = fields.get("properties");
        required.retain(|name| {
            let name = name.as_str().unwrap_or_default();
            !may_be_null(properties.and_then(|properties| properties.get(name)))
        });
        if required.is_empty() {
            out.remove("required");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn every_kind_is_defined_and_every_reference_leads_somewhere() {
        let resources = builtin::resources();
        let document = document(&resources);
        let definitions = document["definitions"].as_object().expect("definitions");
        let pod = &definitions["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["properties"]["spec"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.PodSpec"
        );
        let mut open: Vec<&Value> = definitions.values().collect();
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                        let target = target.trim_start_matches('#');
                        assert!(document.pointer(target).is_some_and(Value::is_object), "{target}");
                    }
                    open.extend(fields.values());
                }
                Value::Array(list) => open.extend(list),
                _ => {}
            }
        }
        assert_eq!(tag(&resources), tag(&resources));
    }

    #[test]
    fn what_custom_kinds_leave_open_is_left_open() {
        let schema = json!({"type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "string", "nullable": true},
            "b": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"c": {"type": "string"}}},
        }});
        let shown = node(&schema, true);
        assert_eq!(shown["required"], json!(["b"]));
        assert_eq!(shown["properties"]["a"], json!({}));
        assert_eq!(
            shown["properties"]["b"],
            json!({"x-kubernetes-preserve-unknown-fields": true})
        );
    }
}
