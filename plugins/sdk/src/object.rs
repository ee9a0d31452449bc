//! Kubernetes objects as a plugin sees them: parsed when asked for, and never more than once.

use std::cell::OnceCell;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Field;

/// A Kubernetes object as the host saw it.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// For example `metal3.io/v1alpha1`.
    pub api_version: String,
    /// For example `BareMetalHost`.
    pub kind: String,
    /// None for kinds that live outside namespaces.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
    /// Tells this object from a later one of the same name.
    pub uid: String,
    json: String,
    parsed: OnceCell<Value>,
}

impl Object {
    pub(crate) fn received(
        api_version: String,
        kind: String,
        namespace: Option<String>,
        name: String,
        uid: String,
        json: String,
    ) -> Self {
        Self {
            api_version,
            kind,
            namespace,
            name,
            uid,
            json,
            parsed: OnceCell::new(),
        }
    }

    /// The object that this JSON is: its name, namespace and uid are read from it. For tests; the host sends its own.
    pub fn from_value(value: Value) -> Self {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Self {
            api_version: text("/apiVersion").unwrap_or_default(),
            kind: text("/kind").unwrap_or_default(),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name").unwrap_or_default(),
            uid: text("/metadata/uid").unwrap_or_default(),
            json: value.to_string(),
            parsed: OnceCell::from(value),
        }
    }

    /// The whole object.
    pub fn value(&self) -> &Value {
        // Text that does not parse is the host's bug, and a trap says so.
        self.parsed
            .get_or_init(|| serde_json::from_str(&self.json).expect("the host sends valid JSON"))
    }

    /// What stands at a JSON pointer, for example `/spec/image/url`.
    pub fn at(&self, pointer: &str) -> Option<&Value> {
        self.value().pointer(pointer)
    }

    /// The string at a JSON pointer; none if nothing or something else stands there.
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.at(pointer)?.as_str()
    }

    /// A place in the object that knows its own path, for values that a user wrote and may have got wrong.
    pub fn field(&self, key: &str) -> Field<'_> {
        Field::root(self.value()).key(key)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.value().get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.value()
            .get("metadata")?
            .get("annotations")?
            .get(key)?
            .as_str()
    }

    /// `metadata.generation`, 0 if it has none.
    pub fn generation(&self) -> i64 {
        self.at("/metadata/generation")
            .and_then(Value::as_i64)
            .unwrap_or_default()
    }

    /// Whether somebody has asked for its deletion.
    pub fn is_being_deleted(&self) -> bool {
        self.at("/metadata/deletionTimestamp")
            .is_some_and(|time| !time.is_null())
    }

    /// A reference to this object.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    /// Reads the object itself, or the record of `wit/` with the object in `json`, as golden cases may write either.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if value.get("metadata").is_some() {
            return Ok(Self::from_value(value));
        }
        let json = match value.get_mut("json").map(Value::take) {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => return Err(D::Error::custom("an object has either `metadata` or `json`")),
        };
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self::received(
            text("apiVersion").unwrap_or_default(),
            text("kind").unwrap_or_default(),
            text("namespace"),
            text("name").unwrap_or_default(),
            text("uid").unwrap_or_default(),
            json,
        ))
    }
}

/// Points at one object, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// For example `v1`.
    pub api_version: String,
    /// For example `Secret`.
    pub kind: String,
    /// None for kinds that live outside namespaces.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

impl ObjectRef {
    /// Whether `object` is the one that this points at.
    pub fn is(&self, object: &Object) -> bool {
        self.api_version == object.api_version
            && self.kind == object.kind
            && self.namespace == object.namespace
            && self.name == object.name
    }
}
