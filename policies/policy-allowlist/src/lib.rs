//! Allowlist policy: a project uses the node types and profiles that its Project allows, and holds no more claims than its quotas say.
//!
//! Every denial names the field of the Project that would have to change. Whatever cannot be known is a denial: a Project that was not
//! read, a count that was not taken, a quota that is no number.

mod allowlist;
mod facts;
mod quota;

use hostler_sdk::Reason;
use hostler_sdk::policy::{Interest, Policy, Request, Verdict};
use serde::Deserialize;

use crate::facts::{Facts, NodeType, Profile, Project};

/// The policy; see the module.
pub struct Allowlist;

/// It has none: a key in `[settings]` is a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Policy for Allowlist {
    type Settings = Settings;

    fn accepts(_: &Settings) -> Result<Vec<Interest>, Reason> {
        Ok(vec![
            Interest::in_kind("profile-assignment"),
            Interest::in_kind("claim").wanting("usage"),
            Interest::in_kind("type-choice"),
            Interest::in_kind("pool-change"),
        ])
    }

    fn review(_: &Settings, request: &Request) -> Verdict {
        match judge(request) {
            Ok(warnings) => Verdict {
                reasons: warnings,
                ..Verdict::allow()
            },
            Err(reasons) => Verdict {
                allowed: false,
                reasons,
                valid_for: None,
            },
        }
    }
}

/// Warnings, or reasons against.
fn judge(request: &Request) -> Result<Vec<Reason>, Vec<Reason>> {
    let facts = Facts::deserialize(&request.json).map_err(|error| {
        vec![Reason::new(
            "BadRequest",
            format!("the facts of this {} cannot be read: {error}", request.kind),
        )]
    })?;
    let Some(project) = &facts.project else {
        let place = facts
            .tenant
            .as_ref()
            .map_or("this request", |tenant| tenant.title());
        return Err(vec![
            Reason::new(
                "ProjectUnread",
                format!("the Project of {place} was not read, so nothing is allowed"),
            )
            .remedy("create the Project that the namespace belongs to, or wait until the host can read it"),
        ]);
    };
    let mut against = Vec::new();
    let mut warnings = Vec::new();
    match request.kind.as_str() {
        "profile-assignment" => {
            against.extend(
                facts
                    .profile
                    .as_ref()
                    .and_then(|profile| profile_denied(project, profile)),
            );
            warnings.extend(default_warning(project));
        }
        "type-choice" => match &facts.node_type {
            Some(kind) => against.extend(type_denied(project, kind)),
            None => against.push(Reason::new(
                "NoNodeType",
                "a type is to be chosen and none was named",
            )),
        },
        "claim" => {
            against.extend(
                facts
                    .profile
                    .as_ref()
                    .and_then(|profile| profile_denied(project, profile)),
            );
            match &facts.node_type {
                Some(kind) => against.extend(type_denied(project, kind)),
                None => against.extend(no_type_left(project, facts.provider())),
            }
            against.extend(quota::exceeded(&facts, project));
        }
        "pool-change" => {
            against.extend(
                facts
                    .profile
                    .as_ref()
                    .and_then(|profile| profile_denied(project, profile)),
            );
            against.extend(no_type_left(project, facts.provider()));
        }
        other => against.push(Reason::new(
            "UnknownRequest",
            format!("this policy does not judge requests of kind {other}"),
        )),
    }
    if against.is_empty() {
        Ok(warnings)
    } else {
        Err(against)
    }
}

fn profile_denied(project: &Project, profile: &Profile) -> Option<Reason> {
    let (list, name) = (project.spec.allowed_node_profiles.as_deref(), &profile.name);
    if allowlist::allows_profile(list, name) {
        return None;
    }
    let project = project.name();
    if profile.source == "project-default" {
        let what = if list.is_some_and(<[_]>::is_empty) {
            "stands beside an empty"
        } else {
            "is not in its"
        };
        let message =
            format!("Project {project}: spec.defaultNodeProfile {name} {what} spec.allowedNodeProfiles");
        return Some(Reason::new("ProfileNotAllowed", message).remedy(format!(
            "add {{name: {name}}} to Project {project} spec.allowedNodeProfiles, or change its spec.defaultNodeProfile"
        )));
    }
    let message = format!(
        "profile {name} ({}) is not allowed in Project {project}",
        profile.source
    );
    let remedy = format!("add {{name: {name}}} to Project {project} spec.allowedNodeProfiles");
    Some(Reason::new("ProfileNotAllowed", message).remedy(remedy))
}

/// A default that could never be used is worth a word even while nobody falls back on it.
fn default_warning(project: &Project) -> Option<Reason> {
    let name = project
        .spec
        .default_node_profile
        .as_deref()
        .filter(|name| !name.is_empty())?;
    let default = Profile {
        name: name.to_owned(),
        source: "project-default".to_owned(),
    };
    profile_denied(project, &default).map(|reason| Reason {
        code: "DefaultNotAllowed".to_owned(),
        ..reason
    })
}

fn type_denied(project: &Project, kind: &NodeType) -> Option<Reason> {
    if allowlist::allows_type(
        project.spec.allowed_node_types.as_deref(),
        &kind.provider,
        &kind.name,
    ) {
        return None;
    }
    let (project, full) = (project.name(), format!("{}.{}", kind.provider, kind.name));
    let message = format!("node type {full} is not allowed in Project {project}");
    let remedy = format!("add {{name: {full}}} to Project {project} spec.allowedNodeTypes");
    Some(Reason::new("TypeNotAllowed", message).remedy(remedy))
}

/// For what has no type yet: whether any type of the provider could be allowed at all.
fn no_type_left(project: &Project, provider: Option<&str>) -> Option<Reason> {
    let list = project.spec.allowed_node_types.as_deref()?;
    let left = match provider {
        Some(provider) => list
            .iter()
            .any(|entry| allowlist::names_provider(&entry.name, provider)),
        None => !list.is_empty(),
    };
    if left {
        return None;
    }
    let project = project.name();
    let (what, entry) = match provider {
        Some(provider) => (
            format!("no node type of provider {provider}"),
            format!("{provider}.*"),
        ),
        None => ("no node type".to_owned(), "<provider>.*".to_owned()),
    };
    let remedy = format!("add {{name: {entry}}} to Project {project} spec.allowedNodeTypes");
    Some(
        Reason::new(
            "TypeNotAllowed",
            format!("{what} is allowed in Project {project}"),
        )
        .remedy(remedy),
    )
}

hostler_sdk::export_policy!(Allowlist);
hostler_sdk::cases!(Allowlist);
