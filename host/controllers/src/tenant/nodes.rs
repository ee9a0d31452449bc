//! Nodes of tenants, as the watch of each tenant's API shows them: so that nobody has to ask for a node again and again.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use futures::StreamExt;
use hostler_core::profile::is_ready;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::broadcast;

use crate::watched::Watched;

/// Changed nodes held for a reader that is behind.
const BACKLOG: usize = 4096;

/// A node of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// uid of the tenant.
    pub(crate) tenant: String,
    /// Name of the node.
    pub(crate) node: String,
}

/// The watches that run, by tenant uid.
pub(crate) struct Nodes {
    watches: RwLock<HashMap<String, Watched<Node>>>,
    changes: broadcast::Sender<Changed>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            watches: RwLock::default(),
            changes: broadcast::Sender::new(BACKLOG),
        }
    }
}

impl Nodes {
    /// A node as it was last seen; `None` also where no watch runs.
    pub(crate) fn get(&self, tenant: &str, name: &str) -> Option<Arc<Node>> {
        let watches = self.watches.read().expect("no holder panics");
        watches.get(tenant)?.get(None, name)
    }

    /// Nodes that came, went, became Ready or stopped being it; a reader that falls behind gets an error and should look at everything.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// Shows a tenant's nodes, and tells of their changes, until it is dropped.
    pub(crate) async fn show(&self, tenant: &str, nodes: &Watched<Node>) {
        self.watches
            .write()
            .expect("no holder panics")
            .insert(tenant.to_owned(), nodes.clone());
        let _shown = Shown {
            all: self,
            tenant,
            nodes,
        };
        let mut changes = nodes.subscribe_to(|node| Some((is_ready(node), provider_id(node))));
        while let Some(changed) = changes.next().await {
            // No reader is no error: the cache itself is the state.
            drop(self.changes.send(Changed {
                tenant: tenant.to_owned(),
                node: changed.name,
            }));
        }
    }
}

fn provider_id(node: &Node) -> Option<String> {
    node.spec.as_ref()?.provider_id.clone()
}

/// A tenant whose nodes are shown.
struct Shown<'a> {
    all: &'a Nodes,
    tenant: &'a str,
    nodes: &'a Watched<Node>,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let mut watches = self.all.watches.write().expect("no holder panics");
        // By now the tenant may be another one's to show: its API was made anew.
        if watches
            .get(self.tenant)
            .is_some_and(|shown| shown.is_same(self.nodes))
        {
            watches.remove(self.tenant);
        }
    }
}
