//! What the server itself writes into metadata.

use rand::Rng as _;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Letters that make no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Letters behind a `generateName`.
const GENERATED: usize = 5;

/// A name may be this long, at most, before the letters are put behind it.
const LONGEST: usize = 63 - GENERATED;

/// A name that begins with `base`.
pub(super) fn generate_name(base: &str) -> String {
    let mut random = rand::rng();
    let start: String = base.chars().take(LONGEST).collect();
    let end: String = (0..GENERATED)
        .map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())]))
        .collect();
    start + &end
}

/// The metadata of an object, created when there is none.
pub(super) fn of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
}

/// A field of metadata that is a text; absent is empty.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Whether an object has finalizers, its own or (of a namespace) those of its spec.
pub(super) fn has_finalizers(resource: &Resource, object: &Value) -> bool {
    let is_filled = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let is_namespace = !resource.custom && resource.group.is_empty() && resource.kind == "Namespace";
    is_filled(&object["metadata"]["finalizers"]) || is_namespace && is_filled(&object["spec"]["finalizers"])
}

/// Puts `apiVersion`, `kind` and `metadata` first, as every client is used to see them.
pub(super) fn order(object: &mut Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    let mut ordered = Map::with_capacity(fields.len());
    for name in ["apiVersion", "kind", "metadata"] {
        if let Some(value) = fields.remove(name) {
            ordered.insert(name.to_owned(), value);
        }
    }
    ordered.extend(std::mem::take(fields));
    *fields = ordered;
}

/// Whether anything changed that `generation` counts.
pub(super) fn is_new_generation(resource: &Resource, old: &Value, new: &Value) -> bool {
    let counted = |object: &Value| -> Map<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        fields
            .filter(|(name, _)| match name.as_str() {
                "metadata" | "apiVersion" | "kind" => false,
                "status" => !resource.has_status,
                _ => true,
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    counted(old) != counted(new)
}
