//! Roles for people. What only the host writes (status, `Enrollments`, `Plugins`, `NodeTypes`) is in none of them.

use hostler_api as api;
use hostler_controllers::rights::Right;
use k8s_openapi::api::rbac::v1::ClusterRole;

use super::Site;
use super::roles::{Rbac, rules};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

/// The roles, unbound: whom they are for is for the site to say.
pub(super) fn objects(site: &Site) -> Vec<Rbac> {
    vec![
        role(
            site,
            "-view",
            &["view"],
            &[&of_projects(READ), &made_by_the_host(READ)]
                .map(Vec::as_slice)
                .concat(),
        ),
        role(site, "-edit", &["edit", "admin"], &of_projects(WRITE)),
        role(
            site,
            "-admin",
            &[],
            &[
                of_projects(READ),
                of_projects(WRITE),
                of_platform(READ),
                of_platform(WRITE),
                made_by_the_host(READ),
            ]
            .concat(),
        ),
    ]
}

/// A role that, for each of `aggregated`, is a part of the cluster's role of that name.
fn role(site: &Site, suffix: &str, aggregated: &[&str], rights: &[Right]) -> Rbac {
    let mut metadata = site.anywhere(suffix);
    let labels = metadata.labels.get_or_insert_default();
    for into in aggregated {
        labels.insert(
            format!("rbac.authorization.k8s.io/aggregate-to-{into}"),
            "true".to_owned(),
        );
    }
    Rbac::ClusterRole(ClusterRole {
        metadata,
        rules: Some(rules(rights)),
        aggregation_rule: None,
    })
}

/// What those write who order machines.
fn of_projects(verbs: &[&str]) -> Vec<Right> {
    vec![
        Right::on::<api::VirtualClusterInstance>("", verbs, "tenants"),
        Right::on::<api::NodeClaim>("", verbs, "machines beyond pools"),
        Right::on::<api::NodeEnvironment>("", verbs, "networks"),
    ]
}

/// What those write who keep the platform.
fn of_platform(verbs: &[&str]) -> Vec<Right> {
    vec![
        Right::on::<api::Project>("", verbs, "who may have what"),
        Right::on::<api::NodeProvider>("", verbs, "where machines come from"),
        Right::on::<api::NodeProfile>("", verbs, "what nodes become"),
        Right::on::<api::OSImage>("", verbs, "what is installed"),
        Right::on::<api::SSHKey>("", verbs, "who may enter"),
    ]
}

/// What everybody may look at and only the host writes.
fn made_by_the_host(verbs: &[&str]) -> Vec<Right> {
    vec![
        Right::on::<api::NodeType>("", verbs, "made from providers"),
        Right::on::<api::Enrollment>("", verbs, "the host's memory"),
        Right::on::<api::Plugin>("", verbs, "made from the plugin directory"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_nothing_that_only_the_host_may() {
        let site = super::super::tests::site();
        for object in objects(&site) {
            let Rbac::ClusterRole(role) = object else {
                panic!("{object:?}")
            };
            for rule in role.rules.unwrap() {
                if rule.verbs.iter().all(|verb| READ.contains(&verb.as_str())) {
                    continue;
                }
                for resource in rule.resources.unwrap() {
                    assert!(!resource.contains('/'), "{resource}");
                    assert!(
                        !["nodetypes", "enrollments", "plugins"].contains(&resource.as_str()),
                        "{resource}"
                    );
                }
            }
        }
    }
}
