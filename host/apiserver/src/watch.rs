//! Watch: what there is, then every change in order, bookmarks in between, until time is up or history is lost.
//!
//! A watch keeps only the revision up to which it has told everything. It reads from the table's memory of changes, so
//! a slow client costs nothing, until it is so slow that its place is forgotten; then it is told `410 Expired`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use rand::Rng as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::answer::{Body, Format, api_version, object_bytes, shape};
use crate::operation::Call;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::ApiError;
use crate::store::Storage;
use crate::store::object::Stored;
use crate::store::table::Change;

/// How long a watch lives when the client does not say.
const LIFE: Duration = Duration::from_secs(1800);

/// How often a client that allows it is told how far it is.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Marks the bookmark after which only news follows.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// `GET …?watch=true`
pub(crate) fn watch(call: &Call, selector: Selector) -> Result<Response<Body>, ApiError> {
    let table = call.table();
    let query = &call.query;
    if query.initial_events == Some(true) {
        crate::operation::check_future(call)?;
    }
    // First the bell, then the look: a change in between rings.
    let news = call
        .storage
        .subscribe(&call.cluster, &table)
        .ok_or_else(ApiError::unknown_path)?;
    let from = query.revision.filter(|revision| *revision > 0);
    let (revision, objects) = present(call, &table);
    let shows_all = match query.initial_events {
        Some(wanted) => wanted,
        None => from.is_none(),
    };
    let life = query.timeout.map_or_else(
        || LIFE + Duration::from_secs(rand::rng().random_range(0..LIFE.as_secs())),
        Duration::from_secs,
    );
    let now = Instant::now();
    let mut watcher = Watcher {
        storage: call.storage.clone(),
        cluster: call.cluster.clone(),
        table,
        namespace: call.target.namespace.clone(),
        registry: call.registry.clone(),
        index: call.index,
        selector,
        format: call.format,
        bookmarks: query.bookmarks,
        told: if shows_all {
            revision
        } else {
            from.unwrap_or(revision)
        },
        headed: false,
        waiting: VecDeque::new(),
        over: false,
        news,
        stop: call.stop.clone(),
        end: now + life,
        bookmark: now + BOOKMARKS,
    };
    if shows_all {
        for object in objects {
            watcher.tell_if_matching("ADDED", &object);
        }
        if query.initial_events == Some(true) && query.bookmarks {
            watcher.tell_bookmark(true);
        }
    }
    watcher.gather();
    let frames = stream::unfold(watcher, async |mut watcher| {
        watcher
            .next()
            .await
            .map(|bytes| (Ok::<_, Infallible>(Frame::data(bytes)), watcher))
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}

/// What there is now, and the moment of that.
fn present(call: &Call, table: &str) -> (u64, Vec<Arc<Stored>>) {
    let state = call.storage.read();
    let table = state
        .cluster(&call.cluster)
        .and_then(|cluster| cluster.table(table));
    let objects = table
        .into_iter()
        .flat_map(|table| table.range(&call.target.namespace, None));
    (state.revision, objects.cloned().collect())
}

/// One watch.
struct Watcher {
    storage: Arc<Storage>,
    cluster: String,
    table: String,
    namespace: String,
    registry: Arc<Registry>,
    index: usize,
    selector: Selector,
    format: Format,
    bookmarks: bool,
    /// Everything up to this revision was told, or waits to be.
    told: u64,
    /// Whether a table's columns were sent.
    headed: bool,
    waiting: VecDeque<Bytes>,
    over: bool,
    news: watch::Receiver<u64>,
    stop: CancellationToken,
    end: Instant,
    bookmark: Instant,
}

impl Watcher {
    fn resource(&self) -> &Resource {
        &self.registry.all()[self.index]
    }

    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => self.over = true,
                changed = self.news.changed() => match changed {
                    Ok(()) => self.gather(),
                    // The table is gone: its definition or its cluster was deleted.
                    Err(_) => self.over = true,
                },
                () = sleep_until(self.end) => {
                    self.gather();
                    if self.bookmarks && !self.over {
                        self.tell_bookmark(false);
                    }
                    self.over = true;
                }
                () = sleep_until(self.bookmark), if self.bookmarks => {
                    self.bookmark += BOOKMARKS;
                    self.gather();
                    if !self.over {
                        self.tell_bookmark(false);
                    }
                }
            }
        }
    }

    /// Takes in all changes since what was told.
    fn gather(&mut self) {
        let found = {
            let state = self.storage.read();
            let table = state
                .cluster(&self.cluster)
                .and_then(|cluster| cluster.table(&self.table));
            let Some(table) = table else { return };
            let changes = table
                .since(self.told)
                .map(|changes| changes.cloned().collect::<Vec<_>>());
            changes.map(|changes| (changes, state.revision))
        };
        match found {
            Ok((changes, revision)) => {
                for change in changes {
                    self.tell_change(&change);
                }
                // A client may name a revision that is still to come; until then it is told nothing older.
                self.told = self.told.max(revision);
            }
            Err(gone) => {
                let message = format!("too old resource version: {} ({})", self.told, gone.floor);
                let body = ApiError::expired(message).body();
                self.push("ERROR", body.to_string().as_bytes());
                self.over = true;
            }
        }
    }

    fn matches(&self, object: &Stored) -> bool {
        (self.namespace.is_empty() || self.namespace == object.key.namespace)
            && self
                .selector
                .matches(object, |object| shape(self.resource(), object))
    }

    /// Tells a change as it looks through the selector: what leaves it is gone, what enters it is new.
    fn tell_change(&mut self, change: &Change) {
        let was = change.old.as_ref().filter(|old| self.matches(old)).cloned();
        if change.deleted {
            if was.is_some() {
                self.tell("DELETED", &change.object);
            }
            return;
        }
        match (was, self.matches(&change.object)) {
            (Some(_), true) => self.tell("MODIFIED", &change.object),
            (None, true) => self.tell("ADDED", &change.object),
            (Some(old), false) => self.tell("DELETED", &old.at(change.revision)),
            (None, false) => {}
        }
    }

    fn tell_if_matching(&mut self, kind: &str, object: &Stored) {
        if self.matches(object) {
            self.tell(kind, object);
        }
    }

    fn tell(&mut self, kind: &str, object: &Stored) {
        let bytes = object_bytes(self.resource(), self.format, object);
        let is_table = matches!(self.format, Format::Table(..));
        if is_table && std::mem::replace(&mut self.headed, true) {
            let mut table: Value = serde_json::from_slice(&bytes).expect("a table that was just made");
            table["columnDefinitions"] = Value::Null;
            return self.push(kind, table.to_string().as_bytes());
        }
        self.push(kind, &bytes);
    }

    fn tell_bookmark(&mut self, is_initial_end: bool) {
        let mut meta = json!({"resourceVersion": self.told.to_string()});
        if is_initial_end {
            meta["annotations"] = json!({INITIAL_END: "true"});
        }
        let resource = self.resource();
        let body = match self.format {
            Format::Json => {
                json!({"kind": resource.kind, "apiVersion": api_version(resource), "metadata": meta})
            }
            Format::Partial(version) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": version.as_str(), "metadata": meta})
            }
            Format::Table(_, version) => json!({
                "kind": "Table", "apiVersion": version.as_str(), "metadata": meta, "columnDefinitions": null,
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": version.as_str(), "metadata": meta,
                }}],
            }),
        };
        self.push("BOOKMARK", body.to_string().as_bytes());
    }

    fn push(&mut self, kind: &str, object: &[u8]) {
        let mut event = Vec::with_capacity(object.len() + 40);
        event.extend_from_slice(b"{\"type\":\"");
        event.extend_from_slice(kind.as_bytes());
        event.extend_from_slice(b"\",\"object\":");
        event.extend_from_slice(object);
        event.extend_from_slice(b"}\n");
        self.waiting.push_back(Bytes::from(event));
    }
}
