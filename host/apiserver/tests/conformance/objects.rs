//! Objects come, change and go.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Lab, WIDGETS, config_map, has_condition, widget, widgets};

#[tokio::test]
async fn a_created_object_has_what_the_server_gives_it() {
    let lab = Lab::new();
    lab.widgets().await;
    let created = lab.post(WIDGETS, widget("a")).await.ok();
    let meta = &created["metadata"];
    assert_eq!(meta["namespace"], "default");
    assert_eq!(meta["generation"], 1);
    assert_eq!(created["spec"]["color"], "red");
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(meta[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {created}");
    }
    assert_eq!(lab.get(&format!("{WIDGETS}/a")).await.ok(), created);
    let list = lab.get(WIDGETS).await.ok();
    assert_eq!(list["kind"], "WidgetList");
    assert_eq!(list["items"][0], created);
}

#[tokio::test]
async fn an_object_is_updated_once_per_version_of_it() {
    let lab = Lab::new();
    let mut first = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    first["data"] = json!({"k": "1"});
    let second = lab.put(&format!("{CONFIG_MAPS}/a"), first.clone()).await.ok();
    assert_ne!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    first["data"] = json!({"k": "2"});
    let late = lab.put(&format!("{CONFIG_MAPS}/a"), first).await;
    let message = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your \
                   changes to the latest version and try again";
    assert_eq!(late.refusal(), (409, "Conflict", message));
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_version() {
    let lab = Lab::new();
    let first = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(lab.put(&path, first.clone()).await.ok(), first);
    assert_eq!(lab.patch("merge", &path, json!({})).await.ok(), first);
}

#[tokio::test]
async fn a_definition_says_that_it_is_served_and_takes_its_objects_with_it() {
    let lab = Lab::new();
    lab.widgets().await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let found = lab.get(definition).await.ok();
    assert!(has_condition(&found, "NamesAccepted", "True"));
    assert_eq!(found["status"]["storedVersions"], json!(["v1"]));
    lab.post(WIDGETS, widget("a")).await.ok();
    lab.delete(definition, Value::Null).await.ok();
    lab.gone(definition).await;
    assert_eq!(lab.get(WIDGETS).await.code, 404);
    lab.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets()).await.ok();
    let again = lab.until(WIDGETS, |answer| answer.code == 200).await;
    assert_eq!(again.body["items"], json!([]));
}
