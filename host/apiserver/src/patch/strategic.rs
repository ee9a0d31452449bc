//! Strategic merge patch: a merge patch that knows which lists are keyed, with directives beside the data.
//!
//! `$patch: delete|replace` on a map or an element, `$retainKeys`, `$deleteFromPrimitiveList/<field>` and
//! `$setElementOrder/<field>`, as kubectl's client-side apply and edit send them.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Why a patch was not applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A directive is not in the form that it must have.
    Format(&'static str),
    /// The patch does not fit the object.
    Content(String),
}

const BAD_RETAIN_KEYS: Fault = Fault::Format("invalid patch format of retainKeys");
const BAD_ORDER: Fault = Fault::Format("invalid patch format of setElementOrder list");
const BAD_PRIMITIVES: Fault = Fault::Format("invalid patch format of primitive list");

type Object = Map<String, Value>;

/// The object with the patch merged in.
pub(super) fn merge(schema: Option<&Schema>, mut object: Object, patch: &Object) -> Result<Object, Fault> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch
                .iter()
                .filter(|(name, _)| *name != DIRECTIVE)
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect()),
            Some("delete") => Ok(Object::new()),
            _ => Err(Fault::Content(format!("unknown patch type: {directive}"))),
        };
    }
    retain_keys(&mut object, patch)?;
    let ordered = merge_ordered_lists(schema, &mut object, patch)?;

    for (name, value) in patch {
        let taken =
            name == RETAIN_KEYS || name.starts_with(ELEMENT_ORDER) || ordered.contains(&name.as_str());
        if taken {
            continue;
        }
        if let Some(field) = name.strip_prefix(DELETE_FROM) {
            delete_from(&mut object, field, value)?;
            continue;
        }
        if value.is_null() {
            object.remove(name);
            continue;
        }
        let below = field_of(schema, name);
        match (object.get_mut(name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                *old = merge(below, std::mem::take(old), new)?;
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                *old = match merge_key(below) {
                    Some(key) => merge_list(below, std::mem::take(old), new, key)?.items,
                    None => new.clone(),
                };
            }
            _ => {
                put_new(&mut object, name, value);
            }
        }
    }
    Ok(object)
}

fn field_of<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema
        .and_then(|schema| schema.here().field(name))
        .map(|field| field.here())
}

fn items_of(schema: Option<&Schema>) -> Option<&Schema> {
    schema
        .and_then(|schema| schema.items.as_deref())
        .map(Schema::here)
}

/// What the elements of a list are merged by: a field, or nothing for scalars. `None` replaces the list.
fn merge_key(schema: Option<&Schema>) -> Option<&str> {
    schema.and_then(|schema| schema.patch_merge_key.as_deref())
}

/// Puts a value where there was none, or one of another form.
fn put_new(object: &mut Object, name: &str, value: &Value) {
    match without_directives(value) {
        Some(value) => {
            object.insert(name.to_owned(), value);
        }
        None => {
            object.remove(name);
        }
    }
}

/// A value as it stands alone: without nulls and directives; `None` when the whole is a directive.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(object) if object.contains_key(DIRECTIVE) => None,
        Value::Object(object) => {
            let kept = object
                .iter()
                .filter(|(name, value)| !value.is_null() && !is_parallel(name))
                .filter_map(|(name, value)| Some((name.clone(), without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(Value::Array(
            items.iter().filter_map(without_directives).collect(),
        )),
        scalar => Some(scalar.clone()),
    }
}

fn is_parallel(name: &str) -> bool {
    name == RETAIN_KEYS || name.starts_with(ELEMENT_ORDER) || name.starts_with(DELETE_FROM)
}

/// Drops what a `$retainKeys` list does not name.
fn retain_keys(object: &mut Object, patch: &Object) -> Result<(), Fault> {
    let Some(keys) = patch.get(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(BAD_RETAIN_KEYS);
    };
    let retained = |name: &str| keys.iter().any(|key| key.as_str() == Some(name));
    if patch
        .iter()
        .any(|(name, value)| !value.is_null() && !is_parallel(name) && !retained(name))
    {
        return Err(BAD_RETAIN_KEYS);
    }
    object.retain(|name, _| retained(name));
    Ok(())
}

/// Takes values out of a list of scalars.
fn delete_from(object: &mut Object, field: &str, gone: &Value) -> Result<(), Fault> {
    let Value::Array(gone) = gone else {
        return Err(BAD_PRIMITIVES);
    };
    if let Some(Value::Array(items)) = object.get_mut(field) {
        items.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// Merges the lists whose order the patch gives, and says which those were.
fn merge_ordered_lists<'p>(
    schema: Option<&Schema>,
    object: &mut Object,
    patch: &'p Object,
) -> Result<Vec<&'p str>, Fault> {
    let mut done = Vec::new();
    for (directive, order) in patch {
        let Some(field) = directive.strip_prefix(ELEMENT_ORDER) else {
            continue;
        };
        let Value::Array(order) = order else {
            return Err(BAD_ORDER);
        };
        let below = field_of(schema, field);
        let key = merge_key(below).unwrap_or_default();
        let old = match object.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items.clone()),
            Some(_) => return Err(BAD_ORDER),
        };
        let new = match patch.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items.as_slice()),
            Some(_) => return Err(BAD_ORDER),
        };
        check_order(new.unwrap_or_default(), order, key)?;
        if patch.contains_key(field) {
            done.push(field);
        }
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => Merged {
                items: old.clone(),
                stood: old,
            },
            (None, Some(new)) => Merged {
                items: new.iter().filter_map(without_directives).collect(),
                stood: Vec::new(),
            },
            (Some(old), Some(new)) if merge_key(below).is_some() => merge_list(below, old, new, key)?,
            (Some(old), Some(new)) => Merged {
                items: new.to_vec(),
                stood: old,
            },
        };
        let arranged = arrange(merged.items, order, &merged.stood, key)?;
        object.insert(field.to_owned(), Value::Array(arranged));
    }
    Ok(done)
}

/// What is in the patch must stand in the order list, in the same order.
fn check_order(items: &[Value], order: &[Value], key: &str) -> Result<(), Fault> {
    if items.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in items.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let wanted = identity(item, key)?;
        let mut found = false;
        for candidate in rest.by_ref() {
            if identity(candidate, key)? == wanted {
                found = true;
                break;
            }
        }
        if !found {
            return Err(Fault::Content(
                "the order in the patch does not match the order list".to_owned(),
            ));
        }
    }
    Ok(())
}

/// What identifies an element: its merge key, or itself.
fn identity<'v>(item: &'v Value, key: &str) -> Result<&'v Value, Fault> {
    if key.is_empty() {
        return Ok(item);
    }
    let object = item
        .as_object()
        .ok_or_else(|| Fault::Content(format!("{item} is not a map")))?;
    object
        .get(key)
        .ok_or_else(|| Fault::Content(format!("map: {item} does not contain declared merge key: {key}")))
}

/// A merged list, and the order against which it is to be arranged once more where the patch gives one.
struct Merged {
    items: Vec<Value>,
    stood: Vec<Value>,
}

/// Merges a list by its key, in the order of the patch.
fn merge_list(schema: Option<&Schema>, old: Vec<Value>, new: &[Value], key: &str) -> Result<Merged, Fault> {
    if key.is_empty() {
        let mut all: Vec<Value> = Vec::with_capacity(old.len() + new.len());
        for item in old.iter().chain(new) {
            if !all.contains(item) {
                all.push(item.clone());
            }
        }
        return Ok(Merged {
            items: arrange(all, new, &old, key)?,
            stood: old,
        });
    }
    // The real server merges in place, so that what is new takes the places of what is gone.
    let mut stood = old.clone();
    let mut items = old;
    let mut plain = Vec::with_capacity(new.len());
    let mut replaces = false;
    for item in new {
        match item.get(DIRECTIVE) {
            None => plain.push(item.clone()),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    let gone = identity(item, key)?;
                    items.retain(|item| item.get(key) != Some(gone));
                    stood[..items.len()].clone_from_slice(&items);
                }
                Some("replace") => replaces = true,
                Some("merge") => {
                    return Err(Fault::Content(
                        "merging lists cannot yet be specified in the patch".to_owned(),
                    ));
                }
                _ => return Err(Fault::Content(format!("unknown patch type: {directive}"))),
            },
        }
    }
    if replaces {
        return Ok(Merged { items: plain, stood });
    }
    let kept = items.clone();
    for item in &plain {
        let wanted = identity(item, key)?.clone();
        match (items.iter_mut().find(|item| item.get(key) == Some(&wanted)), item) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                *old = merge(items_of(schema), std::mem::take(old), new)?;
            }
            _ => items.extend(without_directives(item)),
        }
    }
    let places = stood.len().min(items.len());
    stood[..places].clone_from_slice(&items[..places]);
    Ok(Merged {
        items: arrange(items, &plain, &kept, key)?,
        stood,
    })
}

/// Sorts what the order names by that order and the rest as it stood, and puts each of the rest before the first of
/// the named that stood behind it.
fn arrange(items: Vec<Value>, order: &[Value], stood: &[Value], key: &str) -> Result<Vec<Value>, Fault> {
    let place = |list: &[Value], item: &Value| {
        let wanted = identity(item, key)?;
        Ok::<_, Fault>(
            list.iter()
                .position(|other| identity(other, key).is_ok_and(|other| other == wanted)),
        )
    };
    let mut named = Vec::new();
    let mut rest = Vec::new();
    for item in items {
        let stood = place(stood, &item)?;
        match place(order, &item)? {
            Some(at) => named.push((at, stood, item)),
            None => rest.push((stood, item)),
        }
    }
    named.sort_by_key(|(at, ..)| *at);
    rest.sort_by(|(a, _), (b, _)| match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        _ => Ordering::Equal,
    });
    let mut out = Vec::with_capacity(named.len() + rest.len());
    let mut rest = rest.into_iter().peekable();
    for (_, at, item) in named {
        while let Some((Some(before), _)) = rest.peek()
            && at.is_some_and(|at| *before < at)
        {
            out.extend(rest.next().map(|(_, item)| item));
        }
        out.push(item);
    }
    out.extend(rest.map(|(_, item)| item));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A pod in small: a keyed list, a merged list of scalars, and a list that is replaced.
    fn schema() -> Schema {
        let mut schema = Schema::parse(&json!({"type": "object", "properties": {
            "containers": {"type": "array", "items": {"type": "object", "properties": {
                "name": {"type": "string"},
                "args": {"type": "array", "items": {"type": "string"}},
                "env": {"type": "array", "items": {"type": "object"}}}}},
            "finalizers": {"type": "array", "items": {"type": "string"}},
            "taints": {"type": "array", "items": {"type": "object"}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}}}}));
        let keyed = |schema: &Arc<Schema>, key: &str| {
            Arc::new(Schema {
                patch_merge_key: Some(key.to_owned()),
                ..(**schema).clone()
            })
        };
        let containers = &schema.properties["containers"];
        let item = containers.items.clone().unwrap();
        let mut item = (*item).clone();
        item.properties
            .insert("env".into(), keyed(&item.properties["env"], "name"));
        let containers = Schema {
            items: Some(Arc::new(item)),
            ..(**containers).clone()
        };
        schema
            .properties
            .insert("containers".into(), keyed(&Arc::new(containers), "name"));
        schema
            .properties
            .insert("finalizers".into(), keyed(&schema.properties["finalizers"], ""));
        schema
    }

    fn patched(object: Value, patch: Value) -> Result<Value, Fault> {
        let object = object.as_object().cloned().unwrap();
        merge(Some(&schema()), object, patch.as_object().unwrap()).map(Value::Object)
    }

    #[rstest]
    #[case::element(
        json!({"containers": [{"name": "a", "x": 1}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "x": 2, "args": ["q"]}]}),
        json!({"containers": [{"name": "a", "x": 2, "args": ["q"]}, {"name": "b"}]})
    )]
    #[case::nested_element(
        json!({"containers": [{"name": "a", "env": [{"name": "E", "value": "1"}, {"name": "F"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "E", "value": "2"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "E", "value": "2"}, {"name": "F"}]}]})
    )]
    #[case::new_element(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "b", "x": null}]}),
        json!({"containers": [{"name": "b"}, {"name": "a"}]})
    )]
    #[case::delete_element(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b"}]})
    )]
    #[case::replace_list(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}),
        json!({"containers": [{"name": "c"}]})
    )]
    #[case::scalars(
        json!({"finalizers": ["a", "b"]}),
        json!({"finalizers": ["c", "a"]}),
        json!({"finalizers": ["c", "a", "b"]})
    )]
    #[case::scalars_gone(
        json!({"finalizers": ["a", "b", "c"]}),
        json!({"$deleteFromPrimitiveList/finalizers": ["b"], "$setElementOrder/finalizers": ["c", "a"]}),
        json!({"finalizers": ["c", "a"]})
    )]
    #[case::replaced_list(
        json!({"taints": [{"key": "a"}]}),
        json!({"taints": [{"key": "b"}]}),
        json!({"taints": [{"key": "b"}]})
    )]
    #[case::map(
        json!({"map": {"a": "1", "b": "2"}}),
        json!({"map": {"a": null, "c": "3"}}),
        json!({"map": {"b": "2", "c": "3"}})
    )]
    #[case::replace_map(
        json!({"map": {"a": "1", "b": "2"}}),
        json!({"map": {"$patch": "replace", "c": "3"}}),
        json!({"map": {"c": "3"}})
    )]
    #[case::delete_map(
        json!({"map": {"a": "1"}, "x": 1}),
        json!({"map": {"$patch": "delete"}}),
        json!({"map": {}, "x": 1})
    )]
    #[case::retain_keys(
        json!({"map": {"a": "1", "b": "2"}}),
        json!({"map": {"$retainKeys": ["b", "c"], "c": "3"}}),
        json!({"map": {"b": "2", "c": "3"}})
    )]
    #[case::order_with_server_only(
        json!({"containers": [{"name": "a"}, {"name": "s"}, {"name": "b"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}, {"name": "n"}], "containers": [{"name": "n"}]}),
        json!({"containers": [{"name": "s"}, {"name": "b"}, {"name": "a"}, {"name": "n"}]})
    )]
    #[case::order_only(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
        json!({"containers": [{"name": "b"}, {"name": "a"}]})
    )]
    #[case::null_of_nothing(json!({}), json!({"x": null, "map": {"a": null}}), json!({"map": {}}))]
    #[case::other_form(json!({"x": {"a": 1}}), json!({"x": "text"}), json!({"x": "text"}))]
    fn a_patch_merges(#[case] object: Value, #[case] patch: Value, #[case] result: Value) {
        assert_eq!(patched(object, patch), Ok(result));
    }

    #[rstest]
    #[case::no_key(json!({"containers": [{"x": 1}]}))]
    #[case::unknown_directive(json!({"map": {"$patch": "sort"}}))]
    #[case::merge_of_a_list(json!({"containers": [{"$patch": "merge"}]}))]
    #[case::out_of_order(json!({
        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
        "containers": [{"name": "b", "x": 1}, {"name": "a", "x": 1}]}))]
    #[case::not_retained(json!({"map": {"$retainKeys": ["a"], "c": "3"}}))]
    #[case::order_is_no_list(json!({"$setElementOrder/containers": "a"}))]
    fn a_patch_that_makes_no_sense_is_refused(#[case] patch: Value) {
        let object = json!({"containers": [{"name": "a"}, {"name": "b"}], "map": {"a": "1"}});
        assert!(patched(object, patch).is_err());
    }
}
