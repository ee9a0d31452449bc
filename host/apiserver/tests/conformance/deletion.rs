//! Objects go: at once, after finalizers, with their owners, with their namespace.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Lab, WIDGETS, config_map, has_condition, widget};

fn path(name: &str) -> String {
    format!("{CONFIG_MAPS}/{name}")
}

async fn create(lab: &Lab, name: &str, meta: Value) -> Value {
    let mut object = config_map(name);
    for (field, value) in meta.as_object().unwrap() {
        object["metadata"][field] = value.clone();
    }
    lab.post(CONFIG_MAPS, object).await.ok()
}

fn owner(object: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "blockOwnerDeletion": blocks,
    })
}

async fn owned(lab: &Lab, name: &str, owners: Value) -> Value {
    create(lab, name, json!({"ownerReferences": owners})).await
}

#[tokio::test]
async fn a_deletion_says_what_is_gone() {
    let lab = Lab::new();
    lab.widgets().await;
    let uid = lab.post(WIDGETS, widget("a")).await.ok()["metadata"]["uid"].clone();
    let gone = lab.delete(&format!("{WIDGETS}/a"), Value::Null).await.ok();
    assert_eq!(
        (&gone["kind"], &gone["status"]),
        (&json!("Status"), &json!("Success"))
    );
    assert_eq!(
        gone["details"],
        json!({"name": "a", "group": "example.com", "kind": "widgets", "uid": uid})
    );
    assert_eq!(lab.delete(&format!("{WIDGETS}/a"), Value::Null).await.code, 404);
}

#[tokio::test]
async fn a_deletion_may_be_for_one_very_object_only() {
    let lab = Lab::new();
    let object = create(&lab, "a", json!({})).await;
    let conditions = [json!({"uid": "else"}), json!({"resourceVersion": "1"})];
    for preconditions in conditions {
        let refused = lab
            .delete(&path("a"), json!({"preconditions": preconditions}))
            .await;
        let (code, reason, message) = refused.refusal();
        assert_eq!((code, reason), (409, "Conflict"));
        assert!(
            message.starts_with("Operation cannot be fulfilled on "),
            "{message}"
        );
        assert!(message.contains(" in the precondition ("), "{message}");
    }
    let meta = &object["metadata"];
    let right = json!({"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}});
    lab.delete(&path("a"), right).await.ok();
    lab.gone(&path("a")).await;
}

#[tokio::test]
async fn finalizers_keep_an_object_until_the_last_is_gone() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut object = widget("a");
    object["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    lab.post(WIDGETS, object).await.ok();
    let path = format!("{WIDGETS}/a");
    let marked = lab.delete(&path, Value::Null).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(marked["metadata"]["generation"], 2);
    let again = lab.delete(&path, Value::Null).await.ok();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        marked["metadata"]["resourceVersion"]
    );

    let more = json!({"metadata": {"finalizers": ["example.com/one", "example.com/three"]}});
    let refused = lab.patch("merge", &path, more).await;
    let message = "Widget.example.com \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added \
                   if the object is being deleted, found new finalizers []string{\"example.com/three\"}";
    assert_eq!(refused.refusal(), (422, "Invalid", message));

    lab.patch(
        "merge",
        &path,
        json!({"metadata": {"finalizers": ["example.com/one"]}}),
    )
    .await
    .ok();
    assert_eq!(lab.get(&path).await.code, 200);
    lab.patch("merge", &path, json!({"metadata": {"finalizers": null}}))
        .await
        .ok();
    assert_eq!(lab.get(&path).await.code, 404);
}

#[tokio::test]
async fn a_collection_goes_by_selector() {
    let lab = Lab::new();
    for (name, label) in [("a", "1"), ("b", "1"), ("c", "2")] {
        create(&lab, name, json!({"labels": {"l": label}})).await;
    }
    lab.delete(&format!("{CONFIG_MAPS}?labelSelector=l%3D1"), Value::Null)
        .await
        .ok();
    let list = lab.get(&format!("{CONFIG_MAPS}?labelSelector=l")).await.ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn dependents_follow_their_last_owner() {
    let lab = Lab::new();
    let (one, two) = (
        create(&lab, "one", json!({})).await,
        create(&lab, "two", json!({})).await,
    );
    owned(&lab, "child", json!([owner(&one, true)])).await;
    let child = owned(&lab, "both", json!([owner(&one, true), owner(&two, true)])).await;
    owned(&lab, "grandchild", json!([owner(&child, true)])).await;
    lab.delete(&path("one"), Value::Null).await.ok();
    lab.gone(&path("child")).await;
    let both = path("both");
    let left = lab.until(&both, |answer| {
        answer.body["metadata"]["ownerReferences"]
            .as_array()
            .map(Vec::len)
            == Some(1)
    });
    assert_eq!(left.await.body["metadata"]["ownerReferences"][0]["name"], "two");
    lab.delete(&path("two"), Value::Null).await.ok();
    lab.gone(&path("both")).await;
    lab.gone(&path("grandchild")).await;
}

#[tokio::test]
async fn an_owner_that_is_not_the_one_named_counts_as_absent() {
    let lab = Lab::new();
    let here = create(&lab, "here", json!({})).await;
    let elsewhere = lab
        .post("/api/v1/namespaces/kube-public/configmaps", config_map("there"))
        .await
        .ok();
    let mut other = owner(&here, true);
    other["uid"] = json!("another");
    owned(&lab, "wrong-uid", json!([other])).await;
    owned(&lab, "wrong-namespace", json!([owner(&elsewhere, true)])).await;
    let unknown = json!({"apiVersion": "none.example.com/v1", "kind": "None", "name": "n", "uid": "u"});
    owned(&lab, "unknown-kind", json!([unknown])).await;
    lab.gone(&path("wrong-uid")).await;
    lab.gone(&path("wrong-namespace")).await;
    // Collected by now if it were to be: it came before the other's turn was over.
    owned(&lab, "later", json!([other])).await;
    lab.gone(&path("later")).await;
    assert_eq!(lab.get(&path("unknown-kind")).await.code, 200);
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_those_who_block_it() {
    let lab = Lab::new();
    let top = create(&lab, "top", json!({})).await;
    let owners = json!([owner(&top, true)]);
    create(
        &lab,
        "slow",
        json!({"ownerReferences": owners, "finalizers": ["example.com/slow"]}),
    )
    .await;
    owned(&lab, "free", json!([owner(&top, false)])).await;
    let marked = lab
        .delete(&path("top"), json!({"propagationPolicy": "Foreground"}))
        .await
        .ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let slow = path("slow");
    lab.until(&slow, |answer| {
        answer.body["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    lab.gone(&path("free")).await;
    assert_eq!(lab.get(&path("top")).await.code, 200);
    lab.patch("merge", &slow, json!({"metadata": {"finalizers": null}}))
        .await
        .ok();
    lab.gone(&path("top")).await;
}

#[tokio::test]
async fn orphans_stay_and_forget_their_owner() {
    let lab = Lab::new();
    let top = create(&lab, "top", json!({})).await;
    owned(&lab, "child", json!([owner(&top, true)])).await;
    lab.delete(&path("top"), json!({"propagationPolicy": "Orphan"}))
        .await
        .ok();
    lab.gone(&path("top")).await;
    assert_eq!(
        lab.get(&path("child")).await.ok()["metadata"].get("ownerReferences"),
        None
    );
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let lab = Lab::new();
    lab.widgets().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let created = lab.post("/api/v1/namespaces", namespace).await.ok();
    assert_eq!(created["status"]["phase"], "Active");
    assert_eq!(created["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    let (maps, things) = ("/api/v1/namespaces/n/configmaps", WIDGETS.replace("default", "n"));
    let mut kept = config_map("kept");
    kept["metadata"]["finalizers"] = json!(["example.com/x"]);
    lab.post(maps, kept).await.ok();
    lab.post(&things, widget("w")).await.ok();
    let going = lab.delete("/api/v1/namespaces/n", Value::Null).await.ok();
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = lab.post(maps, config_map("late")).await;
    let message = "configmaps \"late\" is forbidden: unable to create new content in namespace n because it is being \
                   terminated";
    assert_eq!(refused.refusal(), (403, "Forbidden", message));
    assert_eq!(
        refused.body["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    lab.gone(&format!("{things}/w")).await;
    lab.until("/api/v1/namespaces/n", |answer| {
        has_condition(&answer.body, "NamespaceContentRemaining", "True")
    })
    .await;
    lab.patch(
        "merge",
        &format!("{maps}/kept"),
        json!({"metadata": {"finalizers": null}}),
    )
    .await
    .ok();
    lab.gone("/api/v1/namespaces/n").await;
    assert_eq!(lab.post(maps, config_map("late")).await.code, 404);
}

#[tokio::test]
async fn the_first_namespaces_are_there_and_some_of_them_stay() {
    let lab = Lab::new();
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(lab.get(&format!("/api/v1/namespaces/{name}")).await.code, 200);
    }
    let refused = lab.delete("/api/v1/namespaces/default", Value::Null).await;
    let message = "namespaces \"default\" is forbidden: this namespace may not be deleted";
    assert_eq!(refused.refusal(), (403, "Forbidden", message));
}

#[tokio::test]
async fn a_definition_waits_for_its_objects() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut object = widget("a");
    object["metadata"]["finalizers"] = json!(["example.com/x"]);
    lab.post(WIDGETS, object).await.ok();
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    lab.delete(definition, Value::Null).await.ok();
    assert!(has_condition(
        &lab.get(definition).await.ok(),
        "Terminating",
        "True"
    ));
    let one = format!("{WIDGETS}/a");
    lab.until(&one, |answer| {
        answer.body["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    let refused = lab.post(WIDGETS, widget("b")).await;
    let message = "create not allowed while custom resource definition is terminating";
    assert_eq!(refused.refusal(), (405, "MethodNotAllowed", message));
    lab.patch("merge", &one, json!({"metadata": {"finalizers": null}}))
        .await
        .ok();
    lab.gone(definition).await;
}

#[tokio::test]
async fn a_pod_is_evicted_at_once_or_when_its_node_says_so() {
    let lab = Lab::new();
    let pod = |name: &str, node: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        })
    };
    let pods = "/api/v1/namespaces/default/pods";
    lab.post(pods, pod("free", Value::Null)).await.ok();
    let created = lab.post(pods, pod("bound", json!("n"))).await.ok();
    assert_eq!(created["status"]["phase"], "Pending");
    let eviction =
        |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    lab.post(&format!("{pods}/free/eviction"), eviction("free"))
        .await
        .ok();
    lab.gone(&format!("{pods}/free")).await;
    assert_eq!(
        lab.post(&format!("{pods}/bound/eviction"), eviction("bound"))
            .await
            .code,
        201
    );
    let marked = lab.get(&format!("{pods}/bound")).await.ok();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    lab.delete(&format!("{pods}/bound"), json!({"gracePeriodSeconds": 0}))
        .await
        .ok();
    lab.gone(&format!("{pods}/bound")).await;
}
