//! Runs kubectl against one kubeconfig.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use super::table::Table;
use super::until;

/// kubectl with a kubeconfig, and a home of its own: its cache must not outlive the server on a port.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: i32,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code().unwrap_or(-1),
        }
    }
}

impl Kubectl {
    pub(crate) fn new(kubeconfig: PathBuf, home: PathBuf) -> Self {
        Self { kubeconfig, home }
    }

    fn dress(&self, command: &mut Command) {
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env_remove("KUBECTL_EXTERNAL_DIFF");
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(words(line));
        self.dress(&mut command);
        command
    }

    /// Runs it to its end, however that is.
    pub(crate) fn try_run(&self, line: &str) -> Said {
        let output = self.command(line).stdin(Stdio::null()).output();
        output
            .unwrap_or_else(|error| panic!("kubectl must be on the PATH: {error}"))
            .into()
    }

    /// Runs it; it must succeed. Returns what it printed.
    pub(crate) fn run(&self, line: &str) -> String {
        let said = self.try_run(line);
        assert_eq!(said.code, 0, "kubectl {line}\n{}{}", said.out, said.err);
        said.out
    }

    /// Runs it; it must fail. Returns what it complained.
    pub(crate) fn fail(&self, line: &str) -> String {
        let said = self.try_run(line);
        assert_ne!(said.code, 0, "kubectl {line} should have failed:\n{}", said.out);
        said.err
    }

    pub(crate) fn table(&self, line: &str) -> Table {
        Table::read(&self.run(line))
    }

    /// `kubectl apply -f -` with this text.
    pub(crate) fn try_apply(&self, manifest: &str) -> Said {
        let mut child = self
            .command("apply -f -")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl must be on the PATH");
        child
            .stdin
            .take()
            .unwrap()
            .write_all(manifest.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap().into()
    }

    /// The same; it must succeed.
    pub(crate) fn apply(&self, manifest: &str) -> String {
        let said = self.try_apply(manifest);
        assert_eq!(
            said.code, 0,
            "kubectl apply\n{}{}\n{manifest}",
            said.out, said.err
        );
        said.out
    }

    /// A line for the shell, with this kubeconfig.
    pub(crate) fn shell(&self, line: &str) -> Said {
        let mut command = Command::new("sh");
        command.args(["-euc", line]);
        self.dress(&mut command);
        command.stdin(Stdio::null()).output().unwrap().into()
    }

    /// Polls until the command prints what is looked for.
    pub(crate) fn until(&self, line: &str, what: impl Fn(&str) -> bool) -> String {
        until(&format!("kubectl {line}"), || {
            let said = self.try_run(line);
            if said.code == 0 && what(&said.out) {
                Ok(said.out)
            } else {
                Err(format!("{}{}", said.out, said.err))
            }
        })
    }

    /// Starts a command that goes on, such as `get -w`.
    pub(crate) fn watch(&self, line: &str) -> Watching {
        let mut child = self
            .command(line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl must be on the PATH");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn({
            let lines = lines.clone();
            move || {
                out.lines()
                    .map_while(Result::ok)
                    .for_each(|line| lines.lock().unwrap().push(line));
            }
        });
        Watching { child, lines }
    }
}

/// A command that goes on, ended when dropped.
pub(crate) struct Watching {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watching {
    /// What it printed so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until it printed a line like this.
    pub(crate) fn until(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        until(what, || {
            let lines = self.lines();
            if lines.iter().any(|line| is_it(line)) {
                Ok(())
            } else {
                Err(lines.join("\n"))
            }
        });
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Words of a command line; single quotes keep spaces.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Whether a text is a time such as 2026-11-01T06:06:01Z.
pub(crate) fn is_time(text: &str) -> bool {
    text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok()
}

/// The file below the repository.
pub(crate) fn file(path: &str) -> String {
    let whole: &Path = &crate::harness::root().join(path);
    whole.display().to_string()
}
