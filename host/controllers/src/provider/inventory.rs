//! Watches the objects of one provider and asks its driver what each is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hostler_core::loan;
use hostler_core::retry::{self, Class};
use hostler_core::seams::{Description, Driver, KindUse, Machine, Object, ObjectRef, Reason, Role};
use hostler_core::view;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::machines::{Entry, Hold, Holdings};

/// Changes that come within this time are answered together.
const SETTLE: Duration = Duration::from_millis(10);
/// Wait before kinds that are not served yet are looked for again.
const UNSERVED: Duration = Duration::from_secs(2);

/// Longest wait before a driver that gave no answer is asked again.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Entries by uid and resourceVersions of what they were made from.
type Answers = HashMap<(String, String), Entry>;

/// Runs until `stop`: one provider generation with one driver version.
pub(super) async fn run(
    ctx: Arc<Ctx>,
    provider: Object,
    driver: Arc<dyn Driver>,
    description: Arc<Description>,
    stop: CancellationToken,
) {
    let uses: Vec<KindUse> = description
        .uses
        .iter()
        .filter(|used| used.role != Role::Product)
        .cloned()
        .collect();
    let mut streams = Vec::new();
    for (index, used) in uses.iter().enumerate() {
        let Some(resource) = served(&ctx, used, &stop).await else {
            return;
        };
        streams.push(events(&ctx, used, index, &resource));
    }
    let mut events = stream::select_all(streams);
    let mut seen: Vec<BTreeMap<ObjectRef, Arc<DynamicObject>>> = vec![BTreeMap::new(); uses.len()];
    let mut fresh: Vec<Option<BTreeMap<ObjectRef, Arc<DynamicObject>>>> = vec![None; uses.len()];
    let mut listed = vec![false; uses.len()];
    let mut answers = Answers::new();
    let mut dirty = false;
    let mut failures: u32 = 0;
    loop {
        // A call that failed is made again even if nothing changes: a machine must not stay unknown because the host was busy once.
        let again = retry::delay(Class::Broken, failures, 0.5)
            .unwrap_or(UNSERVED)
            .min(LONGEST_RETRY);
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
            () = tokio::time::sleep(again), if failures > 0 && !dirty => {
                dirty = true;
                continue;
            }
            () = tokio::time::sleep(SETTLE), if dirty => {
                dirty = false;
                let holdings = judge(&provider, driver.as_ref(), &description, &uses, &seen, &mut answers).await;
                let failed = holdings.machines.values().any(|entry| entry.machine.is_err());
                failures = if failed { failures.saturating_add(1) } else { 0 };
                if !stop.is_cancelled() {
                    let listed = listed.iter().all(|one| *one);
                    ctx.machines.set(&provider.uid, Holdings { listed, ..holdings });
                }
                continue;
            }
        };
        let Some((index, event)) = event else { return };
        match event {
            watcher::Event::Apply(object) => {
                seen[index].insert(reference(&uses[index], &object), Arc::new(object));
            }
            watcher::Event::Delete(object) => {
                seen[index].remove(&reference(&uses[index], &object));
            }
            watcher::Event::Init => fresh[index] = Some(BTreeMap::new()),
            watcher::Event::InitApply(object) => {
                let name = reference(&uses[index], &object);
                fresh[index]
                    .get_or_insert_default()
                    .insert(name, Arc::new(object));
            }
            watcher::Event::InitDone => {
                seen[index] = fresh[index].take().unwrap_or_default();
                listed[index] = true;
            }
        }
        dirty = true;
    }
}

/// The resource of a kind, once the API serves it.
async fn served(ctx: &Ctx, used: &KindUse, stop: &CancellationToken) -> Option<ApiResource> {
    let (group, version) = used
        .api_version
        .split_once('/')
        .unwrap_or(("", &used.api_version));
    let kind = GroupVersionKind::gvk(group, version, &used.kind);
    loop {
        match kube::discovery::pinned_kind(&ctx.client, &kind).await {
            Ok((resource, _)) => return Some(resource),
            Err(error) => tracing::debug!(kind = used.kind, error = %error, "kind is not served yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(UNSERVED) => {}
        }
    }
}

fn events(
    ctx: &Ctx,
    used: &KindUse,
    index: usize,
    resource: &ApiResource,
) -> BoxStream<'static, (usize, watcher::Event<DynamicObject>)> {
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), &used.namespace, resource);
    let mut config = watcher::Config::default();
    if !used.selector.is_empty() {
        config = config.labels(&used.selector);
    }
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            std::future::ready(match event {
                Ok(event) => Some((index, event)),
                Err(error) => {
                    tracing::debug!(error = %error, "inventory watch broke; trying again");
                    None
                }
            })
        })
        .boxed()
}

async fn judge(
    provider: &Object,
    driver: &dyn Driver,
    description: &Arc<Description>,
    uses: &[KindUse],
    seen: &[BTreeMap<ObjectRef, Arc<DynamicObject>>],
    answers: &mut Answers,
) -> Holdings {
    let mut machines = BTreeMap::new();
    let mut kept = Answers::new();
    for (_, objects) in uses
        .iter()
        .zip(seen)
        .filter(|(used, _)| used.role == Role::Machine)
    {
        for (name, object) in objects {
            let related: Vec<&Arc<DynamicObject>> = uses
                .iter()
                .zip(seen)
                .filter(|(used, _)| used.role == Role::Related)
                .filter_map(|(used, objects)| {
                    objects.get(&ObjectRef {
                        api_version: used.api_version.clone(),
                        kind: used.kind.clone(),
                        namespace: name.namespace.clone(),
                        name: name.name.clone(),
                    })
                })
                .collect();
            let versions: Vec<String> = related.iter().filter_map(|one| one.resource_version()).collect();
            let key = (
                object.uid().unwrap_or_default(),
                format!(
                    "{}/{}",
                    object.resource_version().unwrap_or_default(),
                    versions.join("/")
                ),
            );
            let entry = match answers.remove(&key) {
                Some(entry) => entry,
                None => ask(provider, driver, object, &related).await,
            };
            // A failed call is asked again with the next change of anything; an answer stands until its object changes.
            if entry.machine.is_ok() {
                kept.insert(key, entry.clone());
            }
            machines.insert(name.clone(), entry);
        }
    }
    *answers = kept;
    Holdings {
        description: Some(description.clone()),
        machines,
        listed: false,
    }
}

async fn ask(
    provider: &Object,
    driver: &dyn Driver,
    object: &Arc<DynamicObject>,
    related: &[&Arc<DynamicObject>],
) -> Entry {
    let whole = serde_json::to_value(object.as_ref()).unwrap_or_default();
    let shown = view::object(&loan::hide(&whole));
    let related: Vec<Object> = related
        .iter()
        .map(|one| view::object(&serde_json::to_value(one.as_ref()).unwrap_or_default()))
        .collect();
    let machine: Result<Option<Machine>, Reason> = driver
        .machine_of(provider, &shown, &related)
        .await
        .map_err(|failure| failure.reason().clone());
    let held_by = loan::holder(&whole).map(|holder| Hold {
        installation: holder.installation,
        claim: holder.claim.uid,
    });
    Entry {
        object: object.clone(),
        machine,
        held_by,
    }
}

fn reference(used: &KindUse, object: &DynamicObject) -> ObjectRef {
    ObjectRef {
        api_version: used.api_version.clone(),
        kind: used.kind.clone(),
        namespace: object.namespace(),
        name: object.name_any(),
    }
}
