//! Watches the objects of one provider and asks its driver what each is.

use std::collections::{BTreeMap, BTreeSet};
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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::machines::{Entry, Hold, Holdings};

/// Changes that come within this time are answered together.
const SETTLE: Duration = Duration::from_millis(10);
/// Wait before kinds that are not served yet are looked for again.
const UNSERVED: Duration = Duration::from_secs(2);

/// Longest wait before a driver that gave no answer is asked again.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Objects of one use.
type Objects = BTreeMap<ObjectRef, Arc<DynamicObject>>;

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
    let mut sight = Sight::new(uses);
    let mut published = false;
    let mut dirty = false;
    let mut failures: u32 = 0;
    let mut retry_at = Instant::now();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
            // A call that failed is made again even if nothing changes: a machine must not stay unknown because the host was busy once.
            () = tokio::time::sleep_until(retry_at), if failures > 0 && !dirty => {
                dirty = true;
                continue;
            }
            () = tokio::time::sleep(SETTLE), if dirty => {
                dirty = false;
                let is_retry = failures > 0 && retry_at <= Instant::now();
                if is_retry {
                    sight.doubt_failed();
                }
                let changes = sight.judge(&provider, driver.as_ref()).await;
                if sight.failed.is_empty() {
                    failures = 0;
                } else if failures == 0 || is_retry {
                    failures = failures.saturating_add(1);
                    let wait = retry::delay(Class::Broken, failures, 0.5).unwrap_or(UNSERVED);
                    retry_at = Instant::now() + wait.min(LONGEST_RETRY);
                }
                if stop.is_cancelled() {
                    return;
                }
                let (description, listed) = (Some(description.clone()), sight.is_listed());
                if published {
                    ctx.machines.change(&provider.uid, description, listed, changes);
                } else {
                    // What an earlier run said of them is of another description.
                    published = true;
                    let there = changes.into_iter().filter_map(|(name, entry)| Some((name, entry?)));
                    let machines = there.collect();
                    ctx.machines.set(&provider.uid, Holdings { description, machines, listed });
                }
                continue;
            }
        };
        let Some((index, event)) = event else { return };
        sight.note(index, event);
        dirty = true;
    }
}

/// The objects as they were last seen, and what the driver made of the machines among them.
struct Sight {
    uses: Vec<KindUse>,
    objects: Vec<Objects>,
    /// What a list that is not over yet has brought.
    fresh: Vec<Option<Objects>>,
    listed: Vec<bool>,
    /// What the answers were made from; a failed call leaves none.
    answers: BTreeMap<ObjectRef, Versions>,
    /// Machines that are to be looked at.
    touched: BTreeSet<ObjectRef>,
    /// Machines for which the driver gave no answer.
    failed: BTreeSet<ObjectRef>,
}

/// uid and resourceVersion of a machine, then the resourceVersions of the objects beside it.
type Versions = Vec<Option<String>>;

impl Sight {
    fn new(uses: Vec<KindUse>) -> Self {
        Self {
            objects: vec![Objects::new(); uses.len()],
            fresh: vec![None; uses.len()],
            listed: vec![false; uses.len()],
            uses,
            answers: BTreeMap::new(),
            touched: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    fn is_listed(&self) -> bool {
        self.listed.iter().all(|one| *one)
    }

    fn doubt_failed(&mut self) {
        self.touched.extend(self.failed.iter().cloned());
    }

    fn note(&mut self, index: usize, event: watcher::Event<DynamicObject>) {
        let of = |object: &DynamicObject| reference(&self.uses[index], object);
        match event {
            watcher::Event::Apply(object) => {
                let name = of(&object);
                self.touch(index, &name);
                self.objects[index].insert(name, Arc::new(object));
            }
            watcher::Event::Delete(object) => {
                let name = of(&object);
                self.touch(index, &name);
                self.objects[index].remove(&name);
            }
            watcher::Event::Init => self.fresh[index] = Some(Objects::new()),
            watcher::Event::InitApply(object) => {
                let name = of(&object);
                self.fresh[index]
                    .get_or_insert_default()
                    .insert(name, Arc::new(object));
            }
            watcher::Event::InitDone => {
                let now = self.fresh[index].take().unwrap_or_default();
                let before = std::mem::replace(&mut self.objects[index], now);
                let names: BTreeSet<ObjectRef> = before
                    .into_keys()
                    .chain(self.objects[index].keys().cloned())
                    .collect();
                for name in &names {
                    self.touch(index, name);
                }
                self.listed[index] = true;
            }
        }
    }

    /// Notes the machines that an object is, or stands beside.
    fn touch(&mut self, index: usize, name: &ObjectRef) {
        if self.uses[index].role == Role::Machine {
            self.touched.insert(name.clone());
            return;
        }
        let machines = self.uses.iter().filter(|used| used.role == Role::Machine);
        self.touched.extend(machines.map(|used| beside(used, name)));
    }

    /// Asks the driver about the machines that changed; returns them, `None` being those that are gone.
    async fn judge(
        &mut self,
        provider: &Object,
        driver: &dyn Driver,
    ) -> Vec<(ObjectRef, Option<Arc<Entry>>)> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.touched) {
            let Some(object) = self
                .of_role(Role::Machine)
                .find_map(|(_, objects)| objects.get(&name))
            else {
                self.answers.remove(&name);
                self.failed.remove(&name);
                changes.push((name, None));
                continue;
            };
            let related: Vec<&Arc<DynamicObject>> = self
                .of_role(Role::Related)
                .filter_map(|(used, objects)| objects.get(&beside(used, &name)))
                .collect();
            let versions: Versions = [object.uid(), object.resource_version()]
                .into_iter()
                .chain(related.iter().map(|one| one.resource_version()))
                .collect();
            // An answer stands until its object changes.
            if self.answers.get(&name) == Some(&versions) {
                continue;
            }
            let entry = Arc::new(ask(provider, driver, object, &related).await);
            if entry.machine.is_ok() {
                self.failed.remove(&name);
                self.answers.insert(name.clone(), versions);
            } else {
                self.failed.insert(name.clone());
                self.answers.remove(&name);
            }
            changes.push((name, Some(entry)));
        }
        changes
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = (&KindUse, &Objects)> {
        self.uses
            .iter()
            .zip(&self.objects)
            .filter(move |(used, _)| used.role == role)
    }
}

/// The object of a use that has the name of another one.
fn beside(used: &KindUse, name: &ObjectRef) -> ObjectRef {
    ObjectRef {
        api_version: used.api_version.clone(),
        kind: used.kind.clone(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
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

#[cfg(test)]
mod tests;
