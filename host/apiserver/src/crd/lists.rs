//! Lists that are sets or maps hold nothing twice.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::fault::{self, Path};
use crate::schema::{ListType, Schema};
use crate::status::Cause;

/// Says which elements of sets and keyed lists are there already.
pub(super) fn check(schema: &Schema, value: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    node(schema, value, &Path::root(), &mut found);
    found
}

fn node(schema: &Schema, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let schema = schema.here();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(below) = schema.properties.get(name) {
                    node(below, value, &path.child(name), found);
                } else if let Some(below) = &schema.additional {
                    node(below, value, &path.key(name), found);
                }
            }
        }
        Value::Array(list) => {
            repeated(schema, list, path, found);
            if let Some(items) = &schema.items {
                for (index, item) in list.iter().enumerate() {
                    node(items, item, &path.index(index), found);
                }
            }
        }
        _ => {}
    }
}

fn repeated(schema: &Schema, list: &[Value], path: &Path<'_>, found: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, item) in list.iter().enumerate() {
        let identity = match &schema.list_type {
            ListType::Atomic => return,
            ListType::Set => item.clone(),
            ListType::Map(keys) => {
                // A refusal shows them in the order of their names.
                let mut keys: Vec<_> = keys.iter().collect();
                keys.sort_unstable();
                let part = |key: &String| Some((key.clone(), item.get(key)?.clone()));
                Value::Object(keys.into_iter().filter_map(part).collect::<Map<_, _>>())
            }
        };
        if !seen.insert(canonical(&identity)) {
            found.push(fault::duplicate(path.index(index), &identity));
        }
    }
}

/// Text that is the same for equal values, whatever the order of their fields.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut parts: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{name:?}:{}", canonical(value)))
                .collect();
            parts.sort_unstable();
            format!("{{{}}}", parts.join(","))
        }
        other => other.to_string(),
    }
}
