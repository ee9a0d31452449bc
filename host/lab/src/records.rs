//! Events about pods, as the scheduler and the kubelets of a tenant's cluster leave them.
//!
//! An Event is a courtesy: when it is refused, that is logged and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use tracing::debug;

/// Longest text that an Event may carry.
const LONGEST: usize = 1024;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What is said about a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Which program says it, and which of its instances.
    pub(crate) by: (&'a str, &'a str),
    /// What it was doing.
    pub(crate) action: &'a str,
    pub(crate) warning: bool,
    pub(crate) reason: &'a str,
    pub(crate) note: &'a str,
}

/// Leaves an Event about a pod.
pub(crate) async fn record(client: &Client, pod: &Pod, said: Record<'_>) {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let now = Timestamp::now();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}{number:04x}", now.as_microsecond())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(said.by.0.to_owned()),
        reporting_instance: Some(said.by.1.to_owned()),
        action: Some(said.action.to_owned()),
        reason: Some(said.reason.to_owned()),
        note: Some(shortened(said.note)),
        type_: Some(if said.warning { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            resource_version: pod.resource_version(),
            ..pod.object_ref(&())
        }),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        debug!(pod = name, reason = said.reason, %error, "an event was not taken");
    }
}

fn shortened(note: &str) -> String {
    const END: &str = " ...";
    if note.len() <= LONGEST {
        return note.to_owned();
    }
    let mut cut = LONGEST - END.len();
    while !note.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}{END}", &note[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_letters() {
        assert_eq!(shortened("short"), "short");
        let cut = shortened(&"ä".repeat(600));
        assert!(cut.len() <= LONGEST && cut.ends_with("ä ..."), "{}", cut.len());
    }
}
