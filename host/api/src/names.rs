//! Labels, annotations, finalizers, field managers and property keys: every word on the wire, once.

/// Field manager of the host's server-side applies.
pub const FIELD_MANAGER: &str = "hostler";
/// Component name in events.
pub const REPORTER: &str = "hostler";

/// On a claim from before its machine is taken until nothing is held for it any more.
pub const CLAIM_FINALIZER: &str = "hostler.dev/release";
/// On a tenant from before its first claim until its last claim and its control plane are gone.
pub const TENANT_FINALIZER: &str = "hostler.dev/tenant";
/// On a project until its namespace is gone.
pub const PROJECT_FINALIZER: &str = "hostler.dev/project";
/// On a provider while a type, claim or hold names it.
pub const PROVIDER_FINALIZER: &str = "hostler.dev/in-use";

/// Record of a loan, on the borrowed object: see `core::loan`.
pub const LOAN: &str = "hostler.dev/loan";
/// uid of the claim, on everything that the host makes for it.
pub const CLAIM_UID: &str = "hostler.dev/claim-uid";
/// Name of the claim, for people.
pub const CLAIM_NAME: &str = "hostler.dev/claim";
/// uid of the tenant, on everything that the host makes for it (its claims, its namespace).
pub const TENANT_UID: &str = "hostler.dev/tenant-uid";
/// Pool of a claim.
pub const POOL: &str = "hostler.dev/pool";
/// On a claim of a pool: its slot and round, as `slot.round`.
pub const SLOT: &str = "hostler.dev/slot";
/// On a claim of a pool: how many before it failed in a row.
pub const ATTEMPT: &str = "hostler.dev/attempt";
/// On a tenant's own namespace: name of its control plane.
pub const VIRTUAL_CLUSTER: &str = "hostler.dev/virtual-cluster";
/// On a claim: the node type that the scheduler wrote to `spec.typeRef`, in the same write, and takes back with the place.
pub const CHOSEN_TYPE: &str = "hostler.dev/chosen-type";
/// Which installation of Hostler made an object.
pub const INSTALLATION: &str = "hostler.dev/installation";
/// On a provider: property keys, separated by commas, that tenants may set in pools and claims beyond the built-in ones.
pub const TENANT_PROPERTIES: &str = "hostler.dev/tenant-properties";
/// On a NodeType: uid of the provider that it was made from.
pub const PROVIDER_UID: &str = "hostler.dev/provider-uid";
/// On a namespace: the Project that it was made for.
pub const PROJECT: &str = "hostler.dev/project";

/// Profile of a node as the node or its join data claim it; not trusted.
pub const NODE_PROFILE: &str = "vcluster.com/node-profile";
/// Profile of a node as the host assigned it explicitly; protected by NodeRestriction.
pub const NODE_PROFILE_PROMOTED: &str = "node-restriction.kubernetes.io/node-profile";
/// Keys of `nodeLabels` that a node carries by its profile; a sorted JSON list.
pub const OWNED_LABELS: &str = "profile.hostler.dev/owned-labels";
/// Likewise for annotations.
pub const OWNED_ANNOTATIONS: &str = "profile.hostler.dev/owned-annotations";
/// Likewise for taints: `key:effect`.
pub const OWNED_TAINTS: &str = "profile.hostler.dev/owned-taints";
/// `applied` or `removed`.
pub const STARTUP_TAINTS: &str = "profile.hostler.dev/startup-taints";
/// The project's default profile, on a tenant.
pub const PROJECT_DEFAULT_PROFILE: &str = "vcluster.loft.sh/default-node-profile";

/// Label of a join token Secret.
pub const TOKEN: &str = "vcluster.loft.sh/token";
/// `worker` or `control-plane`.
pub const TOKEN_NODE_TYPE: &str = "vcluster.loft.sh/token-node-type";
/// Claim of a join token: its name …
pub const TOKEN_CLAIM_NAME: &str = "vcluster.loft.sh/node-claim-name";
/// … and its namespace.
pub const TOKEN_CLAIM_NAMESPACE: &str = "vcluster.loft.sh/node-claim-namespace";

/// Condition on a claim that makes it the first to go when its pool shrinks.
pub const PREFERRED_DELETION: &str = "PreferredDeletion";

/// Property that selects a node type, by short or full name.
pub const PROPERTY_NODE_TYPE: &str = "vcluster.com/node-type";
/// Property that names an OSImage.
pub const PROPERTY_OS_IMAGE: &str = "vcluster.com/os-image";
/// Property that names SSHKeys, separated by commas.
pub const PROPERTY_SSH_KEYS: &str = "vcluster.com/ssh-keys";
/// Property that names a NodeEnvironment.
pub const PROPERTY_ENVIRONMENT: &str = "vcluster.com/network-environment";
/// Property keys that anyone who may write a claim may set; the rest needs [`TENANT_PROPERTIES`].
pub const TENANT_KEYS: [&str; 3] = [PROPERTY_OS_IMAGE, PROPERTY_SSH_KEYS, PROPERTY_NODE_TYPE];

/// Name of the cluster that the host itself runs in, unless configured.
pub const PLATFORM_CLUSTER: &str = "loft-cluster";

/// Namespace of a Project.
#[must_use]
pub fn project_namespace(project: &str) -> String {
    format!("p-{project}")
}

/// Project of a namespace, by its name alone.
#[must_use]
pub fn project_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("p-").filter(|project| !project.is_empty())
}

/// Namespace of a tenant that names none itself.
#[must_use]
pub fn tenant_namespace(project: &str, tenant: &str) -> String {
    format!("loft-{project}-v-{tenant}")
}

/// Full name of a node type.
#[must_use]
pub fn node_type(provider: &str, short: &str) -> String {
    format!("{provider}.{short}")
}

/// Whether a full name is that of a type of this provider.
#[must_use]
pub fn is_type_of(full: &str, provider: &str) -> bool {
    full.strip_prefix(provider)
        .is_some_and(|rest| rest.starts_with('.'))
}
