//! The one engine of the process: its configuration, the thread that makes its time pass, and the seats in its pool.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wasmtime::component::Linker;
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Strategy, WasmBacktraceDetails,
    WasmFeatures,
};

use crate::limits::CallState;
use crate::{v0_1, wasi};

/// How often the epoch of the engine grows: the grain of every deadline.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Without a beat for so long, the ticker counts as dead and no deadline can be trusted.
const LIVENESS: Duration = Duration::from_secs(5);

/// What a component may be made of. Nothing that Rust, JavaScript or Python guests can do without.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL)
    .difference(WasmFeatures::GC_TYPES);

/// Core modules, memories and tables that one component may have in all; JavaScript and Python need a handful.
pub(crate) const MODULES: u32 = 32;
pub(crate) const MEMORIES: u32 = 8;
pub(crate) const TABLES: u32 = 8;
/// Elements of one table. Interpreted guests were seen to need 5,700 to 7,700.
pub(crate) const TABLE_ELEMENTS: usize = 100_000;
/// The most that a memory may grow to, whatever the grant says.
pub(crate) const MEMORY: usize = 4 << 30;

/// Where instances live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// In address space reserved once; where the system does not give that much, on demand.
    Auto,
    /// Allocated for each call.
    OnDemand,
}

/// How to make a [`Sandbox`].
#[derive(Clone, Copy, Debug)]
pub struct SandboxOptions {
    /// Calls at the same time, over all components; the others wait.
    pub concurrency: u32,
    /// Where instances live.
    pub pool: Pool,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            concurrency: 32,
            pool: Pool::Auto,
        }
    }
}

/// The engine, with everything that exists once per process.
pub struct Sandbox {
    engine: Engine,
    heart: Arc<Heart>,
    concurrency: u32,
    pub(crate) seats: Arc<Semaphore>,
    pooled: bool,
    /// Links the log and nothing else.
    pub(crate) bare: Linker<CallState>,
    /// The same with the harmless part of WASI.
    pub(crate) with_wasi: Linker<CallState>,
}

/// Counts beats of the ticker; read by the health check.
struct Heart {
    born: Instant,
    last_beat: AtomicU64,
}

impl Sandbox {
    /// Makes the engine and starts its ticker.
    ///
    /// # Errors
    /// Where the machine cannot run compiled code.
    pub fn new(options: SandboxOptions) -> Result<Arc<Self>, wasmtime::Error> {
        let concurrency = options.concurrency.max(1);
        let (engine, pooled) = match options.pool {
            Pool::OnDemand => (Engine::new(&config())?, false),
            Pool::Auto => match Engine::new(&pooled_config(concurrency)) {
                Ok(engine) => (engine, true),
                Err(error) => {
                    tracing::warn!(%error, "no address space for a pool of instances; allocating on demand");
                    (Engine::new(&config())?, false)
                }
            },
        };
        let heart = Arc::new(Heart {
            born: Instant::now(),
            last_beat: AtomicU64::new(0),
        });
        start_ticker(&engine, heart.clone())?;
        let bare = linker(&engine)?;
        let mut with_wasi = linker(&engine)?;
        wasi::link(&mut with_wasi)?;
        let seats = Arc::new(Semaphore::new(concurrency as usize));
        Ok(Arc::new(Self {
            engine,
            heart,
            concurrency,
            seats,
            pooled,
            bare,
            with_wasi,
        }))
    }

    /// The sandbox of this process, made at the first call.
    ///
    /// # Errors
    /// As [`Sandbox::new`]; then the next call tries again.
    pub fn shared() -> Result<Arc<Self>, wasmtime::Error> {
        static SHARED: OnceLock<Arc<Sandbox>> = OnceLock::new();
        if let Some(sandbox) = SHARED.get() {
            return Ok(sandbox.clone());
        }
        let made = Self::new(SandboxOptions::default())?;
        Ok(SHARED.get_or_init(|| made).clone())
    }

    /// Time since the ticker last beat; for metrics.
    #[must_use]
    pub fn since_last_beat(&self) -> Duration {
        let now = self.heart.born.elapsed();
        now.saturating_sub(Duration::from_millis(
            self.heart.last_beat.load(Ordering::Relaxed),
        ))
    }

    /// Whether deadlines can be trusted: a process for which this is false must not stay alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.since_last_beat() < LIVENESS
    }

    /// Whether instances come from reserved address space.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Calls that one component may have under way, so that a slow one leaves seats to the others.
    pub(crate) fn seats_per_component(&self) -> usize {
        (self.concurrency as usize).div_ceil(2)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Changes with everything that makes compiled code unusable for this engine.
    pub(crate) fn compatibility(&self) -> u64 {
        compatibility(&self.engine)
    }
}

pub(crate) fn compatibility(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

/// The engine that compiles and never runs: in the child, without pool or ticker.
pub(crate) fn compiler() -> Result<Engine, wasmtime::Error> {
    Engine::new(&config())
}

fn linker(engine: &Engine) -> Result<Linker<CallState>, wasmtime::Error> {
    let mut linker = Linker::new(engine);
    v0_1::link_log(&mut linker)?;
    Ok(linker)
}

/// Everything that decides how code is compiled; equal in the child and here.
fn config() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .wasm_features(FEATURES.complement(), false)
        .wasm_features(FEATURES, true)
        .concurrency_support(false)
        .shared_memory(false)
        .epoch_interruption(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(2 << 20)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .generate_address_map(false)
        .allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config
}

fn pooled_config(concurrency: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(concurrency)
        .total_stacks(concurrency)
        .total_core_instances(concurrency * MODULES)
        .total_memories(concurrency * MEMORIES)
        .total_tables(concurrency * TABLES)
        .max_core_instances_per_component(MODULES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_tables_per_module(TABLES)
        .max_memories_per_module(1)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(MEMORY)
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(2 << 20)
        .max_unused_warm_slots(8)
        .linear_memory_keep_resident(1 << 20)
        .decommit_batch_size(16);
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// An OS thread, not a task: a guest that holds every worker of the runtime cannot stop it. Ends with the engine.
fn start_ticker(engine: &Engine, heart: Arc<Heart>) -> Result<(), wasmtime::Error> {
    let engine = engine.weak();
    thread::Builder::new()
        .name("wasm-ticker".to_owned())
        .spawn(move || {
            while let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
                drop(engine);
                let now = u64::try_from(heart.born.elapsed().as_millis()).unwrap_or(u64::MAX);
                heart.last_beat.store(now, Ordering::Relaxed);
                thread::sleep(TICK);
            }
        })?;
    Ok(())
}
