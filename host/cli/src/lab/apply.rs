//! Applies manifests the way `kubectl apply` does, waiting for namespaces and kinds that are only now being made.
//!
//! One difference: of an object that exists, only what changed in the file since it was applied last is sent. Starting the lab
//! again with the same files must not take from the host what it has borrowed meanwhile, such as `spec.online` of a server in use.

mod last_applied;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use self::last_applied::{LAST_APPLIED, changes};
use crate::telemetry::say;

const MANAGER: &str = "kubectl-client-side-apply";
/// How long a namespace or a kind may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// An object to apply, and where it stands.
#[derive(Debug)]
pub(super) struct Manifest {
    place: String,
    object: Value,
}

/// Reads files and directories of files, in name order; nothing is applied unless all of it can be read.
///
/// # Errors
/// The first file, document and line that is no manifest.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for path in paths {
        for file in files(path)? {
            let text = std::fs::read_to_string(&file).with_context(|| {
                format!(
                    "manifest {} cannot be read; name a file, or a directory of them, with --apply",
                    file.display()
                )
            })?;
            for (index, document) in documents(&text).enumerate() {
                let place = format!("{}, document {}", file.display(), index + 1);
                let object: Value = serde_saphyr::from_str(&document).with_context(|| {
                    format!("{place} is not YAML; nothing was applied, correct the file and start again")
                })?;
                let missing: Vec<_> = ["/apiVersion", "/kind", "/metadata/name"]
                    .into_iter()
                    .filter(|field| {
                        object
                            .pointer(field)
                            .and_then(Value::as_str)
                            .is_none_or(str::is_empty)
                    })
                    .map(|field| field.trim_start_matches('/').replace('/', "."))
                    .collect();
                if !missing.is_empty() {
                    bail!(
                        "{place} is no Kubernetes object: {} is missing; nothing was applied",
                        missing.join(" and ")
                    );
                }
                manifests.push(Manifest { place, object });
            }
        }
    }
    Ok(manifests)
}

/// Applies them and says what it did.
///
/// # Errors
/// The first manifest that is refused, with what the server says.
pub(super) async fn all(client: &Client, manifests: Vec<Manifest>) -> anyhow::Result<()> {
    for Manifest { place, object } in manifests {
        say(&one(client, object).await.with_context(|| place)?);
    }
    Ok(())
}

/// Adds a rack of simulated servers.
///
/// # Errors
/// What the API server says.
pub(super) async fn rack(client: &Client, servers: u16) -> anyhow::Result<()> {
    let rack = hostler_lab::inventory::Rack {
        name: "rack",
        namespace: "default",
        servers,
        labels: &[("role", "rack")],
        network: 1,
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let hosts = hostler_lab::crds::bare_metal_hosts();
    let hosts: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &hosts);
    for (secret, host) in rack.manifests() {
        ignore_existing(secrets.create(&PostParams::default(), &secret).await.map(drop))?;
        ignore_existing(hosts.create(&PostParams::default(), &host).await.map(drop))?;
    }
    Ok(())
}

fn ignore_existing(outcome: kube::Result<()>) -> anyhow::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => Ok(other?),
    }
}

fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files: Vec<_> = std::fs::read_dir(path)
        .with_context(|| format!("{} cannot be read", path.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| {
            file.extension()
                .is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
        })
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{} holds no manifests (*.yaml)", path.display());
    }
    Ok(files)
}

/// The documents of a file. Each is led by as many empty lines as there are lines before it, so that an error names the file's line.
fn documents(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut parts = vec![String::new()];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            parts.push("\n".repeat(number + 1));
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts.into_iter().filter(|part| {
        part.lines()
            .any(|line| !line.trim().is_empty() && !line.trim().starts_with('#'))
    })
}

async fn one(client: &Client, mut wanted: Value) -> anyhow::Result<String> {
    let text = |field: &str| {
        wanted
            .pointer(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (api_version, word, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = GroupVersionKind::gvk(group, version, &word);
    let (resource, capabilities) = waiting(|| pinned_kind(client, &kind)).await.with_context(|| {
        format!("the server has no kind {word} in {api_version}; apply its definition first")
    })?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = Some(text("/metadata/namespace")).filter(|name| !name.is_empty());
            let namespace = namespace.unwrap_or_else(|| "default".to_owned());
            wanted["metadata"]["namespace"] = json!(namespace);
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let whole = if resource.group.is_empty() {
        format!("{}/{name}", resource.kind.to_lowercase())
    } else {
        format!("{}.{}/{name}", resource.kind.to_lowercase(), resource.group)
    };
    let record = last_applied::text(&mut wanted)?;
    let mut noted = wanted.clone();
    noted["metadata"]["annotations"][LAST_APPLIED] = json!(record);
    let object: DynamicObject = serde_json::from_value(noted.clone()).context("is no Kubernetes object")?;
    let creating = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    match waiting(|| api.create(&creating, &object)).await {
        Ok(_) => Ok(format!("{whole} created")),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let before = api.get(&name).await?;
            let known = before.annotations().get(LAST_APPLIED);
            let known: Value = known
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or(Value::Null);
            let Some(mut change) = changes(&known, &wanted) else {
                return Ok(format!("{whole} unchanged"));
            };
            change["metadata"]["annotations"][LAST_APPLIED] = json!(record);
            let params = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            api.patch(&name, &params, &Patch::Merge(&change))
                .await
                .with_context(|| whole.clone())?;
            Ok(format!("{whole} configured"))
        }
        Err(error) => Err(error).with_context(|| whole),
    }
}

/// Asks until what is asked about is no longer missing, within bounds.
async fn waiting<T, F: Future<Output = kube::Result<T>>>(mut ask: impl FnMut() -> F) -> kube::Result<T> {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(kube::Error::Api(status)) if status.is_not_found() && tokio::time::Instant::now() < end => {}
            other => return other,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_and_empty_ones_left_out() {
        let text = "# a comment\n---\na: 1\n---\n# nothing\n---\nb: |\n  --- not a separator\n";
        let found: Vec<_> = documents(text).collect();
        assert_eq!(found, ["\n\na: 1\n", "\n\n\n\n\n\nb: |\n  --- not a separator\n"]);
    }

    fn reading(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        format!("{:#}", read(&[folder.path().to_owned()]).unwrap_err())
    }

    #[test]
    fn a_file_that_is_no_yaml_is_named_with_its_line() {
        let error = reading("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\na: [1\nb: 2\n");
        assert!(error.contains("a.yaml, document 2 is not YAML"), "{error}");
        assert!(
            error.contains("line 6") || error.contains("line 5"),
            "the line of the file, not of the document: {error}"
        );
    }

    #[test]
    fn what_is_missing_in_an_object_is_named() {
        let error = reading("apiVersion: v1\nmetadata: {labels: {}}\n");
        assert!(
            error.contains("document 1 is no Kubernetes object: kind and metadata.name is missing"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_not_there_and_an_empty_directory_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            format!("{:#}", read(&[folder.path().join("nix.yaml")]).unwrap_err())
                .contains("nix.yaml cannot be read")
        );
        assert!(
            format!("{:#}", read(&[folder.path().to_owned()]).unwrap_err()).contains("holds no manifests")
        );
    }
}
