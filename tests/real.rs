//! What only real clusters show: who joined and how, nodes that kwok keeps, pods that kube-scheduler places. `make real` runs it.

mod joins;
mod killed;
mod kubelets;
mod pods;
mod restarted;
mod rights;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::harness::{World, eventually};

/// The tenant's administrator, once its cluster is there.
async fn tenant(world: &World, name: &str) -> Client {
    eventually(&format!("a cluster for {name}"), || async {
        world
            .tenant(name)
            .ok_or_else(|| format!("{:?}", world.stack.clusters()))
    })
    .await
}

/// Nodes of a tenant by name, once there are so many.
async fn nodes(tenant: &Client, count: usize) -> BTreeMap<String, Node> {
    let nodes: Api<Node> = Api::all(tenant.clone());
    eventually(&format!("{count} nodes"), || async {
        let all = nodes
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        if all.items.len() == count {
            let named = |node: Node| (node.metadata.name.clone().unwrap_or_default(), node);
            Ok(all.items.into_iter().map(named).collect())
        } else {
            Err(format!("{} nodes", all.items.len()))
        }
    })
    .await
}

/// Status, reason and message of a node's condition Ready.
fn ready(node: &Node) -> Option<(&str, &str, &str)> {
    let all = node.status.as_ref()?.conditions.as_ref()?;
    let one = all.iter().find(|one| one.type_ == "Ready")?;
    Some((
        &one.status,
        one.reason.as_deref().unwrap_or_default(),
        one.message.as_deref().unwrap_or_default(),
    ))
}
