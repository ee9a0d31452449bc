//! What `kubectl get pods` shows.

use serde_json::Value;

use super::columns::{age_column, column, since};
use crate::resource::Column;

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn condition_is_true(pod: &Value, kind: &str) -> bool {
    list(pod, "/status/conditions")
        .iter()
        .any(|one| one["type"] == kind && one["status"] == "True")
}

/// Whether an init container keeps running beside the others.
fn stays(pod: &Value, name: &Value) -> bool {
    let all = list(pod, "/spec/initContainers");
    all.iter()
        .any(|container| container["name"] == *name && container["restartPolicy"] == "Always")
}

#[derive(Default)]
struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    last_restart: String,
}

impl Summary {
    fn add(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        let finished = text(container, "/lastState/terminated/finishedAt");
        if finished > self.last_restart.as_str() {
            finished.clone_into(&mut self.last_restart);
        }
    }
}

fn ended(terminated: &Value) -> String {
    match (
        text(terminated, "/reason"),
        terminated["signal"].as_i64().unwrap_or_default(),
    ) {
        ("", 0) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or_default()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn summary(pod: &Value) -> Summary {
    let mut all = Summary {
        total: list(pod, "/spec/containers").len(),
        ..Summary::default()
    };
    let phase = text(pod, "/status/phase");
    let reason = text(pod, "/status/reason");
    all.status = if reason.is_empty() { phase } else { reason }.to_owned();
    let gated = |one: &&Value| one["type"] == "PodScheduled" && one["reason"] == "SchedulingGated";
    if list(pod, "/status/conditions").iter().any(|one| gated(&one)) {
        all.status = "SchedulingGated".into();
    }
    let inits = list(pod, "/spec/initContainers");
    all.total += inits
        .iter()
        .filter(|container| container["restartPolicy"] == "Always")
        .count();
    let mut lasting = Summary::default();
    let mut initializing = false;
    for (index, container) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
        all.add(container);
        let stays = stays(pod, &container["name"]);
        if stays {
            lasting.add(container);
        }
        let state = &container["state"];
        let terminated = &state["terminated"];
        let waiting = text(state, "/waiting/reason");
        if terminated.is_object() && terminated["exitCode"].as_i64().unwrap_or_default() == 0 {
            continue;
        }
        if stays && container["started"] == true {
            all.ready += usize::from(container["ready"] == true);
            continue;
        }
        all.status = if terminated.is_object() {
            format!("Init:{}", ended(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", inits.len())
        };
        initializing = true;
        break;
    }
    if !initializing || condition_is_true(pod, "Initialized") {
        (all.restarts, all.last_restart) = (lasting.restarts, lasting.last_restart);
        containers(pod, &mut all);
    }
    if pod
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(Value::is_string)
    {
        if reason == "NodeLost" {
            all.status = "Unknown".into();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            all.status = "Terminating".into();
        }
    }
    all
}

fn containers(pod: &Value, all: &mut Summary) {
    let (mut running, mut failed) = (false, String::new());
    for container in list(pod, "/status/containerStatuses").iter().rev() {
        all.add(container);
        let state = &container["state"];
        let waiting = text(state, "/waiting/reason");
        if !waiting.is_empty() {
            waiting.clone_into(&mut all.status);
        } else if state["terminated"].is_object() {
            all.status = ended(&state["terminated"]);
            if state["terminated"]["exitCode"].as_i64().unwrap_or_default() != 0 {
                failed.clone_from(&all.status);
            }
        } else if container["ready"] == true && state["running"].is_object() {
            running = true;
            all.ready += 1;
        }
    }
    if all.status == "Completed" {
        if running && condition_is_true(pod, "Ready") {
            all.status = "Running".into();
        } else if !failed.is_empty() {
            all.status = failed;
        } else if running {
            all.status = "NotReady".into();
        }
    }
}

fn restarts(pod: &Value) -> Value {
    let all = summary(pod);
    if all.restarts == 0 || all.last_restart.is_empty() {
        return all.restarts.to_string().into();
    }
    format!("{} ({} ago)", all.restarts, since(&all.last_restart)).into()
}

fn gates(pod: &Value) -> Value {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates
        .iter()
        .filter(|gate| condition_is_true(pod, text(gate, "/conditionType")))
        .count();
    format!("{open}/{}", gates.len()).into()
}

fn or_none(pod: &Value, path: &str) -> Value {
    match text(pod, path) {
        "" => "<none>".into(),
        found => found.into(),
    }
}

pub(super) fn columns() -> Vec<Column> {
    vec![
        column(
            "Ready",
            false,
            "The aggregate readiness state of this pod for accepting traffic.",
            |pod| {
                let all = summary(pod);
                format!("{}/{}", all.ready, all.total).into()
            },
        ),
        column(
            "Status",
            false,
            "The aggregate status of the containers in this pod.",
            |pod| summary(pod).status.into(),
        ),
        column(
            "Restarts",
            false,
            "The number of times the containers in this pod have been restarted and when the last container in this \
             pod has restarted.",
            restarts,
        ),
        age_column(),
        column("IP", true, "IP address allocated to the pod.", |pod| {
            or_none(pod, "/status/podIPs/0/ip")
        }),
        column("Node", true, "The node that the pod runs on.", |pod| {
            or_none(pod, "/spec/nodeName")
        }),
        column(
            "Nominated Node",
            true,
            "The node that the pod may be scheduled to.",
            |pod| or_none(pod, "/status/nominatedNodeName"),
        ),
        column(
            "Readiness Gates",
            true,
            "Conditions that are evaluated for pod readiness.",
            gates,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> Value {
        json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}, "status": status})
    }

    #[rstest::rstest]
    #[case(json!({"phase": "Pending"}), "Pending", 0)]
    #[case(json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "ready": true, "state": {"running": {}}},
        {"name": "b", "ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}), "CrashLoopBackOff", 1)]
    #[case(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}), "Init:0/1", 0)]
    #[case(json!({"phase": "Pending", "initContainerStatuses": [
        {"name": "i", "state": {"terminated": {"exitCode": 2}}}]}), "Init:ExitCode:2", 0)]
    #[case(json!({"phase": "Succeeded", "containerStatuses": [
        {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}), "Completed", 0)]
    fn a_pod_shows_what_it_does(#[case] status: Value, #[case] shown: &str, #[case] ready: usize) {
        let all = summary(&pod(&status));
        assert_eq!((all.status.as_str(), all.ready, all.total), (shown, ready, 2));
    }

    #[test]
    fn a_pod_that_goes_shows_it() {
        let mut going = pod(&json!({"phase": "Running"}));
        going["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(summary(&going).status, "Terminating");
    }
}
