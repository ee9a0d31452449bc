//! Control planes whose making and removing count as writes of the host.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use hostler_controllers::control_plane::{ControlPlane, State, TenantPlace};
use hostler_core::seams::Reason;
use tower::BoxError;

use super::{Fault, Stack};

pub(super) struct Planes {
    pub(super) inner: Arc<dyn ControlPlane>,
    pub(super) stack: Stack,
    pub(super) fault: Arc<Fault>,
}

#[async_trait]
impl ControlPlane for Planes {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        self.fault.alive().map_err(ended)?;
        if !self.stack.would_make(place) {
            return self.inner.ensure(place).await;
        }
        let made = async { Ok::<_, BoxError>(self.inner.ensure(place).await) };
        self.fault
            .write(format!("ENSURE {}", place.name), made)
            .await
            .map_err(ended)?
    }

    fn changes(&self) -> Option<BoxStream<'static, String>> {
        self.inner.changes()
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
