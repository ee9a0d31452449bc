//! Asks the driver what must stand for an order, and sees to it: owned objects, loans, and what the claim says about them.

use std::time::Duration;

use hostler_api::claim::FrozenOrder;
use hostler_api::conditions::Fact;
use hostler_api::names::LOAN;
use hostler_core::loan::{self, Phase};
use hostler_core::order::{self, stored_ref};
use hostler_core::scope::Scope;
use hostler_core::seams::{
    Driver, Failure, MachineIdentity, Object, ObjectRef, Order, Outcome, Plan, Progress, Reason,
};
use hostler_core::view;
use kube::runtime::controller::Action;
use serde_json::Value;

use super::observe::Shown;
use super::{POLL, RECHECK, Turn};
use crate::borrow::{self, Returned};
use crate::error::Result;
use crate::owned::{self, Next};
use crate::retries::steadily;

/// What the writing of a plan came to.
pub(super) enum Written {
    /// All of it stood already.
    Nothing,
    /// Something was written: the world has to move, then it is looked at again.
    Something,
    /// It cannot be done as answered.
    Refused(Reason),
    /// The machine is somebody else's.
    Held(Reason),
}

impl Turn<'_> {
    pub(super) async fn drive(&mut self) -> Result<Action> {
        let frozen = self.frozen()?;
        let driver = self.driver(&frozen)?;
        let ordered = order::order(&self.claim, &frozen);
        let begun = self.status.step.is_some();
        let mut shown = self.show(&frozen, &ordered, false).await?;
        let mut answer = driver.provision(&ordered, &shown.objects()).await;
        if matches!(
            &answer,
            Ok(Plan {
                outcome: Outcome::Lost(_),
                ..
            })
        ) {
            // Not given up on what a watch remembers.
            shown = self.show(&frozen, &ordered, true).await?;
            answer = driver.provision(&ordered, &shown.objects()).await;
        }
        let plan = match answer {
            Ok(Plan {
                outcome: Outcome::Lost(reason),
                ..
            }) if !begun && !self.is_lent(&shown) => return self.unbind(&reason).await,
            Ok(plan) => plan,
            Err(Failure::Exhausted(reason)) if !begun && !self.is_lent(&shown) => {
                return self.unbind(&reason).await;
            }
            Err(Failure::Exhausted(reason)) => {
                self.provisioned_not_yet(&reason);
                return Ok(Action::requeue(self.ctx.settings.capacity_retry));
            }
            Err(failure) => return Err(failure.into()),
        };
        self.note_drift();
        if self.is_lent(&shown) {
            self.settle();
        }
        if let Err(reason) = self.judged(
            &plan,
            &frozen,
            &ordered,
            driver.as_ref(),
            &shown,
            Phase::Provision,
        ) {
            self.stuck("Provisioned", &reason);
            return Ok(steadily(self.ctx.settings.steady));
        }
        if !self.is_lent(&shown) && !plan.loans.is_empty() {
            if let Some(reason) = self.not_free(driver.as_ref(), &ordered, &shown).await {
                if self.status.loans.is_empty() {
                    return self.unbind(&reason).await;
                }
                // It was taken, and somebody took the record of that off: a machine in use is not given up for another one.
                let text = format!(
                    "the loan record was taken off the machine, which is in use ({})",
                    reason.message
                );
                let remedy = format!(
                    "restore its annotation {LOAN}, or delete the claim and clean the machine by hand"
                );
                self.stuck("Provisioned", &Reason::new("LoanLost", text).remedy(remedy));
                return Ok(steadily(self.ctx.settings.steady));
            }
            self.confirm().await?;
        }
        match self
            .write(&plan, driver.as_ref(), &shown, Phase::Provision)
            .await?
        {
            Written::Held(reason) if !begun && !self.is_lent(&shown) => return self.unbind(&reason).await,
            Written::Held(reason) | Written::Refused(reason) => {
                self.stuck("Provisioned", &reason);
                return Ok(steadily(self.ctx.settings.steady));
            }
            Written::Nothing => {}
            Written::Something => {
                self.keep(&plan);
                if self.status.step.is_none() {
                    self.status.step = Some("Ordered".to_owned());
                }
                return Ok(Action::requeue(POLL));
            }
        }
        self.keep(&plan);
        self.outcome(plan.outcome, &frozen).await
    }

    async fn outcome(&mut self, outcome: Outcome, frozen: &FrozenOrder) -> Result<Action> {
        match outcome {
            Outcome::Working(progress) => {
                self.progress(&progress);
                let joined = if self.status.node_uid.is_some() {
                    self.watch_node(frozen).await
                } else {
                    self.renew(frozen).await
                };
                let recheck = progress
                    .recheck
                    .map(|seconds| Duration::from_secs(u64::from(seconds.clamp(RECHECK.0, RECHECK.1))));
                Ok(soonest(recheck, joined, self.ctx.settings.steady))
            }
            Outcome::Ready(identity) => {
                self.ready(identity);
                let joined = self.watch_node(frozen).await;
                Ok(soonest(None, joined, self.ctx.settings.steady))
            }
            Outcome::Lost(reason) => {
                self.fail(&reason);
                Ok(Action::await_change())
            }
            // `judge` lets no provision say this.
            Outcome::Gone => Ok(Action::await_change()),
        }
    }

    /// Writes what differs between a plan and the world, in this order: own objects, loans, returns.
    pub(super) async fn write(
        &mut self,
        plan: &Plan,
        driver: &dyn Driver,
        shown: &Shown,
        phase: Phase,
    ) -> Result<Written> {
        let (grant, holder) = (driver.grant(), self.holder.clone());
        let mut recorded = self.status.owned.clone();
        let ensured = owned::ensure(
            self.client(),
            self.kinds,
            &grant,
            &holder,
            &plan.owned,
            &mut recorded,
        )
        .await;
        // What was made is recorded also when something after it failed.
        self.status.owned = recorded;
        match ensured? {
            Next::Settled => {}
            Next::Record | Next::Written => return Ok(Written::Something),
            Next::NotOurs(reason) => return Ok(Written::Refused(reason)),
        }
        let (Some(machine), Some(name)) = (&shown.machine, self.machine()) else {
            return Ok(Written::Nothing);
        };
        let patches: Vec<&Value> = plan.loans.iter().map(|loan| &loan.patch).collect();
        if patches.is_empty() {
            return Ok(Written::Nothing);
        }
        let change = match loan::borrow(machine, &patches, &holder, phase) {
            Ok(change) => change,
            Err(refusal) => {
                let reason = Reason::new(refusal.code(), refusal.to_string());
                return Ok(if refusal.is_held() {
                    Written::Held(reason)
                } else {
                    Written::Refused(reason)
                });
            }
        };
        if change.is_nothing() {
            self.show_loans(machine);
            return Ok(Written::Nothing);
        }
        let api = self.kinds.api_of(self.client(), &name).await?;
        let takes = phase == Phase::Provision && !loan::is_held_by(machine, &holder);
        let taken = match borrow::write(&api, machine, &change).await {
            Err(error) if takes && error.is_in_doubt() => {
                // It may have landed late: if nobody wants the machine by now, nobody would find it either.
                self.after_take(&name).await?;
                return Err(error);
            }
            written => written?,
        };
        self.show_loans(change.after());
        if takes {
            self.after_take(&name).await?;
            let text = format!("took {} {}", name.kind, name.name);
            self.ctx
                .events
                .normal(&self.claim, "MachineTaken", "Claiming", &text)
                .await;
        }
        tracing::debug!(claim = self.name(), machine = taken.metadata.name, "loan written");
        Ok(Written::Something)
    }

    /// The claim may have changed between the look at it and the take: then the machine is let go at once. Also when it is being deleted,
    /// since its release, in another host that leads by now, may have looked for the loan already. Letting go is allowed to a host that
    /// no longer leads: the write gives back nothing but what this turn took, and only as long as it stands as it was taken.
    async fn after_take(&self, name: &ObjectRef) -> Result<()> {
        let now = super::live(self.ctx, &self.claim).await?;
        let named = now
            .filter(|now| now.metadata.deletion_timestamp.is_none())
            .and_then(|now| now.status?.machine);
        if named.is_some_and(|named| Some(&named) == self.status.machine.as_ref()) {
            return Ok(());
        }
        let api = self.kinds.api_of(&self.ctx.undoing, name).await?;
        borrow::undo(&api, name, &self.holder).await?;
        Err(crate::error::Error::Busy(format!(
            "NodeClaim {} does not want the machine any more",
            self.name()
        )))
    }

    /// Why the machine can not be taken, if it can not.
    async fn not_free(&self, driver: &dyn Driver, ordered: &Order, shown: &Shown) -> Option<Reason> {
        let machine = shown.machine.as_ref()?;
        borrow::is_free(driver, &ordered.provider, machine, &shown.related())
            .await
            .err()
    }

    pub(super) fn judged(
        &self,
        plan: &Plan,
        frozen: &FrozenOrder,
        ordered: &Order,
        driver: &dyn Driver,
        shown: &Shown,
        phase: Phase,
    ) -> std::result::Result<(), Reason> {
        let (grant, uses) = (driver.grant(), order::uses(frozen));
        let scope = Scope {
            grant: &grant,
            uses: &uses,
            order: ordered,
            machine_uid: self.machine_uid(),
            holder: &self.holder,
            phase,
        };
        borrow::judge(plan, &scope, &shown.all())
    }

    pub(super) fn is_lent(&self, shown: &Shown) -> bool {
        shown
            .machine
            .as_ref()
            .is_some_and(|machine| loan::is_held_by(machine, &self.holder))
    }

    /// Keeps what the driver left for its next call.
    pub(super) fn keep(&mut self, plan: &Plan) {
        self.status.memo = Some(plan.memo.clone()).filter(|memo| !memo.is_empty());
        if let Some(order) = &mut self.status.order {
            order.wants = plan.wants.iter().map(stored_ref).collect();
        }
    }

    /// Gives a lent machine back if it is free; what it answers if not is the reason to wait.
    pub(super) async fn let_go(
        &mut self,
        driver: &dyn Driver,
        provider: &Object,
        gone: bool,
    ) -> Result<std::result::Result<(), Reason>> {
        let Some(name) = self.machine() else {
            return Ok(Ok(()));
        };
        // Read after the last write of the release, which ended an earlier turn or is behind this read on the same connection.
        let Some(machine) = self.live_machine().await? else {
            return Ok(Ok(()));
        };
        if !loan::is_held_by(&machine, &self.holder) {
            return Ok(Ok(()));
        }
        let uses = self.status.order.as_ref().map(order::uses).unwrap_or_default();
        let related: Vec<Object> = self
            .related(&driver.grant(), &uses, Some(&name))
            .await?
            .iter()
            .map(view::object)
            .collect();
        let api = self.kinds.api_of(self.client(), &name).await?;
        match borrow::give_back(&api, driver, provider, &machine, &related, &self.holder, gone).await? {
            Returned::Early(reason) => Ok(Err(reason)),
            Returned::Back(left) => {
                self.status.loans.clear();
                let text = format!("gave {} {} back", name.kind, name.name);
                self.ctx
                    .events
                    .normal(&self.claim, "MachineReturned", "Releasing", &text)
                    .await;
                if !left.is_empty() {
                    let places: Vec<String> = left.iter().map(ToString::to_string).collect();
                    let text = format!(
                        "somebody changed {} meanwhile; their values stay",
                        places.join(", ")
                    );
                    self.ctx
                        .events
                        .warning(&self.claim, "PlacesLeft", "Releasing", &text)
                        .await;
                }
                Ok(Ok(()))
            }
        }
    }

    fn show_loans(&mut self, machine: &Value) {
        let Ok(Some(record)) = loan::record(machine) else {
            return;
        };
        self.status.loans = record.places.iter().map(|place| place.path.to_string()).collect();
    }

    fn progress(&mut self, progress: &Progress) {
        self.status.step = Some(progress.step.clone());
        self.set(&Fact::not_yet("Provisioned", &progress.step, &progress.message));
    }

    fn ready(&mut self, identity: MachineIdentity) {
        self.status.step = Some("Provisioned".to_owned());
        self.status.provider_id = identity.provider_id;
        self.status.addresses = identity.addresses;
        self.set(&Fact::yes(
            "Provisioned",
            "Provisioned",
            "the machine runs what it was given",
        ));
    }

    /// Keeps the token of a machine alive that is not ready yet.
    async fn renew(&mut self, frozen: &FrozenOrder) -> Option<Duration> {
        let tenant = self.tenant(frozen)?;
        let kept = self.keep_token(frozen, &tenant).await;
        if let Err(error) = kept {
            tracing::debug!(claim = self.name(), error = %error, "the token is looked at later");
            return Some(POLL * 5);
        }
        None
    }
}

/// The next look at a claim that changes by itself, or by nothing that is watched.
fn soonest(recheck: Option<Duration>, joined: Option<Duration>, steady: Duration) -> Action {
    match recheck.into_iter().chain(joined).min() {
        Some(wait) => Action::requeue(wait),
        None => steadily(steady),
    }
}
