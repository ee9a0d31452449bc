//! Tests of the built-in kinds.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fields;
use crate::schema::{ListType, Type};

fn kind(name: &str) -> Resource {
    resources()
        .into_iter()
        .find(|resource| resource.kind == name)
        .expect("a built-in kind")
}

#[test]
fn every_kind_has_a_schema_of_its_own() {
    for resource in resources() {
        assert!(
            resource.schema.properties.contains_key("metadata"),
            "{}",
            resource.kind
        );
        assert!(resource.schema.component.is_some(), "{}", resource.kind);
        assert!(resource.schema.description.is_some(), "{}", resource.kind);
    }
}

#[test]
fn lists_merge_as_upstream_says() {
    let node = kind("Node").schema;
    let spec = &node.properties["spec"];
    assert_eq!(spec.properties["taints"].list_type, ListType::Atomic);
    assert_eq!(spec.properties["podCIDRs"].list_type, ListType::Set);
    let conditions = &node.properties["status"].properties["conditions"];
    assert_eq!(conditions.list_type, ListType::Map(vec!["type".into()]));
    assert_eq!(conditions.patch_merge_key.as_deref(), Some("type"));
    let meta = object_meta();
    assert_eq!(meta.properties["finalizers"].list_type, ListType::Set);
    assert_eq!(
        meta.properties["ownerReferences"].list_type,
        ListType::Map(vec!["uid".into()])
    );
    let pod = kind("Pod").schema;
    let containers = &pod.properties["spec"].properties["containers"];
    let ports = &containers.items.as_ref().expect("items").properties["ports"];
    assert_eq!(
        ports.list_type,
        ListType::Map(vec!["containerPort".into(), "protocol".into()])
    );
    assert_eq!(
        ports.items.as_ref().expect("items").properties["protocol"].default,
        Some(json!("TCP"))
    );
    assert!(pod.properties["spec"].properties["nodeSelector"].atomic_map);
}

#[test]
fn free_values_stay_and_unknown_fields_are_named() {
    let node = kind("Node");
    let object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"a": "b"}, "managedFields": [{"fieldsV1": {"f:x": {}}}], "wrong": 1},
        "spec": {"unschedulable": true, "typo": 1},
        "status": {"capacity": {"cpu": "4", "memory": 5}},
    });
    assert_eq!(
        fields::unknown(&node.schema, &object),
        ["unknown field \"metadata.wrong\"", "unknown field \"spec.typo\"",]
    );
    let causes = validate(&node, &object, None);
    assert!(causes.is_empty(), "{causes:?}");
}

#[test]
fn a_definition_is_known_to_any_depth() {
    let crd = kind("CustomResourceDefinition");
    let deep = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
        "properties": {"a": {"items": {"properties": {"b": {"typo": 1, "default": {"any": 1}}}}}},
        "additionalProperties": true,
    }}}]}});
    let path = "spec.versions[0].schema.openAPIV3Schema.properties.a.items.properties.b.typo";
    assert_eq!(
        fields::unknown(&crd.schema, &deep),
        [format!("unknown field \"{path}\"")]
    );
}

#[test]
fn a_type_that_does_not_fit_is_told() {
    let object = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": "yes"}});
    let causes = validate(&kind("Node"), &object, None);
    assert_eq!(causes.len(), 1);
    assert_eq!(
        causes[0].message,
        "Invalid value: \"string\": spec.unschedulable in body must be of type boolean: \"string\""
    );
}

#[rstest::rstest]
#[case("Node", json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "Nope"}]}}),
    "metadata.taints[0].effect", "Unsupported value: \"Nope\": supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\"")]
#[case("Node", json!({"metadata": {"name": "n"}, "spec": {"taints": [
    {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]}}),
    "metadata.taints[1]", "Duplicate value: {\"key\":\"a\",\"effect\":\"NoSchedule\"}: taints must be unique by key and effect pair")]
#[case("Secret", json!({"metadata": {"name": "s", "namespace": "d"}, "data": {"a/b": "eA=="}}),
    "data[a/b]", "Invalid value: \"a/b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')")]
#[case("Namespace", json!({"metadata": {"name": "a.b"}}), "metadata.name", "Invalid value: \"a.b\": must not contain dots")]
#[case("Pod", json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {}}), "spec.containers", "Required value")]
#[case("RoleBinding", json!({"metadata": {"name": "p", "namespace": "d"}, "roleRef": {"kind": "X", "name": "y"}}),
    "roleRef.kind", "Unsupported value: \"X\": supported values: \"ClusterRole\", \"Role\"")]
fn a_bad_object_is_refused_in_the_real_words(
    #[case] name: &str,
    #[case] object: Value,
    #[case] field: &str,
    #[case] message: &str,
) {
    let causes = validate(&kind(name), &object, None);
    let told: Vec<_> = causes
        .iter()
        .map(|cause| (cause.field.as_str(), cause.message.as_str()))
        .collect();
    assert_eq!(told, [(field, message)]);
}

#[test]
fn what_is_immutable_stays() {
    let meta = json!({"name": "s", "namespace": "d"});
    let old = json!({"metadata": meta, "type": "Opaque", "immutable": true, "data": {"a": "eA=="}});
    let new = json!({"metadata": meta, "type": "Other", "immutable": true, "data": {"a": "eQ=="}});
    let fields: Vec<_> = validate(&kind("Secret"), &new, Some(&old))
        .into_iter()
        .map(|cause| cause.field)
        .collect();
    assert_eq!(fields, ["type", "data"]);
    let old = json!({"metadata": {"name": "n"}, "spec": {"providerID": "a://1"}});
    let new = json!({"metadata": {"name": "n"}, "spec": {"providerID": "a://2"}});
    assert_eq!(
        validate(&kind("Node"), &new, Some(&old))[0].reason,
        "FieldValueForbidden"
    );
}

#[test]
fn string_data_becomes_data() {
    let mut secret = json!({"stringData": {"a": "x"}, "data": {"b": "eQ=="}});
    prepare(&kind("Secret"), &mut secret, None);
    assert_eq!(secret, json!({"data": {"b": "eQ==", "a": "eA=="}}));
}

#[test]
fn both_shapes_of_events_are_one_storage() {
    let shapes: Vec<_> = resources()
        .into_iter()
        .filter(|resource| resource.kind == "Event")
        .collect();
    assert_eq!(shapes.len(), 2);
    assert!(shapes.iter().all(|shape| storage_group(shape).is_empty()));
    assert_eq!(object_meta().kind, Type::Object);
}

/// Any JSON, with the names that the server looks at.
fn anything() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
        "spec",
        "status",
        "taints",
        "key",
        "effect",
        "conditions",
        "type",
        "data",
        "stringData",
        "containers",
        "image",
        "roleRef",
        "kind",
        "apiVersion",
        "series",
        "involvedObject",
        "regarding",
        "note",
        "message",
        "usages",
        "versions",
        "schema",
        "openAPIV3Schema",
        "properties",
        "items",
        "names",
        "fieldsV1",
        "phase",
        "containerStatuses",
        "state",
        "addresses",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["", "a", "Ready", "2026-01-01T00:00:00Z", "object", "é/%"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..5).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_object_is_too_strange(object in anything(), old in anything()) {
        for resource in resources() {
            let mut new = object.clone();
            fields::unknown(&resource.schema, &new);
            crate::crd::prune(&resource.schema, &mut new);
            crate::crd::default(&resource.schema, &mut new);
            prepare(&resource, &mut new, None);
            to_storage(&resource, &mut new);
            from_storage(&resource, &mut new);
            validate(&resource, &new, None);
            validate(&resource, &new, Some(&old));
            let rows = crate::table::table(&resource, &[new], &Value::Null, (crate::table::IncludeObject::Object, crate::answer::MetaVersion::V1));
            prop_assert_eq!(rows["rows"].as_array().map(Vec::len), Some(1));
        }
    }

    #[test]
    fn no_definition_is_too_strange(schema in anything()) {
        let crd = json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        });
        // Refused or not, it is always said.
        prop_assert!(crate::crd::resources_of(&crd).is_ok() || crate::crd::resources_of(&crd).is_err_and(|told| !told.is_empty()));
    }
}
