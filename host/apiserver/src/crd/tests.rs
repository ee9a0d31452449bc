//! Tests of custom resources: from a definition to what its objects must be.

use serde_json::json;

use super::*;

fn definition(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList", "shortNames": ["th"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn spec(properties: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

fn resource(schema: Value) -> Resource {
    resources_of(&definition(schema))
        .expect("a good definition")
        .remove(0)
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "d"}, "spec": spec})
}

fn told(causes: &[Cause]) -> Vec<String> {
    causes
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect()
}

#[test]
fn a_definition_makes_a_resource() {
    let thing = resource(spec(json!({"a": {"type": "string"}})));
    assert_eq!(
        (
            thing.plural.as_str(),
            thing.kind.as_str(),
            thing.list_kind.as_str()
        ),
        ("things", "Thing", "ThingList")
    );
    assert!(thing.namespaced && thing.has_status && thing.custom && thing.counts_generation);
    assert_eq!(thing.columns[0].name, "Age");
    assert!(
        thing.schema.properties["metadata"]
            .properties
            .contains_key("finalizers")
    );
}

#[rstest::rstest]
#[case(json!({"n": {"type": "integer", "minimum": 0}}), json!({"n": -1}),
    "spec.n: Invalid value: -1: spec.n in body should be greater than or equal to 0")]
#[case(json!({"n": {"type": "integer", "maximum": 3, "exclusiveMaximum": true}}), json!({"n": 3}),
    "spec.n: Invalid value: 3: spec.n in body should be less than 3")]
#[case(json!({"e": {"type": "string", "enum": ["b", "c"]}}), json!({"e": "a"}),
    "spec.e: Unsupported value: \"a\": supported values: \"b\", \"c\"")]
#[case(json!({"n": {"type": "integer"}}), json!({"n": "x"}),
    "spec.n: Invalid value: \"string\": spec.n in body must be of type integer: \"string\"")]
#[case(json!({"n": {"type": "integer"}}), json!({"n": 1.5}),
    "spec.n: Invalid value: \"number\": spec.n in body must be of type integer: \"number\"")]
#[case(json!({"s": {"type": "string", "pattern": "^a+$"}}), json!({"s": "b"}),
    "spec.s: Invalid value: \"b\": spec.s in body should match '^a+$'")]
#[case(json!({"s": {"type": "string", "maxLength": 2}}), json!({"s": "abc"}),
    "spec.s: Too long: may not be more than 2 bytes")]
#[case(json!({"s": {"type": "string", "minLength": 1}}), json!({"s": ""}),
    "spec.s: Invalid value: \"\": spec.s in body should be at least 1 chars long")]
#[case(json!({"l": {"type": "array", "maxItems": 1, "items": {"type": "string"}}}), json!({"l": ["a", "b"]}),
    "spec.l: Too many: 2: must have at most 1 item")]
#[case(json!({"o": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}}), json!({"o": {}}),
    "spec.o.x: Required value")]
#[case(json!({"s": {"type": "string", "format": "date-time"}}), json!({"s": "now"}),
    "spec.s: Invalid value: \"now\": spec.s in body must be of type date-time: \"now\"")]
#[case(json!({"i": {"x-kubernetes-int-or-string": true}}), json!({"i": true}),
    "spec.i: Invalid value: \"boolean\": spec.i in body must be of type integer,string: \"boolean\"")]
#[case(json!({"n": {"type": "integer", "format": "int32"}}), json!({"n": 3_000_000_000_i64}),
    "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.n")]
#[case(json!({"m": {"type": "object", "additionalProperties": {"type": "string"}}}), json!({"m": {"a.b": 1}}),
    "spec.m.a.b: Invalid value: \"integer\": spec.m.a.b in body must be of type string: \"integer\"")]
#[case(json!({"l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}), json!({"l": ["a", "a"]}),
    "spec.l[1]: Duplicate value: \"a\"")]
#[case(json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
    {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}), json!({"l": [{"k": "a"}, {"k": "a"}]}),
    "spec.l[1]: Duplicate value: {\"k\":\"a\"}")]
fn a_bad_object_is_refused_in_the_real_words(
    #[case] properties: Value,
    #[case] written: Value,
    #[case] message: &str,
) {
    let causes = validate(&resource(spec(properties)), &thing(written), None);
    assert_eq!(told(&causes), [message]);
}

#[test]
fn exactly_one_branch_must_fit() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}});
    let thing_of = resource(schema);
    assert!(validate(&thing_of, &thing(json!({"a": "1"})), None).is_empty());
    let causes = told(&validate(&thing_of, &thing(json!({"a": "1", "b": "2"})), None));
    let two = "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives";
    assert_eq!(causes, [two]);
    let causes = told(&validate(&thing_of, &thing(json!({})), None));
    assert!(causes[0].ends_with("Found none valid"), "{causes:?}");
}

#[test]
fn what_was_wrong_before_and_did_not_change_is_left_alone() {
    let thing_of = resource(spec(
        json!({"n": {"type": "integer", "minimum": 5}, "s": {"type": "string"}}),
    ));
    let old = thing(json!({"n": 1, "s": "a"}));
    assert!(validate(&thing_of, &thing(json!({"n": 1, "s": "b"})), Some(&old)).is_empty());
    assert_eq!(
        validate(&thing_of, &thing(json!({"n": 2, "s": "b"})), Some(&old)).len(),
        1
    );
}

#[test]
fn rules_speak_for_themselves() {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 9,
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "name is fixed"}]}},
        "x-kubernetes-validations": [
            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
             "messageExpression": "'min ' + string(self.min) + ' is above max ' + string(self.max)", "fieldPath": ".min"},
            {"rule": "!has(self.max) || self.max < 100"},
            {"rule": "!has(self.min) || self.min != 13", "message": "unlucky", "reason": "FieldValueForbidden"},
        ],
    }}});
    let thing_of = resource(schema);
    let check =
        |new: Value, old: Option<Value>| told(&validate(&thing_of, &thing(new), old.map(thing).as_ref()));
    assert_eq!(check(json!({"min": 1, "max": 2}), None), Vec::<String>::new());
    assert_eq!(
        check(json!({"min": 3, "max": 2}), None),
        ["spec.min: Invalid value: min 3 is above max 2"]
    );
    assert_eq!(
        check(json!({"max": 100}), None),
        ["spec: Invalid value: failed rule: !has(self.max) || self.max < 100"]
    );
    assert_eq!(check(json!({"min": 13}), None), ["spec: Forbidden: unlucky"]);
    // A transition rule asks about a change, not about a beginning.
    assert_eq!(check(json!({"name": "a"}), None), Vec::<String>::new());
    assert_eq!(
        check(json!({"name": "b"}), Some(json!({"name": "a"}))),
        ["spec.name: Invalid value: \"b\": name is fixed"]
    );
    // What broke a rule before and did not change is left alone.
    assert_eq!(
        check(json!({"max": 100}), Some(json!({"max": 100}))),
        Vec::<String>::new()
    );
}

#[test]
fn old_self_may_be_optional() {
    let schema = spec(json!({"n": {"type": "integer", "x-kubernetes-validations": [
        {"rule": "oldSelf.optMap(o, self >= o).orValue(self == 1)", "optionalOldSelf": true, "message": "grows from 1"}]}}));
    let thing_of = resource(schema);
    let check = |new: i64, old: Option<i64>| {
        let old = old.map(|n| thing(json!({"n": n})));
        validate(&thing_of, &thing(json!({"n": new})), old.as_ref()).len()
    };
    assert_eq!(
        (
            check(1, None),
            check(2, None),
            check(3, Some(2)),
            check(1, Some(2))
        ),
        (0, 1, 0, 1)
    );
}

#[test]
fn list_elements_are_matched_by_their_key() {
    let schema = spec(
        json!({"l": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"],
        "properties": {"k": {"type": "string"}, "v": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "shrinks"}]}}}}}),
    );
    let thing_of = resource(schema);
    let old = thing(json!({"l": [{"k": "a", "v": 1}, {"k": "b", "v": 5}]}));
    let swapped = thing(json!({"l": [{"k": "b", "v": 5}, {"k": "a", "v": 1}]}));
    assert!(validate(&thing_of, &swapped, Some(&old)).is_empty());
    let smaller = thing(json!({"l": [{"k": "b", "v": 4}]}));
    assert_eq!(
        told(&validate(&thing_of, &smaller, Some(&old))),
        ["spec.l[0].v: Invalid value: 4: shrinks"]
    );
}

#[test]
fn rules_wait_until_the_object_is_well_formed() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.a > 0"}]}}});
    let causes = told(&validate(&resource(schema), &thing(json!({})), None));
    assert_eq!(causes[0], "spec.a: Required value");
    assert!(causes[1].starts_with("<nil>: Invalid value: null: some validation rules were not checked"));
}

#[test]
fn work_without_end_is_refused() {
    let schema = spec(
        json!({"l": {"type": "array", "maxItems": 3000, "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a + b > 0))"}]}}),
    );
    let causes = check_structural(&definition(schema)).expect_err("too expensive");
    assert!(
        causes[0].message.contains("estimated rule cost exceeds budget"),
        "{causes:?}"
    );
}

#[rstest::rstest]
#[case(json!({"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}),
    "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields")]
#[case(json!({"properties": {}}), "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root")]
#[case(spec(json!({"l": {"type": "array"}})),
    "spec.validation.openAPIV3Schema.properties[spec].properties[l].items: Required value: must be specified")]
#[case(spec(json!({"s": {"type": "text"}})),
    "spec.validation.openAPIV3Schema.properties[spec].properties[s].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"")]
#[case(spec(json!({"n": {"type": "integer", "default": "x"}})),
    "spec.validation.openAPIV3Schema.properties[spec].properties[n].default: Invalid value: \"string\":  in body must be of type integer: \"string\"")]
#[case(spec(json!({"n": {"type": "integer", "anyOf": [{"type": "string"}]}})),
    "spec.validation.openAPIV3Schema.properties[spec].properties[n].anyOf[0].type: Forbidden: must be empty to be structural")]
#[case(json!({"type": "object", "properties": {"spec": {"type": "object", "anyOf": [{"properties": {"x": {"minimum": 1}}}]}}}),
    "spec.validation.openAPIV3Schema.properties[spec].properties[x]: Required value: because it is defined in spec.validation.openAPIV3Schema.properties[spec].anyOf[0].properties[x]")]
#[case(json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
    "spec.validation.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified")]
#[case(spec(json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
    "items": {"type": "object", "properties": {"k": {"type": "string"}}}}})),
    "spec.validation.openAPIV3Schema.properties[spec].properties[l].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property")]
#[case(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
    "spec.validation.openAPIV3Schema.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined")]
fn a_schema_that_is_not_structural_is_refused(#[case] schema: Value, #[case] message: &str) {
    assert_eq!(
        told(&check_structural(&definition(schema)).expect_err("refused")),
        [message]
    );
}

#[test]
fn a_rule_that_does_not_compile_refuses_the_definition() {
    let schema =
        spec(json!({"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self.b > 1"}]}}));
    let causes = check_structural(&definition(schema)).expect_err("refused");
    assert!(
        causes[0]
            .field
            .ends_with(".properties[a].x-kubernetes-validations[0].rule"),
        "{causes:?}"
    );
    assert!(
        causes[0]
            .message
            .contains("type 'int' does not support field selection"),
        "{causes:?}"
    );
}

#[test]
fn a_default_that_breaks_a_rule_refuses_the_definition() {
    let schema = spec(
        json!({"a": {"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 1"}]}}),
    );
    let causes = check_structural(&definition(schema)).expect_err("refused");
    assert!(causes[0].field.ends_with(".properties[a].default"), "{causes:?}");
    assert_eq!(causes[0].message, "Invalid value: 1: failed rule: self > 1");
}

#[test]
fn names_and_versions_fit_together() {
    let mut crd = definition(json!({"type": "object"}));
    crd["metadata"]["name"] = "other.example.com".into();
    crd["spec"]["group"] = "example".into();
    crd["spec"]["scope"] = "Global".into();
    crd["spec"]["versions"][0]["storage"] = false.into();
    let causes = told(&check_structural(&crd).expect_err("refused"));
    assert_eq!(
        causes[0],
        "metadata.name: Invalid value: \"other.example.com\": must be spec.names.plural+\".\"+spec.group"
    );
    assert_eq!(
        causes[1],
        "spec.group: Invalid value: \"example\": should be a domain with at least one dot"
    );
    assert_eq!(
        causes[2],
        "spec.scope: Unsupported value: \"Global\": supported values: \"Cluster\", \"Namespaced\""
    );
    assert!(causes[3].ends_with("must have exactly one version marked as storage version"));
}

#[test]
fn a_definition_keeps_its_names() {
    let old = definition(json!({"type": "object"}));
    let mut new = old.clone();
    new["spec"]["names"]["kind"] = "Other".into();
    new["spec"]["scope"] = "Cluster".into();
    let fields: Vec<_> = check_update(&new, &old)
        .into_iter()
        .map(|cause| cause.field)
        .collect();
    assert_eq!(fields, ["spec.names.kind", "spec.scope"]);
}

#[test]
fn wrong_type_meta_is_told_alone() {
    let mut object = thing(json!({}));
    object["kind"] = "Other".into();
    let causes = told(&validate(&resource(spec(json!({}))), &object, None));
    assert_eq!(causes, ["kind: Invalid value: \"Other\": must be Thing"]);
}
