//! The set that serves: immutable, cheap to copy, swapped whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hostler_core::seams::{PluginState, Reason};
use serde_json::Value;
use tokio::time::Instant;

use crate::call::Health;
use crate::component::Version;
use crate::error::LoadError;
use crate::source::Found;
use crate::{grants, inspect};

/// Everything that is known at one moment.
#[derive(Clone, Default)]
pub(super) struct Set {
    entries: BTreeMap<String, Entry>,
    /// Drivers that orders may still name though something newer serves, by name and digest.
    earlier: BTreeMap<(String, String), Earlier>,
}

/// A driver that no longer serves under its name.
#[derive(Clone)]
struct Earlier {
    version: Arc<Version>,
    since: Instant,
}

/// One name.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) serving: Option<Arc<Version>>,
    /// The file in the directory, as it was read last.
    pub(super) on_disk: Option<OnDisk>,
    /// Why the newest file does not serve.
    pub(super) error: Option<LoadError>,
    pub(super) health: Arc<Health>,
}

/// What is known of a file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct OnDisk {
    /// None if it cannot be read.
    pub(super) digest: Option<String>,
    size: Option<u64>,
    world: Option<String>,
}

impl OnDisk {
    /// Looks at what was read. What it is for is worked out once for the same bytes: that takes a while for large ones.
    pub(super) fn of(found: &Found, before: Option<&Self>) -> Self {
        let Ok(bytes) = &found.component else {
            return Self {
                digest: None,
                size: None,
                world: None,
            };
        };
        let digest = hostler_core::digest::of(bytes);
        if let Some(before) = before.filter(|before| before.digest.as_ref() == Some(&digest)) {
            return before.clone();
        }
        Self {
            digest: Some(digest),
            size: Some(bytes.len() as u64),
            world: inspect::world_and_version(bytes),
        }
    }
}

impl Set {
    pub(super) fn serving(&self, name: &str) -> Option<&Arc<Version>> {
        self.entries.get(name)?.serving.as_ref()
    }

    pub(super) fn exactly(&self, name: &str, digest: &str) -> Option<&Arc<Version>> {
        self.serving(name)
            .filter(|version| version.loaded.digest == digest)
            .or_else(|| Some(&self.earlier.get(&(name.to_owned(), digest.to_owned()))?.version))
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.entries.keys()
    }

    pub(super) fn entry_or(&mut self, name: &str, health: impl FnOnce() -> Arc<Health>) -> &mut Entry {
        self.entries.entry(name.to_owned()).or_insert_with(|| Entry {
            serving: None,
            on_disk: None,
            error: None,
            health: health(),
        })
    }

    /// Takes a version into service; a driver that served before stays for the orders that name it.
    pub(super) fn serve(&mut self, name: &str, version: Arc<Version>, health: impl FnOnce() -> Arc<Health>) {
        let digest = version.loaded.digest.clone();
        let entry = self.entry_or(name, health);
        entry.error = None;
        if let Some(before) = entry.serving.replace(version) {
            self.set_aside(name, before);
        }
        self.earlier.remove(&(name.to_owned(), digest));
    }

    /// Takes a name out of service.
    pub(super) fn withdraw(&mut self, name: &str) {
        if let Some(Entry {
            serving: Some(before),
            ..
        }) = self.entries.remove(name)
        {
            self.set_aside(name, before);
        }
    }

    /// Keeps a driver for the orders that name it.
    pub(super) fn set_aside(&mut self, name: &str, version: Arc<Version>) {
        if version.loaded.driver().is_some() {
            let key = (name.to_owned(), version.loaded.digest.clone());
            self.earlier.insert(
                key,
                Earlier {
                    version,
                    since: Instant::now(),
                },
            );
        }
    }

    /// Digests of drivers that were set aside so lately that an order which names them may not have been seen yet.
    pub(super) fn lately(&self, grace: Duration) -> impl Iterator<Item = &String> {
        let lately = move |earlier: &Earlier| earlier.since.elapsed() < grace;
        self.earlier
            .iter()
            .filter(move |(_, earlier)| lately(earlier))
            .map(|((_, digest), _)| digest)
    }

    pub(super) fn has_earlier_than(&self, kept: &BTreeSet<String>) -> bool {
        self.earlier.keys().any(|(_, digest)| !kept.contains(digest))
    }

    pub(super) fn drop_earlier(&mut self, kept: &BTreeSet<String>) {
        self.earlier.retain(|(_, digest), _| kept.contains(digest));
    }

    pub(super) fn states(&self) -> BTreeMap<String, PluginState> {
        self.entries
            .iter()
            .map(|(name, entry)| (name.clone(), entry.state(name)))
            .collect()
    }
}

impl Entry {
    fn state(&self, name: &str) -> PluginState {
        let serving = self.serving.as_ref();
        let disk = self.on_disk.as_ref();
        let rest = serving.and_then(|version| version.runner.rest());
        let error = self.error.as_ref().map(|error| error.reason(name)).or(rest);
        PluginState {
            name: name.to_owned(),
            serving: serving.map(|version| version.loaded.digest.clone()),
            on_disk: disk.and_then(|disk| disk.digest.clone()),
            world: serving
                .map(|version| version.loaded.facts.world_and_version())
                .or_else(|| disk.and_then(|disk| disk.world.clone())),
            size: serving
                .map(|version| version.loaded.size)
                .or_else(|| disk.and_then(|disk| disk.size)),
            grant: serving.map_or(Value::Null, |version| grants::shown(&version.grant)),
            healthy: error.is_none() && serving.is_some(),
            error,
            faults: self.health.faults(),
        }
    }
}

/// The state of a required component that was never there.
pub(super) fn absent(name: &str) -> PluginState {
    let what = format!("{name} is required and not in the plugin directory");
    PluginState {
        name: name.to_owned(),
        serving: None,
        on_disk: None,
        world: None,
        size: None,
        grant: Value::Null,
        healthy: false,
        error: Some(
            Reason::new("FileMissing", what)
                .remedy(format!("put {name}.wasm there; `make plugins` builds ours")),
        ),
        faults: 0,
    }
}
