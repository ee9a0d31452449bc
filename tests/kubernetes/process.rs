//! A process that never outlives the test that started it.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result};

/// Runs `$@` until it ends, or until a line comes on standard input, or until that ends: the kernel closes it when the test
/// ends, however it ends; then nobody else removes the folder. (A signal at the parent's death would follow the thread that
/// started the process, not the test.)
const GUARD: &str = r#"exec 3<&0
folder=$1; shift
"$@" 3<&- </dev/null & child=$!
{ read -r _ <&3 || { trap '' TERM; rest=$folder; }; kill -9 "$child"; [ -z "${rest-}" ] || { sleep 1; rm -rf "$rest"; }; } 2>/dev/null & watch=$!
wait "$child"; code=$?
kill "$watch" 2>/dev/null
exit "$code""#;

/// A running process, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    guard: Child,
    pipe: Option<ChildStdin>,
}

impl Process {
    /// Starts a program with its output in a file; the folder is removed if this process dies without a word.
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path, log: &Path) -> Result<Self> {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let output = File::create(log).with_context(|| format!("log of {name}"))?;
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(folder)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start of {name}"))?;
        let pipe = guard.stdin.take();
        Ok(Self {
            name,
            log: log.to_owned(),
            guard,
            pipe,
        })
    }

    /// Name of the program.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The end of its log, if it ended.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        if self.guard.try_wait()?.is_none() {
            return Ok(None);
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(15).collect();
        Ok(Some(lines.into_iter().rev().collect::<Vec<_>>().join("\n")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            drop(pipe.write_all(b"stop\n"));
        }
        // The guard ends after the program, so that nobody removes its files too early.
        drop(self.guard.wait());
    }
}

/// A port that nobody listens on at this moment.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
