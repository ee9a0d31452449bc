//! Lists: pages of one moment, selectors, versions, and the forms in which objects are shown.

use hostler_apiserver::{Options, Store};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Lab, WIDGETS, config_map, names, version, widget};

/// Config maps `a`, `b`, … with a label each.
async fn letters(lab: &Lab, count: u8) {
    for letter in (b'a'..).take(count.into()).map(char::from) {
        let mut object = config_map(&letter.to_string());
        object["metadata"]["labels"] = json!({"letter": letter, "set": "all"});
        lab.post(CONFIG_MAPS, object).await.ok();
    }
}

#[tokio::test]
async fn pages_show_the_moment_of_the_first() {
    let lab = Lab::with(Options::new(Store::Memory));
    letters(&lab, 5).await;
    let first = lab.get(&format!("{CONFIG_MAPS}?limit=2")).await.ok();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    lab.delete(&format!("{CONFIG_MAPS}/c"), Value::Null).await.ok();
    lab.post(CONFIG_MAPS, config_map("bb")).await.ok();
    lab.patch(
        "merge",
        &format!("{CONFIG_MAPS}/d"),
        json!({"data": {"k": "new"}}),
    )
    .await
    .ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = lab
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await
        .ok();
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["items"][1].get("data"), None);
    assert_eq!(version(&second), version(&first));
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = lab
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await
        .ok();
    assert_eq!(names(&third), ["e"]);
    assert_eq!(third["metadata"].get("continue"), None);
    assert_eq!(third["metadata"].get("remainingItemCount"), None);
}

#[tokio::test]
async fn a_page_whose_moment_is_forgotten_says_how_to_go_on() {
    let lab = Lab::with(Options {
        window: 2,
        ..Options::new(Store::Memory)
    });
    letters(&lab, 3).await;
    let first = lab.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok();
    for name in ["x", "y", "z"] {
        lab.post(CONFIG_MAPS, config_map(name)).await.ok();
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let gone = lab.get(&format!("{CONFIG_MAPS}?limit=9&continue={token}")).await;
    let (code, reason, message) = gone.refusal();
    assert_eq!((code, reason), (410, "Expired"));
    assert!(
        message
            .starts_with("The provided continue parameter is too old to display a consistent list result.")
    );
    let token = gone.body["metadata"]["continue"].as_str().unwrap();
    let rest = lab
        .get(&format!("{CONFIG_MAPS}?limit=9&continue={token}"))
        .await
        .ok();
    assert_eq!(names(&rest), ["b", "c", "x", "y", "z"]);
    let nonsense = lab.get(&format!("{CONFIG_MAPS}?continue=nonsense")).await;
    assert_eq!(nonsense.refusal().0, 400);
}

#[rstest]
#[case("labelSelector=letter%3Da", &["a"])]
#[case("labelSelector=letter%20in%20(a,b)", &["a", "b"])]
#[case("labelSelector=letter%20notin%20(a,b),set", &["c"])]
#[case("labelSelector=!letter", &[])]
#[case("fieldSelector=metadata.name%3Dc", &["c"])]
#[case("fieldSelector=metadata.name!%3Dc", &["a", "b"])]
#[case("fieldSelector=metadata.name%3Dc&labelSelector=letter%3Da", &[])]
#[tokio::test]
async fn selectors_select(#[case] query: &str, #[case] expected: &[&str]) {
    let lab = Lab::with(Options::new(Store::Memory));
    letters(&lab, 3).await;
    let list = lab.get(&format!("{CONFIG_MAPS}?{query}")).await.ok();
    assert_eq!(names(&list), expected);
}

#[tokio::test]
async fn a_selector_that_cannot_be_read_is_refused() {
    let lab = Lab::with(Options::new(Store::Memory));
    for query in [
        "labelSelector=a%20in%20b",
        "labelSelector=%3D",
        "fieldSelector=data.x%3D1",
        "fieldSelector=x",
    ] {
        assert_eq!(
            lab.get(&format!("{CONFIG_MAPS}?{query}")).await.refusal().1,
            "BadRequest",
            "{query}"
        );
    }
}

#[tokio::test]
async fn a_custom_kind_offers_fields_of_its_own() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut blue = widget("blue");
    blue["spec"]["color"] = json!("blue");
    for object in [blue, widget("red")] {
        lab.post(WIDGETS, object).await.ok();
    }
    let list = lab
        .get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue"))
        .await
        .ok();
    assert_eq!(names(&list), ["blue"]);
    let refused = lab.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await;
    assert_eq!(
        refused.refusal(),
        (400, "BadRequest", "field label not supported: spec.size")
    );
}

#[tokio::test]
async fn a_list_may_ask_for_a_moment() {
    let lab = Lab::with(Options::new(Store::Memory));
    letters(&lab, 2).await;
    let then = version(&lab.get(CONFIG_MAPS).await.ok());
    lab.post(CONFIG_MAPS, config_map("z")).await.ok();
    let exact = lab
        .get(&format!(
            "{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=Exact"
        ))
        .await
        .ok();
    assert_eq!((names(&exact), version(&exact)), (vec!["a", "b"], then));
    for query in [
        String::new(),
        "resourceVersion=0".to_owned(),
        format!("resourceVersion={then}"),
    ] {
        assert_eq!(
            names(&lab.get(&format!("{CONFIG_MAPS}?{query}")).await.ok()),
            ["a", "b", "z"],
            "{query}"
        );
    }
    let future = lab
        .get(&format!("{CONFIG_MAPS}?resourceVersion={}", then + 1000))
        .await;
    assert_eq!((future.refusal().0, future.refusal().1), (504, "Timeout"));
    assert_eq!(
        future.body["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "sendInitialEvents=true",
    ] {
        assert_eq!(
            lab.get(&format!("{CONFIG_MAPS}?{query}")).await.refusal().0,
            422,
            "{query}"
        );
    }
}

#[tokio::test]
async fn objects_are_shown_as_rows_or_by_their_metadata() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(WIDGETS, widget("a")).await.ok();
    let table = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let rows = lab.send("GET", WIDGETS, &table, Vec::new()).await.ok();
    assert_eq!(
        (&rows["kind"], &rows["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(
        (&rows["columnDefinitions"][1]["name"], &rows["rows"][0]["cells"]),
        (&json!("Size"), &json!(["a", 1]))
    );
    let one = lab
        .send("GET", &format!("{WIDGETS}/a"), &table, Vec::new())
        .await
        .ok();
    assert_eq!(one["rows"][0]["cells"], json!(["a", 1]));
    let missing = lab.send("GET", &format!("{WIDGETS}/b"), &table, Vec::new()).await;
    assert_eq!(missing.body["kind"], "Status");

    let partial = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    )];
    let list = lab.send("GET", WIDGETS, &partial, Vec::new()).await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(
        (&list["items"][0]["kind"], list["items"][0].get("spec")),
        (&json!("PartialObjectMetadata"), None)
    );
    let proto = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(
        lab.send("GET", WIDGETS, &proto, Vec::new()).await.refusal().0,
        406
    );
}

#[tokio::test]
async fn a_list_of_all_namespaces_shows_those_of_all() {
    let lab = Lab::with(Options::new(Store::Memory));
    letters(&lab, 1).await;
    lab.post("/api/v1/namespaces/kube-public/configmaps", config_map("p"))
        .await
        .ok();
    assert_eq!(names(&lab.get("/api/v1/configmaps").await.ok()), ["a", "p"]);
    assert_eq!(
        names(&lab.get("/api/v1/namespaces/nowhere/configmaps").await.ok()),
        [""; 0]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens between the pages, together they are the list of the first page's moment.
    #[test]
    fn pages_add_up_to_the_list_at_their_version(
        limit in 1_usize..5,
        before in prop::collection::vec(0_u8..12, 0..20),
        between in prop::collection::vec(0_u8..12, 0..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lab = Lab::with(Options::new(Store::Memory));
            for number in before {
                toggle(&lab, number).await;
            }
            let whole = lab.get(CONFIG_MAPS).await.ok();
            let (mut pages, mut token) = (Vec::new(), String::new());
            let mut between = between.into_iter();
            loop {
                let page = lab.get(&format!("{CONFIG_MAPS}?limit={limit}&continue={token}")).await.ok();
                pages.extend(page["items"].as_array().unwrap().iter().cloned());
                let Some(next) = page["metadata"]["continue"].as_str() else { break };
                token = next.to_owned();
                for number in between.by_ref().take(3) {
                    toggle(&lab, number).await;
                }
            }
            assert_eq!(Value::Array(pages), whole["items"]);
        });
    }
}

/// Creates an object, or changes or deletes it, by turns.
async fn toggle(lab: &Lab, number: u8) {
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
}
