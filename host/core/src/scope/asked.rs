//! What `describe` asks for, before anything of it is read: within the grant, and where the provider points.

use serde_json::Value;

use super::{CODE, allows, provider_names, word};
use crate::grant::{Grant, is_never_granted};
use crate::seams::{Access, KindUse, Reason};

/// Whether a driver may use what it asks for, for this provider.
///
/// # Errors
/// `DriverOutOfScope` for the first kind that it may not use, with what would allow it, if anything.
pub fn asked(grant: &Grant, provider: &Value, uses: &[KindUse]) -> Result<(), Reason> {
    for used in uses {
        let what = format!(
            "{} of {} in namespace {}",
            used.kind, used.api_version, used.namespace
        );
        if is_never_granted(&used.api_version, &used.kind) {
            return Err(Reason::new(
                CODE,
                format!("the driver asks for {what}, which no plugin may have"),
            )
            .remedy("replace the driver"));
        }
        if !is_granted(grant, used, &used.namespace) {
            let remedy = format!(
                "add to its operator file: [[kinds]] apiVersion = \"{}\" kind = \"{}\" access = \"{}\" namespaces = [\"{}\"]",
                used.api_version,
                used.kind,
                word(used.access),
                used.namespace
            );
            return Err(Reason::new(
                CODE,
                format!("the driver asks for {what} and has no grant for it"),
            )
            .remedy(remedy));
        }
        if !provider_names(provider, &used.namespace) {
            let text = format!("the driver asks for {what}, which the provider's spec does not name");
            return Err(Reason::new(CODE, text)
                .remedy("name the namespace in the provider's spec, or replace the driver"));
        }
    }
    Ok(())
}

/// Whether the grant of today covers a use, in a namespace.
#[must_use]
pub fn is_granted(grant: &Grant, used: &KindUse, namespace: &str) -> bool {
    let granted = grant.of(&used.api_version, &used.kind, namespace);
    granted.is_some_and(|granted| allows(granted.access, used.access) || used.access == Access::Read)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::seams::Role;

    fn hosts(api_version: &str, kind: &str, namespace: &str, access: Access) -> KindUse {
        KindUse {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            access,
            role: Role::Machine,
            selector: String::new(),
        }
    }

    #[rstest]
    #[case::as_granted("metal3.io/v1alpha1", "BareMetalHost", "racks", Access::BorrowFields, "")]
    #[case::less("metal3.io/v1alpha1", "BareMetalHost", "racks", Access::Read, "")]
    #[case::more(
        "metal3.io/v1alpha1",
        "BareMetalHost",
        "racks",
        Access::Manage,
        "has no grant"
    )]
    #[case::other_kind("v1", "Secret", "racks", Access::Read, "has no grant")]
    #[case::never(
        "rbac.authorization.k8s.io/v1",
        "Role",
        "racks",
        Access::Read,
        "no plugin may have"
    )]
    #[case::elsewhere(
        "metal3.io/v1alpha1",
        "BareMetalHost",
        "kube-system",
        Access::Read,
        "does not name"
    )]
    fn a_description_is_within_grant_and_provider(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] namespace: &str,
        #[case] access: Access,
        #[case] want: &str,
    ) {
        let grant = Grant::parse(
            "[[kinds]]\napiVersion = \"metal3.io/v1alpha1\"\nkind = \"BareMetalHost\"\naccess = \"borrow-fields\"\n\
             namespaces = [\"*\"]\nplaces = [\"/spec/image\"]\n",
        )
        .unwrap();
        let provider = json!({"spec": {"metal3": {"clusterRef": {"namespace": "racks"}}}});
        match asked(&grant, &provider, &[hosts(api_version, kind, namespace, access)]) {
            Ok(()) => assert_eq!(want, ""),
            Err(reason) => assert!(
                !want.is_empty() && reason.message.contains(want),
                "{}",
                reason.message
            ),
        }
    }
}
