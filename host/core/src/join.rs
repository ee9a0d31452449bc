//! Who may join: the host signs off a certificate request only when a live claim's token asks for exactly the reserved node.
//!
//! The token says who asks (`system:bootstrap:<id>`, set by the API server), the enrollment says which name is reserved for it, and
//! the request must ask for that and nothing else. The signature of a request is the signer's to check; here its contents are judged.

use hostler_api::Enrollment;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer;

use crate::seams::Reason;

/// The only signer that is judged here.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// User name of a bootstrap token, before its id.
const BOOTSTRAP: &str = "system:bootstrap:";
/// User name of a node, before its name.
const NODE: &str = "system:node:";
/// Group of all nodes.
const NODES: &str = "system:nodes";
/// Largest request that is read. A kubelet's is below 1 KiB.
const MAX_BYTES: usize = 16 << 10;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Somebody else's, or decided already.
    Ignore,
    /// Sign off: the first join of this enrollment. The use is recorded before.
    Join {
        /// Name of the Enrollment.
        enrollment: String,
    },
    /// Sign off: a node renews its own certificate.
    Renew {
        /// Name of the Enrollment.
        enrollment: String,
    },
    /// Refuse, and take the token away.
    Deny {
        /// Why.
        reason: Reason,
        /// Id of the token that asked.
        token: Option<String>,
        /// Name of the Enrollment that the token is of.
        enrollment: Option<String>,
    },
}

/// What a request asks to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Common names.
    pub names: Vec<String>,
    /// Organisations.
    pub organizations: Vec<String>,
    /// Whether anything else stands in the subject.
    pub more: bool,
    /// Whether other names are asked for.
    pub alternative_names: bool,
}

/// Reads the subject of a request in PEM.
///
/// # Errors
/// Why it cannot be read.
pub fn parse(pem: &[u8]) -> Result<Subject, String> {
    if pem.len() > MAX_BYTES {
        return Err(format!("{} bytes are too many for a request", pem.len()));
    }
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| "it is not PEM".to_owned())?;
    if block.label != "CERTIFICATE REQUEST" && block.label != "NEW CERTIFICATE REQUEST" {
        return Err(format!("it is a {:?}, not a certificate request", block.label));
    }
    let (rest, request) = X509CertificationRequest::from_der(&block.contents)
        .map_err(|_| "it is no certificate request".to_owned())?;
    if !rest.is_empty() {
        return Err("something follows the certificate request".to_owned());
    }
    let info = &request.certification_request_info;
    let mut subject = Subject::default();
    for attribute in info.subject.iter_attributes() {
        let value = attribute
            .as_str()
            .map_err(|_| "its subject is not text".to_owned())?
            .to_owned();
        if *attribute.attr_type() == OID_X509_COMMON_NAME {
            subject.names.push(value);
        } else if *attribute.attr_type() == OID_X509_ORGANIZATION_NAME {
            subject.organizations.push(value);
        } else {
            subject.more = true;
        }
    }
    subject.alternative_names = info
        .iter_attributes()
        .any(|attribute| match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(asked) => asked.extensions.iter().any(|extension| {
                matches!(
                    extension.parsed_extension(),
                    ParsedExtension::SubjectAlternativeName(_)
                )
            }),
            ParsedCriAttribute::ChallengePassword(_) | ParsedCriAttribute::UnsupportedAttribute => false,
        });
    Ok(subject)
}

/// Judges a request against the enrollments of its tenant that live: not being deleted, their claim there and not being deleted.
#[must_use]
pub fn judge(request: &CertificateSigningRequest, live: &[&Enrollment]) -> Decision {
    let spec = &request.spec;
    if spec.signer_name != SIGNER || is_decided(request) {
        return Decision::Ignore;
    }
    let user = spec.username.as_deref().unwrap_or_default();
    if let Some(token) = user.strip_prefix(BOOTSTRAP) {
        return first(request, token, live);
    }
    if let Some(node) = user.strip_prefix(NODE) {
        return renewal(request, node, live);
    }
    Decision::Ignore
}

/// Whether somebody has approved or denied a request.
#[must_use]
pub fn is_decided(request: &CertificateSigningRequest) -> bool {
    let conditions = request
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| matches!(condition.type_.as_str(), "Approved" | "Denied" | "Failed"))
}

fn first(request: &CertificateSigningRequest, token: &str, live: &[&Enrollment]) -> Decision {
    let of = |enrollment: &&&Enrollment| {
        enrollment
            .status
            .as_ref()
            .and_then(|status| status.token_id.as_deref())
            == Some(token)
    };
    let Some(enrollment) = live.iter().find(of) else {
        return deny(
            "TokenUnknown",
            format!("token {token} is of no live claim"),
            Some(token),
            None,
        );
    };
    let name = enrollment.metadata.name.clone().unwrap_or_default();
    let deny = |code, message| deny(code, message, Some(token), Some(&name));
    let status = enrollment.status.as_ref();
    let used = status.and_then(|status| status.approved_request.as_deref());
    if used.is_some() && used != request.metadata.uid.as_deref() {
        return deny(
            "TokenUsed",
            format!("token {token} has joined a node already; it joins one"),
        );
    }
    match exact(request, &enrollment.spec.node_name) {
        Ok(()) => Decision::Join { enrollment: name },
        Err((code, message)) => deny(code, message),
    }
}

fn renewal(request: &CertificateSigningRequest, node: &str, live: &[&Enrollment]) -> Decision {
    let joined = |enrollment: &&&Enrollment| {
        enrollment.spec.node_name == node
            && enrollment
                .status
                .as_ref()
                .is_some_and(|status| status.approved_request.is_some())
    };
    let Some(enrollment) = live.iter().find(joined) else {
        return deny(
            "NodeUnknown",
            format!("node {node} is of no live claim"),
            None,
            None,
        );
    };
    let name = enrollment.metadata.name.clone().unwrap_or_default();
    match exact(request, node) {
        Ok(()) => Decision::Renew { enrollment: name },
        Err((code, message)) => deny(code, message, None, Some(&name)),
    }
}

/// Whether the request asks for the client certificate of this node and nothing else.
fn exact(request: &CertificateSigningRequest, node: &str) -> Result<(), (&'static str, String)> {
    let usages = request.spec.usages.clone().unwrap_or_default();
    let count = |usage: &str| usages.iter().filter(|have| *have == usage).count();
    let known = count("digital signature") + count("key encipherment") + count("client auth");
    if known != usages.len()
        || count("digital signature") != 1
        || count("client auth") != 1
        || count("key encipherment") > 1
    {
        return Err((
            "UsageRefused",
            format!(
                "usages [{}] are not those of a kubelet's client",
                usages.join(", ")
            ),
        ));
    }
    let subject = parse(&request.spec.request.0).map_err(|message| ("RequestUnreadable", message))?;
    if subject.names.len() != 1 || subject.names[0].strip_prefix(NODE) != Some(node) {
        let asked = subject.names.join(", ");
        return Err((
            "NameRefused",
            format!("the name reserved is {NODE}{node}, not {asked:?}"),
        ));
    }
    if subject.organizations != [NODES] || subject.more {
        return Err((
            "OrganizationRefused",
            format!("the organisation must be {NODES} and stand alone"),
        ));
    }
    if subject.alternative_names {
        return Err((
            "AlternativeNamesRefused",
            "a kubelet's client certificate has no other names".to_owned(),
        ));
    }
    Ok(())
}

fn deny(code: &str, message: String, token: Option<&str>, enrollment: Option<&str>) -> Decision {
    Decision::Deny {
        reason: Reason::new(code, message).remedy("delete the claim to get a machine that joins anew"),
        token: token.map(ToOwned::to_owned),
        enrollment: enrollment.map(ToOwned::to_owned),
    }
}

#[cfg(test)]
mod tests;
