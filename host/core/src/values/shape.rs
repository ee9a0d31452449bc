//! What a tree of values may look like: known keys, kinds of value, and a refusal that names the nearest known key.

use serde_json::Value;

use super::Problem;
use super::nearest::nearest;

/// What may stand at a place.
pub(super) enum Shape {
    /// Anything.
    Opaque,
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Whole,
    /// A map of strings.
    Texts,
    /// A map of amounts: strings or numbers.
    Amounts,
    /// A map with any keys and anything inside.
    OpenMap,
    /// A list of one shape.
    List(&'static Shape),
    /// A map with these keys and no other.
    Fields(&'static [(&'static str, Shape)]),
    /// A map with these keys and any other.
    Open(&'static [(&'static str, Shape)]),
}

/// Adds a problem for each place that does not fit. `null` counts as left out, as in a chart.
pub(super) fn check(shape: &Shape, path: &str, value: &Value, problems: &mut Vec<Problem>) {
    if value.is_null() {
        return;
    }
    let place = || {
        if path.is_empty() {
            "values".to_owned()
        } else {
            path.to_owned()
        }
    };
    let mut wrong = |want: &str| {
        problems.push(Problem::new(
            place(),
            format!("must be {want}, not {}", kind(value)),
        ));
    };
    match shape {
        Shape::Opaque => {}
        Shape::Text if value.is_string() => {}
        Shape::Text => wrong("a text; put it in quotes"),
        Shape::Flag if value.is_boolean() => {}
        Shape::Flag => wrong("true or false"),
        Shape::Whole if value.is_i64() || value.is_u64() => {}
        Shape::Whole => wrong("a whole number"),
        Shape::OpenMap if value.is_object() => {}
        Shape::OpenMap => wrong("a map"),
        Shape::Texts | Shape::Amounts => {
            let Some(fields) = value.as_object() else {
                return wrong("a map of texts");
            };
            for (key, value) in fields {
                let fits = value.is_string() || (matches!(shape, Shape::Amounts) && value.is_number());
                if !fits {
                    let message = format!("must be a text, not {}; put it in quotes", kind(value));
                    problems.push(Problem::new(keyed(path, key), message));
                }
            }
        }
        Shape::List(inner) => {
            let Some(items) = value.as_array() else {
                return wrong("a list");
            };
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if item.is_null() {
                    problems.push(Problem::new(path, "is empty; fill the entry in or remove it"));
                } else {
                    check(inner, &path, item, problems);
                }
            }
        }
        Shape::Fields(known) | Shape::Open(known) => {
            let Some(fields) = value.as_object() else {
                return wrong("a map");
            };
            for (key, value) in fields {
                let path = joined(path, key);
                match known.iter().find(|(name, _)| name == key) {
                    Some((_, shape)) => check(shape, &path, value, problems),
                    None if matches!(shape, Shape::Open(_)) => {}
                    None => problems.push(Problem::new(path, unknown(key, known))),
                }
            }
        }
    }
}

fn unknown(key: &str, known: &[(&'static str, Shape)]) -> String {
    match nearest(key, known.iter().map(|(name, _)| *name)) {
        Some(name) => format!("unknown field, did you mean {name}"),
        None => {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            format!("unknown field; known here are {}", names.join(", "))
        }
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(yes) => yes.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

/// Path of a known key.
pub(super) fn joined(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Path of a key that is data, like a label.
pub(super) fn keyed(path: &str, key: &str) -> String {
    format!("{path}[{key:?}]")
}

/// The value at a chain of keys.
pub(super) fn at<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| value.get(key))
}

/// A text that is set and not empty.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// A list, or nothing.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}
