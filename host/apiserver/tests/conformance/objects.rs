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
        assert!(
            meta[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field}: {created}"
        );
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
    assert_ne!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
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
    lab.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        widgets(),
    )
    .await
    .ok();
    let again = lab.until(WIDGETS, |answer| answer.code == 200).await;
    assert_eq!(again.body["items"], json!([]));
}

#[tokio::test]
async fn refusals_of_a_create_say_what_is_wrong() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(CONFIG_MAPS, config_map("taken")).await.ok();
    let with = |pointer: &str, value: Value| {
        let mut object = config_map("a");
        *object.pointer_mut(pointer).unwrap() = value;
        object
    };
    let named = |meta: Value| with("/metadata", meta);
    let cases = [
        (
            CONFIG_MAPS,
            config_map("taken"),
            409,
            "configmaps \"taken\" already exists",
        ),
        (
            CONFIG_MAPS,
            named(json!({})),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            CONFIG_MAPS,
            named(json!({"name": "a", "namespace": "other"})),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "/api/v1/namespaces/nowhere/configmaps",
            config_map("a"),
            404,
            "namespaces \"nowhere\" not found",
        ),
        (
            CONFIG_MAPS,
            named(json!({"name": "a", "resourceVersion": "1"})),
            500,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            CONFIG_MAPS,
            with("/apiVersion", json!("v2")),
            400,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            WIDGETS,
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": 11}}),
            422,
            "Widget.example.com \"a\" is invalid: spec.size: Invalid value: 11: spec.size in body should be less than or \
             equal to 10",
        ),
    ];
    for (path, object, code, message) in cases {
        let answer = lab.post(path, object).await;
        let (found, _, text) = answer.refusal();
        assert_eq!((found, text), (code, message));
    }
    let missing = lab.get(&format!("{WIDGETS}/a")).await;
    assert_eq!(
        missing.refusal(),
        (404, "NotFound", "widgets.example.com \"a\" not found")
    );
    assert_eq!(
        missing.body["details"],
        json!({"name": "a", "group": "example.com", "kind": "widgets"})
    );
}

#[tokio::test]
async fn a_name_is_generated_from_its_beginning() {
    let lab = Lab::new();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    let mut names = Vec::new();
    for _ in 0..3 {
        let created = lab.post(CONFIG_MAPS, object.clone()).await.ok();
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.len() == 7 && name.starts_with("x-"), "{name}");
        names.push(name);
    }
    names.dedup();
    assert_eq!(names.len(), 3);
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_and_keeps_nothing() {
    let lab = Lab::new();
    let path = format!("{CONFIG_MAPS}/a");
    let dry = lab
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("a"))
        .await
        .ok();
    assert!(!dry["metadata"]["uid"].as_str().unwrap().is_empty());
    lab.gone(&path).await;
    let created = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let changed = lab
        .patch(
            "merge",
            &format!("{path}?dryRun=All"),
            json!({"data": {"k": "v"}}),
        )
        .await
        .ok();
    assert_eq!(changed["data"]["k"], "v");
    lab.delete(&format!("{path}?dryRun=All"), Value::Null).await.ok();
    lab.delete(
        &path,
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}),
    )
    .await
    .ok();
    assert_eq!(lab.get(&path).await.ok(), created);
}

#[tokio::test]
async fn the_status_is_written_through_its_own_door_only() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut object = widget("a");
    object["status"] = json!({"ready": true});
    let created = lab.post(WIDGETS, object).await.ok();
    assert_eq!(created.get("status"), None);
    let path = format!("{WIDGETS}/a");
    let status = format!("{path}/status");

    let both = json!({"spec": {"size": 5}, "status": {"ready": true}, "metadata": {"labels": {"a": "b"}}});
    let spec = lab.patch("merge", &path, both.clone()).await.ok();
    assert_eq!((&spec["spec"]["size"], spec.get("status")), (&json!(5), None));
    assert_eq!(spec["metadata"]["generation"], 2);

    let other = json!({"spec": {"size": 7}, "status": {"ready": true}, "metadata": {"labels": {"c": "d"}}});
    let status = lab.patch("merge", &status, other).await.ok();
    assert_eq!(
        (&status["spec"]["size"], &status["status"]["ready"]),
        (&json!(5), &json!(true))
    );
    assert_eq!(status["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(status["metadata"]["generation"], 2);

    let labelled = lab
        .patch("merge", &path, json!({"metadata": {"labels": {"x": "y"}}}))
        .await
        .ok();
    assert_eq!(labelled["metadata"]["generation"], 2);
    assert_eq!(labelled["status"]["ready"], true);
}

#[tokio::test]
async fn what_the_server_gave_cannot_be_changed() {
    let lab = Lab::new();
    let created = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let patch = json!({"metadata": {
        "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 9, "deletionTimestamp": "2000-01-01T00:00:00Z",
        "labels": {"new": "1"},
    }});
    let changed = lab.patch("merge", &path, patch).await.ok();
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "generation"] {
        assert_eq!(changed["metadata"][field], created["metadata"][field], "{field}");
    }
    let other = lab
        .patch("merge", &path, json!({"metadata": {"uid": "else"}}))
        .await;
    let message = "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"else\": field is immutable";
    assert_eq!(other.refusal(), (422, "Invalid", message));
    let mut renamed = created;
    renamed["metadata"]["name"] = json!("b");
    let message = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!(
        lab.put(&path, renamed).await.refusal(),
        (400, "BadRequest", message)
    );
}

#[tokio::test]
async fn a_patch_comes_in_four_forms() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    lab.post(WIDGETS, widget("a")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let json_patch = json!([{"op": "add", "path": "/data", "value": {"k": "1"}}]);
    assert_eq!(
        lab.patch("json", &path, json_patch).await.ok()["data"],
        json!({"k": "1"})
    );
    let merged = lab
        .patch("merge", &path, json!({"data": {"k": null, "l": "2"}}))
        .await
        .ok();
    assert_eq!(merged["data"], json!({"l": "2"}));
    let strategic = lab
        .patch("strategic-merge", &path, json!({"data": {"m": "3"}}))
        .await
        .ok();
    assert_eq!(strategic["data"], json!({"l": "2", "m": "3"}));
    let strategic = lab
        .patch("strategic-merge", &format!("{WIDGETS}/a"), json!({}))
        .await;
    let message = "the body of the request was in an unknown format - accepted media types include: \
                   application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    assert_eq!(strategic.refusal(), (415, "UnsupportedMediaType", message));

    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}, "data": {"k": "v"}});
    let new = format!("{CONFIG_MAPS}/new");
    let message =
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
    assert_eq!(
        lab.patch("apply", &new, applied.clone()).await.refusal(),
        (422, "Invalid", message)
    );
    let created = lab
        .patch("apply", &format!("{new}?fieldManager=me"), applied.clone())
        .await;
    assert_eq!(created.code, 201);
    let again = lab
        .patch("apply", &format!("{new}?fieldManager=me"), applied)
        .await;
    assert_eq!((again.code, &again.body), (200, &created.body));
    assert_eq!(created.body["metadata"]["managedFields"][0]["manager"], "me");
    assert_eq!(
        lab.patch("merge", &format!("{CONFIG_MAPS}/none"), json!({}))
            .await
            .code,
        404
    );
}

#[tokio::test]
async fn a_patch_may_say_which_version_it_is_for() {
    let lab = Lab::new();
    let first = lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let version = &first["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {"k": "1"}});
    lab.patch("merge", &path, patch.clone()).await.ok();
    assert_eq!(lab.patch("merge", &path, patch).await.refusal().0, 409);
}

#[tokio::test]
async fn many_patches_at_once_all_arrive() {
    let lab = Lab::new();
    lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let patches = (0..50).map(|number| {
        let (lab, path) = (&lab, &path);
        async move {
            lab.patch("merge", path, json!({"data": {format!("k{number}"): "v"}}))
                .await
                .ok()
        }
    });
    futures::future::join_all(patches).await;
    assert_eq!(lab.get(&path).await.ok()["data"].as_object().unwrap().len(), 50);
}

#[tokio::test]
async fn unknown_fields_are_dropped_told_or_refused() {
    let lab = Lab::new();
    lab.widgets().await;
    let mut object = widget("a");
    object["spec"]["nope"] = json!(1);
    let silent = lab
        .post(
            &format!("{WIDGETS}?fieldValidation=Ignore&dryRun=All"),
            object.clone(),
        )
        .await;
    assert_eq!((silent.code, silent.warnings.len()), (201, 0));
    assert_eq!(silent.body["spec"].get("nope"), None);
    let told = lab.post(&format!("{WIDGETS}?dryRun=All"), object.clone()).await;
    assert_eq!(told.warnings, ["299 - \"unknown field \\\"spec.nope\\\"\""]);
    let refused = lab
        .post(&format!("{WIDGETS}?fieldValidation=Strict"), object)
        .await;
    let message = "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \
                   \"spec.nope\"";
    assert_eq!(refused.refusal(), (400, "BadRequest", message));
}

#[tokio::test]
async fn a_custom_object_is_shown_in_every_served_version() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(WIDGETS, widget("a")).await.ok();
    let old = WIDGETS.replace("/v1/", "/v1beta1/");
    let mut shown = lab.get(&format!("{old}/a")).await.ok();
    assert_eq!(shown["apiVersion"], "example.com/v1beta1");
    assert_eq!(
        lab.get(&old).await.ok()["items"][0]["apiVersion"],
        "example.com/v1beta1"
    );
    shown["spec"]["size"] = json!(3);
    assert_eq!(
        lab.put(&format!("{old}/a"), shown).await.ok()["apiVersion"],
        "example.com/v1beta1"
    );
    let now = lab.get(&format!("{WIDGETS}/a")).await.ok();
    assert_eq!(
        (&now["apiVersion"], &now["spec"]["size"]),
        (&json!("example.com/v1"), &json!(3))
    );
}

#[tokio::test]
async fn an_update_of_a_custom_object_must_say_which_version_it_is_for() {
    let lab = Lab::new();
    lab.widgets().await;
    lab.post(WIDGETS, widget("a")).await.ok();
    let message = "widgets.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified \
                   for an update";
    assert_eq!(
        lab.put(&format!("{WIDGETS}/a"), widget("a")).await.refusal(),
        (422, "Invalid", message)
    );
    lab.post(CONFIG_MAPS, config_map("a")).await.ok();
    lab.put(&format!("{CONFIG_MAPS}/a"), config_map("a")).await.ok();
}

#[tokio::test]
async fn events_have_two_shapes_of_one_object() {
    let lab = Lab::new();
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Because", "note": "hello",
        "action": "Testing", "reportingController": "me", "reportingInstance": "me-1",
        "regarding": {"kind": "Node", "name": "n"},
    });
    lab.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
        .await
        .ok();
    let core = lab.get("/api/v1/namespaces/default/events/e").await.ok();
    assert_eq!(
        (&core["message"], &core["involvedObject"]["name"]),
        (&json!("hello"), &json!("n"))
    );
    let selected = lab
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dn")
        .await
        .ok();
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    let new = lab.get("/apis/events.k8s.io/v1/events").await.ok();
    assert_eq!(
        (&new["items"][0]["note"], &new["apiVersion"]),
        (&json!("hello"), &json!("events.k8s.io/v1"))
    );
}

#[tokio::test]
async fn what_is_not_served_is_not_found() {
    let lab = Lab::new();
    for path in [
        "/apis/none.example.com/v1/things",
        "/api/v1/nothings",
        "/api/v2/nodes",
        "/nonsense",
    ] {
        assert_eq!(lab.get(path).await.code, 404, "{path}");
    }
    let answer = lab.send("PUT", CONFIG_MAPS, &[], Vec::new()).await;
    assert_eq!(answer.refusal().1, "MethodNotAllowed");
    let yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\n".to_vec();
    lab.send("POST", CONFIG_MAPS, &[("content-type", "application/yaml")], yaml)
        .await
        .ok();
    let unknown = [("content-type", "application/unknown")];
    assert_eq!(
        lab.send("POST", CONFIG_MAPS, &unknown, vec![1]).await.refusal().0,
        415
    );
    let garbage = lab
        .send(
            "POST",
            CONFIG_MAPS,
            &[("content-type", "application/json")],
            b"{".to_vec(),
        )
        .await;
    assert_eq!(garbage.refusal().0, 400);
    let large = vec![b' '; 4 << 20];
    let large = lab
        .send(
            "POST",
            CONFIG_MAPS,
            &[("content-type", "application/json")],
            large,
        )
        .await;
    assert_eq!(large.refusal().1, "RequestEntityTooLarge");
}
