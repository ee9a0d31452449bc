//! What one call may use: memory summed over all memories and tables, time in slices, answers in bytes.

use std::fmt;

use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Store, UpdateDeadline};
use wasmtime_wasi::WasiCtx;

use hostler_core::grant::Limits;

use crate::engine::{MEMORIES, MODULES, Sandbox, TABLES, TICK};
use crate::log::CallLog;

/// Handles and host resources of one call. A guest of ours has none, one with WASI a few for its standard streams.
const HANDLES: usize = 1_000;

/// A pointer, in this engine.
const TABLE_ELEMENT: usize = size_of::<usize>();

/// What the host keeps for one call. Dropped with its store: nothing outlives a call.
pub(crate) struct CallState {
    meter: Meter,
    pub(crate) log: CallLog,
    pub(crate) table: ResourceTable,
    /// Made when a component that was linked with WASI first asks for it.
    pub(crate) wasi: Option<WasiCtx>,
}

/// The guest wanted more memory than its grant gives: the cause that the error carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverMemory {
    pub(crate) limit: u64,
    pub(crate) wanted: u64,
}

/// Sums what the guest holds. The engine's own limiter would count each memory alone, so that two of them doubled the limit.
struct Meter {
    limit: u64,
    used: u64,
}

impl CallState {
    fn new(limits: &Limits, log: CallLog) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        Self {
            meter: Meter {
                limit: limits.memory,
                used: 0,
            },
            log,
            table,
            wasi: None,
        }
    }
}

/// A store for one call, with all its limits set and its time running from the first instruction of the guest.
pub(crate) fn store(sandbox: &Sandbox, limits: &Limits, log: CallLog) -> Store<CallState> {
    let mut store = Store::new(sandbox.engine(), CallState::new(limits, log));
    store.limiter(|state| &mut state.meter);
    store.set_max_component_handles(HANDLES);
    store.set_hostcall_fuel(lift_bound(limits));
    // One slice a tick: a guest that computes for long lets the others in between, and is stopped when its slices are used up.
    let mut slices = slices(limits);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| {
        slices -= 1;
        if slices == 0 {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
    store
}

/// Ticks that a guest may run for. The first may be short by almost one, hence the one more.
fn slices(limits: &Limits) -> u64 {
    let ticks = limits.time.as_nanos().div_ceil(TICK.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX - 1) + 1
}

/// Bytes that the host may copy out of the guest while it reads one answer. Above the limit on answers, so that this limit, which
/// can name its cause, is the one that is met; and bounded, because a small answer in the guest's memory can be a huge one here.
fn lift_bound(limits: &Limits) -> usize {
    usize::try_from(limits.output)
        .unwrap_or(usize::MAX)
        .saturating_mul(4)
        .saturating_add(64 << 10)
}

impl Meter {
    fn grow(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
        unit: usize,
    ) -> wasmtime::Result<bool> {
        // Beyond what the guest itself set as its maximum: it is told no and gets nothing, so nothing is counted.
        if most.is_some_and(|most| desired > most) {
            return Ok(false);
        }
        let growth = desired.saturating_sub(current).saturating_mul(unit) as u64;
        let wanted = self.used.saturating_add(growth);
        if wanted > self.limit {
            return Err(wasmtime::Error::new(OverMemory {
                limit: self.limit,
                wanted,
            }));
        }
        self.used = wanted;
        Ok(true)
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow(current, desired, most, 1)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow(current, desired, most, TABLE_ELEMENT)
    }

    fn instances(&self) -> usize {
        MODULES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

impl fmt::Display for OverMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "wanted {} bytes of memory, the limit is {}",
            self.wanted, self.limit
        )
    }
}

impl std::error::Error for OverMemory {}
