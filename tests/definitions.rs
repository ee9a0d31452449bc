//! Our own definitions on the embedded server and, where its binaries are found, on the real one: taken without a warning, every rule
//! and every bound of theirs trips on what it is for, and objects that were stored before a rule was there stay usable.

mod bounds;
mod cases;
mod earlier;
pub(crate) mod site;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use self::site::{Definition, Refusal, Site};

/// A definition that checks nothing but types: for objects as they were stored before there were rules.
pub(crate) fn loosened(definition: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).unwrap();
    for version in value["spec"]["versions"].as_array_mut().unwrap() {
        loosen(&mut version["schema"]["openAPIV3Schema"]);
    }
    serde_json::from_value(value).unwrap()
}

fn loosen(schema: &mut Value) {
    let Some(node) = schema.as_object_mut() else {
        return;
    };
    for check in [
        "x-kubernetes-validations",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "enum",
        "pattern",
        "format",
        "minimum",
        "minLength",
        "maxLength",
        "maxItems",
        "maxProperties",
        "required",
    ] {
        node.remove(check);
    }
    for child in site::children(schema) {
        loosen(child);
    }
}

/// What every suite says of one server, to be compared with the other's.
async fn everything(site: &Site) -> BTreeMap<String, Vec<Refusal>> {
    site.take(&hostler_api::all_crds()).await;
    let mut said = cases::run(site).await;
    said.extend(bounds::run(site).await);
    examples(site).await;
    earlier::run(site).await;
    said
}

/// Every object of ours in `examples/` comes back as it was sent, without a warning.
async fn examples(site: &Site) {
    let all = Definition::all();
    let mut found = BTreeSet::new();
    for folder in std::fs::read_dir(crate::harness::root().join("examples")).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for document in text.split("\n---\n") {
                let sent: Value = serde_saphyr::from_str(document).unwrap();
                let Some(definition) = all.iter().find(|one| sent["kind"] == one.kind.as_str()) else {
                    continue;
                };
                found.insert(definition.kind.clone());
                let answer = site.create(definition, &sent, true).await;
                assert_eq!(answer.code, 201, "{}: {}", site.name, answer.body);
                assert!(answer.warnings.is_empty(), "{}: {:?}", site.name, answer.warnings);
                for (field, value) in sent["spec"].as_object().unwrap() {
                    assert_eq!(
                        answer.body["spec"][field], *value,
                        "{}: spec.{field} of {document}",
                        site.name
                    );
                }
            }
        }
    }
    assert!(found.len() > 4, "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_and_bound_trips_on_the_embedded_server() {
    let site = Site::embedded().await;
    let said = everything(&site).await;
    cases::every_rule_was_tripped(&said);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_says_the_same_to_every_object() {
    let Some(real) = Site::real().await else { return };
    let (theirs, ours) = (everything(&real).await, everything(&Site::embedded().await).await);
    let mut differences = Vec::new();
    for (case, theirs) in &theirs {
        if ours.get(case) != Some(theirs) {
            differences.push(json!({"case": case, "real": theirs, "ours": ours.get(case)}));
        }
    }
    assert!(
        differences.is_empty() && ours.len() == theirs.len(),
        "{} differences:\n{}",
        differences.len(),
        serde_json::to_string_pretty(&differences).unwrap()
    );
}

#[test]
fn every_kind_has_status_a_short_name_a_category_and_bounds_where_a_rule_walks() {
    for definition in hostler_api::all_crds() {
        let names = &definition.spec.names;
        assert!(
            names.short_names.as_ref().is_some_and(|all| !all.is_empty()),
            "{}",
            names.kind
        );
        assert_eq!(
            names.categories.as_deref(),
            Some(&["hostler".to_owned()][..]),
            "{}",
            names.kind
        );
        for version in &definition.spec.versions {
            assert!(
                version
                    .subresources
                    .as_ref()
                    .is_some_and(|all| all.status.is_some()),
                "{} has no status subresource",
                names.kind
            );
            let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
            bounded(&schema["openAPIV3Schema"], &names.kind);
        }
    }
}

/// Lists and maps whose own rule walks them say how long they may be.
fn bounded(schema: &Value, path: &str) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        if rule["rule"].as_str().unwrap().contains("self.all(") {
            let bound = ["maxItems", "maxProperties"]
                .iter()
                .any(|name| schema[name].is_u64());
            assert!(bound, "{path} has no bound, and a rule walks it");
        }
    }
    let mut copy = schema.clone();
    for child in site::children(&mut copy) {
        bounded(child, path);
    }
}
