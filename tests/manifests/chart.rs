//! The chart that is committed is the one that is generated, and the real Helm makes the same objects of it as `hostler manifests`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use hostler_cli::manifests::{Site, chart_files};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use rstest::rstest;
use serde_json::Value;

use super::{OPERATOR_FILES, files_below, objects};
use crate::harness::root;
use crate::kubernetes::{Binaries, Cluster};

const CHART: &str = "charts/hostler";

#[test]
fn the_committed_chart_is_the_generated_one() {
    let folder = root().join(CHART);
    let wanted: BTreeMap<String, String> = chart_files(&[])
        .unwrap()
        .into_iter()
        .map(|(path, text)| (path.to_owned(), text))
        .collect();
    if std::env::var_os("UPDATE").is_some() {
        for (path, text) in &wanted {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    let found = files_below(&folder);
    for (path, text) in &wanted {
        assert_eq!(
            found.get(path),
            Some(text),
            "{path} is not what is generated; run this test with UPDATE=1 and look at the change"
        );
    }
    let more: Vec<_> = found.keys().filter(|path| !wanted.contains_key(*path)).collect();
    assert!(more.is_empty(), "nobody generates {more:?}");
}

/// The real Helm, where it was built.
fn helm() -> Option<PathBuf> {
    let found = Binaries::find().ok().and_then(|binaries| binaries.path("helm"));
    if found.is_none() {
        eprintln!(
            "the chart was not held against Helm: it is not built; `tests/kubernetes/build helm` builds it"
        );
    }
    found
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(arguments)
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "helm {arguments:?}: {out}{err}");
    assert!(!err.contains("WARNING"), "helm {arguments:?}: {err}");
    out.into_owned()
}

/// Objects by what they are, without what only one of the two forms has.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects
        .into_iter()
        // Helm makes the namespace itself, or is told one that is there.
        .filter(|object| object["kind"] != "Namespace")
        .map(|mut object| {
            if let Some(metadata) = object["metadata"].as_object_mut()
                && metadata
                    .get_mut("annotations")
                    .and_then(Value::as_object_mut)
                    .is_some_and(|annotations| {
                        annotations.remove("helm.sh/resource-policy");
                        annotations.is_empty()
                    })
            {
                metadata.remove("annotations");
            }
            let text = |pointer: &str| {
                object
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let name = format!(
                "{} {}/{}",
                text("/kind"),
                text("/metadata/namespace"),
                text("/metadata/name")
            );
            (name, object)
        })
        .collect()
}

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| document.trim_start_matches("---\n"))
        .map(|document| {
            serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{error}:\n{document}"))
        })
        .filter(|value| !value.is_null())
        .collect()
}

/// Each case is a way to say one thing to Helm and to `hostler manifests`.
#[rstest]
#[case::as_it_is(&[], &[])]
#[case::in_pods_only(&["--set=state.volume=empty-dir", "--set=replicas=3"], &["--state=empty-dir", "--replicas=3"])]
#[case::metrics(&["--set=metrics.serviceMonitor=true", "--set=metrics.from=monitoring"], &["--service-monitor", "--metrics-from=monitoring"])]
#[case::other_words(
    &["--set=image.reference=r/h:1", "--set=plugins.image=r/p:1", "--set=installation=east", "--set=cluster=c", "--set=state.size=5Gi",
      "--set=required.resolver=resolver-x", "--set-json=required.policies=[\"policy-a\",\"policy-b\"]"],
    &["--image=r/h:1", "--plugin-image=r/p:1", "--installation=east", "--cluster=c", "--state-size=5Gi", "--resolver=resolver-x",
      "--policy=policy-a", "--policy=policy-b"],
)]
#[case::what_looks_like_yaml(&["--set=installation=a: [b"], &["--installation=a: [b"])]
#[case::metal3(
    &["--set-json=kinds=[{\"apiGroup\":\"metal3.io\",\"resource\":\"baremetalhosts\",\"access\":\"borrow-fields\",\"namespaces\":[\"*\"]}]"],
    &["--plugins=METAL3"],
)]
#[case::kinds_in_namespaces(
    &["--set-json=kinds=[{\"apiGroup\":\"\",\"resource\":\"configmaps\",\"access\":\"manage\",\"namespaces\":[\"a\",\"b\"]},{\"apiGroup\":\"x.dev\",\"resource\":\"things\",\"access\":\"read\",\"namespaces\":[\"a\"]}]"],
    &["--plugins=KINDS"],
)]
fn helm_makes_the_same_objects(#[case] values: &[&str], #[case] words: &[&str]) {
    let Some(helm) = helm() else { return };
    let kinds = tempfile::tempdir().unwrap();
    std::fs::write(
        kinds.path().join("driver-x.toml"),
        "[[kinds]]\napiVersion = \"v1\"\nkind = \"ConfigMap\"\naccess = \"manage\"\nnamespaces = [\"a\", \"b\"]\n\
         [[kinds]]\napiVersion = \"x.dev/v1\"\nkind = \"Thing\"\naccess = \"read\"\nnamespaces = [\"a\"]\n",
    )
    .unwrap();
    let words: Vec<String> = words
        .iter()
        .map(|word| {
            word.replace("METAL3", root().join(OPERATOR_FILES).to_str().unwrap())
                .replace("KINDS", kinds.path().to_str().unwrap())
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let chart = root().join(CHART);
    let mut arguments = vec![
        "template",
        "hostler",
        chart.to_str().unwrap(),
        "--namespace=hostler-system",
    ];
    arguments.extend(values);
    let made = by_name(documents(&run(&helm, &arguments)));
    let wanted = by_name(objects(&words));
    assert_eq!(
        made.keys().collect::<Vec<_>>(),
        wanted.keys().collect::<Vec<_>>(),
        "the objects themselves"
    );
    for (name, object) in wanted {
        assert_eq!(made[&name], object, "{name}");
    }
}

#[test]
fn helm_finds_nothing_to_complain_about_and_refuses_values_that_mean_nothing() {
    let Some(helm) = helm() else { return };
    let chart = root().join(CHART);
    let said = run(&helm, &["lint", "--strict", chart.to_str().unwrap()]);
    assert!(said.contains("0 chart(s) failed"), "{said}");
    let refused = Command::new(&helm)
        .args([
            "template",
            "hostler",
            chart.to_str().unwrap(),
            "--set=state.volume=disk",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("volume"), "{said}");
}

/// The release goes, and the tenants stay: deleting a definition would delete every object of its kind.
#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_and_uninstalls_and_leaves_the_definitions() {
    let (Some(helm), Ok(binaries)) = (helm(), Binaries::find()) else {
        return;
    };
    let cluster = Cluster::start(&binaries).await.unwrap();
    let client = cluster.client().await.unwrap();
    let chart = root().join(CHART).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let on_cluster = |words: &[&str]| {
        let all = [words, &["--namespace=hostler-system", &kubeconfig]].concat();
        run(&helm, &all)
    };
    let notes = on_cluster(&["install", "hostler", &chart, "--create-namespace"]);
    assert!(notes.contains("It has no rights on machines yet"), "{notes}");
    let workloads: Api<StatefulSet> = Api::namespaced(client.clone(), "hostler-system");
    let replicas = || async { workloads.get("hostler").await.unwrap().spec.unwrap().replicas };
    assert_eq!(replicas().await, Some(2));
    let kinds = "--set-json=kinds=[{\"apiGroup\":\"metal3.io\",\"resource\":\"baremetalhosts\",\"access\":\"borrow-fields\",\"namespaces\":[\"default\"]}]";
    let notes = on_cluster(&["upgrade", "hostler", &chart, "--set=replicas=3", kinds]);
    assert!(!notes.contains("no rights on machines"), "{notes}");
    assert_eq!(replicas().await, Some(3));
    let roles: Api<Role> = Api::namespaced(client.clone(), "default");
    let role = "hostler-borrow-fields-baremetalhosts.metal3.io";
    assert!(roles.get_opt(role).await.unwrap().is_some());
    let said = on_cluster(&["uninstall", "hostler"]);
    assert!(said.contains("kept"), "{said}");
    assert!(roles.get_opt(role).await.unwrap().is_none());
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for definition in hostler_api::all_crds() {
        let name = definition.metadata.name.unwrap();
        assert!(
            definitions.get_opt(&name).await.unwrap().is_some(),
            "{name} is gone"
        );
    }
}

#[test]
fn a_chart_for_a_plugin_directory_has_its_rights_as_defaults() {
    let site = Site::parse(&["--plugins", root().join(OPERATOR_FILES).to_str().unwrap()]).unwrap();
    let files: BTreeMap<_, _> = chart_files(&site.kinds).unwrap().into_iter().collect();
    let values: Value = serde_saphyr::from_str(&files["values.yaml"]).unwrap();
    assert_eq!(
        values["kinds"],
        serde_json::json!([{"apiGroup": "metal3.io", "resource": "baremetalhosts", "access": "borrow-fields", "namespaces": ["*"]}])
    );
}
