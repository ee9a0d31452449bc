//! JSON to the values of a component and back, led by the component's own types.

use serde_json::{Map, Value};
use wasmtime::component::Val;
use wasmtime::component::types::{ComponentFunc, Record, Type};

type Fitted<T> = Result<T, String>;

/// The arguments of a function, by name.
pub(super) fn arguments(shape: &ComponentFunc, given: &Value) -> Fitted<Vec<Val>> {
    let empty = Map::new();
    let given = match given {
        Value::Object(given) => given,
        Value::Null => &empty,
        other => return Err(format!("{other} is no mapping of arguments")),
    };
    no_others(given, shape.params().map(|(name, _)| name), "")?;
    let one = |(name, ty): (&str, Type)| {
        let value = given.get(&camel(name)).unwrap_or(&Value::Null);
        // A component without settings gets an empty table, which is not what an empty text is.
        if name == "settings" && value.is_null() {
            return Ok(Val::String("{}".to_owned()));
        }
        to_val(&ty, value, name)
    };
    shape.params().map(one).collect()
}

/// An answer as JSON.
pub(super) fn answer(value: &Val) -> Fitted<Value> {
    Ok(match value {
        Val::Bool(value) => Value::Bool(*value),
        Val::S8(number) => (*number).into(),
        Val::U8(number) => (*number).into(),
        Val::S16(number) => (*number).into(),
        Val::U16(number) => (*number).into(),
        Val::S32(number) => (*number).into(),
        Val::U32(number) => (*number).into(),
        Val::S64(number) => (*number).into(),
        Val::U64(number) => (*number).into(),
        Val::Float32(number) => (*number).into(),
        Val::Float64(number) => (*number).into(),
        Val::Char(value) => Value::String(value.to_string()),
        Val::String(text) | Val::Enum(text) => Value::String(text.clone()),
        Val::List(items) | Val::Tuple(items) => {
            Value::Array(items.iter().map(answer).collect::<Fitted<_>>()?)
        }
        Val::Record(fields) => {
            let one = |(name, value): &(String, Val)| Ok((camel(name), answer(value)?));
            Value::Object(fields.iter().map(one).collect::<Fitted<_>>()?)
        }
        Val::Variant(case, None) => Value::String(camel(case)),
        Val::Variant(case, Some(value)) => tagged(&camel(case), answer(value)?),
        Val::Option(value) => value.as_deref().map_or(Ok(Value::Null), answer)?,
        Val::Result(Ok(value)) => tagged("ok", value.as_deref().map_or(Ok(Value::Null), answer)?),
        Val::Result(Err(value)) => tagged("err", value.as_deref().map_or(Ok(Value::Null), answer)?),
        other => return Err(format!("{other:?} has no form in JSON")),
    })
}

fn to_val(ty: &Type, value: &Value, at: &str) -> Fitted<Val> {
    Ok(match ty {
        Type::Bool => match value {
            Value::Bool(value) => Val::Bool(*value),
            Value::Null => Val::Bool(false),
            _ => return unfit(at, value, "true or false"),
        },
        Type::U32 => match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Val::U32(number),
            None => return unfit(at, value, "a number of 32 bits"),
        },
        Type::String => match value {
            Value::String(text) => Val::String(text.clone()),
            Value::Null => Val::String(String::new()),
            // JSON text may be written as what it says.
            other => Val::String(other.to_string()),
        },
        Type::Option(inner) => match value {
            Value::Null => Val::Option(None),
            value => Val::Option(Some(Box::new(to_val(&inner.ty(), value, at)?))),
        },
        Type::List(inner) => Val::List(list(&inner.ty(), value, at)?),
        Type::Tuple(inner) => {
            let types: Vec<Type> = inner.types().collect();
            match value {
                Value::Array(items) if items.len() == types.len() => {
                    let pairs = types.iter().zip(items);
                    Val::Tuple(
                        pairs
                            .map(|(ty, item)| to_val(ty, item, at))
                            .collect::<Fitted<_>>()?,
                    )
                }
                _ => return unfit(at, value, "a list of the tuple's length"),
            }
        }
        Type::Record(record) => Val::Record(fields(record, value, at)?),
        Type::Enum(cases) => match value.as_str() {
            Some(text) if cases.names().any(|name| name == text) => Val::Enum(text.to_owned()),
            _ => return unfit(at, value, "one of the enum's cases"),
        },
        Type::Variant(variant) => {
            let (name, payload) = match value {
                Value::String(name) => (name.as_str(), None),
                Value::Object(map) if map.len() == 1 => {
                    let (name, payload) = map.iter().next().ok_or_else(String::new)?;
                    (name.as_str(), Some(payload))
                }
                _ => return unfit(at, value, "one case of the variant"),
            };
            let Some(case) = variant.cases().find(|case| camel(case.name) == name) else {
                return unfit(at, value, "one case of the variant");
            };
            let payload = match &case.ty {
                Some(ty) => Some(Box::new(to_val(ty, payload.unwrap_or(&Value::Null), at)?)),
                None => None,
            };
            Val::Variant(case.name.to_owned(), payload)
        }
        other => return Err(format!("{at}: no argument of type {other:?} can be written")),
    })
}

/// A list; of pairs, also as a mapping.
fn list(ty: &Type, value: &Value, at: &str) -> Fitted<Vec<Val>> {
    match (ty, value) {
        (_, Value::Null) => Ok(Vec::new()),
        (_, Value::Array(items)) => {
            let one = |(n, item): (usize, &Value)| to_val(ty, item, &format!("{at}[{n}]"));
            items.iter().enumerate().map(one).collect()
        }
        (Type::Tuple(pair), Value::Object(map)) if pair.types().len() == 2 => {
            let one = |(key, value): (&String, &Value)| {
                to_val(
                    ty,
                    &Value::Array(vec![Value::String(key.clone()), value.clone()]),
                    at,
                )
            };
            map.iter().map(one).collect()
        }
        _ => unfit(at, value, "a list"),
    }
}

fn fields(record: &Record, value: &Value, at: &str) -> Fitted<Vec<(String, Val)>> {
    let Value::Object(given) = value else {
        return unfit(at, value, "a mapping");
    };
    let as_kubernetes_has_it;
    let is_object = record.fields().any(|field| field.name == "json") && given.contains_key("metadata");
    let given = if is_object {
        as_kubernetes_has_it = object(value);
        &as_kubernetes_has_it
    } else {
        given
    };
    no_others(given, record.fields().map(|field| field.name), at)?;
    let one = |field: wasmtime::component::types::Field<'_>| {
        let value = given.get(&camel(field.name)).unwrap_or(&Value::Null);
        Ok((
            field.name.to_owned(),
            to_val(&field.ty, value, &format!("{at}.{}", field.name))?,
        ))
    };
    record.fields().map(one).collect()
}

/// The record of an object, from the object itself.
fn object(value: &Value) -> Map<String, Value> {
    let at = |pointer: &str| value.pointer(pointer).cloned().unwrap_or(Value::Null);
    let mut record = Map::new();
    for (key, pointer) in [
        ("apiVersion", "/apiVersion"),
        ("kind", "/kind"),
        ("namespace", "/metadata/namespace"),
        ("name", "/metadata/name"),
        ("uid", "/metadata/uid"),
    ] {
        record.insert(key.to_owned(), at(pointer));
    }
    record.insert("json".to_owned(), Value::String(value.to_string()));
    record
}

fn no_others<'a>(given: &Map<String, Value>, names: impl Iterator<Item = &'a str>, at: &str) -> Fitted<()> {
    let known: Vec<String> = names.map(camel).collect();
    match given.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(format!("{at}: there is no {key}, only {}", known.join(", "))),
        None => Ok(()),
    }
}

fn unfit<T>(at: &str, value: &Value, wanted: &str) -> Fitted<T> {
    Err(format!("{at}: {value} is not {wanted}"))
}

fn tagged(key: &str, value: Value) -> Value {
    let mut map = Map::new();
    map.insert(key.to_owned(), value);
    Value::Object(map)
}

/// `node-type` as `nodeType`.
fn camel(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut raise = false;
    for c in name.chars() {
        match c {
            '-' => raise = true,
            c if raise => {
                camel.extend(c.to_uppercase());
                raise = false;
            }
            c => camel.push(c),
        }
    }
    camel
}
