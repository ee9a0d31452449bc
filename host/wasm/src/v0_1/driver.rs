//! A machine driver as the controllers see it.

use std::sync::Arc;

use async_trait::async_trait;
use hostler_core::grant::Grant;
use hostler_core::seams::{Description, Driver, Failure, Machine, Object, Order, Plan, Preparation};

use super::answer::Checked;
use super::bindings::driver::{MachineDriver, MachineDriverPre};
use super::bindings::types;
use super::convert::{self, Weigh};
use crate::call::Ticket;
use crate::component::Version;
use crate::limits::CallState;

/// One exact component. Keeps its version alive: who has a handle goes on with what it got, whatever serves meanwhile.
pub(crate) struct DriverHandle {
    version: Arc<Version>,
    /// The operator's word of today, also for a component of yesterday.
    grant: Arc<Grant>,
}

impl DriverHandle {
    pub(crate) fn new(version: Arc<Version>, grant: Arc<Grant>) -> Self {
        Self { version, grant }
    }

    fn pre(&self) -> Result<&MachineDriverPre<CallState>, Failure> {
        self.version
            .loaded
            .driver()
            .ok_or_else(|| super::of_another_world(&self.version.runner.name))
    }
}

/// The guest's own failure, or its answer, checked.
fn settle<T, U>(
    ticket: &Ticket<'_>,
    answer: Result<T, types::Failure>,
    check: impl FnOnce(T) -> Checked<U>,
) -> Result<U, Failure>
where
    Result<T, types::Failure>: Weigh,
{
    let weight = answer.weight();
    ticket.settle(weight, || match answer {
        Ok(answer) => check(answer).map(Ok),
        Err(failure) => Ok(Err(convert::failure(failure))),
    })?
}

#[async_trait]
impl Driver for DriverHandle {
    fn digest(&self) -> &str {
        &self.version.loaded.digest
    }

    fn grant(&self) -> Arc<Grant> {
        self.grant.clone()
    }

    async fn describe(&self, provider: &Object) -> Result<Description, Failure> {
        let pre = self.pre()?;
        let provider = convert::object(provider);
        let (ticket, mut store) = self.version.runner.begin("describe", &self.grant.limits).await?;
        let call = async {
            let guest: MachineDriver = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_driver()
                .call_describe(&mut store, &provider)
                .await
        };
        let answer = ticket.run(call).await?;
        settle(&ticket, answer, convert::description)
    }

    async fn machine_of(
        &self,
        provider: &Object,
        seen: &Object,
        related: &[Object],
    ) -> Result<Option<Machine>, Failure> {
        let pre = self.pre()?;
        let (provider, seen) = (convert::object(provider), convert::object(seen));
        let related = convert::objects(related);
        let (ticket, mut store) = self
            .version
            .runner
            .begin("machine-of", &self.grant.limits)
            .await?;
        let call = async {
            let guest: MachineDriver = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_driver()
                .call_machine_of(&mut store, &provider, &seen, &related)
                .await
        };
        let answer = ticket.run(call).await?;
        settle(&ticket, answer, convert::machine)
    }

    async fn prepare(&self, order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
        let pre = self.pre()?;
        let (order, seen) = (convert::order(order), convert::objects(seen));
        let (ticket, mut store) = self.version.runner.begin("prepare", &self.grant.limits).await?;
        let call = async {
            let guest: MachineDriver = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_driver()
                .call_prepare(&mut store, &order, &seen)
                .await
        };
        let answer = ticket.run(call).await?;
        settle(&ticket, answer, convert::preparation)
    }

    async fn provision(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        let pre = self.pre()?;
        let (order, seen) = (convert::order(order), convert::objects(seen));
        let (ticket, mut store) = self.version.runner.begin("provision", &self.grant.limits).await?;
        let call = async {
            let guest: MachineDriver = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_driver()
                .call_provision(&mut store, &order, &seen)
                .await
        };
        let answer = ticket.run(call).await?;
        settle(&ticket, answer, convert::plan)
    }

    async fn release(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        let pre = self.pre()?;
        let (order, seen) = (convert::order(order), convert::objects(seen));
        let (ticket, mut store) = self.version.runner.begin("release", &self.grant.limits).await?;
        let call = async {
            let guest: MachineDriver = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_driver()
                .call_release(&mut store, &order, &seen)
                .await
        };
        let answer = ticket.run(call).await?;
        settle(&ticket, answer, convert::plan)
    }
}
