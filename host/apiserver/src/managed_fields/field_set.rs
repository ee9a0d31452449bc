//! A set of fields of an object, and its `FieldsV1` form, in which it is stored beside the name of its owner.
//!
//! A field that is in the set is a member of the set above it; a field that only leads to members is not.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Number, Value};

/// One step of the way to a field. The order of the variants is the order in which steps are stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    /// A field of an object: `f:name`
    Field(String),
    /// The element of a list whose key fields have these values, sorted by name: `k:{"name":"value"}`
    Key(Vec<(String, Scalar)>),
    /// The element of a set with this value: `v:"value"`
    Value(Scalar),
    /// The element at this place: `i:0`
    Index(usize),
}

impl Element {
    /// A field by name.
    pub(crate) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// As a key of `FieldsV1`.
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let object: Map<String, Value> = fields
                    .iter()
                    .map(|(name, value)| (name.clone(), value.json()))
                    .collect();
                format!("k:{}", Value::Object(object))
            }
            Self::Value(value) => format!("v:{}", value.json()),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// From a key of `FieldsV1`. The inner `None` is a kind of step that only a newer server knows.
    fn decode(text: &str) -> Result<Option<Self>, Malformed> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| Malformed(text.to_owned()))?;
        let json = || serde_json::from_str::<Value>(rest).map_err(|_| Malformed(text.to_owned()));
        let scalar = |value: &Value| Scalar::of(value).ok_or_else(|| Malformed(text.to_owned()));
        Ok(Some(match kind {
            "f" => Self::field(rest),
            "v" => Self::Value(scalar(&json()?)?),
            "i" => Self::Index(rest.parse().map_err(|_| Malformed(text.to_owned()))?),
            "k" => {
                let Value::Object(object) = json()? else {
                    return Err(Malformed(text.to_owned()));
                };
                let mut fields = object
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), scalar(value)?)))
                    .collect::<Result<Vec<_>, Malformed>>()?;
                fields.sort();
                Self::Key(fields)
            }
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(out, ".{name}"),
            Self::Key(fields) => {
                out.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    write!(out, "{comma}{name}={}", value.json())?;
                }
                out.write_str("]")
            }
            Self::Value(value) => write!(out, "[={}]", value.json()),
            Self::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// A value that can identify an element of a list; numbers compare as numbers, so `1` and `1.0` are one.
#[derive(Clone, Debug)]
pub(crate) struct Scalar(Value);

impl Scalar {
    /// `None` for objects and lists, which identify nothing.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Object(_) | Value::Array(_) => None,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(Self(value.clone())),
        }
    }

    fn json(&self) -> Value {
        self.0.clone()
    }

    const fn rank(&self) -> u8 {
        match self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            _ => 3,
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Compares as integers where both are, else as floating point numbers.
pub(crate) fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => {
            let float = |number: &Number| number.as_f64().unwrap_or(f64::INFINITY);
            float(a).total_cmp(&float(b))
        }
    }
}

/// A stored set of fields that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a path element of FieldsV1")]
pub(crate) struct Malformed(String);

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// Fields right below that are in the set.
    members: BTreeSet<Element>,
    /// Fields right below that have fields in the set.
    children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    /// Adds one field; the whole object, which nobody owns, is left out.
    pub(crate) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Makes a field right below a member.
    pub(crate) fn insert_member(&mut self, element: Element) {
        self.members.insert(element);
    }

    /// Puts a set below a field, unless it is empty.
    pub(crate) fn insert_child(&mut self, element: Element, child: Self) {
        if !child.is_empty() {
            self.children.insert(element, child);
        }
    }

    /// Whether no field is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// Whether a field right below is in the set.
    pub(crate) fn has_member(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    /// Whether this very field is in the set.
    pub(crate) fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.children.get(first).is_some_and(|child| child.has(rest)),
        }
    }

    /// What is in the set below a field.
    pub(crate) fn below(&self, element: &Element) -> Option<&Self> {
        self.children.get(element)
    }

    /// Fields right below that have fields in the set.
    pub(crate) fn children(&self) -> impl Iterator<Item = (&Element, &Self)> {
        self.children.iter()
    }

    /// Fields in either set.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            let merged = all
                .children
                .get(element)
                .map_or_else(|| child.clone(), |mine| mine.union(child));
            all.children.insert(element.clone(), merged);
        }
        all
    }

    /// Fields in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            ..Self::default()
        };
        for (element, child) in &self.children {
            if let Some(theirs) = other.children.get(element) {
                both.insert_child(element.clone(), child.intersection(theirs));
            }
        }
        both
    }

    /// Fields in this set that are not in the other. A field stays when only one below it is taken away, and fields
    /// below one that is taken away stay too.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut rest = Self {
            members: self.members.difference(&other.members).cloned().collect(),
            ..Self::default()
        };
        for (element, child) in &self.children {
            match other.children.get(element) {
                Some(theirs) => rest.insert_child(element.clone(), child.difference(theirs)),
                None => rest.insert_child(element.clone(), child.clone()),
            }
        }
        rest
    }

    /// Fields in this set that are neither in the other nor below a field of the other.
    pub(crate) fn without_trees(&self, other: &Self) -> Self {
        let mut rest = Self {
            members: self.members.difference(&other.members).cloned().collect(),
            ..Self::default()
        };
        for (element, child) in &self.children {
            if other.members.contains(element) {
                continue;
            }
            match other.children.get(element) {
                Some(theirs) => rest.insert_child(element.clone(), child.without_trees(theirs)),
                None => rest.insert_child(element.clone(), child.clone()),
            }
        }
        rest
    }

    /// The set cut down to one field right below and all under it.
    pub(crate) fn only(&self, element: &Element) -> Self {
        let mut rest = Self::default();
        if self.members.contains(element) {
            rest.members.insert(element.clone());
        }
        if let Some(child) = self.children.get(element) {
            rest.insert_child(element.clone(), child.clone());
        }
        rest
    }

    /// Every field of the set: those of one object before those below them.
    pub(crate) fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        for element in &self.members {
            prefix.push(element.clone());
            paths.push(prefix.clone());
            prefix.pop();
        }
        for (element, child) in &self.children {
            prefix.push(element.clone());
            child.collect(prefix, paths);
            prefix.pop();
        }
    }

    /// As `FieldsV1`.
    pub(crate) fn encode(&self) -> Value {
        Value::Object(self.encode_object(false))
    }

    fn encode_object(&self, is_member: bool) -> Map<String, Value> {
        let mut object = Map::new();
        if is_member && !self.is_empty() {
            object.insert(".".to_owned(), Value::Object(Map::new()));
        }
        let elements: BTreeSet<&Element> = self.members.iter().chain(self.children.keys()).collect();
        for element in elements {
            let value = self.children.get(element).map_or_else(Map::new, |child| {
                child.encode_object(self.members.contains(element))
            });
            object.insert(element.encode(), Value::Object(value));
        }
        object
    }

    /// From `FieldsV1`; steps of an unknown kind are left out with all below them.
    pub(crate) fn decode(value: &Value) -> Result<Self, Malformed> {
        let object = value.as_object().ok_or_else(|| Malformed(value.to_string()))?;
        let mut set = Self::default();
        for (key, below) in object.iter().filter(|(key, _)| *key != ".") {
            let Some(element) = Element::decode(key)? else {
                continue;
            };
            let inner = below.as_object().ok_or_else(|| Malformed(key.clone()))?;
            if inner.is_empty() || inner.contains_key(".") {
                set.members.insert(element.clone());
            }
            set.insert_child(element, Self::decode(below)?);
        }
        Ok(set)
    }
}

/// A path as messages show it: `.spec.ports[port=80].name`.
pub(crate) fn shown(path: &[Element]) -> String {
    path.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::empty(json!({}))]
    #[case::fields(json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:x": {}}}))]
    #[case::list_map(json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}}}))]
    #[case::two_keys(json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}))]
    #[case::set(json!({"f:finalizers": {".": {}, "v:\"a.b/c\"": {}}}))]
    #[case::index(json!({"f:list": {"i:3": {"f:x": {}}}}))]
    fn what_was_stored_is_read_and_stored_again(#[case] stored: Value) {
        let set = FieldSet::decode(&stored).unwrap();
        assert_eq!(set.encode().to_string(), stored.to_string());
    }

    #[test]
    fn a_path_is_shown_as_the_real_server_shows_it() {
        let set = FieldSet::decode(&json!({"f:spec": {"f:ports": {
            "k:{\"protocol\":\"TCP\",\"port\":80}": {"f:name": {}}}, "f:names": {"v:\"x\"": {}, "v:3": {}}}}))
        .unwrap();
        let shown: Vec<String> = set.paths().iter().map(|path| shown(path)).collect();
        assert_eq!(
            shown,
            [
                ".spec.names[=3]",
                ".spec.names[=\"x\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].name"
            ]
        );
    }

    #[test]
    fn what_a_newer_server_stored_is_left_out_and_garbage_is_an_error() {
        assert_eq!(
            FieldSet::decode(&json!({"z:later": {}, "f:x": {}}))
                .unwrap()
                .paths()
                .len(),
            1
        );
        for garbage in [
            json!({"x": {}}),
            json!({"k:[": {}}),
            json!({"i:x": {}}),
            json!([]),
            json!({"f:x": 1}),
        ] {
            assert!(FieldSet::decode(&garbage).is_err(), "{garbage}");
        }
    }

    #[test]
    fn taking_a_tree_away_takes_all_below_it() {
        let set =
            FieldSet::decode(&json!({"f:status": {".": {}, "f:x": {}}, "f:spec": {"f:y": {}}})).unwrap();
        let status = FieldSet::decode(&json!({"f:status": {}})).unwrap();
        assert_eq!(
            set.without_trees(&status).encode(),
            json!({"f:spec": {"f:y": {}}})
        );
        assert_eq!(
            set.difference(&status).encode(),
            json!({"f:spec": {"f:y": {}}, "f:status": {"f:x": {}}})
        );
        assert_eq!(
            set.only(&Element::field("status")).encode(),
            json!({"f:status": {".": {}, "f:x": {}}})
        );
    }

    fn element() -> impl Strategy<Value = Element> {
        prop_oneof![
            "[a-c]".prop_map(Element::Field),
            "[a-c]".prop_map(|name| Element::Key(vec![("name".to_owned(), Scalar(json!(name)))])),
            (0..3_i64).prop_map(|number| Element::Value(Scalar(json!(number)))),
        ]
    }

    fn set() -> impl Strategy<Value = FieldSet> {
        prop::collection::vec(prop::collection::vec(element(), 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            paths.iter().for_each(|path| set.insert(path));
            set
        })
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets_of_paths(a in set(), b in set()) {
            let of = |set: &FieldSet| set.paths().into_iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(of(&a.union(&b)), &of(&a) | &of(&b));
            prop_assert_eq!(of(&a.intersection(&b)), &of(&a) & &of(&b));
            prop_assert_eq!(of(&a.difference(&b)), &of(&a) - &of(&b));
            prop_assert_eq!(of(&FieldSet::decode(&a.encode()).unwrap()), of(&a));
            prop_assert!(of(&a).iter().all(|path| a.has(path)));
        }
    }
}
