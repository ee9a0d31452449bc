//! A directory of components, and the set of them that serves.
//!
//! The set is immutable and swapped whole: a call works with what it was given, whatever is swapped meanwhile. One task, the
//! supervisor, reads the directory, loads what is new, and swaps. Identity is content: the digest of the component together with
//! the text of its operator file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use hostler_core::seams::{Driver, Failure, PluginState, Plugins, Policy, Reason, Resolver};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

mod changes;
mod loader;
mod set;
mod supervisor;

use crate::compile::{CompileLimits, CompileWith, Compiler};
use crate::engine::Sandbox;
use crate::source;
use crate::store::StateDir;
use crate::v0_1::{DriverHandle, PolicyHandle, ResolverHandle};
use set::Set;
use supervisor::Supervisor;

/// How to open a [`Catalog`].
#[derive(Clone)]
pub struct Options {
    /// Where components and operator files are put.
    pub directory: PathBuf,
    /// Where the host keeps bytes by digest, compiled code and the record of what served. Nobody else may write there.
    pub state: PathBuf,
    /// Components that must be there.
    pub required: Required,
    /// Where components are compiled.
    pub compile: CompileWith,
    /// Bounds of one compilation.
    pub compile_limits: CompileLimits,
    /// The sandbox; the one of this process if none is given.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The directory is read again after so long, changed or not: mounted volumes change without saying so.
    pub rescan: Duration,
    /// After a change, it is read when nothing has changed for so long: copies take a while.
    pub settle: Duration,
    /// Size of the largest component that is taken.
    pub largest: u64,
    /// A driver that no longer serves is kept at least so long, named or not: whoever names it may not have been heard yet.
    pub grace: Duration,
    /// Opening waits at most so long for everything to be loaded; the rest follows.
    pub patience: Duration,
}

/// Components that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// Name of the resolver.
    pub resolver: String,
    /// Names of the policies. Until each is loaded, everything is denied.
    pub policies: Vec<String>,
}

/// Why a catalog cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no plugin directory.
    #[error(
        "plugin directory {path} cannot be read: {source}; create it and put components there, `make plugins` builds ours"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error("state directory {path} cannot be used: {source}; it must be writable and belong to this user")]
    State {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No engine.
    #[error("this machine cannot run components: {0}")]
    Sandbox(String),
}

/// The components that are loaded, kept up to date with their directory for as long as this lives.
pub struct Catalog {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    _supervisor: AbortOnDropHandle<()>,
}

/// What readers and the supervisor share.
struct Shared {
    set: RwLock<Arc<Set>>,
    required: Required,
    generation: watch::Sender<u64>,
    /// What orders name, once they have said so.
    retained: Mutex<Option<BTreeSet<String>>>,
    retain: Notify,
    rescan: Notify,
}

impl Options {
    /// The usual ones: our resolver and our allowlist are required.
    pub fn new(directory: impl Into<PathBuf>, state: impl Into<PathBuf>, compile: CompileWith) -> Self {
        Self {
            directory: directory.into(),
            state: state.into(),
            required: Required::default(),
            compile,
            compile_limits: CompileLimits::default(),
            sandbox: None,
            rescan: Duration::from_secs(30),
            settle: Duration::from_millis(300),
            largest: source::LARGEST,
            grace: Duration::from_secs(600),
            patience: Duration::from_secs(30),
        }
    }
}

impl Default for Required {
    fn default() -> Self {
        Self {
            resolver: "resolver-precedence".to_owned(),
            policies: vec!["policy-allowlist".to_owned()],
        }
    }
}

impl Catalog {
    /// Brings back what served last, reads the directory, loads what is new, and keeps at it.
    ///
    /// A file that does not load is no error of this: see [`Plugins::states`].
    ///
    /// # Errors
    /// Where there is no plugin directory, no usable state directory, or no engine.
    pub async fn open(options: Options) -> Result<Arc<Self>, OpenError> {
        source::list(&options.directory).map_err(|source| OpenError::Directory {
            path: options.directory.clone(),
            source,
        })?;
        let unusable = |source| OpenError::State {
            path: options.state.clone(),
            source,
        };
        let state = Arc::new(StateDir::open(&options.state).map_err(unusable)?);
        let record = state.record().map_err(unusable)?;
        let sandbox = match &options.sandbox {
            Some(sandbox) => sandbox.clone(),
            None => Sandbox::shared().map_err(|error| OpenError::Sandbox(format!("{error:#}")))?,
        };
        let compiler = Compiler::new(
            options.compile.clone(),
            options.compile_limits,
            sandbox.clone(),
            state.clone(),
        );
        let (generation, _) = watch::channel(0);
        let shared = Arc::new(Shared {
            set: RwLock::new(Arc::new(Set::default())),
            required: options.required.clone(),
            generation,
            retained: Mutex::new(None),
            retain: Notify::new(),
            rescan: Notify::new(),
        });
        let patience = options.patience;
        let (ready, all_loaded) = oneshot::channel();
        let supervisor = Supervisor::new(options, shared.clone(), sandbox.clone(), compiler, state, record);
        let task = AbortOnDropHandle::new(tokio::spawn(supervisor.run(ready)));
        if tokio::time::timeout(patience, all_loaded).await.is_err() {
            tracing::warn!("some components are still being loaded; going on without them for now");
        }
        Ok(Arc::new(Self {
            shared,
            sandbox,
            _supervisor: task,
        }))
    }

    /// The sandbox that its components run in, for the health check.
    #[must_use]
    pub fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }

    /// Reads the directory now.
    pub fn rescan(&self) {
        self.shared.rescan.notify_one();
    }
}

impl Shared {
    fn set(&self) -> Arc<Set> {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one place where the set changes. Readers that have the old one keep it.
    fn swap(&self, change: impl FnOnce(&mut Set)) {
        {
            let mut place = self.set.write().unwrap_or_else(PoisonError::into_inner);
            let mut set = Set::clone(&place);
            change(&mut set);
            *place = Arc::new(set);
        }
        self.generation.send_modify(|generation| *generation += 1);
    }

    fn is_required(&self, name: &str) -> bool {
        self.required.resolver == name || self.required.policies.iter().any(|policy| policy == name)
    }
}

#[async_trait]
impl Plugins for Catalog {
    fn driver(&self, name: &str, digest: Option<&str>) -> Result<Arc<dyn Driver>, Failure> {
        let set = self.shared.set();
        let found = match digest {
            Some(digest) => set.exactly(name, digest),
            None => set.serving(name),
        };
        let driver = found.filter(|version| version.loaded.driver().is_some());
        let Some(version) = driver else {
            let what = match digest {
                Some(digest) => format!("driver {name} with digest {digest} is not loaded"),
                None => format!("driver {name} is not loaded"),
            };
            let remedy = format!("put {name}.wasm into the plugin directory, and see `kubectl get plugins`");
            return Err(Failure::Missing(
                Reason::new("DriverMissing", what).remedy(remedy),
            ));
        };
        let grant = set
            .serving(name)
            .map_or(&version.grant, |serving| &serving.grant)
            .clone();
        Ok(Arc::new(DriverHandle::new(version.clone(), grant)))
    }

    fn resolver(&self) -> Result<Arc<dyn Resolver>, Failure> {
        let name = &self.shared.required.resolver;
        let set = self.shared.set();
        match set
            .serving(name)
            .filter(|version| version.loaded.resolver().is_some())
        {
            Some(version) => Ok(Arc::new(ResolverHandle::new(version.clone()))),
            None => Err(Failure::Missing(
                Reason::new("ResolverMissing", format!("resolver {name} is not loaded")).remedy(format!(
                    "put {name}.wasm into the plugin directory, and see `kubectl get plugins`"
                )),
            )),
        }
    }

    fn policies(&self) -> Result<Vec<Arc<dyn Policy>>, Failure> {
        let set = self.shared.set();
        let names: BTreeSet<&String> = self.shared.required.policies.iter().collect();
        let one = |name: &String| -> Result<Arc<dyn Policy>, Failure> {
            match set
                .serving(name)
                .filter(|version| version.loaded.policy().is_some())
            {
                Some(version) => Ok(Arc::new(PolicyHandle::new(version.clone()))),
                None => Err(Failure::Missing(
                    Reason::new(
                        "PolicyMissing",
                        format!("policy {name} is required and not loaded"),
                    )
                    .remedy(format!(
                        "put {name}.wasm into the plugin directory, and see `kubectl get plugins`"
                    )),
                )),
            }
        };
        names.into_iter().map(one).collect()
    }

    fn states(&self) -> Vec<PluginState> {
        let set = self.shared.set();
        let mut states: BTreeMap<String, PluginState> = set.states();
        let required = self
            .shared
            .required
            .policies
            .iter()
            .chain([&self.shared.required.resolver]);
        for name in required {
            states.entry(name.clone()).or_insert_with(|| set::absent(name));
        }
        states.into_values().collect()
    }

    fn generation(&self) -> u64 {
        *self.shared.generation.borrow()
    }

    async fn changed(&self, seen: u64) -> u64 {
        let mut generation = self.shared.generation.subscribe();
        // The sender lives as long as this does, so this cannot fail.
        generation
            .wait_for(|now| *now != seen)
            .await
            .map_or(seen, |now| *now)
    }

    fn retain(&self, digests: &BTreeSet<String>) {
        *self
            .shared
            .retained
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(digests.clone());
        self.shared.retain.notify_one();
    }
}
