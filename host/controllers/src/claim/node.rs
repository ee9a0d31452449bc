//! The claim's Node in its tenant: whether it has joined, and how it is taken out of use.

use std::sync::Arc;
use std::time::Duration;

use hostler_api as api;
use hostler_api::claim::FrozenOrder;
use hostler_api::conditions::Fact;
use hostler_core::lifecycle::{self, Drain, Left, NodeSight, Patience};
use hostler_core::profile::is_ready;
use hostler_core::seams::Reason;
use hostler_core::values::Grace;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::pods::{self, Leaving, must_leave};
use super::{POLL, Turn};
use crate::control_plane::TenantApi;
use crate::error::{Error, Result};
use crate::patch;

impl Turn<'_> {
    /// Looks whether the node is there and Ready; when to look again, if no watch tells.
    pub(super) async fn watch_node(&mut self, frozen: &FrozenOrder) -> Option<Duration> {
        match self.look_for_node(frozen).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::debug!(claim = self.name(), error = %error, "the tenant's API does not answer");
                if self.status.node_uid.is_some() {
                    self.set(&Fact::unknown(
                        "Joined",
                        "TenantUnreachable",
                        "the tenant's API does not answer",
                    ));
                }
                Some(POLL * 5)
            }
        }
    }

    async fn look_for_node(&mut self, frozen: &FrozenOrder) -> Result<Option<Duration>> {
        let Some(tenant) = self.tenant(frozen) else {
            if self.status.node_uid.is_some() {
                self.set(&Fact::unknown(
                    "Joined",
                    "TenantOffline",
                    "the tenant's API is not there, so its node cannot be looked at",
                ));
            }
            return Ok(Some(POLL * 5));
        };
        let node_name = self.status.node_name.clone().unwrap_or_default();
        let nodes: Api<Node> = Api::all(tenant.client.clone());
        let signed = self
            .enrollment()
            .and_then(|enrollment| enrollment.status.clone()?.approved_request)
            .is_some();
        let seen = self.ctx.nodes.get(&tenant.uid, &node_name);
        let found = if self.is_believed(seen.as_deref(), signed) {
            seen.map(Arc::unwrap_or_clone)
        } else {
            patch::within(format!("reading Node {node_name}"), nodes.get_opt(&node_name)).await?
        };
        match found {
            Some(node) if signed && is_ready(&node) => self.joined(&nodes, &node, frozen).await,
            Some(node) if signed => {
                let reason = if self.status.node_uid.is_some() {
                    "NodeNotReady"
                } else {
                    "NotReady"
                };
                self.set(&Fact::not_yet(
                    "Joined",
                    reason,
                    &format!("Node {} has joined and is not Ready", node.name_any()),
                ));
                Ok(Some(POLL * 5))
            }
            // The watch of the records may be behind that of the nodes.
            Some(_) if self.is_signed_by_now().await? => Ok(Some(POLL / 4)),
            Some(_) => {
                // Not by this claim's token: what is called so is not this machine's node.
                let text = format!("a Node {node_name} exists that did not join by this claim's token");
                let reason = Reason::new("NodeNotOurs", text)
                    .remedy("remove it from the tenant, so that the machine can join");
                self.stuck("Joined", &reason);
                Ok(Some(POLL * 5))
            }
            None => self.not_there(frozen, &tenant, signed).await,
        }
    }

    async fn is_signed_by_now(&self) -> Result<bool> {
        let Some(known) = self.enrollment() else {
            return Ok(false);
        };
        let records: Api<api::Enrollment> = Api::namespaced(self.client().clone(), &self.namespace());
        let name = known.name_any();
        let now = patch::within(format!("reading Enrollment {name}"), records.get_opt(&name)).await?;
        let status = now
            .filter(|now| now.uid() == known.uid())
            .and_then(|now| now.status);
        Ok(status.is_some_and(|status| status.approved_request.is_some()))
    }

    /// Whether what the watch shows is enough: that nothing has come yet, that it is not Ready yet, or that it is as it was. Its next
    /// change brings the next turn. What changes the claim is read anew.
    fn is_believed(&self, seen: Option<&Node>, signed: bool) -> bool {
        match (seen, &self.status.node_uid) {
            (None, None) => !signed,
            (Some(node), None) => signed && !is_ready(node),
            (Some(node), Some(joined)) => node.meta().uid.as_ref() == Some(joined) && is_ready(node),
            (None, Some(_)) => false,
        }
    }

    async fn not_there(
        &mut self,
        frozen: &FrozenOrder,
        tenant: &TenantApi,
        signed: bool,
    ) -> Result<Option<Duration>> {
        if self.status.node_uid.is_some() {
            let text = "the Node was deleted from the tenant, and the machine has not joined again";
            let reason = Reason::new("NodeMissing", text).remedy("restart its kubelet, or delete the claim");
            self.stuck("Joined", &reason);
            return Ok(Some(POLL * 5));
        }
        if !self.keep_token(frozen, tenant).await? && !signed {
            let text = "the token that the machine joins by was taken away before it joined";
            let reason =
                Reason::new("TokenGone", text).remedy("delete the claim; a new one gets a new token");
            self.stuck("Joined", &reason);
            return Ok(Some(POLL * 5));
        }
        self.set(&Fact::not_yet(
            "Joined",
            "NotJoined",
            "the machine runs; its node has not joined yet",
        ));
        Ok(Some(POLL * 5))
    }

    async fn joined(
        &mut self,
        nodes: &Api<Node>,
        node: &Node,
        frozen: &FrozenOrder,
    ) -> Result<Option<Duration>> {
        let first = self.status.node_uid.is_none();
        if first {
            // While it is not known to have joined, so that a token that cannot be taken away now is taken away with the next look.
            self.remove_token(frozen).await?;
        }
        self.status.node_uid = node.uid();
        self.set(&Fact::yes(
            "Joined",
            "Joined",
            &format!("Node {} is Ready", node.name_any()),
        ));
        if first {
            let text = format!("Node {} has joined", node.name_any());
            self.ctx
                .events
                .normal(&self.claim, "NodeJoined", "Claiming", &text)
                .await;
        }
        let known = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref())
            .unwrap_or_default();
        if let Some(id) = self.status.provider_id.as_ref().filter(|_| known.is_empty()) {
            let version = node.resource_version().unwrap_or_default();
            let change = json!({ "spec": { "providerID": id } });
            match patch::update(nodes, &node.name_any(), &version, change).await {
                // Its kubelet writes too.
                Err(error) if error.is_conflict() => return Ok(Some(POLL)),
                other => drop(other?),
            }
        }
        Ok(None)
    }

    /// One step of taking the node out of use.
    pub(super) async fn drain(&mut self) -> Result<Action> {
        let frozen = self.frozen()?;
        let started = self
            .status
            .release_started
            .clone()
            .map_or_else(|| self.ctx.clock.now(), |time| time.0);
        let grace = self
            .claim
            .spec
            .termination_grace_period
            .as_deref()
            .map_or(Ok(Grace::default()), Grace::parse);
        let patience = Patience {
            // A period that cannot be read is no reason to wait for ever.
            grace: grace.unwrap_or_default(),
            unreachable: self.ctx.settings.unreachable_after,
            deletion: self.ctx.settings.node_deletion_cap,
        };
        let tenant = self.tenant(&frozen);
        let (sight, leaving) = self.node_sight(&frozen, tenant.as_ref()).await;
        let next = lifecycle::drain(sight, started, self.ctx.clock.now(), patience);
        match (next, tenant) {
            (Drain::Done(left), _) => {
                self.left(left).await;
                Ok(Action::requeue(Duration::ZERO))
            }
            (Drain::Wait, _) | (_, None) => {
                self.destroying(&Reason::new(
                    "Draining",
                    "waiting for the tenant's API and its Node",
                ));
                Ok(Action::requeue(POLL))
            }
            (step, Some(tenant)) => {
                // The tenant's API may fail between the look and the write: that, too, is waited for no longer than the cap.
                let again = self.drain_step(step, &tenant, &leaving).await;
                Ok(Action::requeue(again.unwrap_or_else(|error| {
                    tracing::debug!(claim = self.name(), error = %error, "draining goes on later");
                    POLL / 4
                })))
            }
        }
    }

    /// Takes one step; when the next one is due.
    async fn drain_step(&mut self, step: Drain, tenant: &TenantApi, leaving: &[Leaving]) -> Result<Duration> {
        let name = self.status.node_name.clone().unwrap_or_default();
        let nodes: Api<Node> = Api::all(tenant.client.clone());
        match step {
            Drain::Cordon => {
                self.destroying(&Reason::new("Draining", "the node takes no new pods"));
                let Some(node) = patch::within(format!("reading Node {name}"), nodes.get_opt(&name)).await?
                else {
                    return Ok(POLL / 4);
                };
                let version = node.resource_version().unwrap_or_default();
                patch::update(
                    &nodes,
                    &name,
                    &version,
                    json!({ "spec": { "unschedulable": true } }),
                )
                .await?;
            }
            Drain::Evict => {
                let still = format!("{} pods are still to leave the node", leaving.len());
                self.destroying(&Reason::new("Draining", &still));
                let first = usize::try_from(self.ctx.clock.now().as_second()).unwrap_or_default();
                if let Some(why) = pods::evict(tenant, leaving, first).await? {
                    self.destroying(&Reason::new("Draining", format!("{still}; {why}")));
                    return Ok(pods::AGAIN);
                }
            }
            Drain::Delete => {
                self.destroying(&Reason::new("DeletingNode", "the node is deleted"));
                let Some(node) = patch::within(format!("reading Node {name}"), nodes.get_opt(&name)).await?
                else {
                    return Ok(POLL / 4);
                };
                patch::delete(&nodes, &name, &node.uid().unwrap_or_default()).await?;
            }
            Drain::Wait | Drain::Done(_) => {}
        }
        Ok(POLL / 4)
    }

    async fn left(&mut self, left: Left) {
        let events = &self.ctx.events;
        let (reason, message) = (left.reason(), left.message());
        match left {
            Left::NodeGone => {}
            // Told, and no warning: who deletes a tenant wants its nodes gone, too.
            Left::TenantGone => events.normal(&self.claim, reason, "Releasing", message).await,
            Left::TenantUnreachable | Left::NodeStuck | Left::NodeNotOurs => {
                events.warning(&self.claim, reason, "Releasing", message).await;
            }
        }
        self.set(&Fact::not_yet("Joined", left.reason(), left.message()));
        self.destroying(&Reason::new("Releasing", "the machine is on its way back"));
    }

    async fn node_sight(
        &self,
        frozen: &FrozenOrder,
        tenant: Option<&Arc<TenantApi>>,
    ) -> (NodeSight, Vec<Leaving>) {
        if self.tenant_leaves(frozen) {
            return (NodeSight::TenantGone, Vec::new());
        }
        let booted = frozen.boot_secret.as_ref().is_some_and(|boot| boot.uid.is_some());
        if !booted {
            return (NodeSight::Absent, Vec::new()); // Without boot data nothing could ever join.
        }
        let Some(tenant) = tenant else {
            let uid = frozen.tenant_uid.as_deref().unwrap_or_default();
            let sight = if self.ctx.tenants.looked_for(uid) {
                NodeSight::Unreachable
            } else {
                NodeSight::Unknown
            };
            return (sight, Vec::new());
        };
        self.look(frozen, tenant).await.unwrap_or_else(|error| {
            tracing::debug!(claim = self.name(), error = %error, "the tenant's API does not answer");
            (NodeSight::Unreachable, Vec::new())
        })
    }

    /// Whether the tenant of the order is gone, or going.
    pub(super) fn tenant_leaves(&self, frozen: &FrozenOrder) -> bool {
        let name = self.claim.spec.vcluster_ref.clone().unwrap_or_default();
        let tenant = self.ctx.stores.tenants.get(Some(&self.namespace()), &name);
        let tenant = tenant.filter(|tenant| tenant.uid() == frozen.tenant_uid);
        tenant.is_none_or(|tenant| tenant.meta().deletion_timestamp.is_some())
    }

    async fn look(
        &self,
        frozen: &FrozenOrder,
        tenant: &TenantApi,
    ) -> Result<(NodeSight, Vec<Leaving>), Error> {
        // No further join: the token goes before the Node does.
        self.remove_token(frozen).await?;
        let name = self.status.node_name.clone().unwrap_or_default();
        let nodes: Api<Node> = Api::all(tenant.client.clone());
        let Some(node) = patch::within(format!("reading Node {name}"), nodes.get_opt(&name)).await? else {
            return Ok((NodeSight::Absent, Vec::new()));
        };
        if !self.is_own(&node) {
            return Ok((NodeSight::NotOurs, Vec::new()));
        }
        let all: Api<Pod> = Api::all(tenant.client.clone());
        // What has ended holds nothing up; of the rest no more than the metadata is wanted.
        let on_node = format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
        let on_node = ListParams::default().fields(&on_node);
        let pods = patch::within(
            format!("listing pods of Node {name}"),
            all.list_metadata(&on_node),
        )
        .await?
        .items;
        let pods: Vec<Leaving> = pods.into_iter().filter(must_leave).collect();
        let sight = NodeSight::Present {
            cordoned: node
                .spec
                .as_ref()
                .is_some_and(|spec| spec.unschedulable == Some(true)),
            pods: pods.len(),
            deleted: node.meta().deletion_timestamp.as_ref().map(|time| time.0),
        };
        Ok((sight, pods))
    }

    /// Whether a Node is the one that joined by this claim's token.
    pub(super) fn is_own(&self, node: &Node) -> bool {
        let memory = self
            .enrollment()
            .and_then(|enrollment| enrollment.status.clone())
            .unwrap_or_default();
        let known = [self.status.node_uid.clone(), memory.node_uid.clone()];
        if known.iter().any(Option::is_some) {
            return known.contains(&node.uid());
        }
        memory.approved_request.is_some()
    }
}
