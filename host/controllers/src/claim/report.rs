//! What a claim's status says: conditions with reasons, a summary, and one write for all of it.

use hostler_api::conditions::{self, Fact, phase};
use hostler_core::hidden;
use hostler_core::lifecycle::DESTROYED;
use hostler_core::order::Inputs;
use hostler_core::pool::{self, Owner};
use hostler_core::seams::{Failure, Reason};
use kube::{Resource, ResourceExt};

use super::{NAME, Turn};
use crate::error::{Error, Result};
use crate::patch;

/// Conditions that the summary is made of, in the order in which they come true.
const SUMMARY: [&str; 3] = ["Scheduled", "Provisioned", "Joined"];
/// A world that fails is told once it has failed so often in a row: once is weather.
const PATIENCE: u32 = 3;

impl Turn<'_> {
    /// Writes the status, if it differs from what was read.
    pub(super) async fn report(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        self.summarise();
        if Some(&self.status) == self.claim.status.as_ref()
            || (self.claim.status.is_none() && self.status == Default::default())
        {
            return Ok(());
        }
        self.hide().await?;
        if Some(&self.status) == self.claim.status.as_ref() {
            return Ok(());
        }
        let mut next = self.claim.clone();
        next.status = Some(self.status.clone());
        let written = match patch::replace_status(&self.claims(), &next).await {
            // Nothing is left to report to.
            Err(error) if error.is_not_found() => return Ok(()),
            other => other?,
        };
        self.ctx.stores.claims.wrote(&written);
        for (reason, text) in std::mem::take(&mut self.warnings) {
            self.ctx
                .events
                .warning(&self.claim, &reason, "Claiming", &text)
                .await;
        }
        Ok(())
    }

    /// Takes out of every text what is not for tenants, whoever put it in.
    async fn hide(&mut self) -> Result<()> {
        let known = match (self.machine(), self.cached_machine()) {
            (None, _) => return Ok(()),
            (Some(_), Some(known)) => Some(known),
            (Some(name), None) => self.kinds.get(self.client(), &name).await?,
        };
        let words = known.map(|machine| hidden::words(&machine)).unwrap_or_default();
        let conditions = self
            .status
            .conditions
            .iter_mut()
            .filter_map(|one| one.message.as_mut());
        let texts = conditions
            .chain(&mut self.status.message)
            .chain(&mut self.status.step);
        for text in texts.chain(self.warnings.iter_mut().map(|(_, text)| text)) {
            *text = hidden::without(text, &words);
        }
        Ok(())
    }

    pub(super) fn set(&mut self, fact: &Fact<'_>) {
        conditions::set(
            &mut self.status.conditions,
            fact,
            self.claim.meta().generation,
            self.ctx.clock.now(),
        );
    }

    pub(super) fn provisioned_not_yet(&mut self, reason: &Reason) {
        self.set(&Fact::not_yet("Provisioned", &reason.code, &reason.text()));
    }

    /// Somebody must act before the machine gets further.
    pub(super) fn stuck(&mut self, kind: &str, reason: &Reason) {
        let known = conditions::find(&self.status.conditions, kind).and_then(|known| known.reason.clone());
        if known.as_deref() != Some(reason.code.as_str()) {
            self.warn(reason);
        }
        self.set(&Fact::no(kind, &reason.code, &reason.text()));
    }

    pub(super) fn fail(&mut self, reason: &Reason) {
        self.stuck("Provisioned", reason);
        self.status.phase = Some(phase::FAILED.to_owned());
    }

    /// Shows why a turn ended early, where that is worth somebody's time.
    pub(super) fn note_failure(&mut self, error: &Error) {
        let kind = if self.claim.meta().deletion_timestamp.is_some() {
            DESTROYED
        } else {
            "Provisioned"
        };
        match error {
            Error::Plugin(Failure::Missing(reason) | Failure::Refused(reason) | Failure::Faulty(reason)) => {
                let reason = reason.clone();
                self.stuck(kind, &reason);
            }
            Error::Plugin(Failure::Exhausted(reason)) => {
                let reason = reason.clone();
                self.set(&Fact::not_yet(kind, &reason.code, &reason.text()));
            }
            Error::Refused(text) => {
                let reason = Reason::new("Refused", text.clone());
                self.stuck(kind, &reason);
            }
            Error::Busy(_) => {}
            Error::Plugin(Failure::Broken(_)) | Error::Api { .. } | Error::Timeout { .. } | Error::Bug(_) => {
                if !error.is_conflict() && self.ctx.retries.count(NAME, self.uid()) + 1 >= PATIENCE {
                    let text = match error {
                        // The client's own text may name addresses that are no tenant's business.
                        Error::Api { doing, .. } => {
                            format!("{doing}: the API does not do it; it is tried again")
                        }
                        other => other.to_string(),
                    };
                    let known = conditions::is_true(&self.status.conditions, kind);
                    // What has been reached stays reached while nobody can look.
                    let fact = if known {
                        Fact::unknown(kind, error.reason(), &text)
                    } else {
                        Fact::not_yet(kind, error.reason(), &text)
                    };
                    self.set(&fact);
                }
            }
        }
    }

    /// Compares the frozen order with what would be ordered now.
    pub(super) fn note_drift(&mut self) {
        let Some(frozen) = self.status.order.clone() else {
            return;
        };
        let Some(place) = self.status.machine.clone() else {
            return;
        };
        let provider = self.ctx.stores.providers.get(None, &self.claim.spec.provider_ref);
        let node_type = self.ctx.stores.node_types.get(None, &place.type_ref);
        let mut differs = match (&provider, &node_type) {
            (Some(provider), Some(node_type)) => {
                let named = hostler_core::order::named(&self.claim, provider, node_type);
                let os_image = named
                    .os_image
                    .and_then(|name| self.ctx.stores.images.get(None, &name));
                let namespace = self.namespace();
                let environment = named
                    .environment
                    .and_then(|name| self.ctx.stores.environments.get(Some(&namespace), &name));
                let component = provider
                    .spec
                    .driver()
                    .map(|(component, _)| component)
                    .unwrap_or_default();
                let serving = self
                    .ctx
                    .plugins
                    .driver(&component, None)
                    .map(|driver| driver.digest().to_owned());
                let inputs = Inputs {
                    claim: &self.claim,
                    provider,
                    node_type,
                    environment: environment.as_deref(),
                    os_image: os_image.as_deref(),
                    component: &component,
                    // A driver that is away for the moment is no other driver.
                    digest: serving.as_deref().unwrap_or(&frozen.digest),
                    uses: &[],
                    tenant_uid: frozen.tenant_uid.as_deref().unwrap_or_default(),
                };
                inputs.drifted_from(&frozen)
            }
            (None, _) => vec![format!("provider {} is gone", self.claim.spec.provider_ref)],
            (Some(_), None) => vec![format!("node type {} is gone", place.type_ref)],
        };
        differs.extend(
            self.pool_drift()
                .into_iter()
                .map(|field| format!("the pool's {field}")),
        );
        if differs.is_empty() {
            self.set(&Fact::yes("NotDrifted", "AsOrdered", ""));
        } else {
            let text = format!(
                "changed since the order: {}; a new claim gets the change",
                differs.join(", ")
            );
            self.set(&Fact::not_yet("NotDrifted", "Drifted", &text));
        }
    }

    /// Fields in which the claim's pool would make it otherwise today.
    fn pool_drift(&self) -> Vec<String> {
        let named = self.claim.spec.vcluster_ref.as_deref();
        let tenant = named.and_then(|name| self.ctx.stores.tenants.get(Some(&self.namespace()), name));
        let Some(tenant) = tenant else { return Vec::new() };
        let read = self.ctx.values.of(&tenant);
        // Values that cannot be read say nothing about the pool.
        let Ok(values) = read.as_ref() else {
            return Vec::new();
        };
        let owner = Owner {
            tenant: &tenant,
            installation: &self.ctx.settings.installation,
        };
        let pools = &values.private_nodes.pools;
        let ours = pools
            .iter()
            .find(|pool| pool::is_of(&self.claim, owner, &pool.name));
        ours.map(|pool| pool::drift(pool, &self.claim))
            .unwrap_or_default()
    }

    /// Phase, reason and message, from the conditions.
    fn summarise(&mut self) {
        if self.status.machine.is_none() && self.claim.meta().deletion_timestamp.is_none() {
            return; // Until it has a place, the summary is the scheduler's and the acceptance's.
        }
        let find = |kind: &str| conditions::find(&self.status.conditions, kind);
        let open = if self.claim.meta().deletion_timestamp.is_some() {
            find(DESTROYED)
        } else {
            SUMMARY
                .into_iter()
                .filter_map(find)
                .find(|condition| condition.status != "True")
        };
        let (reason, message) = match open {
            Some(condition) => (condition.reason.clone(), condition.message.clone()),
            None => (None, None),
        };
        self.status.reason = reason;
        self.status.message = message;
        if self.status.phase.as_deref() != Some(phase::FAILED) {
            // A node that joined once is in use, also while it is not Ready: that is what `Joined` tells.
            let phase = if self.status.node_uid.is_some() {
                phase::AVAILABLE
            } else {
                phase::PENDING
            };
            self.status.phase = Some(phase.to_owned());
        }
    }

    /// Why the claim is not on its way out yet.
    pub(super) fn destroying(&mut self, reason: &Reason) {
        self.set(&Fact::not_yet(DESTROYED, &reason.code, &reason.text()));
    }

    pub(super) fn name(&self) -> String {
        self.claim.name_any()
    }
}
