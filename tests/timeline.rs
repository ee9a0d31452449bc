//! The seed's timeline, measured: from an apply to machines that serve and back, with machines that take no time. `make timeline`
//! prints it as a table. Nothing here fails for being slow.
#![allow(clippy::print_stdout, reason = "the table is what it is for")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hostler_api::{NodeClaim, VirtualClusterInstance, names};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::crashes::{all_available, delete_tenant, free_hosts, nothing_left};
use crate::harness::{World, eventually};

/// Runs of which the median is shown.
const RUNS: usize = 5;
/// The hosts of the example.
const HOSTS: [&str; 2] = ["bare-metal-1", "bare-metal-2"];

/// When something was first seen, by its name.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Seen {
    fn note(&self, what: String) {
        self.0.lock().unwrap().entry(what).or_insert_with(Instant::now);
    }

    fn at(&self, what: &str) -> Instant {
        let seen = self.0.lock().unwrap();
        *seen
            .get(what)
            .unwrap_or_else(|| panic!("{what} was not seen: {:?}", seen.keys()))
    }

    /// When the last of these was seen.
    fn last(&self, all: impl IntoIterator<Item = String>) -> Instant {
        all.into_iter()
            .map(|one| self.at(&one))
            .max()
            .expect("there are some")
    }
}

/// Watches a kind, and notes what `tell` says of each version.
fn follow<K>(api: Api<K>, seen: &Seen, tell: fn(&K) -> Vec<String>) -> AbortOnDropHandle<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let seen = seen.clone();
    let events = watch(api, watcher::Config::default()).default_backoff();
    AbortOnDropHandle::new(tokio::spawn(events.for_each(move |event| {
        if let Ok(Event::InitApply(object) | Event::Apply(object)) = event {
            tell(&object).into_iter().for_each(|what| seen.note(what));
        }
        std::future::ready(())
    })))
}

fn of_claim(claim: &NodeClaim) -> Vec<String> {
    let status = claim.status.clone().unwrap_or_default();
    let mut told = vec![format!("claim {}", claim.name_any())];
    if let (Some("Available"), Some(node)) = (status.phase.as_deref(), status.node_name) {
        told.push(format!("available {node}"));
    }
    told
}

fn of_host(host: &DynamicObject) -> Vec<String> {
    let name = host.name_any();
    let text = |place: &str| host.data.pointer(place).and_then(Value::as_str);
    let is = |place: &str, wanted: bool| host.data.pointer(place).and_then(Value::as_bool) == Some(wanted);
    let mut told = Vec::new();
    if host.annotations().contains_key(names::LOAN) {
        told.push(format!("taken {name}"));
    }
    match text("/status/provisioning/state") {
        Some("deprovisioning") => told.push(format!("cleaning {name}")),
        Some("available") if is("/status/poweredOn", false) => told.push(format!("clean {name}")),
        _ => {}
    }
    told
}

/// The same once a release has begun: what was seen before is another matter.
fn of_returning_host(host: &DynamicObject) -> Vec<String> {
    let mut told = of_host(host);
    told.retain(|what| !what.starts_with("taken"));
    let empty = |place: &str| host.data.pointer(place).is_none_or(Value::is_null);
    if empty("/spec/image") {
        told.push(format!("told to go {}", host.name_any()));
    } else {
        // Not clean yet, whatever its state says.
        told.clear();
    }
    if !host.annotations().contains_key(names::LOAN) && empty("/spec/consumerRef") {
        told.push(format!("free {}", host.name_any()));
    }
    told
}

fn of_node(node: &Node) -> Vec<String> {
    let conditions = node.status.clone().and_then(|status| status.conditions);
    let is_ready = conditions
        .unwrap_or_default()
        .iter()
        .any(|one| one.type_ == "Ready" && one.status == "True");
    if is_ready {
        vec![format!("ready {}", node.name_any())]
    } else {
        Vec::new()
    }
}

fn of_secret(secret: &Secret) -> Vec<String> {
    vec![format!("secret {}", secret.name_any())]
}

fn of_tenant(tenant: &VirtualClusterInstance) -> Vec<String> {
    let conditions = tenant.status.clone().unwrap_or_default().conditions;
    let true_ones = conditions.iter().filter(|one| one.status == "True");
    true_ones.map(|one| one.kind.clone()).collect()
}

/// One line of the table, in seconds: in all, and what of it is the host's own.
type Line = (&'static str, Duration, Duration);

/// A tenant comes and goes once.
async fn run(world: &World) -> Vec<Line> {
    let hosts = || world.hosts();
    let seen = Seen::default();
    let client = |world: &World| -> Client { world.client.clone() };
    let watches = [
        follow(Api::all(client(world)), &seen, of_claim),
        follow(Api::all(client(world)), &seen, of_tenant),
        follow(
            Api::namespaced(client(world), "loft-default-v-one"),
            &seen,
            of_secret,
        ),
    ];
    let on_hosts = follow(hosts(), &seen, of_host);
    let applied = Instant::now();
    world.apply_file("examples/01-lab/tenant.yaml").await;
    let tenant = eventually("a cluster", || async {
        world.tenant("one").ok_or_else(String::new)
    })
    .await;
    let on_nodes = follow(Api::all(tenant), &seen, of_node);
    all_available(world).await;
    eventually("all was seen", || async {
        let known = seen.0.lock().unwrap();
        let missing = HOSTS.iter().find(|host| {
            !known.contains_key(&format!("available {host}")) || !known.contains_key(&format!("ready {host}"))
        });
        missing.map_or(Ok(()), |host| Err(format!("{host}: {:?}", known.keys())))
    })
    .await;
    drop((watches, on_nodes, on_hosts));
    let claims: Vec<String> = {
        let known = seen.0.lock().unwrap();
        known
            .keys()
            .filter(|what| what.starts_with("claim "))
            .cloned()
            .collect()
    };
    // The wait for somebody to run the tenant's API is not the host's.
    let given = seen.at("secret vc-one") - applied;
    let created = seen.last(claims) - applied;
    let taken = seen.last(HOSTS.map(|host| format!("taken {host}"))) - applied;
    let available = HOSTS
        .iter()
        .map(|host| {
            seen.at(&format!("available {host}"))
                .saturating_duration_since(seen.at(&format!("ready {host}")))
        })
        .max()
        .expect("there are hosts");

    let seen = Seen::default();
    let on_hosts = follow(hosts(), &seen, of_returning_host);
    let deleted = Instant::now();
    delete_tenant(world, "one").await;
    nothing_left(world).await;
    free_hosts(world).await;
    eventually("all was seen", || async {
        let known = seen.0.lock().unwrap();
        let missing = HOSTS
            .iter()
            .find(|host| !known.contains_key(&format!("free {host}")));
        missing.map_or(Ok(()), |host| Err(format!("{host}: {:?}", known.keys())))
    })
    .await;
    drop(on_hosts);
    let returned = seen.last(HOSTS.map(|host| format!("free {host}"))) - deleted;
    // From the word to go until it is clean and off, a host is its management controller's.
    let theirs = HOSTS
        .iter()
        .map(|host| {
            seen.at(&format!("clean {host}"))
                .saturating_duration_since(seen.at(&format!("told to go {host}")))
        })
        .max()
        .expect("there are hosts");
    vec![
        ("apply → claims created", created, created.saturating_sub(given)),
        ("apply → hosts taken", taken, taken.saturating_sub(given)),
        ("node Ready → claim Available", available, available),
        (
            "delete → hosts available",
            returned,
            returned.saturating_sub(theirs),
        ),
    ]
}

fn median(mut all: Vec<Duration>) -> f64 {
    all.sort();
    all[all.len() / 2].as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: make timeline"]
async fn the_seeds_timeline() {
    let world = World::new().await;
    let host = world.host().await;
    world.example().await;
    free_hosts(&world).await;
    // One before that counts: caches, connections, compiled components.
    run(&world).await;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(run(&world).await);
    }
    host.stop().await;
    // As the seed's clock has them: claims and power-on 41 s after apply (its own control plane was Ready after 30), 45 s for the delete.
    let seed = ["41 s", "41 s", "reported some seconds before", "45 s and a few"];
    println!(
        "\nmedian of {RUNS} runs, machines take no time; the host's own part is without the wait for the tenant's API (as installed by"
    );
    println!("the test) and without the wait for machines\n");
    println!("| step | in all | the host's own part | the seed |");
    println!("|---|---|---|---|");
    for (index, (step, ..)) in runs[0].iter().enumerate() {
        let of = |part: fn(&Line) -> Duration| median(runs.iter().map(|run| part(&run[index])).collect());
        let (all, own) = (of(|line| line.1), of(|line| line.2));
        println!("| {step} | {all:.2} s | {own:.2} s | {} |", seed[index]);
    }
}
