//! Metal3's own definitions, at the release that `tests/kubernetes/metal3/go.mod` names: both servers take them, and whatever the
//! laboratory's own definition accepts passes them unchanged.

mod kept;
mod lives;
mod made;
mod narrow;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;

use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::World;

/// The module whose files they are; `tests/kubernetes/metal3/go.mod` says the same.
const MODULE: &str = "github.com/metal3-io/baremetal-operator";
const RELEASE: &str = "v0.13.0";

/// Every definition of the release; none, with a line that says how to get them, where the module was not fetched.
pub(crate) fn definitions() -> Option<Vec<CustomResourceDefinition>> {
    let folder = match folder() {
        Ok(folder) => folder,
        Err(why) => {
            eprintln!("not run with the definitions of Metal3: {why:#}");
            return None;
        }
    };
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |file: &PathBuf| serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    Some(files.iter().map(read).collect())
}

/// Where the files are: where `make kubernetes` noted it, or where Go keeps modules by default.
fn folder() -> Result<PathBuf> {
    let home = || std::env::home_dir().context("HOME is not set, so there is no cache to look in");
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => home()?.join(".cache"),
    };
    let modules = match (std::env::var_os("GOMODCACHE"), std::env::var_os("GOPATH")) {
        (Some(modules), _) => PathBuf::from(modules),
        (None, Some(path)) => PathBuf::from(path).join("pkg/mod"),
        (None, None) => home()?.join("go/pkg/mod"),
    };
    let places = [
        cache.join("hostler/metal3").join(RELEASE),
        modules
            .join(format!("{MODULE}@{RELEASE}"))
            .join("config/base/crds/bases"),
    ];
    let found = places
        .iter()
        .find(|place| place.join("metal3.io_baremetalhosts.yaml").is_file());
    found.cloned().with_context(|| {
        format!(
            "{MODULE} {RELEASE} is not in {}; `make kubernetes` fetches it",
            places[0].display()
        )
    })
}

#[test]
fn the_release_is_that_of_the_module_file() {
    let text =
        std::fs::read_to_string(crate::harness::root().join("tests/kubernetes/metal3/go.mod")).unwrap();
    assert!(text.contains(&format!("require {MODULE} {RELEASE}\n")), "{text}");
}

/// The example of the README, with Metal3's own definitions in place of the laboratory's: everything joins, and all goes back.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_host_works_under_the_real_definitions() {
    let Some(definitions) = definitions() else { return };
    assert!(
        definitions.len() > 10,
        "{} definitions were found",
        definitions.len()
    );
    let world = World::new().await;
    hostler_cli::wire::install(&world.client, definitions)
        .await
        .unwrap();
    let host = world.host().await;
    world.example().await;
    let before = free_hosts(&world).await;
    world.apply_file("examples/01-lab/tenant.yaml").await;
    all_available(&world).await;
    let taken = world.hosts().list(&ListParams::default()).await.unwrap();
    for machine in taken {
        let spec = &machine.data["spec"];
        for place in ["image", "userData", "networkData", "consumerRef"] {
            assert!(spec[place].is_object(), "{place} of {spec}");
        }
        assert_eq!(machine.data["status"]["provisioning"]["image"], spec["image"]);
    }
    delete_tenant(&world, "one").await;
    nothing_left(&world).await;
    assert_eq!(free_hosts(&world).await, before, "every host is as it was");
    host.stop().await;
}
