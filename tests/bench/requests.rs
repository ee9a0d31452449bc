//! Requests to the embedded API over its socket, with TLS and a client certificate, as any client sends them.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Objects there are, requests of each sort, and clients at once.
const OBJECTS: usize = 1000;
const REQUESTS: usize = 5000;
const AT_ONCE: usize = 16;
/// Watches, and changes that each of them sees.
const WATCHES: usize = 100;
const CHANGES: usize = 100;

/// Prints a table.
pub(crate) async fn measure(client: &Client) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let begun = Instant::now();
    let made = run(OBJECTS, |number| {
        let maps = maps.clone();
        async move {
            let object: ConfigMap = serde_json::from_value(json!({
                "metadata": { "name": format!("bench-{number:04}") },
                "data": { "text": "x".repeat(200) },
            }))?;
            maps.create(&PostParams::default(), &object).await?;
            Ok(())
        }
    })
    .await?;
    println!("## Requests\n\n{AT_ONCE} clients at once, {OBJECTS} ConfigMaps of about 500 bytes.\n");
    println!("| | requests/s | p50 (ms) | p99 (ms) |\n| --- | --- | --- | --- |");
    row("create (each durable on disk)", made, begun.elapsed());
    let begun = Instant::now();
    let got = run(REQUESTS, |number| {
        let maps = maps.clone();
        async move {
            Ok(maps
                .get(&format!("bench-{:04}", number % OBJECTS))
                .await
                .map(drop)?)
        }
    })
    .await?;
    row("get", got, begun.elapsed());
    let begun = Instant::now();
    let listed = run(REQUESTS / 50, |_| {
        let maps = maps.clone();
        async move { Ok(maps.list(&ListParams::default()).await.map(drop)?) }
    })
    .await?;
    row(&format!("list of {OBJECTS}"), listed, begun.elapsed());
    let begun = Instant::now();
    let patched = run(REQUESTS / 5, |number| {
        let maps = maps.clone();
        async move {
            let change = Patch::Merge(json!({ "data": { "number": number.to_string() } }));
            maps.patch(
                &format!("bench-{:04}", number % OBJECTS),
                &PatchParams::default(),
                &change,
            )
            .await?;
            Ok(())
        }
    })
    .await?;
    row("merge patch (each durable on disk)", patched, begun.elapsed());
    fan_out(&maps).await?;
    println!();
    Ok(())
}

/// From the answer of a patch until every watch has seen it.
async fn fan_out(maps: &Api<ConfigMap>) -> Result<()> {
    let version = maps
        .list(&ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let watches = (0..WATCHES).map(|_| {
        let (maps, version) = (maps.clone(), version.clone());
        tokio::spawn(async move {
            let mut seen = Vec::with_capacity(CHANGES);
            let mut events = maps.watch(&WatchParams::default(), &version).await?.boxed();
            while seen.len() < CHANGES {
                if let Some(WatchEvent::Modified(object)) = events.try_next().await?
                    && object.name_any() == "bench-0000"
                {
                    seen.push(Instant::now());
                }
            }
            anyhow::Ok(seen)
        })
    });
    let watches: Vec<_> = watches.collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut written = Vec::new();
    for number in 0..CHANGES {
        let change = Patch::Merge(json!({ "data": { "watched": number.to_string() } }));
        maps.patch("bench-0000", &PatchParams::default(), &change).await?;
        written.push(Instant::now());
    }
    let mut late = Vec::new();
    let begun = written[0];
    let mut last = begun;
    for watch in watches {
        for (seen, written) in watch.await??.into_iter().zip(&written) {
            late.push(seen.saturating_duration_since(*written));
            last = last.max(seen);
        }
    }
    row(
        &format!("watch: events to {WATCHES} watches, after the write's answer"),
        late,
        last - begun,
    );
    Ok(())
}

async fn run<F>(count: usize, request: impl Fn(usize) -> F) -> Result<Vec<Duration>>
where
    F: Future<Output = Result<()>>,
{
    stream::iter(0..count)
        .map(|number| {
            let request = request(number);
            async move {
                let begun = Instant::now();
                request.await?;
                Ok(begun.elapsed())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

fn row(name: &str, mut times: Vec<Duration>, whole: Duration) {
    times.sort();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(index).copied().unwrap_or_default().as_secs_f64() * 1000.0
    };
    println!(
        "| {name} | {:.0} | {:.2} | {:.2} |",
        times.len() as f64 / whole.as_secs_f64(),
        at(0.50),
        at(0.99)
    );
}
