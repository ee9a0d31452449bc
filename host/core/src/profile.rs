//! What a node's profile makes of its Node: one turn, from what was seen to at most one patch.
//!
//! # Guarantees
//! Only keys that the Enrollment records as applied are ever taken away. Keys are recorded before the Node is written and forgotten
//! after, so a crash between the two loses no ownership. A node in the right state gives a turn that writes nothing. A startup taint
//! that was removed never comes back. Claims of the node about itself (its labels and annotations) decide nothing.

mod contest;
mod keys;
mod marks;
mod taints;

use hostler_api::claim::ProfileChoice;
use hostler_api::conditions::{self, Fact};
use hostler_api::enrollment::{Applied, JoinedWith, ProfileVersion};
use hostler_api::{EnrollmentStatus, NodeClaimSpec, NodeProfileSpec};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

pub use contest::Contest;

use crate::protected;
use crate::seams::{Candidate, Reason};

/// Source of a profile that a pool, a claim or a join command names.
pub const EXPLICIT: &str = "explicit";
/// Source of a profile that the tenant's values name.
pub const TENANT_DEFAULT: &str = "tenant-default";
/// Source of a profile that the project names.
pub const PROJECT_DEFAULT: &str = "project-default";

/// Condition of an Enrollment: the node is as its profile says.
pub const IN_SYNC: &str = "InSync";
/// Condition of an Enrollment: somebody keeps undoing what the host does.
pub const CONTESTED: &str = "Contested";
/// Startup taints are to be written with the next patch of the Node.
pub(crate) const APPLYING: &str = "applying";
/// Startup taints stand, or would if nobody had removed them.
pub(crate) const APPLIED: &str = "applied";
/// Startup taints are over for this machine.
pub(crate) const REMOVED: &str = "removed";

/// Profiles that a node might get, most explicit first. Empty names are none.
#[must_use]
pub fn candidates(
    explicit: Option<&str>,
    tenant: Option<&str>,
    project: Option<&str>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Candidate> {
    [
        (EXPLICIT, explicit),
        (TENANT_DEFAULT, tenant),
        (PROJECT_DEFAULT, project),
    ]
    .into_iter()
    .filter_map(|(source, name)| Some((source, name.filter(|name| !name.is_empty())?)))
    .map(|(source, name)| Candidate {
        source: source.to_owned(),
        profile: name.to_owned(),
        exists: exists(name),
    })
    .collect()
}

/// What resolves for a node now.
#[derive(Clone, Debug)]
pub enum Assignment<'a> {
    /// This profile, allowed.
    Profile(Assigned<'a>),
    /// Nobody names one.
    Nothing,
    /// The one that it had is deleted or no longer allowed.
    Revoked(Reason),
    /// It cannot be told now: the node keeps what it has.
    Unknown,
}

/// A profile that a node has.
#[derive(Clone, Debug)]
pub struct Assigned<'a> {
    /// Which, and by whose choice.
    pub choice: ProfileChoice,
    /// The object as it was read.
    pub version: ProfileVersion,
    /// What it says.
    pub spec: &'a NodeProfileSpec,
}

/// Everything that a turn looks at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The Node.
    pub node: &'a Node,
    /// What the host remembers of it.
    pub memory: &'a EnrollmentStatus,
    /// The claim that ordered it, for what it gives at the join.
    pub claim: Option<&'a NodeClaimSpec>,
    /// What resolves for it.
    pub assignment: &'a Assignment<'a>,
    /// Whether somebody keeps undoing what the host does: then nothing is patched.
    pub contested: bool,
    /// Now.
    pub now: Timestamp,
}

/// Something that somebody should hear of, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// One CamelCase word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// What to do, in this order: write the intent, patch the Node, write the outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Memory to write before the patch, where it differs from what there is.
    pub intent: Option<EnrollmentStatus>,
    /// Merge patch of the Node, to be sent with its resourceVersion.
    pub patch: Option<Value>,
    /// Memory to write after the patch, where it differs from what then is there.
    pub outcome: Option<EnrollmentStatus>,
    /// What to tell.
    pub told: Vec<Told>,
    /// How many keys somebody had changed back.
    pub corrections: usize,
}

/// The part of a turn that its steps share.
pub(crate) struct Work<'a> {
    node: &'a Node,
    memory: &'a EnrollmentStatus,
    /// What was applied to this very Node; empty on one that is seen for the first time.
    applied: Applied,
    /// Whether this Node is seen for the first time.
    fresh: bool,
    /// Whether another Node stood for this machine before.
    registered_anew: bool,
    /// Whether the last change of this very profile was carried through: then what differs was changed by somebody else.
    settled: bool,
    joined: JoinedWith,
    assignment: &'a Assignment<'a>,
    ready: bool,
    told: Vec<Told>,
    corrections: usize,
    clashes: Vec<String>,
}

impl Work<'_> {
    fn spec(&self) -> Option<&NodeProfileSpec> {
        match self.assignment {
            Assignment::Profile(assigned) => Some(assigned.spec),
            Assignment::Nothing | Assignment::Revoked(_) | Assignment::Unknown => None,
        }
    }

    /// Notes that the profile's value met another's; told the first time.
    fn clash(&mut self, kind: &str, key: &str, theirs: &str, ours: &str) {
        let mark = format!("{kind}:{key}");
        if self.clashes.contains(&mark) {
            return;
        }
        self.clashes.push(mark);
        let profile = self.profile_name().unwrap_or_default().to_owned();
        self.told.push(Told {
            reason: "ProfileClash",
            message: format!("{kind} {key} was {theirs:?}; profile {profile} says {ours:?} and wins"),
        });
    }

    fn profile_name(&self) -> Option<&str> {
        match self.assignment {
            Assignment::Profile(assigned) => assigned.choice.name.as_deref(),
            Assignment::Unknown => self
                .memory
                .profile
                .as_ref()
                .and_then(|choice| choice.name.as_deref()),
            Assignment::Nothing | Assignment::Revoked(_) => None,
        }
    }
}

/// One turn for one node.
#[must_use]
pub fn next(view: &View<'_>) -> Turn {
    let mut work = work(view);
    let labels = keys::labels(&mut work);
    let annotations = keys::annotations(&mut work);
    let taints = taints::taints(&mut work);
    // On the Node the word stands together with the taints; only the memory knows of a write that is under way.
    let startup = taints.startup.map(|state| {
        if state == APPLYING {
            APPLIED.to_owned()
        } else {
            state
        }
    });
    let adds_startup = startup.as_deref() == Some(APPLIED) && taints.adds_startup;
    let done = Applied {
        node_uid: view.node.metadata.uid.clone(),
        profile: match view.assignment {
            Assignment::Unknown => work.applied.profile.clone(),
            _ => version(view.assignment),
        },
        labels: labels.owned,
        annotations: annotations.owned,
        taints: taints.owned,
        startup_taints: taints.startup_owned,
    };
    let mut annotation_patch = annotations.patch;
    annotation_patch.extend(marks::patch(&mut work, &done, startup.as_deref()));
    let patch = patch(labels.patch, annotation_patch, taints.patch);

    let mut outcome = remembered(view, &work);
    outcome.startup_taints = startup;
    if work.ready && outcome.first_ready.is_none() {
        outcome.first_ready = Some(Time(view.now));
    }
    let intent = intent(view, &work, &outcome, &done, patch.is_some(), adds_startup);
    // Until the profile can be told, a new Node stays new: all that it joined with is then still the host's.
    if !(work.fresh && matches!(view.assignment, Assignment::Unknown)) {
        outcome.applied = Some(done);
    }
    sync(&mut outcome, view);
    let told = std::mem::take(&mut work.told);
    if view.contested && patch.is_some() {
        return Turn {
            outcome: contested(view),
            ..Turn::default()
        };
    }
    let before = intent.as_ref().unwrap_or(view.memory);
    Turn {
        outcome: (outcome != *before).then_some(outcome),
        intent,
        patch,
        told,
        corrections: work.corrections,
    }
}

fn work<'a>(view: &View<'a>) -> Work<'a> {
    let uid = view.node.metadata.uid.as_deref();
    let recorded = view.memory.applied.clone().unwrap_or_default();
    let fresh = recorded.node_uid.as_deref() != uid || uid.is_none();
    let applied = if fresh {
        // Of an earlier Node only the startup taints matter: they are stripped if the kubelet brings them back.
        Applied {
            startup_taints: recorded.startup_taints,
            ..Applied::default()
        }
    } else {
        recorded
    };
    let now = version(view.assignment);
    Work {
        node: view.node,
        memory: view.memory,
        fresh,
        registered_anew: fresh
            && view
                .memory
                .applied
                .as_ref()
                .is_some_and(|applied| applied.node_uid.is_some()),
        settled: !fresh && applied.profile.is_some() && applied.profile == now,
        applied,
        joined: view
            .memory
            .joined
            .clone()
            .unwrap_or_else(|| joined_with(view.claim)),
        assignment: view.assignment,
        ready: is_ready(view.node),
        told: Vec::new(),
        corrections: 0,
        clashes: if fresh || changed_profile(view) {
            Vec::new()
        } else {
            view.memory.clashes.clone()
        },
    }
}

fn changed_profile(view: &View<'_>) -> bool {
    match view.assignment {
        Assignment::Profile(assigned) => {
            view.memory
                .profile
                .as_ref()
                .and_then(|choice| choice.name.as_ref())
                != assigned.choice.name.as_ref()
        }
        Assignment::Nothing | Assignment::Revoked(_) => true,
        Assignment::Unknown => false,
    }
}

/// What a claim gives its node; a key that was protected after the claim was accepted stays out.
fn joined_with(claim: Option<&NodeClaimSpec>) -> JoinedWith {
    let Some(claim) = claim else {
        return JoinedWith::default();
    };
    let allowed = |taint: &&k8s_openapi::api::core::v1::Taint| protected::taint(&taint.key).is_none();
    JoinedWith {
        labels: claim
            .node_labels
            .iter()
            .filter(|(key, value)| protected::label_problem("", key, value).is_none())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        taints: claim.taints.iter().filter(allowed).cloned().collect(),
        startup_taints: claim.startup_taints.iter().filter(allowed).cloned().collect(),
    }
}

fn version(assignment: &Assignment<'_>) -> Option<ProfileVersion> {
    match assignment {
        Assignment::Profile(assigned) => Some(assigned.version.clone()),
        Assignment::Nothing | Assignment::Revoked(_) | Assignment::Unknown => None,
    }
}

/// Whether the Node says that it is Ready.
#[must_use]
pub fn is_ready(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn patch(
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    taints: Option<Value>,
) -> Option<Value> {
    let mut patch = json!({});
    if !labels.is_empty() {
        patch["metadata"]["labels"] = Value::Object(labels);
    }
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(annotations);
    }
    if let Some(taints) = taints {
        patch["spec"]["taints"] = taints;
    }
    patch
        .as_object()
        .is_some_and(|fields| !fields.is_empty())
        .then_some(patch)
}

/// The memory with what every turn knows already.
fn remembered(view: &View<'_>, work: &Work<'_>) -> EnrollmentStatus {
    let mut memory = view.memory.clone();
    memory.node_uid.clone_from(&view.node.metadata.uid);
    memory.joined = Some(work.joined.clone());
    memory.clashes.clone_from(&work.clashes);
    match view.assignment {
        Assignment::Profile(assigned) => memory.profile = Some(assigned.choice.clone()),
        Assignment::Nothing => memory.profile = None,
        // Which one was revoked stays on record: else the next turn would find nothing named, and take the taints too.
        Assignment::Revoked(_) | Assignment::Unknown => {}
    }
    memory
}

/// What must be on record before the Node is written: every key that will stand then, beside those that may still stand now.
fn intent(
    view: &View<'_>,
    work: &Work<'_>,
    outcome: &EnrollmentStatus,
    done: &Applied,
    writes: bool,
    adds_startup: bool,
) -> Option<EnrollmentStatus> {
    if !writes {
        return None;
    }
    let both = |before: &[String], after: &[String]| -> Vec<String> {
        let mut all = [before, after].concat();
        all.sort();
        all.dedup();
        all
    };
    let known = Applied {
        node_uid: done.node_uid.clone(),
        profile: None,
        labels: both(&work.applied.labels, &done.labels),
        annotations: both(&work.applied.annotations, &done.annotations),
        taints: both(&work.applied.taints, &done.taints),
        startup_taints: both(&work.applied.startup_taints, &done.startup_taints),
    };
    let covered = view.memory.applied.as_ref().is_some_and(|recorded| {
        let within = |after: &[String], before: &[String]| after.iter().all(|key| before.contains(key));
        !work.fresh
            && within(&known.labels, &recorded.labels)
            && within(&known.annotations, &recorded.annotations)
            && within(&known.taints, &recorded.taints)
            && within(&known.startup_taints, &recorded.startup_taints)
    });
    let state = if adds_startup {
        Some(APPLYING.to_owned())
    } else {
        outcome.startup_taints.clone()
    };
    let starts = outcome.startup_taints.as_deref() == Some(APPLIED) && view.memory.startup_taints != state;
    if covered && !starts && view.memory.joined.is_some() {
        return None;
    }
    let mut intent = view.memory.clone();
    intent.node_uid.clone_from(&outcome.node_uid);
    intent.joined.clone_from(&outcome.joined);
    if !(work.fresh && matches!(view.assignment, Assignment::Unknown)) {
        intent.applied = Some(known);
    }
    if starts {
        intent.startup_taints = state;
    }
    Some(intent)
}

fn sync(outcome: &mut EnrollmentStatus, view: &View<'_>) {
    let text;
    let fact = match view.assignment {
        Assignment::Profile(assigned) => {
            text = format!(
                "as profile {} says",
                assigned.choice.name.as_deref().unwrap_or_default()
            );
            Fact::yes(IN_SYNC, IN_SYNC, &text)
        }
        Assignment::Nothing => Fact::yes(IN_SYNC, "NoProfile", "no profile is named for this node"),
        Assignment::Revoked(reason) => {
            text = format!(
                "{}; owned taints stay until another profile resolves or an operator removes them",
                reason.text()
            );
            Fact::no(IN_SYNC, &reason.code, &text)
        }
        Assignment::Unknown => return,
    };
    conditions::set(&mut outcome.conditions, &fact, None, view.now);
    if conditions::find(&outcome.conditions, CONTESTED).is_some() && !view.contested {
        conditions::set(
            &mut outcome.conditions,
            &Fact::not_yet(CONTESTED, "Settled", ""),
            None,
            view.now,
        );
    }
}

fn contested(view: &View<'_>) -> Option<EnrollmentStatus> {
    let mut memory = view.memory.clone();
    let message = "something keeps changing keys of this node that its profile sets; the host waits longer between its corrections";
    conditions::set(
        &mut memory.conditions,
        &Fact::yes(CONTESTED, CONTESTED, message),
        None,
        view.now,
    )
    .then_some(memory)
}

#[cfg(test)]
mod tests;
