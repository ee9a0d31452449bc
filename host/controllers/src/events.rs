//! Events on objects, bounded so that nobody can drown the others in them.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

/// Events that one namespace may send at once, and how long one takes to come back.
const BURST: u32 = 50;
const REFILL: Duration = Duration::from_millis(200);
/// Characters of a message that are kept, as the API allows.
const LONGEST: usize = 1024;

/// Publishes events under the host's name.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    allowances: Arc<Mutex<HashMap<String, (u32, Instant)>>>,
}

impl Events {
    /// Events through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: hostler_api::names::REPORTER.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client, reporter),
            allowances: Arc::default(),
        }
    }

    /// Says something that went as it should.
    pub async fn normal<K>(&self, object: &K, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()> + Debug,
    {
        self.publish(object, EventType::Normal, reason, action, note, None)
            .await;
    }

    /// The same about another object too: told for each of them, where the reason alone would be counted up as one event.
    pub async fn normal_about<K, O>(&self, object: &K, other: &O, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()> + Debug,
        O: Resource<DynamicType = ()>,
    {
        self.publish(
            object,
            EventType::Normal,
            reason,
            action,
            note,
            Some(other.object_ref(&())),
        )
        .await;
    }

    /// Says something that somebody should know.
    pub async fn warning<K>(&self, object: &K, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()> + Debug,
    {
        self.publish(object, EventType::Warning, reason, action, note, None)
            .await;
    }

    async fn publish<K>(
        &self,
        object: &K,
        type_: EventType,
        reason: &str,
        action: &str,
        note: &str,
        secondary: Option<ObjectReference>,
    ) where
        K: Resource<DynamicType = ()> + Debug,
    {
        let regarding = object.object_ref(&());
        let namespace = regarding.namespace.clone().unwrap_or_default();
        if !self.allowed(&namespace) {
            tracing::debug!(namespace, reason, "event left out: too many from this namespace");
            return;
        }
        let note = Some(note.chars().take(LONGEST).collect());
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note,
            action: action.to_owned(),
            secondary,
        };
        // An event is a courtesy: the condition beside it is the state.
        if let Err(error) = self.recorder.publish(&event, &regarding).await {
            tracing::debug!(reason, error = %error, "event not written");
        }
    }

    fn allowed(&self, namespace: &str) -> bool {
        let mut all = self.allowances.lock().expect("no holder panics");
        let now = Instant::now();
        let (left, since) = all.entry(namespace.to_owned()).or_insert((BURST, now));
        let earned =
            u32::try_from(now.duration_since(*since).as_millis() / REFILL.as_millis()).unwrap_or(BURST);
        if earned > 0 {
            *left = (*left + earned).min(BURST);
            *since = now;
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        true
    }
}
