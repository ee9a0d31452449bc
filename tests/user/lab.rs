//! A `hostler lab` process on a directory of its own; on the real stack, the same to look at: real clusters, the simulated data
//! centre and a host.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::kubectl::{Kubectl, file, words};
use super::real::Real;
use super::until;
use crate::harness::stack::is_real;
use crate::harness::{components, hostler, warm};

/// A laboratory. Its process is killed when it is dropped.
pub(crate) struct Lab {
    real: Option<Real>,
    folder: TempDir,
    process: Option<Child>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Lab {
    /// A directory in which our components were compiled already, and nothing that runs.
    pub(crate) fn new() -> Self {
        let lab = Self::cold();
        warm::start(&lab.data().join("components"));
        lab
    }

    /// A directory as it is before a first start, and nothing that runs.
    pub(crate) fn cold() -> Self {
        Self {
            real: None,
            folder: tempfile::tempdir().unwrap(),
            process: None,
            said: Arc::default(),
        }
    }

    /// A running laboratory.
    pub(crate) fn start(more: &str) -> Self {
        let mut lab = Self::new();
        lab.go(more);
        lab
    }

    /// Starts the process and waits until kubectl may be used.
    pub(crate) fn go(&mut self, more: &str) {
        if is_real() {
            assert_eq!(more, "", "the real stack takes no flags of the laboratory");
            self.real = Some(Real::start());
            return;
        }
        self.said.lock().unwrap().clear();
        let mut child = self
            .command(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for stream in streams {
            let said = self.said.clone();
            std::thread::spawn(move || {
                BufReader::new(stream)
                    .lines()
                    .map_while(Result::ok)
                    .for_each(|line| said.lock().unwrap().push(line));
            });
        }
        self.process = Some(child);
        self.until("lab ready", |line| line == "lab ready");
    }

    /// The command with this directory, not started.
    pub(crate) fn command(&self, more: &str) -> Command {
        let mut command = Command::new(hostler());
        command.arg("lab").arg("--data").arg(self.data());
        let more = words(more);
        if !more.iter().any(|word| word == "--plugins") {
            command.arg("--plugins").arg(components());
        }
        command
            .args(more)
            .stdin(Stdio::null())
            .env("HOME", self.folder.path());
        command
    }

    pub(crate) fn data(&self) -> PathBuf {
        match &self.real {
            Some(real) => real.data(),
            None => self.folder.path().join("data"),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.data().join("kubeconfig"), self.folder.path().to_owned())
    }

    /// kubectl with the kubeconfig of a tenant.
    pub(crate) fn tenant(&self, project: &str, name: &str) -> Kubectl {
        let path = self.data().join(format!("tenants/{project}/{name}.kubeconfig"));
        Kubectl::new(path, self.folder.path().to_owned())
    }

    /// What it printed so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Waits for a line; fails at once when the process ends.
    pub(crate) fn until(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let (said, process) = (self.said.clone(), self.process.as_mut().expect("it runs"));
        until(what, || {
            let ended = process.try_wait().unwrap();
            let lines = said.lock().unwrap().clone();
            if let Some(line) = lines.iter().find(|line| is_it(line)) {
                return Ok(line.clone());
            }
            assert!(
                ended.is_none(),
                "{what}: the lab ended ({ended:?}) and said:\n{}",
                lines.join("\n")
            );
            Err(lines.join("\n"))
        })
    }

    /// Ctrl-C; returns how it ended.
    pub(crate) fn interrupt(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        let told = Command::new("kill")
            .args(["-INT", &process.id().to_string()])
            .status()
            .unwrap();
        assert!(told.success());
        until("the lab ends", || {
            process
                .try_wait()
                .unwrap()
                .ok_or_else(|| "it still runs".to_owned())
        })
    }

    /// Project, provider and hosts of the first example, the hosts free.
    pub(crate) fn furnish(&self) {
        let kubectl = self.kubectl();
        for name in ["project.yaml", "provider.yaml", "hosts.yaml"] {
            kubectl.run(&format!("apply -f {}", file(&format!("examples/01-lab/{name}"))));
        }
        kubectl.until("get project default -o jsonpath={.status.phase}", |phase| {
            phase == "Ready"
        });
        self.all_free();
    }

    /// Waits until every host is available, off and nobody's.
    pub(crate) fn all_free(&self) {
        let state = "custom-columns=A:.status.provisioning.state,B:.status.poweredOn,C:.spec.consumerRef.name,D:.spec.online";
        self.kubectl()
            .until(&format!("get bmh -A --no-headers -o {state}"), |text| {
                !text.is_empty() && text.lines().all(is_free)
            });
    }
}

fn is_free(line: &str) -> bool {
    line.split_whitespace().collect::<Vec<_>>() == ["available", "false", "<none>", "false"]
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// A tenant of project `default` with one pool, at an endpoint of its own.
pub(crate) fn tenant(name: &str, pool: &str) -> String {
    let last = name
        .bytes()
        .fold(10_u32, |sum, letter| (sum * 31 + u32::from(letter)) % 200);
    tenant_in("default", name, &format!("192.168.100.{last}:8443"), pool)
}

/// A tenant. `pool` is the YAML of one entry of `static`, its lines separated by `;`.
pub(crate) fn tenant_in(project: &str, name: &str, endpoint: &str, pool: &str) -> String {
    let pool = pool
        .split(';')
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n                  ");
    format!(
        "\
apiVersion: management.loft.sh/v1
kind: VirtualClusterInstance
metadata:
  name: {name}
  namespace: p-{project}
spec:
  template:
    helmRelease:
      values: |
        controlPlane:
          endpoint: {endpoint}
        privateNodes:
          enabled: true
          autoNodes:
            - provider: metal3
              properties:
                vcluster.com/os-image: ubuntu2404-20260926
              static:
                - {pool}
"
    )
}
