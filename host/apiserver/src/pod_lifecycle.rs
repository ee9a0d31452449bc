//! What the real server's controller manager does about pods: those on a node with a `NoExecute` taint that they do not
//! tolerate are deleted, at once or when their patience ends, and so are those whose node is no more.
//!
//! After the taint eviction controller and the pod garbage collector of
//! <https://github.com/kubernetes/kubernetes/tree/v1.36.3/pkg/controller>.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, stamp};

/// A node that is missing for so long does not come back: the real collector waits as long.
const QUARANTINE: Duration = Duration::from_secs(40);
/// After a refusal.
const AGAIN: Duration = Duration::from_secs(1);

/// Why a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Taint,
    NoNode,
}

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It goes after so long.
    Later(Duration),
    Goes(Why),
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What becomes of a pod on a node.
fn on(node: &Node, pod: &Pod, now: Timestamp) -> Fate {
    if pod.metadata.deletion_timestamp.is_some() || has_ended(pod) {
        return Fate::Stays;
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let created = pod
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let mut earliest: Option<Duration> = None;
    let evicting = taints
        .unwrap_or_default()
        .iter()
        .filter(|taint| taint.effect == "NoExecute");
    for taint in evicting {
        let covers = |one: &&Toleration| tolerates(one, taint);
        let Some(toleration) = tolerations.unwrap_or_default().iter().find(covers) else {
            return Fate::Goes(Why::Taint);
        };
        let Some(seconds) = toleration.toleration_seconds else {
            continue;
        };
        // A pod that came later than the taint has its full time.
        let since = taint
            .time_added
            .as_ref()
            .map_or(created, |time| time.0.max(created));
        let gone = now.duration_since(since).max(SignedDuration::ZERO).unsigned_abs();
        let patience = Duration::from_secs(seconds.try_into().unwrap_or_default());
        match patience.checked_sub(gone).filter(|left| !left.is_zero()) {
            None => return Fate::Goes(Why::Taint),
            Some(left) => earliest = Some(earliest.map_or(left, |earliest| earliest.min(left))),
        }
    }
    earliest.map_or(Fate::Stays, Fate::Later)
}

fn tolerates(one: &Toleration, taint: &Taint) -> bool {
    let says = |field: &Option<String>, value: &str| {
        field
            .as_deref()
            .is_none_or(|field| field.is_empty() || field == value)
    };
    if !says(&one.effect, &taint.effect) || !says(&one.key, &taint.key) {
        return false;
    }
    match one.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            one.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// Nodes that pods are bound to and that are not there, since when.
#[derive(Debug, Default)]
struct Missing(HashMap<String, Instant>);

impl Missing {
    /// What becomes of a pod whose node is not there.
    fn judge(&mut self, node: &str, moment: Instant) -> Fate {
        let since = *self.0.entry(node.to_owned()).or_insert(moment);
        let gone = moment.duration_since(since);
        match QUARANTINE.checked_sub(gone).filter(|left| !left.is_zero()) {
            Some(left) => Fate::Later(left),
            None => Fate::Goes(Why::NoNode),
        }
    }
}

/// Looks after the pods of one logical cluster until it is stopped.
pub(crate) async fn run(client: Client, clock: Clock, stop: CancellationToken) {
    let (nodes, node_writer) = reflector::store();
    let (pods, pod_writer) = reflector::store::<Pod>();
    let mut node_changes = watcher(Api::<Node>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(node_writer)
        .boxed();
    let mut pod_changes = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(pod_writer)
        .boxed();
    let mut missing = Missing::default();
    let mut look: Option<Duration> = None;
    loop {
        let timer = async {
            match look {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = node_changes.next() => told(event.map(drop)),
            Some(event) = pod_changes.next() => told(event.map(drop)),
            () = timer => {}
        }
        while let Some(Some(event)) = node_changes.next().now_or_never() {
            told(event.map(drop));
        }
        while let Some(Some(event)) = pod_changes.next().now_or_never() {
            told(event.map(drop));
        }
        let listed = async { nodes.wait_until_ready().await.and(pods.wait_until_ready().await) };
        if listed.now_or_never().is_none() {
            continue;
        }
        let all = pods.state();
        let is_missing = |name: &str| nodes.get(&reflector::ObjectRef::new(name)).is_none();
        missing
            .0
            .retain(|name, _| is_missing(name) && all.iter().any(|pod| node_of(pod) == Some(name)));
        look = None;
        for pod in all {
            let Some(name) = node_of(&pod) else { continue };
            let fate = match nodes.get(&reflector::ObjectRef::new(name)) {
                Some(node) => on(&node, &pod, clock()),
                None => missing.judge(name, Instant::now()),
            };
            let wait = match fate {
                Fate::Stays => continue,
                Fate::Later(wait) => wait,
                Fate::Goes(why) => match remove(&client, &pod, why, clock()).await {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::debug!(pod = pod.name_any(), %error, "a pod was not deleted; it is tried again");
                        AGAIN
                    }
                },
            };
            look = Some(look.map_or(wait, |look| look.min(wait)));
        }
    }
}

fn told(event: Result<(), watcher::Error>) {
    if let Err(error) = event {
        tracing::debug!(%error, "watching pods and nodes");
    }
}

/// Writes down why a pod goes, and deletes it: at once when nobody is there to end it.
async fn remove(client: &Client, pod: &Pod, why: Why, now: Timestamp) -> Result<(), kube::Error> {
    let (name, uid) = (pod.name_any(), pod.uid());
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": farewell(pod, why, now)}));
    let params = PatchParams {
        field_manager: Some("pod-lifecycle".to_owned()),
        ..PatchParams::default()
    };
    let options = DeleteParams {
        grace_period_seconds: (why == Why::NoNode).then_some(0),
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let gone = |error: kube::Error| match error {
        // Another by now, or gone.
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Ok(()),
        error => Err(error),
    };
    api.patch_status(&name, &params, &patch)
        .await
        .map(drop)
        .or_else(gone)?;
    api.delete(&name, &options).await.map(drop).or_else(gone)
}

fn farewell(pod: &Pod, why: Why, now: Timestamp) -> Value {
    let (reason, message) = match why {
        Why::Taint => (
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
        ),
        Why::NoNode => ("DeletionByPodGC", "PodGC: node no longer exists"),
    };
    let mut status = json!({"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": stamp(now), "observedGeneration": pod.metadata.generation,
    }]});
    if why == Why::NoNode && !has_ended(pod) {
        status["phase"] = json!("Failed");
    }
    status
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn noon() -> Timestamp {
        "2026-08-20T12:00:00Z".parse().unwrap()
    }

    fn pod(tolerations: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-08-20T11:00:00Z"},
            "spec": {"nodeName": "n", "containers": [], "tolerations": tolerations},
        }))
        .unwrap()
    }

    fn node(taints: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})).unwrap()
    }

    fn taint(key: &str, added: &str) -> Value {
        json!({"key": key, "effect": "NoExecute", "timeAdded": format!("2026-08-20T{added}Z")})
    }

    fn patient(key: &str, seconds: i64) -> Value {
        json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
    }

    #[rstest]
    #[case::stays_without_a_taint(json!([]), json!([]), Fate::Stays)]
    #[case::stays_where_others_may_not_come(json!([{"key": "a", "effect": "NoSchedule"}]), json!([]), Fate::Stays)]
    #[case::goes_at_once(json!([taint("a", "12:00:00")]), json!([]), Fate::Goes(Why::Taint))]
    #[case::stays_for_good_when_it_does_not_mind(
        json!([taint("a", "11:30:00")]), json!([{"operator": "Exists"}]), Fate::Stays
    )]
    #[case::has_patience(
        json!([taint("a", "11:59:00")]), json!([patient("a", 300)]), Fate::Later(Duration::from_secs(240))
    )]
    #[case::has_lost_its_patience(json!([taint("a", "11:50:00")]), json!([patient("a", 300)]), Fate::Goes(Why::Taint))]
    #[case::has_less_patience_with_another(
        json!([taint("a", "11:59:00"), taint("b", "11:59:30")]), json!([patient("a", 300), patient("b", 60)]),
        Fate::Later(Duration::from_secs(30))
    )]
    #[case::goes_for_one_taint_of_two(
        json!([taint("a", "11:59:00"), taint("b", "11:59:30")]), json!([patient("a", 300)]), Fate::Goes(Why::Taint)
    )]
    fn a_pod(#[case] taints: Value, #[case] tolerations: Value, #[case] expected: Fate) {
        assert_eq!(on(&node(taints), &pod(tolerations), noon()), expected);
    }

    #[test]
    fn a_pod_that_ended_or_is_on_its_way_stays_as_it_is() {
        let tainted = node(json!([taint("a", "11:50:00")]));
        let mut ended = pod(json!([]));
        ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
        assert_eq!(on(&tainted, &ended, noon()), Fate::Stays);
        let mut going = pod(json!([]));
        going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
        assert_eq!(on(&tainted, &going, noon()), Fate::Stays);
    }

    #[test]
    fn pods_of_a_node_that_does_not_come_back_go() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        assert_eq!(missing.judge("n", start), Fate::Later(QUARANTINE));
        let soon = start + Duration::from_secs(39);
        assert_eq!(missing.judge("n", soon), Fate::Later(Duration::from_secs(1)));
        assert_eq!(missing.judge("m", soon), Fate::Later(QUARANTINE));
        assert_eq!(missing.judge("n", start + QUARANTINE), Fate::Goes(Why::NoNode));
        assert_eq!(farewell(&pod(json!([])), Why::NoNode, noon())["phase"], "Failed");
        assert_eq!(
            farewell(&pod(json!([])), Why::Taint, noon())["phase"],
            Value::Null
        );
    }
}
