//! Loans in examples, and what holds for any of them.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn holder() -> Holder {
    Holder {
        installation: "lab".to_owned(),
        claim: ClaimId {
            namespace: "p-default".to_owned(),
            name: "one-cqhsw".to_owned(),
            uid: "u-1".to_owned(),
        },
    }
}

fn other() -> Holder {
    Holder {
        claim: ClaimId {
            uid: "u-2".to_owned(),
            ..holder().claim
        },
        ..holder()
    }
}

fn host() -> Value {
    json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {
            "name": "bare-metal-2", "namespace": "default", "uid": "h-2",
            "labels": {"role": "gpu"},
            "annotations": {"metal3.vcluster.com/ip-address": "192.168.100.11/24"},
        },
        "spec": {"online": false, "bmc": {"address": "redfish://x", "credentialsName": "bmc"}},
        "status": {"provisioning": {"state": "available"}},
    })
}

fn provision() -> Value {
    json!({
        "metadata": {"labels": {"metal3.vcluster.com/node-claim": "one-cqhsw"}},
        "spec": {
            "online": true,
            "image": {"url": "http://images/u", "checksum": "abc"},
            "userData": {"name": "boot-u-1", "namespace": "default"},
            "consumerRef": {"apiVersion": "management.loft.sh/v1", "kind": "NodeClaim", "name": "one-cqhsw"},
        },
    })
}

fn release() -> Value {
    json!({"spec": {"online": false, "image": null, "customDeploy": null, "userData": null, "metaData": null}})
}

fn taken() -> Value {
    borrow(&host(), &[&provision()], &holder(), Phase::Provision)
        .unwrap()
        .after
}

#[test]
fn change_and_record_are_one_patch() {
    let change = borrow(&host(), &[&provision()], &holder(), Phase::Provision).unwrap();
    let patch = change.merge_patch().unwrap();
    assert_eq!(patch["spec"], provision()["spec"]);
    let text = patch["metadata"]["annotations"][LOAN].as_str().unwrap();
    insta::assert_json_snapshot!(serde_json::from_str::<Value>(text).unwrap());
    let mut patched = host();
    json_merge(&mut patched, &patch);
    assert_eq!(patched, change.after);
}

#[test]
fn done_twice_is_done_once() {
    assert!(
        borrow(&taken(), &[&provision()], &holder(), Phase::Provision)
            .unwrap()
            .is_nothing()
    );
    let released = borrow(&taken(), &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    assert!(
        borrow(&released, &[&release()], &holder(), Phase::Release)
            .unwrap()
            .is_nothing()
    );
}

#[test]
fn a_host_comes_back_as_it_was_after_a_whole_life() {
    let released = borrow(&taken(), &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    assert_eq!(released["spec"].get("image"), None);
    assert!(is_held_by(&released, &holder()));
    let back = give_back(&released, &holder()).unwrap();
    assert_eq!(back.change.after, host());
    assert!(back.left.is_empty());
}

#[test]
fn a_host_registered_online_comes_back_online() {
    let mut online = host();
    online["spec"]["online"] = json!(true);
    let taken = borrow(&online, &[&provision()], &holder(), Phase::Provision)
        .unwrap()
        .after;
    let released = borrow(&taken, &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    assert_eq!(released["spec"]["online"], json!(false));
    assert_eq!(give_back(&released, &holder()).unwrap().change.after, online);
}

#[test]
fn what_only_the_release_touched_stays_as_it_set_it() {
    let mut dirty = taken();
    dirty["spec"]["metaData"] = json!({"name": "operators"});
    let released = borrow(&dirty, &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    let back = give_back(&released, &holder()).unwrap();
    assert_eq!(back.change.after, host());
}

#[test]
fn an_operators_change_is_left_to_them_and_told() {
    let mut edited = taken();
    edited["metadata"]["annotations"]["metal3.vcluster.com/ip-address"] = json!("192.168.100.99/24");
    edited["metadata"]["labels"]["metal3.vcluster.com/node-claim"] = json!("by-hand");
    edited["metadata"]["labels"]["rack"] = json!("7");
    let released = borrow(&edited, &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    let back = give_back(&released, &holder()).unwrap();
    let mut want = host();
    want["metadata"]["annotations"]["metal3.vcluster.com/ip-address"] = json!("192.168.100.99/24");
    want["metadata"]["labels"]["metal3.vcluster.com/node-claim"] = json!("by-hand");
    want["metadata"]["labels"]["rack"] = json!("7");
    assert_eq!(back.change.after, want);
    let left: Vec<_> = back.left.iter().map(ToString::to_string).collect();
    assert_eq!(left, ["/metadata/labels/metal3.vcluster.com~1node-claim"]);
}

#[test]
fn a_consumer_that_came_meanwhile_is_never_written_over() {
    let mut stolen = taken();
    stolen["spec"]["consumerRef"] = json!({"kind": "Metal3Machine", "name": "m"});
    let refused = borrow(&stolen, &[&provision()], &holder(), Phase::Provision).unwrap_err();
    assert_eq!(refused.code(), "HeldByOther");
    let released = borrow(
        &stolen,
        &[&release(), &json!({"spec": {"consumerRef": null}})],
        &holder(),
        Phase::Release,
    );
    let back = give_back(&released.unwrap().after, &holder()).unwrap();
    assert_eq!(
        back.change.after["spec"]["consumerRef"],
        json!({"kind": "Metal3Machine", "name": "m"})
    );
    assert_eq!(back.left.len(), 1);
}

#[test]
fn our_own_image_is_never_what_stood_there() {
    let mut second = provision();
    second["spec"]["image"]["url"] = json!("http://images/v");
    let again = borrow(&taken(), &[&second], &holder(), Phase::Provision)
        .unwrap()
        .after;
    assert_eq!(give_back(&again, &holder()).unwrap().change.after, host());
}

#[test]
fn a_map_that_was_cleared_and_filled_again_comes_back_empty() {
    let object = json!({"metadata": {"name": "t"}, "spec": {"k": {}}});
    let cleared = borrow(
        &object,
        &[&json!({"spec": {"k": null}})],
        &holder(),
        Phase::Provision,
    )
    .unwrap()
    .after;
    let filled = borrow(
        &cleared,
        &[&json!({"spec": {"k": {"a": 0}}})],
        &holder(),
        Phase::Provision,
    )
    .unwrap()
    .after;
    assert_eq!(give_back(&filled, &holder()).unwrap().change.after, object);
}

#[rstest]
#[case::a_status(json!({"status": {"x": 1}}))]
#[case::a_finalizer(json!({"metadata": {"finalizers": ["x"]}}))]
#[case::an_owner(json!({"metadata": {"ownerReferences": null}}))]
#[case::a_name(json!({"metadata": {"name": "x"}}))]
#[case::all_labels(json!({"metadata": {"labels": null}}))]
#[case::the_record(json!({"metadata": {"annotations": {"hostler.dev/loan": null}}}))]
#[case::the_kind(json!({"kind": "Secret"}))]
#[case::everything(json!(null))]
fn nobody_borrows(#[case] patch: Value) {
    let refused = borrow(&host(), &[&patch], &holder(), Phase::Release).unwrap_err();
    assert_eq!(refused.code(), "DriverOutOfScope", "{refused}");
}

#[rstest]
#[case::another_claim(taken(), other(), "HeldByClaim")]
#[case::another_installation(taken(), Holder { installation: "east".to_owned(), ..holder() }, "HeldByClaim")]
#[case::another_controller(json!({"spec": {"consumerRef": {"name": "m"}}}), holder(), "HeldByOther")]
#[case::an_unreadable_record(json!({"metadata": {"annotations": {"hostler.dev/loan": "{"}}}), holder(), "LoanUnreadable")]
fn an_object_is_not_taken_from(#[case] object: Value, #[case] by: Holder, #[case] code: &str) {
    for phase in [Phase::Provision, Phase::Release] {
        match borrow(&object, &[&provision()], &by, phase) {
            Err(refused) => assert_eq!(refused.code(), code),
            // A release leaves a foreign holder alone and clears the rest.
            Ok(change) => assert_eq!(change.after["spec"]["consumerRef"], object["spec"]["consumerRef"]),
        }
    }
    let refused = borrow(&object, &[&provision()], &by, Phase::Provision).unwrap_err();
    assert!(refused.is_held());
    assert!(
        !refused.to_string().contains("one-cqhsw"),
        "names another tenant's claim: {refused}"
    );
}

#[test]
fn what_is_not_ours_is_not_given_back() {
    assert!(give_back(&taken(), &other()).is_err());
    assert!(give_back(&host(), &holder()).unwrap().change.is_nothing());
}

#[test]
fn marks_are_hidden_and_work_is_not() {
    let shown = hide(&taken());
    assert_eq!(shown["metadata"], host()["metadata"]);
    assert_eq!(shown["spec"].get("consumerRef"), None);
    assert_eq!(
        shown["spec"]["image"]["url"],
        json!("http://images/u"),
        "a machine that is told to boot an image is not free"
    );
    let released = borrow(&taken(), &[&release()], &holder(), Phase::Release)
        .unwrap()
        .after;
    assert_eq!(hide(&released), host());
}

#[test]
fn a_foreign_holder_is_not_hidden() {
    let mut stolen = taken();
    stolen["spec"]["consumerRef"] = json!({"kind": "Metal3Machine", "name": "m"});
    assert_eq!(hide(&stolen)["spec"]["consumerRef"]["name"], json!("m"));
}

fn json_merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            json_merge(&mut target[key.as_str()], change);
        }
    }
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..3_i64).prop_map(|n| json!(n)),
        "[xy]{1,2}".prop_map(Value::String),
        Just(json!(true)),
        Just(json!([1, {"a": null}])),
        Just(json!({})),
    ]
}

fn tree(nulls: bool) -> impl Strategy<Value = Value> {
    let leaf = if nulls {
        prop_oneof![3 => leaf(), 2 => Just(Value::Null)].boxed()
    } else {
        leaf().boxed()
    };
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop::collection::btree_map(prop_oneof!["[abc]", Just("imageRef".to_owned())], inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    })
}

fn object() -> impl Strategy<Value = Value> {
    let strings = || prop::option::of(prop::collection::btree_map("[abc]", "[xy]", 0..3));
    (tree(true), strings(), strings()).prop_map(|(spec, labels, annotations)| {
        let mut object = json!({"kind": "Thing", "metadata": {"name": "t"}, "spec": {"k": spec}});
        if let Some(labels) = labels {
            object["metadata"]["labels"] = json!(labels);
        }
        if let Some(annotations) = annotations {
            object["metadata"]["annotations"] = json!(annotations);
        }
        object
    })
}

fn patch() -> impl Strategy<Value = Value> {
    let strings = || prop::collection::btree_map("[abc]", prop::option::of("[xz]"), 0..3);
    (tree(true), strings(), strings()).prop_map(|(spec, labels, annotations)| {
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"k": spec}})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn given_back_is_as_it_was(object in object(), patches in prop::collection::vec(patch(), 0..5)) {
        let mut now = object.clone();
        for patch in &patches {
            if let Ok(change) = borrow(&now, &[patch], &holder(), Phase::Provision) {
                if let Some(merge) = change.merge_patch() {
                    let mut patched = now.clone();
                    json_merge(&mut patched, &merge);
                    prop_assert_eq!(&patched, change.after());
                }
                now = change.after;
            }
        }
        let back = give_back(&now, &holder()).unwrap();
        prop_assert!(back.left.is_empty(), "left {:?}", back.left);
        prop_assert_eq!(back.change.after, object);
    }

    #[test]
    fn what_others_change_meanwhile_stays(
        object in object(),
        patches in prop::collection::vec(patch(), 1..4),
        edits in prop::collection::vec((prop::collection::vec("[abc]", 1..3), 0..99_u32), 0..5),
    ) {
        let mut now = object.clone();
        for patch in &patches {
            if let Ok(change) = borrow(&now, &[patch], &holder(), Phase::Provision) {
                now = change.after;
            }
        }
        let record = record(&now).unwrap();
        let mut want = object.clone();
        for (keys, value) in &edits {
            let place = keys.iter().fold(Pointer::parse("/spec/k").unwrap(), |at, key| at.child(key));
            let value = json!(format!("theirs-{value}"));
            let inside = record.iter().flat_map(|r| &r.places).any(|known| known.path.contains(&place) || place.contains(&known.path));
            // Edits that take a whole map, or reach into one that is borrowed whole, have no single right answer.
            let is_map = |object: &Value| place.get(object).is_some_and(Value::is_object);
            let mut edited = now.clone();
            if inside || is_map(&now) || is_map(&want) || !place.set(&mut edited, Some(&value), |_| {}) {
                continue;
            }
            if place.set(&mut want, Some(&value), |_| {}) {
                now = edited;
            }
        }
        prop_assert_eq!(give_back(&now, &holder()).unwrap().change.after, want);
    }

    #[test]
    fn a_second_holder_never_changes_a_lent_object(object in object(), one in patch(), two in patch()) {
        if let Ok(change) = borrow(&object, &[&one], &holder(), Phase::Provision) {
            prop_assert!(borrow(change.after(), &[&two], &other(), Phase::Provision).is_err());
            prop_assert!(borrow(change.after(), &[&two], &other(), Phase::Release).is_err());
            prop_assert!(give_back(change.after(), &other()).is_err());
        }
    }
}
