//! One watch of one kind: a cache that loops read, and a stream of what changed that drives them.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

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
    let mut bound = Bound {
        most,
        held: HashSet::new(),
        told: false,
    };
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

/// The last writes of this process that the watch has not shown yet: resourceVersions by uid. They grow with each change of an object,
/// and may be compared as numbers (Kubernetes 1.35, KEP-5504); one that is no number holds nobody up.
#[derive(Default)]
struct Written(Mutex<HashMap<String, u64>>);

impl Written {
    fn note(&self, object: &impl Resource) {
        if let (Some(uid), Some(version)) = (object.meta().uid.clone(), version(object)) {
            let mut all = self.0.lock().expect("no holder panics");
            let known = all.entry(uid).or_default();
            *known = version.max(*known);
        }
    }

    fn is_after(&self, object: &impl Resource) -> bool {
        let all = self.0.lock().expect("no holder panics");
        let written = object.meta().uid.as_ref().and_then(|uid| all.get(uid));
        written.is_some_and(|written| version(object).is_some_and(|version| version < *written))
    }

    fn shown(&self, object: &impl Resource) {
        if !self.is_after(object) {
            self.gone(object);
        }
    }

    fn gone(&self, object: &impl Resource) {
        if let Some(uid) = &object.meta().uid {
            self.0.lock().expect("no holder panics").remove(uid);
        }
    }

    /// A list is as new as any write that was answered before it, and what it leaves out is gone.
    fn listed<K: Resource>(&self, all: &[Arc<K>]) {
        let there: HashSet<&String> = all
            .iter()
            .filter_map(|object| object.meta().uid.as_ref())
            .collect();
        self.0
            .lock()
            .expect("no holder panics")
            .retain(|uid, _| there.contains(uid));
        for object in all {
            self.shown(object.as_ref());
        }
    }
}

fn version(object: &impl Resource) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

/// Wait of a turn that found the cache behind, where the change that it waits for does not wake it.
pub(crate) const BEHIND: Duration = Duration::from_secs(1);

/// Which objects a bounded cache has room for.
struct Bound<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    most: usize,
    held: HashSet<ObjectRef<K>>,
    told: bool,
}

impl<K> Bound<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fn admits(&mut self, event: &watcher::Event<K>, kind: &K::DynamicType) -> bool {
        match event {
            watcher::Event::Init => self.held.clear(),
            watcher::Event::InitDone => {}
            watcher::Event::Delete(object) => {
                self.held.remove(&name_of(object, kind));
            }
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                let name = name_of(object, kind);
                if self.held.len() >= self.most && !self.held.contains(&name) {
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(kind = %K::kind(kind), most = self.most, "too many objects; the rest is left out");
                    }
                    return false;
                }
                self.held.insert(name);
            }
        }
        true
    }
}

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{Namespace, Node};
    use kube::Client;
    use kube::client::Body;
    use kube::core::PartialObjectMeta;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_a_kind_whose_metadata_is_enough_no_more_is_asked_for_and_an_expired_watch_lists_anew() {
        let (tell, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let api = tower::service_fn(move |request: Request<Body>| {
            let accept = request.headers().get(http::header::ACCEPT).cloned();
            let is_watch = crate::requests::is_watch(&request);
            tell.send((is_watch, accept.unwrap().to_str().unwrap().to_owned()))
                .unwrap();
            let answer = if is_watch {
                // Too old: whoever asks has to list again.
                serde_json::json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}})
            } else {
                serde_json::json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
                    "items": [{"metadata": {"name": "a", "uid": "u", "resourceVersion": "5"}}]})
            };
            async move { Ok::<_, tower::BoxError>(Response::new(Body::from(answer.to_string().into_bytes()))) }
        });
        let stop = CancellationToken::new();
        let namespaces: Watched<PartialObjectMeta<Namespace>> = Watched::start(
            Api::all(Client::new(api, "default")),
            watcher::Config::default(),
            (),
            stop.clone(),
        );
        namespaces.ready().await;
        assert_eq!(namespaces.get(None, "a").unwrap().uid().as_deref(), Some("u"));
        let mut lists = 0;
        while lists < 3 {
            let next = tokio::time::timeout(Duration::from_secs(3600), asked.recv()).await;
            let (is_watch, accept) = next.expect("it asks again").unwrap();
            assert!(accept.contains("as=PartialObjectMetadata"), "{accept}");
            lists += usize::from(!is_watch);
        }
        assert!(
            namespaces.get(None, "a").is_some(),
            "what is known stays while it lists anew"
        );
        stop.cancel();
    }

    /// A cache that is written by hand.
    struct ByHand {
        writer: reflector::store::Writer<Node>,
        watched: Watched<Node>,
    }

    impl ByHand {
        fn new() -> Self {
            let writer = reflector::store::Writer::new(());
            let watched = Watched {
                store: writer.as_reader(),
                changes: broadcast::Sender::new(BACKLOG),
                written: Arc::default(),
            };
            Self { writer, watched }
        }

        fn see(&mut self, event: &watcher::Event<Node>) {
            self.writer.apply_watcher_event(event);
            if let watcher::Event::Apply(node) | watcher::Event::Delete(node) = event {
                if matches!(event, watcher::Event::Delete(_)) {
                    self.watched.written.gone(node);
                } else {
                    self.watched.written.shown(node);
                }
                tell(&self.watched, name_of(node, &()));
            }
        }
    }

    fn node(version: &str, generation: i64, label: &str, ready: &str) -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": version, "generation": generation, "labels": {"l": label}},
            "status": {"phase": ready},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn who_asks_for_what_is_stated_hears_of_that_alone_and_of_the_end() {
        let mut cache = ByHand::new();
        let mut heard = cache.watched.restated();
        let changes = [
            (watcher::Event::Apply(node("1", 1, "x", "")), true),
            (watcher::Event::Apply(node("2", 1, "x", "Running")), false),
            (watcher::Event::Apply(node("3", 2, "x", "Running")), true),
            (watcher::Event::Apply(node("4", 2, "y", "Running")), true),
            (watcher::Event::Apply(node("5", 2, "y", "")), false),
            (watcher::Event::Delete(node("6", 2, "y", "")), true),
            (watcher::Event::Apply(node("7", 2, "y", "")), true),
        ];
        for (number, (event, told)) in changes.into_iter().enumerate() {
            cache.see(&event);
            let next = futures::FutureExt::now_or_never(heard.next());
            assert_eq!(next.is_some(), told, "change {number}");
        }
    }

    #[tokio::test]
    async fn who_falls_behind_hears_once_of_what_differs_and_also_of_what_is_gone() {
        let mut cache = ByHand::new();
        let mut heard = cache.watched.restated();
        let other = |name: &str| {
            let mut other = node("1", 1, "x", "");
            (other.metadata.name, other.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
            other
        };
        for name in ["gone", "same"] {
            cache.see(&watcher::Event::Apply(other(name)));
            assert_eq!(heard.next().await.unwrap().name, name);
        }
        cache.see(&watcher::Event::Delete(other("gone")));
        for version in 0..=BACKLOG {
            cache.see(&watcher::Event::Apply(node(&version.to_string(), 1, "x", "")));
        }
        let mut names = [heard.next().await.unwrap().name, heard.next().await.unwrap().name];
        names.sort();
        assert_eq!(names, ["a", "gone"]);
        assert!(futures::FutureExt::now_or_never(heard.next()).is_none());
    }

    #[test]
    fn a_cache_is_behind_until_it_shows_what_was_written() {
        let mut cache = ByHand::new();
        cache.see(&watcher::Event::Apply(node("9", 1, "x", "")));
        let behind = |cache: &ByHand| {
            let seen = cache.watched.get(None, "a").unwrap();
            cache.watched.is_behind(&seen)
        };
        assert!(!behind(&cache));
        cache.watched.wrote(&node("11", 1, "x", "Running"));
        assert!(behind(&cache));
        // Somebody else's write that came before.
        cache.see(&watcher::Event::Apply(node("10", 1, "y", "")));
        assert!(behind(&cache));
        cache.see(&watcher::Event::Apply(node("12", 1, "y", "Running")));
        assert!(!behind(&cache));
        // An answer that comes after its event.
        cache.watched.wrote(&node("12", 1, "y", "Running"));
        assert!(!behind(&cache) && cache.watched.written.0.lock().unwrap().is_empty());
        // Nobody is held up by what is no number, or by an object that is gone.
        cache.watched.wrote(&node("x", 1, "y", "Running"));
        assert!(!behind(&cache));
        cache.watched.wrote(&node("20", 1, "y", "Running"));
        cache.watched.written.listed::<Node>(&[]);
        assert!(!behind(&cache));
    }

    #[test]
    fn a_bounded_cache_keeps_the_first_and_has_room_again_when_one_goes() {
        let node = |name: &str| {
            let mut node = Node::default();
            node.metadata.name = Some(name.to_owned());
            node
        };
        let mut bound = Bound {
            most: 2,
            held: HashSet::new(),
            told: false,
        };
        let mut admits = |event| bound.admits(&event, &());
        assert!(admits(watcher::Event::InitApply(node("a"))));
        assert!(admits(watcher::Event::Apply(node("b"))));
        assert!(!admits(watcher::Event::Apply(node("c"))));
        assert!(
            admits(watcher::Event::Apply(node("a"))),
            "a known one is always read"
        );
        assert!(admits(watcher::Event::Delete(node("b"))));
        assert!(admits(watcher::Event::Apply(node("c"))));
        assert!(admits(watcher::Event::Init));
        assert!(admits(watcher::Event::InitApply(node("d"))) && admits(watcher::Event::InitApply(node("e"))));
    }
}
