//! One turn of a loop, as its log, its counters and the liveness probe see it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hostler_core::retry::Class;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;
use tracing::Instrument;

use crate::ctx::Ctx;
use crate::error::Result;

/// Longest a turn may take before the host counts as stuck: a turn waits 10 s for an answer, and for few of them.
pub const LONGEST: Duration = Duration::from_secs(300);

/// The turns that run now.
#[derive(Default)]
pub struct Turns {
    next: AtomicU64,
    running: Mutex<HashMap<u64, (&'static str, Instant)>>,
}

impl Turns {
    fn begin(&self, area: &'static str) -> Running<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running
            .lock()
            .expect("no holder panics")
            .insert(number, (area, Instant::now()));
        Running { turns: self, number }
    }

    /// A loop with a turn that runs longer than any should, and how long.
    #[must_use]
    pub fn stuck(&self) -> Option<(&'static str, Duration)> {
        let all = self.running.lock().expect("no holder panics");
        let oldest = all.values().min_by_key(|(_, since)| *since)?;
        Some((oldest.0, oldest.1.elapsed())).filter(|(_, age)| *age > LONGEST)
    }
}

/// A turn that runs; dropped with it, also when it is given up.
struct Running<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.turns
            .running
            .lock()
            .expect("no holder panics")
            .remove(&self.number);
    }
}

/// Runs the turn of one object.
pub(crate) async fn of<K, T>(
    ctx: &Ctx,
    area: &'static str,
    object: &K,
    work: impl Future<Output = Result<T>>,
) -> Result<T>
where
    K: Resource<DynamicType = ()>,
{
    let name = match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    let generation = object.meta().generation.unwrap_or_default();
    let span = tracing::info_span!("turn", area, object = name, generation);
    counted(ctx, area, work).instrument(span).await
}

/// Runs a turn that is about many objects.
pub(crate) async fn over_all<T>(
    ctx: &Ctx,
    area: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let span = tracing::info_span!("turn", area);
    counted(ctx, area, work).instrument(span).await
}

async fn counted<T>(ctx: &Ctx, area: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let running = ctx.turns.begin(area);
    let began = Instant::now();
    let done = work.await;
    drop(running);
    let outcome = match &done {
        Ok(_) => "ok",
        Err(error) => match error.class() {
            Class::Refused => "refused",
            Class::Busy => "busy",
            Class::Broken => "broken",
            Class::Bug => "bug",
        },
    };
    ctx.metrics.turn(area, outcome, began.elapsed());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_without_end_is_told_and_one_that_ended_is_not() {
        let turns = Turns::default();
        let long = turns.begin("claim");
        tokio::time::advance(LONGEST).await;
        assert_eq!(turns.stuck(), None);
        let _short = turns.begin("tenant");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(turns.stuck(), Some(("claim", LONGEST + Duration::from_secs(1))));
        drop(long);
        assert_eq!(turns.stuck(), None);
    }
}
