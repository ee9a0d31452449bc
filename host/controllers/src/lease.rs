//! Leader election on a Lease of `coordination.k8s.io`, as other controllers of Kubernetes write it. What to do is decided in
//! `hostler_core::lease`; every write is a create, or an update of exactly the version that was read.
//!
//! # Guarantees
//! The fence is open only while the last renewal that the API acknowledged is younger, from before it was asked for, than the part of the
//! lease that a holder uses. One whose lease was taken never leads again in this process.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hostler_core::lease::{self, Move, Record, Seen, Terms};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::fence::{Fence, uptime};
use crate::metrics::Metrics;
use crate::patch::{self, Created};

/// One candidate.
#[derive(Clone)]
pub struct Election {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    me: String,
    terms: Terms,
    fence: Fence,
    metrics: Arc<Metrics>,
}

/// What a look at the lease, and what was done about it, came to.
enum Standing {
    /// It is ours, with this record in this version.
    Ours(Box<Lease>),
    /// It is not, and is looked at again after this long.
    Not(Duration),
}

impl Election {
    /// A candidate of this name, which no other candidate, and no earlier process, has. Its client must not be held up by the fence,
    /// nor by what else the host asks.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        me: String,
        terms: Terms,
        fence: Fence,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            me,
            terms,
            fence,
            metrics,
        }
    }

    /// Waits until this candidate leads; `None` when it was told to stop before.
    pub async fn win(self, stop: &CancellationToken) -> Option<Leadership> {
        let mut seen = None;
        let mut told: Option<String> = None;
        let mut failing = false;
        loop {
            let asked = uptime();
            let wait = match self.step(&mut seen).await {
                Ok(Standing::Ours(held)) => {
                    self.hold_from(asked);
                    return Some(self.lead(seen, held));
                }
                Ok(Standing::Not(wait)) => {
                    let holder = seen
                        .as_ref()
                        .and_then(|seen| seen.record.as_ref()?.holder.clone());
                    if holder != told {
                        tracing::info!(lease = self.name, holder, "standing by");
                        told = holder;
                    }
                    failing = false;
                    wait
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(lease = self.name, error = %error, "the lease cannot be read or written; trying again");
                    }
                    self.terms.renew()
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Reads the lease, and does what is to be done about it.
    async fn step(&self, seen: &mut Option<Seen>) -> Result<Standing> {
        let found = self
            .soon(patch::within(
                format!("reading Lease {}", self.name),
                self.leases.get_opt(&self.name),
            ))
            .await?;
        let record = found.as_ref().and_then(record_of);
        let now = Seen::next(seen.take(), record, uptime());
        let next = lease::next(&self.me, &self.terms, &now, uptime(), Timestamp::now());
        *seen = Some(now);
        match (next, found) {
            (Move::Wait(wait), _) => Ok(Standing::Not(wait)),
            (Move::Create(record) | Move::Take(record) | Move::Renew(record), Some(found)) => {
                match self.write(&found, &record).await {
                    Ok(held) => Ok(Standing::Ours(Box::new(held))),
                    // Somebody was faster: who, the next look says.
                    Err(error) if error.is_conflict() || error.is_not_found() => {
                        Ok(Standing::Not(self.terms.renew() / 10))
                    }
                    Err(error) => Err(error),
                }
            }
            (Move::Create(record) | Move::Take(record) | Move::Renew(record), None) => {
                let mut new = Lease {
                    spec: Some(spec_of(&record)),
                    ..Lease::default()
                };
                new.metadata.name = Some(self.name.clone());
                new.metadata.namespace = Some(self.namespace.clone());
                Ok(match self.soon(patch::create(&self.leases, &new)).await? {
                    Created::New(held) => Standing::Ours(Box::new(held)),
                    Created::Exists => Standing::Not(self.terms.renew() / 10),
                })
            }
        }
    }

    async fn write(&self, over: &Lease, record: &Record) -> Result<Lease> {
        let version = over.resource_version().unwrap_or_default();
        let change = json!({ "spec": spec_of(record) });
        self.soon(patch::update(&self.leases, &self.name, &version, change))
            .await
    }

    /// An answer that is not there in time is of no use: there must be time for another try.
    async fn soon<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let patience = self.terms.patience();
        tokio::time::timeout(patience, request).await.unwrap_or_else(|_| {
            Err(Error::Timeout {
                doing: format!("asking for Lease {}", self.name),
                seconds: patience.as_secs(),
            })
        })
    }

    fn hold_from(&self, asked: Duration) {
        self.fence.open_until(asked + self.terms.usable());
    }

    fn lead(self, seen: Option<Seen>, held: Box<Lease>) -> Leadership {
        tracing::info!(lease = self.name, identity = self.me, "this host leads");
        self.metrics.lead(true);
        let (lost, resign) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(self.clone().keep(seen, held, lost.clone(), resign.clone()));
        Leadership {
            election: self,
            lost,
            resign,
            task,
        }
    }

    /// Renews until told to resign, or until somebody else leads; returns what is held at the end.
    async fn keep(
        self,
        mut seen: Option<Seen>,
        held: Box<Lease>,
        lost: CancellationToken,
        resign: CancellationToken,
    ) -> Option<Box<Lease>> {
        let mut held = Some(held);
        let mut failing = false;
        loop {
            tokio::select! {
                () = resign.cancelled() => return held,
                () = tokio::time::sleep(self.terms.renew()) => {}
            }
            let asked = uptime();
            let mut renewed = match &held {
                Some(known) => self.renew(known).await,
                None => self.step(&mut seen).await,
            };
            if held.is_some() && matches!(renewed, Ok(Standing::Not(_))) {
                // Somebody wrote: whether only a label, or a name that is not ours, is looked at before anything else.
                held = None;
                renewed = self.step(&mut seen).await;
            }
            match renewed {
                Ok(Standing::Ours(now)) => {
                    // A renewal of exactly the version that was ours says that nobody led in between, however long that was.
                    self.hold_from(asked);
                    held = Some(now);
                    if std::mem::take(&mut failing) {
                        tracing::info!(lease = self.name, "the lease is renewed again");
                    }
                }
                Ok(Standing::Not(_)) if self.is_others(seen.as_ref()) => {
                    self.fence.close();
                    self.metrics.lead(false);
                    tracing::error!(lease = self.name, "somebody else leads; this host stops");
                    lost.cancel();
                    return None;
                }
                Ok(Standing::Not(_)) => {}
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(lease = self.name, error = %error, "the lease was not renewed; trying again");
                    }
                }
            }
        }
    }

    /// Writes over the version that was last ours, without a look.
    async fn renew(&self, known: &Lease) -> Result<Standing> {
        let Some(record) = record_of(known) else {
            return Ok(Standing::Not(Duration::ZERO));
        };
        let next = Record {
            renewed: Some(Timestamp::now()),
            ..record
        };
        match self.write(known, &next).await {
            Ok(held) => Ok(Standing::Ours(Box::new(held))),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(Standing::Not(Duration::ZERO)),
            Err(error) => Err(error),
        }
    }

    fn is_others(&self, seen: Option<&Seen>) -> bool {
        let record = seen.and_then(|seen| seen.record.as_ref());
        record.is_some_and(|record| record.holder.as_deref() != Some(self.me.as_str()))
    }
}

/// This host leads, until it resigns or `lost` says otherwise.
pub struct Leadership {
    election: Election,
    lost: CancellationToken,
    resign: CancellationToken,
    task: JoinHandle<Option<Box<Lease>>>,
}

impl Leadership {
    /// Cancelled once somebody else leads.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives the lease up, so that another can lead at once. To be called when nothing of this host writes any more.
    pub async fn resign(self) {
        self.resign.cancel();
        let held = self.task.await.ok().flatten();
        self.election.fence.close();
        self.election.metrics.lead(false);
        let Some(held) = held else { return };
        let Some(record) = record_of(&held) else { return };
        let after = lease::given_up(&record, Timestamp::now());
        match self.election.write(&held, &after).await {
            Ok(_) => tracing::info!(lease = self.election.name, "the lease is given up"),
            // It ends by itself.
            Err(error) => {
                tracing::warn!(lease = self.election.name, error = %error, "the lease was not given up");
            }
        }
    }
}

fn record_of(lease: &Lease) -> Option<Record> {
    let spec = lease.spec.clone()?;
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
    Some(Record {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: Duration::from_secs(seconds),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
        transitions: spec.lease_transitions.unwrap_or_default(),
    })
}

fn spec_of(record: &Record) -> LeaseSpec {
    LeaseSpec {
        // Nobody is written as the empty name, as others who lead by a Lease do.
        holder_identity: Some(record.holder.clone().unwrap_or_default()),
        lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
        acquire_time: record.acquired.map(MicroTime),
        renew_time: record.renewed.map(MicroTime),
        lease_transitions: Some(record.transitions),
        ..LeaseSpec::default()
    }
}
