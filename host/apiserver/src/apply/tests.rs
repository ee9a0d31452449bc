//! What applies do to an object and to who owns it.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::managed_fields::tests::{fields, spec, widget, with};
use crate::managed_fields::update;

const T1: &str = "2026-08-20T12:00:01Z";
const T2: &str = "2026-08-20T12:00:02Z";
const T3: &str = "2026-08-20T12:00:03Z";

fn applied(live: Option<&Value>, spec: Value, manager: &str, now: &str) -> Result<Value, ApiError> {
    apply(&widget(true), live, &with(spec), manager, false, None, now)
}

fn created(spec: Value) -> Value {
    let mut object = applied(None, spec, "a", T1).unwrap();
    object["metadata"]["uid"] = json!("1");
    object["metadata"]["resourceVersion"] = json!("7");
    object
}

fn changed(live: &Value, spec: Value, manager: &str, now: &str) -> Value {
    let mut new = live.clone();
    new["spec"] = spec;
    update(&widget(true), Some(live), &mut new, manager, None, now);
    new
}

#[test]
fn a_first_apply_creates_and_owns_just_what_it_said() {
    let object = created(json!({"size": 1, "labels": {"a": "b"}, "tags": ["t"], "ports": [{"port": 80}]}));
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "a", "operation": "Apply", "apiVersion": "example.com/v1", "time": T1, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {
                "f:labels": {"f:a": {}}, "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:size": {}, "f:tags": {"v:\"t\"": {}}}},
        }])
    );
}

#[test]
fn what_is_no_longer_applied_goes_and_what_others_added_stays() {
    let live = created(
        json!({"size": 1, "color": "red", "labels": {"a": "b"}, "tags": ["t", "u"],
        "ports": [{"port": 80, "name": "x"}, {"port": 81}]}),
    );
    let spec = json!({"size": 1, "color": "red", "labels": {"a": "b", "o": "o"}, "tags": ["t", "u", "o"],
        "ports": [{"port": 80, "name": "x", "nodePort": 7}, {"port": 81}, {"port": 99}]});
    let live = changed(&live, spec, "other", T2);
    let after = applied(Some(&live), json!({"size": 1, "ports": [{"port": 80}]}), "a", T3).unwrap();
    assert_eq!(
        after["spec"],
        json!({"size": 1, "labels": {"o": "o"}, "tags": ["o"],
            "ports": [{"port": 80, "nodePort": 7}, {"port": 99}]})
    );
    assert_eq!(after["metadata"]["uid"], "1");
    assert_eq!(
        fields(&after, "a"),
        json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}, "f:size": {}}})
    );
}

#[test]
fn a_container_that_nobody_else_uses_goes_with_its_content() {
    let live = created(
        json!({"size": 1, "labels": {"a": "b"}, "tags": ["t"], "atomic": {"a": "1"}, "free": {"x": 1}}),
    );
    let after = applied(Some(&live), json!({"size": 1}), "a", T2).unwrap();
    assert_eq!(after["spec"], json!({"size": 1}));
}

#[test]
fn an_emptied_container_that_is_still_applied_stays() {
    let live = created(json!({"labels": {"a": "b"}, "tags": ["t"]}));
    let after = applied(Some(&live), json!({"labels": {}}), "a", T2).unwrap();
    assert_eq!(after["spec"], json!({"labels": {}}));
    let again = applied(Some(&after), json!({"labels": {}}), "a", T3).unwrap();
    assert_eq!(again, after);
}

#[test]
fn the_same_again_changes_nothing() {
    let spec = json!({"size": 1, "ports": [{"port": 80}], "labels": {"a": "b"}, "color": null});
    let live = created(spec.clone());
    assert_eq!(applied(Some(&live), spec.clone(), "a", T2).unwrap(), live);
    // Also after the server filled in a default.
    let mut defaulted = live.clone();
    defaulted["spec"]["ports"][0]["protocol"] = json!("TCP");
    assert_eq!(applied(Some(&defaulted), spec, "a", T2).unwrap(), defaulted);
}

#[test]
fn two_may_own_one_field_as_long_as_they_agree() {
    let live = created(json!({"size": 1}));
    let shared = applied(Some(&live), json!({"size": 1}), "b", T2).unwrap();
    assert_eq!(fields(&shared, "a"), fields(&shared, "b"));
    let left = applied(Some(&shared), json!({}), "a", T3).unwrap();
    assert_eq!(left["spec"], json!({"size": 1}));
    assert_eq!(fields(&left, "a"), json!({"f:spec": {}}));
    let gone = applied(Some(&left), json!({}), "b", T3).unwrap();
    assert!(gone["spec"]["size"].is_null());
}

#[test]
fn a_conflict_is_told_as_on_the_real_server() {
    let live = changed(
        &created(json!({"size": 1, "color": "red"})),
        json!({"size": 2, "color": "red"}),
        "kubectl-edit",
        T2,
    );
    let error = applied(Some(&live), json!({"size": 1, "color": "red"}), "a", T3).unwrap_err();
    assert_eq!((error.code.as_u16(), error.reason), (409, "Conflict"));
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using example.com/v1: .spec.size"
    );
    assert_eq!(
        error.body()["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using example.com/v1",
            "field": ".spec.size"}])
    );
}

#[test]
fn several_conflicts_are_listed_by_owner() {
    let live = created(json!({"size": 1, "color": "red", "labels": {"x": "1"}}));
    let live = changed(
        &live,
        json!({"size": 1, "color": "red", "labels": {"x": "2"}}),
        "z",
        T2,
    );
    let error = applied(
        Some(&live),
        json!({"size": 2, "color": "blue", "labels": {"x": "3"}}),
        "b",
        T3,
    )
    .unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.color\n- .spec.size\nconflicts with \"z\" using \
         example.com/v1:\n- .spec.labels.x"
    );
}

#[test]
fn force_takes_what_it_wants() {
    let live = created(json!({"size": 1, "color": "red"}));
    let after = apply(
        &widget(true),
        Some(&live),
        &with(json!({"size": 2})),
        "b",
        true,
        None,
        T2,
    )
    .unwrap();
    assert_eq!(after["spec"], json!({"size": 2, "color": "red"}));
    assert_eq!(fields(&after, "a"), json!({"f:spec": {"f:color": {}}}));
    assert_eq!(fields(&after, "b"), json!({"f:spec": {"f:size": {}}}));
}

#[test]
fn status_is_applied_through_its_own_door_only() {
    let resource = widget(true);
    let live = created(json!({"size": 1}));
    let mut wanted = with(json!({"size": 9}));
    wanted["status"] = json!({"phase": "Ready"});
    wanted["metadata"]["labels"] = json!({"a": "b"});
    let after = apply(&resource, Some(&live), &wanted, "c", false, Some("status"), T2).unwrap();
    assert_eq!(
        (&after["spec"], &after["status"]),
        (&json!({"size": 1}), &json!({"phase": "Ready"}))
    );
    assert_eq!(after["metadata"]["labels"], Value::Null);
    assert_eq!(fields(&after, "c"), json!({"f:status": {"f:phase": {}}}));
    wanted["spec"] = json!({"size": 1});
    let main = apply(&resource, Some(&live), &wanted, "a", false, None, T2).unwrap();
    assert_eq!(main["status"], Value::Null);
    assert_eq!(fields(&main, "a")["f:status"], Value::Null);
}

#[test]
fn who_was_there_before_the_first_apply_is_kept_as_one_owner() {
    let mut live = with(json!({"size": 1}));
    live["metadata"]["uid"] = json!("1");
    let error = applied(Some(&live), json!({"size": 2}), "a", T2).unwrap_err();
    assert!(
        error
            .message
            .contains("conflict with \"before-first-apply\" using example.com/v1: .spec.size")
    );
    let after = applied(Some(&live), json!({"color": "red"}), "a", T2).unwrap();
    assert_eq!(after["spec"], json!({"size": 1, "color": "red"}));
    assert_eq!(
        fields(&after, "before-first-apply"),
        json!({"f:spec": {".": {}, "f:size": {}}})
    );
}

#[test]
fn kubectl_takes_over_from_its_older_self() {
    let resource = widget(true);
    let mut live = with(json!({"size": 1, "color": "red"}));
    let last = with(json!({"size": 1, "color": "red"})).to_string();
    live["metadata"]["annotations"] = json!({LAST_APPLIED: last});
    update(&resource, None, &mut live, "kubectl-client-side-apply", None, T1);
    let mut live = changed(&live, json!({"size": 1, "color": "blue"}), "someone", T2);
    live["metadata"]["uid"] = json!("1");

    let error = applied(Some(&live), json!({"size": 2, "color": "red"}), "kubectl", T3).unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"someone\" using example.com/v1: .spec.color"
    );
    let after = applied(Some(&live), json!({"size": 2}), "kubectl", T3).unwrap();
    assert_eq!(after["spec"]["size"], 2);
    let kept = after["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(kept).unwrap(),
        with(json!({"size": 2}))
    );
    assert_eq!(
        applied(Some(&after), json!({"size": 2}), "kubectl", T3).unwrap(),
        after
    );
    assert!(applied(Some(&live), json!({"size": 2}), "other", T3).is_err());
}

#[rstest]
#[case::version(json!({"apiVersion": "example.com/v2", "kind": "Widget"}), 400,
    "Incorrect version specified in apply patch. Specified patch version: example.com/v2, expected: example.com/v1")]
#[case::managed(json!({"apiVersion": "example.com/v1", "metadata": {"managedFields": []}}), 400,
    "metadata.managedFields must be nil")]
#[case::undeclared(json!({"apiVersion": "example.com/v1", "metadata": {"name": "w", "namespace": "default"}, "spec": {"shape": 1}}), 500,
    "failed to create typed patch object (default/w; example.com/v1, Kind=Widget): .spec.shape: field not declared in schema")]
fn what_cannot_be_applied_is_told(#[case] object: Value, #[case] code: u16, #[case] message: &str) {
    let error = apply(&widget(true), None, &object, "a", false, None, T1).unwrap_err();
    assert_eq!((error.code.as_u16(), error.message.as_str()), (code, message));
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(live in spec(), wanted in spec()) {
        let mut object = with(live);
        update(&widget(true), None, &mut object, "creator", None, T1);
        let once = apply(&widget(true), Some(&object), &with(wanted.clone()), "a", true, None, T2).unwrap();
        let twice = applied(Some(&once), wanted, "a", T3).unwrap();
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn applying_something_and_then_nothing_leaves_what_others_own(theirs in spec(), mine in spec()) {
        let before = applied(None, theirs.clone(), "b", T1).unwrap();
        let with_mine = applied(Some(&before), mine, "a", T2);
        prop_assume!(with_mine.is_ok());
        let after = applied(Some(&with_mine.unwrap()), json!({}), "a", T3).unwrap();
        let resource = widget(true);
        let node = Node::root(&resource.schema).field("spec");
        let (was, is) = (fields_of(node, &theirs), fields_of(node, &after["spec"]));
        prop_assert!(was.difference(&is).is_empty(), "lost {:?}", was.difference(&is));
        let left = is.difference(&was);
        // Only empty containers can be left: they carry nothing of anybody.
        for path in left.paths() {
            let mut value = &after["spec"];
            for element in &path {
                let Element::Field(name) = element else { panic!("left {path:?}") };
                value = &value[name];
            }
            prop_assert!(value.as_object().is_some_and(Map::is_empty), "left {path:?}");
        }
        prop_assert_eq!(fields(&after, "a"), json!({"f:spec": {}}));
    }

    #[test]
    fn an_unforced_apply_never_changes_what_others_own(theirs in spec(), mine in spec()) {
        let before = applied(None, theirs.clone(), "b", T1).unwrap();
        if let Ok(after) = applied(Some(&before), mine, "a", T2) {
            let resource = widget(true);
            let node = Node::root(&resource.schema);
            let changes = Comparison::of(node, &before, &after);
            let owned = FieldSet::decode(&fields(&before, "b")).unwrap_or_default();
            let touched = owned.intersection(&changes.modified.union(&changes.removed));
            prop_assert!(touched.is_empty(), "{touched:?}");
        }
    }
}
