//! Takes one version from bytes to something that may serve.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::Shared;
use crate::call::Health;
use crate::compile::Compiler;
use crate::component::{Loaded, Version};
use crate::engine::Sandbox;
use crate::error::LoadError;
use crate::store::StateDir;
use crate::{inspect, text};

/// What loads share.
pub(super) struct Loader {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) compiler: Compiler,
    pub(super) state: Arc<StateDir>,
    pub(super) shared: Arc<Shared>,
}

/// What makes a version: content, not time.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) digest: String,
    pub(super) grant: Option<String>,
}

impl Loader {
    pub(super) async fn read_kept(&self, digest: &str, largest: u64) -> Result<Vec<u8>, LoadError> {
        let (state, digest) = (self.state.clone(), digest.to_owned());
        match spawn_blocking(move || state.read_kept(&digest, largest)).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(LoadError::StateFailed(text::message(&error.to_string()))),
            Err(error) => Err(LoadError::StateFailed(text::message(&error.to_string()))),
        }
    }

    /// Validates, keeps, compiles, links and tries. Only what came through all of it is returned.
    pub(super) async fn load(
        &self,
        name: &str,
        bytes: Vec<u8>,
        identity: Identity,
        health: Arc<Health>,
    ) -> Result<Version, LoadError> {
        let size = bytes.len() as u64;
        let (state, digest, owned) = (self.state.clone(), identity.digest.clone(), name.to_owned());
        let judged = spawn_blocking(move || {
            let facts = inspect::judge(&owned, &bytes)?;
            let kept = state.keep(&digest, &bytes);
            kept.map_err(|error| LoadError::StateFailed(text::message(&error.to_string())))?;
            Ok(facts)
        });
        let facts = match judged.await {
            Ok(judged) => judged?,
            Err(error) => return Err(LoadError::StateFailed(text::message(&error.to_string()))),
        };
        let loaded = Loaded::load(facts, identity.digest, size, &self.compiler, &self.sandbox).await?;
        self.activate(name, Arc::new(loaded), identity.grant, health)
            .await
    }

    pub(super) async fn activate(
        &self,
        name: &str,
        loaded: Arc<Loaded>,
        grant: Option<String>,
        health: Arc<Health>,
    ) -> Result<Version, LoadError> {
        let version = Version::activate(name, loaded, grant, &self.sandbox, health).await?;
        let required = &self.shared.required;
        let wanted = if required.resolver == name {
            version.loaded.resolver().is_some()
        } else if required.policies.iter().any(|policy| policy == name) {
            version.loaded.policy().is_some()
        } else {
            true
        };
        if wanted {
            Ok(version)
        } else {
            Err(wrong_role(name, &version))
        }
    }
}

fn wrong_role(name: &str, version: &Version) -> LoadError {
    let world = version.loaded.facts.world;
    LoadError::UnknownWorld {
        found: format!("is a {world}"),
        has: format!("{name} in its configuration for something else"),
    }
}
