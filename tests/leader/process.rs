//! A process of `hostler run` behind a gate.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::gate::Gate;
use super::tally::{Tally, is_work};
use crate::harness::{World, eventually, hostler};

/// Lease that a loaded machine renews in time.
const LEASE: [&str; 4] = ["--lease-duration", "6s", "--lease-renew", "1s"];

pub(super) struct Process {
    pub(super) gate: Gate,
    child: Child,
    log: PathBuf,
}

pub(super) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .status()
        .unwrap();
    assert!(sent.success(), "{name} to {process}");
}

impl Process {
    pub(super) async fn start(world: &World, name: &str, gate: Gate) -> Self {
        let folder = world.folder.path();
        let (kubeconfig, log) = (
            folder.join(format!("{name}.kubeconfig")),
            folder.join(format!("{name}.log")),
        );
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "default"}}],
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{}", gate.address)}}],
            "users": [{"name": "it", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let child = Command::new(hostler())
            .args([
                "run",
                "--installation",
                "test",
                "--metrics-listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
                "--log-level",
                "info,hostler_controllers::requests=debug",
            ])
            .args(LEASE)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--plugins")
            .arg(world.plugins())
            .arg("--state")
            .arg(world.warm_state(name))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        gate.counted.now().of(child.id());
        Self { gate, child, log }
    }

    /// Where its writes are counted now.
    pub(super) fn tally(&self) -> Arc<Tally> {
        self.gate.counted.now()
    }

    /// Method and path of each write that it began then, to the platform or a tenant, by the times of its own log (a line may be
    /// written later than its time, if the process is stopped in between); not what is only told.
    pub(super) fn begun(&self, then: impl Fn(Timestamp) -> bool) -> Vec<String> {
        let said = self.said();
        let lines = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let begun = lines.filter_map(|line| {
            let time: Timestamp = line["timestamp"].as_str()?.parse().unwrap();
            let fields = &line["fields"];
            let path = fields["path"]
                .as_str()
                .filter(|_| fields["message"] == "writes" && then(time))?;
            Some(format!("{} {path}", fields["method"].as_str()?))
        });
        begun.filter(|line| is_work(line)).collect()
    }

    /// Its writes are counted here from now on.
    pub(super) fn is_counted_by(&self, tally: &Arc<Tally>) {
        tally.of(self.child.id());
        self.gate.counted.change(tally.clone());
    }

    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    async fn says(&self, what: &str) {
        eventually(what, || async {
            let said = self.said();
            if said.contains(what) { Ok(()) } else { Err(said) }
        })
        .await;
    }

    async fn asked(&self, path: &str) -> Result<(u16, String), String> {
        let said = self.said();
        let address = said
            .split_once("\"address\":\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .ok_or_else(|| said.clone())?
            .0;
        let answer = reqwest::get(format!("http://{address}{path}"))
            .await
            .map_err(|error| format!("{error}: {said}"))?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await.map_err(|error| error.to_string())?))
    }

    async fn is(&self, code: u16, ready: &str) {
        eventually(ready, || async {
            let (status, text) = self.asked("/readyz").await?;
            if status == code && text.contains(ready) {
                Ok(())
            } else {
                Err(format!("{text}: {}", self.said()))
            }
        })
        .await;
        assert_eq!(self.asked("/healthz").await.unwrap().0, 200);
    }

    pub(super) async fn leads(&self) {
        self.says("this host leads").await;
        self.is(200, "ok: leading").await;
    }

    pub(super) async fn stands_by(&self) {
        self.is(200, "ok: standing by").await;
    }

    pub(super) async fn waits_for(&self, what: &str) {
        self.is(503, &format!("waiting for {what}")).await;
    }

    pub(super) async fn counters(&self) -> String {
        self.asked("/metrics").await.unwrap().1
    }

    pub(super) fn wake(&self) {
        signal(self.child.id(), "CONT");
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(
            self.child.wait().unwrap().signal(),
            Some(9),
            "it ran until now: {}",
            self.said()
        );
    }

    pub(super) async fn ended(&mut self) -> ExitStatus {
        let end = tokio::time::Instant::now() + crate::harness::patience();
        loop {
            if let Some(ended) = self.child.try_wait().unwrap() {
                return ended;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "it does not end: {}",
                self.said()
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn stop(mut self) -> ExitStatus {
        signal(self.child.id(), "TERM");
        self.ended().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone is as good; one that is stopped dies, too.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
