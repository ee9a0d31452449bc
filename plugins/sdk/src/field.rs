//! A place in a document that somebody wrote by hand: it knows its path, so that a wrong value can be named.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::Failure;

const CODE: &str = "InvalidConfig";

/// A value, or its absence, with the path that leads to it. `null` counts as absent, as in Kubernetes.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    /// The document itself, whose path is empty.
    pub fn root(value: &'a Value) -> Self {
        Self {
            path: String::new(),
            value: Some(value),
        }
    }

    /// The path, as a person writes it: `spec.metal3.nodeTypes[1].name`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What stands here.
    pub fn value(&self) -> Option<&'a Value> {
        self.value.filter(|value| !value.is_null())
    }

    /// Whether nothing stands here.
    pub fn is_absent(&self) -> bool {
        self.value().is_none()
    }

    /// The place below this one; absent if this is no object.
    pub fn key(&self, key: &str) -> Self {
        let path = match (self.path.is_empty(), key.contains('.')) {
            (true, _) => key.to_owned(),
            (false, false) => format!("{}.{key}", self.path),
            // Keys of labels and properties contain dots of their own.
            (false, true) => format!("{}[{key}]", self.path),
        };
        Self {
            path,
            value: self.value.and_then(|value| value.get(key)),
        }
    }

    /// A refusal that names this place.
    pub fn refuse(&self, what: impl AsRef<str>) -> Failure {
        Failure::refused(CODE, format!("{}: {}", self.path, what.as_ref()))
    }

    fn expected(&self, what: &str) -> Failure {
        match self.value() {
            None => self.refuse(format!("is missing, {what} is needed")),
            Some(value) => self.refuse(format!("must be {what}, not {}", kind(value))),
        }
    }

    /// The text here, which must be.
    pub fn text(&self) -> Result<&'a str, Failure> {
        self.value()
            .and_then(Value::as_str)
            .ok_or_else(|| self.expected("text"))
    }

    /// The text here, if any.
    pub fn optional_text(&self) -> Result<Option<&'a str>, Failure> {
        if self.is_absent() {
            Ok(None)
        } else {
            self.text().map(Some)
        }
    }

    /// The truth value here, or `false`.
    pub fn flag(&self) -> Result<bool, Failure> {
        match self.value() {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.expected("true or false")),
        }
    }

    /// The whole number here, if any.
    pub fn optional_integer(&self) -> Result<Option<i64>, Failure> {
        match self.value() {
            None => Ok(None),
            Some(value) => value
                .as_i64()
                .map(Some)
                .ok_or_else(|| self.expected("a whole number")),
        }
    }

    /// The elements here; none if absent.
    pub fn items(&self) -> Result<Vec<Self>, Failure> {
        let Some(value) = self.value() else {
            return Ok(Vec::new());
        };
        let items = value.as_array().ok_or_else(|| self.expected("a list"))?;
        let at = |index| format!("{}[{index}]", self.path);
        Ok(items
            .iter()
            .enumerate()
            .map(|(index, item)| Self {
                path: at(index),
                value: Some(item),
            })
            .collect())
    }

    /// The object here; an empty one if absent.
    pub fn entries(&self) -> Result<Vec<(&'a str, Self)>, Failure> {
        let Some(object) = self.object()? else {
            return Ok(Vec::new());
        };
        Ok(object.keys().map(|key| (key.as_str(), self.key(key))).collect())
    }

    /// The object here, whose values must all be text; empty if absent.
    pub fn texts(&self) -> Result<BTreeMap<String, String>, Failure> {
        self.entries()?
            .into_iter()
            .map(|(key, field)| Ok((key.to_owned(), field.text()?.to_owned())))
            .collect()
    }

    /// Refuses any key that is not among `known`, so that a typo is an error and not a silence.
    pub fn only(&self, known: &[&str]) -> Result<(), Failure> {
        let Some(object) = self.object()? else {
            return Ok(());
        };
        match object.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => Err(self
                .key(unknown)
                .refuse(format!("is unknown, known here are {}", known.join(", ")))),
        }
    }

    fn object(&self) -> Result<Option<&'a Map<String, Value>>, Failure> {
        match self.value() {
            None => Ok(None),
            Some(value) => value
                .as_object()
                .map(Some)
                .ok_or_else(|| self.expected("an object")),
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_wrong_value_is_named_by_its_path() {
        let document = json!({"spec": {"types": [{"name": "a"}, {"name": 7, "labels": {"a.b/c": true}}]}});
        let types = Field::root(&document).key("spec").key("types").items().unwrap();
        let message = |failure: Failure| failure.reason().message.clone();
        assert_eq!(
            message(types[1].key("name").text().unwrap_err()),
            "spec.types[1].name: must be text, not a number"
        );
        assert_eq!(
            message(types[1].key("labels").texts().unwrap_err()),
            "spec.types[1].labels[a.b/c]: must be text, not a truth value"
        );
        assert_eq!(
            message(types[0].key("cost").text().unwrap_err()),
            "spec.types[0].cost: is missing, text is needed"
        );
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_known_ones() {
        let document = json!({"clusterReff": {}});
        let failure = Field::root(&document).only(&["clusterRef"]).unwrap_err();
        assert_eq!(
            failure.reason().message,
            "clusterReff: is unknown, known here are clusterRef"
        );
    }
}
