//! Who owns what after creates, updates and patches.

use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use super::comparison::Comparison;
use super::merging::{merge, remove};
use super::structure::{fields_of, find_misfits};
use super::*;
use crate::schema::Schema;

/// A kind with one list of each sort.
pub(crate) fn widget(custom: bool) -> Resource {
    let schema = Schema::parse(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "color": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "atomic": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "args": {"type": "array", "items": {"type": "string"}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"}, "nodePort": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }}));
    Resource {
        group: "example.com".into(),
        version: "v1".into(),
        storage_version: "v1".into(),
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        plural: "widgets".into(),
        singular: "widget".into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        has_status: true,
        counts_generation: true,
        columns: Vec::new(),
        selectable: Vec::new(),
        schema: Arc::new(schema),
        deprecation: None,
        since: 0,
        custom,
    }
}

/// A widget with this spec.
pub(crate) fn with(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "default"}, "spec": spec})
}

/// The fields of one owner, as stored.
pub(crate) fn fields(object: &Value, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    entries
        .into_iter()
        .find(|entry| entry["manager"] == manager)
        .map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

const T1: &str = "2026-08-20T12:00:01Z";
const T2: &str = "2026-08-20T12:00:02Z";
const T3: &str = "2026-08-20T12:00:03Z";

fn created(spec: Value) -> Value {
    let mut object = with(spec);
    update(&widget(true), None, &mut object, "creator", None, T1);
    object
}

fn updated(old: &Value, spec: Value, manager: &str, now: &str) -> Value {
    let mut new = old.clone();
    new["spec"] = spec;
    update(&widget(true), Some(old), &mut new, manager, None, now);
    new
}

#[test]
fn who_creates_owns_all_but_what_the_server_owns() {
    let object = created(
        json!({"size": 1, "labels": {"a": "b"}, "args": ["x"], "atomic": {"a": "1"}, "tags": ["t"],
        "ports": [{"port": 80, "protocol": "TCP"}], "free": {"x": {"y": [1]}}}),
    );
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "creator", "operation": "Update", "apiVersion": "example.com/v1", "time": T1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {
                ".": {}, "f:args": {}, "f:atomic": {}, "f:free": {".": {}, "f:x": {".": {}, "f:y": {}}},
                "f:labels": {".": {}, "f:a": {}},
                "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}}},
                "f:size": {}, "f:tags": {".": {}, "v:\"t\"": {}},
            }},
        }])
    );
}

#[test]
fn who_changes_a_field_takes_it() {
    let old = created(json!({"size": 1, "color": "red"}));
    let new = updated(&old, json!({"size": 2, "color": "red"}), "other", T2);
    assert_eq!(
        fields(&new, "creator"),
        json!({"f:spec": {".": {}, "f:color": {}}})
    );
    assert_eq!(fields(&new, "other"), json!({"f:spec": {"f:size": {}}}));
    let back = updated(&new, json!({"size": 3, "color": "red"}), "creator", T3);
    assert_eq!(
        fields(&back, "creator"),
        json!({"f:spec": {".": {}, "f:color": {}, "f:size": {}}})
    );
    assert_eq!(fields(&back, "other"), Value::Null);
    assert_eq!(back["metadata"]["managedFields"][0]["time"], T3);
}

#[test]
fn what_is_gone_is_nobodys() {
    let old = created(json!({"size": 1, "ports": [{"port": 80, "name": "a"}, {"port": 81}]}));
    let new = updated(&old, json!({"ports": [{"port": 80}]}), "other", T2);
    assert_eq!(
        fields(&new, "creator"),
        json!({"f:spec": {".": {}, "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}})
    );
    assert_eq!(fields(&new, "other"), Value::Null);
}

#[test]
fn a_write_that_changes_nothing_moves_no_time() {
    let old = created(json!({"size": 1, "ports": [{"port": 80}]}));
    let new = updated(&old, json!({"ports": [{"port": 80}], "size": 1.0}), "creator", T2);
    assert_eq!(new["metadata"]["managedFields"], old["metadata"]["managedFields"]);
}

#[test]
fn status_is_owned_through_its_own_door() {
    let resource = widget(true);
    let old = created(json!({"size": 1}));
    let mut new = old.clone();
    new["status"] = json!({"phase": "Ready"});
    update(&resource, Some(&old), &mut new, "creator", Some("status"), T2);
    let entries = new["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(
        entries[1]["fieldsV1"],
        json!({"f:status": {".": {}, "f:phase": {}}})
    );

    // Through the main door, status is not there to be owned.
    let mut ignored = old.clone();
    ignored["status"] = json!({"phase": "Ready"});
    update(&resource, Some(&old), &mut ignored, "creator", None, T2);
    assert_eq!(
        ignored["metadata"]["managedFields"],
        old["metadata"]["managedFields"]
    );
}

#[test]
fn a_client_that_drops_the_entries_loses_nothing_and_one_that_resets_them_does() {
    let old = created(json!({"size": 1}));
    let write = |managed: Value, subresource: Option<&str>| {
        let mut new = old.clone();
        new["metadata"]["managedFields"] = managed;
        update(&widget(true), Some(&old), &mut new, "creator", subresource, T2);
        new["metadata"]["managedFields"].clone()
    };
    assert_eq!(write(Value::Null, None), old["metadata"]["managedFields"]);
    assert_eq!(
        write(json!([{"manager": "x"}]), None),
        old["metadata"]["managedFields"]
    );
    assert_eq!(write(json!([{}]), None), Value::Null);
    assert_eq!(write(json!([]), None), Value::Null);
    assert_eq!(
        write(json!([{}]), Some("status")),
        old["metadata"]["managedFields"]
    );
    let moved = json!([{"manager": "kubectl", "operation": "Apply", "apiVersion": "example.com/v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:size": {}}}}]);
    assert_eq!(write(moved.clone(), None), moved);
}

#[test]
fn an_object_that_is_not_tracked_stays_so() {
    let old = with(json!({"size": 1}));
    let new = updated(&old, json!({"size": 2}), "other", T2);
    assert_eq!(new["metadata"]["managedFields"], Value::Null);
}

#[test]
fn too_many_updaters_are_put_together_and_own_what_they_owned() {
    let mut object = created(json!({"labels": {}}));
    for index in 0..15 {
        let mut labels = object["spec"]["labels"].as_object().cloned().unwrap();
        labels.insert(format!("l{index}"), json!("x"));
        let now = format!("2026-08-20T12:01:{index:02}Z");
        object = updated(&object, json!({"labels": labels}), &format!("m{index}"), &now);
    }
    let owners = Owners::of(&object);
    assert_eq!(owners.0.len(), 10);
    assert_eq!(owners.0[0].manager, "ancient-changes");
    let all = owners
        .0
        .iter()
        .fold(FieldSet::default(), |all, entry| all.union(&entry.fields));
    for index in 0..15 {
        let path = ["spec", "labels", &format!("l{index}")].map(Element::field);
        assert!(all.has(&path), "l{index}");
    }
}

#[test]
fn entries_are_stored_in_order() {
    let entry = |manager: &str, operation: Operation, time: &str| Entry {
        operation,
        time: Some(time.to_owned()),
        fields: FieldSet::decode(&json!({"f:x": {}})).unwrap(),
        ..Entry::new(&widget(true), manager, operation, None)
    };
    let owners = Owners(vec![
        entry("a", Operation::Update, T2),
        entry("c", Operation::Update, T1),
        entry("b", Operation::Update, T1),
        entry("z", Operation::Apply, T3),
    ]);
    let mut object = json!({});
    owners.store(&mut object);
    let names: Vec<_> = Owners::of(&object)
        .0
        .into_iter()
        .map(|entry| entry.manager)
        .collect();
    assert_eq!(names, ["z", "b", "c", "a"]);
}

#[rstest]
#[case::form(json!({"free": {"x": {"y": 1}}}), json!({"free": {"x": 1}}), ["", ".spec.free.x", ".spec.free.x.y"])]
#[case::form_back(json!({"free": {"x": 1}}), json!({"free": {"x": {"y": 1}}}), [".spec.free.x.y", ".spec.free.x", ""])]
#[case::empty(json!({"labels": {}}), json!({"labels": {"a": "b"}}), [".spec.labels.a", "", ""])]
#[case::emptied(json!({"labels": {"a": "b"}}), json!({"labels": {}}), ["", "", ".spec.labels.a"])]
#[case::null(json!({"labels": null}), json!({"labels": {}}), ["", ".spec.labels", ""])]
#[case::gone(json!({"tags": ["a", "b"]}), json!({}), ["", "", ".spec.tags .spec.tags[=\"a\"] .spec.tags[=\"b\"]"])]
#[case::order(json!({"tags": ["a", "b"]}), json!({"tags": ["b", "a"]}), ["", "", ""])]
#[case::order_of_atomic(json!({"args": ["a", "b"]}), json!({"args": ["b", "a"]}), ["", ".spec.args", ""])]
#[case::doubled(json!({"tags": ["a"]}), json!({"tags": ["a", "a"]}), [".spec.tags[=\"a\"]", "", ".spec.tags[=\"a\"]"])]
#[case::default_key(json!({"ports": [{"port": 1}]}), json!({"ports": [{"port": 1, "protocol": "TCP"}]}), [".spec.ports[port=1,protocol=\"TCP\"].protocol", "", ""])]
fn changes_are_found_where_they_are(
    #[case] before: Value,
    #[case] after: Value,
    #[case] expected: [&str; 3],
) {
    let resource = widget(true);
    let changes = Comparison::of(Node::root(&resource.schema), &with(before), &with(after));
    let shown = |set: &FieldSet| {
        let mut paths: Vec<_> = set.paths().iter().map(|path| field_set::shown(path)).collect();
        paths.sort();
        paths.join(" ")
    };
    assert_eq!(
        [&changes.added, &changes.modified, &changes.removed].map(shown),
        expected
    );
}

#[rstest]
#[case::undeclared(json!({"shape": 1}), ".spec.shape: field not declared in schema")]
#[case::double(json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}), ".spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]")]
#[case::double_in_set(json!({"tags": ["a", "a"]}), ".spec.tags: duplicate entries for key [=\"a\"]")]
#[case::null_element(json!({"tags": [null]}), ".spec.tags: element 0: associative list without keys has an element that's an explicit null")]
#[case::no_map(json!({"ports": ["x"]}), ".spec.ports: element 0: associative list with keys may not have non-map elements")]
fn what_cannot_be_merged_is_told(#[case] spec: Value, #[case] message: &str) {
    let resource = widget(true);
    assert_eq!(
        find_misfits(Node::root(&resource.schema), &with(spec), resource.custom),
        [message]
    );
}

/// Objects that fit the kind.
pub(crate) fn spec() -> impl Strategy<Value = Value> {
    let maybe = |value: BoxedStrategy<Value>| prop::option::of(value);
    let text = || "[a-c]".prop_map(Value::from).boxed();
    let map = || {
        prop::collection::btree_map("[a-c]", "[x-z]", 0..3)
            .prop_map(|map| json!(map))
            .boxed()
    };
    let tags = prop::collection::btree_set("[a-d]", 0..4)
        .prop_flat_map(|set| Just(set.into_iter().collect::<Vec<_>>()).prop_shuffle())
        .prop_map(|list| json!(list))
        .boxed();
    let port = (prop::option::of("[a-b]"), prop::option::of(0..3_i64));
    let ports = prop::collection::btree_map(80..84_i64, port, 0..4)
        .prop_flat_map(|map| Just(map.into_iter().collect::<Vec<_>>()).prop_shuffle())
        .prop_map(|list| {
            let ports = list.into_iter().map(|(port, (name, node_port))| {
                let mut object = Map::new();
                object.insert("port".into(), json!(port));
                name.map(|name| object.insert("name".into(), json!(name)));
                node_port.map(|number| object.insert("nodePort".into(), json!(number)));
                Value::Object(object)
            });
            Value::Array(ports.collect())
        })
        .boxed();
    let size = (0..3_i64).prop_map(Value::from).boxed();
    let args = prop::collection::vec("[a-b]", 0..3)
        .prop_map(|list| json!(list))
        .boxed();
    let free = map().prop_map(|inner| json!({"x": inner})).boxed();
    (
        maybe(size),
        maybe(text()),
        maybe(map()),
        maybe(map()),
        maybe(args),
        maybe(tags),
        maybe(ports),
        maybe(free),
    )
        .prop_map(|(size, color, labels, atomic, args, tags, ports, free)| {
            let named = [
                ("size", size),
                ("color", color),
                ("labels", labels),
                ("atomic", atomic),
                ("args", args),
                ("tags", tags),
                ("ports", ports),
                ("free", free),
            ];
            let present = named
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(present.collect())
        })
}

proptest! {
    #[test]
    fn nothing_changed_between_equals(spec in spec()) {
        let resource = widget(true);
        let object = with(spec);
        let changes = Comparison::of(Node::root(&resource.schema), &object, &object);
        prop_assert_eq!(changes, Comparison::default());
    }

    #[test]
    fn merging_something_into_itself_is_itself(spec in spec()) {
        let resource = widget(true);
        let object = with(spec);
        prop_assert_eq!(&merge(Node::root(&resource.schema), Some(&object), Some(&object)), &object);
    }

    #[test]
    fn merged_objects_keep_the_order_and_all_that_was_applied(live in spec(), applied in spec()) {
        let resource = widget(true);
        let node = Node::root(&resource.schema);
        let merged = merge(node, Some(&with(live.clone())), Some(&with(applied.clone())));
        let has = fields_of(node, &merged).paths();
        for wanted in fields_of(node, &with(applied.clone())).paths() {
            prop_assert!(has.iter().any(|path| path.starts_with(&wanted)), "{wanted:?}");
        }
        let order: Vec<_> = merged["spec"]["tags"].as_array().into_iter().flatten().collect();
        let places: Vec<_> = applied["tags"].as_array().into_iter().flatten()
            .map(|tag| order.iter().position(|other| *other == tag).unwrap()).collect();
        prop_assert!(places.is_sorted());
        let again = merge(node, Some(&merged), Some(&with(applied)));
        prop_assert_eq!(again, merged);
    }

    #[test]
    fn what_is_removed_is_gone_and_the_rest_stays(spec in spec(), other in spec()) {
        let resource = widget(true);
        let node = Node::root(&resource.schema);
        let object = with(spec);
        let fields = fields_of(node, &object);
        let some = fields.intersection(&fields_of(node, &with(other)));
        let left = fields_of(node, &remove(node, &object, &some));
        prop_assert!(left.intersection(&some).is_empty());
        let lost: Vec<_> = fields.difference(&left).paths();
        let below_removed = |path: &Vec<Element>| (1..=path.len()).any(|length| some.has(&path[..length]));
        prop_assert!(lost.iter().all(below_removed), "{lost:?}");
    }

    #[test]
    fn every_field_has_the_owner_who_wrote_it_last(first in spec(), second in spec()) {
        let old = created(first);
        let new = updated(&old, second, "other", T2);
        let owners = Owners::of(&new);
        let all = owners.0.iter().fold(FieldSet::default(), |all, entry| all.union(&entry.fields));
        let has = without_server_owned(&fields_of(Node::root(&widget(true).schema), &strip(&new)));
        let leaves: Vec<_> = has.difference(&all).paths();
        prop_assert!(leaves.is_empty(), "not owned: {leaves:?}");
        for (index, entry) in owners.0.iter().enumerate() {
            for other in &owners.0[index + 1..] {
                let shared = entry.fields.intersection(&other.fields);
                prop_assert!(shared.is_empty(), "shared: {shared:?}");
            }
        }
    }
}

/// A built-in kind by its plural.
fn builtin(plural: &str) -> Resource {
    crate::builtin::resources()
        .into_iter()
        .find(|resource| resource.plural == plural)
        .unwrap()
}

#[test]
fn built_in_kinds_are_taken_apart_by_their_schemas() {
    let mut node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "a", "labels": {"x": "y"}, "finalizers": ["a.b/c"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "1"}]},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDRs": ["10.0.0.0/24"]}});
    update(&builtin("nodes"), None, &mut node, "kubelet", None, T1);
    assert_eq!(
        fields(&node, "kubelet"),
        json!({
            "f:metadata": {
                "f:finalizers": {".": {}, "v:\"a.b/c\"": {}}, "f:labels": {".": {}, "f:x": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"1\"}": {}}},
            "f:spec": {"f:podCIDRs": {".": {}, "v:\"10.0.0.0/24\"": {}}, "f:taints": {}},
        })
    );
    let old = node.clone();
    node["status"] = json!({"capacity": {"cpu": "4"}, "images": [{"names": ["i"]}], "nodeInfo": {"machineID": "m"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]});
    update(
        &builtin("nodes"),
        Some(&old),
        &mut node,
        "kubelet",
        Some("status"),
        T2,
    );
    let status = node["metadata"]["managedFields"][1]["fieldsV1"].clone();
    assert_eq!(
        status,
        json!({"f:status": {
            "f:addresses": {".": {}, "k:{\"type\":\"InternalIP\"}": {".": {}, "f:address": {}, "f:type": {}}},
            "f:capacity": {".": {}, "f:cpu": {}},
            "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}, "f:type": {}}},
            "f:images": {}, "f:nodeInfo": {".": {}, "f:machineID": {}}}})
    );

    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}],
        "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "args": ["x"],
            "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}});
    update(&builtin("pods"), None, &mut pod, "kubectl", None, T1);
    assert_eq!(
        fields(&pod, "kubectl"),
        json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:args": {}, "f:env": {".": {}, "k:{\"name\":\"E\"}": {".": {}, "f:name": {},
                    "f:valueFrom": {".": {}, "f:secretKeyRef": {}}}},
                "f:image": {}, "f:name": {},
                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}},
            "f:nodeSelector": {}, "f:tolerations": {}}})
    );

    let mut map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a.b": "c"}});
    update(&builtin("configmaps"), None, &mut map, "kubectl", None, T1);
    assert_eq!(fields(&map, "kubectl"), json!({"f:data": {".": {}, "f:a.b": {}}}));
}
