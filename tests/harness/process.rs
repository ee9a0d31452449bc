//! `hostler run` as a process of its own, on the platform's cluster of a world.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{World, components, hostler, warm};

/// A host in a process. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts one with a state directory of this name; `kubeconfig` says where it works and who it is there.
    pub(crate) fn start(world: &World, name: &str, kubeconfig: &str, more: &[&str]) -> Self {
        let folder = world.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("kubeconfig");
        std::fs::write(&file, kubeconfig).unwrap();
        let state = folder.join("state");
        warm::start(&state);
        let log = folder.join("log");
        let output = File::create(&log).unwrap();
        let child = Command::new(hostler())
            .arg("run")
            .arg("--kubeconfig")
            .arg(file)
            .arg("--plugins")
            .arg(components())
            .arg("--state")
            .arg(state)
            .args(["--installation", "test", "--lease-namespace", "hostler-system"])
            .args(["--log-format", "text"])
            .args(more)
            .env("HOME", &folder)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let told = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(told.success(), "SIG{name} to the host");
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What it wrote so far.
    pub(crate) fn said(&self) -> String {
        said(&self.log)
    }
}

fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as good.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("the host said:\n{}", self.said());
        }
    }
}
