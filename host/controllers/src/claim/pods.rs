//! Pods that are to leave a node before it goes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use tokio::time::Instant;

use crate::control_plane::TenantApi;
use crate::error::{Error, Result};
use crate::patch::{self, Eviction};

/// Time for which one turn asks. What is left then is asked by the next.
const ASKING: Duration = Duration::from_secs(10);
/// When those that stay are asked again: as soon as `kubectl drain` does.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// Longest name that is shown, and all that is: it is the tenant's text.
const SHOWN: usize = 120;

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

/// Asks all that were not told yet to leave, beginning at `first` and round. Why one of those that stay does, and how many more there are; none
/// if all go. What the API says of one pod holds up no other one.
///
/// # Errors
/// `Error::Timeout`, and `Error::Api` where nothing was answered.
pub(super) async fn evict(tenant: &TenantApi, leaving: &[Leaving], first: usize) -> Result<Option<String>> {
    let end = Instant::now() + ASKING;
    let told = |pod: &&Leaving| pod.meta().deletion_timestamp.is_some();
    let untold: Vec<_> = leaving.iter().filter(|pod| !told(pod)).collect();
    let (last, next) = untold.split_at(first % untold.len().max(1));
    let mut stay = Vec::new();
    for pod in next.iter().chain(last) {
        if Instant::now() >= end {
            break;
        }
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), &pod.namespace().unwrap_or_default());
        let uid = pod.uid().unwrap_or_default();
        let (why, is_full) = match patch::evict(&pods, &pod.name_any(), &uid).await {
            Ok(Eviction::Leaves) => continue,
            Ok(Eviction::Kept) => ("a disruption budget keeps it".to_owned(), false),
            Err(Error::Api {
                source: kube::Error::Api(status),
                ..
            }) => {
                let why = format!("the API answers {} to its eviction", status.code);
                (why, status.code == 429)
            }
            Err(error) if stay.is_empty() => return Err(error),
            Err(_) => break,
        };
        stay.push(format!("{} stays, since {why}", title(pod)));
        if is_full {
            break;
        }
    }
    let more = match stay.len() {
        0 | 1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    // The same one each time, wherever the turn began: who looks on is told of changes only.
    Ok(stay.into_iter().min().map(|one| format!("{one}{more}")))
}

/// Namespace and name, if they look like ones.
fn title(pod: &Leaving) -> String {
    let title = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-./".contains(c);
    if title.len() <= SHOWN && title.chars().all(is_plain) {
        title
    } else {
        "a pod".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("shop", "web-0", "shop/web-0")]
    #[case::of_a_foreign_form("shop", "web\u{202e}0", "a pod")]
    #[case::too_long("shop", &"x".repeat(SHOWN), "a pod")]
    fn a_pod_is_called_by_its_name_if_that_is_one(
        #[case] namespace: &str,
        #[case] name: &str,
        #[case] expected: &str,
    ) {
        let pod = Leaving {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Leaving::default()
        };
        assert_eq!(title(&pod), expected);
    }
}
