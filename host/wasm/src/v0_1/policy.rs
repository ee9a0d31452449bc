//! A policy as the controllers see it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_core::grant::Limits;
use hostler_core::seams::{Failure, Policy, Reason, Request, Verdict};
use tokio::time::Instant;

use super::convert::{self, Weigh as _};
use crate::call::Runner;
use crate::component::{Loaded, Version, Work};
use crate::memo;

/// An answer to somebody who asked for the time is good for a minute at most.
const MINUTE: u32 = 60;

/// One policy that serves.
pub(crate) struct PolicyHandle(Arc<Version>);

impl PolicyHandle {
    pub(crate) fn new(version: Arc<Version>) -> Self {
        Self(version)
    }

    fn wants_the_time(&self, kind: &str) -> bool {
        self.interests()
            .iter()
            .any(|(of, wants)| of == kind && wants.iter().any(|want| want == "now"))
    }
}

#[async_trait]
impl Policy for PolicyHandle {
    fn name(&self) -> &str {
        &self.0.runner.name
    }

    fn interests(&self) -> &[(String, Vec<String>)] {
        match &self.0.work {
            Work::Policy { interests, .. } => interests,
            Work::Driver | Work::Resolver { .. } => &[],
        }
    }

    async fn review(&self, request: &Request) -> Result<Verdict, Failure> {
        let version = &*self.0;
        let Work::Policy { settings, memo, .. } = &version.work else {
            return Err(super::of_another_world(&version.runner.name));
        };
        let asked = convert::request(request);
        let key = memo::key(&asked);
        if let Some(verdict) = key.and_then(|key| memo.get(&key, Instant::now())) {
            return Ok(verdict);
        }
        let runner = &version.runner;
        let pre = version
            .loaded
            .policy()
            .ok_or_else(|| super::of_another_world(&runner.name))?;
        let (ticket, mut store) = runner.begin("review", &version.grant.limits).await?;
        let call = async {
            let guest = pre.instantiate_async(&mut store).await?;
            guest
                .hostler_plugin_policy()
                .call_review(&mut store, settings, &asked)
                .await
        };
        let answer = ticket.run(call).await?;
        let mut verdict = ticket.settle(answer.weight(), || convert::verdict(answer, &runner.name))?;
        if self.wants_the_time(&request.kind) {
            verdict.valid_for = Some(verdict.valid_for.unwrap_or(MINUTE).min(MINUTE));
        }
        if let Some(key) = key {
            let valid_for = verdict
                .valid_for
                .map(|seconds| Duration::from_secs(seconds.into()));
            memo.put(key, verdict.clone(), valid_for, Instant::now());
        }
        Ok(verdict)
    }
}

/// What a policy judges with these settings, or its reason to refuse them.
pub(crate) async fn accepts(
    runner: &Runner,
    loaded: &Loaded,
    limits: &Limits,
    settings: &str,
) -> Result<Result<Vec<(String, Vec<String>)>, Reason>, Failure> {
    let pre = loaded
        .policy()
        .ok_or_else(|| super::of_another_world(&runner.name))?;
    let (ticket, mut store) = runner.begin("accepts", limits).await?;
    let call = async {
        let guest = pre.instantiate_async(&mut store).await?;
        guest
            .hostler_plugin_policy()
            .call_accepts(&mut store, settings)
            .await
    };
    let answer = ticket.run(call).await?;
    let weight = answer.weight();
    ticket.settle(weight, || match answer {
        Ok(interests) => convert::interests(interests).map(Ok),
        Err(why) => Ok(Err(convert::reason(why))),
    })
}
