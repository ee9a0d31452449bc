//! Checks an object against the value checks of its schema, with the words of the real server.

use serde_json::{Number, Value};

use super::format;
use crate::cel::counterpart;
use crate::fault::{self, Path};
use crate::schema::{Schema, Type};
use crate::status::Cause;

/// Says what is wrong with the object. What is wrong and was so before is left alone.
pub(crate) fn check(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    check_at(schema, new, old, &Path::root())
}

/// The same below a path.
pub(crate) fn check_at(schema: &Schema, new: &Value, old: Option<&Value>, path: &Path<'_>) -> Vec<Cause> {
    let mut found = Vec::new();
    node(schema, new, old, path, &mut found);
    found
}

fn node(schema: &Schema, new: &Value, old: Option<&Value>, path: &Path<'_>, found: &mut Vec<Cause>) {
    if schema.recursive && schema.kind == Type::Any && !new.is_object() {
        // A schema or a flag, or a list of schemas.
        return;
    }
    let schema = schema.here();
    let before = found.len();
    if kind(schema, new, path, found) {
        branches(schema, new, path, found);
        match new {
            Value::String(text) => string(schema, text, new, path, found),
            Value::Number(value) => number(schema, value, new, path, found),
            Value::Array(list) => array(schema, list, old, path, found),
            Value::Object(_) => object(schema, new, old, path, found),
            _ => {}
        }
        one_of_enum(schema, new, path, found);
    }
    if found.len() > before && old == Some(new) {
        found.truncate(before);
    }
}

/// What the schema calls the type of a value.
fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether the value has the type; says so if not.
fn kind(schema: &Schema, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) -> bool {
    let whole =
        |number: &Number| !number.is_f64() || number.as_f64().is_some_and(|float| float.fract() == 0.0);
    let fits = match (schema.kind, value) {
        (_, Value::Null) => schema.nullable || (schema.kind == Type::Any && !schema.int_or_string),
        (Type::Any, Value::Number(number)) if schema.int_or_string => whole(number),
        (Type::Any, other) => !schema.int_or_string || other.is_string(),
        (Type::Integer, Value::Number(number)) => whole(number),
        (Type::Number, Value::Number(_))
        | (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_)) => true,
        _ => false,
    };
    if !fits {
        let wanted = if schema.int_or_string {
            "integer,string"
        } else {
            schema.kind.word()
        };
        let actual = word(value);
        let detail = format!("{} in body must be of type {wanted}: {actual:?}", path.bare());
        found.push(fault::type_invalid(path, &Value::from(actual), &detail));
    }
    fits
}

/// A fault that the schema validator tells without a field.
fn whole(found: &mut Vec<Cause>, detail: &str) {
    found.push(fault::invalid(Path::root(), &Value::from(""), detail));
}

fn branches(schema: &Schema, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let junctors = &schema.branches;
    let failures = |branch: &Schema| check_at(branch, value, None, path);
    let fewest = |lists: Vec<Vec<Cause>>| lists.into_iter().min_by_key(Vec::len).unwrap_or_default();
    let name = path.bare();
    if !junctors.any.is_empty() {
        let tried: Vec<_> = junctors.any.iter().map(|branch| failures(branch)).collect();
        if tried.iter().all(|failed| !failed.is_empty()) {
            whole(
                found,
                &format!("{name:?} must validate at least one schema (anyOf)"),
            );
            found.extend(fewest(tried));
        }
    }
    if !junctors.one.is_empty() {
        let tried: Vec<_> = junctors.one.iter().map(|branch| failures(branch)).collect();
        match tried.iter().filter(|failed| failed.is_empty()).count() {
            1 => {}
            0 => {
                whole(
                    found,
                    &format!("{name:?} must validate one and only one schema (oneOf). Found none valid"),
                );
                found.extend(fewest(tried));
            }
            many => {
                let detail = format!(
                    "{name:?} must validate one and only one schema (oneOf). Found {many} valid alternatives"
                );
                whole(found, &detail);
            }
        }
    }
    if !junctors.all.is_empty() {
        let tried: Vec<_> = junctors.all.iter().map(|branch| failures(branch)).collect();
        let good = tried.iter().filter(|failed| failed.is_empty()).count();
        if good < tried.len() {
            found.extend(tried.into_iter().flatten());
            let none = if good == 0 { ". None validated" } else { "" };
            whole(
                found,
                &format!("{name:?} must validate all the schemas (allOf){none}"),
            );
        }
    }
    if junctors
        .not
        .as_ref()
        .is_some_and(|branch| failures(branch).is_empty())
    {
        whole(found, &format!("{name:?} must not validate the schema (not)"));
    }
}

fn limit(schema: &Schema, name: &str) -> Option<i64> {
    schema.check(name).and_then(|limit| {
        limit
            .as_i64()
            .or_else(|| limit.as_f64().map(|limit| limit as i64))
    })
}

fn string(schema: &Schema, text: &str, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    // Of length and pattern the first that does not hold is told.
    if let Some(most) = limit(schema, "maxLength").filter(|most| length > *most) {
        found.push(fault::too_long(path, most));
    } else if let Some(least) = limit(schema, "minLength").filter(|least| length < *least) {
        let detail = format!("{} in body should be at least {least} chars long", path.bare());
        found.push(fault::invalid(path, value, &detail));
    } else if let Some(pattern) = schema.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        let detail = format!("{} in body should match '{}'", path.bare(), pattern.as_str());
        found.push(fault::invalid(path, value, &detail));
    }
    let name = schema.format();
    if matches!(schema.kind, Type::String | Type::Any) && !format::fits(name, text) {
        let detail = format!("{} in body must be of type {name}: {text:?}", path.bare());
        found.push(fault::type_invalid(path, value, &detail));
    }
}

fn number(schema: &Schema, number: &Number, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let name = path.bare();
    let in_range = match (schema.kind, schema.format()) {
        (Type::Integer, "int32") => number
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        (Type::Integer, _) => {
            number.as_i64().is_some() || number.as_f64().is_some_and(|float| float.abs() < 9.2e18)
        }
        (Type::Number, "float") => number
            .as_f64()
            .is_some_and(|float| float.abs() <= f64::from(f32::MAX)),
        _ => true,
    };
    if !in_range {
        let kind = schema.kind.word();
        let detail = match schema.format() {
            "" => format!("Checked value must be of type {kind} (default format) in {name}"),
            format => format!("Checked value must be of type {kind} with format {format} in {name}"),
        };
        whole(found, &detail);
    }
    let actual = number.as_f64().unwrap_or(f64::NAN);
    let bound = |key: &str| {
        schema
            .check(key)
            .and_then(|bound| Some((bound.as_f64()?, fault::number(bound))))
    };
    let exclusive = |key: &str| schema.check(key).and_then(Value::as_bool) == Some(true);
    let mut tell = |what: String| {
        found.push(fault::invalid(
            path,
            value,
            &format!("{name} in body should be {what}"),
        ));
    };
    if let Some((factor, shown)) = bound("multipleOf") {
        let ratio = actual / factor;
        if factor > 0.0 && (ratio - ratio.round()).abs() > 1e-9 {
            tell(format!("a multiple of {shown}"));
        }
    }
    if let Some((least, shown)) = bound("minimum") {
        match exclusive("exclusiveMinimum") {
            true if actual <= least => tell(format!("greater than {shown}")),
            false if actual < least => tell(format!("greater than or equal to {shown}")),
            _ => {}
        }
    }
    if let Some((most, shown)) = bound("maximum") {
        match exclusive("exclusiveMaximum") {
            true if actual >= most => tell(format!("less than {shown}")),
            false if actual > most => tell(format!("less than or equal to {shown}")),
            _ => {}
        }
    }
}

fn array(schema: &Schema, list: &[Value], old: Option<&Value>, path: &Path<'_>, found: &mut Vec<Cause>) {
    if let Some(items) = &schema.items {
        for (index, item) in list.iter().enumerate() {
            node(
                items,
                item,
                counterpart(schema, item, old),
                &path.index(index),
                found,
            );
        }
    }
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if let Some(least) = limit(schema, "minItems")
        && length < least
    {
        let detail = format!("{} in body should have at least {least} items", path.bare());
        found.push(fault::invalid(path, &Value::from(length), &detail));
    }
    if let Some(most) = limit(schema, "maxItems")
        && length > most
    {
        found.push(fault::too_many(path, list.len(), most));
    }
}

fn object(schema: &Schema, new: &Value, old: Option<&Value>, path: &Path<'_>, found: &mut Vec<Cause>) {
    let Some(fields) = new.as_object() else { return };
    let before = old.and_then(Value::as_object);
    let length = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = limit(schema, "minProperties")
        && length < least
    {
        let detail = format!("{} in body should have at least {least} properties", path.bare());
        found.push(fault::invalid(path, &Value::from(length), &detail));
    }
    if let Some(most) = limit(schema, "maxProperties")
        && length > most
    {
        found.push(fault::too_many(path, fields.len(), most));
    }
    for (name, value) in fields {
        if let Some(below) = schema.field(name) {
            node(
                below,
                value,
                before.and_then(|before| before.get(name)),
                &path.child(name),
                found,
            );
        }
    }
    for name in schema.required.iter().filter(|name| !fields.contains_key(*name)) {
        found.push(fault::required(path.child(name), ""));
    }
}

fn one_of_enum(schema: &Schema, value: &Value, path: &Path<'_>, found: &mut Vec<Cause>) {
    let Some(allowed) = schema.check("enum").and_then(Value::as_array) else {
        return;
    };
    let same = |one: &Value| one == value || (one.as_f64().is_some() && one.as_f64() == value.as_f64());
    if allowed.iter().any(same) {
        return;
    }
    let names: Vec<_> = allowed
        .iter()
        .map(|one| one.as_str().map_or_else(|| one.to_string(), Into::into))
        .collect();
    found.push(fault::not_supported(path, value, &names));
}
