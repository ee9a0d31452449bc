//! How a server gets its certificate: a key of its own, a signing request with the bootstrap token, and patience.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;
use tokio::time::sleep;

use crate::identity::digest;

/// Signs certificates for kubelets.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// What a kubelet with an elliptic key asks for. (With an RSA key it would ask for key encipherment, too.)
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error("a signing request could not be made: {0}")]
    Key(#[from] rcgen::Error),
    #[error("signing request {name} was {what}: {message}")]
    Refused {
        name: String,
        what: String,
        message: String,
    },
    #[error("signing request {0} has gone")]
    Gone(String),
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// A new private key, as PEM.
pub(crate) fn new_key() -> Result<String, JoinError> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Asks for a certificate for `node` with `key`, and waits until it is issued. The same key asks with the same request.
pub(crate) async fn certificate(
    client: Client,
    node: &str,
    key: &str,
    poll: Duration,
) -> Result<String, JoinError> {
    let key = KeyPair::from_pem(key)?;
    let name = format!("node-csr-{}", digest(&[node, &key.public_key_pem()], 43));
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let request = request(&name, node, &key)?;
    match requests.create(&PostParams::default(), &request).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other?),
    }
    loop {
        let Some(seen) = requests.get_opt(&name).await? else {
            return Err(JoinError::Gone(name));
        };
        let status = seen.status.unwrap_or_default();
        for condition in status.conditions.iter().flatten() {
            if matches!(condition.type_.as_str(), "Denied" | "Failed") {
                let message = condition.message.clone().unwrap_or_default();
                return Err(JoinError::Refused {
                    name,
                    what: condition.type_.to_lowercase(),
                    message,
                });
            }
        }
        if let Some(ByteString(bytes)) = status.certificate
            && let Ok(pem) = String::from_utf8(bytes)
            && !pem.is_empty()
        {
            return Ok(pem);
        }
        sleep(poll).await;
    }
}

fn request(name: &str, node: &str, key: &KeyPair) -> Result<CertificateSigningRequest, JoinError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{node}"));
    params.distinguished_name = subject;
    let pem = params.serialize_request(key)?.pem()?;
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": ByteString(pem.into_bytes()), "signerName": SIGNER, "usages": USAGES},
    });
    Ok(serde_json::from_value(request).expect("this is a CertificateSigningRequest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_makes_the_same_name_and_another_key_another() {
        let name = |key: &str, node: &str| {
            let key = KeyPair::from_pem(key).unwrap();
            digest(&[node, &key.public_key_pem()], 43)
        };
        let (one, two) = (new_key().unwrap(), new_key().unwrap());
        assert_eq!(name(&one, "a"), name(&one, "a"));
        assert_ne!(name(&one, "a"), name(&two, "a"));
    }

    #[test]
    fn a_request_is_what_a_kubelet_sends() {
        let key = KeyPair::generate().unwrap();
        let spec = request("r", "bare-metal-2", &key).unwrap().spec;
        assert_eq!(spec.signer_name, SIGNER);
        assert_eq!(spec.usages.unwrap(), USAGES);
        let pem = String::from_utf8(spec.request.0).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{pem}");
    }
}
