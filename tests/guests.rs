//! Every component of this repository: what it may reach, and that its cases hold through the compiled bytes.

use std::path::{Path, PathBuf};

use hostler_sdk::cases::{Case, differences, read};
use hostler_wasm::cases::Guest;
use hostler_wasm::inspect;

use crate::harness::{components, fixtures, root};

/// All that any component may import: the log, and words.
const IMPORTS: [&str; 2] = ["hostler:plugin/log@0.1.0", "hostler:plugin/types@0.1.0"];

/// Sources of all components, each with where it is built to.
fn guests() -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for (folder, built) in [
        ("plugins", components()),
        ("policies", components()),
        ("tests/guests", fixtures()),
    ] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap().flatten() {
            let source = entry.path();
            if source.join("plugin.toml").exists() {
                let file = built.join(entry.file_name()).with_extension("wasm");
                found.push((source, file));
            }
        }
    }
    assert!(found.len() >= 5, "the walk found only {found:?}");
    found
}

/// What of the cases does not hold through the component.
async fn broken(component: &Path, cases: &[Case]) -> Vec<String> {
    let name = component.file_stem().unwrap().to_string_lossy();
    let bytes = std::fs::read(component).unwrap_or_else(|error| {
        panic!("{}: {error}: run the tests with `make test`", component.display());
    });
    let guest = Guest::load(&name, &bytes).await.unwrap();
    let mut broken = Vec::new();
    for case in cases {
        let found = match guest.call(&case.call, &case.arguments).await {
            Ok(answer) => differences(&case.expectation, &answer),
            Err(error) => vec![error.to_string()],
        };
        broken.extend(
            found
                .into_iter()
                .map(|what| format!("{name}, {}: {}: {what}", case.file, case.name)),
        );
    }
    broken
}

#[test]
fn a_component_imports_the_log_and_words_and_nothing_else() {
    for (_, component) in guests() {
        let facts = inspect(&component).unwrap();
        let mut imports = facts.imports.clone();
        imports.sort();
        assert_eq!(imports, IMPORTS, "{}", component.display());
        assert_eq!(facts.problem, None, "{}", component.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cases_of_every_component_hold_through_it() {
    let mut wrong = Vec::new();
    for (source, component) in guests() {
        let cases = read(&source.join("cases")).unwrap();
        if cases.is_empty() {
            wrong.push(format!("{} has no case", source.display()));
        }
        wrong.extend(broken(&component, &cases).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `tests/components/<version>/` holds components as they were published. Nothing there is ever built anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_published_component_loads_and_answers_for_ever() {
    let mut worlds = Vec::new();
    let mut wrong = Vec::new();
    for version in std::fs::read_dir(root().join("tests/components"))
        .unwrap()
        .flatten()
    {
        for entry in std::fs::read_dir(version.path()).unwrap().flatten() {
            let component = entry.path();
            if component.extension().is_none_or(|end| end != "wasm") {
                continue;
            }
            let facts = inspect(&component).unwrap();
            assert_eq!(
                facts.version.as_deref(),
                version.file_name().to_str(),
                "{}",
                component.display()
            );
            let cases = read(&component.with_extension("")).unwrap();
            assert!(!cases.is_empty(), "{} has no case", component.display());
            wrong.extend(broken(&component, &cases).await);
            worlds.push(facts.world.unwrap_or_default());
        }
    }
    worlds.sort();
    assert_eq!(
        worlds,
        [
            "machine-driver@0.1.0",
            "profile-resolver@0.1.0",
            "review-policy@0.1.0"
        ]
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
