//! The one schema tree that everything in this crate reads: pruning, defaulting, validation, merging and OpenAPI.
//!
//! A tree is parsed once, from a CRD's `openAPIV3Schema` or from the built-in kinds, and then only read.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::Regex;
use serde_json::{Map, Value};

use crate::cel::Rule;
use crate::patterns;

/// JSON type of a node of the tree; `Any` where the schema names none (int-or-string, preserved unknown fields).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Type {
    /// No `type` given.
    #[default]
    Any,
    /// `object`
    Object,
    /// `array`
    Array,
    /// `string`
    String,
    /// `integer`
    Integer,
    /// `number`
    Number,
    /// `boolean`
    Boolean,
}

impl Type {
    /// The word of the schema; empty for `Any`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }

    fn parse(word: &str) -> Self {
        match word {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::Any,
        }
    }
}

/// How a list is merged by server-side apply (`x-kubernetes-list-type`) and by a strategic merge patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    /// Replaced as a whole; the default.
    #[default]
    Atomic,
    /// Scalars, each at most once.
    Set,
    /// Objects keyed by these fields.
    Map(Vec<String>),
}

/// One node of a schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schema {
    /// JSON type.
    pub(crate) kind: Type,
    /// `description`, shown by `kubectl explain`.
    pub(crate) description: Option<String>,
    /// Named fields of an object.
    pub(crate) properties: BTreeMap<String, Arc<Schema>>,
    /// Values of a map.
    pub(crate) additional: Option<Arc<Schema>>,
    /// Elements of a list.
    pub(crate) items: Option<Arc<Schema>>,
    /// Names of required fields.
    pub(crate) required: Vec<String>,
    /// Value filled in where the field is absent.
    pub(crate) default: Option<Value>,
    /// `x-kubernetes-preserve-unknown-fields`
    pub(crate) preserve_unknown: bool,
    /// `x-kubernetes-int-or-string`
    pub(crate) int_or_string: bool,
    /// `x-kubernetes-embedded-resource`
    pub(crate) embedded: bool,
    /// `nullable`
    pub(crate) nullable: bool,
    /// `x-kubernetes-list-type`, for server-side apply.
    pub(crate) list_type: ListType,
    /// `x-kubernetes-map-type: atomic`
    pub(crate) atomic_map: bool,
    /// Merge key of a strategic merge patch, for the built-in kinds; an empty string merges a list of scalars.
    pub(crate) patch_merge_key: Option<String>,
    /// The node as it was written, with the value checks (`enum`, `pattern`, `minimum`, …) that validation reads,
    /// without its children.
    pub(crate) checks: Map<String, Value>,
    /// `x-kubernetes-validations`, as written.
    pub(crate) rules: Vec<Value>,
    /// Name of the OpenAPI component that this node stands for (`io.k8s.api.core.v1.NodeSpec`), for the built-in kinds.
    pub(crate) component: Option<String>,
    /// Whether this node only names its component, because the component contains itself; see [`Schema::here`].
    pub(crate) recursive: bool,
    /// `pattern`, compiled.
    pub(crate) pattern: Option<Arc<Regex>>,
    /// Branches of `allOf`, `anyOf`, `oneOf` and `not`, which only check values.
    pub(crate) branches: Branches,
    /// `x-kubernetes-validations`, compiled.
    pub(crate) programs: Vec<Arc<Rule>>,
    /// Whether this node or one below it has rules.
    pub(crate) ruled: bool,
}

/// The logical junctors of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branches {
    /// `allOf`
    pub(crate) all: Vec<Arc<Schema>>,
    /// `anyOf`
    pub(crate) any: Vec<Arc<Schema>>,
    /// `oneOf`
    pub(crate) one: Vec<Arc<Schema>>,
    /// `not`
    pub(crate) not: Option<Arc<Schema>>,
}

/// Keys of a written node that are children or have a field of their own.
const STRUCTURE: [&str; 22] = [
    "type",
    "description",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "default",
    "nullable",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "$schema",
    "title",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
    "$ref",
];

impl Schema {
    /// Reads a node and all below it. What is not understood is left out: a CRD's schema was checked before.
    pub(crate) fn parse(node: &Value) -> Self {
        let mut schema = Self::parse_node(node);
        let child = |value: &Value| Arc::new(Self::parse(value));
        if let Some(properties) = node["properties"].as_object() {
            schema.properties = properties
                .iter()
                .map(|(name, value)| (name.clone(), child(value)))
                .collect();
        }
        match &node["additionalProperties"] {
            Value::Bool(true) => {
                schema.additional = Some(Arc::new(Self {
                    preserve_unknown: true,
                    ..Self::default()
                }));
            }
            value @ Value::Object(_) => schema.additional = Some(child(value)),
            _ => {}
        }
        schema.items = node["items"].as_object().map(|_| child(&node["items"]));
        let list = |name: &str| {
            node[name]
                .as_array()
                .into_iter()
                .flatten()
                .map(child)
                .collect::<Vec<_>>()
        };
        schema.branches = Branches {
            all: list("allOf"),
            any: list("anyOf"),
            one: list("oneOf"),
            not: node["not"].as_object().map(|_| child(&node["not"])),
        };
        if schema.int_or_string {
            schema.drop_int_or_string_pattern();
        }
        schema.seal();
        schema
    }

    /// Reads a node without its children.
    pub(crate) fn parse_node(node: &Value) -> Self {
        let text = |name: &str| node[name].as_str();
        let flag = |name: &str| node[name].as_bool() == Some(true);
        let words = |name: &str| -> Vec<String> {
            node[name]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| one.as_str().map(Into::into))
                .collect()
        };
        let checks: Map<String, Value> = node
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !STRUCTURE.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self {
            kind: text("type").map(Type::parse).unwrap_or_default(),
            description: text("description").map(Into::into),
            required: words("required"),
            default: node.get("default").filter(|value| !value.is_null()).cloned(),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            embedded: flag("x-kubernetes-embedded-resource"),
            nullable: flag("nullable"),
            list_type: match text("x-kubernetes-list-type") {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map(words("x-kubernetes-list-map-keys")),
                _ => ListType::Atomic,
            },
            atomic_map: text("x-kubernetes-map-type") == Some("atomic"),
            rules: node["x-kubernetes-validations"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
            pattern: text("pattern").and_then(|pattern| patterns::compiled(pattern).ok()),
            programs: node["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|rule| Arc::new(Rule::parse(rule)))
                .collect(),
            checks,
            ..Self::default()
        }
    }

    /// The two ways to write int-or-string repeat the types in a junctor, which then checks nothing new.
    fn drop_int_or_string_pattern(&mut self) {
        let both = |branches: &[Arc<Self>]| matches!(branches, [a, b] if a.kind == Type::Integer && b.kind == Type::String);
        if both(&self.branches.any) {
            self.branches.any.clear();
        }
        if self
            .branches
            .all
            .first()
            .is_some_and(|first| both(&first.branches.any))
        {
            self.branches.all.remove(0);
        }
    }

    /// Works out what is derived from the children; called when they are in place.
    pub(crate) fn seal(&mut self) {
        self.ruled = !self.programs.is_empty() || self.children().any(|child| child.ruled);
    }

    /// Every node directly below, junctors left out.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.properties
            .values()
            .chain(self.additional.as_ref())
            .chain(self.items.as_ref())
    }

    /// The node to read: this one, or the whole component where this one only names it.
    pub(crate) fn here(&self) -> &Self {
        match &self.component {
            Some(name) if self.recursive => crate::builtin::component(name).unwrap_or(self),
            _ => self,
        }
    }

    /// The schema of a field of an object: its own, or that of all values of a map.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Self>> {
        self.properties.get(name).or(self.additional.as_ref())
    }

    /// One of the value checks, like `minimum`.
    pub(crate) fn check(&self, name: &str) -> Option<&Value> {
        self.checks.get(name)
    }

    /// `format`; empty where none is given.
    pub(crate) fn format(&self) -> &str {
        self.check("format").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether a `null` here means that the field is absent.
    pub(crate) fn drops_null(&self) -> bool {
        !(self.nullable || (self.kind == Type::Any && self.preserve_unknown))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_keeps_its_checks_and_not_its_children() {
        let schema = Schema::parse(&json!({
            "type": "object", "description": "d", "minProperties": 1,
            "properties": {"a": {"type": "string", "pattern": "^x", "default": "xy"}},
            "required": ["a"],
        }));
        assert_eq!(schema.kind, Type::Object);
        assert_eq!(schema.checks.keys().collect::<Vec<_>>(), ["minProperties"]);
        assert!(schema.properties["a"].pattern.is_some());
        assert_eq!(schema.properties["a"].default, Some(json!("xy")));
    }

    #[test]
    fn both_spellings_of_int_or_string_check_nothing_else() {
        for node in [
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"x-kubernetes-int-or-string": true,
                   "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "a"}]}),
        ] {
            let schema = Schema::parse(&node);
            assert!(schema.branches.any.is_empty());
            assert!(schema.branches.all.len() < 2);
        }
    }

    #[test]
    fn list_types_are_read() {
        let schema = Schema::parse(&json!({"type": "array", "items": {"type": "object"},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}));
        assert_eq!(schema.list_type, ListType::Map(vec!["name".into()]));
    }
}
