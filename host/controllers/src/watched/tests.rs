//! Watches of a scripted API, and caches that are filled by hand.

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
    let mut bound = Bound::new(2);
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
