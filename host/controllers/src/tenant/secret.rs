//! The Secret `vc-<name>` in the tenant's own namespace: a kubeconfig for its administrator.

use hostler_api::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::control_plane::TenantPlace;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::patch::{self, Created};
use crate::watched::Watched;

/// Key of the kubeconfig.
const CONFIG: &str = "config";

/// Watches the Secrets that the host made for tenants.
pub(super) fn watch(ctx: &Ctx, stop: &CancellationToken) -> Watched<Secret> {
    let ours = watcher::Config::default().labels(names::TENANT_UID);
    Watched::start(Api::all(ctx.client.clone()), ours, (), stop.clone())
}

/// Writes the Secret if it is not as it must be.
pub(super) async fn ensure(
    ctx: &Ctx,
    seen: &Watched<Secret>,
    place: &TenantPlace,
    kubeconfig: &str,
) -> Result<()> {
    let name = format!("vc-{}", place.name);
    let wanted = ByteString(kubeconfig.as_bytes().to_vec());
    let is_right = |secret: &Secret| {
        secret.data.as_ref().and_then(|data| data.get(CONFIG)) == Some(&wanted)
            && secret.labels().get(names::TENANT_UID) == Some(&place.uid)
    };
    if seen
        .get(Some(&place.host_namespace), &name)
        .is_some_and(|known| is_right(&known))
    {
        return Ok(());
    }
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &place.host_namespace);
    let found = patch::within(format!("reading Secret {name}"), secrets.get_opt(&name)).await?;
    let Some(mut known) = found else {
        let mut secret = Secret {
            data: Some([(CONFIG.to_owned(), wanted)].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.clone());
        secret.metadata.namespace = Some(place.host_namespace.clone());
        secret
            .labels_mut()
            .insert(names::TENANT_UID.to_owned(), place.uid.clone());
        return match patch::create(&secrets, &secret).await? {
            Created::New(_) => Ok(()),
            Created::Exists => Err(Error::Busy(format!("Secret {name} appeared meanwhile"))),
        };
    };
    if is_right(&known) {
        return Ok(());
    }
    known
        .data
        .get_or_insert_default()
        .insert(CONFIG.to_owned(), wanted.clone());
    known
        .labels_mut()
        .insert(names::TENANT_UID.to_owned(), place.uid.clone());
    patch::replace(&secrets, &known).await?;
    Ok(())
}
