//! The end of a claim: what the host made for it goes, then one live look at everything, then the finalizer.

use hostler_api::names::CLAIM_FINALIZER;
use hostler_core::loan;
use hostler_core::order;
use hostler_core::seams::{Reason, Role};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{POLL, Turn, live};
use crate::error::Result;
use crate::patch;

impl Turn<'_> {
    pub(super) async fn sweep(&mut self) -> Result<Action> {
        if let Some(frozen) = self.status.order.clone() {
            self.sweep_node().await?;
            if !self.remove_boot_data(&frozen).await? {
                self.destroying(&Reason::new(
                    "Removing",
                    "what was made for the claim is being removed",
                ));
                return Ok(Action::requeue(POLL));
            }
        }
        if let Some(reason) = self.still_held().await? {
            self.stuck(hostler_core::lifecycle::DESTROYED, &reason);
            return Ok(Action::requeue(POLL * 5));
        }
        // The claim as it is after that look: if it has named a machine meanwhile, this write does not go through.
        let Some(now) = live(self.ctx, &self.claim).await? else {
            return Ok(Action::await_change());
        };
        if now.resource_version() != self.claim.resource_version() {
            return Ok(Action::requeue(POLL / 10));
        }
        let finalizers: Vec<_> = now
            .finalizers()
            .iter()
            .filter(|one| *one != CLAIM_FINALIZER)
            .collect();
        let version = now.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        match patch::update(&self.claims(), &self.name(), &version, change).await {
            Err(error) if error.is_not_found() => {}
            other => drop(other?),
        }
        // With the last finalizer the claim is gone, and there is no status to write.
        self.finished = true;
        Ok(Action::await_change())
    }

    /// A node that registered again between its deletion and the end of its machine.
    async fn sweep_node(&self) -> Result<()> {
        let Some(frozen) = &self.status.order else {
            return Ok(());
        };
        let (Some(tenant), Some(name), false) = (
            self.tenant(frozen),
            &self.status.node_name,
            self.tenant_leaves(frozen),
        ) else {
            return Ok(());
        };
        let nodes: Api<Node> = Api::all(tenant.client.clone());
        let found = match patch::within(format!("reading Node {name}"), nodes.get_opt(name)).await {
            Ok(found) => found,
            // It was waited for as long as a release waits; the tenant removes its own remains.
            Err(error) => {
                tracing::debug!(claim = self.name(), error = %error, "the tenant's API does not answer");
                return Ok(());
            }
        };
        if let Some(node) =
            found.filter(|node| self.is_own(node) && node.metadata.deletion_timestamp.is_none())
        {
            patch::delete(&nodes, name, &node.uid().unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// What is held for this claim, on a live look at everything that could be.
    async fn still_held(&self) -> Result<Option<Reason>> {
        let held = |what: String| {
            let text = format!("{what} is still held for this claim");
            Some(Reason::new("StillHeld", text).remedy("it is released first; the claim stays until then"))
        };
        if !self.status.owned.is_empty() {
            return Ok(held(format!(
                "{} {}",
                self.status.owned[0].object.kind, self.status.owned[0].object.name
            )));
        }
        if let Some(secret) = self.labelled_secrets(self.client()).await?.first() {
            return Ok(held(format!("Secret {}", secret.name_any())));
        }
        for used in self
            .status
            .order
            .iter()
            .flat_map(order::uses)
            .filter(|used| used.role == Role::Machine)
        {
            let lent = self
                .kinds
                .lent(self.client(), &used.api_version, &used.kind, &used.namespace)
                .await?;
            if let Some(object) = lent.iter().find(|object| loan::is_held_by(object, &self.holder)) {
                let name = object
                    .pointer("/metadata/name")
                    .and_then(serde_json::Value::as_str);
                return Ok(held(format!("{} {}", used.kind, name.unwrap_or_default())));
            }
        }
        Ok(None)
    }
}
