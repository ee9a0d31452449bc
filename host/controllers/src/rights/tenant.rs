//! What the host does in a tenant's API: nothing there is granted for all Secrets, all namespaces' Secrets, or anything that grants rights.

use hostler_core::join::SIGNER;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::Resource;

use super::{Reach, Right};

/// Where bootstrap tokens are.
const TOKENS: &str = "kube-system";

/// What the user of a tenant's kubeconfig must be allowed, right by right.
#[must_use]
pub fn tenant() -> Vec<Right> {
    vec![
        Right::on::<Namespace>(
            "",
            &["get"],
            "one look that the API answers, lets the host in, and is not the platform's own",
        )
        .named(&[TOKENS]),
        Right::on::<Node>(
            "",
            &["get", "list", "watch", "patch"],
            "labels, annotations and taints of the profile; the machine's id; no new pods before a node goes",
        ),
        Right::on::<Node>("", &["delete"], "the Node of a machine that goes back"),
        Right::on::<Pod>("", &["list"], "pods that are still to leave a node"),
        Right::on::<Pod>("eviction", &["create"], "pods are asked to leave, within their budgets"),
        Right::on::<Secret>(
            "",
            &["get", "create", "patch", "delete"],
            "the bootstrap token of one claim, its end moved forward while the machine is installed, taken away when it has joined",
        )
        .within(Reach::Namespace(TOKENS.to_owned())),
        Right::on::<CertificateSigningRequest>("", &["list", "watch"], "machines that want to join"),
        Right::on::<CertificateSigningRequest>(
            "approval",
            &["patch"],
            "a machine joins under its reserved name only; everything else is denied",
        ),
        Right {
            reach: Reach::Everywhere,
            group: CertificateSigningRequest::group(&()).into_owned(),
            resource: "signers".to_owned(),
            names: vec![SIGNER.to_owned()],
            verbs: vec!["approve".to_owned()],
            why: "certificates of kubelets, and no others".to_owned(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_reached_by_name_in_one_namespace_and_never_listed() {
        for right in tenant().iter().filter(|right| right.resource == "secrets") {
            assert_eq!(right.reach, Reach::Namespace(TOKENS.to_owned()));
            assert!(!right.verbs.iter().any(|verb| verb == "list" || verb == "watch"));
        }
    }

    #[test]
    fn nothing_is_granted_that_grants_more() {
        for right in tenant() {
            assert_ne!(right.group, "rbac.authorization.k8s.io", "{right:?}");
            assert!(!right.why.is_empty() && !right.verbs.is_empty(), "{right:?}");
            let words = [&right.group, &right.resource].into_iter().chain(&right.verbs);
            for word in words {
                assert!(
                    !word.contains('*') && word != "escalate" && word != "impersonate",
                    "{right:?}"
                );
            }
            assert!(
                !["nodes/proxy", "pods/exec", "serviceaccounts/token"].contains(&right.resource.as_str()),
                "{right:?}"
            );
        }
    }
}
