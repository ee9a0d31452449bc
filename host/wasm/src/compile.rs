//! Compiles components: in a child process that can be killed, with its own memory and time.
//!
//! A component far below any useful size limit can cost the compiler a hundred seconds and ten gibibytes, and an allocation that
//! fails ends the process. So the process that ends is not this one. It reads the component on its standard input and writes
//! native code to its standard output; both are files of the state directory, opened by the parent.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{ExitStatusExt as _, parent_id};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hostler_core::digest;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use wasmtime::component::Component;

use crate::engine::{self, Sandbox};
use crate::error::LoadError;
use crate::store::{self, StateDir};
use crate::text;

/// Compilations at the same time; the others wait.
const AT_ONCE: usize = 2;

/// Threads of one compiler. Few, because the address space of each counts against the limit.
const THREADS: u64 = 2;

/// Largest code that is taken from a compiler.
const CODE: u64 = 1 << 30;

/// Exit code of a child that was asked the wrong way, and of one that got no valid component.
const MISUSED: u8 = 2;
const REFUSED: u8 = 3;

/// The program that compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileCommand {
    /// A program that calls [`compile_child_main`]; mostly this one again.
    pub program: PathBuf,
    /// What makes it do so, like `__compile`. The rest of its arguments follow.
    pub args: Vec<OsString>,
}

/// Where components are compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileWith {
    /// In a child process.
    Child(CompileCommand),
    /// In this process, without any of the limits: for tests of trusted components.
    InProcess,
}

/// Bounds of one compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Address space, in bytes; 2 GiB by default.
    pub memory: u64,
    /// Wall time; a minute by default. A Python guest of 18 MB took 8 seconds on two cores.
    pub time: Duration,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            memory: 2 << 30,
            time: Duration::from_secs(60),
        }
    }
}

/// Turns bytes into code that is mapped and ready to link.
pub(crate) struct Compiler {
    with: CompileWith,
    limits: CompileLimits,
    sandbox: Arc<Sandbox>,
    state: Arc<StateDir>,
    turns: Semaphore,
}

impl Compiler {
    pub(crate) fn new(
        with: CompileWith,
        limits: CompileLimits,
        sandbox: Arc<Sandbox>,
        state: Arc<StateDir>,
    ) -> Self {
        Self {
            with,
            limits,
            sandbox,
            state,
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Compiled code of kept bytes: from the cache, or made now and put there.
    pub(crate) async fn compiled(&self, digest: &str) -> Result<Component, LoadError> {
        let key = store::key(digest, self.sandbox.compatibility()).map_err(state_failed)?;
        if let Some(component) = self.cached(&key).await {
            return Ok(component);
        }
        let _turn = self.turns.acquire().await.map_err(|_| LoadError::Loading)?;
        // Another load of the same bytes may have made it meanwhile.
        if let Some(component) = self.cached(&key).await {
            return Ok(component);
        }
        let (code, code_digest) = match &self.with {
            CompileWith::Child(command) => self.in_child(command, digest).await?,
            CompileWith::InProcess => self.in_process(digest).await?,
        };
        let (state, engine) = (self.state.clone(), self.sandbox.engine().clone());
        blocking(move || {
            let path = state
                .put_compiled(&key, code, &code_digest)
                .map_err(state_failed)?;
            map(&engine, &path)
                .map_err(|error| LoadError::CompileFailed(text::message(&format!("{error:#}"))))
        })
        .await
    }

    async fn cached(&self, key: &str) -> Option<Component> {
        let (state, engine, key) = (self.state.clone(), self.sandbox.engine().clone(), key.to_owned());
        let mapped = spawn_blocking(move || {
            let path = state.compiled(&key)?;
            map(&engine, &path)
                .inspect_err(|error| {
                    tracing::warn!(key, "cached code does not fit; compiling again: {error:#}");
                })
                .ok()
        });
        mapped.await.ok()?
    }

    async fn in_process(&self, digest: &str) -> Result<(tempfile::NamedTempFile, String), LoadError> {
        let (state, engine, digest) = (
            self.state.clone(),
            self.sandbox.engine().clone(),
            digest.to_owned(),
        );
        blocking(move || {
            let bytes = state.read_kept(&digest, u64::MAX).map_err(state_failed)?;
            let code = engine
                .precompile_component(&bytes)
                .map_err(|error| compile_failed(&error))?;
            let mut file = state.compile_into().map_err(state_failed)?;
            file.write_all(&code).map_err(state_failed)?;
            Ok((file, digest::of(&code)))
        })
        .await
    }

    async fn in_child(
        &self,
        command: &CompileCommand,
        digest: &str,
    ) -> Result<(tempfile::NamedTempFile, String), LoadError> {
        let input = self.state.open_kept(digest).map_err(state_failed)?;
        let code = self.state.compile_into().map_err(state_failed)?;
        let output = code.as_file().try_clone().map_err(state_failed)?;
        let run = self.run_child(command, digest, input, output);
        let (status, said) = match tokio::time::timeout(self.limits.time, run).await {
            Ok(ended) => ended.map_err(|error| LoadError::CompileFailed(format!("the compiler: {error}")))?,
            Err(_) => return Err(self.out_of_time()),
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => {}
            (Some(code), _) if code == i32::from(REFUSED) => return Err(LoadError::CompileFailed(said)),
            (Some(code), _) if code == i32::from(MISUSED) => {
                return Err(LoadError::CompileFailed(format!(
                    "the compiler was misused: {said}"
                )));
            }
            (None, Some(signal)) if signal == Signal::XCPU.as_raw() || signal == Signal::KILL.as_raw() => {
                return Err(self.out_of_time());
            }
            // What Rust does when an allocation fails is to abort; a thread that cannot be made panics.
            (code, signal) => {
                let how = match (code, signal) {
                    (_, Some(signal)) => format!("it died of signal {signal}"),
                    (code, _) => format!("it ended with code {}", code.unwrap_or_default()),
                };
                return Err(LoadError::CompileMemory {
                    mebibytes: self.limits.memory >> 20,
                    how,
                });
            }
        }
        let file = code.reopen().map_err(state_failed)?;
        let found = blocking(move || store::file_digest(file).map_err(state_failed)).await?;
        if found != said {
            let why = "what the compiler wrote is not what it says it wrote".to_owned();
            return Err(LoadError::CompileFailed(why));
        }
        Ok((code, found))
    }

    /// Runs the child to its end. Dropping this kills it.
    async fn run_child(
        &self,
        command: &CompileCommand,
        digest: &str,
        input: File,
        output: File,
    ) -> io::Result<(process::ExitStatus, String)> {
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .arg(digest)
            .arg(self.limits.memory.to_string())
            .arg((self.limits.time.as_secs().max(1) * THREADS).to_string())
            .env_clear()
            .env("RAYON_NUM_THREADS", THREADS.to_string())
            .env("MALLOC_ARENA_MAX", THREADS.to_string())
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            stderr.take(16 << 10).read_to_end(&mut said).await?;
        }
        let status = child.wait().await?;
        let said = String::from_utf8_lossy(&said);
        // The last line is the answer; anything before it comes from the libraries.
        let answer = said.trim_end().lines().next_back().unwrap_or_default();
        Ok((status, text::message(answer)))
    }

    fn out_of_time(&self) -> LoadError {
        LoadError::CompileTimeout {
            seconds: self.limits.time.as_secs(),
        }
    }
}

/// The other half: what the child does. `args` are the digest of the component, the memory in bytes and the processor time in
/// seconds that it may use. To be called before anything else, above all before a runtime has started threads.
#[must_use]
pub fn compile_child_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (code, line) = match compile_child(args) {
        Ok(digest) => (0, digest),
        Err((code, line)) => (code, line),
    };
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(code)
}

fn compile_child(args: impl IntoIterator<Item = OsString>) -> Result<String, (u8, String)> {
    let misused = |what: &str| (MISUSED, what.to_owned());
    let failed = |error: io::Error| (REFUSED, error.to_string());
    let args: Vec<String> = args
        .into_iter()
        .filter_map(|arg| arg.into_string().ok())
        .collect();
    let [digest, memory, seconds] = args.as_slice() else {
        return Err(misused("takes a digest, bytes of memory and seconds"));
    };
    let (Ok(memory), Ok(seconds)) = (memory.parse(), seconds.parse()) else {
        return Err(misused("memory and seconds are numbers"));
    };
    confine(memory, seconds).map_err(failed)?;
    let mut bytes = Vec::new();
    io::stdin().take(CODE).read_to_end(&mut bytes).map_err(failed)?;
    if digest::of(&bytes) != *digest {
        return Err((
            REFUSED,
            "the component changed on its way to the compiler".to_owned(),
        ));
    }
    let refused = |error: wasmtime::Error| (REFUSED, text::message(&format!("{error:#}")));
    let code = engine::compiler()
        .map_err(refused)?
        .precompile_component(&bytes)
        .map_err(refused)?;
    let mut output = io::stdout();
    output
        .write_all(&code)
        .and_then(|()| output.flush())
        .map_err(failed)?;
    Ok(digest::of(&code))
}

/// Limits itself before it has seen a byte of the component.
fn confine(memory: u64, seconds: u64) -> io::Result<()> {
    let limit = |resource, most| {
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )
    };
    limit(Resource::As, memory)?;
    limit(Resource::Cpu, seconds)?;
    limit(Resource::Fsize, CODE)?;
    limit(Resource::Core, 0)?;
    end_with_parent()
}

/// Nobody waits for the code when the parent is gone. (The kernel's signal for that is sent when the parent's *thread* ends.)
fn end_with_parent() -> io::Result<()> {
    let parent = parent_id();
    let watching = move || {
        while parent_id() == parent {
            thread::sleep(Duration::from_secs(1));
        }
        process::exit(i32::from(MISUSED));
    };
    thread::Builder::new()
        .name("parent-watch".to_owned())
        .spawn(watching)
        .map(|_| ())
}

#[allow(
    unsafe_code,
    reason = "mapping compiled code is what makes loading cheap; the file was written by this host, its digest was checked just \
              now, it stands in a directory that only this user can write, and it is never rewritten in place"
)]
fn map(engine: &wasmtime::Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: see the reason above: these bytes are what `precompile_component` of this very engine version returned.
    unsafe { Component::deserialize_file(engine, path) }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(LoadError::StateFailed(text::message(&error.to_string()))),
    }
}

fn state_failed(error: io::Error) -> LoadError {
    LoadError::StateFailed(text::message(&error.to_string()))
}

fn compile_failed(error: &wasmtime::Error) -> LoadError {
    LoadError::CompileFailed(text::message(&format!("{error:#}")))
}
