//! The host ends after each of its writes in turn, or never hears of one that landed: the same end is reached.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use hostler_api as api;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::fault::Ends;
use crate::harness::stack::is_real;
use crate::harness::{Fault, History, Strikes, World, eventually};

mod gap;

/// Lives that go on at a time: each waits more than it works.
const AT_ONCE: usize = 6;
/// Fewer writes than this make no node.
const LEAST: usize = 25;
/// Fewer paths than this no host reads: it lists each of its kinds.
const LEAST_READ: usize = 10;

/// A host as it must be again after release: all but status and what the server counts.
pub(crate) fn essence(host: &DynamicObject) -> Value {
    let mut whole = serde_json::to_value(host).unwrap();
    whole.as_object_mut().unwrap().remove("status");
    let metadata = whole["metadata"].as_object_mut().unwrap();
    for counted in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(counted);
    }
    whole
}

/// The two hosts of the example once they are free, settled and known.
pub(crate) async fn free_hosts(world: &World) -> BTreeMap<String, Value> {
    all_free(world, 2).await
}

/// So many hosts, once they are free, settled and known.
pub(crate) async fn all_free(world: &World, count: usize) -> BTreeMap<String, Value> {
    eventually("all hosts are available and off", || async {
        let hosts = world
            .hosts()
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let busy: Vec<String> = hosts
            .iter()
            .filter(|host| {
                host.data
                    .pointer("/status/provisioning/state")
                    .and_then(Value::as_str)
                    != Some("available")
                    || host.data.pointer("/status/poweredOn").and_then(Value::as_bool) != Some(false)
                    || host
                        .data
                        .pointer("/spec/consumerRef")
                        .is_some_and(|one| !one.is_null())
                    || host.annotations().contains_key(api::names::LOAN)
            })
            .map(|host| format!("{} {}", host.name_any(), host.data))
            .collect();
        if busy.is_empty() && hosts.items.len() == count {
            Ok(hosts
                .iter()
                .map(|host| (host.name_any(), essence(host)))
                .collect())
        } else {
            Err(busy.join("\n"))
        }
    })
    .await
}

/// All claims there are.
pub(crate) async fn claims(world: &World) -> Result<Vec<api::NodeClaim>, String> {
    let claims: Api<api::NodeClaim> = Api::all(world.client.clone());
    Ok(claims
        .list(&ListParams::default())
        .await
        .map_err(|error| error.to_string())?
        .items)
}

/// Phase of a claim.
pub(crate) fn phase(claim: &api::NodeClaim) -> &str {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// What a claim says of itself.
pub(crate) fn told(claim: &api::NodeClaim) -> String {
    let status = claim.status.clone().unwrap_or_default();
    let deleted = if claim.metadata.deletion_timestamp.is_some() {
        ", deleted"
    } else {
        ""
    };
    let words = [status.phase, status.reason, status.message].map(Option::unwrap_or_default);
    format!("{}{deleted}: {}", claim.name_any(), words.join(" | "))
}

/// Both claims are Available.
pub(crate) async fn all_available(world: &World) {
    so_many_available(world, 2).await;
}

/// There are so many claims, and all are Available.
pub(crate) async fn so_many_available(world: &World, count: usize) {
    eventually(&format!("{count} claims Available"), || async {
        let claims = claims(world).await?;
        let ready = claims
            .iter()
            .all(|claim| phase(claim) == "Available" && claim.metadata.deletion_timestamp.is_none());
        if ready && claims.len() == count {
            Ok(())
        } else {
            Err(claims.iter().map(told).collect::<Vec<_>>().join("\n"))
        }
    })
    .await;
}

/// Nothing of a tenant is left on the platform.
pub(crate) async fn nothing_left(world: &World) {
    eventually("nothing of a tenant is left", || async {
        // What goes last is asked for first, and nothing after what is still there: asking is work for the server, too.
        let secret = |secret: &Secret| !secret.name_any().ends_with("-bmc");
        let project = |namespace: &Namespace| namespace.name_any().starts_with("loft-");
        let client = || world.client.clone();
        none(Api::<api::VirtualClusterInstance>::all(client()), |_| true).await?;
        none(Api::<api::NodeClaim>::all(client()), |_| true).await?;
        none(Api::<api::Enrollment>::all(client()), |_| true).await?;
        none(Api::<Secret>::namespaced(client(), "default"), secret).await?;
        none(Api::<Namespace>::all(client()), project).await?;
        match world.stack.clusters().as_slice() {
            [_platform] => Ok(()),
            more => Err(format!("clusters: {more:?}")),
        }
    })
    .await;
}

/// No object of a kind is there, of those that count.
async fn none<K>(api: Api<K>, counts: impl Fn(&K) -> bool) -> Result<(), String>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    let all = api
        .list(&ListParams::default())
        .await
        .map_err(|error| error.to_string())?;
    let left: Vec<&K> = all.iter().filter(|one| counts(one)).collect();
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("{}: {left:?}", K::plural(&())))
    }
}

/// Tells the server that the tenant may go.
pub(crate) async fn delete_tenant(world: &World, name: &str) {
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(world.client.clone(), "p-default");
    match tenants.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => panic!("{error}"),
    }
}

/// Exactly these Nodes are in the tenant, and Ready.
pub(crate) async fn nodes_ready(world: &World, tenant: &str, names: &[&str]) {
    nodes_ready_at(|| world.tenant(tenant), names).await;
}

/// The same, by whom to ask once there is a tenant's API.
pub(crate) async fn nodes_ready_at(api: impl Fn() -> Option<Client>, names: &[&str]) {
    eventually(&format!("nodes {names:?} are Ready"), || async {
        let client = api().ok_or("the tenant has no cluster")?;
        let nodes = Api::<Node>::all(client)
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let mut ready: Vec<String> = nodes
            .iter()
            .filter(|node| {
                let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions
                    .into_iter()
                    .flatten()
                    .any(|one| one.type_ == "Ready" && one.status == "True")
            })
            .map(ResourceExt::name_any)
            .collect();
        ready.sort();
        if ready == names && nodes.items.len() == names.len() {
            Ok(())
        } else {
            Err(format!("{ready:?} of {}", nodes.items.len()))
        }
    })
    .await;
}

/// An operator sets an annotation on a host; in `hosts`, too.
pub(crate) async fn annotate(
    world: &World,
    hosts: &mut BTreeMap<String, Value>,
    host: &str,
    key: &str,
    value: &str,
) {
    let change = json!({"metadata": {"annotations": {key: value}}});
    world
        .hosts()
        .patch(host, &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    hosts.get_mut(host).unwrap()["metadata"]["annotations"][key] = json!(value);
}

/// Provision and release, each with a fault on the way: if the host ends, an operator edits hosts, and another one goes on.
async fn life(out: Arc<Fault>, back: Arc<Fault>) {
    let world = World::new().await;
    let history = History::of(&world.client);
    let host = world.host_behind(&out).await;
    world.example().await;
    let mut hosts = free_hosts(&world).await;
    let host = tokio::join!(world.apply_file("examples/01-lab/tenant.yaml"), async {
        if !ends_before(&world, &out, are_available).await {
            return host;
        }
        host.stop().await;
        annotate(
            &world,
            &mut hosts,
            "bare-metal-1",
            "metal3.vcluster.com/dns-servers",
            "44.128.0.5",
        )
        .await;
        annotate(
            &world,
            &mut hosts,
            "bare-metal-2",
            "rack.example.com/note",
            "checked",
        )
        .await;
        world.host().await
    })
    .1;
    all_available(&world).await;
    nodes_ready(&world, "one", &["bare-metal-1", "bare-metal-2"]).await;
    assert_eq!(
        history.claims().len(),
        2,
        "names repeat, so no third claim was ever made: {:?}",
        history.claims()
    );

    host.stop().await;
    let host = world.host_behind(&back).await;
    delete_tenant(&world, "one").await;
    let host = if ends_before(&world, &back, is_gone).await {
        host.stop().await;
        annotate(
            &world,
            &mut hosts,
            "bare-metal-1",
            "metal3.vcluster.com/dns-servers",
            "44.128.0.6",
        )
        .await;
        annotate(
            &world,
            &mut hosts,
            "bare-metal-2",
            "rack.example.com/note",
            "checked again",
        )
        .await;
        world.host().await
    } else {
        host
    };
    nothing_left(&world).await;
    assert_eq!(
        free_hosts(&world).await,
        hosts,
        "the hosts are byte for byte what they were"
    );
    history.is_clean(&world).await;
    history.names_are_exclusive();
    for host in hosts.values() {
        let borrowers = history.borrowers(host["metadata"]["uid"].as_str().unwrap());
        assert_eq!(borrowers.len(), 1, "each machine was lent once, to one claim");
    }
    host.stop().await;
}

/// Waits until the host has ended (true), or has come so far without.
async fn ends_before(
    world: &World,
    fault: &Fault,
    far: impl AsyncFn(&World) -> Result<bool, String>,
) -> bool {
    eventually("the host ends, or has nothing more to write", || async {
        if fault.is_dead() {
            return Ok(true);
        }
        if far(world).await? {
            Ok(false)
        } else {
            Err(fault.log().join("\n"))
        }
    })
    .await
}

pub(crate) async fn are_available(world: &World) -> Result<bool, String> {
    let claims = claims(world).await?;
    Ok(claims.len() == 2 && claims.iter().all(|one| phase(one) == "Available"))
}

pub(crate) async fn is_gone(world: &World) -> Result<bool, String> {
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(world.client.clone(), "p-default");
    Ok(tenants
        .get_opt("one")
        .await
        .map_err(|error| error.to_string())?
        .is_none())
}

/// A life on whose ways the host is struck.
pub(crate) struct Life<S> {
    pub(crate) strikes: Vec<(&'static str, Arc<S>)>,
    pub(crate) lived: BoxFuture<'static, ()>,
}

/// One life for each number, until one is not struck on any way any more: its number, if there was such a one.
async fn until_unstruck<S: Strikes>(
    numbers: impl Iterator<Item = usize>,
    at_once: usize,
    life: impl Fn(usize) -> Life<S>,
) -> Option<usize> {
    let mut lives = stream::iter(numbers)
        .map(|number| {
            let Life { strikes, lived } = life(number);
            async move { (number, strikes, tokio::spawn(lived).await) }
        })
        .buffered(at_once);
    let mut failed = Vec::new();
    let mut unstruck = None;
    while let Some((number, strikes, lived)) = lives.next().await {
        if let Err(error) = lived {
            let panic = error
                .try_into_panic()
                .ok()
                .and_then(|panic| panic.downcast::<String>().ok());
            let mut told = format!("{number}: {panic:?}");
            for (way, strikes) in &strikes {
                let last: Vec<_> = strikes.log().into_iter().rev().take(4).collect();
                write!(told, "; {way}: {}", last.join(" < ")).unwrap();
            }
            failed.push(told);
        } else if !strikes.iter().any(|(_, strikes)| strikes.has_struck()) {
            unstruck = Some(number);
            break;
        }
        assert!(failed.len() < 3, "{}", failed.join("\n"));
    }
    assert_eq!(failed, [""; 0]);
    unstruck
}

/// One life for each write, in steps, which is struck there.
pub(crate) async fn each_in_turn<S: Strikes>(stride: usize, at_once: usize, life: impl Fn(usize) -> Life<S>) {
    let last = until_unstruck((1..).step_by(stride), at_once, life).await;
    assert!(
        last.is_some_and(|last| last > LEAST),
        "no life was struck after the first {last:?} writes"
    );
}

/// A life of a host in this process.
fn of_one_process((out, back): (Arc<Fault>, Arc<Fault>)) -> Life<Fault> {
    Life {
        strikes: vec![("out", out.clone()), ("back", back.clone())],
        lived: life(out, back).boxed(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_comes_and_goes_and_leaves_the_hosts_as_they_were() {
    life(Fault::none(), Fault::none()).await;
}

/// What cannot be read once is no reason to give anything up.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_first_read_of_anything_fails_goes_on() {
    let (out, back) = (Fault::blind_at_first(), Fault::blind_at_first());
    life(out.clone(), back.clone()).await;
    let failed = |way: &Fault, part: &str| {
        let log = way.log();
        let reads = log
            .iter()
            .filter(|line| line.starts_with("GET ") && line.contains(part));
        reads.count()
    };
    // Not only lists of caches, but what a turn looks at; nodes on the way out alone, since all of a tenant that goes goes.
    assert!(failed(&out, "/nodes/bare-metal-") > 0, "{:?}", out.log());
    for way in [out, back] {
        assert!(failed(&way, "/") > LEAST_READ, "{:?}", way.log());
        assert!(failed(&way, "/baremetalhosts/bare-metal-") > 0, "{:?}", way.log());
    }
}

/// To the host that follows, one that ended between two writes and one that ended before it heard of a write that landed leave the
/// same; so each way has one of them. On real clusters each fifth write is a sample.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_ends_after_any_of_its_writes_is_taken_up_by_the_next() {
    let stride = if is_real() { 5 } else { 1 };
    each_in_turn(stride, AT_ONCE, |number| {
        of_one_process((
            Fault::new(Ends::After(number)),
            Fault::new(Ends::LosingAnswer(number)),
        ))
    })
    .await;
}

/// It lives on, so one life has room for many lost answers: in the first life that of each first write to a path by a method, in the
/// second life that of each second one, until there is no such write any more. On real clusters each other life is a sample.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_hears_of_one_of_its_writes_goes_on() {
    let stride = if is_real() { 2 } else { 1 };
    let faults = Mutex::new(Vec::new());
    let last = until_unstruck((1..).step_by(stride), AT_ONCE, |time| {
        let ways = (Fault::losing(time), Fault::losing(time));
        faults.lock().unwrap().extend([ways.0.clone(), ways.1.clone()]);
        of_one_process(ways)
    });
    last.await.expect("no write comes without end");
    let lost: usize = faults.lock().unwrap().iter().map(|fault| fault.strikes()).sum();
    assert!(lost > LEAST, "only {lost} answers were lost in all");
}
