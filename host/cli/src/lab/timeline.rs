//! What happens after an apply, as it happens: a line for each moment that changed something.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use hostler_api as api;
use hostler_api::conditions;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::telemetry::say;

/// Between two looks. The lines show what is true then; their times are as exact as this.
const LOOK: Duration = Duration::from_millis(100);

/// A running clock and what was already said.
pub(super) struct Timeline {
    client: Client,
    started: Instant,
}

/// One look: a key for each thing that is shown, and its line.
type Picture = BTreeMap<String, String>;

impl Timeline {
    pub(super) fn start(client: Client) -> Self {
        Self { client, started: Instant::now() }
    }

    /// Prints changes until every tenant and claim is as wished; within the limit, if there is one.
    pub(super) async fn follow(
        &self,
        tenants: &(dyn Fn(&str) -> Client + Sync),
        clusters: &(dyn Fn() -> Vec<String> + Sync),
        limit: Option<Duration>,
    ) -> anyhow::Result<ExitCode> {
        say("\nTime after apply | What happened\n---------------- | -------------");
        let mut said = Picture::new();
        loop {
            let (picture, waits) = self.look(tenants, clusters).await?;
            for (key, line) in &picture {
                if said.get(key) != Some(line) {
                    self.line(line);
                }
            }
            for key in said.keys().filter(|key| !picture.contains_key(*key)) {
                self.line(&format!("{key} is gone"));
            }
            said = picture;
            if waits.is_empty() {
                self.line("everything is Available");
                return Ok(ExitCode::SUCCESS);
            }
            if limit.is_some_and(|limit| self.started.elapsed() > limit) {
                say("\nnot everything became Available in time:");
                for wait in &waits {
                    say(&format!("  {wait}"));
                }
                return Ok(ExitCode::FAILURE);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn line(&self, text: &str) {
        say(&format!("{:>14.1} s | {text}", self.started.elapsed().as_secs_f64()));
    }

    async fn look(
        &self,
        tenants: &(dyn Fn(&str) -> Client + Sync),
        clusters: &(dyn Fn() -> Vec<String> + Sync),
    ) -> anyhow::Result<(Picture, Vec<String>)> {
        let mut picture = Picture::new();
        let mut waits = Vec::new();
        let all = ListParams::default();
        for tenant in Api::<api::VirtualClusterInstance>::all(self.client.clone()).list(&all).await?.items {
            let name = tenant.name_any();
            let status = tenant.status.unwrap_or_default();
            for (condition, line) in [
                ("VirtualClusterOnline", "control plane answers"),
                ("VirtualClusterReady", "control plane is Ready"),
                ("NodesProvisioned", "all nodes are there"),
            ] {
                if conditions::is_true(&status.conditions, condition) {
                    picture.insert(format!("tenant {name} {condition}"), format!("tenant {name}: {line}"));
                }
            }
            let ready = status.phase.as_deref() == Some("Ready");
            if !ready || !conditions::is_true(&status.conditions, "NodesProvisioned") {
                let nodes = conditions::find(&status.conditions, "NodesProvisioned");
                let message = status
                    .message
                    .or_else(|| nodes.and_then(|nodes| nodes.message.clone()))
                    .unwrap_or_else(|| "not looked at yet".to_owned());
                if !ready && let Some(reason) = &status.reason {
                    picture.insert(format!("tenant {name} phase"), format!("tenant {name}: {reason}: {message}"));
                }
                waits.push(format!("tenant {name}: {}: {message}", status.reason.unwrap_or_default()));
            }
        }
        for claim in Api::<api::NodeClaim>::all(self.client.clone()).list(&all).await?.items {
            let name = claim.name_any();
            let status = claim.status.unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
            let step = status.step.or(status.reason.clone()).unwrap_or_default();
            let type_ref = claim.spec.type_ref.clone().unwrap_or_else(|| "no type yet".to_owned());
            let line = if phase == "Available" {
                format!("claim {name} Available ({type_ref})")
            } else {
                format!("claim {name} {phase} ({type_ref}) {step}")
            };
            picture.insert(format!("claim {name}"), line.trim_end().to_owned());
            if phase != "Available" {
                waits.push(format!("claim {name}: {step}: {}", status.message.unwrap_or_default()));
            }
        }
        let hosts = hostler_lab::crds::bare_metal_hosts();
        let hosts: Api<DynamicObject> = Api::all_with(self.client.clone(), &hosts);
        for host in hosts.list(&all).await.context("hosts cannot be listed")?.items {
            let name = host.name_any();
            let state = text(&host.data, "/status/provisioning/state");
            if host.data.pointer("/spec/consumerRef").is_some() || state != "available" {
                picture.insert(format!("host {name}"), format!("host {name} {state}"));
            } else {
                picture.insert(format!("host {name}"), format!("host {name} available"));
            }
        }
        for client in clusters().iter().map(|cluster| tenants(cluster)) {
            // A cluster that is being removed answers nothing.
            let Ok(nodes) = Api::<Node>::all(client).list(&all).await else { continue };
            for node in nodes {
                let ready = node.status.as_ref().and_then(|status| status.conditions.as_ref()).is_some_and(|all| {
                    all.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
                });
                let state = if ready { "is Ready in the tenant" } else { "joined" };
                picture.insert(format!("node {}", node.name_any()), format!("node {} {state}", node.name_any()));
            }
        }
        Ok((picture, waits))
    }
}

fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer).and_then(Value::as_str) {
        Some("") | None => "registering".to_owned(),
        Some(text) => text.to_owned(),
    }
}
