//! Requests good and bad, and what becomes of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rstest::rstest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::signer::{Decision, decide, decided};
use super::*;
use crate::tls::Authority;

/// `spec.request` for a subject and other names. A second organization is added by hand, as rcgen knows only one.
pub(crate) fn pem_request(name: &str, groups: &[&str], alternatives: &[&str]) -> Value {
    let key = KeyPair::generate().unwrap();
    let alternatives: Vec<String> = alternatives.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(alternatives).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (index, group) in groups.iter().enumerate() {
        let kind = if index == 0 {
            DnType::OrganizationName
        } else {
            DnType::CustomDnType(vec![2, 5, 4, 10])
        };
        params.distinguished_name.push(kind, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    json!(BASE64.encode(params.serialize_request(&key).unwrap().pem().unwrap()))
}

fn noon() -> Timestamp {
    "2026-08-20T12:00:00Z".parse().unwrap()
}

fn object(request: Value, signer: &str, usages: &[&str], condition: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r"},
        "spec": {"request": request, "signerName": signer, "usages": usages},
        "status": {"conditions": [{"type": condition, "status": "True"}]},
    })
}

fn decision(object: &Value) -> (Decision, Authority) {
    let authority = Authority::generate("clients", noon()).unwrap();
    let request: CertificateSigningRequest = serde_json::from_value(object.clone()).unwrap();
    (decide(&authority, &request, noon()), authority)
}

const BOTH: [&str; 2] = ["digital signature", "client auth"];
const THREE: [&str; 3] = ["key encipherment", "digital signature", "client auth"];

#[rstest]
#[case(&BOTH)]
#[case(&THREE)]
fn an_approved_request_of_a_node_is_signed_by_the_authority_of_the_cluster(#[case] usages: &[&str]) {
    let request = pem_request("system:node:a", &["system:nodes"], &[]);
    let (decision, authority) = decision(&object(request, NODE_SIGNER, usages, "Approved"));
    let Decision::Sign(certificate) = decision else {
        panic!("{decision:?}")
    };
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    assert!(authority.vouches_for(std::slice::from_ref(&der), noon()));
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
    assert_eq!(parsed.subject().to_string(), "O=system:nodes, CN=system:node:a");
    let life = parsed.validity().not_after.timestamp() - noon().as_second();
    assert_eq!(life, 365 * 24 * 3600 - 300);
    assert!(!parsed.is_ca());
}

#[rstest]
#[case::asked(3600, 3600)]
#[case::too_short(60, 600)]
#[case::too_long(i64::from(i32::MAX), 365 * 24 * 3600 - 300)]
#[case::not_short(10 * 3600, 10 * 3600 - 300)]
fn a_shorter_life_may_be_asked_for(#[case] asked: i64, #[case] given: i64) {
    let mut object = object(
        pem_request("me", &["staff"], &["a.example"]),
        CLIENT_SIGNER,
        &BOTH,
        "Approved",
    );
    object["spec"]["expirationSeconds"] = json!(asked);
    let (Decision::Sign(certificate), authority) = decision(&object) else {
        panic!("not signed")
    };
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let last = noon() + SignedDuration::from_secs(given);
    assert!(authority.vouches_for(std::slice::from_ref(&der), last));
    assert!(!authority.vouches_for(&[der], last + SignedDuration::from_secs(1)));
}

#[rstest]
#[case::name("a", &["system:nodes"], &[], &BOTH, "subject common name does not begin with system:node:")]
#[case::no_group("system:node:a", &[], &[], &BOTH, "subject organization is not system:nodes")]
#[case::group("system:node:a", &["system:masters"], &[], &BOTH, "subject organization is not system:nodes")]
#[case::groups("system:node:a", &["system:nodes", "system:masters"], &[], &BOTH, "subject organization is not system:nodes")]
#[case::dns("system:node:a", &["system:nodes"], &["a.example"], &BOTH, "DNS subjectAltNames are not allowed")]
#[case::ip("system:node:a", &["system:nodes"], &["10.0.0.1"], &BOTH, "IP subjectAltNames are not allowed")]
#[case::usage("system:node:a", &["system:nodes"], &[], &["client auth"], "usages did not match [client auth digital signature key encipherment]")]
#[case::more("system:node:a", &["system:nodes"], &[], &["client auth", "digital signature", "server auth"], "usages did not match [client auth digital signature key encipherment]")]
fn a_bad_request_of_a_node_fails_with_its_reason(
    #[case] name: &str,
    #[case] groups: &[&str],
    #[case] alternatives: &[&str],
    #[case] usages: &[&str],
    #[case] why: &str,
) {
    let object = object(
        pem_request(name, groups, alternatives),
        NODE_SIGNER,
        usages,
        "Approved",
    );
    assert_eq!(decision(&object).0, Decision::Fail(why.to_owned()));

    let authority = Authority::generate("clients", noon()).unwrap();
    let request: CertificateSigningRequest = serde_json::from_value(object).unwrap();
    let failed = decided(&authority, &request, noon()).unwrap();
    let condition = &failed.status.as_ref().unwrap().conditions.as_ref().unwrap()[1];
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("Failed", Some("SignerValidationFailure"))
    );
    assert_eq!(condition.message.as_deref(), Some(why));
    assert!(
        decided(&authority, &failed, noon()).is_none(),
        "a failed request is left alone"
    );
}

#[rstest]
#[case::usage(&["client auth", "server auth"], "invalid usage for client certificate: server auth")]
#[case::no_client(&["digital signature"], "missing required usage for client certificate: client auth")]
fn a_bad_request_of_a_client_fails_with_its_reason(#[case] usages: &[&str], #[case] why: &str) {
    let object = object(
        pem_request("me", &["staff"], &[]),
        CLIENT_SIGNER,
        usages,
        "Approved",
    );
    assert_eq!(decision(&object).0, Decision::Fail(why.to_owned()));
}

#[test]
fn what_is_not_approved_or_not_ours_is_left_alone() {
    let request = pem_request("system:node:a", &["system:nodes"], &[]);
    for condition in ["Denied", "Failed", "Seen"] {
        assert_eq!(
            decision(&object(request.clone(), NODE_SIGNER, &BOTH, condition)).0,
            Decision::Leave
        );
    }
    for signer in [
        SERVING_SIGNER,
        "example.com/other",
        "kubernetes.io/legacy-unknown",
    ] {
        assert_eq!(
            decision(&object(request.clone(), signer, &BOTH, "Approved")).0,
            Decision::Leave
        );
    }
    let mut both = object(request.clone(), NODE_SIGNER, &BOTH, "Approved");
    let conditions = both["status"]["conditions"].as_array_mut().unwrap();
    conditions.push(json!({"type": "Denied", "status": "True"}));
    assert_eq!(decision(&both).0, Decision::Leave);
    let mut done = object(request, NODE_SIGNER, &BOTH, "Approved");
    done["status"]["certificate"] = json!("eA==");
    assert_eq!(decision(&done).0, Decision::Leave);
}

#[test]
fn who_asks_is_what_was_proved() {
    let mut object = object(json!(""), NODE_SIGNER, &BOTH, "Approved");
    object["spec"]["username"] = json!("system:admin");
    object["spec"]["uid"] = json!("0");
    object["spec"]["extra"] = json!({"a": ["b"]});
    let identity = Identity::known("system:bootstrap:abcdef", vec!["system:bootstrappers".into()]);
    prepare_create(&identity, &mut object);
    assert_eq!(object["spec"]["username"], "system:bootstrap:abcdef");
    assert_eq!(
        object["spec"]["groups"],
        json!(["system:bootstrappers", "system:authenticated"])
    );
    assert_eq!(
        (&object["spec"]["uid"], &object["spec"]["extra"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(object["status"], json!({}), "nobody brings its own approval");
}

fn stored() -> Value {
    let mut object = object(
        pem_request("system:node:a", &["system:nodes"], &[]),
        NODE_SIGNER,
        &BOTH,
        "Seen",
    );
    object["status"] = json!({});
    object
}

const NOW: &str = "2026-08-20T12:00:00Z";

#[test]
fn a_request_never_changes_and_its_status_only_through_its_doors() {
    let old = stored();
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    new["spec"]["username"] = json!("system:admin");
    new["status"] = json!({"certificate": "eA==", "conditions": [{"type": "Approved", "status": "True"}]});
    let through = |subresource: &str| {
        let mut new = new.clone();
        prepare_update(&old, &mut new, subresource, NOW);
        assert_eq!(new["spec"], old["spec"]);
        new["status"].clone()
    };
    assert_eq!(through(""), json!({}));
    assert_eq!(
        through("approval"),
        json!({"conditions": [
            {"type": "Approved", "status": "True", "lastUpdateTime": NOW, "lastTransitionTime": NOW}]})
    );
    assert_eq!(through("status")["certificate"], "eA==");
}

#[test]
fn only_the_approval_door_takes_a_verdict_and_none_is_taken_back() {
    let old = stored();
    let with = |conditions: Value| {
        let mut new = old.clone();
        new["status"] = json!({"conditions": conditions});
        new
    };
    let approved = with(json!([{"type": "Approved", "status": "True"}]));
    assert_eq!(check(Some(&old), &approved, "approval"), []);
    let causes = check(Some(&old), &approved, "status");
    assert_eq!(
        causes[0].message,
        "Forbidden: updates may not add a condition of type \"Approved\""
    );
    let causes = check(Some(&approved), &old, "approval");
    assert_eq!(
        causes[0].message,
        "Forbidden: updates may not remove a condition of type \"Approved\""
    );
    let both = with(json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]));
    assert!(
        check(Some(&approved), &both, "approval")[0]
            .message
            .ends_with("mutually exclusive")
    );
    let odd = with(json!([{"type": "Approved", "status": "False"}]));
    assert_eq!(
        check(Some(&old), &odd, "approval")[0].reason,
        "FieldValueNotSupported"
    );
}

#[test]
fn a_certificate_is_set_once() {
    let old = stored();
    let with = |certificate: &str| {
        let mut new = old.clone();
        new["status"] = json!({"certificate": certificate});
        new
    };
    assert_eq!(check(Some(&old), &with("eA=="), "status"), []);
    assert!(
        check(Some(&old), &with("eA=="), "approval")[0]
            .message
            .ends_with("may not set certificate content")
    );
    assert!(!check(Some(&with("eA==")), &with("eQ=="), "status").is_empty());
}

#[rstest]
#[case::garbage("request", json!("eA=="), "PEM block type must be CERTIFICATE REQUEST")]
#[case::not_base64("request", json!("§"), "")]
#[case::no_usages("usages", json!([]), "Required value")]
#[case::odd_usage("usages", json!(["client auth", "fly"]), "Unsupported value: \"fly\"")]
#[case::twice("usages", json!(["client auth", "client auth"]), "Duplicate value: \"client auth\"")]
#[case::no_signer("signerName", json!(null), "Required value")]
#[case::odd_signer("signerName", json!("me"), "must be a fully qualified domain and path")]
#[case::short("expirationSeconds", json!(599), "may not specify a duration less than 600 seconds (10 minutes)")]
fn a_request_that_makes_no_sense_is_told_where(
    #[case] field: &str,
    #[case] value: Value,
    #[case] part: &str,
) {
    let mut object = stored();
    object["spec"][field] = value;
    let causes = check(None, &object, "");
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert!(causes[0].field.starts_with(&format!("spec.{field}")));
    assert!(causes[0].message.contains(part), "{}", causes[0].message);
}

#[test]
fn a_request_signed_with_another_key_is_refused() {
    let mut pem = BASE64
        .decode(pem_request("a", &[], &[]).as_str().unwrap())
        .unwrap();
    let der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(&pem).unwrap();
    let mut bytes = der.to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let body = BASE64.encode(&bytes);
    pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
        .into_bytes();
    assert!(Request::parse(&json!(BASE64.encode(pem))).is_err());
}
