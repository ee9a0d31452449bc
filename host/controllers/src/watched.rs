//! One watch of one kind: a cache that loops read, and a stream of what changed that drives them.

mod bound;
#[cfg(test)]
mod tests;
mod written;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use bound::Bound;
use written::{Written, version};

/// Names of changed objects held for a reader that is behind; a reader that is further behind gets all names again.
const BACKLOG: usize = 4096;

/// A cache of all objects that one watch sees.
///
/// # Guarantees
/// A name is sent after the cache shows the change, also for a deletion, and for one that a broken watch missed. So a turn that ends
/// because the cache is behind what this process wrote is followed by another one.
pub struct Watched<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store: Store<K>,
    changes: broadcast::Sender<ObjectRef<K>>,
    written: Arc<Written>,
}

impl<K> Clone for Watched<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            changes: self.changes.clone(),
            written: self.written.clone(),
        }
    }
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug + Default + Send + Sync + Unpin,
{
    /// Starts the watch; it ends with `stop`.
    pub fn start(
        api: Api<K>,
        config: watcher::Config,
        kind: K::DynamicType,
        stop: CancellationToken,
    ) -> Self {
        Self::start_at_most(usize::MAX, api, config, kind, stop)
    }

    /// The same, for the API of somebody who is not trusted: of so many objects the first are kept, and the others are not there.
    pub fn start_at_most(
        most: usize,
        api: Api<K>,
        config: watcher::Config,
        kind: K::DynamicType,
        stop: CancellationToken,
    ) -> Self {
        let writer = reflector::store::Writer::new(kind.clone());
        let watched = Self {
            store: writer.as_reader(),
            changes: broadcast::Sender::new(BACKLOG),
            written: Arc::default(),
        };
        tokio::spawn(keep(writer, api, config, kind, watched.clone(), most, stop));
        watched
    }
}

impl<K> Watched<K>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync,
{
    /// Returns once the objects were listed.
    pub async fn ready(&self) {
        // An error means that the watch was stopped: then there is nothing to wait for.
        if self.store.wait_until_ready().await.is_err() {
            tracing::debug!("a watch ended before its first list");
        }
    }

    /// Whether both are of one watch.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.written, &other.written)
    }

    /// The cache.
    #[must_use]
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// The objects, in no order.
    #[must_use]
    pub fn state(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// The same, but of a change only if it is one in `part` or in the object's identity, or the end of it. An object of which `part` says
    /// nothing is nobody's concern: it is neither told nor remembered, until it is one.
    pub fn subscribe_to<P>(
        &self,
        part: impl Fn(&K) -> Option<P> + Send + 'static,
    ) -> BoxStream<'static, ObjectRef<K>>
    where
        K::DynamicType: Default,
        P: PartialEq + Send + 'static,
    {
        let store = self.store.clone();
        let mut seen: HashMap<ObjectRef<K>, (Option<String>, P)> = HashMap::new();
        self.heard()
            .flat_map(move |changed| {
                let changed = match changed {
                    Some(name) => HashSet::from([name]),
                    // Also those that went unheard.
                    None => names(&store).into_iter().chain(seen.keys().cloned()).collect(),
                };
                let mut differing = Vec::new();
                for name in changed {
                    let object = store.get(&name);
                    let now = object.and_then(|object| Some((object.uid(), part(&object)?)));
                    if seen.get(&name) == now.as_ref() {
                        continue;
                    }
                    match now {
                        Some(now) => drop(seen.insert(name.clone(), now)),
                        None => drop(seen.remove(&name)),
                    }
                    differing.push(name);
                }
                stream::iter(differing)
            })
            .boxed()
    }

    /// The same, without the changes of nothing but the status: what somebody asks for, not how far it is.
    pub fn restated(&self) -> BoxStream<'static, ObjectRef<K>>
    where
        K::DynamicType: Default,
    {
        self.subscribe_to(|object| Some(stated(object)))
    }

    /// Notes what this process wrote, as the API answered it.
    pub fn wrote(&self, object: &K)
    where
        K::DynamicType: Default,
    {
        let known = self
            .store
            .get(&name_of(object, &K::DynamicType::default()))
            .filter(|known| known.uid() == object.uid());
        if known.is_none_or(|known| version(known.as_ref()) < version(object)) {
            self.written.note(object);
        }
    }

    /// Whether an object of this cache is older than what this process has written of it: a turn on it would only meet a conflict.
    pub fn is_behind(&self, object: &K) -> bool {
        self.written.is_after(object)
    }

    /// Names of changed objects, after the names of all there are now.
    pub fn subscribe(&self) -> BoxStream<'static, ObjectRef<K>>
    where
        K::DynamicType: Default,
    {
        let store = self.store.clone();
        self.heard()
            .flat_map(move |changed| {
                stream::iter(match changed {
                    Some(name) => vec![name],
                    None => names(&store),
                })
            })
            .boxed()
    }

    /// Names of changed objects; `None`, first and whenever the reader fell behind, for all that there are.
    fn heard(&self) -> impl Stream<Item = Option<ObjectRef<K>>> + Send + 'static + use<K> {
        let told = crate::told(self.changes.subscribe());
        stream::once(std::future::ready(None)).chain(told)
    }
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    /// One object by name.
    #[must_use]
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<K>> {
        let mut key = ObjectRef::new(name);
        if let Some(namespace) = namespace {
            key = key.within(namespace);
        }
        self.store.get(&key)
    }
}

async fn keep<K>(
    writer: reflector::store::Writer<K>,
    api: Api<K>,
    config: watcher::Config,
    kind: K::DynamicType,
    watched: Watched<K>,
    most: usize,
    stop: CancellationToken,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug + Default + Send + Sync + Unpin,
{
    let mut bound = Bound::new(most);
    let of_bound = kind.clone();
    let events = watcher(api, config)
        .default_backoff()
        .filter(move |event| {
            let fits = event
                .as_ref()
                .map_or(true, |event| bound.admits(event, &of_bound));
            std::future::ready(fits)
        })
        .reflect(writer);
    let mut events = std::pin::pin!(events);
    let mut known: HashSet<ObjectRef<K>> = HashSet::new();
    let mut broken = false;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        // `Init` comes before the list that may fail.
        let heard = matches!(&event, Some(Ok(event)) if !matches!(event, watcher::Event::Init));
        if heard && std::mem::take(&mut broken) {
            tracing::info!(kind = %K::kind(&kind), "the watch is back");
        }
        match event {
            Some(Ok(watcher::Event::Apply(object))) => {
                watched.written.shown(&object);
                let name = name_of(&object, &kind);
                known.insert(name.clone());
                tell(&watched, name);
            }
            Some(Ok(watcher::Event::Delete(object))) => {
                watched.written.gone(&object);
                let name = name_of(&object, &kind);
                known.remove(&name);
                tell(&watched, name);
            }
            Some(Ok(watcher::Event::InitDone)) => {
                watched.written.listed(&watched.store.state());
                let now: HashSet<_> = names(&watched.store).into_iter().collect();
                for name in known.union(&now).cloned().collect::<Vec<_>>() {
                    tell(&watched, name);
                }
                known = now;
            }
            Some(Ok(watcher::Event::Init | watcher::Event::InitApply(_))) => {}
            Some(Err(error)) => {
                // Told once: an API that is away for an hour is one fact.
                if std::mem::replace(&mut broken, true) {
                    tracing::debug!(kind = %K::kind(&kind), error = %error, "the watch is still broken");
                } else {
                    tracing::warn!(kind = %K::kind(&kind), error = %error, "watch broke; trying again");
                }
            }
            None => return,
        }
    }
}

/// Wait of a turn that found the cache behind, where the change that it waits for does not wake it.
pub(crate) const BEHIND: Duration = Duration::from_secs(1);

/// A digest of what an object of a kind with a status says beside it: its generation stands for the spec.
pub(crate) fn stated<K: Resource>(object: &K) -> u64 {
    let meta = object.meta();
    let mut hash = DefaultHasher::new();
    meta.generation.hash(&mut hash);
    meta.deletion_timestamp.is_some().hash(&mut hash);
    meta.labels.hash(&mut hash);
    meta.annotations.hash(&mut hash);
    meta.finalizers.hash(&mut hash);
    hash.finish()
}

fn tell<K>(watched: &Watched<K>, name: ObjectRef<K>)
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    // No reader is no error: the cache itself is the state.
    drop(watched.changes.send(name));
}

fn name_of<K>(object: &K, kind: &K::DynamicType) -> ObjectRef<K>
where
    K: Resource,
    K::DynamicType: Clone + Eq + Hash,
{
    let mut name = ObjectRef::new_with(&object.name_any(), kind.clone());
    if let Some(namespace) = object.namespace() {
        name = name.within(&namespace);
    }
    name
}

fn names<K>(store: &Store<K>) -> Vec<ObjectRef<K>>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    store
        .state()
        .iter()
        .map(|object| name_of(object.as_ref(), &K::DynamicType::default()))
        .collect()
}
