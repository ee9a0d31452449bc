//! One call of a guest: a seat, a fresh store, a deadline, and a class for whatever goes wrong.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use wasmtime::{PoolConcurrencyLimitError, Store, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use hostler_core::grant::Limits;
use hostler_core::seams::{Failure, Reason};

use crate::breaker::{Breaker, Resting};
use crate::engine::Sandbox;
use crate::limits::{self, CallState, OverMemory};
use crate::log::PluginLog;
use crate::text;
use crate::v0_1::Breach;

/// Calls one version of one component, and remembers how that went.
pub(crate) struct Runner {
    pub(crate) name: Arc<str>,
    /// The digest as far as a person needs it.
    version: Arc<str>,
    sandbox: Arc<Sandbox>,
    log: Arc<PluginLog>,
    health: Arc<Health>,
    breaker: Breaker,
    /// Of this component alone, so that a slow one leaves seats to the others.
    seats: Arc<Semaphore>,
}

/// How a component of some name has done since start, over all its versions.
pub(crate) struct Health {
    faults: AtomicU64,
    generation: watch::Sender<u64>,
}

/// One call under way. Holds its seats until it is dropped; its store must be dropped before, which the order of `begin`'s answer
/// does by itself.
pub(crate) struct Ticket<'a> {
    runner: &'a Runner,
    function: &'static str,
    limits: Limits,
    started: Instant,
    _seats: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Health {
    pub(crate) fn new(generation: watch::Sender<u64>) -> Arc<Self> {
        Arc::new(Self {
            faults: AtomicU64::new(0),
            generation,
        })
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

/// The most wall time that a call may take: far more than its guest may run, because it shares the processors. It ends a guest that
/// waits, which the epoch cannot.
fn wall(limits: &Limits) -> Duration {
    limits
        .time
        .saturating_mul(4)
        .saturating_add(Duration::from_secs(1))
}

impl Runner {
    pub(crate) fn new(name: &str, digest: &str, sandbox: Arc<Sandbox>, health: Arc<Health>) -> Self {
        let name: Arc<str> = name.into();
        let version: Arc<str> = digest
            .chars()
            .take("sha256:".len() + 12)
            .collect::<String>()
            .into();
        let seats = Arc::new(Semaphore::new(sandbox.seats_per_component()));
        let log = PluginLog::new(name.clone(), version.clone());
        Self {
            name,
            version,
            sandbox,
            log,
            health,
            breaker: Breaker::default(),
            seats,
        }
    }

    /// Waits for a seat, and makes the store. The guest's time starts with its first instruction.
    pub(crate) async fn begin(
        &self,
        function: &'static str,
        limits: &Limits,
    ) -> Result<(Ticket<'_>, Store<CallState>), Failure> {
        if let Err(resting) = self.breaker.admit(Instant::now()) {
            return Err(Failure::Faulty(self.resting_reason(resting)));
        }
        let waiting = async {
            let own = self.seats.clone().acquire_owned().await.ok()?;
            let shared = self.sandbox.seats.clone().acquire_owned().await.ok()?;
            Some((own, shared))
        };
        let Ok(Some(seats)) = timeout(wall(limits), waiting).await else {
            return Err(self.busy(function));
        };
        let store = limits::store(&self.sandbox, limits, self.log.of_call(function));
        let started = Instant::now();
        Ok((
            Ticket {
                runner: self,
                function,
                limits: *limits,
                started,
                _seats: seats,
            },
            store,
        ))
    }

    /// Why this component is not called now, if it rests.
    pub(crate) fn rest(&self) -> Option<Reason> {
        self.breaker
            .resting(Instant::now())
            .map(|resting| self.resting_reason(resting))
    }

    fn resting_reason(&self, resting: Resting) -> Reason {
        let Self { name, version, .. } = self;
        let seconds = resting.left.as_secs() + 1;
        let Resting { in_a_row, .. } = resting;
        Reason::new(
            "PluginBackingOff",
            format!("{name} ({version}) failed {in_a_row} times in a row and is asked again in {seconds} s"),
        )
        .remedy(format!(
            "read its last error; put a version that works in the place of {name}.wasm"
        ))
    }

    fn busy(&self, function: &str) -> Failure {
        let Self { name, version, .. } = self;
        let what = format!("no seat for `{function}` of {name} ({version}) in time: too many calls at once");
        Failure::Broken(Reason::new("HostBusy", what))
    }

    fn fault(&self) {
        self.breaker.failed(Instant::now());
        self.health.faults.fetch_add(1, Ordering::Relaxed);
        self.health.changed();
    }
}

impl Ticket<'_> {
    /// Runs instantiation and call to their end, or to the deadline's.
    pub(crate) async fn run<R>(&self, call: impl Future<Output = wasmtime::Result<R>>) -> Result<R, Failure> {
        match timeout(wall(&self.limits), call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is::<PoolConcurrencyLimitError>() => Err(self.runner.busy(self.function)),
            Ok(Err(error)) => Err(self.fault(self.cause(&error))),
            Err(_) => Err(self.fault(self.out_of_time("waited too long", wall(&self.limits)))),
        }
    }

    /// Takes an answer that was read, if it is not too long and keeps the contract.
    pub(crate) fn settle<T>(
        &self,
        weight: usize,
        check: impl FnOnce() -> Result<T, Breach>,
    ) -> Result<T, Failure> {
        if weight as u64 > self.limits.output {
            let limit = self.limits.output;
            let what = format!("answered with {weight} bytes, the limit is {limit}");
            let raise = format!(
                "raise `output` in [limits] of {}.toml, or mend it",
                self.runner.name
            );
            return Err(self.fault(self.reason("PluginAnswerTooLarge", &what).remedy(raise)));
        }
        match check() {
            Ok(answer) => {
                if self.runner.breaker.succeeded() {
                    self.runner.health.changed();
                }
                Ok(answer)
            }
            Err(Breach { field, what }) => {
                let what = format!("broke the contract: {field} {}", text::message(&what));
                Err(self.fault(self.reason("PluginAnswerInvalid", &what).remedy(self.mend())))
            }
        }
    }

    fn fault(&self, reason: Reason) -> Failure {
        self.runner.fault();
        tracing::warn!(target: "hostler::plugin", plugin = %self.runner.name, digest = %self.runner.version,
            function = self.function, code = reason.code, "{}", reason.message);
        Failure::Faulty(reason)
    }

    /// The class of an error, by its type.
    fn cause(&self, error: &wasmtime::Error) -> Reason {
        if let Some(OverMemory { limit, wanted }) = error.downcast_ref::<OverMemory>() {
            let what = format!("wanted {wanted} bytes of memory, the limit is {limit}");
            let raise = format!(
                "raise `memory` in [limits] of {}.toml, or mend it",
                self.runner.name
            );
            return self.reason("PluginOutOfMemory", &what).remedy(raise);
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            if *trap == Trap::Interrupt {
                return self.out_of_time("ran out of time", self.limits.time);
            }
            let place = error.downcast_ref::<WasmBacktrace>().and_then(innermost);
            let place = place
                .map(|name| format!(", at {}", text::message(&name)))
                .unwrap_or_default();
            let what = format!("trapped ({trap}{place})");
            return self.reason("PluginTrapped", &what).remedy(self.mend());
        }
        if let Some(I32Exit(status)) = error.downcast_ref::<I32Exit>() {
            return self
                .reason("PluginTrapped", &format!("exited with status {status}"))
                .remedy(self.mend());
        }
        let what = format!(
            "gave no answer that can be read: {}",
            text::message(&error.root_cause().to_string())
        );
        self.reason("PluginAnswerInvalid", &what).remedy(self.mend())
    }

    fn out_of_time(&self, what: &str, limit: Duration) -> Reason {
        let (elapsed, limit) = (self.started.elapsed().as_millis(), limit.as_millis());
        let what = format!("{what}: stopped after {elapsed} ms, the limit is {limit} ms");
        let raise = format!(
            "raise `time` in [limits] of {}.toml, or mend it",
            self.runner.name
        );
        self.reason("PluginTimedOut", &what).remedy(raise)
    }

    fn reason(&self, code: &str, what: &str) -> Reason {
        let Runner { name, version, .. } = self.runner;
        let message = format!("{name} ({version}) {what}, in `{}`", self.function);
        Reason::new(code, text::message(&message))
    }

    fn mend(&self) -> String {
        format!(
            "read its log; put a version that works in the place of {}.wasm",
            self.runner.name
        )
    }
}

fn innermost(backtrace: &WasmBacktrace) -> Option<String> {
    backtrace
        .frames()
        .iter()
        .find_map(|frame| frame.func_name().map(str::to_owned))
}
