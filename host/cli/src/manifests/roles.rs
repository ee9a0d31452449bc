//! Rights as roles and their bindings: for all namespaces, for the host's own, and for each that an operator file names.

use std::collections::BTreeMap;

use hostler_controllers::rights::{self, Reach, Right};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::{Kind, Site};

const GROUP: &str = "rbac.authorization.k8s.io";
/// The order in which verbs are read; others come before them.
const ORDER: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// A role or a binding.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Rbac {
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    Role(Role),
    RoleBinding(RoleBinding),
}

/// Everything that the host may do on the platform.
pub(super) fn objects(site: &Site) -> Vec<Rbac> {
    let account = account(site);
    let mut objects = Vec::new();
    for (reach, rights) in by_reach(rights::platform()) {
        let namespace = match &reach {
            Reach::Everywhere => None,
            Reach::Home => Some(site.namespace.as_str()),
            Reach::Namespace(name) => Some(name.as_str()),
        };
        objects.extend(bound(&site.anywhere(""), namespace, rules(&rights), &account));
    }
    for kind in &site.kinds {
        objects.extend(of_kind(site, kind));
    }
    objects
}

/// What the host may do for a driver with one kind, under a name of its own, so that one sees what to take away with the driver.
pub(super) fn of_kind(site: &Site, kind: &Kind) -> Vec<Rbac> {
    let metadata = site.anywhere(&kind.suffix());
    by_reach(rights::provider(&kind.grant, &kind.resource))
        .into_iter()
        .flat_map(|(reach, rights)| {
            let namespace = match &reach {
                Reach::Everywhere => None,
                Reach::Home => Some(site.namespace.clone()),
                Reach::Namespace(name) => Some(name.clone()),
            };
            bound(&metadata, namespace.as_deref(), rules(&rights), &account(site))
        })
        .collect()
}

/// What a user may do in a tenant's API.
pub(super) fn of_tenant(user: &str) -> Vec<Rbac> {
    let subject = Subject {
        api_group: Some(GROUP.to_owned()),
        kind: "User".to_owned(),
        name: user.to_owned(),
        namespace: None,
    };
    let metadata = ObjectMeta {
        name: Some("hostler".to_owned()),
        ..ObjectMeta::default()
    };
    by_reach(rights::tenant())
        .into_iter()
        .flat_map(|(reach, rights)| {
            let namespace = match &reach {
                Reach::Everywhere | Reach::Home => None,
                Reach::Namespace(name) => Some(name.clone()),
            };
            bound(&metadata, namespace.as_deref(), rules(&rights), &subject)
        })
        .collect()
}

fn account(site: &Site) -> Subject {
    Subject {
        api_group: None,
        kind: "ServiceAccount".to_owned(),
        name: site.name.clone(),
        namespace: Some(site.namespace.clone()),
    }
}

fn by_reach(rights: Vec<Right>) -> BTreeMap<Reach, Vec<Right>> {
    let mut by_reach: BTreeMap<Reach, Vec<Right>> = BTreeMap::new();
    for right in rights {
        by_reach.entry(right.reach.clone()).or_default().push(right);
    }
    by_reach
}

/// One rule for all resources of a group that may be used alike: the same rights, shorter to read.
pub(super) fn rules(rights: &[Right]) -> Vec<PolicyRule> {
    // What is said of one resource in several places, with several reasons, is one list of verbs.
    let mut whole: Vec<Right> = Vec::new();
    for right in rights {
        let same = whole.iter_mut().find(|known| {
            known.group == right.group && known.resource == right.resource && known.names == right.names
        });
        match same {
            Some(known) => known.verbs.extend(right.verbs.clone()),
            None => whole.push(right.clone()),
        }
    }
    let mut rules: Vec<PolicyRule> = Vec::new();
    for mut right in whole {
        right
            .verbs
            .sort_by_key(|verb| ORDER.iter().position(|one| one == verb));
        right.verbs.dedup();
        let names = (!right.names.is_empty()).then_some(right.names);
        let groups = Some(vec![right.group]);
        let like = rules.iter_mut().find(|rule| {
            rule.api_groups == groups && rule.verbs == right.verbs && rule.resource_names == names
        });
        match like {
            Some(rule) => rule.resources.get_or_insert_default().push(right.resource),
            None => rules.push(PolicyRule {
                api_groups: groups,
                resources: Some(vec![right.resource]),
                resource_names: names,
                verbs: right.verbs,
                non_resource_urls: None,
            }),
        }
    }
    rules
}

/// A role and its binding: for one namespace, or for all.
fn bound(
    metadata: &ObjectMeta,
    namespace: Option<&str>,
    rules: Vec<PolicyRule>,
    subject: &Subject,
) -> [Rbac; 2] {
    let metadata = ObjectMeta {
        namespace: namespace.map(ToOwned::to_owned),
        ..metadata.clone()
    };
    let role_ref = |kind: &str| RoleRef {
        api_group: Some(GROUP.to_owned()),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    let subjects = Some(vec![subject.clone()]);
    if namespace.is_some() {
        return [
            Rbac::Role(Role {
                metadata: metadata.clone(),
                rules: Some(rules),
            }),
            Rbac::RoleBinding(RoleBinding {
                role_ref: role_ref("Role"),
                metadata,
                subjects,
            }),
        ];
    }
    [
        Rbac::ClusterRole(ClusterRole {
            metadata: metadata.clone(),
            rules: Some(rules),
            aggregation_rule: None,
        }),
        Rbac::ClusterRoleBinding(ClusterRoleBinding {
            role_ref: role_ref("ClusterRole"),
            metadata,
            subjects,
        }),
    ]
}
