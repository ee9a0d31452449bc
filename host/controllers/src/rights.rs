//! What the host may do with the APIs that it speaks to, right by right, each with the reason why it is there.
//!
//! The manifests, the chart, the table in `docs/install.md` and the tests that hold the audit log against them are all made from
//! these lists; nothing is granted that does not stand here.

mod tenant;

pub use tenant::tenant;

use hostler_api as api;
use hostler_core::grant::KindGrant;
use hostler_core::seams::Access;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Resource;

/// Name of the Lease that replicas take turns by, unless configured.
pub const LEASE: &str = "hostler";

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Where it holds.
    pub reach: Reach,
    /// API group; empty for the core one.
    pub group: String,
    /// Plural, with the subresource after a slash.
    pub resource: String,
    /// Names of the only objects that it holds for; empty for all.
    pub names: Vec<String>,
    /// Verbs.
    pub verbs: Vec<String>,
    /// What the host does with it, for people.
    pub why: String,
}

/// Where a right holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// In all namespaces, and for kinds that have none.
    Everywhere,
    /// In the namespace that the host itself runs in.
    Home,
    /// In this namespace.
    Namespace(String),
}

impl Right {
    /// A right on a kind; `subresource` is empty for the object itself.
    #[must_use]
    pub fn on<K>(subresource: &str, verbs: &[&str], why: &str) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        let plural = K::plural(&());
        let resource = match subresource {
            "" => plural.into_owned(),
            subresource => format!("{plural}/{subresource}"),
        };
        Self {
            reach: Reach::Everywhere,
            group: K::group(&()).into_owned(),
            resource,
            names: Vec::new(),
            verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
            why: why.to_owned(),
        }
    }

    /// The same in one place only.
    #[must_use]
    pub fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// The same on objects of these names only.
    #[must_use]
    pub fn named(self, names: &[&str]) -> Self {
        Self {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            ..self
        }
    }
}

/// What the host does on the platform whatever its providers are.
#[must_use]
pub fn platform() -> Vec<Right> {
    let mut rights = cluster_wide();
    rights.extend(namespaced());
    rights.extend(memory());
    rights
}

/// Kinds of the whole cluster.
fn cluster_wide() -> Vec<Right> {
    vec![
        Right::on::<Namespace>(
            "",
            &["list", "watch", "create", "delete"],
            "each Project and each tenant has a namespace of its own; only those that the host made are deleted",
        ),
        Right::on::<Namespace>(
            "",
            &["get"],
            "what tells the platform from a tenant is the uid of `kube-system`; live reads before a namespace is taken or let go",
        ),
        Right::on::<Namespace>(
            "",
            &["patch"],
            "a namespace `p-<project>` that was made by hand is marked for its Project, and the mark taken off after it",
        ),
        Right::on::<api::Project>(
            "",
            &["list", "watch", "patch"],
            "the finalizer that keeps a Project until its namespace is gone",
        ),
        Right::on::<api::Project>("status", &["update"], "conditions"),
        Right::on::<api::NodeProvider>(
            "",
            &["list", "watch", "patch"],
            "the finalizer that keeps a provider while machines are on loan",
        ),
        Right::on::<api::NodeProvider>("status", &["update"], "conditions"),
        Right::on::<api::NodeType>(
            "",
            &["list", "watch", "create", "update", "delete"],
            "types are made from what providers' drivers describe",
        ),
        Right::on::<api::NodeType>("status", &["update"], "capacity, cost and conditions"),
        Right::on::<api::NodeProfile>("", &["list", "watch"], "profiles are carried out on nodes"),
        Right::on::<api::NodeProfile>("status", &["update"], "how many nodes are in step, and clashes"),
        Right::on::<api::OSImage>("", &["list", "watch"], "images that claims name"),
        Right::on::<api::SSHKey>("", &["list", "watch"], "keys that claims name"),
    ]
}

/// Kinds that people write in the namespaces of their projects.
fn namespaced() -> Vec<Right> {
    vec![
        Right::on::<api::VirtualClusterInstance>(
            "",
            &["get", "list", "watch", "patch"],
            "the finalizer that keeps a tenant until its machines are back; a live read before claims are made for it",
        ),
        Right::on::<api::VirtualClusterInstance>("status", &["update"], "conditions, phase, how to join"),
        Right::on::<api::NodeClaim>(
            "",
            &["get", "list", "watch", "create", "patch", "delete"],
            "pools make and remove claims; the finalizer that keeps a claim until its machine is back; live reads before a machine is taken",
        ),
        Right::on::<api::NodeClaim>(
            "status",
            &["update"],
            "which machine a claim was given, and all that follows",
        ),
        Right::on::<api::NodeEnvironment>("", &["list", "watch"], "networks that claims name"),
    ]
}

/// What only the host writes, and what it says to people.
fn memory() -> Vec<Right> {
    vec![
        Right::on::<api::Enrollment>(
            "",
            &["get", "list", "watch", "create", "delete"],
            "the host's memory of each node: creating one reserves the node's name",
        ),
        Right::on::<api::Enrollment>("status", &["update", "patch"], "what was joined and applied"),
        Right::on::<api::Plugin>(
            "",
            &["list", "watch", "create", "delete"],
            "one object for each component that is loaded",
        ),
        Right::on::<api::Plugin>("status", &["update"], "digest, grant and health"),
        Right::on::<Secret>(
            "",
            &["list", "watch"],
            "kubeconfigs of tenants lie in namespaces whose names are not known before; boot Secrets of a claim are found by its uid wherever they are",
        ),
        Right::on::<Event>(
            "",
            &["create", "patch"],
            "every refusal, wait and override is told; repeated ones are counted up",
        ),
        Right::on::<Lease>("", &["create"], "one replica is active").within(Reach::Home),
        Right::on::<Lease>(
            "",
            &["get", "patch"],
            "one replica is active, and the others see for how long",
        )
        .within(Reach::Home)
        .named(&[LEASE]),
    ]
}

/// What the host does for a driver with a granted kind: one list for each granted namespace, or one for all of them.
///
/// `resource` is the plural of the kind. The host writes on behalf of the driver only where the grant lets it; see `core::scope`.
#[must_use]
pub fn provider(grant: &KindGrant, resource: &str) -> Vec<Right> {
    let group = grant
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    let kind = &grant.kind;
    let reading = format!("the inventory: what each {kind} is to its driver");
    let writing = match grant.access {
        Access::Read => None,
        Access::BorrowFields => Some((
            vec!["patch"],
            format!("a claim's {kind} is told what to become, and given back as it was"),
        )),
        Access::Manage => Some((
            vec!["create", "patch", "delete"],
            format!("a claim's own {kind} objects"),
        )),
    };
    let everywhere = grant.namespaces.iter().any(|namespace| namespace == "*");
    let reaches: Vec<Reach> = if everywhere {
        vec![Reach::Everywhere]
    } else {
        grant.namespaces.iter().cloned().map(Reach::Namespace).collect()
    };
    let mut rights = Vec::new();
    for reach in reaches {
        let right = |verbs: &[&str], why: &str| Right {
            reach: reach.clone(),
            group: group.clone(),
            resource: resource.to_owned(),
            names: Vec::new(),
            verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
            why: why.to_owned(),
        };
        rights.push(right(&["get", "list", "watch"], &reading));
        if let Some((verbs, why)) = &writing {
            rights.push(right(verbs, why));
            let boot = "the boot Secret of a claim, which its machine reads";
            rights.push(Right::on::<Secret>("", &["get", "create", "delete"], boot).within(reach.clone()));
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(access: Access, namespaces: &[&str]) -> KindGrant {
        KindGrant {
            api_version: "metal3.io/v1alpha1".to_owned(),
            kind: "BareMetalHost".to_owned(),
            access,
            namespaces: namespaces.iter().map(|&one| one.to_owned()).collect(),
            places: Vec::new(),
            service_account: None,
        }
    }

    #[test]
    fn nothing_is_granted_by_a_wildcard_or_without_a_reason() {
        let mut all = platform();
        all.extend(provider(&grant(Access::Manage, &["*"]), "baremetalhosts"));
        for right in all {
            let words = [&right.group, &right.resource].into_iter().chain(&right.verbs);
            assert!(words.clone().all(|word| !word.contains('*')), "{right:?}");
            assert!(!right.why.is_empty() && !right.verbs.is_empty(), "{right:?}");
        }
    }

    #[test]
    fn nothing_that_holds_the_cluster_is_granted() {
        for right in platform() {
            let never = [
                "rbac.authorization.k8s.io",
                "apiextensions.k8s.io",
                "admissionregistration.k8s.io",
            ];
            assert!(!never.contains(&right.group.as_str()), "{right:?}");
            assert!(
                !["pods", "serviceaccounts", "serviceaccounts/token", "nodes"]
                    .contains(&right.resource.as_str()),
                "{right:?}"
            );
        }
    }

    #[test]
    fn a_right_is_written_once() {
        let mut seen = std::collections::BTreeSet::new();
        for right in platform() {
            for verb in &right.verbs {
                let one = (right.group.clone(), right.resource.clone(), verb.clone());
                assert!(seen.insert(one), "{verb} of {right:?} is there twice");
            }
        }
    }

    #[test]
    fn a_provider_reaches_the_namespaces_of_its_grant_and_no_others() {
        let rights = provider(
            &grant(Access::BorrowFields, &["rack-1", "rack-2"]),
            "baremetalhosts",
        );
        let reaches: std::collections::BTreeSet<_> = rights.iter().map(|right| right.reach.clone()).collect();
        let wanted = ["rack-1", "rack-2"].map(|name| Reach::Namespace(name.to_owned()));
        assert_eq!(reaches, wanted.into());
        assert!(
            rights
                .iter()
                .any(|right| right.resource == "secrets" && right.verbs == ["get", "create", "delete"])
        );
    }

    #[test]
    fn who_only_reads_a_kind_writes_nothing_for_it() {
        let rights = provider(&grant(Access::Read, &["*"]), "baremetalhosts");
        assert_eq!(rights.len(), 1, "{rights:?}");
        assert_eq!(rights[0].verbs, ["get", "list", "watch"]);
        assert_eq!(rights[0].reach, Reach::Everywhere);
    }
}
