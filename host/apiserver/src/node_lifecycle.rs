//! Tells which nodes live: what the real controller manager does to Ready conditions and taints.
//!
//! # Guarantees
//! A node is called silent only after this process itself saw nothing of it for the whole grace period: neither a
//! restart nor a clock that jumps makes healthy nodes look dead.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::authorize::node::LEASES;
use crate::clock::Clock;

/// Silence after which a node that once reported is no longer believed.
const GRACE: Duration = Duration::from_secs(40);

/// The same for a node that never reported.
const STARTUP_GRACE: Duration = Duration::from_secs(60);

/// How often silence is looked for.
const PERIOD: Duration = Duration::from_secs(5);

/// Conditions that only the node itself can know.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Taints that follow from a condition: its type, its status, the taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn conditions(node: &Node) -> &[NodeCondition] {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
}

/// The last sign of life of one node.
#[derive(Debug)]
struct Sign {
    /// Uid, last heartbeat of the Ready condition, and last renewal of the Lease.
    shown: (String, Option<Timestamp>, Option<Timestamp>),
    /// When that was first seen, on a clock that never jumps.
    seen: Instant,
}

/// What was seen of each node, by name.
#[derive(Debug, Default)]
pub(crate) struct Health(BTreeMap<String, Sign>);

impl Health {
    /// Looks at a node and its Lease; the conditions to write when the node fell silent.
    pub(crate) fn observe(
        &mut self,
        node: &Node,
        lease: Option<&Lease>,
        moment: Instant,
        now: Timestamp,
    ) -> Option<Vec<NodeCondition>> {
        let ready = conditions(node)
            .iter()
            .find(|condition| condition.type_ == "Ready");
        let heartbeat = ready
            .and_then(|ready| ready.last_heartbeat_time.as_ref())
            .map(|time| time.0);
        let renewed = lease
            .and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref())
            .map(|time| time.0);
        let shown = (node.uid().unwrap_or_default(), heartbeat, renewed);
        let sign = self.0.entry(node.name_any()).or_insert_with(|| Sign {
            shown: shown.clone(),
            seen: moment,
        });
        if sign.shown != shown {
            *sign = Sign { shown, seen: moment };
        }
        let grace = if ready.is_some() { GRACE } else { STARTUP_GRACE };
        let is_silent = moment.duration_since(sign.seen) > grace;
        let is_known = ready.is_some_and(|ready| ready.status == "Unknown");
        (is_silent && !is_known).then(|| silenced(node, now))
    }

    /// Forgets nodes that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }
}

/// The node's conditions with all that only it can know unknown.
fn silenced(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let mut all = conditions(node).to_vec();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    for kind in REPORTED {
        match all.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = "Unknown".to_owned();
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(now.clone());
            }
            None => all.push(NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(now.clone()),
            }),
        }
    }
    all
}

/// The taints that a node should have, when they differ from those that it has.
pub(crate) fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.as_ref();
    let has = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for condition in conditions(node) {
        for (kind, status, key) in BY_CONDITION {
            if condition.type_ == kind && condition.status == status {
                wanted.push((key, "NoSchedule"));
                if kind == "Ready" {
                    wanted.push((key, "NoExecute"));
                }
            }
        }
    }
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    // A node that has not reported is not ready, whatever else is missing.
    if !conditions(node)
        .iter()
        .any(|condition| condition.type_ == "Ready")
    {
        wanted.push((NOT_READY, "NoSchedule"));
    }
    let is_ours = |taint: &Taint| {
        let by_condition = BY_CONDITION.iter().any(|(.., key)| *key == taint.key);
        match taint.effect.as_str() {
            "NoSchedule" => by_condition || taint.key == UNSCHEDULABLE,
            "NoExecute" => [NOT_READY, UNREACHABLE].contains(&taint.key.as_str()),
            _ => false,
        }
    };
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut all: Vec<Taint> = has
        .iter()
        .filter(|taint| !is_ours(taint) || is_wanted(taint))
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !all.iter().any(|taint| taint.key == key && taint.effect == effect) {
            all.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
                value: None,
            });
        }
    }
    (all.as_slice() != has).then_some(all)
}

/// A merge patch that applies only to the very version that was looked at.
fn exactly(node: &Node, mut patch: Value) -> Patch<Value> {
    patch["metadata"] = json!({"resourceVersion": node.resource_version(), "uid": node.uid()});
    Patch::Merge(patch)
}

/// Looks after the nodes of one logical cluster until it is stopped.
pub(crate) async fn run(client: Client, clock: Clock, stop: CancellationToken) {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client, LEASES);
    let (known_nodes, node_writer) = reflector::store();
    let (known_leases, lease_writer) = reflector::store();
    let mut node_changes = watcher(nodes.clone(), watcher::Config::default())
        .default_backoff()
        .reflect(node_writer)
        .applied_objects()
        .boxed();
    let mut lease_changes = watcher(leases, watcher::Config::default())
        .default_backoff()
        .reflect(lease_writer)
        .applied_objects()
        .boxed();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut health = Health::default();
    let params = PatchParams {
        field_manager: Some("node-lifecycle".to_owned()),
        ..PatchParams::default()
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(change) = node_changes.next() => {
                let Ok(node) = change.inspect_err(|error| tracing::warn!(%error, "watching nodes")) else { continue };
                if let Some(taints) = taints(&node, clock()) {
                    let patch = exactly(&node, json!({"spec": {"taints": taints}}));
                    // After a conflict the newer node is on its way to us.
                    if let Err(error) = nodes.patch(&node.name_any(), &params, &patch).await {
                        tracing::debug!(node = node.name_any(), %error, "taints not written");
                    }
                }
            }
            Some(change) = lease_changes.next() => {
                if let Err(error) = change {
                    tracing::warn!(%error, "watching node leases");
                }
            }
            _ = ticks.tick() => {
                let all = known_nodes.state();
                health.retain(|name| all.iter().any(|node| node.metadata.name.as_deref() == Some(name)));
                for node in all {
                    let lease = known_leases.get(&reflector::ObjectRef::new(&node.name_any()).within(LEASES));
                    let Some(conditions) = health.observe(&node, lease.as_deref(), Instant::now(), clock()) else { continue };
                    let patch = exactly(&node, json!({"status": {"conditions": conditions}}));
                    if let Err(error) = nodes.patch_status(&node.name_any(), &params, &patch).await {
                        tracing::debug!(node = node.name_any(), %error, "silence not written");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn noon() -> Timestamp {
        "2026-08-20T12:00:00Z".parse().unwrap()
    }

    /// A history of looks at nodes, each so many seconds after the first.
    struct Watch {
        health: Health,
        start: Instant,
    }

    impl Watch {
        fn new() -> Self {
            Self {
                health: Health::default(),
                start: Instant::now(),
            }
        }

        fn at(&mut self, seconds: u64, node: &Node, lease: Option<&Lease>) -> Option<Vec<NodeCondition>> {
            self.health
                .observe(node, lease, self.start + Duration::from_secs(seconds), noon())
        }
    }

    fn node(conditions: Value, taints: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "1", "creationTimestamp": "2026-08-20T12:00:00Z"},
            "spec": {"taints": taints}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn ready(status: &str) -> Value {
        json!([{"type": "Ready", "status": status, "lastHeartbeatTime": "2026-08-20T12:00:00Z"}])
    }

    fn lease(renewed: &str) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"renewTime": renewed}})).unwrap()
    }

    #[test]
    fn a_silent_node_is_unknown_and_one_that_renews_its_lease_is_not() {
        let node = node(ready("True"), json!([]));
        let mut watch = Watch::new();
        assert_eq!(
            watch.at(0, &node, Some(&lease("2026-08-20T12:00:00.000000Z"))),
            None
        );
        assert_eq!(
            watch.at(30, &node, Some(&lease("2026-08-20T12:00:30.000000Z"))),
            None
        );
        assert_eq!(
            watch.at(70, &node, Some(&lease("2026-08-20T12:00:30.000000Z"))),
            None
        );
        let written = watch
            .at(71, &node, Some(&lease("2026-08-20T12:00:30.000000Z")))
            .unwrap();
        let kinds: Vec<_> = written
            .iter()
            .map(|one| (one.type_.as_str(), one.reason.as_deref().unwrap()))
            .collect();
        assert_eq!(
            kinds,
            [
                ("Ready", "NodeStatusUnknown"),
                ("MemoryPressure", "NodeStatusNeverUpdated"),
                ("DiskPressure", "NodeStatusNeverUpdated"),
                ("PIDPressure", "NodeStatusNeverUpdated"),
            ]
        );
        assert!(written.iter().all(|one| one.status == "Unknown"));
        assert_eq!(
            written[0].message.as_deref(),
            Some("Kubelet stopped posting node status.")
        );
    }

    #[test]
    fn a_lease_of_long_ago_does_not_count_against_a_host_that_was_just_started() {
        let mut watch = Watch::new();
        let old = lease("2020-01-01T00:00:00.000000Z");
        assert_eq!(watch.at(0, &node(ready("True"), json!([])), Some(&old)), None);
        assert_eq!(watch.at(40, &node(ready("True"), json!([])), Some(&old)), None);
        assert!(
            watch
                .at(41, &node(ready("True"), json!([])), Some(&old))
                .is_some()
        );
    }

    #[test]
    fn a_node_that_never_reported_gets_longer_and_one_already_unknown_is_left_alone() {
        let mut watch = Watch::new();
        let fresh = node(json!([]), json!([]));
        assert_eq!(watch.at(0, &fresh, None), None);
        assert_eq!(watch.at(60, &fresh, None), None);
        assert!(watch.at(61, &fresh, None).is_some());
        let unknown = node(ready("Unknown"), json!([]));
        assert_eq!(watch.at(62, &unknown, None), None);
        assert_eq!(watch.at(300, &unknown, None), None);
    }

    #[test]
    fn a_node_made_again_under_its_name_starts_anew() {
        let mut watch = Watch::new();
        let first = node(ready("True"), json!([]));
        assert_eq!(watch.at(0, &first, None), None);
        let mut second = first.clone();
        second.metadata.uid = Some("2".into());
        assert_eq!(watch.at(50, &second, None), None);
        watch.health.retain(|_| false);
        assert_eq!(watch.at(500, &second, None), None);
    }

    const OWN: &str = "example.com/dedicated";

    #[rstest]
    #[case::becomes_ready(ready("True"), json!([{"key": NOT_READY, "effect": "NoSchedule"}, {"key": OWN, "effect": "NoSchedule"}]), Some(vec![(OWN, "NoSchedule")]))]
    #[case::not_ready(ready("False"), json!([{"key": NOT_READY, "effect": "NoSchedule"}]), Some(vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]))]
    #[case::silent(ready("Unknown"), json!([{"key": NOT_READY, "effect": "NoExecute"}]), Some(vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]))]
    #[case::steady(ready("True"), json!([{"key": OWN, "effect": "NoExecute"}]), None)]
    #[case::never_reported(json!([]), json!([{"key": NOT_READY, "effect": "NoSchedule"}]), None)]
    #[case::someone_elses(ready("True"), json!([{"key": NOT_READY, "effect": "PreferNoSchedule"}]), None)]
    fn taints_follow_the_conditions(
        #[case] conditions: Value,
        #[case] has: Value,
        #[case] wanted: Option<Vec<(&str, &str)>>,
    ) {
        let node = node(conditions, has);
        let got = taints(&node, noon());
        let shown = got.as_ref().map(|all| {
            all.iter()
                .map(|taint| (taint.key.as_str(), taint.effect.as_str()))
                .collect::<Vec<_>>()
        });
        assert_eq!(shown, wanted);
    }

    #[test]
    fn a_cordoned_node_is_tainted() {
        let mut node = node(ready("True"), json!([]));
        node.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(taints(&node, noon()).unwrap()[0].key, UNSCHEDULABLE);
    }
}
