//! Tests of a node's turn: a small world in which the Node and the memory are written as the controller writes them.

use std::collections::BTreeMap;

use hostler_api::enrollment::ProfileVersion;
use hostler_api::names;
use k8s_openapi::api::core::v1::{NodeCondition, NodeSpec, NodeStatus, Taint};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn noon() -> Timestamp {
    "2026-11-29T12:00:00Z".parse().unwrap()
}

fn taint(key: &str, value: &str) -> Taint {
    Taint {
        key: key.into(),
        value: Some(value.into()),
        effect: "NoSchedule".into(),
        time_added: None,
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// The profile of the first seed.
fn gpu_training() -> NodeProfileSpec {
    NodeProfileSpec {
        node_labels: map(&[("workload.vcluster.com/class", "gpu")]),
        node_annotations: map(&[("ops.vcluster.com/owner", "ml-platform")]),
        taints: vec![taint("nvidia.com/gpu", "true")],
        startup_taints: vec![taint("node.vcluster.com/bootstrap", "true")],
        ..NodeProfileSpec::default()
    }
}

/// A node with its memory.
struct World {
    node: Node,
    memory: EnrollmentStatus,
    claim: NodeClaimSpec,
    generation: i64,
    writes: usize,
    told: Vec<Told>,
}

/// Where a turn is cut short.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    Never,
    AfterIntent,
    AfterPatch,
}

impl World {
    fn new() -> Self {
        let mut node = Node {
            spec: Some(NodeSpec::default()),
            status: Some(NodeStatus::default()),
            ..Node::default()
        };
        node.metadata.uid = Some("n-1".into());
        let claim = NodeClaimSpec {
            node_labels: map(&[("workload", "gpu")]),
            ..NodeClaimSpec::default()
        };
        Self {
            node,
            memory: EnrollmentStatus::default(),
            claim,
            generation: 1,
            writes: 0,
            told: Vec::new(),
        }
    }

    fn turn(&mut self, assignment: &Assignment<'_>, cut: Cut) -> Turn {
        let turn = next(&View {
            node: &self.node,
            memory: &self.memory,
            claim: Some(&self.claim),
            assignment,
            contested: false,
            now: noon(),
        });
        if let Some(intent) = &turn.intent {
            self.memory = intent.clone();
            self.writes += 1;
        }
        if cut == Cut::AfterIntent {
            return turn;
        }
        if let Some(patch) = &turn.patch {
            let mut json = serde_json::to_value(&self.node).unwrap();
            merge(&mut json, patch);
            self.node = serde_json::from_value(json).unwrap();
            self.writes += 1;
        }
        if cut == Cut::AfterPatch {
            return turn;
        }
        if let Some(outcome) = &turn.outcome {
            self.memory = outcome.clone();
            self.writes += 1;
        }
        self.told.extend(turn.told.iter().cloned());
        turn
    }

    fn profile(&mut self, spec: &NodeProfileSpec, source: &str) -> Turn {
        let generation = self.generation;
        self.turn(
            &Assignment::Profile(assigned(spec, source, generation)),
            Cut::Never,
        )
    }

    fn settle(&mut self, spec: &NodeProfileSpec) {
        self.profile(spec, EXPLICIT);
        self.writes = 0;
        assert_eq!(
            self.profile(spec, EXPLICIT),
            Turn::default(),
            "a steady node writes nothing"
        );
    }

    fn ready(&mut self, yes: bool) {
        let status = if yes { "True" } else { "False" };
        self.node
            .status
            .get_or_insert_with(NodeStatus::default)
            .conditions = Some(vec![NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            ..NodeCondition::default()
        }]);
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.node
            .metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(key))
            .map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.node
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(key))
            .map(String::as_str)
    }

    fn set_label(&mut self, key: &str, value: &str) {
        self.node
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.into(), value.into());
    }

    fn taints(&self) -> Vec<String> {
        let taints = self
            .node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        taints
            .iter()
            .map(|taint| {
                format!(
                    "{}={}:{}",
                    taint.key,
                    taint.value.clone().unwrap_or_default(),
                    taint.effect
                )
            })
            .collect()
    }

    fn set_taints(&mut self, taints: &[Taint]) {
        self.node.spec.get_or_insert_default().taints = Some(taints.to_vec());
    }

    /// The Node is deleted, and its kubelet registers it anew.
    fn register_anew(&mut self) {
        let uid = format!("{}'", self.node.metadata.uid.clone().unwrap());
        self.node = Self::new().node;
        self.node.metadata.uid = Some(uid);
    }
}

fn assigned<'a>(spec: &'a NodeProfileSpec, source: &str, generation: i64) -> Assigned<'a> {
    Assigned {
        choice: ProfileChoice {
            name: Some("gpu-training".into()),
            source: Some(source.into()),
            why: None,
        },
        version: ProfileVersion {
            name: "gpu-training".into(),
            uid: "p-1".into(),
            generation,
        },
        spec,
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

#[test]
fn a_node_joins_with_everything_and_loses_the_startup_taint_when_ready() {
    let mut world = World::new();
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.label("workload.vcluster.com/class"), Some("gpu"));
    assert_eq!(world.label("workload"), Some("gpu"));
    assert_eq!(world.label(names::NODE_PROFILE), Some("gpu-training"));
    assert_eq!(world.label(names::NODE_PROFILE_PROMOTED), Some("gpu-training"));
    assert_eq!(world.annotation("ops.vcluster.com/owner"), Some("ml-platform"));
    assert_eq!(
        world.annotation(names::OWNED_LABELS),
        Some("[\"workload.vcluster.com/class\"]")
    );
    assert_eq!(
        world.annotation(names::OWNED_TAINTS),
        Some("[\"nvidia.com/gpu:NoSchedule\"]")
    );
    assert_eq!(world.annotation(names::STARTUP_TAINTS), Some("applied"));
    assert_eq!(
        world.taints(),
        [
            "nvidia.com/gpu=true:NoSchedule",
            "node.vcluster.com/bootstrap=true:NoSchedule"
        ]
    );
    world.settle(&gpu_training());
    world.ready(true);
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
    assert_eq!(world.annotation(names::STARTUP_TAINTS), Some("removed"));
    world.settle(&gpu_training());
    assert_eq!(world.told, []);
}

#[test]
fn an_edit_adds_changes_and_prunes_only_what_is_the_profiles() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.set_label("foreign", "stays");
    let mut edited = gpu_training();
    edited.node_labels = map(&[("compliance.vcluster.com/audited", "true")]);
    edited
        .node_annotations
        .insert("ops.vcluster.com/owner".into(), "platform".into());
    edited.taints = vec![taint("nvidia.com/gpu", "false")];
    world.generation = 2;
    world.profile(&edited, EXPLICIT);
    assert_eq!(world.label("compliance.vcluster.com/audited"), Some("true"));
    assert_eq!(world.label("workload.vcluster.com/class"), None);
    assert_eq!(
        (world.label("foreign"), world.label("workload")),
        (Some("stays"), Some("gpu"))
    );
    assert_eq!(world.annotation("ops.vcluster.com/owner"), Some("platform"));
    assert_eq!(world.taints()[0], "nvidia.com/gpu=false:NoSchedule");
    assert_eq!(world.told, [], "an edit of the profile is no clash");
    world.settle(&edited);
}

#[test]
fn startup_taints_never_come_back() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.ready(true);
    world.settle(&gpu_training());
    world.ready(false);
    world.generation = 2;
    let mut edited = gpu_training();
    edited.startup_taints.push(taint("late", "x"));
    world.settle(&edited);
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
    // An operator's own taint of that key is not ours to take.
    world.set_taints(&[
        taint("nvidia.com/gpu", "true"),
        taint("node.vcluster.com/bootstrap", "true"),
    ]);
    world.settle(&edited);
    assert_eq!(world.taints().len(), 2);
}

#[test]
fn a_startup_taint_that_its_owner_removed_stays_away() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.set_taints(&[taint("nvidia.com/gpu", "true")]);
    world.settle(&gpu_training());
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
}

#[test]
fn a_startup_taint_that_its_owner_removed_while_the_first_write_was_refused_stays_away() {
    let mut world = World::new();
    // The kubelet registered it, the first turn saw it, and the patch met a newer Node on which its owner had removed it.
    world.set_taints(&[taint("node.vcluster.com/bootstrap", "true")]);
    let spec = gpu_training();
    world.turn(
        &Assignment::Profile(assigned(&spec, EXPLICIT, 1)),
        Cut::AfterIntent,
    );
    world.set_taints(&[]);
    world.settle(&spec);
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
}

#[test]
fn of_several_startup_taints_that_a_kubelet_registered_a_missing_one_was_removed() {
    let mut world = World::new();
    let mut spec = gpu_training();
    spec.startup_taints.push(taint("second", ""));
    world.set_taints(&[taint("second", "")]);
    world.settle(&spec);
    assert_eq!(
        world.taints(),
        ["second=:NoSchedule", "nvidia.com/gpu=true:NoSchedule"]
    );
}

#[test]
fn a_node_that_is_ready_at_first_sight_gets_no_startup_taint() {
    let mut world = World::new();
    world.ready(true);
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
    assert_eq!(world.memory.startup_taints.as_deref(), Some("removed"));
}

#[test]
fn a_node_registered_anew_gets_all_again_but_for_the_startup_taint() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.ready(true);
    world.settle(&gpu_training());
    world.register_anew();
    world.set_taints(&[taint("node.vcluster.com/bootstrap", "true")]);
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.label("workload.vcluster.com/class"), Some("gpu"));
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
    world.settle(&gpu_training());
}

#[test]
fn a_node_registered_anew_before_it_was_ready_gets_the_startup_taint_again() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.register_anew();
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.taints().len(), 2);
    world.settle(&gpu_training());
}

#[test]
fn a_default_is_never_promoted_and_follows_the_default() {
    let mut world = World::new();
    world.profile(&gpu_training(), PROJECT_DEFAULT);
    assert_eq!(world.label(names::NODE_PROFILE), Some("gpu-training"));
    assert_eq!(world.label(names::NODE_PROFILE_PROMOTED), None);
    world.turn(&Assignment::Nothing, Cut::Never);
    assert_eq!(world.label(names::NODE_PROFILE), None);
    assert_eq!(world.label("workload.vcluster.com/class"), None);
    assert_eq!(world.taints(), ["node.vcluster.com/bootstrap=true:NoSchedule"]);
    assert_eq!(world.turn(&Assignment::Nothing, Cut::Never), Turn::default());
}

#[test]
fn what_a_node_claims_about_itself_is_overwritten_and_told() {
    let mut world = World::new();
    world.set_label(names::NODE_PROFILE, "privileged");
    world.profile(&gpu_training(), EXPLICIT);
    assert_eq!(world.label(names::NODE_PROFILE), Some("gpu-training"));
    assert_eq!(world.told[0].reason, "ProfileLabelCorrected");
    world.set_label(names::NODE_PROFILE, "privileged");
    let turn = world.profile(&gpu_training(), EXPLICIT);
    assert_eq!((turn.corrections, turn.told.len()), (1, 1));
    world
        .node
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .remove(names::NODE_PROFILE);
    assert_eq!(world.profile(&gpu_training(), EXPLICIT).corrections, 1);
}

#[test]
fn a_node_cannot_have_its_own_keys_pruned_by_listing_them() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.set_label("victim", "x");
    let forged = "[\"victim\",\"workload\"]";
    world
        .node
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(names::OWNED_LABELS.into(), forged.into());
    world.generation = 2;
    let mut edited = gpu_training();
    edited.node_labels.clear();
    world.profile(&edited, EXPLICIT);
    assert_eq!(world.label("victim"), Some("x"));
    world
        .node
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(names::OWNED_LABELS.into(), forged.into());
    let turn = world.profile(&edited, EXPLICIT);
    assert_eq!(turn.told[0].reason, "OwnershipRewritten");
    assert_eq!(world.annotation(names::OWNED_LABELS), None);
}

#[test]
fn a_clash_is_won_counted_and_told_once() {
    let mut world = World::new();
    world.claim.node_labels = map(&[("workload.vcluster.com/class", "cpu")]);
    world.claim.taints = vec![taint("nvidia.com/gpu", "maybe")];
    world.settle(&gpu_training());
    assert_eq!(world.label("workload.vcluster.com/class"), Some("gpu"));
    assert_eq!(world.taints()[0], "nvidia.com/gpu=true:NoSchedule");
    assert_eq!(
        world.memory.clashes,
        [
            "label:workload.vcluster.com/class",
            "taint:nvidia.com/gpu:NoSchedule"
        ]
    );
    assert_eq!(world.told.len(), 2);
    world.set_label("workload.vcluster.com/class", "tpu");
    let turn = world.profile(&gpu_training(), EXPLICIT);
    assert_eq!((turn.corrections, turn.told), (1, vec![]));
    // What the claim gave comes back when the profile lets go.
    world.generation = 2;
    world.settle(&NodeProfileSpec::default());
    assert_eq!(world.label("workload.vcluster.com/class"), Some("cpu"));
    assert!(
        world
            .taints()
            .contains(&"nvidia.com/gpu=maybe:NoSchedule".to_owned())
    );
}

#[test]
fn an_equal_key_that_somebody_else_set_stays_when_the_profile_drops_it() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.set_label("team", "ml");
    let mut edited = gpu_training();
    edited.node_labels.insert("team".into(), "ml".into());
    world.generation = 2;
    world.settle(&edited);
    world.generation = 3;
    world.settle(&gpu_training());
    assert_eq!(world.label("team"), Some("ml"));
}

#[test]
fn revocation_takes_what_attracts_and_leaves_what_repels() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.ready(true);
    world.settle(&gpu_training());
    let revoked = Assignment::Revoked(Reason::new(
        "ProfileNotAllowed",
        "project default no longer allows gpu-training",
    ));
    world.turn(&revoked, Cut::Never);
    for key in [
        "workload.vcluster.com/class",
        names::NODE_PROFILE,
        names::NODE_PROFILE_PROMOTED,
    ] {
        assert_eq!(world.label(key), None, "{key}");
    }
    assert_eq!(world.annotation("ops.vcluster.com/owner"), None);
    assert_eq!(world.taints(), ["nvidia.com/gpu=true:NoSchedule"]);
    assert_eq!(world.turn(&revoked, Cut::Never), Turn::default());
    let in_sync = conditions::find(&world.memory.conditions, IN_SYNC).unwrap();
    assert_eq!(
        (in_sync.status.as_str(), in_sync.reason.as_deref()),
        ("False", Some("ProfileNotAllowed"))
    );
    assert_eq!(
        world.memory.profile.as_ref().unwrap().name.as_deref(),
        Some("gpu-training"),
        "the next turn must know which"
    );
    // Another profile takes the taint over, or away.
    world.generation = 2;
    world.settle(&NodeProfileSpec::default());
    assert_eq!(world.taints(), [""; 0]);
}

#[test]
fn an_operator_may_remove_the_taint_of_a_revoked_profile() {
    let mut world = World::new();
    world.settle(&gpu_training());
    let revoked = Assignment::Revoked(Reason::new("ProfileNotFound", "gone"));
    world.turn(&revoked, Cut::Never);
    world.set_taints(&[]);
    world.turn(&revoked, Cut::Never);
    assert_eq!(world.taints(), [""; 0]);
    assert_eq!(world.turn(&revoked, Cut::Never), Turn::default());
}

#[test]
fn while_nothing_can_be_told_a_node_keeps_what_it_has() {
    let mut world = World::new();
    world.settle(&gpu_training());
    let before = world.node.clone();
    assert_eq!(world.turn(&Assignment::Unknown, Cut::Never), Turn::default());
    assert_eq!(world.node, before);
    // On a node that just joined only what the claim gives is set, and its profile comes whole later.
    let mut young = World::new();
    young.turn(&Assignment::Unknown, Cut::Never);
    assert_eq!(
        (young.label("workload"), young.label(names::NODE_PROFILE)),
        (Some("gpu"), None)
    );
    assert_eq!(young.turn(&Assignment::Unknown, Cut::Never), Turn::default());
    young.profile(&gpu_training(), EXPLICIT);
    assert_eq!(young.taints().len(), 2);
    young.settle(&gpu_training());
}

#[test]
fn a_contested_node_is_left_alone_and_says_so() {
    let mut world = World::new();
    world.settle(&gpu_training());
    world.set_label("workload.vcluster.com/class", "tpu");
    let bare = NodeProfileSpec::default();
    let assignment = Assignment::Profile(assigned(&bare, EXPLICIT, 1));
    let view = View {
        node: &world.node,
        memory: &world.memory,
        claim: None,
        assignment: &assignment,
        contested: true,
        now: noon(),
    };
    let turn = next(&view);
    assert_eq!((turn.patch, turn.intent), (None, None));
    assert!(conditions::is_true(&turn.outcome.unwrap().conditions, CONTESTED));
}

#[test]
fn what_a_claim_gives_is_frozen_at_the_join_and_never_protected() {
    let mut world = World::new();
    world
        .claim
        .node_labels
        .insert("node-restriction.kubernetes.io/x".into(), "y".into());
    world.settle(&gpu_training());
    assert_eq!(world.label("node-restriction.kubernetes.io/x"), None);
    world.claim.node_labels = map(&[("workload", "other")]);
    world.settle(&gpu_training());
    assert_eq!(world.label("workload"), Some("gpu"));
}

#[rstest]
#[case::after_the_intent(Cut::AfterIntent)]
#[case::after_the_patch(Cut::AfterPatch)]
fn a_crash_between_two_writes_loses_no_ownership(#[case] cut: Cut) {
    let mut world = World::new();
    let spec = gpu_training();
    world.turn(&Assignment::Profile(assigned(&spec, EXPLICIT, 1)), cut);
    world.settle(&spec);
    assert_eq!(world.taints().len(), 2);
    // The same while keys are taken away.
    world.generation = 2;
    let bare = NodeProfileSpec::default();
    world.turn(&Assignment::Profile(assigned(&bare, EXPLICIT, 2)), cut);
    world.settle(&bare);
    assert_eq!(world.label("workload.vcluster.com/class"), None);
    assert_eq!(world.memory.applied.as_ref().unwrap().labels, [""; 0]);
    assert_eq!(world.told, []);
}

proptest! {
    #[test]
    fn any_sequence_of_edits_and_crashes_settles_and_keeps_what_is_foreign(
        steps in proptest::collection::vec((0u8..16, 0u8..3, any::<bool>()), 1..12),
    ) {
        let mut world = World::new();
        world.set_label("foreign", "stays");
        world.set_taints(&[taint("other-controller", "x")]);
        let mut last = NodeProfileSpec::default();
        for (generation, (bits, cut, ready)) in steps.iter().enumerate() {
            last = NodeProfileSpec::default();
            for bit in 0..4 {
                if bits >> bit & 1 == 1 {
                    last.node_labels.insert(format!("l{bit}"), format!("v{}", generation % 3));
                    last.taints.push(taint(&format!("t{bit}"), &format!("v{}", generation % 2)));
                    last.startup_taints.push(taint(&format!("s{bit}"), ""));
                }
            }
            world.ready(*ready);
            world.generation = i64::try_from(generation).unwrap();
            let cut = [Cut::Never, Cut::AfterIntent, Cut::AfterPatch][usize::from(*cut)];
            world.turn(&Assignment::Profile(assigned(&last, EXPLICIT, world.generation)), cut);
        }
        world.ready(true);
        world.profile(&last, EXPLICIT);
        prop_assert_eq!(world.profile(&last, EXPLICIT), Turn::default());
        let mut labels = last.node_labels.clone();
        labels.extend(map(&[("foreign", "stays"), ("workload", "gpu")]));
        labels.extend(map(&[(names::NODE_PROFILE, "gpu-training"), (names::NODE_PROFILE_PROMOTED, "gpu-training")]));
        prop_assert_eq!(world.node.metadata.labels.clone().unwrap(), labels);
        let mut taints: Vec<String> = last.taints.iter().map(|t| format!("{}={}:NoSchedule", t.key, t.value.clone().unwrap())).collect();
        taints.push("other-controller=x:NoSchedule".into());
        taints.sort();
        let mut have = world.taints();
        have.sort();
        prop_assert_eq!(have, taints);
    }
}
