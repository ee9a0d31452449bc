//! Events in their two shapes, `v1` and `events.k8s.io/v1`, and their columns.

use serde_json::{Value, json};

use super::columns::{column, since};
use crate::resource::Column;

/// Names of the fields that differ: in the core, and in `events.k8s.io`.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn rename(object: &mut Value, pairs: impl Iterator<Item = (&'static str, &'static str)>, version: &str) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    fields.insert("apiVersion".into(), version.into());
    for (from, to) in pairs {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.into(), value);
        }
    }
}

/// From the shape of `events.k8s.io/v1` to the core one.
pub(super) fn to_core(object: &mut Value) {
    rename(object, RENAMED.iter().map(|(core, new)| (*new, *core)), "v1");
    if let Some(fields) = object.as_object_mut() {
        fields.entry("source").or_insert_with(|| json!({}));
        for absent in ["firstTimestamp", "lastTimestamp"] {
            fields.entry(absent).or_insert(Value::Null);
        }
    }
}

/// From the core shape to that of `events.k8s.io/v1`.
pub(super) fn from_core(object: &mut Value) {
    rename(object, RENAMED.iter().copied(), "events.k8s.io/v1");
}

/// A field of an event in either shape.
fn field<'v>(event: &'v Value, core: &str) -> &'v Value {
    let other = RENAMED
        .iter()
        .find(|(name, _)| *name == core)
        .map_or(core, |(_, other)| other);
    match &event[core] {
        Value::Null => &event[other],
        found => found,
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn first_seen(event: &Value) -> String {
    match field(event, "firstTimestamp").as_str() {
        Some(time) => since(time),
        None => since(text(event, "eventTime")),
    }
}

fn last_seen(event: &Value) -> Value {
    if event["series"].is_object() {
        return since(text(&event["series"], "lastObservedTime")).into();
    }
    match field(event, "lastTimestamp").as_str() {
        Some(time) => since(time).into(),
        None => first_seen(event).into(),
    }
}

fn target(event: &Value) -> Value {
    let object = field(event, "involvedObject");
    let kind = text(object, "kind").to_lowercase();
    match text(object, "name") {
        "" => kind.into(),
        name => format!("{kind}/{name}").into(),
    }
}

fn source(event: &Value) -> Value {
    let source = field(event, "source");
    let first = |a: &'_ str, b: &'_ str| if a.is_empty() { b.to_owned() } else { a.to_owned() };
    let component = first(
        text(source, "component"),
        field(event, "reportingComponent").as_str().unwrap_or_default(),
    );
    let host = first(text(source, "host"), text(event, "reportingInstance"));
    if host.is_empty() {
        component.into()
    } else {
        format!("{component}, {host}").into()
    }
}

fn count(event: &Value) -> Value {
    let counted = if event["series"].is_object() {
        &event["series"]["count"]
    } else {
        field(event, "count")
    };
    Value::from(counted.as_i64().filter(|count| *count > 0).unwrap_or(1))
}

pub(super) fn columns() -> Vec<Column> {
    let mut name = column("Name", true, "Name must be unique within a namespace.", |event| {
        event.pointer("/metadata/name").cloned().unwrap_or_default()
    });
    name.format = "name".into();
    vec![
        column(
            "Last Seen",
            false,
            "The time at which the most recent occurrence of this event was recorded.",
            last_seen,
        ),
        column("Type", false, "Type of this event (Normal, Warning)", |event| {
            text(event, "type").into()
        }),
        column(
            "Reason",
            false,
            "The reason for the transition into the object's current status.",
            |event| text(event, "reason").into(),
        ),
        column("Object", false, "The object that this event is about.", target),
        column(
            "Subobject",
            true,
            "The part of the object that this event is about.",
            |event| text(field(event, "involvedObject"), "fieldPath").into(),
        ),
        column("Source", true, "The component reporting this event.", source),
        column(
            "Message",
            false,
            "A human-readable description of the status of this operation.",
            |event| field(event, "message").as_str().unwrap_or_default().trim().into(),
        ),
        column(
            "First Seen",
            true,
            "The time at which the event was first recorded.",
            |event| first_seen(event).into(),
        ),
        column(
            "Count",
            true,
            "The number of times this event has occurred.",
            count,
        ),
        name,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_goes_to_the_core_and_back() {
        let new = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "managedFields": [
                {"apiVersion": "events.k8s.io/v1", "fieldsV1": {"f:note": {}, "f:reason": {}}},
            ]},
            "regarding": {"kind": "Node", "name": "n"}, "note": "hello", "reason": "Joined", "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Join",
            "reportingController": "hostler.dev/host", "reportingInstance": "host-1",
        });
        let mut event = new.clone();
        to_core(&mut event);
        assert_eq!(event["involvedObject"]["name"], "n");
        assert_eq!(event["message"], "hello");
        assert_eq!(event["reportingComponent"], "hostler.dev/host");
        assert_eq!(
            event["metadata"], new["metadata"],
            "who owns what is kept as it was written"
        );
        assert_eq!(target(&event), "node/n");
        assert_eq!(source(&event), "hostler.dev/host, host-1");
        assert_eq!(count(&event), 1);
        from_core(&mut event);
        assert_eq!(target(&event), "node/n");
        for (name, value) in new
            .as_object()
            .expect("an object")
            .iter()
            .filter(|(name, _)| *name != "metadata")
        {
            assert_eq!(&event[name], value, "{name}");
        }
    }

    #[test]
    fn a_series_is_counted() {
        let event =
            json!({"series": {"count": 7, "lastObservedTime": "2000-01-01T00:00:00.000000Z"}, "count": 1});
        assert_eq!(count(&event), 7);
        assert!(
            last_seen(&event).as_str().is_some_and(|seen| seen.ends_with('y')),
            "{}",
            last_seen(&event)
        );
    }
}
