//! Putting an applied object over a live one, and taking fields out of an object.

use serde_json::{Map, Value};

use super::field_set::{Element, FieldSet};
use super::structure::{Category, Node, is_bare};

/// The live object with what was applied put over it; what was not applied stays.
pub(crate) fn merge(node: Node<'_>, live: Option<&Value>, applied: Option<&Value>) -> Value {
    let category = match (node.category(live), node.category(applied)) {
        (Some(one), Some(other)) if live.is_some() && applied.is_some() && one != other => Category::Leaf,
        (one, other) => other.or(one).unwrap_or(Category::Leaf),
    };
    let over = || applied.or(live).cloned().unwrap_or_default();
    if category == Category::Leaf || is_bare(live) && is_bare(applied) {
        return over();
    }
    match category {
        Category::Leaf => over(),
        Category::Map => {
            let live = live.and_then(Value::as_object);
            let applied = applied.and_then(Value::as_object);
            let mut merged = Map::new();
            for (name, value) in live.into_iter().flatten() {
                let over = applied.and_then(|applied| applied.get(name));
                merged.insert(name.clone(), merge(node.field(name), Some(value), over));
            }
            for (name, value) in applied.into_iter().flatten() {
                if !merged.contains_key(name) {
                    merged.insert(name.clone(), merge(node.field(name), None, Some(value)));
                }
            }
            Value::Object(merged)
        }
        Category::List => Value::Array(merge_lists(node, live, applied)),
    }
}

fn indexed<'a>(node: Node<'_>, list: Option<&'a Value>) -> Vec<(Option<Element>, &'a Value)> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|item| (node.element(item).ok(), item))
        .collect()
}

/// Keeps the order of what was applied, and puts each element that only the live list has where it stood, as far as
/// the applied order allows.
fn merge_lists(node: Node<'_>, live: Option<&Value>, applied: Option<&Value>) -> Vec<Value> {
    let live = indexed(node, live);
    let applied = indexed(node, applied);
    let is_in = |list: &[(Option<Element>, &Value)], element: &Option<Element>| {
        element.is_some() && list.iter().any(|(other, _)| other == element)
    };
    let merged = |element: &Option<Element>, item: &Value| {
        let mut same = live
            .iter()
            .filter(|(other, _)| element.is_some() && other == element);
        let old = same.next().map(|(_, item)| *item);
        // Of elements that are there twice, none is the one to merge with.
        merge(
            node.items(),
            if same.next().is_none() { old } else { None },
            Some(item),
        )
    };

    let mut shared = applied
        .iter()
        .map(|(element, _)| element)
        .filter(|element| is_in(&live, element))
        .peekable();
    let mut done: Vec<&Option<Element>> = Vec::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut at_live, mut at_applied) = (0, 0);
    while at_live < live.len() || at_applied < applied.len() {
        let left = live.get(at_live);
        let right = applied.get(at_applied);
        if let (Some((element, _)), Some((wanted, item))) = (left, right) {
            if element.is_some() && element == wanted {
                out.push(merged(element, item));
                done.push(element);
                at_live += 1;
                at_applied += 1;
                shared.next();
                continue;
            }
            if is_in(&applied, element) && shared.peek().is_some_and(|next| *next != element) {
                at_live += 1;
                continue;
            }
        }
        if let Some((element, item)) = left {
            if !is_in(&applied, element) {
                out.push((*item).clone());
                at_live += 1;
                continue;
            }
            if done.contains(&element) {
                at_live += 1;
            }
        }
        if let Some((element, item)) = right {
            out.push(merged(element, item));
            done.push(element);
            at_applied += 1;
            if shared.peek().is_some_and(|next| *next == element) {
                shared.next();
            }
        }
    }
    out
}

/// The object without the fields of a set. A container that this empties stays, empty.
pub(crate) fn remove(node: Node<'_>, value: &Value, fields: &FieldSet) -> Value {
    match (node.category(Some(value)), value) {
        (Some(Category::Map), Value::Object(object)) => {
            let mut kept = Map::new();
            for (name, value) in object {
                let element = Element::field(name);
                if !fields.has_member(&element) {
                    kept.insert(
                        name.clone(),
                        remove_below(node.field(name), value, &element, fields),
                    );
                }
            }
            Value::Object(kept)
        }
        (Some(Category::List), Value::Array(items)) => {
            let kept = items.iter().filter_map(|item| match node.element(item) {
                Ok(element) if fields.has_member(&element) => None,
                Ok(element) => Some(remove_below(node.items(), item, &element, fields)),
                Err(_) => Some(item.clone()),
            });
            Value::Array(kept.collect())
        }
        _ => value.clone(),
    }
}

fn remove_below(node: Node<'_>, value: &Value, element: &Element, fields: &FieldSet) -> Value {
    match fields.below(element) {
        Some(below) if !below.is_empty() => remove(node, value, below),
        _ => value.clone(),
    }
}
