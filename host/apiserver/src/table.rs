//! Objects as rows: what `kubectl get` prints.

mod path;

use serde_json::{Map, Value, json};

use crate::answer::MetaVersion;
use crate::builtin;
use crate::resource::{Column, Resource, Source};

pub(crate) use path::JsonPath;

/// What a row carries beside its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// Nothing.
    None,
    /// The metadata; the default.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Reads the `includeObject` parameter.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources \
    may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for \
    creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// A `meta.k8s.io/v1` Table of objects of one resource. `list_meta` is the metadata of the list that they come from.
pub(crate) fn table(
    resource: &Resource,
    items: &[Value],
    list_meta: &Value,
    (include, version): (IncludeObject, MetaVersion),
) -> Value {
    let prepared = Prepared::of(resource);
    let rows: Vec<_> = items
        .iter()
        .map(|item| prepared.row(item, include, version))
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": version.as_str(),
        "metadata": if list_meta.is_object() { list_meta.clone() } else { json!({}) },
        "columnDefinitions": prepared.definitions,
        "rows": rows,
    })
}

/// Columns with their paths parsed.
struct Prepared<'r> {
    /// Whether the name comes first, as everywhere but with events.
    named: bool,
    columns: Vec<(&'r Column, Option<JsonPath>)>,
    definitions: Vec<Value>,
}

impl<'r> Prepared<'r> {
    fn of(resource: &'r Resource) -> Self {
        let named = !resource
            .columns
            .iter()
            .any(|column| column.name == "Name" && column.format == "name");
        let mut definitions = Vec::with_capacity(resource.columns.len() + 1);
        if named {
            definitions.push(definition("Name", "string", "name", NAME, 0));
        }
        let shown = |column: &Column| {
            definition(
                &column.name,
                &column.kind,
                &column.format,
                &column.description,
                column.priority,
            )
        };
        definitions.extend(resource.columns.iter().map(shown));
        let path = |column: &Column| match &column.source {
            Source::Path(path) => JsonPath::parse(path),
            Source::Computed(_) => None,
        };
        Self {
            named,
            columns: resource
                .columns
                .iter()
                .map(|column| (column, path(column)))
                .collect(),
            definitions,
        }
    }

    fn row(&self, object: &Value, include: IncludeObject, version: MetaVersion) -> Value {
        let mut cells = Vec::with_capacity(self.columns.len() + 1);
        if self.named {
            cells.push(object.pointer("/metadata/name").cloned().unwrap_or_default());
        }
        for (column, path) in &self.columns {
            cells.push(match (&column.source, path) {
                (Source::Computed(cell), _) => cell(object),
                (Source::Path(_), Some(path)) => cell(&column.kind, path.first(object)),
                (Source::Path(_), None) => Value::Null,
            });
        }
        let mut row = Map::from_iter([("cells".to_owned(), Value::Array(cells))]);
        match include {
            IncludeObject::None => {
                row.insert("object".into(), Value::Null);
            }
            IncludeObject::Object => {
                row.insert("object".into(), object.clone());
            }
            IncludeObject::Metadata => {
                row.insert("object".into(), partial(object, version));
            }
        }
        let done = match object.pointer("/status/phase").and_then(Value::as_str) {
            Some(phase @ ("Succeeded" | "Failed")) if object["kind"] == "Pod" => Some(phase),
            _ => None,
        };
        if let Some(phase) = done {
            let message = format!(
                "The pod has {}.",
                if phase == "Failed" {
                    "failed"
                } else {
                    "completed successfully"
                }
            );
            let condition =
                json!({"type": "Completed", "status": "True", "reason": phase, "message": message});
            row.insert("conditions".into(), json!([condition]));
        }
        Value::Object(row)
    }
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i32) -> Value {
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}

/// An object without all but its metadata.
pub(crate) fn partial(object: &Value, version: MetaVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.as_str(),
        "metadata": object["metadata"],
    })
}

/// The cell that a found value makes in a column of a type; nothing where it does not fit.
fn cell(kind: &str, found: Option<&Value>) -> Value {
    let Some(found) = found.filter(|found| !found.is_null()) else {
        return Value::Null;
    };
    match kind {
        "string" => match found {
            Value::String(text) => Value::from(text.as_str()),
            Value::Number(_) => Value::from(crate::fault::number(found)),
            other => Value::from(other.to_string()),
        },
        "integer" => found
            .as_i64()
            .or_else(|| found.as_f64().map(|float| float as i64))
            .map_or(Value::Null, Value::from),
        "number" => found.as_f64().map_or(Value::Null, Value::from),
        "boolean" => found.as_bool().map_or(Value::Null, Value::from),
        "date" => match found.as_str() {
            None => Value::Null,
            Some(text) => match text.parse::<jiff::Timestamp>() {
                Ok(time) => Value::from(builtin::human_duration(
                    jiff::Timestamp::now().duration_since(time),
                )),
                Err(_) => Value::from("<invalid>"),
            },
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(columns: &Value) -> Resource {
        let crd = json!({
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        });
        crate::crd::resources_of(&crd)
            .expect("a good definition")
            .remove(0)
    }

    #[test]
    fn columns_come_from_the_definition() {
        let resource = custom(&json!([
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
            {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
            {"name": "On", "type": "boolean", "jsonPath": ".spec.on", "priority": 1},
            {"name": "When", "type": "date", "jsonPath": ".status.when"},
        ]));
        let object = json!({
            "metadata": {"name": "a"}, "spec": {"count": 2, "on": true},
            "status": {"phase": "Up", "conditions": [{"type": "Ready", "status": "True"}], "when": "nonsense"},
        });
        let table = table(
            &resource,
            &[object, json!({"metadata": {"name": "b"}})],
            &Value::Null,
            (IncludeObject::None, MetaVersion::V1),
        );
        assert_eq!(
            table["rows"][0]["cells"],
            json!(["a", "Up", "True", 2, true, "<invalid>"])
        );
        assert_eq!(
            table["rows"][1]["cells"],
            json!(["b", null, null, null, null, null])
        );
        assert_eq!(table["columnDefinitions"][0]["format"], "name");
        assert_eq!(table["columnDefinitions"][4]["priority"], 1);
        assert!(table["rows"][0]["object"].is_null());
    }

    #[test]
    fn a_definition_without_columns_shows_the_age() {
        let resource = custom(&Value::Null);
        let object =
            json!({"metadata": {"name": "a", "creationTimestamp": jiff::Timestamp::now().to_string()}});
        let table = table(
            &resource,
            &[object],
            &json!({"resourceVersion": "7"}),
            (IncludeObject::Metadata, MetaVersion::V1),
        );
        assert_eq!(table["columnDefinitions"][1]["name"], "Age");
        assert!(
            table["rows"][0]["cells"][1]
                .as_str()
                .is_some_and(|age| age.ends_with('s'))
        );
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn an_event_begins_with_when_it_was_seen() {
        let events = builtin::resources()
            .into_iter()
            .find(|resource| resource.kind == "Event")
            .expect("events");
        let event = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "R", "message": "m ",
            "involvedObject": {"kind": "Node", "name": "n"}});
        let table = table(
            &events,
            &[event],
            &Value::Null,
            (IncludeObject::None, MetaVersion::V1),
        );
        assert_eq!(table["columnDefinitions"][0]["name"], "Last Seen");
        let cells = table["rows"][0]["cells"].as_array().expect("cells");
        assert_eq!(cells[1..4], [json!("Normal"), json!("R"), json!("node/n")]);
    }

    #[rstest::rstest]
    #[case("string", json!({"a": 1}), json!("{\"a\":1}"))]
    #[case("string", json!(3), json!("3"))]
    #[case("integer", json!(3.9), json!(3))]
    #[case("integer", json!("3"), Value::Null)]
    #[case("number", json!(3), json!(3.0))]
    #[case("boolean", json!("yes"), Value::Null)]
    fn a_cell_has_the_type_of_its_column(#[case] kind: &str, #[case] found: Value, #[case] shown: Value) {
        assert_eq!(cell(kind, Some(&found)), shown);
    }
}
