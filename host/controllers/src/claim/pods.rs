//! Pods that are to leave a node before it goes.

use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};

use crate::control_plane::TenantApi;
use crate::error::{Error, Result};
use crate::patch;

/// A pod that is to leave.
pub(super) type Leaving = PartialObjectMeta<Pod>;

/// Whether a pod that runs holds up a drain: what belongs to the node itself does not.
pub(super) fn must_leave(pod: &Leaving) -> bool {
    let is_mirror = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod
        .owner_references()
        .iter()
        .any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    !is_mirror && !is_daemon
}

/// Asks all that were not told yet to leave. Why the first one of those that stay does, and how many more there are; none if all go.
/// What the API says of one pod holds up no other one.
///
/// # Errors
/// `Error::Timeout`, and `Error::Api` where nothing was answered.
pub(super) async fn evict(tenant: &TenantApi, leaving: &[Leaving]) -> Result<Option<String>> {
    let mut stay = Vec::new();
    for pod in leaving
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none())
    {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), &namespace);
        let why = match patch::evict(&pods, &name).await {
            Ok(true) => continue,
            Ok(false) => "a disruption budget keeps it".to_owned(),
            Err(Error::Api {
                source: kube::Error::Api(status),
                ..
            }) => format!("the API answers {} to its eviction", status.code),
            Err(error) => return Err(error),
        };
        stay.push(format!("{namespace}/{name} stays, since {why}"));
    }
    let more = match stay.len() {
        0 | 1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    Ok(stay.first().map(|first| format!("{first}{more}")))
}
