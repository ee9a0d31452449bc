//! What a turn looks at before it decides.

use std::sync::Arc;

use hostler_api as api;
use hostler_api::claim::FrozenOrder;
use hostler_core::grant::Grant;
use hostler_core::lifecycle::{Hold, Machine, Reservation, Sight, State};
use hostler_core::order::{self, object_ref};
use hostler_core::seams::{KindUse, Object, ObjectRef, Order, Role};
use hostler_core::{loan, scope, view};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::Turn;
use super::kinds;
use crate::error::Result;

/// The objects that a driver is shown, live.
pub(super) struct Shown {
    /// The order's machine, if it is still the one that was taken.
    pub(super) machine: Option<Value>,
    /// Objects beside it.
    pub(super) related: Vec<Value>,
    /// The rest: its own objects and those that it asked for.
    others: Vec<Value>,
}

impl Shown {
    /// All of them.
    pub(super) fn all(&self) -> Vec<Value> {
        self.machine
            .iter()
            .chain(&self.related)
            .chain(&self.others)
            .cloned()
            .collect()
    }

    /// All of them as the driver sees them.
    pub(super) fn objects(&self) -> Vec<Object> {
        self.machine
            .iter()
            .chain(&self.related)
            .chain(&self.others)
            .map(view::object)
            .collect()
    }

    /// The related ones as the driver sees them.
    pub(super) fn related(&self) -> Vec<Object> {
        self.related.iter().map(view::object).collect()
    }
}

impl Turn<'_> {
    pub(super) async fn observe(&self, state: &State) -> Result<Sight> {
        let nothing = Sight {
            machine: Machine::NotNeeded,
            reservation: Reservation::Missing,
            holding: false,
        };
        Ok(match state {
            State::Unguarded
            | State::Unbound
            | State::Failed
            | State::Ended
            | State::Ending { .. }
            | State::Draining => nothing,
            State::Bound | State::Driving { .. } => Sight {
                machine: self.machine_sight().await?,
                ..nothing
            },
            State::Frozen { .. } => Sight {
                machine: self.machine_sight().await?,
                reservation: self.reservation(),
                ..nothing
            },
            State::Releasing => {
                let machine = self.live_machine().await?;
                let lent = machine.is_some_and(|machine| loan::is_held_by(&machine, &self.holder));
                Sight {
                    holding: lent || !self.status.owned.is_empty(),
                    ..nothing
                }
            }
        })
    }

    async fn machine_sight(&self) -> Result<Machine> {
        let Some(name) = self.machine() else {
            return Ok(Machine::NotNeeded);
        };
        let known = match self.cached_machine() {
            Some(known) => Some(known),
            // The cache may be behind, or its provider gone: before a machine is given up for lost, it is looked for.
            None => self.kinds.get(self.client(), &name).await?,
        };
        let Some(known) = known else {
            return Ok(Machine::Gone);
        };
        if known.pointer("/metadata/uid").and_then(Value::as_str) != self.machine_uid() {
            return Ok(Machine::Replaced);
        }
        Ok(Machine::Here(match loan::holder(&known) {
            None => Hold::Free,
            Some(holder)
                if holder.installation == self.holder.installation
                    && holder.claim.uid == self.holder.claim.uid =>
            {
                Hold::Ours
            }
            Some(_) => Hold::Others,
        }))
    }

    /// The machine as the inventory last saw it, if it is the one that the claim names.
    pub(super) fn cached_machine(&self) -> Option<Value> {
        let name = self.machine()?;
        let provider = match &self.status.order {
            Some(order) => order
                .provider
                .pointer("/metadata/uid")
                .and_then(Value::as_str)
                .map(ToOwned::to_owned),
            None => self
                .ctx
                .stores
                .providers
                .get(None, &self.claim.spec.provider_ref)
                .and_then(|provider| provider.uid()),
        }?;
        let entry = self.ctx.machines.find(&provider, &name)?;
        let whole = kinds::whole(&entry.object, &name).ok()?;
        (whole.pointer("/metadata/uid").and_then(Value::as_str) == self.machine_uid()).then_some(whole)
    }

    /// The machine on a live read, if it is the one that the claim names.
    pub(super) async fn live_machine(&self) -> Result<Option<Value>> {
        let Some(name) = self.machine() else {
            return Ok(None);
        };
        let live = self.kinds.get(self.client(), &name).await?;
        Ok(live.filter(|live| live.pointer("/metadata/uid").and_then(Value::as_str) == self.machine_uid()))
    }

    /// Everything that the driver is to see. With `live`, the machine is read anew.
    pub(super) async fn show(&self, frozen: &FrozenOrder, order: &Order, live: bool) -> Result<Shown> {
        let machine = match (live, self.cached_machine()) {
            (false, Some(known)) => Some(known),
            (true, _) | (false, None) => self.live_machine().await?,
        };
        let uses = order::uses(frozen);
        let grant = self.driver(frozen)?.grant();
        let related = self.related(&grant, &uses, order.machine.as_ref()).await?;
        let mut others = Vec::new();
        let owned = self.status.owned.iter().filter(|owned| owned.uid.is_some());
        for owned in owned {
            let found = self.kinds.get(self.client(), &object_ref(&owned.object)).await?;
            others.extend(found.filter(|found| {
                found.pointer("/metadata/uid").and_then(Value::as_str) == owned.uid.as_deref()
            }));
        }
        for want in frozen.wants.iter().map(object_ref) {
            // Judged when it was asked for; the grant may have shrunk since.
            let namespace = want.namespace.as_deref().unwrap_or_default();
            if grant.of(&want.api_version, &want.kind, namespace).is_some() {
                others.extend(self.kinds.get(self.client(), &want).await?);
            }
        }
        Ok(Shown {
            machine,
            related,
            others,
        })
    }

    /// Objects beside a machine, by its name: of kinds that were asked for there and are granted still.
    pub(super) async fn related(
        &self,
        grant: &Grant,
        uses: &[KindUse],
        machine: Option<&ObjectRef>,
    ) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        let Some(machine) = machine else { return Ok(found) };
        let beside = machine.namespace.as_deref().unwrap_or_default();
        for used in uses.iter().filter(|used| used.role == Role::Related) {
            if used.namespace != beside || !scope::is_granted(grant, used, beside) {
                continue;
            }
            let name = ObjectRef {
                api_version: used.api_version.clone(),
                kind: used.kind.clone(),
                ..machine.clone()
            };
            found.extend(self.kinds.get(self.client(), &name).await?);
        }
        Ok(found)
    }

    pub(super) fn enrollment(&self) -> Option<Arc<api::Enrollment>> {
        let tenant = self.claim.spec.vcluster_ref.as_deref()?;
        let name = order::enrollment_name(tenant, self.status.node_name.as_deref()?);
        self.ctx.stores.enrollments.get(Some(&self.namespace()), &name)
    }

    fn reservation(&self) -> Reservation {
        let Some(enrollment) = self.enrollment() else {
            return Reservation::Missing;
        };
        let Some(claim) = &enrollment.spec.claim else {
            return Reservation::Taken {
                leaving: enrollment.meta().deletion_timestamp.is_some(),
            };
        };
        if claim.uid == self.uid() {
            let token = enrollment
                .status
                .as_ref()
                .and_then(|status| status.token_id.as_deref());
            let complete = token == Some(order::token_id(self.uid()).as_str())
                && enrollment.meta().deletion_timestamp.is_none();
            return Reservation::Ours { complete };
        }
        let other = self.ctx.stores.claims.get(Some(&self.namespace()), &claim.name);
        let stays = other.is_some_and(|other| {
            other.uid().as_deref() == Some(claim.uid.as_str()) && other.meta().deletion_timestamp.is_none()
        });
        Reservation::Taken { leaving: !stays }
    }
}
