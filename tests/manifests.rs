//! `hostler manifests`: what it prints is as reviewed, complete, and the same in every form.

mod chart;
mod monitor;
mod real;
pub(crate) mod rights;

use std::path::Path;
use std::process::Command;

use hostler_cli::manifests::{Part, Site, parts, rights_table, tenant_part};
use serde_json::Value;

use crate::harness::{hostler, root};

/// Our own plugins' operator files, as they are in the repository.
const OPERATOR_FILES: &str = "plugins/driver-metal3";

/// Objects as YAML, for people who review them.
fn shown(objects: &[Value]) -> String {
    let documents: Vec<String> = objects
        .iter()
        .map(|object| serde_saphyr::to_string(object).unwrap().trim_end().to_owned())
        .collect();
    documents.join("\n---\n")
}

/// All but the definitions, which `host/api` shows.
fn without_definitions(parts: Vec<Part>) -> Vec<Value> {
    parts
        .into_iter()
        .filter(|part| part.name != "10-definitions")
        .flat_map(|part| part.objects)
        .collect()
}

/// All objects that these words ask for.
pub(crate) fn objects(words: &[&str]) -> Vec<Value> {
    let parts = parts(&Site::parse(words).unwrap()).unwrap();
    parts.into_iter().flat_map(|part| part.objects).collect()
}

#[test]
fn a_site_with_metal3_is_as_reviewed() {
    let plugins = root().join(OPERATOR_FILES);
    let site = Site::parse(&["--plugins", plugins.to_str().unwrap(), "--service-monitor"]).unwrap();
    let text = shown(&without_definitions(parts(&site).unwrap()));
    insta::assert_snapshot!("metal3", text);
}

#[test]
fn a_site_without_volumes_with_plugins_from_config_maps_is_as_reviewed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("driver-one.wasm", "\0asm");
    write(
        "driver-one.toml",
        "[[kinds]]\napiVersion = \"metal3.io/v1alpha1\"\nkind = \"BareMetalHost\"\naccess = \"borrow-fields\"\nnamespaces = [\"rack-1\", \"rack-2\"]\n",
    );
    write("policy-two.wasm", "\0asm");
    let site = Site::parse(&[
        "--plugins",
        folder.path().to_str().unwrap(),
        "--plugin-config-maps",
        "--state=empty-dir",
        "--metrics-from=monitoring",
        "--policy=policy-two",
        "--policy=policy-allowlist",
    ])
    .unwrap();
    let text = shown(&without_definitions(parts(&site).unwrap()));
    insta::assert_snapshot!("config_maps", text);
}

#[test]
fn the_rights_in_a_tenants_api_are_as_reviewed() {
    insta::assert_snapshot!("tenant", shown(&tenant_part("hostler").unwrap().objects));
}

/// What the command prints is what the library makes; a directory gets the same, file by file, in the order in which it is applied.
#[test]
fn the_command_prints_one_stream_or_writes_files() {
    let plugins = format!("--plugins={}", root().join(OPERATOR_FILES).display());
    let run = |more: &[&str]| {
        let output = Command::new(hostler())
            .arg("manifests")
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap(), said)
    };
    let (text, said) = run(&[&plugins]);
    assert_eq!(said, "");
    let documents: Vec<Value> = text
        .split("---\n")
        .filter(|document| !document.is_empty())
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect();
    assert_eq!(documents, objects(&[&plugins]));
    let folder = tempfile::tempdir().unwrap();
    let out = format!("--out={}", folder.path().display());
    run(&[&plugins, &out]);
    let files: Vec<String> = files_below(folder.path()).into_values().collect();
    assert_eq!(files.concat(), text);
    let (_, said) = run(&[]);
    assert!(
        said.contains("no rights on machines") && said.contains("--plugins DIR"),
        "{said}"
    );
}

/// Who installs the host reads there why each right is wanted.
#[test]
fn the_rights_in_the_docs_are_the_rights_that_are_granted() {
    let path = root().join("docs/install.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (
        "<!-- rights: `hostler manifests --rights` -->\n",
        "<!-- end of rights -->",
    );
    let (before, rest) = text
        .split_once(begin)
        .expect("the docs have a place for the rights");
    let (table, after) = rest.split_once(end).expect("the place of the rights ends");
    let wanted = format!("\n{}\n", rights_table());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{wanted}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(
        table, wanted,
        "run this test with UPDATE=1 and look at the change"
    );
}

/// All files below a folder with what is in them, by path.
fn files_below(folder: &Path) -> std::collections::BTreeMap<String, String> {
    let mut found = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}
