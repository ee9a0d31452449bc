//! The components, with every call of them counted and timed.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use hostler_core::grant::Grant;
use hostler_core::seams::{
    Candidate, Description, Driver, Failure, Machine, Object, Order, Plan, PluginState, Plugins, Policy,
    Preparation, Request, Resolution, Resolver, Subject, Verdict,
};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Name of the one resolver: which component it is, the seam does not tell.
const RESOLVER: &str = "resolver";

/// Components whose calls are counted.
pub(crate) struct Metered {
    inner: Arc<dyn Plugins>,
    metrics: Arc<Metrics>,
}

impl Metered {
    pub(crate) fn new(inner: Arc<dyn Plugins>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { inner, metrics })
    }
}

#[async_trait]
impl Plugins for Metered {
    fn driver(&self, name: &str, digest: Option<&str>) -> Result<Arc<dyn Driver>, Failure> {
        let inner = self.inner.driver(name, digest)?;
        Ok(Arc::new(MeteredDriver {
            inner,
            meter: Meter::new(name, &self.metrics),
        }))
    }

    fn resolver(&self) -> Result<Arc<dyn Resolver>, Failure> {
        let inner = self.inner.resolver()?;
        Ok(Arc::new(MeteredResolver {
            inner,
            meter: Meter::new(RESOLVER, &self.metrics),
        }))
    }

    fn policies(&self) -> Result<Vec<Arc<dyn Policy>>, Failure> {
        let all = self.inner.policies()?.into_iter().map(|inner| {
            let meter = Meter::new(inner.name(), &self.metrics);
            Arc::new(MeteredPolicy { inner, meter }) as Arc<dyn Policy>
        });
        Ok(all.collect())
    }

    fn states(&self) -> Vec<PluginState> {
        self.inner.states()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    async fn changed(&self, seen: u64) -> u64 {
        self.inner.changed(seen).await
    }

    fn retain(&self, digests: &BTreeSet<String>) {
        self.inner.retain(digests);
    }
}

struct Meter {
    component: String,
    metrics: Arc<Metrics>,
}

impl Meter {
    fn new(component: &str, metrics: &Arc<Metrics>) -> Self {
        Self {
            component: component.to_owned(),
            metrics: metrics.clone(),
        }
    }

    async fn count<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let answer = work.await;
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(failure) => outcome_of(failure),
        };
        self.metrics.call(&self.component, call, outcome, began.elapsed());
        answer
    }
}

struct MeteredDriver {
    inner: Arc<dyn Driver>,
    meter: Meter,
}

#[async_trait]
impl Driver for MeteredDriver {
    fn digest(&self) -> &str {
        self.inner.digest()
    }

    fn grant(&self) -> Arc<Grant> {
        self.inner.grant()
    }

    async fn describe(&self, provider: &Object) -> Result<Description, Failure> {
        self.meter.count("describe", self.inner.describe(provider)).await
    }

    async fn machine_of(
        &self,
        provider: &Object,
        seen: &Object,
        related: &[Object],
    ) -> Result<Option<Machine>, Failure> {
        let call = self.inner.machine_of(provider, seen, related);
        self.meter.count("machine-of", call).await
    }

    async fn prepare(&self, order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
        self.meter.count("prepare", self.inner.prepare(order, seen)).await
    }

    async fn provision(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        self.meter
            .count("provision", self.inner.provision(order, seen))
            .await
    }

    async fn release(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        self.meter.count("release", self.inner.release(order, seen)).await
    }
}

struct MeteredResolver {
    inner: Arc<dyn Resolver>,
    meter: Meter,
}

#[async_trait]
impl Resolver for MeteredResolver {
    async fn resolve(&self, subject: &Subject, candidates: &[Candidate]) -> Result<Resolution, Failure> {
        self.meter
            .count("resolve", self.inner.resolve(subject, candidates))
            .await
    }
}

struct MeteredPolicy {
    inner: Arc<dyn Policy>,
    meter: Meter,
}

#[async_trait]
impl Policy for MeteredPolicy {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn interests(&self) -> &[(String, Vec<String>)] {
        self.inner.interests()
    }

    async fn review(&self, request: &Request) -> Result<Verdict, Failure> {
        self.meter.count("review", self.inner.review(request)).await
    }
}

fn outcome_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::Refused(_) => "refused",
        Failure::Exhausted(_) => "exhausted",
        Failure::Broken(_) => "broken",
        Failure::Faulty(_) => "faulty",
        Failure::Missing(_) => "missing",
    }
}
