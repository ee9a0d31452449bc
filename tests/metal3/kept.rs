//! Objects written under Metal3's own definition, on one server: each comes back as it would under the laboratory's.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{definitions, lives, made, narrow};
use crate::definitions::site::{Definition, Site};

/// Fields of the recordings that the release does not have yet: they were made with a later one.
const LATER: [&str; 2] = ["lastAttemptedImage", "provisioningFailCount"];

fn real() -> Option<Definition> {
    let all = definitions()?;
    Some(
        all.iter()
            .map(Definition::of)
            .find(|one| one.kind == "BareMetalHost")
            .unwrap(),
    )
}

fn ours() -> Definition {
    Definition::of(&hostler_lab::crds::bare_metal_host())
}

#[test]
fn the_laboratorys_definition_is_nowhere_wider_than_the_real_one() {
    let Some(real) = real() else { return };
    let parts = ["spec", "status"].map(|part| {
        narrow::wider(
            part,
            &ours().schema["properties"][part],
            &real.schema["properties"][part],
        )
    });
    assert_eq!(parts.concat(), Vec::<String>::new());
}

#[test]
fn the_laboratorys_definition_has_the_names_and_columns_of_the_real_one() {
    let Some(all) = definitions() else { return };
    let real = all
        .iter()
        .find(|one| one.spec.names.kind == "BareMetalHost")
        .unwrap();
    let ours = hostler_lab::crds::bare_metal_host();
    assert_eq!(ours.spec.names, real.spec.names);
    let columns = |version: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion| {
        version.additional_printer_columns.iter().flatten()
            .map(|column| (column.name.clone(), column.json_path.clone(), column.type_.clone(), column.priority.unwrap_or(0)))
            .collect::<Vec<_>>()
    };
    assert_eq!(columns(&ours.spec.versions[0]), columns(&real.spec.versions[0]));
}

/// Every host that there is to try, with a word for where it is from.
async fn hosts() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for name in ["one-host", "errors"] {
        let text =
            std::fs::read_to_string(crate::harness::root().join(format!("tests/traces/metal3/{name}.jsonl")))
                .unwrap();
        for (line, event) in text.lines().enumerate() {
            let event: Value = serde_json::from_str(event).unwrap();
            let mut object = event["object"].clone();
            if let Some(status) = object["status"].as_object_mut() {
                for field in LATER {
                    status.remove(field);
                }
            }
            all.push((format!("{name}.jsonl line {}", line + 1), object));
        }
    }
    let text = std::fs::read_to_string(crate::harness::root().join("examples/01-lab/hosts.yaml")).unwrap();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        if object["kind"] == "BareMetalHost" {
            all.push(("examples/01-lab/hosts.yaml".to_owned(), object));
        }
    }
    let lab = Site::embedded().await;
    lab.take(&[hostler_lab::crds::bare_metal_host()]).await;
    let before = all.len();
    for object in lives::all(&lab.client).await {
        all.push(("the laboratory".to_owned(), object));
    }
    assert!(all.len() > before + 50, "only {} versions", all.len() - before);
    let schema = ours().schema;
    let mut specs = made::samples(&schema["properties"]["spec"], 150).into_iter();
    for status in made::samples(&schema["properties"]["status"], 150) {
        all.push((
            "made".to_owned(),
            json!({"spec": specs.next().unwrap(), "status": status}),
        ));
    }
    all
}

/// Writes a host, then its status; returns what came back of both.
async fn written(
    site: &Site,
    definition: &Definition,
    name: &str,
    from: &str,
    object: &Value,
) -> (Value, Value) {
    let mut whole = object.clone();
    whole["metadata"] = json!({
        "name": name, "labels": object["metadata"]["labels"], "annotations": object["metadata"]["annotations"],
    });
    let created = site.create(definition, &whole, false).await;
    assert_eq!(
        created.code, 201,
        "{} {from}: {} of {object}",
        site.name, created.body
    );
    assert!(
        created.warnings.is_empty(),
        "{} {from}: {:?}",
        site.name,
        created.warnings
    );
    let spec = created.body["spec"].clone();
    let has_status = object["status"]
        .as_object()
        .is_some_and(|fields| !fields.is_empty());
    let status = if has_status {
        whole["metadata"]["resourceVersion"] = created.body["metadata"]["resourceVersion"].clone();
        let reported = site.replace(definition, &whole, true).await;
        assert_eq!(
            reported.code, 200,
            "{} {from}: {} of {object}",
            site.name, reported.body
        );
        assert!(
            reported.warnings.is_empty(),
            "{} {from}: {:?}",
            site.name,
            reported.warnings
        );
        reported.body["status"].clone()
    } else {
        Value::Null
    };
    site.delete(definition, name).await;
    (spec, status)
}

async fn keeps(site: &Site) {
    let (all, real) = (definitions().unwrap(), real().unwrap());
    site.take(&all).await;
    let lab = Site::embedded().await;
    lab.take(&[hostler_lab::crds::bare_metal_host()]).await;
    for (index, (from, object)) in hosts().await.into_iter().enumerate() {
        let name = format!("h{index}");
        let expected = written(&lab, &ours(), &name, &from, &object).await;
        let (spec, status) = written(site, &real, &name, &from, &object).await;
        assert_eq!(spec, expected.0, "{} {from}: spec", site.name);
        assert_eq!(status, expected.1, "{} {from}: status", site.name);
        // Defaults are all that is ever added; nothing is taken away.
        for (part, came) in [("spec", &spec), ("status", &status)] {
            for (field, value) in object[part].as_object().into_iter().flatten() {
                assert_eq!(came[field], *value, "{} {from}: {part}.{field}", site.name);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_keeps_every_host_under_the_real_definition() {
    if definitions().is_some() {
        keeps(&Site::embedded().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_keeps_every_host_under_the_real_definition() {
    if definitions().is_none() {
        return;
    }
    let Some(site) = Site::real().await else { return };
    keeps(&site).await;
}

#[test]
fn of_the_recordings_only_the_fields_of_a_later_release_are_left_out() {
    let Some(real) = real() else { return };
    let known = real.schema["properties"]["status"]["properties"]
        .as_object()
        .unwrap();
    let mut unknown = BTreeSet::new();
    for name in ["one-host", "errors"] {
        let text =
            std::fs::read_to_string(crate::harness::root().join(format!("tests/traces/metal3/{name}.jsonl")))
                .unwrap();
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let fields = event["object"]["status"].as_object().into_iter().flatten();
            unknown.extend(
                fields
                    .map(|(field, _)| field.clone())
                    .filter(|field| !known.contains_key(field)),
            );
        }
    }
    assert_eq!(unknown, LATER.map(str::to_owned).into());
}
