//! A profile resolver as the controllers see it.

use std::sync::Arc;

use async_trait::async_trait;
use hostler_core::grant::Limits;
use hostler_core::seams::{Candidate, Failure, Resolution, Resolver, Subject};
use tokio::time::Instant;

use super::bindings::resolver::exports::hostler::plugin::resolver as wit;
use super::convert::{self, Weigh as _};
use crate::call::Runner;
use crate::component::{Loaded, Version, Work};
use crate::memo;

/// The resolver that serves.
pub(crate) struct ResolverHandle(Arc<Version>);

impl ResolverHandle {
    pub(crate) fn new(version: Arc<Version>) -> Self {
        Self(version)
    }
}

#[async_trait]
impl Resolver for ResolverHandle {
    async fn resolve(&self, subject: &Subject, candidates: &[Candidate]) -> Result<Resolution, Failure> {
        let version = &*self.0;
        let Work::Resolver { settings, memo } = &version.work else {
            return Err(super::of_another_world(&version.runner.name));
        };
        let (subject, candidates) = (convert::subject(subject), convert::candidates(candidates));
        let key = memo::key(&(&subject, &candidates));
        if let Some(answer) = key.and_then(|key| memo.get(&key, Instant::now())) {
            return Ok(answer);
        }
        let limits = &version.grant.limits;
        let answer = resolve(
            &version.runner,
            &version.loaded,
            limits,
            settings,
            &subject,
            &candidates,
        )
        .await?;
        if let Some(key) = key {
            memo.put(key, answer.clone(), None, Instant::now());
        }
        Ok(answer)
    }
}

/// The trial call: nothing to choose from. A resolver that fails it with a reason is not broken, one that traps is.
pub(crate) async fn probe(
    runner: &Runner,
    loaded: &Loaded,
    limits: &Limits,
    settings: &str,
) -> Result<(), Failure> {
    let subject = wit::Subject {
        tenant: convert::object(&convert::stand_in("VirtualClusterInstance")),
        project: convert::object(&convert::stand_in("Project")),
        enrollment: convert::object(&convert::stand_in("Enrollment")),
        claim: None,
    };
    match resolve(runner, loaded, limits, settings, &subject, &[]).await {
        Ok(_) | Err(Failure::Refused(_) | Failure::Exhausted(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn resolve(
    runner: &Runner,
    loaded: &Loaded,
    limits: &Limits,
    settings: &str,
    subject: &wit::Subject,
    candidates: &[wit::Candidate],
) -> Result<Resolution, Failure> {
    let pre = loaded
        .resolver()
        .ok_or_else(|| super::of_another_world(&runner.name))?;
    let (ticket, mut store) = runner.begin("resolve", limits).await?;
    let call = async {
        let guest = pre.instantiate_async(&mut store).await?;
        guest
            .hostler_plugin_resolver()
            .call_resolve(&mut store, settings, subject, candidates)
            .await
    };
    let answer = ticket.run(call).await?;
    let weight = answer.weight();
    ticket.settle(weight, || match answer {
        Ok(answer) => convert::resolution(answer, candidates.len()).map(Ok),
        Err(failure) => Ok(Err(convert::failure(failure))),
    })?
}
