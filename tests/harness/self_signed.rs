//! TLS of a server on loopback that no authority vouches for.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate of 127.0.0.1 that is its own authority.
pub(crate) struct SelfSigned {
    /// What a client has to trust.
    pub(crate) ca_pem: String,
    /// What the server serves with.
    pub(crate) config: Arc<rustls::ServerConfig>,
}

impl SelfSigned {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let ca_pem = certificate.pem();
        let chain = vec![CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()];
        let secret = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .unwrap();
        Self {
            ca_pem,
            config: Arc::new(config),
        }
    }
}
