//! A certificate request as it was sent: PKCS#10 in PEM in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{PublicKeyData, SanType, SubjectPublicKeyInfo};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// What a request asks for. Its signature was found good: the sender has the key.
#[derive(Debug)]
pub(crate) struct Request {
    /// `CN` of the subject.
    pub(crate) common_name: String,
    /// Each `O` of the subject.
    pub(crate) organizations: Vec<String>,
    /// Other names, as they would stand in a certificate.
    pub(crate) names: Vec<SanType>,
    key: SubjectPublicKeyInfo,
}

impl Request {
    /// Reads `spec.request`.
    pub(crate) fn parse(stored: &Value) -> Result<Self, String> {
        let pem = BASE64
            .decode(stored.as_str().unwrap_or_default())
            .map_err(|error| error.to_string())?;
        let der = CertificateSigningRequestDer::from_pem_slice(&pem)
            .map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_owned())?;
        let (rest, request) =
            X509CertificationRequest::from_der(&der).map_err(|error| format!("x509: {error}"))?;
        if !rest.is_empty() {
            return Err("asn1: syntax error: trailing data".to_owned());
        }
        request
            .verify_signature()
            .map_err(|_| "x509: the signature is not the key's".to_owned())?;
        let info = &request.certification_request_info;
        let text = |attribute: &AttributeTypeAndValue<'_>| {
            attribute
                .as_str()
                .map(ToOwned::to_owned)
                .map_err(|_| "x509: the subject is not text".to_owned())
        };
        let common_name = info
            .subject
            .iter_common_name()
            .last()
            .map(text)
            .transpose()?
            .unwrap_or_default();
        let organizations = info
            .subject
            .iter_organization()
            .map(text)
            .collect::<Result<_, _>>()?;
        let mut names = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(list) = extension {
                for name in &list.general_names {
                    names.push(alternative(name)?);
                }
            }
        }
        let key =
            SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|error| format!("x509: {error}"))?;
        Ok(Self {
            common_name,
            organizations,
            names,
            key,
        })
    }

    /// The key for which a certificate is wanted.
    pub(crate) const fn key(&self) -> &(impl PublicKeyData + use<>) {
        &self.key
    }
}

fn alternative(name: &GeneralName<'_>) -> Result<SanType, String> {
    let odd = || "x509: a name in the request is of a kind that is not signed here".to_owned();
    let text = |text: &str| text.try_into().map_err(|_| odd());
    Ok(match name {
        GeneralName::DNSName(name) => SanType::DnsName(text(name)?),
        GeneralName::RFC822Name(name) => SanType::Rfc822Name(text(name)?),
        GeneralName::URI(name) => SanType::URI(text(name)?),
        GeneralName::IPAddress(bytes) => SanType::IpAddress(match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).map_err(|_| odd())?.into(),
            16 => <[u8; 16]>::try_from(*bytes).map_err(|_| odd())?.into(),
            _ => return Err(odd()),
        }),
        _ => return Err(odd()),
    })
}
