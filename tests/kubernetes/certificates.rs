//! The authority of a real cluster: its server's certificate and those of its clients.

use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Config;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

/// Signs for one cluster.
#[derive(Debug)]
pub(crate) struct Authority {
    certificate: String,
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority, a certificate for the server and a key for service accounts, all as files.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text);
        let mut params = CertificateParams::default();
        params.distinguished_name = named("kubernetes", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let signed = params.self_signed(&key)?;
        let (certificate, der) = (signed.pem(), signed.der().to_vec());
        write("ca.crt", &certificate)?;
        write("ca.key", &key.serialize_pem())?;
        let authority = Self {
            certificate,
            der,
            issuer: Issuer::new(params, key),
        };

        let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name = named("kube-apiserver", None);
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        write("server.crt", &server.signed_by(&key, &authority.issuer)?.pem())?;
        write("server.key", &key.serialize_pem())?;
        let accounts = KeyPair::generate()?;
        write("accounts.key", &accounts.serialize_pem())?;
        write("accounts.pub", &accounts.public_key_pem())?;
        Ok(authority)
    }

    /// Its certificate, as PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.certificate
    }

    /// A certificate of a user's own, and its key, both as PEM.
    fn issue(&self, user: &str, group: Option<&str>) -> Result<(String, String)> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok((certificate, key.serialize_pem()))
    }

    /// What a client of a user connects with.
    pub(crate) fn config(&self, server: &str, user: &str, group: Option<&str>) -> Result<Config> {
        let (certificate, key) = self.issue(user, group)?;
        let mut config = Config::new(server.parse()?);
        config.root_cert = Some(vec![self.der.clone()]);
        config.read_timeout = None;
        config.auth_info.client_certificate_data = Some(BASE64.encode(certificate));
        config.auth_info.client_key_data = Some(BASE64.encode(key).into());
        Ok(config)
    }

    /// A kubeconfig for a user with a certificate of its own.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, group: Option<&str>) -> Result<String> {
        let (certificate, key) = self.issue(user, group)?;
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {
                "server": server, "certificate-authority-data": BASE64.encode(&self.certificate),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": BASE64.encode(certificate),
                "client-key-data": BASE64.encode(key),
            }}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        })
        .to_string())
    }
}

/// Kubernetes reads the user from the common name and the group from the organization.
fn named(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}
