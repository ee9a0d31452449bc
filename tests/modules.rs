//! Definitions of kinds that are files of a Go module: read where Go keeps modules, never copied.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// The baremetal-operator.
pub(crate) const METAL3: Module = Module {
    name: "metal3",
    path: "github.com/metal3-io/baremetal-operator",
    release: "v0.13.0",
    folder: "config/base/crds/bases",
    known: "metal3.io_baremetalhosts.yaml",
};

/// The Prometheus operator.
pub(crate) const PROMETHEUS: Module = Module {
    name: "prometheus",
    path: "github.com/prometheus-operator/prometheus-operator",
    release: "v0.85.0",
    folder: "example/prometheus-operator-crd",
    known: "monitoring.coreos.com_servicemonitors.yaml",
};

/// A Go module whose files are definitions; `tests/kubernetes/<name>/go.mod` says the same.
#[derive(Debug)]
pub(crate) struct Module {
    name: &'static str,
    path: &'static str,
    release: &'static str,
    /// Where in it they are.
    folder: &'static str,
    /// One of the files there.
    known: &'static str,
}

impl Module {
    /// Every definition of the release; none, with a line that says how to get them, where the module was not fetched.
    pub(crate) fn definitions(&self) -> Option<Vec<CustomResourceDefinition>> {
        let folder = match self.found() {
            Ok(folder) => folder,
            Err(why) => {
                eprintln!("not run with the definitions of {}: {why:#}", self.name);
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
    fn found(&self) -> Result<PathBuf> {
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
            cache.join("hostler").join(self.name).join(self.release),
            modules
                .join(format!("{}@{}", self.path, self.release))
                .join(self.folder),
        ];
        let found = places.iter().find(|place| place.join(self.known).is_file());
        found.cloned().with_context(|| {
            format!(
                "{} {} is not in {}; `make kubernetes` fetches it",
                self.path,
                self.release,
                places[0].display()
            )
        })
    }
}

#[test]
fn the_releases_and_folders_are_those_that_are_fetched() {
    let read = |path: &str| std::fs::read_to_string(crate::harness::root().join(path)).unwrap();
    let build = read("tests/kubernetes/build");
    for Module {
        name,
        path,
        release,
        folder,
        known,
    } in [METAL3, PROMETHEUS]
    {
        let file = read(&format!("tests/kubernetes/{name}/go.mod"));
        assert!(file.contains(&format!("require {path} {release}\n")), "{file}");
        let fetched = format!("{name}-crds) module={path} folder={folder} known={known} ;;");
        assert!(build.contains(&fetched), "no {fetched} in {build}");
    }
}
