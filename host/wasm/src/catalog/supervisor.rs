//! Keeps the set true to the directory: reads, loads, tries, swaps, remembers.
//!
//! Each name is loaded in a task of its own, so that a component which keeps the compiler busy for a minute holds up nobody else.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use super::changes::{inode, watch};
use super::loader::{Identity, Loader};
use super::set::OnDisk;
use super::{Options, Shared};
use crate::call::Health;
use crate::compile::Compiler;
use crate::component::Version;
use crate::engine::Sandbox;
use crate::error::LoadError;
use crate::source::{self, Found};
use crate::store::{Record, StateDir};
use crate::text;

/// After a failure that may pass, the same bytes are tried again after this, then after twice as long, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(15);
const LONGEST_RETRY: Duration = Duration::from_secs(600);

/// Attempts to bring back what served before the restart, and the pause between them.
const KEPT_TRIES: u32 = 3;
const KEPT_PAUSE: Duration = Duration::from_secs(2);

/// A directory that never settles is read all the same after so many times the settling time.
const UNREST: u32 = 10;

/// Owns all that changes.
pub(super) struct Supervisor {
    options: Options,
    shared: Arc<Shared>,
    loader: Arc<Loader>,
    record: Record,
    loads: JoinSet<Result<Version, LoadError>>,
    /// What is being loaded, by name.
    loading: HashMap<String, Load>,
    failed: HashMap<String, Failed>,
    /// One per name, for ever: the count of faults must not start again with a new file.
    health: HashMap<String, Arc<Health>>,
}

struct Load {
    identity: Identity,
    purpose: Purpose,
    task: AbortHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To serve under its name.
    Serve,
    /// To serve again what served before the restart.
    Restore,
    /// For orders that name its digest.
    Keep,
}

struct Failed {
    identity: Identity,
    tries: u32,
    again: Option<Instant>,
}

impl Supervisor {
    pub(super) fn new(
        options: Options,
        shared: Arc<Shared>,
        sandbox: Arc<Sandbox>,
        compiler: Compiler,
        state: Arc<StateDir>,
        record: Record,
    ) -> Self {
        let loader = Arc::new(Loader {
            sandbox,
            compiler,
            state,
            shared: shared.clone(),
        });
        Self {
            options,
            shared,
            loader,
            record,
            loads: JoinSet::new(),
            loading: HashMap::new(),
            failed: HashMap::new(),
            health: HashMap::new(),
        }
    }

    /// Runs until it is dropped. Says `ready` once everything that stood there at the start was loaded or has failed.
    pub(super) async fn run(mut self, ready: oneshot::Sender<()>) {
        let mut ready = Some(ready);
        // What served last comes first: it was good, and mostly its code is there.
        self.restore();
        self.finish_loads().await;
        let (changes, mut changed) = mpsc::channel(1);
        let mut watched = inode(&self.options.directory);
        let mut watcher = watch(&self.options.directory, changes.clone());
        self.scan().await;
        let mut rescan = tokio::time::interval(self.options.rescan);
        rescan.set_missed_tick_behavior(MissedTickBehavior::Delay);
        rescan.reset();
        let mut unrest: Option<(Instant, Instant)> = None;
        loop {
            if self.loads.is_empty() {
                ready.take().map(|ready| ready.send(()));
            }
            let settled = unrest
                .map(|(first, last)| (last + self.options.settle).min(first + self.options.settle * UNREST));
            tokio::select! {
                Some(done) = self.loads.join_next_with_id() => self.finish(done),
                _ = changed.recv() => {
                    let now = Instant::now();
                    unrest = Some((unrest.map_or(now, |(first, _)| first), now));
                }
                () = sleep_until(settled.unwrap_or_else(Instant::now)), if settled.is_some() => {
                    unrest = None;
                    self.scan().await;
                }
                _ = rescan.tick() => {
                    // The directory may be another one by now, and the watch on one that is gone is deaf.
                    let now = inode(&self.options.directory);
                    if watcher.is_none() || now != watched {
                        watched = now;
                        watcher = watch(&self.options.directory, changes.clone());
                    }
                    self.scan().await;
                    self.sweep().await;
                }
                () = self.shared.rescan.notified() => self.scan().await,
                () = self.shared.retain.notified() => self.sweep().await,
            }
        }
    }

    /// Starts to load what served last, and what orders may name.
    fn restore(&mut self) {
        let serving: Vec<_> = self.record.serving.clone().into_iter().collect();
        let mut served = BTreeSet::new();
        for (name, last) in serving {
            served.insert(last.digest.clone());
            let identity = Identity {
                digest: last.digest,
                grant: last.grant,
            };
            self.load_kept(&name, identity, Purpose::Restore);
        }
        let kept: Vec<_> = self.record.kept.clone().into_iter().collect();
        for (digest, kept) in kept {
            if !served.contains(&digest) {
                let identity = Identity {
                    digest,
                    grant: kept.grant,
                };
                self.load_kept(&kept.name, identity, Purpose::Keep);
            }
        }
    }

    fn load_kept(&mut self, name: &str, identity: Identity, purpose: Purpose) {
        let (loader, largest) = (self.loader.clone(), self.options.largest);
        let (owned, wanted, health) = (name.to_owned(), identity.clone(), self.health(name));
        let task = self.loads.spawn(async move {
            // It was good once, so what is wrong now is more likely the machine than the component.
            let mut tries = 1;
            loop {
                let bytes = loader.read_kept(&wanted.digest, largest).await?;
                match loader.load(&owned, bytes, wanted.clone(), health.clone()).await {
                    Err(error) if error.is_passing() && tries < KEPT_TRIES => {
                        tracing::warn!(plugin = owned, %error, "cannot be brought back yet; trying again");
                        tries += 1;
                        tokio::time::sleep(KEPT_PAUSE).await;
                    }
                    done => return done,
                }
            }
        });
        self.note_load(name, identity, purpose, task);
    }

    fn note_load(&mut self, name: &str, identity: Identity, purpose: Purpose, task: AbortHandle) {
        // Versions for orders share names, so they are told apart by digest.
        let key = match purpose {
            Purpose::Serve | Purpose::Restore => name.to_owned(),
            Purpose::Keep => format!("{name} {}", identity.digest),
        };
        if let Some(earlier) = self.loading.insert(
            key,
            Load {
                identity,
                purpose,
                task,
            },
        ) {
            earlier.task.abort();
        }
    }

    async fn finish_loads(&mut self) {
        while let Some(done) = self.loads.join_next_with_id().await {
            self.finish(done);
        }
    }

    fn finish(&mut self, done: Result<(Id, Result<Version, LoadError>), JoinError>) {
        let (id, result) = match done {
            Ok((id, result)) => (id, result),
            Err(error) if error.is_cancelled() => return,
            Err(error) => (
                error.id(),
                Err(LoadError::StateFailed(text::message(&error.to_string()))),
            ),
        };
        let Some(key) = self
            .loading
            .iter()
            .find(|(_, load)| load.task.id() == id)
            .map(|(key, _)| key.clone())
        else {
            return;
        };
        let Some(Load {
            identity, purpose, ..
        }) = self.loading.remove(&key)
        else {
            return;
        };
        let name = key.split(' ').next().unwrap_or_default();
        match (result, purpose) {
            (Ok(version), Purpose::Serve | Purpose::Restore) => self.serve(name, identity, version),
            (Ok(version), Purpose::Keep) => {
                self.shared.swap(|set| set.set_aside(name, Arc::new(version)));
            }
            (Err(error), Purpose::Serve) => self.refuse(name, identity, error),
            // Not held against the bytes: the same ones may stand in the directory, which is read next.
            (Err(error), Purpose::Restore) => {
                tracing::error!(plugin = name, digest = identity.digest, %error,
                    "what served last cannot be brought back");
            }
            (Err(error), Purpose::Keep) => {
                tracing::error!(plugin = name, digest = identity.digest, %error,
                    "a component that orders may name cannot be loaded; they wait for it");
            }
        }
    }

    fn serve(&mut self, name: &str, identity: Identity, version: Version) {
        self.failed.remove(name);
        tracing::info!(
            plugin = name,
            digest = identity.digest,
            world = version.loaded.facts.world_and_version(),
            "now serving"
        );
        let health = self.health(name);
        self.shared
            .swap(|set| set.serve(name, Arc::new(version), || health));
        self.record.serves(name, &identity.digest, identity.grant);
        self.write_record();
    }

    fn refuse(&mut self, name: &str, identity: Identity, error: LoadError) {
        let tries = self
            .failed
            .get(name)
            .filter(|f| f.identity == identity)
            .map_or(0, |f| f.tries)
            + 1;
        let delay = FIRST_RETRY
            .saturating_mul(1 << (tries - 1).min(16))
            .min(LONGEST_RETRY);
        let again = error.is_passing().then(|| Instant::now() + delay);
        self.failed.insert(
            name.to_owned(),
            Failed {
                identity,
                tries,
                again,
            },
        );
        self.note_error(name, error);
    }

    /// Shows an error, once.
    fn note_error(&mut self, name: &str, error: LoadError) {
        let set = self.shared.set();
        if set
            .entry(name)
            .is_some_and(|entry| entry.error.as_ref() == Some(&error))
        {
            return;
        }
        if error != LoadError::Loading {
            let serving = set.serving(name).map(|version| version.loaded.digest.clone());
            tracing::warn!(
                plugin = name,
                code = error.code(),
                serving,
                "{}",
                error.reason(name).text()
            );
        }
        let health = self.health(name);
        self.shared
            .swap(|set| set.entry_or(name, || health).error = Some(error));
    }

    fn health(&mut self, name: &str) -> Arc<Health> {
        let generation = &self.shared.generation;
        self.health
            .entry(name.to_owned())
            .or_insert_with(|| Health::new(generation.clone()))
            .clone()
    }

    /// Reads the directory and starts to load what is new. A directory that cannot be read changes nothing.
    async fn scan(&mut self) {
        let directory = self.options.directory.clone();
        let paths = match spawn_blocking(move || source::list(&directory)).await {
            Ok(Ok(paths)) => paths,
            Ok(Err(error)) => {
                let directory = self.options.directory.display();
                tracing::error!(%directory, %error, "the plugin directory cannot be read; all that serves goes on");
                return;
            }
            Err(_) => return,
        };
        let mut there = BTreeSet::new();
        for path in paths {
            let (largest, set) = (self.options.largest, self.shared.set());
            let looked = spawn_blocking(move || {
                let found = source::find(&path, largest);
                let before = set.entry(&found.name).and_then(|entry| entry.on_disk.as_ref());
                let on_disk = OnDisk::of(&found, before);
                (found, on_disk)
            });
            let Ok((found, on_disk)) = looked.await else {
                continue;
            };
            if !there.insert(found.name.clone()) {
                tracing::warn!(
                    plugin = found.name,
                    "two files of the plugin directory share this name"
                );
                continue;
            }
            self.see(&found.name, &on_disk);
            self.consider(found, on_disk);
        }
        let names: Vec<String> = self.shared.set().names().cloned().collect();
        for name in names {
            if !there.contains(&name) {
                self.miss(&name);
            }
        }
    }

    /// One file: unchanged, or known to be bad, or to be loaded.
    fn consider(&mut self, found: Found, on_disk: OnDisk) {
        let Found {
            name,
            component,
            grant,
        } = found;
        let (bytes, digest, grant) = match (component, on_disk.digest, grant) {
            (Ok(bytes), Some(digest), Ok(grant)) => (bytes, digest, grant),
            (Err(error), ..) | (Ok(_), _, Err(error)) => return self.stop_and_note(&name, error),
            (Ok(_), None, Ok(_)) => return,
        };
        let identity = Identity { digest, grant };
        let set = self.shared.set();
        let serves = set
            .serving(&name)
            .is_some_and(|v| v.loaded.digest == identity.digest && v.grant_text == identity.grant);
        if serves {
            self.failed.remove(&name);
            if let Some(load) = self.loading.remove(&name) {
                load.task.abort();
            }
            if set.entry(&name).is_some_and(|entry| entry.error.is_some()) {
                let health = self.health(&name);
                self.shared
                    .swap(|set| set.entry_or(&name, || health).error = None);
            }
            return;
        }
        if self
            .loading
            .get(&name)
            .is_some_and(|load| load.identity == identity)
        {
            return;
        }
        let known_bad = self
            .failed
            .get(&name)
            .filter(|failed| failed.identity == identity);
        if known_bad.is_some_and(|failed| failed.again.is_none_or(|again| Instant::now() < again)) {
            return;
        }
        let same_code = set.entry(&name).and_then(|entry| entry.serving.clone());
        let same_code = same_code
            .filter(|v| v.loaded.digest == identity.digest)
            .map(|v| v.loaded.clone());
        if set.serving(&name).is_none() && known_bad.is_none() {
            self.note_error(&name, LoadError::Loading);
        }
        let (loader, owned, wanted) = (self.loader.clone(), name.clone(), identity.clone());
        let health = self.health(&name);
        let task = self.loads.spawn(async move {
            match same_code {
                Some(loaded) => loader.activate(&owned, loaded, wanted.grant, health).await,
                None => loader.load(&owned, bytes, wanted, health).await,
            }
        });
        self.note_load(&name, identity, Purpose::Serve, task);
    }

    /// Notes what stands in the directory.
    fn see(&mut self, name: &str, on_disk: &OnDisk) {
        let set = self.shared.set();
        if set.entry(name).and_then(|entry| entry.on_disk.as_ref()) != Some(on_disk) {
            let health = self.health(name);
            self.shared
                .swap(|set| set.entry_or(name, || health).on_disk = Some(on_disk.clone()));
        }
    }

    fn stop_and_note(&mut self, name: &str, error: LoadError) {
        if let Some(load) = self.loading.remove(name) {
            load.task.abort();
        }
        self.note_error(name, error);
    }

    /// A file is gone. What is required goes on; a driver goes on for the orders that name it, and takes no new ones.
    fn miss(&mut self, name: &str) {
        self.failed.remove(name);
        if let Some(load) = self.loading.remove(name) {
            load.task.abort();
        }
        let set = self.shared.set();
        if self.shared.is_required(name) && set.serving(name).is_some() {
            if set.entry(name).is_some_and(|entry| entry.on_disk.is_some()) {
                let health = self.health(name);
                self.shared
                    .swap(|set| set.entry_or(name, || health).on_disk = None);
            }
            return self.note_error(name, LoadError::FileMissing);
        }
        tracing::info!(
            plugin = name,
            "gone from the plugin directory, and no longer serving"
        );
        self.shared.swap(|set| set.withdraw(name));
        if self.record.serving.remove(name).is_some() {
            self.write_record();
        }
    }

    /// Drops what no order names. What was set aside a moment ago stays: an order that was frozen meanwhile may name it.
    async fn sweep(&mut self) {
        let retained = self
            .shared
            .retained
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(mut digests) = retained else { return };
        let set = self.shared.set();
        digests.extend(set.lately(self.options.grace).cloned());
        // A swap that changes nothing would wake everybody, and whoever is awake asks for the next sweep.
        if set.has_earlier_than(&digests) {
            self.shared.swap(|set| set.drop_earlier(&digests));
        }
        let kept = self.record.kept.clone();
        digests.extend(self.loading.values().map(|load| load.identity.digest.clone()));
        let mut left = self.record.retain(&digests);
        if self.record.kept != kept {
            self.write_record();
        }
        left.extend(digests);
        let state = self.loader.state.clone();
        match spawn_blocking(move || state.sweep(&left)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot drop components that nobody names"),
            Err(error) => tracing::warn!(%error, "cannot drop components that nobody names"),
        }
    }

    fn write_record(&self) {
        if let Err(error) = self.loader.state.write_record(&self.record) {
            tracing::error!(%error, "cannot record what serves; after a restart, what is in the directory counts alone");
        }
    }
}
