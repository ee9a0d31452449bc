//! One look at a tenant's API: whether it answers, knows the host, lets it in, and is not the platform's own.

use std::time::Duration;

use hostler_core::kubeconfig::{Kubeconfig, UNSAFE};
use hostler_core::seams::Reason;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};

use crate::error::code;

/// A namespace that every cluster has, and whose uid tells clusters apart.
pub(super) const LANDMARK: &str = "kube-system";
/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the rights are listed.
const RIGHTS: &str = "give the kubeconfig's user the rights that `hostler manifests --tenant USER` prints";

/// What a look showed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It answers.
    Online,
    /// It does not, for now.
    Silent(Reason),
    /// Somebody must change something.
    Unusable(Reason),
}

/// Looks once.
pub(super) async fn look(client: &Client, kubeconfig: &Kubeconfig, platform: &str) -> Seen {
    let at = &kubeconfig.server.url;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let Ok(answer) = tokio::time::timeout(PATIENCE, namespaces.get(LANDMARK)).await else {
        let message = format!("{at} gave no answer within {} s", PATIENCE.as_secs());
        return Seen::Silent(unreachable(message));
    };
    let error = match answer {
        Ok(namespace) if namespace.uid().is_some_and(|uid| uid == platform) => {
            let message = format!("{at} is the platform's own API under another name");
            return Seen::Unusable(
                Reason::new(UNSAFE, message).remedy("name the tenant's own API; the platform is no tenant"),
            );
        }
        Ok(namespace) if namespace.name_any() == LANDMARK && namespace.uid().is_some() => {
            return Seen::Online;
        }
        Ok(_) => return Seen::Silent(strange(at, "its namespace kube-system has no uid")),
        Err(error) => error,
    };
    match (code(&error), &error) {
        (Some(401), _) => {
            let end = kubeconfig
                .expires
                .map_or_else(String::new, |end| format!(", whose certificate ends at {end}"));
            let message = format!("{at} does not know the kubeconfig's user{end}");
            Seen::Unusable(
                Reason::new("TenantCredentialsRefused", message)
                    .remedy("write a kubeconfig with valid credentials into the Secret"),
            )
        }
        (Some(403), _) => {
            let message = format!("{at} does not let the kubeconfig's user read namespace {LANDMARK}");
            Seen::Unusable(Reason::new("TenantRightsMissing", message).remedy(RIGHTS))
        }
        (Some(code @ (429 | 500..=599)), _) => Seen::Silent(unreachable(format!("{at} answers HTTP {code}"))),
        (Some(code), _) => Seen::Silent(strange(at, &format!("it answers HTTP {code}"))),
        (None, kube::Error::SerdeError(_) | kube::Error::FromUtf8(_)) => {
            Seen::Silent(strange(at, "its answer is no namespace"))
        }
        (None, error) => Seen::Silent(unreachable(format!("{at}: {}", cause(error)))),
    }
}

fn unreachable(message: String) -> Reason {
    Reason::new("TenantUnreachable", message).remedy(
        "see that its API runs, and that the server of the kubeconfig is an address that the host reaches",
    )
}

fn strange(at: &str, what: &str) -> Reason {
    Reason::new(
        "TenantApiStrange",
        format!("{at} does not answer as a Kubernetes API: {what}"),
    )
    .remedy("see that the server of the kubeconfig is the tenant's API")
}

/// The innermost cause of an error, short and in one line: some of it is the other side's text.
fn cause(error: &kube::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(next) = inner.source() {
        inner = next;
    }
    let text = inner.to_string();
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}
