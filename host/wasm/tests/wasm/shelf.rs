//! A plugin directory of a test, and the catalog over it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostler_core::seams::{Failure, PluginState, Plugins as _, Policy, Request, Verdict};
use hostler_wasm::{Catalog, CompileCommand, CompileWith, Options, Required};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a machine that builds something else meanwhile; never waited out by a test that passes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Shelf {
    root: TempDir,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("plugins")).unwrap();
        Self { root }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root.path().join("plugins").join(file)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Puts a component there as a careful operator does: whole, by renaming.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> &Self {
        self.put_file(&format!("{name}.wasm"), bytes)
    }

    pub(crate) fn grant(&self, name: &str, text: &str) -> &Self {
        self.put_file(&format!("{name}.toml"), text.as_bytes())
    }

    pub(crate) fn put_file(&self, file: &str, bytes: &[u8]) -> &Self {
        let whole = self.path(&format!(".{file}.part"));
        fs::write(&whole, bytes).unwrap();
        fs::rename(whole, self.path(file)).unwrap();
        self
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(&format!("{name}.wasm"))).unwrap();
    }

    /// Options that need no one of ours: the resolver and policies that the test names.
    pub(crate) fn options(&self) -> Options {
        let compile = CompileWith::Child(CompileCommand {
            program: env!("CARGO_BIN_EXE_hostler-compile").into(),
            args: Vec::new(),
        });
        let mut options = Options::new(self.path(""), self.state(), compile);
        options.required = Required {
            resolver: "resolver-r".to_owned(),
            policies: vec!["policy-p".to_owned()],
        };
        options.settle = Duration::from_millis(50);
        options.patience = PATIENCE;
        options.grace = Duration::ZERO;
        options
    }

    pub(crate) async fn open(&self) -> Arc<Catalog> {
        self.open_with(self.options()).await
    }

    pub(crate) async fn open_with(&self, options: Options) -> Arc<Catalog> {
        Catalog::open(options).await.unwrap()
    }
}

pub(crate) fn state(catalog: &Catalog, name: &str) -> Option<PluginState> {
    catalog.states().into_iter().find(|state| state.name == name)
}

/// The error of a plugin, as (class, text).
pub(crate) fn error(catalog: &Catalog, name: &str) -> (String, String) {
    let state = state(catalog, name).unwrap_or_else(|| panic!("{name} is not listed"));
    let reason = state.error.unwrap_or_else(|| panic!("{name} has no error"));
    (reason.code.clone(), reason.text())
}

/// Waits until the states are as wanted; reads nothing again by itself.
pub(crate) async fn until(catalog: &Catalog, wanted: impl Fn(&Catalog) -> bool) {
    let waiting = async {
        loop {
            let generation = catalog.generation();
            if wanted(catalog) {
                return;
            }
            catalog.changed(generation).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("never came to be; last seen: {:#?}", catalog.states());
    }
}

pub(crate) fn request(facts: Value) -> Request {
    Request {
        kind: "claim".to_owned(),
        json: facts,
    }
}

/// The required policy of the test.
pub(crate) fn policy(catalog: &Catalog) -> Arc<dyn Policy> {
    catalog.policies().unwrap().remove(0)
}

/// Asks it something that it was not asked before, so that no remembered answer comes back.
pub(crate) async fn review(policy: &Arc<dyn Policy>) -> Result<Verdict, Failure> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ASKED: AtomicU32 = AtomicU32::new(0);
    policy
        .review(&request(json!({ "n": ASKED.fetch_add(1, Ordering::Relaxed) })))
        .await
}

/// What it says when it denies.
pub(crate) async fn says(catalog: &Catalog) -> String {
    let verdict = review(&policy(catalog)).await.unwrap();
    verdict
        .reasons
        .first()
        .map(|reason| reason.message.clone())
        .unwrap_or_default()
}

/// The failure of a call that must fail, as (class, text); it must count against the plugin.
pub(crate) async fn fault(policy: &Arc<dyn Policy>) -> (String, String) {
    match review(policy).await {
        Err(Failure::Faulty(reason)) => (reason.code.clone(), reason.text()),
        other => panic!("not a fault of the plugin: {other:?}"),
    }
}

/// Lines that were logged while the guard lives, by this thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

pub(crate) fn listen() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .with_max_level(tracing::Level::DEBUG)
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

impl Lines {
    pub(crate) fn taken(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().unwrap())
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
