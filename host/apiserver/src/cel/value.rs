//! JSON as rules see it: only what the schema declares, in the types that the schema declares.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use kube::core::cel::cel::objects::{Key, Map};
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::{Program, escaped};
use crate::schema::{Schema, Type};

/// Parsed once: the crate makes times only by its own functions.
static TIMESTAMP: LazyLock<Result<Program, String>> = LazyLock::new(|| Program::parse("timestamp(text)"));
static DURATION: LazyLock<Result<Program, String>> = LazyLock::new(|| Program::parse("duration(text)"));

/// The value of a node. `root` is the whole object, of whose metadata rules see the name alone.
pub(super) fn convert(schema: &Schema, value: &Value, root: bool, functions: &Context<'_>) -> Cel {
    let schema = schema.here();
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(_) if schema.kind == Type::Number => Cel::Float(value.as_f64().unwrap_or(f64::NAN)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Cel::Int(integer),
            (None, Some(float)) => Cel::Float(float),
            (None, None) => Cel::Null,
        },
        Value::String(text) => string(schema, text, functions),
        Value::Array(list) => {
            let nothing = Schema::default();
            let items = schema.items.as_deref().unwrap_or(&nothing);
            Cel::List(Arc::new(
                list.iter()
                    .map(|item| convert(items, item, false, functions))
                    .collect(),
            ))
        }
        Value::Object(fields) => {
            let mut map = HashMap::with_capacity(fields.len());
            let keyed = schema.properties.is_empty() && schema.additional.is_some();
            for (name, value) in fields {
                if value.is_null() && !keyed {
                    continue;
                }
                let Some((key, converted)) = field(schema, name, value, root, keyed, functions) else {
                    continue;
                };
                map.insert(Key::String(Arc::new(key)), converted);
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

fn field(
    schema: &Schema,
    name: &str,
    value: &Value,
    root: bool,
    keyed: bool,
    functions: &Context<'_>,
) -> Option<(String, Cel)> {
    if keyed {
        let below = schema.additional.as_deref()?;
        return Some((name.to_owned(), convert(below, value, false, functions)));
    }
    if (root || schema.embedded) && name == "metadata" {
        let named = value
            .as_object()?
            .iter()
            .filter(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
        let nothing = Schema::default();
        let map = named
            .map(|(name, value)| {
                (
                    Key::String(Arc::new(name.clone())),
                    convert(&nothing, value, false, functions),
                )
            })
            .collect();
        return Some((name.to_owned(), Cel::Map(Map { map: Arc::new(map) })));
    }
    if (root || schema.embedded) && matches!(name, "apiVersion" | "kind") {
        return Some((
            name.to_owned(),
            convert(&Schema::default(), value, false, functions),
        ));
    }
    let below = schema.properties.get(name)?;
    let unknown = below.kind == Type::Any && !below.int_or_string;
    (!unknown).then_some(())?;
    Some((escaped(name)?, convert(below, value, false, functions)))
}

fn string(schema: &Schema, text: &str, functions: &Context<'_>) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    let parsed = |program: &Result<Program, String>| {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("text", plain());
        program
            .as_ref()
            .ok()
            .and_then(|program| program.run(&context).ok())
    };
    match schema.format() {
        "date-time" => parsed(&TIMESTAMP).unwrap_or_else(plain),
        "duration" => parsed(&DURATION).unwrap_or_else(plain),
        "byte" => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Cel::Bytes(Arc::new(bytes)),
            Err(_) => plain(),
        },
        _ => plain(),
    }
}

/// The longest list or map in a value: how often one loop can turn.
pub(super) fn longest(value: &Value) -> u64 {
    let (own, below) = match value {
        Value::Array(list) => (list.len(), list.iter().map(longest).max()),
        Value::Object(fields) => (fields.len(), fields.values().map(longest).max()),
        // A string can be split into a list.
        Value::String(text) => (text.len() / 8, None),
        _ => (0, None),
    };
    (own as u64).max(below.unwrap_or_default())
}
