//! Fixes an order: every input as it is now, in the claim's status, before anything outside is touched; and undoes it.

use std::sync::Arc;
use std::time::Duration;

use hostler_api as api;
use hostler_api::conditions::{self, Fact};
use hostler_core::grant::Grant;
use hostler_core::lifecycle;
use hostler_core::loan;
use hostler_core::order::{self, Inputs};
use hostler_core::retry::{self, Class};
use hostler_core::scope;
use hostler_core::seams::{Failure, KindUse, Object, ObjectRef, Preparation, Reason};
use hostler_core::view;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use super::{POLL, Turn};
use crate::error::{Error, Result};

/// Where given-up places are counted.
const UNBINDING: &str = "claim.unbinding";

/// What the properties of an order name, found.
struct Found {
    provider: Arc<api::NodeProvider>,
    node_type: Arc<api::NodeType>,
    environment: Option<Arc<api::NodeEnvironment>>,
    os_image: Option<Arc<api::OSImage>>,
    tenant_uid: String,
}

impl Turn<'_> {
    pub(super) async fn freeze(&mut self) -> Result<Action> {
        if let Some(reason) = self.unlike_what_was_placed() {
            return self.unbind(&reason).await;
        }
        if self.claim.type_ref().is_none() {
            // Bound a moment ago: the scheduler is about to show the type, and that wakes this claim.
            return Ok(Action::await_change());
        }
        let found = match self.find() {
            Ok(found) => found,
            Err(reason) => {
                // Whoever makes the missing object, or deletes the claim, moves next; the place is kept meanwhile.
                self.stuck("Provisioned", &reason);
                return Ok(Action::requeue(POLL * 5));
            }
        };
        let Some((component, _)) = found.provider.spec.driver() else {
            return Err(Error::Refused(format!(
                "NodeProvider {} names no driver",
                found.provider.name_any()
            )));
        };
        let driver = self.ctx.plugins.driver(&component, None)?;
        let provider = view::object(&serde_json::to_value(found.provider.as_ref()).unwrap_or_default());
        // Of this very component, for this provider as it is now: what the inventory was started with may be older.
        let uses = driver.describe(&provider).await?.uses;
        if let Err(reason) = scope::asked(&driver.grant(), &provider.json, &uses) {
            self.stuck("Provisioned", &reason);
            return Ok(Action::await_change());
        }
        let inputs = Inputs {
            claim: &self.claim,
            provider: &found.provider,
            node_type: &found.node_type,
            environment: found.environment.as_deref(),
            os_image: found.os_image.as_deref(),
            component: &component,
            digest: driver.digest(),
            uses: &uses,
            tenant_uid: &found.tenant_uid,
        };
        let mut frozen = inputs.freeze(self.ctx.clock.now());
        let ordered = order::order(&self.claim, &frozen);
        let shown = self
            .show_before(&driver.grant(), &uses, ordered.machine.as_ref())
            .await?;
        let preparation = match driver.prepare(&ordered, &shown).await {
            Ok(preparation) => preparation,
            Err(Failure::Exhausted(reason)) => return self.unbind(&reason).await,
            Err(failure) => return Err(failure.into()),
        };
        if let Err(reason) = self.check(&preparation, &uses, &ordered.provider) {
            self.stuck("Provisioned", &reason);
            return Ok(Action::await_change());
        }
        order::prepared(&mut frozen, &preparation, self.uid());
        self.status.order = Some(frozen);
        self.status.node_name = Some(preparation.node_name);
        self.set(&Fact::not_yet(
            "Provisioned",
            "Preparing",
            "the order is fixed; the node's name and boot data follow",
        ));
        self.set(&Fact::not_yet(
            "Joined",
            "NotJoined",
            "the node has not joined yet",
        ));
        self.note_drift();
        Ok(Action::await_change())
    }

    /// Why the order would not be what was judged and placed, if so: somebody changed the claim in between.
    fn unlike_what_was_placed(&self) -> Option<Reason> {
        let place = self.status.machine.as_ref()?;
        let Some(judged) = &place.spec_digest else {
            let reason = Reason::new(
                "NotRecorded",
                "what was judged when the claim was placed is not recorded: an earlier version placed it, or the definition of NodeClaim is one of an earlier version",
            );
            return Some(reason.remedy("if this stays, apply `hostler crds`"));
        };
        let is_as_judged = *judged == order::spec_digest(&self.claim);
        let is_of_place = self.claim.type_ref().is_none_or(|shown| shown == place.type_ref);
        (!is_as_judged || !is_of_place).then(|| {
            Reason::new(
                "Changed",
                "the claim was changed after it was placed; it is judged and placed anew",
            )
        })
    }

    /// Gives the place up, with everything that was made for it; the machine itself was never taken.
    pub(super) async fn unbind(&mut self, reason: &Reason) -> Result<Action> {
        if let Some(wait) = self.too_soon() {
            self.provisioned_not_yet(reason);
            return Ok(Action::requeue(wait));
        }
        if let Some(frozen) = self.status.order.clone() {
            let machine = self.live_machine().await?;
            if machine.is_some_and(|machine| loan::is_held_by(&machine, &self.holder)) {
                // The take landed and what this turn looked at is older. Nothing is given up that is held.
                return Err(Error::Busy(format!(
                    "NodeClaim {} holds its machine; the inventory is behind",
                    self.name()
                )));
            }
            self.confirm().await?;
            self.remove_boot_data(&frozen).await?;
        }
        self.ctx.retries.after(UNBINDING, self.uid(), Class::Broken);
        self.status.machine = None;
        self.status.order = None;
        self.status.node_name = None;
        self.status.memo = None;
        self.status.step = None;
        let drop = ["Provisioned", "Joined", "NotDrifted"];
        self.status
            .conditions
            .retain(|condition| !drop.contains(&condition.kind.as_str()));
        self.set(&Fact::not_yet("Scheduled", &reason.code, &reason.text()));
        self.status.reason = Some(reason.code.clone());
        self.status.message = Some(reason.text());
        Ok(Action::await_change())
    }

    /// How long a place is kept before it is given up again: the first one goes at once, and each further one stays longer,
    /// since the scheduler may well choose the same.
    fn too_soon(&self) -> Option<Duration> {
        let before = self.ctx.retries.count(UNBINDING, self.uid());
        if before == 0 {
            return None;
        }
        let least = retry::delay(Class::Broken, before, 1.0)?;
        let bound = conditions::find(&self.status.conditions, "Scheduled")?
            .last_transition_time
            .0;
        least
            .checked_sub(lifecycle::elapsed(bound, self.ctx.clock.now()))
            .filter(|wait| !wait.is_zero())
    }

    /// Forgets how often a place was given up: this one is held.
    pub(super) fn settle(&self) {
        self.ctx.retries.reset(UNBINDING, self.uid());
    }

    fn find(&self) -> std::result::Result<Found, Reason> {
        let stores = &self.ctx.stores;
        let namespace = self.namespace();
        let gone = |what: String| {
            Reason::new("OrderIncomplete", format!("{what} does not exist"))
                .remedy("create it, or delete the claim")
        };
        let provider = stores.providers.get(None, &self.claim.spec.provider_ref);
        let provider =
            provider.ok_or_else(|| gone(format!("NodeProvider {}", self.claim.spec.provider_ref)))?;
        let full = self
            .status
            .machine
            .as_ref()
            .map(|machine| machine.type_ref.clone())
            .unwrap_or_default();
        let node_type = stores
            .node_types
            .get(None, &full)
            .ok_or_else(|| gone(format!("NodeType {full}")))?;
        let named = order::named(&self.claim, &provider, &node_type);
        let os_image = match named.os_image {
            Some(name) => Some(
                stores
                    .images
                    .get(None, &name)
                    .ok_or_else(|| gone(format!("OSImage {name}")))?,
            ),
            None => None,
        };
        let environment = match named.environment {
            Some(name) => {
                let found = stores.environments.get(Some(&namespace), &name);
                Some(found.ok_or_else(|| gone(format!("NodeEnvironment {namespace}/{name}")))?)
            }
            None => None,
        };
        let tenant_name = self.claim.spec.vcluster_ref.clone().unwrap_or_default();
        let tenant = stores
            .tenants
            .get(Some(&namespace), &tenant_name)
            .filter(|tenant| tenant.meta().deletion_timestamp.is_none());
        let tenant =
            tenant.ok_or_else(|| gone(format!("VirtualClusterInstance {namespace}/{tenant_name}")))?;
        Ok(Found {
            provider,
            node_type,
            environment,
            os_image,
            tenant_uid: tenant.uid().unwrap_or_default(),
        })
    }

    async fn show_before(
        &self,
        grant: &Grant,
        uses: &[KindUse],
        machine: Option<&ObjectRef>,
    ) -> Result<Vec<Object>> {
        let mut shown: Vec<Object> = self.live_machine().await?.iter().map(view::object).collect();
        shown.extend(self.related(grant, uses, machine).await?.iter().map(view::object));
        Ok(shown)
    }

    /// Whether a preparation stays where the driver may be.
    fn check(
        &self,
        preparation: &Preparation,
        uses: &[KindUse],
        provider: &Object,
    ) -> std::result::Result<(), Reason> {
        let out = |text: String| {
            Reason::new(scope::CODE, text).remedy("replace the driver, or the provider's spec")
        };
        let name = &preparation.node_name;
        let is_label = (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_label {
            return Err(out(format!(
                "the driver wants a node named {name:?}, which is no DNS label"
            )));
        }
        let namespace = &preparation.boot_namespace;
        let used = uses.iter().any(|used| used.namespace == *namespace);
        if !used || !scope::provider_names(&provider.json, namespace) {
            return Err(out(format!(
                "the driver wants boot data in namespace {namespace}, which the provider does not name"
            )));
        }
        Ok(())
    }
}
