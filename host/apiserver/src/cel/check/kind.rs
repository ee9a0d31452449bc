//! Types as far as the schema declares them, with the greatest size that they allow.

use serde_json::Value;

use crate::schema::{Schema, Type};

/// Bytes of a request: what bounds a list that has no `maxItems`.
const REQUEST: u64 = 3 * 1024 * 1024;

/// What is known of the type of an expression.
#[derive(Clone, Debug)]
pub(super) enum Kind<'s> {
    /// An object with declared fields; `true` at the root of a resource.
    Object(&'s Schema, bool),
    /// Values and how many at most.
    List(Option<&'s Schema>, u64),
    /// Values by key and how many at most.
    Map(Option<&'s Schema>, u64),
    /// Its greatest length.
    Text(u64),
    Number,
    Bool,
    Dyn,
}

impl<'s> Kind<'s> {
    pub(super) fn of(schema: &'s Schema, root: bool) -> Self {
        let most = |name: &str| schema.check(name).and_then(Value::as_u64);
        match schema.kind {
            Type::Boolean => Self::Bool,
            Type::Integer | Type::Number => Self::Number,
            Type::String if matches!(schema.format(), "date-time" | "duration" | "byte") => Self::Dyn,
            Type::String => Self::Text(most("maxLength").unwrap_or_else(|| enum_length(schema))),
            Type::Array => {
                let items = schema.items.as_deref();
                Self::List(
                    items,
                    most("maxItems").unwrap_or_else(|| REQUEST / (smallest(items) + 1)),
                )
            }
            Type::Object if schema.additional.is_some() && schema.properties.is_empty() => {
                let values = schema.additional.as_deref();
                Self::Map(
                    values,
                    most("maxProperties").unwrap_or_else(|| REQUEST / (smallest(values) + 6)),
                )
            }
            Type::Object => Self::Object(schema, root || schema.embedded),
            Type::Any => Self::Dyn,
        }
    }

    pub(super) fn or_dyn(schema: Option<&'s Schema>) -> Self {
        schema.map_or(Self::Dyn, |schema| Self::of(schema, false))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Object(..) => "object",
            Self::List(..) => "list",
            Self::Map(..) => "map",
            Self::Text(_) => "string",
            Self::Number => "int",
            Self::Bool => "bool",
            Self::Dyn => "dyn",
        }
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Self::List(_, most) | Self::Map(_, most) | Self::Text(most) => *most,
            _ => 16,
        }
    }
}

/// The longest value of an enumeration, or what fits into a request.
fn enum_length(schema: &Schema) -> u64 {
    let values = schema.check("enum").and_then(Value::as_array);
    let longest = values.and_then(|values| values.iter().map(|value| value.to_string().len() as u64).max());
    longest.unwrap_or(REQUEST)
}

/// Bytes that a value takes at the least.
fn smallest(schema: Option<&Schema>) -> u64 {
    let Some(schema) = schema else { return 1 };
    match schema.kind {
        Type::Boolean => 4,
        Type::Integer | Type::Number | Type::Any => 1,
        Type::String | Type::Array => 2,
        Type::Object => {
            let needed = schema
                .required
                .iter()
                .filter_map(|name| Some((name, schema.properties.get(name)?)));
            2 + needed
                .map(|(name, below)| name.len() as u64 + 4 + smallest(Some(below)))
                .sum::<u64>()
        }
    }
}

/// An object may be compared with a map literal.
pub(super) fn alike(a: &Kind<'_>, b: &Kind<'_>) -> bool {
    matches!(
        (a, b),
        (Kind::Object(..), Kind::Map(..)) | (Kind::Map(..), Kind::Object(..))
    )
}
