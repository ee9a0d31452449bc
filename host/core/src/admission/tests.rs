//! Tests of admission: what is refused, by which word, and what policies are shown.

use hostler_api::{
    NodeClaimSpec, NodeEnvironmentSpec, NodeProviderSpec, NodeTypeSpec, ProjectSpec,
    VirtualClusterInstanceSpec,
};
use rstest::rstest;

use super::*;

fn project() -> Project {
    Project::new("default", ProjectSpec::default())
}

fn tenant() -> VirtualClusterInstance {
    let mut tenant = VirtualClusterInstance::new("one", VirtualClusterInstanceSpec::default());
    tenant.metadata.namespace = Some("p-default".into());
    tenant.metadata.uid = Some("t-1".into());
    tenant
}

fn provider() -> NodeProvider {
    let mut provider = NodeProvider::new("metal3", NodeProviderSpec::default());
    provider.metadata.annotations = Some(
        [(
            names::TENANT_PROPERTIES.to_owned(),
            names::PROPERTY_ENVIRONMENT.to_owned(),
        )]
        .into(),
    );
    provider
}

fn claim(edit: impl FnOnce(&mut NodeClaimSpec)) -> NodeClaim {
    let mut spec = NodeClaimSpec {
        provider_ref: "metal3".into(),
        vcluster_ref: Some("one".into()),
        ..NodeClaimSpec::default()
    };
    edit(&mut spec);
    let mut claim = NodeClaim::new("one-bcdfg", spec);
    claim.metadata.namespace = Some("p-default".into());
    claim
}

/// An object for the rest of the test run.
fn kept<'a, K>(object: K) -> &'a K {
    Box::leak(Box::new(object))
}

fn codes<'a>(claim: &NodeClaim, edit: impl FnOnce(&mut Seen<'a>)) -> Vec<String> {
    let mut seen = Seen {
        project: Some(kept(project())),
        tenant: Some(kept(tenant())),
        private_nodes: Some(true),
        provider: Some(kept(provider())),
        os_image: true,
        ..Seen::default()
    };
    edit(&mut seen);
    check(claim, &seen)
        .err()
        .unwrap_or_default()
        .into_iter()
        .map(|reason| reason.code)
        .collect()
}

#[rstest]
#[case::nothing_wrong(claim(|_| {}), &[])]
#[case::no_tenant(claim(|spec| spec.vcluster_ref = None), &["NotServedYet"])]
#[case::an_image_by_url(claim(|spec| { spec.properties.insert("metal3.vcluster.com/image-url".into(), "http://x".into()); }), &["PropertyNotAllowed"])]
#[case::a_protected_label(claim(|spec| { spec.node_labels.insert("node-restriction.kubernetes.io/x".into(), "y".into()); }), &["ProtectedKey"])]
#[case::a_type_that_is_not_there(claim(|spec| spec.type_ref = Some("metal3.big".into())), &["UnknownNodeType"])]
#[case::an_environment_that_is_not_there(claim(|spec| spec.environment_ref = Some("rack".into())), &["EnvironmentNotFound"])]
#[case::a_grace_that_is_none(claim(|spec| spec.termination_grace_period = Some("x".into())), &["InvalidClaim"])]
#[case::for_a_control_plane(claim(|spec| spec.control_plane = true), &["NotServedYet"])]
fn a_claim_alone(#[case] claim: NodeClaim, #[case] want: &[&str]) {
    assert_eq!(codes(&claim, |_| {}), want);
}

#[test]
fn what_a_claim_names_must_be_there() {
    let plain = claim(|_| {});
    assert_eq!(codes(&plain, |seen| seen.project = None), ["ProjectNotRead"]);
    assert_eq!(codes(&plain, |seen| seen.tenant = None), ["UnknownTenant"]);
    assert_eq!(
        codes(&plain, |seen| seen.private_nodes = Some(false)),
        ["PrivateNodesDisabled"]
    );
    assert_eq!(codes(&plain, |seen| seen.private_nodes = None), ["TenantInvalid"]);
    assert_eq!(codes(&plain, |seen| seen.provider = None), ["UnknownProvider"]);
    let image = claim(|spec| {
        spec.properties
            .insert(names::PROPERTY_OS_IMAGE.into(), "ubuntu".into());
    });
    assert_eq!(codes(&image, |_| {}), [""; 0]);
    assert_eq!(codes(&image, |seen| seen.os_image = false), ["OSImageNotFound"]);
    let missing = ["ops".to_owned()];
    assert_eq!(
        codes(&plain, |seen| seen.missing_ssh_keys = &missing),
        ["SSHKeyNotFound"]
    );
}

#[test]
fn a_claim_of_an_earlier_tenant_is_not_the_later_ones() {
    let mut old = claim(|_| {});
    old.metadata.labels = Some([(names::TENANT_UID.to_owned(), "t-0".to_owned())].into());
    assert_eq!(codes(&old, |_| {}), ["TenantReplaced"]);
}

#[test]
fn an_environment_must_fit_provider_and_tenant() {
    let claim = claim(|spec| {
        spec.properties
            .insert(names::PROPERTY_ENVIRONMENT.into(), "rack".into());
    });
    let environment = |provider: &str, tenant: Option<&str>| {
        NodeEnvironment::new(
            "rack",
            NodeEnvironmentSpec {
                provider_ref: provider.into(),
                vcluster_ref: tenant.map(ToOwned::to_owned),
                ..NodeEnvironmentSpec::default()
            },
        )
    };
    for (found, want) in [
        (environment("metal3", None), vec![]),
        (environment("metal3", Some("one")), vec![]),
        (environment("metal3", Some("two")), vec!["EnvironmentNotAllowed"]),
        (environment("kubevirt", None), vec!["EnvironmentNotAllowed"]),
    ] {
        assert_eq!(codes(&claim, |seen| seen.environment = Some(&found)), want);
    }
}

#[test]
fn a_type_of_another_provider_is_refused() {
    let claim = claim(|spec| spec.type_ref = Some("kubevirt.small".into()));
    let other = NodeType::new(
        "kubevirt.small",
        NodeTypeSpec {
            provider_ref: "kubevirt".into(),
            ..NodeTypeSpec::default()
        },
    );
    assert_eq!(
        codes(&claim, |seen| seen.node_type = Some(&other)),
        ["UnknownNodeType"]
    );
}

#[test]
fn every_refusal_of_a_missing_thing_has_a_remedy() {
    let claim = claim(|spec| spec.type_ref = Some("metal3.big".into()));
    let reasons = check(&claim, &Seen::default()).unwrap_err();
    assert!(
        reasons.iter().all(|reason| reason.remedy.is_some()),
        "{reasons:?}"
    );
}

#[test]
fn policies_see_whole_objects_and_null_for_what_was_not_read() {
    let (project, tenant) = (project(), tenant());
    let mut claim = claim(|_| {});
    claim.metadata.resource_version = Some("17".into());
    claim.metadata.annotations = Some(
        [(
            "kubectl.kubernetes.io/last-applied-configuration".to_owned(),
            "{}".to_owned(),
        )]
        .into(),
    );
    let choice = ProfileChoice {
        name: Some("gpu".into()),
        source: Some("explicit".into()),
        why: None,
    };
    let facts = TypeFacts {
        full_name: "metal3.gpu".into(),
        short_name: "gpu".into(),
        properties: BTreeMap::new(),
    };
    let full = request(
        TYPE_CHOICE,
        &Facts {
            project: Some(&project),
            tenant: Some(&tenant),
            claim: Some(&claim),
            profile: Some(&choice),
            node_type: Some(("metal3", &facts)),
            usage: None,
            now: Some("2026-11-29T12:34:56Z".parse().unwrap()),
        },
    );
    insta::assert_json_snapshot!(full.json);
    let empty = request(CLAIM, &Facts::default());
    assert_eq!(
        empty.json,
        json!({"project": null, "tenant": null, "claim": null, "profile": null, "nodeType": null})
    );
}

#[test]
fn usage_counts_what_was_accepted_or_holds_something() {
    let accepted = |name: &str, tenant: &str, yes: bool| {
        let mut other = claim(|spec| spec.vcluster_ref = Some(tenant.into()));
        other.metadata.uid = Some(name.into());
        let mut status = hostler_api::NodeClaimStatus::default();
        let fact = if yes {
            conditions::Fact::yes("Accepted", "Accepted", "")
        } else {
            conditions::Fact::no("Accepted", "No", "")
        };
        conditions::set(
            &mut status.conditions,
            &fact,
            None,
            "2026-11-29T12:00:00Z".parse().unwrap(),
        );
        other.status = Some(status);
        other
    };
    let all = [
        accepted("a", "one", true),
        accepted("b", "two", true),
        accepted("c", "one", false),
    ];
    let usage = Usage::beside(&claim(|_| {}), all.iter());
    assert_eq!(
        (
            usage.project.nodeclaims,
            usage.tenant.nodeclaims,
            usage.user.is_none()
        ),
        (2, 1, true)
    );
    assert_eq!(usage.project.by_provider["metal3"], 2);
    // What a claim says by now is not what it holds.
    let [mut holds, ..] = all;
    holds.status.as_mut().unwrap().machine = Some(hostler_api::claim::MachineRef {
        type_ref: "kubevirt.small".to_owned(),
        object: None,
        uid: None,
        spec_digest: None,
    });
    let usage = Usage::beside(&claim(|_| {}), std::iter::once(&holds)).project;
    assert_eq!(usage.by_provider, BTreeMap::from([("kubevirt".to_owned(), 1)]));
    assert_eq!(usage.by_type, BTreeMap::from([("kubevirt.small".to_owned(), 1)]));
}

#[test]
fn an_ordered_claim_counts_for_the_user_whose_order_it_was() {
    let of = |user: &str| {
        claim(|spec| {
            spec.owner = Some(hostler_api::Owner {
                user: Some(user.to_owned()),
                ..hostler_api::Owner::default()
            });
        })
    };
    let counted = |other: &NodeClaim, user: &str| {
        Usage::beside(&of(user), std::iter::once(other))
            .user
            .unwrap()
            .count
            .nodeclaims
    };
    let mut other = of("bob");
    other.metadata.uid = Some("other".to_owned());
    let mut status = json!({"conditions": [
        {"type": "Accepted", "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z"},
    ]});
    other.status = serde_json::from_value(status.clone()).unwrap();
    assert_eq!((counted(&other, "alice"), counted(&other, "bob")), (0, 1));
    status["order"] = json!({
        "claim": {"owner": {"user": "alice"}}, "component": "driver-metal3", "digest": "sha256:1", "provider": {}, "nodeType": "gpu",
        "uses": [], "frozen": "2026-11-29T12:00:00Z",
    });
    other.status = serde_json::from_value(status).unwrap();
    assert_eq!((counted(&other, "alice"), counted(&other, "bob")), (1, 0));
}
