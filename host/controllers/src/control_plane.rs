//! The seam behind which a tenant's Kubernetes API comes from: embedded, or given by somebody else.

pub mod given;
mod probe;

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use hostler_core::seams::Reason;
use kube::Client;
use tokio::sync::Notify;

/// A tenant's place and wishes, as far as its control plane cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPlace {
    /// uid of the VirtualClusterInstance; a tenant made again is another place.
    pub uid: String,
    /// Project.
    pub project: String,
    /// Namespace of the VirtualClusterInstance.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Namespace of the control plane in the platform's cluster.
    pub host_namespace: String,
    /// Name of the control plane.
    pub virtual_cluster: String,
    /// `controlPlane.endpoint` of the values, `host:port`: the address that machines join.
    pub endpoint: Option<String>,
}

/// A tenant's API that answers.
#[derive(Clone)]
pub struct TenantApi {
    /// uid of the tenant.
    pub uid: String,
    /// Client with the host's own rights.
    pub client: Client,
    /// URL that machines join, like `https://192.168.100.2:8443`.
    pub join_server: String,
    /// CA of that URL, in PEM.
    pub ca_pem: String,
    /// A kubeconfig for the tenant's administrator, which the host keeps in a Secret; none where somebody else does.
    pub kubeconfig: Option<String>,
    /// Rung when a request fails as if nobody were there, or nobody knew the host any more; another one for each client.
    pub doubt: Option<Arc<Notify>>,
}

/// How far a control plane has come.
pub enum State {
    /// This process has not looked yet: nothing is told.
    Unknown,
    /// It is not there yet.
    Pending(Reason),
    /// It is there and does not answer.
    Silent(Reason),
    /// Nothing is sent to it before somebody changes something.
    Unusable(Reason),
    /// It answers.
    Online(TenantApi),
}

/// Makes, finds and removes tenants' control planes.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// Makes the control plane if it is not there, and says how far it is. Called again and again.
    ///
    /// # Errors
    /// A reason that the tenant's owner can act on, like `EndpointTaken`.
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason>;

    /// Removes the control plane of this uid and all that it holds; true once nothing is left. Called again and again.
    ///
    /// # Errors
    /// Why it cannot be removed now.
    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason>;

    /// uids of tenants whose state may be another one now. A control plane that tells nothing is asked again and again.
    fn changes(&self) -> Option<BoxStream<'static, String>> {
        None
    }
}
