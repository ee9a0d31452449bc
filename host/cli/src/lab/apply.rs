//! Applies manifests the way `kubectl apply` does, waiting for namespaces and kinds that are only now being made.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::telemetry::say;

/// What kubectl writes there, so that a later `kubectl apply` finds what was applied before.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MANAGER: &str = "kubectl-client-side-apply";
/// How long a namespace or a kind may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Applies files and directories of files, in name order, and says what it did.
///
/// # Errors
/// The first file, document and field that is refused.
pub(super) async fn all(client: &Client, paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        for file in files(path)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            for (index, document) in documents(&text).enumerate() {
                let what = format!("{}, document {}", file.display(), index + 1);
                let value: Value = serde_saphyr::from_str(&document).with_context(|| format!("{what} is not YAML"))?;
                if value.is_null() {
                    continue;
                }
                let object: DynamicObject =
                    serde_json::from_value(value).with_context(|| format!("{what} is no Kubernetes object"))?;
                say(&one(client, object).await.with_context(|| what.clone())?);
            }
        }
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
        .filter(|file| file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json"))
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{} holds no manifests (*.yaml)", path.display());
    }
    Ok(files)
}

fn documents(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts.into_iter().filter(|part| part.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with('#')))
}

async fn one(client: &Client, mut object: DynamicObject) -> anyhow::Result<String> {
    let types = object.types.clone().context("apiVersion and kind are missing")?;
    let name = object.name_any();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let (resource, capabilities) = waiting(|| pinned_kind(client, &kind)).await.with_context(|| {
        format!("the server has no kind {} in {}; apply its definition first", types.kind, types.api_version)
    })?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let whole = if resource.group.is_empty() {
        format!("{}/{name}", resource.kind.to_lowercase())
    } else {
        format!("{}.{}/{name}", resource.kind.to_lowercase(), resource.group)
    };
    let plain = format!("{}\n", serde_json::to_string(&object)?);
    object.annotations_mut().insert(LAST_APPLIED.to_owned(), plain);
    let creating = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match waiting(|| api.create(&creating, &object)).await {
        Ok(_) => Ok(format!("{whole} created")),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let before = api.get(&name).await?;
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let after = api.patch(&name, &params, &Patch::Merge(&object)).await?;
            let same = before.resource_version() == after.resource_version();
            let done = if same { "unchanged" } else { "configured" };
            Ok(format!("{whole} {done}"))
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
        assert_eq!(found, ["a: 1\n", "b: |\n  --- not a separator\n"]);
    }
}
