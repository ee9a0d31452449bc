//! kwok beside a cluster: it keeps Ready the nodes that say so, renews their leases, and moves their pods along.

use anyhow::Result;

use super::Cluster;
use super::process::{Process, free_port};
use crate::harness::root;

/// Nodes with this annotation are kwok's to keep; all others it leaves alone.
pub(crate) const KEPT: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

impl Cluster {
    /// Starts kwok, if it does not run yet.
    pub(crate) fn start_kwok(&mut self) -> Result<()> {
        if self.processes.iter().any(|one| one.name() == "kwok") {
            return Ok(());
        }
        let arguments = [
            format!("--kubeconfig={}", self.kubeconfig().display()),
            format!(
                "--config={}",
                root().join("tests/kubernetes/kwok/stages.yaml").display()
            ),
            format!("--manage-nodes-with-annotation-selector={}={}", KEPT.0, KEPT.1),
            "--node-lease-duration-seconds=40".to_owned(),
            format!("--server-address=127.0.0.1:{}", free_port()?),
        ];
        let log = self.folder.path().join("kwok.log");
        self.processes.push(Process::start(
            &self.binaries.demand("kwok")?,
            &arguments,
            self.folder.path(),
            &log,
        )?);
        Ok(())
    }
}
