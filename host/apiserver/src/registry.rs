//! The kinds that a cluster serves: the built-in ones, and those of its established definitions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::resource::Resource;
use crate::status::qualified;
use crate::store::object::Stored;
use crate::store::table::Change;
use crate::{builtin, crd};

/// Table of the definitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

static BUILTIN: LazyLock<Arc<Registry>> =
    LazyLock::new(|| Arc::new(Registry::of(builtin::resources(), BTreeMap::new())));

/// The kinds of one cluster at one moment.
#[derive(Debug)]
pub(crate) struct Registry {
    all: Vec<Resource>,
    builtin: usize,
    custom: BTreeMap<String, Vec<Resource>>,
    by_path: HashMap<(String, String, String), usize>,
}

impl Registry {
    /// The built-in kinds.
    pub(crate) fn builtin() -> Arc<Self> {
        BUILTIN.clone()
    }

    fn of(builtin: Vec<Resource>, custom: BTreeMap<String, Vec<Resource>>) -> Self {
        let count = builtin.len();
        let mut all = builtin;
        all.extend(custom.values().flatten().cloned());
        let by_path = all
            .iter()
            .enumerate()
            .map(|(index, found)| {
                (
                    (found.group.clone(), found.version.clone(), found.plural.clone()),
                    index,
                )
            })
            .collect();
        Self {
            all,
            builtin: count,
            custom,
            by_path,
        }
    }

    /// The registry after a change of a definition.
    pub(crate) fn with(&self, change: &Change) -> Arc<Self> {
        if change.deleted {
            self.replace(&change.object.key.name, Vec::new())
        } else {
            self.with_definition(&change.object)
        }
    }

    /// The registry with a definition as it now is.
    pub(crate) fn with_definition(&self, definition: &Stored) -> Arc<Self> {
        let object = definition.value();
        let mut resources = if is_established(&object) {
            crd::resources_of(&object).unwrap_or_default()
        } else {
            Vec::new()
        };
        for resource in &mut resources {
            resource.since = definition.revision;
        }
        self.replace(&definition.key.name, resources)
    }

    fn replace(&self, definition: &str, resources: Vec<Resource>) -> Arc<Self> {
        let mut custom = self.custom.clone();
        if resources.is_empty() {
            custom.remove(definition);
        } else {
            custom.insert(definition.to_owned(), resources);
        }
        Arc::new(Self::of(self.all[..self.builtin].to_vec(), custom))
    }

    /// Everything that is served.
    pub(crate) fn all(&self) -> &[Resource] {
        &self.all
    }

    /// Index of the resource of a path.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<usize> {
        self.by_path
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .copied()
    }

    /// The resource of a kind, for an owner reference.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let of_kind = || {
            self.all
                .iter()
                .filter(|found| found.group == group && found.kind == kind)
        };
        of_kind()
            .find(|found| found.version == version)
            .or_else(|| of_kind().next())
    }

    /// The resource whose objects are in a table.
    pub(crate) fn by_table(&self, table: &str) -> Option<&Resource> {
        let in_table = || {
            self.all
                .iter()
                .filter(|found| crate::registry::table(found) == table)
        };
        in_table()
            .find(|found| {
                found.version == found.storage_version && builtin::storage_group(found) == found.group
            })
            .or_else(|| in_table().next())
    }

    /// Names in the group of a definition that other definitions or built-in kinds have: kinds and words for them.
    pub(crate) fn taken(&self, group: &str, except: &str) -> (Vec<&str>, Vec<&str>) {
        let others = self
            .all
            .iter()
            .filter(|found| found.group == group && qualified(&found.group, &found.plural) != except);
        let (mut kinds, mut words) = (Vec::new(), Vec::new());
        for other in others {
            kinds.extend([other.kind.as_str(), other.list_kind.as_str()]);
            words.extend([other.plural.as_str(), other.singular.as_str()]);
            words.extend(other.short_names.iter().map(String::as_str));
        }
        (kinds, words)
    }
}

/// Table in which the objects of a resource are kept.
pub(crate) fn table(resource: &Resource) -> String {
    qualified(builtin::storage_group(resource), &resource.plural)
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Established" && one["status"] == "True")
}
