//! What a write changed: the fields that it added, changed and removed.

use serde_json::Value;

use super::field_set::{Element, FieldSet};
use super::structure::{Category, Node, is_bare, same};

/// The difference between an object before and after a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Fields that were not there before.
    pub(crate) added: FieldSet,
    /// Fields whose value is another one.
    pub(crate) modified: FieldSet,
    /// Fields that are no longer there.
    pub(crate) removed: FieldSet,
}

impl Comparison {
    /// Compares two objects of one kind.
    pub(crate) fn of(node: Node<'_>, before: &Value, after: &Value) -> Self {
        let mut walk = Walk {
            result: Self::default(),
            path: Vec::new(),
        };
        walk.compare(node, Some(before), Some(after));
        walk.result
    }

    /// The same with each set passed through a filter.
    pub(crate) fn filtered(self, filter: impl Fn(FieldSet) -> FieldSet) -> Self {
        Self {
            added: filter(self.added),
            modified: filter(self.modified),
            removed: filter(self.removed),
        }
    }
}

struct Walk {
    result: Comparison,
    path: Vec<Element>,
}

impl Walk {
    fn compare(&mut self, node: Node<'_>, before: Option<&Value>, after: Option<&Value>) {
        let categories = (node.category(before), node.category(after));
        let leaf = match categories {
            (Some(one), Some(other)) if one != other && before.is_some() && after.is_some() => {
                // The value changed its form: what it had is gone, what it has is new, and the field itself changed.
                if one != Category::Leaf && !is_bare(before) {
                    self.compare_as(one, node, before, None);
                }
                if other != Category::Leaf && !is_bare(after) {
                    self.compare_as(other, node, None, after);
                }
                self.compare_as(Category::Leaf, node, before, after)
            }
            (one, other) => {
                let category = if after.is_some() {
                    other.or(one)
                } else {
                    one.or(other)
                };
                self.compare_as(category.unwrap_or(Category::Leaf), node, before, after)
            }
        };
        if !leaf && before.is_none() {
            self.result.added.insert(&self.path);
        } else if !leaf && after.is_none() {
            self.result.removed.insert(&self.path);
        }
    }

    /// Compares values that are taken apart in one way; says whether they were compared as one field.
    fn compare_as(
        &mut self,
        category: Category,
        node: Node<'_>,
        before: Option<&Value>,
        after: Option<&Value>,
    ) -> bool {
        // Nothing and an empty container differ, so they are compared as one field.
        if category == Category::Leaf || is_bare(before) && is_bare(after) {
            match (before, after) {
                (None, Some(_)) => self.result.added.insert(&self.path),
                (Some(_), None) => self.result.removed.insert(&self.path),
                (Some(before), Some(after)) if !same(before, after) => {
                    self.result.modified.insert(&self.path);
                }
                _ => {}
            }
            return true;
        }
        match category {
            Category::Leaf => {}
            Category::Map => self.compare_maps(node, before, after),
            Category::List => self.compare_lists(node, before, after),
        }
        false
    }

    fn compare_maps(&mut self, node: Node<'_>, before: Option<&Value>, after: Option<&Value>) {
        let before = before.and_then(Value::as_object);
        let after = after.and_then(Value::as_object);
        for (name, value) in before.into_iter().flatten() {
            self.below(
                Element::field(name),
                node.field(name),
                Some(value),
                after.and_then(|map| map.get(name)),
            );
        }
        for (name, value) in after.into_iter().flatten() {
            if before.is_none_or(|map| !map.contains_key(name)) {
                self.below(Element::field(name), node.field(name), None, Some(value));
            }
        }
    }

    fn compare_lists(&mut self, node: Node<'_>, before: Option<&Value>, after: Option<&Value>) {
        let before = Indexed::of(node, before);
        let after = Indexed::of(node, after);
        for (element, old) in &before.0 {
            let new = after.get(element);
            self.compare_elements(node, element, old, new);
        }
        for (element, new) in &after.0 {
            if before.get(element).is_empty() {
                self.compare_elements(node, element, &[], new);
            }
        }
    }

    /// Elements that stand in a list twice have no parts that could be told apart.
    fn compare_elements(&mut self, node: Node<'_>, element: &Element, old: &[&Value], new: &[&Value]) {
        match (old, new) {
            ([] | [_], [] | [_]) => {
                self.below(
                    element.clone(),
                    node.items(),
                    old.first().copied(),
                    new.first().copied(),
                );
            }
            ([_, _, ..], [_, _, ..]) => {
                let equal = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same(old, new));
                if !equal {
                    self.mark(element, |result| &mut result.modified);
                }
            }
            ([_, _, ..], _) => {
                if let Some(new) = new.first() {
                    self.below(element.clone(), node.items(), None, Some(new));
                }
                self.mark(element, |result| &mut result.removed);
            }
            (_, [_, _, ..]) => {
                if let Some(old) = old.first() {
                    self.below(element.clone(), node.items(), Some(old), None);
                }
                self.mark(element, |result| &mut result.added);
            }
        }
    }

    fn below(&mut self, element: Element, node: Node<'_>, before: Option<&Value>, after: Option<&Value>) {
        self.path.push(element);
        self.compare(node, before, after);
        self.path.pop();
    }

    fn mark(&mut self, element: &Element, set: impl Fn(&mut Comparison) -> &mut FieldSet) {
        self.path.push(element.clone());
        set(&mut self.result).insert(&self.path);
        self.path.pop();
    }
}

/// The elements of a list by what identifies them, in the order of their first appearance.
struct Indexed<'a>(Vec<(Element, Vec<&'a Value>)>);

impl<'a> Indexed<'a> {
    fn of(node: Node<'_>, list: Option<&'a Value>) -> Self {
        let mut indexed: Vec<(Element, Vec<&'a Value>)> = Vec::new();
        for item in list.and_then(Value::as_array).into_iter().flatten() {
            let Ok(element) = node.element(item) else { continue };
            match indexed.iter_mut().find(|(known, _)| *known == element) {
                Some((_, items)) => items.push(item),
                None => indexed.push((element, vec![item])),
            }
        }
        Self(indexed)
    }

    fn get(&self, element: &Element) -> &[&'a Value] {
        self.0
            .iter()
            .find(|(known, _)| known == element)
            .map_or(&[], |(_, items)| items)
    }
}
