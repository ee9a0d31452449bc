//! Tests of who may join, with requests made as a kubelet makes them.

use hostler_api::enrollment::NamedUid;
use hostler_api::{EnrollmentSpec, EnrollmentStatus};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequestCondition, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rstest::rstest;

use super::*;

struct Asked {
    cn: &'static str,
    o: &'static [&'static str],
    san: bool,
    unit: bool,
    user: &'static str,
    usages: &'static [&'static str],
}

const KUBELET: Asked = Asked {
    cn: "system:node:bare-metal-1",
    o: &["system:nodes"],
    san: false,
    unit: false,
    user: "system:bootstrap:abcdef",
    usages: &["digital signature", "client auth"],
};

fn pem(asked: &Asked) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for o in asked.o {
        params.distinguished_name.push(DnType::OrganizationName, *o);
    }
    params.distinguished_name.push(DnType::CommonName, asked.cn);
    if asked.unit {
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "system:masters");
    }
    if asked.san {
        params.subject_alt_names = vec![SanType::DnsName("kubernetes".try_into().unwrap())];
    }
    params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap()
        .into_bytes()
}

fn request(asked: &Asked) -> CertificateSigningRequest {
    let mut request = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem(asked)),
            signer_name: SIGNER.into(),
            username: Some(asked.user.into()),
            usages: Some(asked.usages.iter().map(|usage| (*usage).to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    request.metadata.uid = Some("csr-1".into());
    request
}

fn enrollment(approved: Option<&str>) -> Enrollment {
    let mut enrollment = Enrollment::new(
        "one.bare-metal-1",
        EnrollmentSpec {
            tenant: NamedUid {
                name: "one".into(),
                uid: "t-1".into(),
            },
            node_name: "bare-metal-1".into(),
            claim: None,
        },
    );
    enrollment.status = Some(EnrollmentStatus {
        token_id: Some("abcdef".into()),
        approved_request: approved.map(ToOwned::to_owned),
        ..EnrollmentStatus::default()
    });
    enrollment
}

fn code(decision: &Decision) -> &str {
    match decision {
        Decision::Ignore => "ignore",
        Decision::Join { .. } => "join",
        Decision::Renew { .. } => "renew",
        Decision::Deny { reason, .. } => &reason.code,
    }
}

#[rstest]
#[case::as_a_kubelet_asks(KUBELET, "join")]
#[case::with_an_rsa_key(Asked { usages: &["key encipherment", "digital signature", "client auth"], ..KUBELET }, "join")]
#[case::for_a_neighbour(Asked { cn: "system:node:bare-metal-2", ..KUBELET }, "NameRefused")]
#[case::for_a_longer_name(Asked { cn: "system:node:bare-metal-11", ..KUBELET }, "NameRefused")]
#[case::for_an_administrator(Asked { cn: "kubernetes-admin", ..KUBELET }, "NameRefused")]
#[case::for_masters(Asked { o: &["system:masters"], ..KUBELET }, "OrganizationRefused")]
#[case::for_nothing(Asked { o: &[], ..KUBELET }, "OrganizationRefused")]
#[case::with_a_unit(Asked { unit: true, ..KUBELET }, "OrganizationRefused")]
#[case::with_another_name(Asked { san: true, ..KUBELET }, "AlternativeNamesRefused")]
#[case::as_a_server(Asked { usages: &["digital signature", "server auth"], ..KUBELET }, "UsageRefused")]
#[case::as_both(Asked { usages: &["digital signature", "client auth", "server auth"], ..KUBELET }, "UsageRefused")]
#[case::for_no_use(Asked { usages: &[], ..KUBELET }, "UsageRefused")]
#[case::with_a_strange_token(Asked { user: "system:bootstrap:zzzzzz", ..KUBELET }, "TokenUnknown")]
#[case::as_a_person(Asked { user: "jane", ..KUBELET }, "ignore")]
#[case::as_a_node_that_has_not_joined(Asked { user: "system:node:bare-metal-1", ..KUBELET }, "NodeUnknown")]
fn a_first_join(#[case] asked: Asked, #[case] want: &str) {
    let enrolled = enrollment(None);
    assert_eq!(code(&judge(&request(&asked), &[&enrolled])), want);
}

#[rstest]
#[case::itself(Asked { user: "system:node:bare-metal-1", ..KUBELET }, "renew")]
#[case::a_neighbour(Asked { user: "system:node:bare-metal-1", cn: "system:node:bare-metal-2", ..KUBELET }, "NameRefused")]
#[case::a_stranger(Asked { user: "system:node:bare-metal-2", cn: "system:node:bare-metal-2", ..KUBELET }, "NodeUnknown")]
#[case::with_a_name_too_many(Asked { user: "system:node:bare-metal-1", san: true, ..KUBELET }, "AlternativeNamesRefused")]
fn a_renewal(#[case] asked: Asked, #[case] want: &str) {
    let enrolled = enrollment(Some("csr-0"));
    assert_eq!(code(&judge(&request(&asked), &[&enrolled])), want);
}

#[test]
fn a_second_request_of_a_token_is_denied_and_the_first_goes_on_after_a_crash() {
    let first = enrollment(Some("csr-1"));
    assert_eq!(code(&judge(&request(&KUBELET), &[&first])), "join");
    let other = enrollment(Some("csr-0"));
    let decision = judge(&request(&KUBELET), &[&other]);
    assert_eq!(code(&decision), "TokenUsed");
    let Decision::Deny {
        token, enrollment, ..
    } = decision
    else {
        panic!("denied")
    };
    assert_eq!(
        (token.as_deref(), enrollment.as_deref()),
        (Some("abcdef"), Some("one.bare-metal-1"))
    );
}

#[test]
fn a_claim_that_is_gone_lets_nobody_join() {
    assert_eq!(code(&judge(&request(&KUBELET), &[])), "TokenUnknown");
}

#[test]
fn other_signers_and_decided_requests_are_left_alone() {
    let enrolled = enrollment(None);
    let mut serving = request(&KUBELET);
    serving.spec.signer_name = "kubernetes.io/kubelet-serving".into();
    assert_eq!(judge(&serving, &[&enrolled]), Decision::Ignore);
    let mut decided = request(&KUBELET);
    decided.status = Some(CertificateSigningRequestStatus {
        conditions: Some(vec![CertificateSigningRequestCondition {
            type_: "Denied".into(),
            ..Default::default()
        }]),
        ..Default::default()
    });
    assert_eq!(judge(&decided, &[&enrolled]), Decision::Ignore);
}

#[rstest]
#[case::no_pem(b"nothing".to_vec())]
#[case::empty(Vec::new())]
#[case::another_block(b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec())]
#[case::no_request(b"-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n".to_vec())]
#[case::too_long(vec![b'x'; MAX_BYTES + 1])]
fn what_is_no_request_is_denied(#[case] bytes: Vec<u8>) {
    let enrolled = enrollment(None);
    let mut asked = request(&KUBELET);
    asked.spec.request = ByteString(bytes);
    assert_eq!(code(&judge(&asked, &[&enrolled])), "RequestUnreadable");
}
