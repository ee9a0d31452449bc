//! The life of one pod on its node: from what its status says now to what it says next. Pure.
//!
//! ```text
//! new ─► ContainerCreating ─► Running ─► (as the pod's script says) Completed, Error, or running again after a while
//!                                └─► told to end ─► ended ─► deleted
//! ```
//!
//! All that there is to remember stands in the pod's status: a laboratory that was killed goes on where it was. Whether a
//! container still runs is told by its id, in which the boot of the server is hidden: after a reboot none of the old ones does.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::script::Script;
use crate::identity::digest;
use crate::options::Times;
use crate::scheduler::has_ended;
use crate::scheduler::resources::Lack;

/// The first pause before a container that keeps ending is started again, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// Exit code of a container of which nobody saw the end.
const UNSEEN: i32 = 255;

/// Where a pod lives.
#[derive(Clone, Debug)]
pub(crate) struct Home<'a> {
    /// Address of the node.
    pub(crate) host_ip: &'a str,
    /// An address for the pod, if it has none.
    pub(crate) pod_ip: &'a str,
    /// The present boot of the server.
    pub(crate) boot: &'a str,
    pub(crate) times: &'a Times,
    /// Of what the node has too little for a pod that is new on it.
    pub(crate) lacks: &'a [Lack],
    /// How long the kubelet has known the pod as it is: bound, or told to end.
    pub(crate) known: Duration,
    pub(crate) now: Timestamp,
}

/// What a kubelet does about a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Turn {
    /// Nothing, until something changes or this long.
    Rest(Option<Duration>),
    /// Reports this status, and says these things.
    Report(Value, Vec<Said>),
    /// Lets go of it: nothing of it runs.
    LetGo,
}

/// What is worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) warning: bool,
    pub(crate) action: &'static str,
    pub(crate) reason: String,
    pub(crate) note: String,
}

impl Said {
    fn new(warning: bool, action: &'static str, reason: &str, note: String) -> Self {
        Self {
            warning,
            action,
            reason: reason.to_owned(),
            note,
        }
    }
}

/// What a container does, or did.
#[derive(Clone, Debug, PartialEq)]
enum State {
    Waiting { reason: &'static str, message: String },
    Running { since: Timestamp, id: String },
    Ended { how: ContainerStateTerminated },
}

/// A container as it is to be reported.
#[derive(Clone, Debug)]
struct Life {
    state: State,
    last: Option<ContainerStateTerminated>,
    restarts: i32,
}

/// What is next for a pod.
pub(crate) fn turn(pod: &Pod, home: &Home<'_>) -> Turn {
    let deleting = pod.metadata.deletion_timestamp.is_some();
    let grace = pod.metadata.deletion_grace_period_seconds;
    if has_ended(pod) {
        // With no grace left nobody waits for the kubelet any more, only for finalizers.
        return if deleting && grace != Some(0) {
            Turn::LetGo
        } else {
            Turn::Rest(None)
        };
    }
    let Some(spec) = &pod.spec else {
        return Turn::Rest(None);
    };
    let is_new = pod
        .status
        .as_ref()
        .is_none_or(|status| status.start_time.is_none());
    if deleting {
        return told_to_end(pod, home, grace);
    }
    if is_new && !home.lacks.is_empty() {
        return refused(pod, home);
    }
    if is_new {
        let lives: Vec<Life> = spec.containers.iter().map(|_| creating()).collect();
        return Turn::Report(status(pod, home, &lives), Vec::new());
    }
    let script = match Script::parse(pod) {
        Ok(script) => script,
        Err(why) => return unreadable(pod, home, &why),
    };
    let mut look = None;
    let mut said = Vec::new();
    let before: Vec<Life> = spec.containers.iter().map(|one| known(pod, one)).collect();
    let lives: Vec<Life> = spec
        .containers
        .iter()
        .zip(&before)
        .map(|(container, life)| {
            let mut step = Step {
                pod,
                home,
                script: &script,
                look: &mut look,
                said: &mut said,
            };
            step.next(container, life)
        })
        .collect();
    let changed = lives
        .iter()
        .zip(&before)
        .any(|(now, before)| now.state != before.state);
    if changed {
        Turn::Report(status(pod, home, &lives), said)
    } else {
        Turn::Rest(look)
    }
}

fn creating() -> Life {
    Life {
        state: State::Waiting {
            reason: "ContainerCreating",
            message: String::new(),
        },
        last: None,
        restarts: 0,
    }
}

/// What was reported of a container last.
fn known(pod: &Pod, container: &Container) -> Life {
    let Some(status) = reported(pod, &container.name) else {
        return creating();
    };
    let state = status.state.clone().unwrap_or_default();
    let state = if let Some(how) = state.terminated {
        State::Ended { how }
    } else if let Some(running) = state.running {
        State::Running {
            since: running.started_at.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            id: status.container_id.clone().unwrap_or_default(),
        }
    } else {
        let waiting = state.waiting.unwrap_or_default();
        let reason = match waiting.reason.as_deref() {
            Some("CrashLoopBackOff") => "CrashLoopBackOff",
            Some("CreateContainerError") => "CreateContainerError",
            _ => "ContainerCreating",
        };
        State::Waiting {
            reason,
            message: waiting.message.unwrap_or_default(),
        }
    };
    Life {
        state,
        last: status.last_state.clone().unwrap_or_default().terminated,
        restarts: status.restart_count,
    }
}

fn reported<'p>(pod: &'p Pod, container: &str) -> Option<&'p ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container)
}

/// One step of one container.
struct Step<'a> {
    pod: &'a Pod,
    home: &'a Home<'a>,
    script: &'a Script,
    /// When to look again, at the latest.
    look: &'a mut Option<Duration>,
    said: &'a mut Vec<Said>,
}

impl Step<'_> {
    fn next(&mut self, container: &Container, life: &Life) -> Life {
        match &life.state {
            State::Waiting {
                reason: "CrashLoopBackOff",
                ..
            } => {
                let ended = life
                    .last
                    .as_ref()
                    .and_then(finished)
                    .unwrap_or(Timestamp::UNIX_EPOCH);
                if self.waits(self.home.left(ended, back_off(life.restarts))) {
                    return life.clone();
                }
                self.start(container, life.restarts + 1, life.last.clone())
            }
            State::Waiting { .. } => {
                if self.waits(self.home.times.start.checked_sub(self.home.known)) {
                    return life.clone();
                }
                self.start(container, life.restarts, life.last.clone())
            }
            State::Running { since, id }
                if *id != self.home.container(self.pod, &container.name, life.restarts) =>
            {
                // The server was booted since: nobody saw how it ended.
                self.end(container, life, ("Unknown", UNSEEN), (*since, id))
            }
            State::Running { since, id } => {
                let Some(end) = self.script.end else {
                    return life.clone();
                };
                if self.waits(self.home.left(*since, end.after)) {
                    return life.clone();
                }
                let reason = if end.code == 0 { "Completed" } else { "Error" };
                self.end(container, life, (reason, end.code), (*since, id))
            }
            State::Ended { .. } => life.clone(),
        }
    }

    /// Whether there is time left; then a look is due at its end.
    fn waits(&mut self, left: Option<Duration>) -> bool {
        let left = left.filter(|left| !left.is_zero());
        if let Some(left) = left {
            *self.look = Some(self.look.map_or(left, |look| look.min(left)));
        }
        left.is_some()
    }

    fn start(
        &mut self,
        container: &Container,
        restarts: i32,
        last: Option<ContainerStateTerminated>,
    ) -> Life {
        let note = format!("Started container {}", container.name);
        self.said.push(Said::new(false, "Starting", "Started", note));
        Life {
            state: State::Running {
                since: second(self.home.now),
                id: self.home.container(self.pod, &container.name, restarts),
            },
            last,
            restarts,
        }
    }

    fn end(
        &mut self,
        container: &Container,
        life: &Life,
        (reason, code): (&str, i32),
        (since, id): (Timestamp, &str),
    ) -> Life {
        let how = ended(reason, code, since, id, self.home.now);
        let policy = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        let again = match policy {
            Some("Never") => false,
            Some("OnFailure") => code != 0,
            _ => true,
        };
        if !again {
            return Life {
                state: State::Ended { how },
                last: life.last.clone(),
                restarts: life.restarts,
            };
        }
        let pause = back_off(life.restarts);
        // What the server's end took with it is started again at once.
        if pause.is_zero() || reason == "Unknown" {
            return self.start(container, life.restarts + 1, Some(how));
        }
        let (name, uid) = (self.pod.name_any(), self.pod.uid().unwrap_or_default());
        let namespace = self.pod.namespace().unwrap_or_default();
        let what = format!(
            "failed container={} pod={name}_{namespace}({uid})",
            container.name
        );
        let note = format!("Back-off restarting {what}");
        self.said.push(Said::new(true, "Restarting", "BackOff", note));
        Life {
            state: State::Waiting {
                reason: "CrashLoopBackOff",
                message: format!("back-off {} restarting {what}", spoken(pause)),
            },
            last: Some(how),
            restarts: life.restarts,
        }
    }
}

impl Home<'_> {
    /// The id of a container: another one for each start, and for each boot of the server.
    fn container(&self, pod: &Pod, name: &str, restarts: i32) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let parts = [self.boot, uid, name, &restarts.to_string()];
        format!("containerd://{}", digest(&parts, 64))
    }

    /// What is left of something that takes so long.
    fn left(&self, since: Timestamp, takes: Duration) -> Option<Duration> {
        let gone = self
            .now
            .duration_since(since)
            .max(SignedDuration::ZERO)
            .unsigned_abs();
        takes.checked_sub(gone)
    }
}

fn finished(how: &ContainerStateTerminated) -> Option<Timestamp> {
    how.finished_at.as_ref().map(|time| time.0)
}

/// The pause before a start after so many restarts: none the first time, then doubled each time.
fn back_off(restarts: i32) -> Duration {
    match u32::try_from(restarts) {
        Ok(0) | Err(_) => Duration::ZERO,
        Ok(restarts) => (BACK_OFF.0 * 2_u32.pow((restarts - 1).min(8))).min(BACK_OFF.1),
    }
}

/// `1m20s`, as Go writes it.
fn spoken(pause: Duration) -> String {
    match (pause.as_secs() / 60, pause.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

fn ended(reason: &str, code: i32, since: Timestamp, id: &str, now: Timestamp) -> ContainerStateTerminated {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    ContainerStateTerminated {
        container_id: Some(id.to_owned()).filter(|id| !id.is_empty()),
        exit_code: code,
        reason: Some(reason.to_owned()),
        started_at: Some(Time(since)),
        finished_at: Some(Time(second(now))),
        ..ContainerStateTerminated::default()
    }
}

fn told_to_end(pod: &Pod, home: &Home<'_>, grace: Option<i64>) -> Turn {
    let grace = Duration::from_secs(grace.unwrap_or_default().try_into().unwrap_or_default());
    let left = home.times.stop.min(grace).checked_sub(home.known);
    if let Some(left) = left.filter(|left| !left.is_zero()) {
        return Turn::Rest(Some(left));
    }
    let containers = pod
        .spec
        .as_ref()
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default();
    let mut said = Vec::new();
    let lives: Vec<Life> = containers
        .iter()
        .map(|container| {
            let life = known(pod, container);
            let how = match &life.state {
                State::Ended { .. } => return life,
                State::Running { since, id } => {
                    let note = format!("Stopping container {}", container.name);
                    said.push(Said::new(false, "Killing", "Killing", note));
                    ended("Completed", 0, *since, id, home.now)
                }
                // It never began, or had ended before.
                State::Waiting { .. } => life
                    .last
                    .clone()
                    .unwrap_or_else(|| ended("ContainerStatusUnknown", 137, home.now, "", home.now)),
            };
            Life {
                state: State::Ended { how },
                ..life
            }
        })
        .collect();
    Turn::Report(status(pod, home, &lives), said)
}

/// A pod that was bound to a node that has no room for it ends at once.
fn refused(pod: &Pod, home: &Home<'_>) -> Turn {
    let Some(lack) = home.lacks.first() else {
        return Turn::Rest(None);
    };
    let reason = format!("OutOf{}", lack.resource);
    let note = format!(
        "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
        lack.resource, lack.requested, lack.used, lack.capacity
    );
    let report = json!({
        "phase": "Failed", "reason": reason, "message": format!("Pod was rejected: {note}"),
        "startTime": second(home.now), "observedGeneration": pod.metadata.generation,
    });
    Turn::Report(report, vec![Said::new(true, "Admitting", &reason, note)])
}

fn unreadable(pod: &Pod, home: &Home<'_>, why: &str) -> Turn {
    let containers = pod
        .spec
        .as_ref()
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default();
    let before: Vec<Life> = containers.iter().map(|one| known(pod, one)).collect();
    let is_told = |life: &Life| match &life.state {
        State::Waiting { reason, message } => *reason == "CreateContainerError" && message == why,
        // What runs goes on as it is.
        State::Running { .. } | State::Ended { .. } => true,
    };
    if before.iter().all(is_told) {
        return Turn::Rest(None);
    }
    let lives: Vec<Life> = before
        .into_iter()
        .map(|life| match life.state {
            State::Waiting { .. } => Life {
                state: State::Waiting {
                    reason: "CreateContainerError",
                    message: why.to_owned(),
                },
                ..life
            },
            State::Running { .. } | State::Ended { .. } => life,
        })
        .collect();
    let said = Said::new(true, "Starting", "Failed", format!("Error: {why}"));
    Turn::Report(status(pod, home, &lives), vec![said])
}

/// The whole status, as it is reported.
fn status(pod: &Pod, home: &Home<'_>, lives: &[Life]) -> Value {
    let spec = pod.spec.clone().unwrap_or_default();
    let began = lives
        .iter()
        .any(|life| !matches!(life.state, State::Waiting { reason, .. } if reason != "CrashLoopBackOff"));
    let all_ended = lives.iter().all(|life| matches!(life.state, State::Ended { .. }));
    let all_well = lives
        .iter()
        .all(|life| matches!(&life.state, State::Ended { how } if how.exit_code == 0));
    let phase = match (began, all_ended, all_well) {
        (false, ..) => "Pending",
        (true, false, _) => "Running",
        (true, true, true) => "Succeeded",
        (true, true, false) => "Failed",
    };
    let address = match (
        spec.host_network,
        pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
    ) {
        (Some(true), _) => home.host_ip.to_owned(),
        (_, Some(known)) if !known.is_empty() => known,
        _ => home.pod_ip.to_owned(),
    };
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let mut report = json!({
        "phase": phase,
        "observedGeneration": pod.metadata.generation,
        "hostIP": home.host_ip,
        "hostIPs": [{"ip": home.host_ip}],
        "startTime": since.map_or_else(|| second(home.now), |time| time.0),
        "conditions": conditions(pod, home, lives, (began, phase)),
        "containerStatuses": spec.containers.iter().zip(lives).map(|(one, life)| shown(one, life)).collect::<Vec<_>>(),
    });
    if began {
        report["podIP"] = json!(address);
        report["podIPs"] = json!([{"ip": address}]);
    }
    let inits = spec.init_containers.unwrap_or_default();
    if !inits.is_empty() {
        let statuses: Vec<Value> = inits
            .iter()
            .map(|one| init(pod, home, one, (began, all_ended)))
            .collect();
        report["initContainerStatuses"] = json!(statuses);
    }
    report
}

fn shown(container: &Container, life: &Life) -> Value {
    let (ready, started, id) = match &life.state {
        State::Running { id, .. } => (true, true, id.clone()),
        State::Ended { how } => (false, false, how.container_id.clone().unwrap_or_default()),
        State::Waiting { .. } => {
            let id = life.last.as_ref().and_then(|last| last.container_id.clone());
            (false, false, id.unwrap_or_default())
        }
    };
    let image = container.image.clone().unwrap_or_default();
    let state = match &life.state {
        State::Waiting { reason, message } if message.is_empty() => json!({"waiting": {"reason": reason}}),
        State::Waiting { reason, message } => json!({"waiting": {"reason": reason, "message": message}}),
        State::Running { since, .. } => json!({"running": {"startedAt": since}}),
        State::Ended { how } => json!({"terminated": how}),
    };
    let last = life
        .last
        .as_ref()
        .map_or_else(|| json!({}), |last| json!({"terminated": last}));
    let mut shown = json!({
        "name": container.name, "image": image,
        "imageID": if id.is_empty() { String::new() } else { format!("{image}@sha256:{}", digest(&[&image], 64)) },
        "state": state, "lastState": last, "ready": ready, "started": started, "restartCount": life.restarts,
    });
    if let (false, Some(shown)) = (id.is_empty(), shown.as_object_mut()) {
        shown.insert("containerID".to_owned(), json!(id));
    }
    shown
}

/// An init container has nothing to do and does it well; one that stays runs as long as the others.
fn init(pod: &Pod, home: &Home<'_>, container: &Container, (began, all_ended): (bool, bool)) -> Value {
    let stays = container.restart_policy.as_deref() == Some("Always");
    let now = second(home.now);
    let id = home.container(pod, &container.name, 0);
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.init_container_statuses.as_ref());
    let before = statuses.and_then(|all| all.iter().find(|one| one.name == container.name));
    let life = match (began, stays) {
        (false, _) => Life {
            state: State::Waiting {
                reason: "PodInitializing",
                message: String::new(),
            },
            last: None,
            restarts: 0,
        },
        (true, true) if !all_ended => Life {
            state: State::Running {
                since: before
                    .and_then(|before| before.state.as_ref()?.running.as_ref()?.started_at.as_ref())
                    .map_or(now, |time| time.0),
                id,
            },
            last: None,
            restarts: 0,
        },
        (true, _) => Life {
            state: State::Ended {
                how: before
                    .and_then(|before| before.state.as_ref()?.terminated.clone())
                    .unwrap_or_else(|| ended("Completed", 0, now, &id, home.now)),
            },
            last: None,
            restarts: 0,
        },
    };
    let done = matches!(life.state, State::Ended { .. });
    let mut shown = shown(container, &life);
    shown["ready"] = json!(began && (done || stays));
    shown
}

fn conditions(pod: &Pod, home: &Home<'_>, lives: &[Life], (began, phase): (bool, &str)) -> Value {
    let names: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .zip(lives)
        .filter(|(_, life)| !matches!(life.state, State::Running { .. }))
        .map(|(container, _)| container.name.as_str())
        .collect();
    let ready = names.is_empty();
    let (reason, message) = match phase {
        _ if ready => (None, None),
        "Succeeded" => (Some("PodCompleted"), None),
        "Failed" => (Some("PodFailed"), None),
        _ => (
            Some("ContainersNotReady"),
            Some(format!("containers with unready status: [{}]", names.join(" "))),
        ),
    };
    let ended = matches!(phase, "Succeeded" | "Failed");
    let initialized = match (began, phase) {
        (false, _) => Some("ContainersNotInitialized"),
        (true, "Succeeded") => Some("PodCompleted"),
        (true, _) => None,
    };
    let all: [(&str, bool, Option<&str>, Option<String>); 5] = [
        ("PodReadyToStartContainers", began && !ended, None, None),
        ("Initialized", began, initialized, None),
        ("Ready", ready, reason, message.clone()),
        ("ContainersReady", ready, reason, message),
        ("PodScheduled", true, None, None),
    ];
    let old = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let all = all.map(|(kind, is_true, reason, message)| {
        let status = if is_true { "True" } else { "False" };
        let since = old
            .iter()
            .find(|one| one.type_ == kind && one.status == status)
            .and_then(|one| one.last_transition_time.as_ref())
            .map_or_else(|| second(home.now), |time| time.0);
        let mut one = Map::new();
        one.insert("type".to_owned(), json!(kind));
        one.insert("status".to_owned(), json!(status));
        one.insert("observedGeneration".to_owned(), json!(pod.metadata.generation));
        one.insert("lastProbeTime".to_owned(), Value::Null);
        one.insert("lastTransitionTime".to_owned(), json!(since));
        // Null takes away what an earlier report has said.
        one.insert("reason".to_owned(), json!(reason));
        one.insert("message".to_owned(), json!(message));
        Value::Object(one)
    });
    json!(all)
}

/// Whole seconds, as the API keeps most times.
fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests;
