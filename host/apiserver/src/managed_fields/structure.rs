//! An object seen through its schema: what of it is one field, what is many, and what identifies an element of a list.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};

use super::field_set::{Element, FieldSet, Scalar, compare_numbers, shown};
use crate::schema::{ListType, Schema, Type};

/// The part of `metadata` that is merged by parts, for kinds whose schema leaves metadata to the server.
static METADATA: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    Arc::new(Schema::parse(&json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "name": {"type": "string"}, "namespace": {"type": "string"}, "generateName": {"type": "string"},
            "uid": {"type": "string"}, "resourceVersion": {"type": "string"}, "generation": {"type": "integer"},
            "creationTimestamp": {"type": "string"}, "deletionTimestamp": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            "finalizers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ownerReferences": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                "items": {"type": "object", "x-kubernetes-map-type": "atomic",
                    "x-kubernetes-preserve-unknown-fields": true}},
        },
    })))
});

/// A string that needs no schema, for `apiVersion` and `kind`.
static TEXT: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(Schema::parse(&json!({"type": "string"}))));

/// What is known of the place where a value stands.
#[derive(Clone, Copy)]
pub(crate) enum Node<'a> {
    /// The schema of the place, and whether a whole object stands there, which always has a kind and metadata.
    Known(&'a Schema, bool),
    /// Nothing: objects are merged by parts, lists are one field.
    Unknown,
}

/// How a value is taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    /// One field.
    Leaf,
    /// A list of which each element is a field.
    List,
    /// An object of which each value is a field.
    Map,
}

impl<'a> Node<'a> {
    /// The place of a whole object.
    pub(crate) fn root(schema: &'a Schema) -> Self {
        Self::Known(schema.here(), true)
    }

    /// The place of a value in an object.
    pub(crate) fn field(self, name: &str) -> Node<'a> {
        let Self::Known(schema, whole) = self else {
            return Self::Unknown;
        };
        let known = |schema: &'a Schema| {
            let schema = schema.here();
            Self::Known(schema, schema.embedded)
        };
        if let Some(field) = schema.properties.get(name) {
            let bare =
                whole && name == "metadata" && field.properties.is_empty() && field.component.is_none();
            return if bare {
                Self::Known(&METADATA, false)
            } else {
                known(field)
            };
        }
        match (whole, name) {
            (true, "metadata") => Self::Known(&METADATA, false),
            (true, "apiVersion" | "kind") => Self::Known(&TEXT, false),
            _ => schema.additional.as_deref().map_or(Self::Unknown, known),
        }
    }

    /// Whether the schema names this field itself, so that the object it is in always has a place for it.
    pub(crate) fn names(self, name: &str) -> bool {
        match self {
            Self::Known(schema, whole) => {
                schema.properties.contains_key(name)
                    || whole && matches!(name, "metadata" | "apiVersion" | "kind")
            }
            Self::Unknown => false,
        }
    }

    /// The place of the elements of a list.
    pub(crate) fn items(self) -> Node<'a> {
        match self {
            Self::Known(schema, _) => schema.items.as_deref().map_or(Self::Unknown, |items| {
                let items = items.here();
                Self::Known(items, items.embedded)
            }),
            Self::Unknown => Self::Unknown,
        }
    }

    /// How a value here is taken apart; `None` where only another value can tell.
    pub(crate) fn category(self, value: Option<&Value>) -> Option<Category> {
        match (self, value) {
            (Self::Unknown, Some(Value::Object(_))) => Some(Category::Map),
            (Self::Unknown, None | Some(Value::Null)) => None,
            (Self::Unknown, Some(_)) => Some(Category::Leaf),
            (Self::Known(schema, _), Some(Value::Object(_))) => {
                let parts = matches!(schema.kind, Type::Object | Type::Any) && !schema.atomic_map;
                Some(if parts { Category::Map } else { Category::Leaf })
            }
            (Self::Known(schema, _), Some(Value::Array(_))) => {
                Some(if schema.list_type == ListType::Atomic {
                    Category::Leaf
                } else {
                    Category::List
                })
            }
            (Self::Known(..), Some(Value::Bool(_) | Value::Number(_) | Value::String(_))) => {
                Some(Category::Leaf)
            }
            (Self::Known(schema, _), None | Some(Value::Null)) => match schema.kind {
                Type::Array if schema.list_type != ListType::Atomic => Some(Category::List),
                Type::Object if !schema.atomic_map => Some(Category::Map),
                Type::Any => None,
                Type::Array | Type::Object | Type::String | Type::Integer | Type::Number | Type::Boolean => {
                    Some(Category::Leaf)
                }
            },
        }
    }

    /// The step to an element of a list, or why it has none.
    pub(crate) fn element(self, item: &Value) -> Result<Element, String> {
        let Self::Known(schema, _) = self else {
            return Err("invalid indexing of non-associative list".to_owned());
        };
        match &schema.list_type {
            ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            ListType::Set => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                scalar => Scalar::of(scalar).map(Element::Value).ok_or_else(String::new),
            },
            ListType::Map(keys) => self.keyed_element(item, keys),
        }
    }

    fn keyed_element(self, item: &Value, keys: &[String]) -> Result<Element, String> {
        let object = match item {
            Value::Object(object) => object,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let mut fields = Vec::with_capacity(keys.len());
        for key in keys {
            let default = match self.items() {
                Self::Known(items, _) => items.properties.get(key).and_then(|field| field.default.as_ref()),
                Self::Unknown => None,
            };
            if let Some(value) = object.get(key).or(default) {
                let scalar = Scalar::of(value)
                    .ok_or_else(|| format!("key field {key:?} of an associative list must be a scalar"))?;
                fields.push((key.clone(), scalar));
            }
        }
        if fields.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default \
                 values for any key fields)",
                keys.iter()
                    .map(|key| format!("{key:?}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            ));
        }
        fields.sort();
        Ok(Element::Key(fields))
    }
}

/// Whether two values are the same; numbers compare as numbers.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// Whether a container has nothing in it.
pub(crate) fn is_bare(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(object)) => object.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// The fields that an object has.
pub(crate) fn fields_of(node: Node<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(node, value, &mut Vec::new(), &mut set);
    set
}

fn collect(node: Node<'_>, value: &Value, path: &mut Vec<Element>, set: &mut FieldSet) {
    match (node.category(Some(value)), value) {
        (Some(Category::Map), Value::Object(object)) => {
            for (name, value) in object {
                path.push(Element::field(name));
                collect(node.field(name), value, path, set);
                let empty =
                    matches!(value, Value::Null) || matches!(value, Value::Object(map) if map.is_empty());
                if empty || !node.names(name) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (Some(Category::List), Value::Array(items)) => {
            let elements: Vec<_> = items
                .iter()
                .filter_map(|item| node.element(item).ok().zip(Some(item)))
                .collect();
            for (element, item) in &elements {
                path.push(element.clone());
                // One that is there twice is owned as a whole: its parts cannot be told apart.
                if elements.iter().filter(|(other, _)| other == element).count() == 1 {
                    collect(node.items(), item, path, set);
                }
                set.insert(path);
                path.pop();
            }
        }
        (Some(Category::Map | Category::List), _) => {}
        (Some(Category::Leaf) | None, _) => set.insert(path),
    }
}

/// The set with every named field that leads to a member, so that taking it away takes the field itself.
pub(crate) fn with_named(node: Node<'_>, set: &FieldSet) -> FieldSet {
    let mut all = set.clone();
    for (element, child) in set.children() {
        let below = match element {
            Element::Field(name) => {
                if node.names(name) {
                    all.insert_member(element.clone());
                }
                node.field(name)
            }
            Element::Key(_) => node.items(),
            Element::Value(_) | Element::Index(_) => Node::Unknown,
        };
        all.insert_child(element.clone(), with_named(below, child));
    }
    all
}

/// Why an object cannot be applied: the first field that its schema does not know, and lists whose elements cannot be
/// told apart.
pub(crate) fn find_misfits(node: Node<'_>, value: &Value, typed: bool) -> Vec<String> {
    let mut found = Vec::new();
    check(node, value, typed, &mut Vec::new(), &mut found);
    found
}

fn check(node: Node<'_>, value: &Value, typed: bool, path: &mut Vec<Element>, found: &mut Vec<String>) {
    match (node.category(Some(value)), value) {
        (Some(Category::Map), Value::Object(object)) => {
            for (name, value) in object {
                path.push(Element::field(name));
                if is_undeclared(node, name) {
                    found.push(format!("{}: field not declared in schema", shown(path)));
                } else {
                    check(node.field(name), value, typed, path, found);
                }
                path.pop();
            }
        }
        (Some(Category::List), Value::Array(items)) => {
            let mut seen = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                match node.element(item) {
                    Err(why) => found.push(format!("{}: element {index}: {why}", shown(path))),
                    Ok(element) if seen.contains(&element) => {
                        found.push(format!("{}: duplicate entries for key {element}", shown(path)));
                    }
                    Ok(element) => {
                        path.push(element.clone());
                        check(node.items(), item, typed, path, found);
                        path.pop();
                        seen.push(element);
                    }
                }
            }
        }
        (Some(Category::Leaf), scalar @ (Value::Bool(_) | Value::Number(_) | Value::String(_))) => {
            let wanted = match node {
                Node::Known(schema, _) => expected(schema.here(), scalar),
                Node::Unknown => None,
            };
            if let Some(wanted) = wanted.filter(|_| typed || scalar.is_boolean()) {
                let at = shown(path);
                found.push(format!(
                    "{at}: expected {wanted}, got &value.valueUnstructured{{Value:{scalar}}}"
                ));
            }
        }
        _ => {}
    }
}

/// What a scalar should have been, if it is something else.
fn expected(schema: &Schema, scalar: &Value) -> Option<&'static str> {
    match schema.kind {
        Type::String if !scalar.is_string() => Some("string"),
        Type::Integer | Type::Number if !scalar.is_number() => Some("numeric (int or float)"),
        Type::Boolean if !scalar.is_boolean() => Some("boolean"),
        _ => None,
    }
}

fn is_undeclared(node: Node<'_>, name: &str) -> bool {
    match node {
        Node::Unknown => false,
        Node::Known(schema, _) => {
            let open = schema.additional.is_some() || schema.preserve_unknown || schema.properties.is_empty();
            !open && !node.names(name)
        }
    }
}

/// `metadata.<key>` of an object as text; empty where it has none.
pub(crate) fn metadata<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// The fields of `metadata`, made where there are none.
pub(crate) fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let object = object.as_object_mut()?;
    object
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()))
        .as_object_mut()
}
