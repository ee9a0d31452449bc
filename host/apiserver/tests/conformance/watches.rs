//! Watches: everything once, in order, until time is up or history is lost.

use std::collections::BTreeMap;

use hostler_apiserver::{Options, Store};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Lab, WIDGETS, config_map, version, widget};

fn told(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events
        .iter()
        .map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_watch_without_a_version_shows_what_there_is_and_then_what_happens() {
    let lab = Lab::with(Options::new(Store::Memory));
    lab.post(CONFIG_MAPS, config_map("old")).await.ok();
    for query in ["", "resourceVersion=0"] {
        let mut watch = lab.watch(CONFIG_MAPS, query).await;
        lab.post(CONFIG_MAPS, config_map("new")).await.ok();
        lab.patch(
            "merge",
            &format!("{CONFIG_MAPS}/new"),
            json!({"data": {"k": "v"}}),
        )
        .await
        .ok();
        let deleted = lab.delete(&format!("{CONFIG_MAPS}/new"), Value::Null).await.ok();
        assert_eq!(deleted["status"], "Success");
        let expected = [
            ("ADDED", "old"),
            ("ADDED", "new"),
            ("MODIFIED", "new"),
            ("DELETED", "new"),
        ];
        assert_eq!(watch.told(4).await, told(&expected));
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_the_version_it_names() {
    let lab = Lab::with(Options::new(Store::Memory));
    let first = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    lab.post(CONFIG_MAPS, config_map("b")).await.ok();
    lab.delete(&format!("{CONFIG_MAPS}/a"), Value::Null).await.ok();
    let mut watch = lab
        .watch(CONFIG_MAPS, &format!("resourceVersion={}", version(&first)))
        .await;
    assert_eq!(watch.told(2).await, told(&[("ADDED", "b"), ("DELETED", "a")]));
}

#[tokio::test]
async fn a_deletion_is_told_at_a_version_of_its_own() {
    let lab = Lab::with(Options::new(Store::Memory));
    let created = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let mut watch = lab
        .watch(CONFIG_MAPS, &format!("resourceVersion={}", version(&created)))
        .await;
    lab.delete(&format!("{CONFIG_MAPS}/a"), Value::Null).await.ok();
    let event = watch.next().await.unwrap();
    assert!(version(&event["object"]) > version(&created));
    assert_eq!(event["object"]["metadata"]["uid"], created["metadata"]["uid"]);
    // A list after that shows a version at least as new, from which nothing is missed.
    assert!(version(&lab.get(CONFIG_MAPS).await.ok()) >= version(&event["object"]));
}

#[tokio::test]
async fn a_watch_looks_through_its_selector() {
    let lab = Lab::with(Options::new(Store::Memory));
    let path = format!("{CONFIG_MAPS}/a");
    lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let mut watch = lab.watch(CONFIG_MAPS, "labelSelector=on%3Dyes").await;
    let label = |value: Value| json!({"metadata": {"labels": {"on": value}}, "data": {"k": value}});
    for value in [json!("yes"), json!("no"), json!("yes"), Value::Null] {
        lab.patch("merge", &path, label(value)).await.ok();
    }
    let expected = [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a"), ("DELETED", "a")];
    let mut events = Vec::new();
    for _ in 0..4 {
        events.push(watch.next().await.unwrap());
    }
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, expected.map(|(kind, _)| kind));
    // What leaves is shown as it was, at the version of its leaving.
    assert_eq!(events[1]["object"]["data"]["k"], "yes");
    assert!(version(&events[1]["object"]) > version(&events[0]["object"]));

    let mut one = lab.watch(CONFIG_MAPS, "fieldSelector=metadata.name%3Db").await;
    lab.post(CONFIG_MAPS, config_map("c")).await.ok();
    lab.post(CONFIG_MAPS, config_map("b")).await.ok();
    assert_eq!(one.told(1).await, told(&[("ADDED", "b")]));
}

#[tokio::test]
async fn a_watch_sees_its_namespace_only() {
    let lab = Lab::with(Options::new(Store::Memory));
    let mut all = lab.watch("/api/v1/configmaps", "").await;
    let mut here = lab.watch(CONFIG_MAPS, "").await;
    lab.post("/api/v1/namespaces/kube-public/configmaps", config_map("there"))
        .await
        .ok();
    lab.post(CONFIG_MAPS, config_map("here")).await.ok();
    assert_eq!(all.told(2).await, told(&[("ADDED", "there"), ("ADDED", "here")]));
    assert_eq!(here.told(1).await, told(&[("ADDED", "here")]));
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark() {
    let lab = Lab::with(Options::new(Store::Memory));
    lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = lab.watch(CONFIG_MAPS, query).await;
    assert_eq!(watch.told(1).await, told(&[("ADDED", "a")]));
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["kind"], "ConfigMap");
    assert_eq!(
        end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(version(&end["object"]), version(&lab.get(CONFIG_MAPS).await.ok()));
    lab.post(CONFIG_MAPS, config_map("b")).await.ok();
    assert_eq!(watch.told(1).await, told(&[("ADDED", "b")]));
    let query = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut news = lab.watch(CONFIG_MAPS, query).await;
    lab.post(CONFIG_MAPS, config_map("c")).await.ok();
    assert_eq!(news.told(1).await, told(&[("ADDED", "c")]));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_how_far_it_is_and_ends_in_time() {
    let lab = Lab::with(Options::new(Store::Memory));
    let mut watch = lab
        .watch(CONFIG_MAPS, "allowWatchBookmarks=true&timeoutSeconds=90")
        .await;
    let there = lab
        .post(
            "/api/v1/namespaces/kube-public/secrets",
            json!({"metadata": {"name": "s"}}),
        )
        .await
        .ok();
    for _ in 0..2 {
        let mark = watch.next().await.unwrap();
        assert_eq!(mark["type"], "BOOKMARK");
        assert!(version(&mark["object"]) >= version(&there));
        assert_eq!(mark["object"]["metadata"].get("annotations"), None);
    }
    assert_eq!(watch.next().await, None);
    let mut silent = lab.watch(CONFIG_MAPS, "timeoutSeconds=90").await;
    assert_eq!(silent.next().await, None);
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_is_told_so() {
    let lab = Lab::with(Options {
        window: 2,
        ..Options::new(Store::Memory)
    });
    let first = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let mut slow = lab
        .watch(CONFIG_MAPS, &format!("resourceVersion={}", version(&first)))
        .await;
    for name in ["b", "c", "d"] {
        lab.post(CONFIG_MAPS, config_map(name)).await.ok();
    }
    let mut late = lab
        .watch(CONFIG_MAPS, &format!("resourceVersion={}", version(&first)))
        .await;
    for watch in [&mut slow, &mut late] {
        let event = watch.next().await.unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["kind"]),
            (&json!("ERROR"), &json!("Status"))
        );
        assert_eq!(
            (&event["object"]["code"], &event["object"]["reason"]),
            (&json!(410), &json!("Expired"))
        );
        assert!(
            event["object"]["message"]
                .as_str()
                .unwrap()
                .starts_with("too old resource version: ")
        );
        assert_eq!(watch.next().await, None);
    }
}

#[tokio::test]
async fn a_watch_shows_rows() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(WIDGETS, widget("a")).await.ok();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut watch = lab.watch_as(WIDGETS, "", accept).await;
    lab.post(WIDGETS, widget("b")).await.ok();
    let (first, second) = (watch.next().await.unwrap(), watch.next().await.unwrap());
    assert_eq!(first["object"]["columnDefinitions"][1]["name"], "Size");
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    assert_eq!(second["object"]["rows"][0]["cells"], json!(["b", 1]));
}

#[tokio::test]
async fn a_watch_ends_with_its_definition_and_with_its_cluster() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut watch = lab.watch(WIDGETS, "").await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    lab.delete(definition, Value::Null).await.ok();
    assert_eq!(watch.next().await, None);
    lab.server.create_cluster("tenant").await.unwrap();
    let tenant = lab.of("tenant");
    let mut watch = tenant.watch("/api/v1/pods", "").await;
    tenant.server.delete_cluster("tenant").await.unwrap();
    assert_eq!(watch.next().await, None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever lists and then watches from there knows, at every version told, what a list would show.
    #[test]
    fn a_list_and_a_watch_add_up(
        before in prop::collection::vec(0_u8..6, 0..12),
        after in prop::collection::vec(0_u8..6, 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lab = Lab::with(Options::new(Store::Memory));
            for number in before {
                turn(&lab, number).await;
            }
            let list = lab.get(CONFIG_MAPS).await.ok();
            let mut known: BTreeMap<String, Value> = BTreeMap::new();
            for item in list["items"].as_array().unwrap() {
                known.insert(item["metadata"]["name"].as_str().unwrap().to_owned(), untyped(item.clone()));
            }
            let mut watch = lab.watch(CONFIG_MAPS, &format!("resourceVersion={}", version(&list))).await;
            let mut changes = 0;
            for number in after {
                changes += turn(&lab, number).await;
            }
            let mut last = version(&list);
            for _ in 0..changes {
                let event = watch.next().await.unwrap();
                let object = untyped(event["object"].clone());
                assert!(version(&object) > last);
                last = version(&object);
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let kind = match (event["type"].as_str().unwrap(), known.contains_key(&name)) {
                    ("DELETED", true) => known.remove(&name),
                    ("ADDED", false) | ("MODIFIED", true) => known.insert(name, object),
                    (kind, is_known) => panic!("{kind} of {name}, known: {is_known}"),
                };
                drop(kind);
                let query = format!("resourceVersion={last}&resourceVersionMatch=Exact");
                let then = lab.get(&format!("{CONFIG_MAPS}?{query}")).await.ok();
                let items = then["items"].as_array().unwrap().iter().cloned().map(untyped);
                assert_eq!(items.collect::<Vec<_>>(), known.values().cloned().collect::<Vec<_>>());
            }
        });
    }
}

/// An object as it stands in a list.
fn untyped(mut object: Value) -> Value {
    for field in ["apiVersion", "kind"] {
        object.as_object_mut().unwrap().shift_remove(field);
    }
    object
}

/// Creates, changes or deletes an object by turns; how many changes that made.
async fn turn(lab: &Lab, number: u8) -> usize {
    let path = format!("{CONFIG_MAPS}/n{number}");
    let found = lab.get(&path).await;
    if found.code == 404 {
        lab.post(CONFIG_MAPS, config_map(&format!("n{number}")))
            .await
            .ok();
    } else if found.body.get("data").is_none() {
        lab.patch("merge", &path, json!({"data": {"k": "v"}})).await.ok();
    } else {
        lab.delete(&path, Value::Null).await.ok();
    }
    1
}
