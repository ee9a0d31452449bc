//! Lives of pods, step by step.

use k8s_openapi::api::core::v1::PodStatus;
use rstest::rstest;

use super::super::script::{EXIT_CODE, RUNS_FOR};
use super::*;

fn at(seconds: i64) -> Timestamp {
    "2026-08-20T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn pod(annotations: Value, policy: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "generation": 1, "annotations": annotations},
        "spec": {"nodeName": "n", "restartPolicy": policy, "containers": [{"name": "a", "image": "i:1"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }))
    .unwrap()
}

/// A kubelet with one pod, whose reports are taken as an API server takes them.
struct Kubelet {
    pod: Pod,
    boot: &'static str,
    lacks: Vec<Lack>,
    known: Duration,
    times: Times,
}

impl Kubelet {
    fn new(pod: Pod) -> Self {
        Self {
            pod,
            boot: "one",
            lacks: Vec::new(),
            known: Duration::from_secs(60),
            times: Times::default(),
        }
    }

    fn turn(&self, seconds: i64) -> Turn {
        let home = Home {
            host_ip: "192.168.100.11",
            pod_ip: "10.244.0.2",
            boot: self.boot,
            times: &self.times,
            lacks: &self.lacks,
            known: self.known,
            now: at(seconds),
        };
        turn(&self.pod, &home)
    }

    /// One turn that reports; what is worth an Event.
    fn reports(&mut self, seconds: i64) -> Vec<String> {
        let Turn::Report(status, said) = self.turn(seconds) else {
            panic!("nothing is reported after {seconds} s: {:?}", self.pod.status);
        };
        self.pod.status = Some(serde_json::from_value::<PodStatus>(status).unwrap());
        said.into_iter().map(|said| said.reason).collect()
    }

    fn status(&self) -> &PodStatus {
        self.pod.status.as_ref().unwrap()
    }

    fn phase(&self) -> &str {
        self.status().phase.as_deref().unwrap()
    }

    fn container(&self) -> &ContainerStatus {
        &self.status().container_statuses.as_ref().unwrap()[0]
    }

    fn waiting(&self) -> Option<String> {
        self.container().state.clone()?.waiting?.reason
    }

    fn condition(&self, kind: &str) -> (String, Option<String>) {
        let all = self.status().conditions.as_ref().unwrap();
        let one = all.iter().find(|one| one.type_ == kind).unwrap();
        (one.status.clone(), one.reason.clone())
    }

    fn running(pod: Pod) -> Self {
        let mut kubelet = Self::new(pod);
        kubelet.reports(0);
        kubelet.reports(1);
        assert_eq!(kubelet.phase(), "Running");
        kubelet
    }
}

#[test]
fn a_pod_is_created_and_runs() {
    let mut kubelet = Kubelet::new(pod(json!({}), "Always"));
    assert_eq!(kubelet.reports(0), Vec::<String>::new());
    assert_eq!(
        (kubelet.phase(), kubelet.waiting().as_deref()),
        ("Pending", Some("ContainerCreating"))
    );
    assert_eq!(
        kubelet.condition("Ready"),
        ("False".into(), Some("ContainersNotReady".into()))
    );
    assert_eq!(kubelet.status().pod_ip, None);
    // It takes its time.
    kubelet.known = Duration::from_millis(100);
    assert_eq!(kubelet.turn(0), Turn::Rest(Some(Duration::from_millis(200))));
    kubelet.known = Duration::from_millis(300);
    assert_eq!(kubelet.reports(1), ["Started"]);
    assert_eq!(kubelet.phase(), "Running");
    let status = kubelet.status();
    assert_eq!(
        (status.pod_ip.as_deref(), status.host_ip.as_deref()),
        (Some("10.244.0.2"), Some("192.168.100.11"))
    );
    assert!(kubelet.container().ready && kubelet.container().restart_count == 0);
    assert_eq!(kubelet.condition("Ready"), ("True".into(), None));
    assert_eq!(kubelet.condition("PodScheduled"), ("True".into(), None));
    // It runs until somebody ends it.
    assert_eq!(kubelet.turn(100_000), Turn::Rest(None));
}

#[rstest]
#[case::well("0", "Never", "Succeeded", "Completed", "PodCompleted")]
#[case::well_though_failures_would_be_tried_again("0", "OnFailure", "Succeeded", "Completed", "PodCompleted")]
#[case::badly("3", "Never", "Failed", "Error", "PodFailed")]
fn a_pod_ends_by_itself(
    #[case] code: &str,
    #[case] policy: &str,
    #[case] phase: &str,
    #[case] reason: &str,
    #[case] ready: &str,
) {
    let mut kubelet = Kubelet::running(pod(json!({EXIT_CODE: code, RUNS_FOR: "5"}), policy));
    assert_eq!(kubelet.turn(4), Turn::Rest(Some(Duration::from_secs(2))));
    kubelet.reports(6);
    assert_eq!(kubelet.phase(), phase);
    let ended = kubelet.container().state.clone().unwrap().terminated.unwrap();
    assert_eq!(
        (ended.exit_code.to_string().as_str(), ended.reason.as_deref()),
        (code, Some(reason))
    );
    assert_eq!(kubelet.condition("Ready"), ("False".into(), Some(ready.into())));
    assert_eq!(kubelet.status().pod_ip.as_deref(), Some("10.244.0.2"));
    assert_eq!(kubelet.turn(1000), Turn::Rest(None));
}

#[test]
fn what_keeps_ending_is_started_again_after_longer_and_longer_pauses() {
    let mut kubelet = Kubelet::running(pod(json!({EXIT_CODE: "1", RUNS_FOR: "1"}), "Always"));
    // The first time at once.
    assert_eq!(kubelet.reports(2), ["Started"]);
    assert_eq!(
        (kubelet.container().restart_count, kubelet.phase()),
        (1, "Running")
    );
    assert_eq!(kubelet.reports(3), ["BackOff"]);
    assert_eq!(
        (kubelet.waiting().as_deref(), kubelet.phase()),
        (Some("CrashLoopBackOff"), "Running")
    );
    let state = kubelet.container().state.clone().unwrap();
    assert_eq!(
        state.waiting.unwrap().message.as_deref(),
        Some("back-off 10s restarting failed container=a pod=p_default(u)")
    );
    assert_eq!(kubelet.turn(4), Turn::Rest(Some(Duration::from_secs(9))));
    kubelet.reports(13);
    assert_eq!(kubelet.container().restart_count, 2);
    kubelet.reports(14);
    assert_eq!(kubelet.turn(14), Turn::Rest(Some(Duration::from_secs(20))));
    assert_eq!(back_off(9), Duration::from_secs(300));
    assert_eq!(spoken(back_off(4)), "1m20s");
}

#[rstest]
#[case("Always", "Running", 1)]
#[case("OnFailure", "Running", 1)]
#[case("Never", "Failed", 0)]
fn after_a_reboot_nothing_runs_that_is_not_started_again(
    #[case] policy: &str,
    #[case] phase: &str,
    #[case] restarts: i32,
) {
    let mut kubelet = Kubelet::running(pod(json!({}), policy));
    let id = kubelet.container().container_id.clone();
    kubelet.boot = "two";
    kubelet.reports(10);
    assert_eq!(
        (kubelet.phase(), kubelet.container().restart_count),
        (phase, restarts)
    );
    let seen = kubelet.container().clone();
    let ended = seen
        .state
        .unwrap()
        .terminated
        .or(seen.last_state.unwrap().terminated)
        .unwrap();
    assert_eq!(
        (ended.reason.as_deref(), ended.exit_code, ended.container_id),
        (Some("Unknown"), 255, id)
    );
    assert_eq!(kubelet.turn(11), Turn::Rest(None));
}

#[test]
fn a_pod_that_is_told_to_end_ends_and_is_let_go() {
    let mut kubelet = Kubelet::running(pod(json!({}), "Always"));
    kubelet.pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-08-20T12:00:30Z")).unwrap();
    kubelet.pod.metadata.deletion_grace_period_seconds = Some(30);
    kubelet.known = Duration::ZERO;
    assert_eq!(kubelet.turn(5), Turn::Rest(Some(Duration::from_millis(300))));
    // Never longer than it was given.
    kubelet.pod.metadata.deletion_grace_period_seconds = Some(0);
    assert!(matches!(kubelet.turn(5), Turn::Report(..)));
    kubelet.pod.metadata.deletion_grace_period_seconds = Some(30);
    kubelet.known = Duration::from_millis(300);
    assert_eq!(kubelet.reports(5), ["Killing"]);
    assert_eq!(kubelet.phase(), "Succeeded");
    assert_eq!(kubelet.turn(5), Turn::LetGo);
    // A finalizer keeps the object; the kubelet is done.
    kubelet.pod.metadata.deletion_grace_period_seconds = Some(0);
    assert_eq!(kubelet.turn(6), Turn::Rest(None));
}

#[test]
fn a_pod_for_which_there_is_no_room_is_refused() {
    let mut kubelet = Kubelet::new(pod(json!({}), "Always"));
    kubelet.lacks = vec![Lack {
        resource: "nvidia.com/gpu".into(),
        requested: 5,
        used: 1,
        capacity: 4,
    }];
    assert_eq!(kubelet.reports(0), ["OutOfnvidia.com/gpu"]);
    assert_eq!(kubelet.phase(), "Failed");
    assert_eq!(
        kubelet.status().message.as_deref(),
        Some(
            "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 5, used: 1, capacity: 4"
        )
    );
}

#[test]
fn an_annotation_that_cannot_be_read_is_shown_where_people_look() {
    let mut kubelet = Kubelet::new(pod(json!({EXIT_CODE: "none"}), "Never"));
    kubelet.reports(0);
    assert_eq!(kubelet.reports(1), ["Failed"]);
    assert_eq!(
        (kubelet.phase(), kubelet.waiting().as_deref()),
        ("Pending", Some("CreateContainerError"))
    );
    assert_eq!(kubelet.turn(2), Turn::Rest(None));
    kubelet
        .pod
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(EXIT_CODE.into(), "0".into());
    assert_eq!(kubelet.reports(3), ["Started"]);
}

#[test]
fn init_containers_are_done_before_the_others_run_and_some_stay() {
    let mut pod = pod(json!({EXIT_CODE: "0"}), "Never");
    let inits =
        json!([{"name": "i", "image": "i:1"}, {"name": "s", "image": "i:1", "restartPolicy": "Always"}]);
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(inits).unwrap();
    let mut kubelet = Kubelet::new(pod);
    let inits = |kubelet: &Kubelet| {
        let all = kubelet.status().init_container_statuses.clone().unwrap();
        all.into_iter()
            .map(|one| {
                let state = one.state.unwrap();
                match (state.waiting, state.running, state.terminated) {
                    (Some(waiting), ..) => waiting.reason.unwrap(),
                    (_, Some(_), _) => "running".to_owned(),
                    (.., ended) => ended.unwrap().reason.unwrap(),
                }
            })
            .collect::<Vec<_>>()
    };
    kubelet.reports(0);
    assert_eq!(inits(&kubelet), ["PodInitializing", "PodInitializing"]);
    kubelet.reports(1);
    assert_eq!(inits(&kubelet), ["Completed", "running"]);
    kubelet.reports(10);
    assert_eq!(
        (inits(&kubelet), kubelet.phase()),
        (vec!["Completed".into(), "Completed".into()], "Succeeded")
    );
}
