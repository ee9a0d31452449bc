//! Events about hosts: what the simulated Metal3 and the simulated servers have to say.
//!
//! They are sent one after another by one task. When it cannot keep up, or the API refuses, they are dropped: an Event is a
//! courtesy, and nothing may wait for it.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{debug, info};

use crate::bmh::Host;

/// Who says something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The controller of the hosts.
    Metal3,
    /// What runs on a server.
    Server,
}

/// Where notices are left.
#[derive(Clone)]
pub(crate) struct Notices {
    queue: mpsc::Sender<Event>,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Notices {
    /// Notices, and the work that sends them: it ends when all copies are dropped.
    pub(crate) fn new(client: Client) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, mut waiting) = mpsc::channel::<Event>(1024);
        let send = async move {
            while let Some(event) = waiting.recv().await {
                let namespace = event.metadata.namespace.clone().unwrap_or_default();
                let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
                if let Err(error) = events.create(&PostParams::default(), &event).await {
                    debug!(%error, "an event was not taken");
                }
            }
        };
        (Self { queue }, send)
    }

    /// Leaves a notice about a host.
    pub(crate) fn say(&self, host: &Host, source: Source, warning: bool, reason: &str, message: &str) {
        let (name, namespace) = (host.name(), host.namespace());
        info!(host = name, reason, message, "host");
        let now = Timestamp::now();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}{number:04x}", now.as_microsecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("metal3.io/v1alpha1".to_owned()),
                kind: Some("BareMetalHost".to_owned()),
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                uid: host.meta.uid.clone(),
                ..ObjectReference::default()
            },
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            source: Some(EventSource {
                component: Some(match source {
                    Source::Metal3 => "metal3-baremetal-controller".to_owned(),
                    Source::Server => "simulated-server".to_owned(),
                }),
                host: None,
            }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        if self.queue.try_send(event).is_err() {
            debug!(host = name, reason, "an event was dropped");
        }
    }
}
