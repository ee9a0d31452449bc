//! The Secret `vc-<name>` in the tenant's own namespace: a kubeconfig for its administrator.

use hostler_api as api;
use hostler_api::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};

use crate::control_plane::TenantPlace;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::patch::{self, Created};

/// Key of the kubeconfig.
const CONFIG: &str = "config";

/// Writes the Secret if it is not as it must be.
pub(super) async fn ensure(
    ctx: &Ctx,
    tenant: &api::VirtualClusterInstance,
    place: &TenantPlace,
    kubeconfig: &str,
) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &place.host_namespace);
    let name = format!("vc-{}", tenant.name_any());
    let wanted = ByteString(kubeconfig.as_bytes().to_vec());
    let found = patch::within(format!("reading Secret {name}"), secrets.get_opt(&name)).await?;
    let Some(mut known) = found else {
        let mut secret = Secret { data: Some([(CONFIG.to_owned(), wanted)].into()), ..Secret::default() };
        secret.metadata.name = Some(name.clone());
        secret.metadata.namespace = Some(place.host_namespace.clone());
        secret.labels_mut().insert(names::TENANT_UID.to_owned(), place.uid.clone());
        return match patch::create(&secrets, &secret).await? {
            Created::New(_) => Ok(()),
            Created::Exists => Err(Error::Busy(format!("Secret {name} appeared meanwhile"))),
        };
    };
    if known.data.as_ref().and_then(|data| data.get(CONFIG)) == Some(&wanted) {
        return Ok(());
    }
    known.data.get_or_insert_default().insert(CONFIG.to_owned(), wanted);
    known.labels_mut().insert(names::TENANT_UID.to_owned(), place.uid.clone());
    patch::replace(&secrets, &known).await?;
    Ok(())
}
