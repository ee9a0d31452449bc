//! What is wrong with one field of an object, in the words of Kubernetes, and the path that leads there.
//!
//! Every message that a user sees about a field is put together here, so that the wording lives in one place.

use std::fmt;

use serde_json::Value;

use crate::status::Cause;

/// Where in an object a check is; built on the stack on the way down and turned into text only when something is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    part: Part<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The object itself.
    pub(crate) const fn root() -> Self {
        Self {
            parent: None,
            part: Part::Root,
        }
    }

    /// A named field: `.name`.
    pub(crate) const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            part: Part::Name(name),
        }
    }

    /// An element of a list: `[3]`.
    pub(crate) const fn index(&'a self, index: usize) -> Path<'a> {
        Path {
            parent: Some(self),
            part: Part::Index(index),
        }
    }

    /// A value of a map: `[key]`.
    pub(crate) const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            part: Part::Key(key),
        }
    }

    /// The path as messages of the schema validator begin with it: empty at the root.
    pub(crate) fn bare(&self) -> String {
        if matches!(self.part, Part::Root) {
            String::new()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self
            .parent
            .is_some_and(|parent| !matches!(parent.part, Part::Root));
        if inner && let Some(parent) = self.parent {
            parent.fmt(out)?;
        }
        match self.part {
            Part::Root => out.write_str("<nil>"),
            Part::Name(name) if inner => write!(out, ".{name}"),
            Part::Name(name) => out.write_str(name),
            Part::Index(index) => write!(out, "[{index}]"),
            Part::Key(key) => write!(out, "[{key}]"),
        }
    }
}

fn cause(reason: &'static str, field: impl ToString, head: String, detail: &str) -> Cause {
    let message = if detail.is_empty() {
        head
    } else {
        format!("{head}: {detail}")
    };
    Cause {
        reason,
        field: field.to_string(),
        message,
    }
}

/// A value as a message shows it: numbers and booleans bare, text quoted, the rest as JSON.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Number(_) => number(value),
        other => other.to_string(),
    }
}

/// A number without a needless fraction: `3`, not `3.0`.
pub(crate) fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(float) if value.is_f64() && float.fract() == 0.0 && float.abs() < 1e21 => format!("{float:.0}"),
        _ => value.to_string(),
    }
}

/// A required value is missing.
pub(crate) fn required(field: impl ToString, detail: &str) -> Cause {
    cause("FieldValueRequired", field, "Required value".into(), detail)
}

/// A value that may not be.
pub(crate) fn invalid(field: impl ToString, value: &Value, detail: &str) -> Cause {
    cause(
        "FieldValueInvalid",
        field,
        format!("Invalid value: {}", shown(value)),
        detail,
    )
}

/// A value that may not be and is too large to repeat.
pub(crate) fn invalid_unshown(field: impl ToString, detail: &str) -> Cause {
    cause("FieldValueInvalid", field, "Invalid value".into(), detail)
}

/// A value of another type than the schema's.
pub(crate) fn type_invalid(field: impl ToString, value: &Value, detail: &str) -> Cause {
    cause(
        "FieldValueTypeInvalid",
        field,
        format!("Invalid value: {}", shown(value)),
        detail,
    )
}

/// A value that is none of the allowed ones.
pub(crate) fn not_supported<S: AsRef<str>>(field: impl ToString, value: &Value, supported: &[S]) -> Cause {
    let list: Vec<_> = supported
        .iter()
        .map(|one| format!("{:?}", one.as_ref()))
        .collect();
    let detail = if list.is_empty() {
        String::new()
    } else {
        format!("supported values: {}", list.join(", "))
    };
    cause(
        "FieldValueNotSupported",
        field,
        format!("Unsupported value: {}", shown(value)),
        &detail,
    )
}

/// A well-formed value that is not allowed here.
pub(crate) fn forbidden(field: impl ToString, detail: &str) -> Cause {
    cause("FieldValueForbidden", field, "Forbidden".into(), detail)
}

/// A value that must be unique and is not.
pub(crate) fn duplicate(field: impl ToString, value: &Value) -> Cause {
    cause(
        "FieldValueDuplicate",
        field,
        format!("Duplicate value: {}", shown(value)),
        "",
    )
}

/// The same without repeating the value.
pub(crate) fn duplicate_unshown(field: impl ToString) -> Cause {
    cause("FieldValueDuplicate", field, "Duplicate value".into(), "")
}

/// Text longer than allowed.
pub(crate) fn too_long(field: impl ToString, most: i64) -> Cause {
    let unit = if most == 1 { "byte" } else { "bytes" };
    cause(
        "FieldValueTooLong",
        field,
        "Too long".into(),
        &format!("may not be more than {most} {unit}"),
    )
}

/// More elements than allowed.
pub(crate) fn too_many(field: impl ToString, actual: usize, most: i64) -> Cause {
    let unit = if most == 1 { "item" } else { "items" };
    cause(
        "FieldValueTooMany",
        field,
        format!("Too many: {actual}"),
        &format!("must have at most {most} {unit}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_reads_as_kubernetes_writes_it() {
        let root = Path::root();
        let spec = root.child("spec");
        let list = spec.child("pools");
        let item = list.index(2);
        let labels = item.child("labels");
        assert_eq!(labels.key("a/b").to_string(), "spec.pools[2].labels[a/b]");
        assert_eq!(root.to_string(), "<nil>");
        assert_eq!(root.bare(), "");
        assert_eq!(spec.to_string(), "spec");
    }

    #[rstest::rstest]
    #[case(invalid("a", &json!(-1), "too small"), "Invalid value: -1: too small")]
    #[case(invalid("a", &json!("x\"y"), ""), "Invalid value: \"x\\\"y\"")]
    #[case(invalid("a", &json!(2.0), "d"), "Invalid value: 2: d")]
    #[case(invalid("a", &json!(2.5), "d"), "Invalid value: 2.5: d")]
    #[case(required("a", ""), "Required value")]
    #[case(not_supported("a", &json!("a"), &["b", "c"]), "Unsupported value: \"a\": supported values: \"b\", \"c\"")]
    #[case(too_long("a", 1), "Too long: may not be more than 1 byte")]
    #[case(too_many("a", 3, 2), "Too many: 3: must have at most 2 items")]
    #[case(duplicate("a", &json!({"name": "x"})), "Duplicate value: {\"name\":\"x\"}")]
    fn a_fault_reads_as_kubernetes_writes_it(#[case] fault: Cause, #[case] message: &str) {
        assert_eq!(fault.message, message);
    }
}
