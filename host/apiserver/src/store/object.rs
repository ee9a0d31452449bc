//! One object as it is kept: the bytes that clients get, and the few facts that the server itself asks for.

use bytes::Bytes;
use serde_json::{Map, Value};

/// Where an object lives within its table.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// Namespace; empty for objects of the cluster.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
}

impl Key {
    /// A key of these parts.
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// One owner reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// `apiVersion` of the owner.
    pub(crate) api_version: Box<str>,
    /// Kind of the owner.
    pub(crate) kind: Box<str>,
    /// Name of the owner.
    pub(crate) name: Box<str>,
    /// Uid of the owner: the same name with another uid is someone else.
    pub(crate) uid: Box<str>,
    /// Whether a foreground deletion of the owner waits for this object.
    pub(crate) blocks: bool,
}

/// What the server asks of every object without parsing it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// `metadata.uid`
    pub(crate) uid: Box<str>,
    /// Labels, in the order of the object.
    pub(crate) labels: Vec<(Box<str>, Box<str>)>,
    /// Owner references.
    pub(crate) owners: Vec<Owner>,
    /// Finalizers.
    pub(crate) finalizers: Vec<Box<str>>,
    /// Whether `deletionTimestamp` is set.
    pub(crate) deleting: bool,
}

impl Meta {
    /// Reads the metadata of `object`; what is absent stays empty.
    pub(crate) fn of(object: &Value) -> Self {
        let Some(meta) = object.get("metadata").and_then(Value::as_object) else {
            return Self::default();
        };
        let text = |map: &Map<String, Value>, field: &str| -> Box<str> {
            map.get(field).and_then(Value::as_str).unwrap_or_default().into()
        };
        let labels = meta
            .get("labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let owners = meta
            .get("ownerReferences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let finalizers = meta
            .get("finalizers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        Self {
            uid: text(meta, "uid"),
            labels: labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into()))
                .collect(),
            owners: owners
                .filter_map(Value::as_object)
                .map(|owner| Owner {
                    api_version: text(owner, "apiVersion"),
                    kind: text(owner, "kind"),
                    name: text(owner, "name"),
                    uid: text(owner, "uid"),
                    blocks: owner
                        .get("blockOwnerDeletion")
                        .and_then(Value::as_bool)
                        .unwrap_or_default(),
                })
                .collect(),
            finalizers: finalizers.filter_map(Value::as_str).map(Into::into).collect(),
            deleting: meta.get("deletionTimestamp").is_some_and(|at| !at.is_null()),
        }
    }
}

/// One version of one object.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Where it lives.
    pub(crate) key: Key,
    /// Its `resourceVersion`.
    pub(crate) revision: u64,
    /// When it was written, in seconds since 1970.
    pub(crate) written: i64,
    /// What the server asks often.
    pub(crate) meta: Meta,
    /// The JSON, with `resourceVersion`.
    pub(crate) bytes: Bytes,
}

impl Stored {
    /// Freezes `object` at `revision`.
    pub(crate) fn freeze(key: Key, mut object: Value, revision: u64, written: i64) -> Self {
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
        }
        let meta = Meta::of(&object);
        Self {
            key,
            revision,
            written,
            meta,
            bytes: Bytes::from(object.to_string()),
        }
    }

    /// Reads what [`Stored::freeze`] wrote; an error when it is no object with a revision.
    pub(crate) fn thaw(key: Key, bytes: Bytes) -> Result<Self, String> {
        let object: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let revision = object["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or("it has no resourceVersion")?;
        let written = object["metadata"]["creationTimestamp"]
            .as_str()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .map_or(0, jiff::Timestamp::as_second);
        Ok(Self {
            key,
            revision,
            written,
            meta: Meta::of(&object),
            bytes,
        })
    }

    /// The object, parsed.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("only what was serialised here is kept")
    }

    /// The same object as it is shown at another revision: in the event that says it is gone.
    pub(crate) fn at(&self, revision: u64) -> Self {
        Self::freeze(self.key.clone(), self.value(), revision, self.written)
    }
}
