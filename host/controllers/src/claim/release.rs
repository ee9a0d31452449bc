//! The way back of a machine: begun once, driven until the machine is free, and given back by nobody but the host.

use hostler_api::conditions::Fact;
use hostler_core::lifecycle::DESTROYED;
use hostler_core::loan::Phase;
use hostler_core::order;
use hostler_core::seams::{Outcome, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use std::time::Duration;

use super::drive::Written;
use super::{POLL, RECHECK, Turn};
use crate::error::Result;
use crate::retries::steadily;

impl Turn<'_> {
    /// Records that the release begins, so that every later turn counts its waiting from the same moment.
    pub(super) async fn begin(&mut self) -> Result<Action> {
        self.status.release_started = Some(Time(self.ctx.clock.now()));
        // From here on this condition says how far the node has left: what was said before, of an API that was away, is not that.
        self.set(&Fact::not_yet(
            "Joined",
            "Leaving",
            "the node is taken out of use",
        ));
        self.destroying(&Reason::new("Draining", "the release has begun"));
        Ok(Action::requeue(Duration::ZERO))
    }

    /// Asks the driver for the way back and does it; lets the machine go once it is free.
    pub(super) async fn withdraw(&mut self) -> Result<Action> {
        let frozen = self.frozen()?;
        let driver = self.driver(&frozen)?;
        let ordered = order::order(&self.claim, &frozen);
        let mut shown = self.show(&frozen, &ordered, true).await?;
        let lent = self.is_lent(&shown);
        if !lent {
            // Given back, or never taken: what happens to it now is not this claim's.
            shown.machine = None;
        }
        let plan = driver.release(&ordered, &shown.objects()).await?;
        if let Err(reason) = self.judged(&plan, &frozen, &ordered, driver.as_ref(), &shown, Phase::Release) {
            self.stuck(DESTROYED, &reason);
            return Ok(steadily(self.ctx.settings.steady));
        }
        match self.write(&plan, driver.as_ref(), &shown, Phase::Release).await? {
            Written::Something => {
                self.keep(&plan);
                self.note_step(&plan.outcome);
                return Ok(Action::requeue(POLL));
            }
            Written::Held(reason) | Written::Refused(reason) => {
                self.stuck(DESTROYED, &reason);
                return Ok(steadily(self.ctx.settings.steady));
            }
            Written::Nothing => {}
        }
        self.keep(&plan);
        self.note_step(&plan.outcome);
        let recheck = match &plan.outcome {
            Outcome::Working(progress) => progress.recheck,
            Outcome::Ready(_) | Outcome::Gone | Outcome::Lost(_) => None,
        };
        let gone = plan.outcome == Outcome::Gone;
        if !lent || !(gone || plan.loans.is_empty()) {
            let wait =
                recheck.map(|seconds| Duration::from_secs(u64::from(seconds.clamp(RECHECK.0, RECHECK.1))));
            return Ok(wait.map_or_else(|| Action::requeue(POLL * 5), Action::requeue));
        }
        match self.let_go(driver.as_ref(), &ordered.provider, gone).await? {
            Ok(()) => Ok(Action::requeue(Duration::ZERO)),
            Err(why) => {
                if gone {
                    let text = format!(
                        "the driver gave up the machine before it was free: {}",
                        why.text()
                    );
                    let reason = Reason::new("DriverGaveUpEarly", text)
                        .remedy("the machine stays held until it is free");
                    self.stuck(DESTROYED, &reason);
                } else {
                    self.destroying(&why);
                }
                Ok(Action::requeue(POLL * 5))
            }
        }
    }

    fn note_step(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Working(progress) => self.destroying(&Reason::new(&progress.step, &progress.message)),
            // Said only once it is so: the next turn finds nothing held.
            Outcome::Gone | Outcome::Ready(_) | Outcome::Lost(_) => {}
        }
    }
}
