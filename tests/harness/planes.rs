//! Control planes whose making and removing count as writes of the host.

use std::sync::Arc;

use async_trait::async_trait;
use hostler_apiserver::Server;
use hostler_cli::control_plane::Embedded;
use hostler_controllers::control_plane::{ControlPlane, State, TenantPlace};
use hostler_core::seams::Reason;
use tower::BoxError;

use super::Fault;

pub(super) struct Planes {
    pub(super) inner: Embedded,
    pub(super) server: Arc<Server>,
    pub(super) fault: Arc<Fault>,
}

impl Planes {
    /// Whether the tenant's cluster is there; its name ends with the begin of the tenant's uid.
    fn stands(&self, place: &TenantPlace) -> bool {
        let short: String = place
            .uid
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        self.server
            .clusters()
            .iter()
            .any(|cluster| cluster.ends_with(&short))
    }
}

#[async_trait]
impl ControlPlane for Planes {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        self.fault.alive().map_err(ended)?;
        if self.stands(place) {
            return self.inner.ensure(place).await;
        }
        let made = async { Ok::<_, BoxError>(self.inner.ensure(place).await) };
        self.fault
            .write(format!("ENSURE {}", place.name), made)
            .await
            .map_err(ended)?
    }

    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason> {
        let removed = async { Ok::<_, BoxError>(self.inner.remove(place).await) };
        self.fault
            .write(format!("REMOVE {}", place.name), removed)
            .await
            .map_err(ended)?
    }
}

fn ended(error: BoxError) -> Reason {
    Reason::new("ControlPlaneFailed", error.to_string())
}
