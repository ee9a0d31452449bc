//! Keys that nobody but the host and Kubernetes itself may put on a node.
//!
//! A key is protected because something trusts it: NodeRestriction, the host's own bookkeeping, or a part of Kubernetes that reads
//! meaning into it. Pools, claims, type properties and profiles are all checked by path before anything is made of them.

use std::collections::BTreeSet;

use hostler_api::{NodeClaimSpec, NodeProfileSpec, names};
use k8s_openapi::api::core::v1::Taint;

use crate::seams::Reason;
use crate::values::{Problem, syntax};

/// Code of a refusal.
pub const CODE: &str = "ProtectedKey";

/// Labels of `kubernetes.io` that say what a machine is and may be set by whoever describes it.
const KNOWN_LABELS: [&str; 5] = [
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// The one taint of `kubernetes.io` that people set by hand.
const KNOWN_TAINTS: [&str; 1] = ["node.kubernetes.io/out-of-service"];

/// Why a key is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protected(String);

impl Protected {
    /// The refusal at a place.
    #[must_use]
    pub fn at(self, path: &str) -> Problem {
        Problem {
            path: path.to_owned(),
            code: CODE,
            message: self.0,
        }
    }
}

/// A label key of a node.
#[must_use]
pub fn label(key: &str) -> Option<Protected> {
    if key == names::NODE_PROFILE {
        return Some(Protected(format!(
            "{key} is set by the host from the profile that it assigned; use `profile` to ask for one"
        )));
    }
    ours(key).or_else(|| kubernetes(key, &KNOWN_LABELS))
}

/// An annotation key of a node.
#[must_use]
pub fn annotation(key: &str) -> Option<Protected> {
    if key == names::NODE_PROFILE {
        return label(key);
    }
    ours(key).or_else(|| kubernetes(key, &[]))
}

/// A taint key of a node.
#[must_use]
pub fn taint(key: &str) -> Option<Protected> {
    ours(key).or_else(|| kubernetes(key, &KNOWN_TAINTS))
}

/// A property key of a pool, a claim or a node type; properties of a type become labels.
#[must_use]
pub fn property(key: &str) -> Option<Protected> {
    label(key)
}

/// Refuses a protected property key at a place.
///
/// # Errors
/// `ProtectedKey` with the path.
pub fn check_property(path: &str, key: &str) -> Result<(), Reason> {
    match property(key) {
        Some(why) => Err(Reason::new(CODE, why.at(&format!("{path}[{key:?}]")).to_string())),
        None => Ok(()),
    }
}

fn ours(key: &str) -> Option<Protected> {
    let prefix = key.split_once('/')?.0;
    let ours = prefix == "hostler.dev" || prefix.ends_with(".hostler.dev");
    ours.then(|| {
        Protected(format!(
            "{key} belongs to the host's own bookkeeping; use a key of your own domain"
        ))
    })
}

fn kubernetes(key: &str, known: &[&str]) -> Option<Protected> {
    let prefix = key.split_once('/')?.0;
    let theirs = ["kubernetes.io", "k8s.io"].iter().any(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    (theirs && !known.contains(&key)).then(|| {
        Protected(format!(
            "{key} is a key of Kubernetes that may not be set here; use a key of your own domain"
        ))
    })
}

/// What is wrong with one label.
pub(crate) fn label_problem(path: &str, key: &str, value: &str) -> Option<Problem> {
    syntax::key(key)
        .and_then(|()| syntax::label_value(value))
        .err()
        .map(|message| Problem::new(path, message))
        .or_else(|| label(key).map(|why| why.at(path)))
}

/// What is wrong with a list of taints.
pub(crate) fn taint_problems(path: &str, taints: &[Taint]) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for (index, one) in taints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Err(message) = syntax::key(&one.key) {
            problems.push(Problem::new(format!("{path}.key"), message));
        } else if let Some(why) = taint(&one.key) {
            problems.push(why.at(&format!("{path}.key")));
        }
        if let Err(message) = syntax::effect(&one.effect) {
            problems.push(Problem::new(format!("{path}.effect"), message));
        }
        if let Err(message) = syntax::label_value(one.value.as_deref().unwrap_or_default()) {
            problems.push(Problem::new(format!("{path}.value"), message));
        }
        if !seen.insert((&one.key, &one.effect)) {
            let message = format!(
                "{}:{} stands there twice; a node has one taint for a key and effect",
                one.key, one.effect
            );
            problems.push(Problem::new(path, message));
        }
    }
    problems
}

/// What is wrong with a profile's labels, annotations and taints.
#[must_use]
pub fn in_profile(spec: &NodeProfileSpec) -> Vec<Problem> {
    let mut problems: Vec<Problem> = spec
        .node_labels
        .iter()
        .filter_map(|(key, value)| label_problem(&format!("spec.nodeLabels[{key:?}]"), key, value))
        .collect();
    for key in spec.node_annotations.keys() {
        let path = format!("spec.nodeAnnotations[{key:?}]");
        // The name part of an annotation key may have upper case; so may a label's.
        match syntax::key(key) {
            Err(message) => problems.push(Problem::new(path, message)),
            Ok(()) => problems.extend(annotation(key).map(|why| why.at(&path))),
        }
    }
    problems.extend(taint_problems("spec.taints", &spec.taints));
    problems.extend(taint_problems("spec.startupTaints", &spec.startup_taints));
    problems
}

/// What is wrong with a claim's labels, taints and property keys.
#[must_use]
pub fn in_claim(spec: &NodeClaimSpec) -> Vec<Problem> {
    let mut problems: Vec<Problem> = spec
        .node_labels
        .iter()
        .filter_map(|(key, value)| label_problem(&format!("spec.nodeLabels[{key:?}]"), key, value))
        .collect();
    problems.extend(taint_problems("spec.taints", &spec.taints));
    problems.extend(taint_problems("spec.startupTaints", &spec.startup_taints));
    problems.extend(
        spec.properties
            .keys()
            .filter_map(|key| Some(property(key)?.at(&format!("spec.properties[{key:?}]")))),
    );
    problems
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("workload.vcluster.com/class", false)]
    #[case("run.ai/simulated-gpu-node-pool", false)]
    #[case("workload", false)]
    #[case("kubernetes.io", false)]
    #[case("notkubernetes.io/a", false)]
    #[case("topology.kubernetes.io/zone", false)]
    #[case("node-restriction.kubernetes.io/node-profile", true)]
    #[case("a.node-restriction.kubernetes.io/b", true)]
    #[case("vcluster.com/node-profile", true)]
    #[case("profile.hostler.dev/owned-labels", true)]
    #[case("hostler.dev/claim-uid", true)]
    #[case("node-role.kubernetes.io/control-plane", true)]
    #[case("kubernetes.io/hostname", true)]
    #[case("k8s.io/a", true)]
    #[case("x.k8s.io/a", true)]
    fn labels(#[case] key: &str, #[case] refused: bool) {
        assert_eq!(label(key).is_some(), refused, "{key}");
    }

    #[test]
    fn every_place_of_a_profile_is_checked_by_path() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.into(),
            effect: effect.into(),
            ..Taint::default()
        };
        let spec = NodeProfileSpec {
            node_labels: [
                ("node-restriction.kubernetes.io/x".into(), "y".into()),
                ("ok".into(), "not ok".into()),
            ]
            .into(),
            node_annotations: [("profile.hostler.dev/owned-taints".into(), "[]".into())].into(),
            taints: vec![
                taint("a", "NoSchedule"),
                taint("a", "NoSchedule"),
                taint("b", "Never"),
            ],
            startup_taints: vec![taint("node.kubernetes.io/not-ready", "NoSchedule")],
            ..NodeProfileSpec::default()
        };
        let paths: Vec<String> = in_profile(&spec)
            .into_iter()
            .map(|problem| problem.path)
            .collect();
        assert_eq!(
            paths,
            [
                "spec.nodeLabels[\"node-restriction.kubernetes.io/x\"]",
                "spec.nodeLabels[\"ok\"]",
                "spec.nodeAnnotations[\"profile.hostler.dev/owned-taints\"]",
                "spec.taints[1]",
                "spec.taints[2].effect",
                "spec.startupTaints[0].key",
            ]
        );
    }
}
