//! The rules of `docs/style.md` that a machine can check: direction of dependencies, sizes, names, module docs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may depend on, of ours. A new edge needs a decision record.
const EDGES: [(&str, &[&str]); 8] = [
    ("hostler-api", &[]),
    ("hostler-core", &["hostler-api"]),
    ("hostler-controllers", &["hostler-api", "hostler-core"]),
    ("hostler-wasm", &["hostler-core"]),
    ("hostler-apiserver", &[]),
    ("hostler-lab", &[]),
    (
        "hostler-cli",
        &[
            "hostler-api",
            "hostler-core",
            "hostler-controllers",
            "hostler-wasm",
            "hostler-apiserver",
            "hostler-lab",
        ],
    ),
    ("hostler-sdk", &[]),
];
/// Development edges beyond those: loops and the lab are tried against the small API server.
const TEST_EDGES: [(&str, &str); 2] = [
    ("hostler-controllers", "hostler-apiserver"),
    ("hostler-lab", "hostler-apiserver"),
];
/// Crates that only one of ours may name.
const ALONE: [(&str, &[&str]); 4] = [
    ("wasmtime", &["hostler-wasm"]),
    ("redb", &["hostler-apiserver"]),
    ("wit-bindgen", &["hostler-sdk"]),
    ("anyhow", &["hostler-cli", "hostler-tests"]),
];
const BANNED_NAMES: [&str; 7] = ["utils", "helpers", "common", "misc", "types", "manager", "mod"];
const LONGEST_FILE: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["host", "plugins", "policies", "tests"]
        .iter()
        .map(|name| root().join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "the walk found only {} files", found.len());
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn dependencies_point_one_way() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap();
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let ours: BTreeSet<String> = metadata
        .packages
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let is_guest = ["driver-", "resolver-", "policy-"]
            .iter()
            .any(|world| name.starts_with(world));
        for dependency in &package.dependencies {
            let on = dependency.name.as_str();
            if let Some((_, who)) = ALONE.iter().find(|(alone, _)| *alone == on)
                && !who.contains(&name)
                && dependency.kind == DependencyKind::Normal
            {
                wrong.push(format!("{name} names {on}; only {} may", who.join(", ")));
            }
            if !ours.contains(on) || name == "hostler-tests" {
                continue;
            }
            let may = match (is_guest, allowed.get(name)) {
                (true, _) => on == "hostler-sdk",
                (false, Some(edges)) => edges.contains(&on),
                (false, None) => false,
            };
            let may_in_tests =
                dependency.kind == DependencyKind::Development && TEST_EDGES.contains(&(name, on));
            if !may && !may_in_tests {
                wrong.push(format!("{name} depends on {on}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "edges that no decision allows:\n{}",
        wrong.join("\n")
    );
}

/// A file without its tests, which are in it at the end; those that have a file of their own are only named at its begin.
fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

#[test]
fn only_one_file_writes_to_the_api() {
    let mut wrong = Vec::new();
    for path in sources() {
        let name = shown(&path);
        if !name.starts_with("host/controllers/src") || name.ends_with("patch.rs") || name.contains("/tests")
        {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = shipped(&text);
        for call in ["PostParams", "PatchParams", "DeleteParams", "Patch::"] {
            if code.contains(call) {
                wrong.push(format!("{name} writes by itself ({call})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_has_no_clock_client_or_runtime() {
    let manifest = std::fs::read_to_string(root().join("host/core/Cargo.toml")).unwrap();
    for banned in ["tokio", "kube.", "wasmtime", "futures"] {
        assert!(
            !manifest.contains(&format!("\n{banned}")),
            "host/core depends on {banned}"
        );
    }
    for path in sources()
        .into_iter()
        .filter(|path| shown(path).starts_with("host/core/src") && !shown(path).contains("/tests"))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = shipped(&text);
        for banned in ["::now()", ".await", "std::fs", "std::env", "std::thread"] {
            assert!(!code.contains(banned), "{} uses {banned}", shown(&path));
        }
    }
}

#[test]
fn files_are_short_enough_to_read() {
    let long: Vec<_> = sources()
        .iter()
        .filter_map(|path| {
            let lines = std::fs::read_to_string(path).unwrap().lines().count();
            (lines > LONGEST_FILE).then(|| format!("{} has {lines} lines", shown(path)))
        })
        .collect();
    assert!(
        long.is_empty(),
        "split these by what they own:\n{}",
        long.join("\n")
    );
}

#[test]
fn every_file_says_what_it_does() {
    let silent: Vec<_> = sources()
        .iter()
        .filter(|path| {
            !std::fs::read_to_string(path)
                .unwrap()
                .trim_start()
                .starts_with("//!")
        })
        .map(|path| shown(path))
        .collect();
    assert!(silent.is_empty(), "no module doc in:\n{}", silent.join("\n"));
}

#[test]
fn files_are_named_for_what_they_own() {
    let vague: Vec<_> = sources()
        .iter()
        .filter(|path| {
            path.file_stem()
                .is_some_and(|stem| BANNED_NAMES.iter().any(|banned| stem == *banned))
        })
        .map(|path| shown(path))
        .collect();
    assert!(vague.is_empty(), "names that say nothing:\n{}", vague.join("\n"));
}

#[test]
fn unsafe_code_stands_in_one_place_of_the_host() {
    let mut places = Vec::new();
    for path in sources()
        .iter()
        .filter(|path| shown(path).starts_with("host/") && shown(path).contains("/src/"))
    {
        let text = std::fs::read_to_string(path).unwrap();
        let count = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//") && line.contains("unsafe {"))
            .count();
        if count > 0 {
            places.push((shown(path), count));
        }
    }
    let total: usize = places.iter().map(|(_, count)| count).sum();
    assert!(total <= 1, "unsafe blocks: {places:?}");
    assert!(
        places.iter().all(|(path, _)| path.starts_with("host/wasm/")),
        "{places:?}"
    );
}

#[test]
fn no_promise_is_left_in_the_code() {
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["unimplemented", "!("].concat(),
    ];
    let mut wrong = Vec::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{}", shown(&path), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_decision_record_has_its_four_parts() {
    let folder = root().join("docs/decisions");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            for part in [
                "## Context",
                "## Choice",
                "## Rejected",
                "## What would change our mind",
            ] {
                assert!(text.contains(part), "{} lacks {part}", shown(&path));
            }
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} decision records");
}
