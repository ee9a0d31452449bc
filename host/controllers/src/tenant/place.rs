//! Where a tenant lives: one namespace, marked with its uid before anything is made in it, and with no other tenant's.

use hostler_api as api;
use hostler_api::names;
use hostler_core::seams::Reason;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};

use crate::control_plane::TenantPlace;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::patch::{self, Created};

/// Reason of a tenant that names the address of another's control plane.
pub(super) const ENDPOINT_TAKEN: &str = "EndpointTaken";

/// The place that a tenant names, if it may have it.
///
/// # Errors
/// `UnknownCluster`, `TenantRefTaken`, `TenantRefChanged`, `EndpointTaken`.
pub(super) fn find(
    ctx: &Ctx,
    tenant: &api::VirtualClusterInstance,
    project: &api::Project,
    endpoint: Option<String>,
) -> Result<TenantPlace, Reason> {
    let wanted = named(tenant, &project.name_any(), endpoint);
    let cluster = tenant
        .spec
        .cluster_ref
        .as_ref()
        .and_then(|named| named.cluster.as_deref());
    if let Some(cluster) =
        cluster.filter(|cluster| !cluster.is_empty() && *cluster != ctx.settings.cluster_name)
    {
        return Err(Reason::new(
            "UnknownCluster",
            format!("spec.clusterRef.cluster: {cluster} is not known here"),
        )
        .remedy(format!("name {}", ctx.settings.cluster_name)));
    }
    let field = "spec.clusterRef.namespace";
    let host = &wanted.host_namespace;
    if host.starts_with("kube-") || names::project_of(host).is_some() || host == "default" {
        return Err(taken(format!("{field}: {host} is not a namespace for tenants")));
    }
    if let Some(held) = marked(ctx, &wanted.uid) {
        let control_plane = held.annotations().get(names::VIRTUAL_CLUSTER);
        if held.name_any() != *host || control_plane.is_some_and(|known| *known != wanted.virtual_cluster) {
            let message = format!(
                "spec.clusterRef: the tenant lives in namespace {} since it was made",
                held.name_any()
            );
            return Err(Reason::new("TenantRefChanged", message)
                .remedy("set spec.clusterRef back; a tenant does not move"));
        }
    }
    if let Some(known) = ctx.stores.namespaces.get(None, host)
        && known.labels().get(names::TENANT_UID) != Some(&wanted.uid)
    {
        return Err(taken(format!("{field}: namespace {host} is in use")));
    }
    if let Some(endpoint) = &wanted.endpoint
        && earlier_has(ctx, tenant, endpoint)
    {
        return Err(Reason::new(
            ENDPOINT_TAKEN,
            format!("controlPlane.endpoint: {endpoint} is another control plane's"),
        )
        .remedy("choose another address in the values"));
    }
    Ok(wanted)
}

/// The same words whoever the holder is: one tenant learns nothing of another.
fn taken(message: String) -> Reason {
    Reason::new("TenantRefTaken", message).remedy("choose another namespace, or remove it if it is left over")
}

/// The place as the spec names it, unjudged.
pub(super) fn named(
    tenant: &api::VirtualClusterInstance,
    project: &str,
    endpoint: Option<String>,
) -> TenantPlace {
    let named = tenant.spec.cluster_ref.clone().unwrap_or_default();
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    let name = tenant.name_any();
    TenantPlace {
        uid: tenant.uid().unwrap_or_default(),
        project: project.to_owned(),
        namespace: tenant.namespace().unwrap_or_default(),
        host_namespace: set(named.namespace).unwrap_or_else(|| names::tenant_namespace(project, &name)),
        virtual_cluster: set(named.virtual_cluster).unwrap_or_else(|| name.clone()),
        name,
        endpoint,
    }
}

/// The namespace that is marked with a tenant's uid.
pub(super) fn marked(ctx: &Ctx, uid: &str) -> Option<std::sync::Arc<PartialObjectMeta<Namespace>>> {
    ctx.stores.namespaces.state().into_iter().find(|namespace| {
        namespace
            .labels()
            .get(names::TENANT_UID)
            .is_some_and(|known| known == uid)
    })
}

/// The tenant that lives in a namespace.
pub(super) fn tenant_in(ctx: &Ctx, namespace: &str) -> Option<std::sync::Arc<api::VirtualClusterInstance>> {
    let namespace = ctx.stores.namespaces.get(None, namespace)?;
    let uid = namespace.labels().get(names::TENANT_UID)?;
    ctx.stores
        .tenants
        .state()
        .into_iter()
        .find(|tenant| tenant.meta().uid.as_ref() == Some(uid))
}

/// Whether a change of a namespace concerns a tenant: it is marked as his, or he names it.
pub(super) fn is_about(ctx: &Ctx, namespace: &str, tenant: &api::VirtualClusterInstance) -> bool {
    let known = ctx.stores.namespaces.get(None, namespace);
    let marked = known
        .as_ref()
        .and_then(|known| known.labels().get(names::TENANT_UID));
    if marked.is_some() && marked == tenant.meta().uid.as_ref() {
        return true;
    }
    let own = tenant.namespace().unwrap_or_default();
    names::project_of(&own).is_some_and(|project| named(tenant, project, None).host_namespace == namespace)
}

/// Whether the place was taken before.
pub(super) fn is_held(ctx: &Ctx, place: &TenantPlace) -> bool {
    marked(ctx, &place.uid).is_some_and(|namespace| namespace.name_any() == place.host_namespace)
}

/// Takes the place: the namespace is created with the mark on it, never adopted.
pub(super) async fn hold(
    ctx: &Ctx,
    tenant: &api::VirtualClusterInstance,
    place: &TenantPlace,
) -> Result<Result<(), Reason>> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    if let Some(known) = ctx.stores.namespaces.get(None, &place.host_namespace) {
        return Ok(judge(known.as_ref(), place));
    }
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(place.host_namespace.clone());
    let labels = namespace.labels_mut();
    labels.insert(names::TENANT_UID.to_owned(), place.uid.clone());
    labels.insert(names::INSTALLATION.to_owned(), ctx.settings.installation.clone());
    namespace
        .annotations_mut()
        .insert(names::VIRTUAL_CLUSTER.to_owned(), place.virtual_cluster.clone());
    if let Created::New(_) = patch::create(&api, &namespace).await? {
        tracing::info!(
            tenant = tenant.name_any(),
            namespace = place.host_namespace,
            "made the tenant's namespace"
        );
        return Ok(Ok(()));
    }
    // The cache may be behind our own create; only a live read tells.
    let live = patch::within(
        format!("reading namespace {}", place.host_namespace),
        api.get(&place.host_namespace),
    )
    .await?;
    Ok(judge(&live, place))
}

fn judge(namespace: &impl Resource, place: &TenantPlace) -> Result<(), Reason> {
    if namespace.labels().get(names::TENANT_UID) != Some(&place.uid) {
        return Err(taken(format!(
            "spec.clusterRef.namespace: namespace {} is in use",
            place.host_namespace
        )));
    }
    if namespace.meta().deletion_timestamp.is_some() {
        let message = format!("namespace {} is being deleted", place.host_namespace);
        return Err(Reason::new("NamespaceTerminating", message)
            .remedy("wait until it is gone; it is made again then"));
    }
    Ok(())
}

/// Whether a tenant that came before names this endpoint: the first one keeps it.
fn earlier_has(ctx: &Ctx, tenant: &api::VirtualClusterInstance, endpoint: &str) -> bool {
    let age = |one: &api::VirtualClusterInstance| (one.creation_timestamp().map(|time| time.0), one.uid());
    let joined = |one: &api::VirtualClusterInstance| {
        one.status
            .as_ref()
            .and_then(|status| endpoint_of(status.join_address.as_deref()?))
            .as_deref()
            == Some(endpoint)
    };
    if joined(tenant) {
        return false;
    }
    ctx.stores.tenants.state().iter().any(|other| {
        if other.meta().uid == tenant.meta().uid {
            return false;
        }
        let wants = ctx
            .values
            .of(other)
            .as_ref()
            .as_ref()
            .is_ok_and(|values| values.endpoint.as_deref() == Some(endpoint));
        // Who joined machines there has it, whoever is older.
        joined(other) || (wants && age(other) < age(tenant))
    })
}

/// `host:port` of a join address.
pub(super) fn endpoint_of(join_address: &str) -> Option<String> {
    join_address
        .strip_prefix("https://")
        .map(|rest| rest.trim_end_matches('/').to_owned())
        .filter(|rest| !rest.is_empty())
}
