//! The harmless part of WASI, for components from toolchains that import it whether they use it or not.
//!
//! Nothing here reaches outside: no environment, no arguments, no files, no sockets, an empty input, an output that goes to the
//! plugin's log, a clock that tells no time and random numbers that are the same in each call. So an answer stays a function of
//! the arguments, which is what lets the host reuse and replay it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime::component::Linker;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream, WasiCli, WasiCliView as _};
use wasmtime_wasi::p2::bindings::{cli, random};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::random::{WasiRandom, WasiRandomView as _};
use wasmtime_wasi::{Deterministic, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};

use crate::limits::CallState;
use crate::log::{CallLog, Loudness};

/// Interfaces that need no grant; the wall in `inspect` and the linker below both go by this list.
pub(crate) const HARMLESS: &[&str] = &[
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// Bytes of random data that one request may ask for.
const RANDOM: u64 = 64 << 10;

/// Bytes of standard output and of standard error that are kept of one call; the rest is taken and dropped.
const OUTPUT: usize = 8 << 10;

/// The second at which every guest lives: the first of January 2000.
const NOW: Duration = Duration::from_secs(946_684_800);

const MILLISECOND: u64 = 1_000_000;

/// Random numbers of every call repeat this.
const SEED: [u8; 16] = *b"hostler: no luck";

/// Links interface by interface: the function that links everything would add files and sockets. The first line is the engine's
/// own list for request handlers: clocks, random numbers, standard streams and `wasi:io`.
pub(crate) fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(linker)?;
    random::insecure::add_to_linker::<_, WasiRandom>(linker, |state| state.random())?;
    random::insecure_seed::add_to_linker::<_, WasiRandom>(linker, |state| state.random())?;
    cli::exit::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::environment::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(linker, CallState::cli)?;
    Ok(())
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let Self { wasi, table, log, .. } = self;
        WasiCtxView {
            ctx: wasi.get_or_insert_with(|| context(log)),
            table,
        }
    }
}

/// Everything that a builder would inherit is left out.
fn context(log: &CallLog) -> WasiCtx {
    WasiCtx::builder()
        .stdout(Lines::new(log.sibling(), Loudness::Info))
        .stderr(Lines::new(log.sibling(), Loudness::Warn))
        .secure_random(Deterministic::new(SEED.to_vec()))
        .insecure_random(Deterministic::new(SEED.to_vec()))
        .insecure_random_seed(u128::from_le_bytes(SEED))
        .max_random_size(RANDOM)
        .wall_clock(Standstill)
        .monotonic_clock(Counter(AtomicU64::new(0)))
        .build()
}

/// A wall clock that shows the same time in each call.
struct Standstill;

impl HostWallClock for Standstill {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        NOW
    }
}

/// A monotonic clock that goes on by a millisecond each time it is read, so that a guest which waits for it gets there.
struct Counter(AtomicU64);

impl HostMonotonicClock for Counter {
    fn resolution(&self) -> u64 {
        MILLISECOND
    }

    fn now(&self) -> u64 {
        self.0.fetch_add(MILLISECOND, Ordering::Relaxed)
    }
}

/// Standard output as lines of the plugin's log. Never full and never closed: both would end a guest that only prints too much.
#[derive(Clone)]
struct Lines(Arc<Mutex<Open>>);

struct Open {
    log: CallLog,
    loudness: Loudness,
    line: Vec<u8>,
    left: usize,
}

impl Lines {
    fn new(log: CallLog, loudness: Loudness) -> Self {
        Self(Arc::new(Mutex::new(Open {
            log,
            loudness,
            line: Vec::new(),
            left: OUTPUT,
        })))
    }

    fn take(&self, bytes: &[u8]) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = bytes.len().min(open.left);
        open.left -= kept;
        for byte in &bytes[..kept] {
            if *byte == b'\n' {
                open.end_line();
            } else {
                open.line.push(*byte);
            }
        }
    }
}

impl Open {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.log.write(self.loudness, &String::from_utf8_lossy(&line));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end_line();
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Lines {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(OUTPUT)
    }
}

#[async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Lines {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
