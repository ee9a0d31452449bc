//! Certificates: the authorities of the server and of each logical cluster, and the server's side of TLS.
//!
//! The server has one authority for its own certificate. Each logical cluster has another one for the certificates of
//! its clients, made with the cluster, so that a certificate of one cluster, or of an earlier one of the same name,
//! means nothing in another. Which cluster a request addresses is known only after the handshake; so the handshake
//! proves no more than that the client has the key, and [`crate::authenticate`] looks at the rest.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// An authority outlives every installation that will want to keep its address.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(24 * 365 * 10);

/// Certificates begin a little before they are made, for clients whose clock is behind.
pub(crate) const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// Names under which the server is always reached.
const OWN_NAMES: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

/// Something about certificates that did not work.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Making or reading a certificate failed.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A stored authority cannot be read.
    #[error("stored certificate authority is damaged ({0}); delete the state and start afresh")]
    Damaged(String),
    /// The TLS library refused what we gave it.
    #[error("tls: {0}")]
    Rustls(#[from] rustls::Error),
}

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// What a certificate says.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// `CN` of the subject.
    pub(crate) common_name: String,
    /// `O` of the subject.
    pub(crate) organization: Option<String>,
    /// Other names.
    pub(crate) names: Vec<SanType>,
    /// Key usages.
    pub(crate) usages: Vec<KeyUsagePurpose>,
    /// Extended key usages.
    pub(crate) purposes: Vec<ExtendedKeyUsagePurpose>,
    /// First moment.
    pub(crate) from: Timestamp,
    /// Last moment.
    pub(crate) until: Timestamp,
}

impl Wanted {
    /// What a client's certificate says.
    pub(crate) fn client(
        common_name: &str,
        organization: Option<&str>,
        from: Timestamp,
        until: Timestamp,
    ) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organization: organization.map(ToOwned::to_owned),
            names: Vec::new(),
            usages: vec![
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyEncipherment,
            ],
            purposes: vec![ExtendedKeyUsagePurpose::ClientAuth],
            from,
            until,
        }
    }

    fn params(self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(organization) = self.organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        params
            .distinguished_name
            .push(DnType::CommonName, self.common_name);
        params.subject_alt_names = self.names;
        params.key_usages = self.usages;
        params.extended_key_usages = self.purposes;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, self.from, self.until);
        params
    }
}

fn set_validity(params: &mut CertificateParams, from: Timestamp, until: Timestamp) {
    let since_epoch = |at: Timestamp| Duration::from_secs(at.as_second().try_into().unwrap_or_default());
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(from);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(until);
    // Random, positive and never shorter for a leading zero.
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

/// A certificate authority.
pub struct Authority {
    certificate: String,
    der: CertificateDer<'static>,
    not_after: Timestamp,
    issuer: Issuer<'static, KeyPair>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl std::fmt::Debug for Authority {
    /// Leaves the key out.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority with a key of its own.
    pub fn generate(common_name: &str, now: Timestamp) -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, now - BACKDATE, now + AUTHORITY_LIFE);
        let certificate = params.self_signed(&key)?.pem();
        Self::of(certificate, key)
    }

    /// An authority that was stored with [`Authority::to_pem`].
    pub fn load(stored: &str) -> Result<Self, TlsError> {
        let damaged = || TlsError::Damaged("no certificate with its key".to_owned());
        let at = stored.find("-----BEGIN PRIVATE KEY-----").ok_or_else(damaged)?;
        let (certificate, key) = stored.split_at(at);
        Self::of(certificate.to_owned(), KeyPair::from_pem(key)?)
    }

    fn of(certificate: String, key: KeyPair) -> Result<Self, TlsError> {
        let damaged = |why: &dyn std::fmt::Display| TlsError::Damaged(why.to_string());
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| damaged(&error))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|error| damaged(&error))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(TlsError::Damaged("the key is not the certificate's".to_owned()));
        }
        let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())
            .map_err(|error| damaged(&error))?;
        let mut roots = RootCertStore::empty();
        roots.add(der.clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| damaged(&error))?;
        let issuer = Issuer::from_ca_cert_der(&der, key)?;
        Ok(Self {
            certificate,
            der,
            not_after,
            issuer,
            verifier,
        })
    }

    /// Certificate and key, to be stored.
    pub fn to_pem(&self) -> String {
        format!("{}{}", self.certificate, self.issuer.key().serialize_pem())
    }

    /// The certificate, for clients to trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// End of life; nothing that this authority signs lives longer.
    pub(crate) const fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Signs a certificate for a key that someone else has.
    pub(crate) fn sign(&self, wanted: Wanted, key: &impl PublicKeyData) -> Result<String, TlsError> {
        Ok(wanted.params().signed_by(key, &self.issuer)?.pem())
    }

    /// A certificate for a client of this authority's cluster, with a new key.
    pub fn client(
        &self,
        common_name: &str,
        organization: Option<&str>,
        now: Timestamp,
        life: SignedDuration,
    ) -> Result<Issued, TlsError> {
        let until = (now + life).min(self.not_after);
        let key = KeyPair::generate()?;
        let certificate = self.sign(
            Wanted::client(common_name, organization, now - BACKDATE, until),
            &key,
        )?;
        Ok(Issued {
            certificate,
            key: key.serialize_pem(),
        })
    }

    /// Whether a chain leads from a client's certificate to this authority, is in its time, and is for clients.
    pub(crate) fn vouches_for(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> bool {
        let Some((own, rest)) = chain.split_first() else {
            return false;
        };
        let seconds = now.as_second().try_into().unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        match self.verifier.verify_client_cert(own, rest, now) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "client certificate refused");
                false
            }
        }
    }

    /// The server's side of TLS, with a certificate of this authority for the server's own names and these.
    ///
    /// A client may present a certificate and need not; see the module's beginning for what is checked of it.
    pub fn server_config(&self, names: &[String], now: Timestamp) -> Result<ServerConfig, TlsError> {
        let mut all: Vec<String> = OWN_NAMES.iter().map(ToString::to_string).collect();
        for name in names {
            if !all.contains(name) {
                all.push(name.clone());
            }
        }
        let names = CertificateParams::new(all)?.subject_alt_names;
        let wanted = Wanted {
            common_name: "apiserver".to_owned(),
            organization: None,
            names,
            usages: vec![
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyEncipherment,
            ],
            purposes: vec![ExtendedKeyUsagePurpose::ServerAuth],
            from: now - BACKDATE,
            until: self.not_after,
        };
        let key = KeyPair::generate()?;
        let own = wanted.params().signed_by(&key, &self.issuer)?.der().clone();
        let key =
            PrivateKeyDer::try_from(key.serialize_der()).map_err(|why| TlsError::Damaged(why.to_owned()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(AnyClient(provider())))
            .with_single_cert(vec![own, self.der.clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Takes whatever certificate a client presents, once the client has proved that it has the key.
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};

    use super::*;

    fn noon() -> Timestamp {
        "2026-08-20T12:00:00Z".parse().unwrap()
    }

    fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()]
    }

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    #[test]
    fn a_client_of_one_cluster_is_nobody_in_another_not_even_of_the_same_name() {
        let mine = Authority::generate("clients", noon()).unwrap();
        let again = Authority::generate("clients", noon()).unwrap();
        let client = mine.client("a", Some("b"), noon(), DAY).unwrap();
        assert!(mine.vouches_for(&chain(&client), noon()));
        assert!(!again.vouches_for(&chain(&client), noon()));
        assert!(!mine.vouches_for(&[], noon()));
    }

    #[test]
    fn a_certificate_holds_from_its_first_to_its_last_moment() {
        let authority = Authority::generate("clients", noon()).unwrap();
        let client = chain(&authority.client("a", None, noon(), DAY).unwrap());
        assert!(authority.vouches_for(&client, noon() - SignedDuration::from_mins(4)));
        assert!(!authority.vouches_for(&client, noon() - SignedDuration::from_mins(6)));
        assert!(!authority.vouches_for(&client, noon() + DAY + SignedDuration::from_secs(1)));
    }

    #[test]
    fn a_certificate_for_servers_or_a_self_made_authority_is_no_client() {
        let authority = Authority::generate("clients", noon()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut wanted = Wanted::client("a", Some("system:masters"), noon(), noon() + DAY);
        wanted.purposes = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = authority.sign(wanted, &key).unwrap();
        let issued = Issued {
            certificate,
            key: String::new(),
        };
        assert!(!authority.vouches_for(&chain(&issued), noon()));

        // A client that calls itself an authority signs for another.
        let client = authority.client("a", None, noon(), DAY).unwrap();
        let client_key = KeyPair::from_pem(&client.key).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&client.certificate, client_key).unwrap();
        let forged = Wanted::client("b", Some("system:masters"), noon(), noon() + DAY);
        let forged = forged.params().signed_by(&key, &issuer).unwrap();
        let forged = vec![forged.der().clone(), chain(&client).remove(0)];
        assert!(!authority.vouches_for(&forged, noon()));
    }

    #[test]
    fn a_stored_authority_is_the_same_one() {
        let authority = Authority::generate("clients", noon()).unwrap();
        let client = authority.client("a", None, noon(), DAY).unwrap();
        let loaded = Authority::load(&authority.to_pem()).unwrap();
        assert!(loaded.vouches_for(&chain(&client), noon()));
        let later = loaded.client("a", None, noon(), DAY).unwrap();
        assert!(authority.vouches_for(&chain(&later), noon()));
        assert_eq!(loaded.not_after(), authority.not_after());
        assert!(!format!("{loaded:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_damaged_authority_is_told_as_such() {
        let authority = Authority::generate("clients", noon()).unwrap();
        let other = Authority::generate("clients", noon()).unwrap();
        let mixed = format!(
            "{}{}",
            authority.certificate(),
            other.issuer.key().serialize_pem()
        );
        for stored in ["", "-----BEGIN PRIVATE KEY-----", authority.certificate(), &mixed] {
            assert!(Authority::load(stored).is_err(), "{stored}");
        }
    }

    /// Shakes hands in memory; the certificates that the server saw.
    fn shake_hands(
        server: ServerConfig,
        client: ClientConfig,
        name: &'static str,
    ) -> Result<usize, rustls::Error> {
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let mut client =
            ClientConnection::new(Arc::new(client), ServerName::try_from(name).unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(server.peer_certificates().map_or(0, <[_]>::len))
    }

    #[test]
    fn a_client_may_come_with_a_certificate_of_any_cluster_or_without() {
        let now = Timestamp::now();
        let server = Authority::generate("apiserver-ca", now).unwrap();
        let cluster = Authority::generate("clients", now).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(server.der.clone()).unwrap();
        let builder = || {
            ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone())
        };
        let config = || server.server_config(&["host.example".to_owned()], now).unwrap();
        for name in ["localhost", "127.0.0.1", "::1", "host.example"] {
            assert_eq!(
                shake_hands(config(), builder().with_no_client_auth(), name),
                Ok(0)
            );
        }
        let client = cluster.client("a", None, now, DAY).unwrap();
        let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap();
        let with_certificate = builder().with_client_auth_cert(chain(&client), key).unwrap();
        assert_eq!(shake_hands(config(), with_certificate, "localhost"), Ok(1));
        // Someone else's certificate without its key.
        let other = KeyPair::generate().unwrap();
        let key = PrivateKeyDer::try_from(other.serialize_der()).unwrap();
        let signer = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let stolen = Arc::new(rustls::sign::CertifiedKey::new(chain(&client), signer));
        let thief =
            builder().with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(stolen)));
        assert!(shake_hands(config(), thief, "localhost").is_err());
        assert!(shake_hands(config(), builder().with_no_client_auth(), "other.example").is_err());
    }
}
