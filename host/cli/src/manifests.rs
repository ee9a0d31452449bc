//! `hostler manifests`: everything that a cluster needs to run the host, made from Kubernetes' own types.
//!
//! One source, three forms: a stream of YAML, a directory of files, and a Helm chart (`chart`). What a role may do comes from
//! `hostler_controllers::rights` and from the operator files of the plugins (`plugins`); nothing is granted by hand here.

mod chart;
mod people;
mod plugins;
mod roles;
mod table;
mod text;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use crate::args::{Args, Command, ManifestsOptions, StateVolume};
use crate::telemetry::say;

pub use chart::files as chart_files;
pub use plugins::Kind;
pub use table::markdown as rights_table;

/// What is printed: where it runs, under which names, with what.
#[derive(Clone, Debug)]
pub struct Site {
    /// Name of all objects, or how their names begin.
    pub name: String,
    /// Namespace of the host.
    pub namespace: String,
    /// Image of the host.
    pub image: String,
    /// Replicas, of which one is active.
    pub replicas: i32,
    /// Name of the installation.
    pub installation: String,
    /// Name of the cluster.
    pub cluster: String,
    /// The resolver that must be loaded.
    pub resolver: String,
    /// The policies that must be loaded.
    pub policies: Vec<String>,
    /// Where components come from.
    pub plugins: PluginSource,
    /// Kinds that drivers were granted.
    pub kinds: Vec<Kind>,
    /// Where the state directory is.
    pub state: StateVolume,
    /// Size of a replica's volume, where it has one.
    pub state_size: String,
    /// Whether there is a `ServiceMonitor`.
    pub service_monitor: bool,
    /// Namespace that metrics may be read from; any if none is named.
    pub metrics_from: Option<String>,
}

/// Where components come from.
#[derive(Clone, Debug)]
pub enum PluginSource {
    /// An image that holds nothing but them.
    Image(String),
    /// `ConfigMaps`, one for each component.
    ConfigMaps(Vec<ConfigMap>),
}

/// Objects that belong together, in the order in which they are applied.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name of the file.
    pub name: &'static str,
    /// The objects.
    pub objects: Vec<Value>,
}

impl Site {
    /// What the command line asks for.
    ///
    /// # Errors
    /// A plugin directory that cannot be read, an operator file that is not taken, a component that fits into no `ConfigMap`.
    pub fn of(options: &ManifestsOptions) -> anyhow::Result<Self> {
        let kinds = match &options.plugins {
            Some(folder) => plugins::kinds(folder, &options.plurals)?,
            None => Vec::new(),
        };
        let source = match (&options.plugins, options.plugin_config_maps) {
            (Some(folder), true) => {
                PluginSource::ConfigMaps(plugins::config_maps(folder, &options.name, &options.namespace)?)
            }
            (None, true) => {
                bail!("--plugin-config-maps wants --plugins DIR, the directory that they are made from")
            }
            (_, false) => PluginSource::Image(options.plugin_image.clone()),
        };
        if options.required.policies.is_empty() {
            bail!("--policy names no policy; name at least one, or nothing judges claims");
        }
        Ok(Self {
            name: options.name.clone(),
            namespace: options.namespace.clone(),
            image: options.image.clone(),
            replicas: i32::from(options.replicas),
            installation: options.installation.clone(),
            cluster: options.cluster.clone(),
            resolver: options.required.resolver.clone(),
            policies: options.required.policies.clone(),
            plugins: source,
            kinds,
            state: options.state,
            state_size: options.state_size.clone(),
            service_monitor: options.service_monitor,
            metrics_from: options.metrics_from.clone(),
        })
    }

    /// What these words after `hostler manifests` ask for.
    ///
    /// # Errors
    /// As [`Site::of`], and for words that are none.
    pub fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let args = ["hostler", "manifests"].iter().chain(words);
        match Args::try_parse_from(args)?.command {
            Command::Manifests(options) => Self::of(&options),
            other => bail!("{other:?} are no manifests"),
        }
    }

    /// Metadata of an object in the host's namespace; `suffix` comes after the common name.
    fn at_home(&self, suffix: &str) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(self.namespace.clone()),
            ..self.anywhere(suffix)
        }
    }

    /// Metadata of an object that has no namespace.
    fn anywhere(&self, suffix: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(format!("{}{suffix}", self.name)),
            labels: Some(self.labels()),
            ..ObjectMeta::default()
        }
    }

    fn labels(&self) -> std::collections::BTreeMap<String, String> {
        [
            ("app.kubernetes.io/name", "hostler"),
            ("app.kubernetes.io/instance", self.name.as_str()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }
}

/// Everything, in the order in which it is applied.
///
/// # Errors
/// An object without a JSON form: none of ours.
pub fn parts(site: &Site) -> anyhow::Result<Vec<Part>> {
    let mut parts = vec![
        part("00-namespace", [json(&namespace(site))?]),
        part("10-definitions", definitions()?),
        part(
            "20-rights",
            std::iter::once(json(&account(site)))
                .chain(roles::objects(site).iter().map(json))
                .collect::<anyhow::Result<Vec<_>>>()?,
        ),
        part(
            "21-rights-of-people",
            people::objects(site)
                .iter()
                .map(json)
                .collect::<anyhow::Result<Vec<_>>>()?,
        ),
    ];
    if let PluginSource::ConfigMaps(maps) = &site.plugins {
        parts.push(part(
            "30-plugins",
            maps.iter().map(json).collect::<anyhow::Result<Vec<_>>>()?,
        ));
    }
    parts.push(part("40-host", workload::objects(site)?));
    Ok(parts)
}

/// Rights of the user by which the host comes to a tenant's API, bound to that user.
///
/// # Errors
/// As [`parts`].
pub fn tenant_part(user: &str) -> anyhow::Result<Part> {
    let objects = roles::of_tenant(user);
    Ok(part(
        "tenant-rights",
        objects.iter().map(json).collect::<anyhow::Result<Vec<_>>>()?,
    ))
}

pub(crate) fn main(options: &ManifestsOptions) -> anyhow::Result<ExitCode> {
    if options.rights {
        say(table::markdown().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(user) = &options.tenant {
        return print(&[tenant_part(user)?], options.out.as_deref());
    }
    if let Some(folder) = &options.helm {
        let kinds = match &options.plugins {
            Some(folder) => plugins::kinds(folder, &options.plurals)?,
            None => Vec::new(),
        };
        for (path, text) in chart::files(&kinds)? {
            write(&folder.join(path), &text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let site = Site::of(options)?;
    if site.kinds.is_empty() {
        crate::telemetry::complain(&anyhow::anyhow!(
            "no rights on machines: name the directory of your plugins and their operator files with --plugins DIR, and the \
             host gets what those grant"
        ));
    }
    print(&parts(&site)?, options.out.as_deref())
}

fn print(parts: &[Part], out: Option<&Path>) -> anyhow::Result<ExitCode> {
    for part in parts {
        let text = text::stream(&part.objects)?;
        match out {
            Some(folder) => write(&folder.join(format!("{}.yaml", part.name)), &text)?,
            None => say(text.trim_end()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("{} cannot be written", path.display()))
}

fn part(name: &'static str, objects: impl Into<Vec<Value>>) -> Part {
    Part {
        name,
        objects: objects.into(),
    }
}

fn definitions() -> anyhow::Result<Vec<Value>> {
    hostler_api::all_crds().iter().map(json).collect()
}

/// The namespace, held to the strictest of the standards for pods: the host needs nothing beyond it.
fn namespace(site: &Site) -> Namespace {
    let mut labels = site.labels();
    for mode in ["enforce", "warn"] {
        labels.insert(
            format!("pod-security.kubernetes.io/{mode}"),
            "restricted".to_owned(),
        );
    }
    Namespace {
        metadata: ObjectMeta {
            name: Some(site.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

fn account(site: &Site) -> ServiceAccount {
    ServiceAccount {
        metadata: site.at_home(""),
        // Only the pods that say so get the token.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

fn json(object: &impl Serialize) -> anyhow::Result<Value> {
    serde_json::to_value(object).context("an object has no JSON form")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn site() -> Site {
        Site::parse(&[]).unwrap()
    }

    fn all(site: &Site) -> Vec<Value> {
        parts(site)
            .unwrap()
            .into_iter()
            .flat_map(|part| part.objects)
            .collect()
    }

    #[test]
    fn every_object_says_what_it_is_and_no_two_are_one() {
        let mut seen = std::collections::BTreeSet::new();
        for object in all(&Site::parse(&["--service-monitor", "--state", "empty-dir"]).unwrap()) {
            let text = |pointer: &str| {
                object
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let key = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            assert!(
                !text("/apiVersion").is_empty() && !key.0.is_empty() && !key.2.is_empty(),
                "{object}"
            );
            assert!(seen.insert(key.clone()), "{key:?} is there twice");
        }
    }

    #[test]
    fn nothing_is_granted_on_machines_without_an_operator_file() {
        for object in all(&site()) {
            let is_definition = object["kind"] == "CustomResourceDefinition";
            assert!(
                is_definition || !object.to_string().contains("metal3"),
                "{object}"
            );
        }
    }

    #[test]
    fn another_name_is_another_name_everywhere() {
        let site = Site::parse(&["--name", "second", "--namespace", "elsewhere"]).unwrap();
        for object in all(&site) {
            if object["kind"] == "CustomResourceDefinition" {
                continue;
            }
            let name = object["metadata"]["name"].as_str().unwrap();
            assert!(name.starts_with("second") || name == "elsewhere", "{name}");
            assert!(!object.to_string().contains("hostler-system"), "{object}");
        }
    }
}
