//! Places in a JSON document: pointers, and reading and writing at them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON pointer of object keys only: an array is one place, nothing points into it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Reads the written form (`/spec/image`, `/metadata/labels/a.b~1c`); `None` if it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let segments = text
            .strip_prefix('/')?
            .split('/')
            .map(|segment| segment.replace("~1", "/").replace("~0", "~"));
        Some(Self(segments.collect()))
    }

    /// The keys.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// The place of this key within this one.
    #[must_use]
    pub fn child(&self, key: &str) -> Self {
        let mut segments = self.0.clone();
        segments.push(key.to_owned());
        Self(segments)
    }

    /// The last key.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    /// Whether the other place is inside this one, and not this one.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.0.len() > self.0.len() && other.0.starts_with(&self.0)
    }

    /// What stands there.
    #[must_use]
    pub fn get<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0
            .iter()
            .try_fold(document, |at, key| at.as_object()?.get(key))
    }

    /// Writes there (`None` takes the place away). Maps on the way are made, and told by `made`; false, with nothing
    /// written, if something other than a map is in the way.
    pub(super) fn set(
        &self,
        document: &mut Value,
        value: Option<&Value>,
        mut made: impl FnMut(Self),
    ) -> bool {
        let Some((last, parents)) = self.0.split_last() else {
            return false;
        };
        if !self.is_reachable(document) {
            return false;
        }
        let mut at = document;
        for (depth, key) in parents.iter().enumerate() {
            let Some(map) = at.as_object_mut() else {
                return false;
            };
            if !map.contains_key(key) {
                if value.is_none() {
                    return true;
                }
                made(Self(self.0[..=depth].to_vec()));
                map.insert(key.clone(), Value::Object(Map::new()));
            }
            let Some(next) = map.get_mut(key) else {
                return false;
            };
            at = next;
        }
        let Some(map) = at.as_object_mut() else {
            return false;
        };
        match value {
            Some(value) => {
                map.insert(last.clone(), value.clone());
            }
            None => {
                map.shift_remove(last);
            }
        }
        true
    }

    /// Whether only maps, or nothing, stand on the way.
    fn is_reachable(&self, document: &Value) -> bool {
        let mut at = Some(document);
        for key in &self.0 {
            match at {
                None => return true,
                Some(Value::Object(map)) => at = map.get(key),
                Some(_) => return false,
            }
        }
        true
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|key| write!(f, "/{}", key.replace('~', "~0").replace('/', "~1")))
    }
}

impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no JSON pointer")))
    }
}

/// The places that a merge patch sets on a document, each with what shall stand there; `None` for nothing.
///
/// A place is a leaf of the patch. A reference (`consumerRef`, any key that ends in `Ref`) is one place, since half of one is
/// worth nothing; so is what stands as no map where the patch wants one. Unlike in RFC 7396, taking away a key of a map that is
/// not there makes no empty map.
#[must_use]
pub fn leaves(document: &Value, patch: &Value) -> Vec<(Pointer, Option<Value>)> {
    let mut found = Vec::new();
    collect(&Pointer::default(), Some(document), patch, &mut found);
    found
}

fn collect(at: &Pointer, current: Option<&Value>, patch: &Value, found: &mut Vec<(Pointer, Option<Value>)>) {
    let Value::Object(changes) = patch else {
        found.push((at.clone(), (!patch.is_null()).then(|| patch.clone())));
        return;
    };
    let open = match current {
        None => !changes.is_empty(),
        Some(current) => current.is_object(),
    };
    if is_reference(at) || !open {
        found.push((at.clone(), Some(merged(current, patch))));
        return;
    }
    for (key, change) in changes {
        collect(
            &at.child(key),
            current.and_then(|current| current.get(key)),
            change,
            found,
        );
    }
}

/// The leaves of what stands in a document at and below a place; an empty map is one.
pub(super) fn standing(at: &Pointer, value: &Value, found: &mut Vec<(Pointer, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() && !is_reference(at) => {
            for (key, value) in map {
                standing(&at.child(key), value, found);
            }
        }
        leaf => found.push((at.clone(), leaf.clone())),
    }
}

fn is_reference(at: &Pointer) -> bool {
    at.last().is_some_and(|key| key.ends_with("Ref"))
}

/// RFC 7396, less the empty maps.
fn merged(current: Option<&Value>, patch: &Value) -> Value {
    let Value::Object(changes) = patch else {
        return patch.clone();
    };
    let mut map = current.and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, change) in changes {
        if change.is_null() {
            map.shift_remove(key);
        } else {
            let next = merged(map.get(key), change);
            map.insert(key.clone(), next);
        }
    }
    Value::Object(map)
}

/// The merge patch that makes `after` of `before`; `None` where no merge patch can (a null that stands as a value).
#[must_use]
pub fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return expressible(after);
    };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        match before.get(key) {
            Some(known) if known == value => {}
            Some(known @ Value::Object(_)) if value.is_object() => {
                patch.insert(key.clone(), difference(known, value)?);
            }
            Some(_) | None => {
                patch.insert(key.clone(), expressible(value)?);
            }
        }
    }
    Some(Value::Object(patch))
}

fn expressible(value: &Value) -> Option<Value> {
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Object(map) => map.values().any(has_null),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
        }
    }
    (!has_null(value)).then(|| value.clone())
}
