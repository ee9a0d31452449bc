//! The plugin directory as `hostler manifests` needs it: which kinds the operator grants, and components as `ConfigMaps`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hostler_core::grant::{Grant, KindGrant};
use hostler_core::seams::Access;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, GroupVersionKind};

/// What the API server takes in one `ConfigMap`: 1 MiB of values.
const LARGEST: usize = 1 << 20;
/// How names of components begin: by their world.
const WORLDS: [&str; 3] = ["driver-", "resolver-", "policy-"];

/// A kind that a driver was granted, with its plural.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The grant.
    pub grant: KindGrant,
    /// Plural of the kind.
    pub resource: String,
}

impl Kind {
    /// API group; empty for the core one.
    #[must_use]
    pub fn group(&self) -> &str {
        self.grant
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group)
    }

    /// What comes after the common name in names of its roles.
    pub(super) fn suffix(&self) -> String {
        let access = access(self.grant.access);
        match self.group() {
            "" => format!("-{access}-{}", self.resource),
            group => format!("-{access}-{}.{group}", self.resource),
        }
    }
}

/// An access as operator files write it.
pub(super) fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::BorrowFields => "borrow-fields",
        Access::Manage => "manage",
    }
}

/// The kinds that the operator files of a directory grant; `plurals` are `KIND.GROUP=PLURAL` where the usual rule fails.
pub(super) fn kinds(folder: &Path, plurals: &[(String, String)]) -> anyhow::Result<Vec<Kind>> {
    let mut found: BTreeMap<(String, String, Access), Kind> = BTreeMap::new();
    let files = operator_files(folder)?;
    if files.is_empty() {
        bail!(
            "{} holds no operator file (NAME.toml of a driver-, resolver- or policy- component); name the directory of your plugins",
            folder.display()
        );
    }
    for path in files {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("operator file {} cannot be read", path.display()))?;
        let grant = Grant::parse(&text).with_context(|| format!("operator file {}", path.display()))?;
        for granted in grant.kinds {
            let resource = plural(&granted, plurals);
            let key = (granted.api_version.clone(), resource.clone(), granted.access);
            match found.get_mut(&key) {
                Some(known) => known.grant.namespaces.extend(granted.namespaces),
                None => {
                    let grant = KindGrant {
                        // Which places are lent is for the host to check; the API server knows objects only.
                        places: Vec::new(),
                        service_account: None,
                        ..granted
                    };
                    found.insert(key, Kind { grant, resource });
                }
            }
        }
    }
    Ok(found
        .into_values()
        .map(|mut kind| {
            let all: BTreeSet<String> = kind.grant.namespaces.into_iter().collect();
            kind.grant.namespaces = if all.contains("*") {
                vec!["*".to_owned()]
            } else {
                all.into_iter().collect()
            };
            kind
        })
        .collect())
}

fn plural(granted: &KindGrant, plurals: &[(String, String)]) -> String {
    let (group, version) = granted
        .api_version
        .split_once('/')
        .unwrap_or(("", &granted.api_version));
    let full = format!("{}.{group}", granted.kind);
    let full = full.trim_end_matches('.');
    match plurals.iter().find(|(kind, _)| kind == full) {
        Some((_, plural)) => plural.clone(),
        None => ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &granted.kind)).plural,
    }
}

/// Components and operator files as `ConfigMaps`, one for each component, which together are mounted as the plugin directory.
pub(super) fn config_maps(folder: &Path, name: &str, namespace: &str) -> anyhow::Result<Vec<ConfigMap>> {
    let components: Vec<PathBuf> = files(folder)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "wasm"))
        .collect();
    if components.is_empty() {
        bail!(
            "{} holds no component; `hostler plugin build` puts them there",
            folder.display()
        );
    }
    components
        .iter()
        .map(|path| config_map(path, name, namespace))
        .collect()
}

fn config_map(path: &Path, name: &str, namespace: &str) -> anyhow::Result<ConfigMap> {
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let bytes =
        std::fs::read(path).with_context(|| format!("component {} cannot be read", path.display()))?;
    let grant = path.with_extension("toml");
    let grant = match std::fs::read_to_string(&grant) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(error).with_context(|| format!("operator file {} cannot be read", grant.display()));
        }
    };
    let size = bytes.len() + grant.as_ref().map_or(0, String::len);
    if size > LARGEST {
        bail!(
            "component {}: {size} bytes do not fit into a ConfigMap, which holds {LARGEST}; put the directory into an image and \
             name it with --plugin-image",
            path.display()
        );
    }
    Ok(ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{stem}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        data: grant.map(|text| [(format!("{stem}.toml"), text)].into()),
        binary_data: Some([(format!("{stem}.wasm"), ByteString(bytes))].into()),
        immutable: None,
    })
}

fn operator_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Ok(files(folder)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            WORLDS.iter().any(|world| stem.starts_with(world)) || path.with_extension("wasm").is_file()
        })
        .collect())
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unreadable = || format!("plugin directory {} cannot be read", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        paths.push(entry.with_context(unreadable)?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn grant(kind: &str, access: &str, namespaces: &str) -> String {
        format!(
            "[[kinds]]\napiVersion = \"metal3.io/v1alpha1\"\nkind = \"{kind}\"\naccess = \"{access}\"\nnamespaces = [{namespaces}]\n"
        )
    }

    #[test]
    fn two_drivers_with_one_kind_make_one_list_of_namespaces() {
        let folder = folder(&[
            (
                "driver-a.toml",
                &grant("BareMetalHost", "borrow-fields", "\"rack-2\", \"rack-1\""),
            ),
            (
                "driver-b.toml",
                &grant("BareMetalHost", "borrow-fields", "\"rack-2\", \"rack-3\""),
            ),
            ("plugin.toml", "no operator file"),
        ]);
        let kinds = kinds(folder.path(), &[]).unwrap();
        assert_eq!(kinds.len(), 1, "{kinds:?}");
        assert_eq!(kinds[0].resource, "baremetalhosts");
        assert_eq!(kinds[0].grant.namespaces, ["rack-1", "rack-2", "rack-3"]);
        assert_eq!(kinds[0].suffix(), "-borrow-fields-baremetalhosts.metal3.io");
    }

    #[test]
    fn a_plural_that_no_rule_makes_can_be_named() {
        let folder = folder(&[(
            "driver-a.toml",
            &grant("HardwareData", "read", "\"*\", \"rack-1\""),
        )]);
        let named = [("HardwareData.metal3.io".to_owned(), "hardwaredata".to_owned())];
        let kinds = kinds(folder.path(), &named).unwrap();
        assert_eq!(kinds[0].resource, "hardwaredata");
        assert_eq!(kinds[0].grant.namespaces, ["*"]);
    }

    #[test]
    fn a_bad_operator_file_is_named_and_so_is_an_empty_directory() {
        let bad = folder(&[("driver-a.toml", "[limit]")]);
        let error = format!("{:#}", kinds(bad.path(), &[]).unwrap_err());
        assert!(
            error.contains("driver-a.toml") && error.contains("unknown field"),
            "{error}"
        );
        let error = format!("{:#}", kinds(folder(&[]).path(), &[]).unwrap_err());
        assert!(error.contains("holds no operator file"), "{error}");
    }

    #[test]
    fn a_component_and_its_operator_file_share_a_config_map_if_they_fit() {
        let folder = folder(&[
            ("driver-a.wasm", "\0asm"),
            ("driver-a.toml", "[settings]\n"),
            ("policy-b.wasm", "\0asm"),
        ]);
        let maps = config_maps(folder.path(), "hostler", "home").unwrap();
        let names: Vec<_> = maps
            .iter()
            .map(|map| map.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(names, ["hostler-driver-a", "hostler-policy-b"]);
        assert!(maps[0].data.as_ref().unwrap().contains_key("driver-a.toml") && maps[1].data.is_none());
        std::fs::write(folder.path().join("driver-a.wasm"), vec![0; LARGEST]).unwrap();
        let error = config_maps(folder.path(), "hostler", "home")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("driver-a.wasm") && error.contains("--plugin-image"),
            "{error}"
        );
    }
}
