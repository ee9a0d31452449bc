//! Who is asking: from a client certificate of the addressed cluster, a token of the server, or a bootstrap token.
//!
//! # Guarantees
//! A certificate or token that does not hold is never the same as none: the request is refused, not anonymous.
//! What a caller may do hangs on a fixed role alone; nothing in the cluster can give it more.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::status::ApiError;
use crate::tls::Authority;

/// Group of those who may do everything.
pub const ADMINISTRATORS: &str = "system:masters";

/// Group of the programs that run this cluster, which may do everything too.
pub const CONTROLLERS: &str = "system:controllers";

/// Group of nodes.
pub(crate) const NODES: &str = "system:nodes";

/// Begin of a node's user name.
pub(crate) const NODE_PREFIX: &str = "system:node:";

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const BOOTSTRAP_PREFIX: &str = "system:bootstrap:";
const BOOTSTRAP_TYPE: &str = "bootstrap.kubernetes.io/token";
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Administrator,
    /// Everything: a program that runs this cluster.
    Host,
    /// Ask for its first certificate.
    Bootstrapper,
    /// What one node needs.
    Node {
        /// Name of the node.
        name: String,
    },
    /// Known, with no rights.
    Guest,
    /// Not known.
    Anonymous,
}

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// Groups.
    pub groups: Vec<String>,
    /// More about the user, like which credential was shown.
    pub extra: BTreeMap<String, Vec<String>>,
    /// What follows from all that.
    pub role: Role,
}

impl Identity {
    /// Someone whose name and groups are proved.
    pub(crate) fn known(user: impl Into<String>, mut groups: Vec<String>) -> Self {
        let user = user.into();
        groups.retain(|group| group != AUTHENTICATED && group != UNAUTHENTICATED);
        let role = role_of(&user, &groups);
        groups.push(AUTHENTICATED.to_owned());
        Self {
            user,
            groups,
            extra: BTreeMap::new(),
            role,
        }
    }

    /// An administrator, for callers in this process.
    pub fn administrator() -> Self {
        Self::known("kubernetes-admin", vec![ADMINISTRATORS.to_owned()])
    }

    /// A program that runs the cluster, for callers in this process.
    pub fn host(user: impl Into<String>) -> Self {
        Self::known(user, vec![CONTROLLERS.to_owned()])
    }

    /// Someone who showed nothing.
    pub(crate) fn anonymous() -> Self {
        Self {
            user: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            extra: BTreeMap::new(),
            role: Role::Anonymous,
        }
    }

    fn holding(mut self, credential: String) -> Self {
        self.extra.insert(CREDENTIAL.to_owned(), vec![credential]);
        self
    }
}

fn role_of(user: &str, groups: &[String]) -> Role {
    let is_in = |name: &str| groups.iter().any(|group| group == name);
    if is_in(ADMINISTRATORS) {
        return Role::Administrator;
    }
    if is_in(CONTROLLERS) {
        return Role::Host;
    }
    match user.strip_prefix(NODE_PREFIX) {
        Some(name) if is_in(NODES) && !name.is_empty() => Role::Node {
            name: name.to_owned(),
        },
        _ if is_in(BOOTSTRAPPERS) && user.starts_with(BOOTSTRAP_PREFIX) => Role::Bootstrapper,
        _ => Role::Guest,
    }
}

/// A token that the server made for one caller; only its digest is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StaticToken {
    digest: [u8; 32],
    identity: Identity,
}

impl StaticToken {
    /// A token for someone.
    pub(crate) fn new(token: &str, identity: Identity) -> Self {
        Self {
            digest: digest(token),
            identity,
        }
    }
}

/// A new token: 32 random bytes.
pub(crate) fn mint_token() -> String {
    let bytes: [u8; 32] = rand::random();
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// What a caller showed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credentials<'a> {
    /// Certificates of the TLS handshake, the client's own first.
    pub(crate) chain: &'a [CertificateDer<'static>],
    /// The `Authorization` header.
    pub(crate) authorization: Option<&'a str>,
}

impl<'a> Credentials<'a> {
    /// The bearer token; an empty one counts as none, as on the real server.
    fn bearer(&self) -> Option<&'a str> {
        let (scheme, token) = self.authorization?.trim().split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }
}

/// What the addressed cluster knows of its callers.
pub(crate) struct Realm<'a> {
    /// Signs the certificates of the cluster's clients.
    pub(crate) authority: &'a Authority,
    /// Tokens that the server made.
    pub(crate) tokens: &'a [StaticToken],
    /// Reads a Secret of `kube-system` by name.
    pub(crate) secret: &'a dyn Fn(&str) -> Option<Value>,
}

/// Finds out who is asking. A certificate is looked at first; a token may stand in for one that does not hold.
pub(crate) fn authenticate(
    credentials: Credentials<'_>,
    realm: &Realm<'_>,
    now: Timestamp,
) -> Result<Identity, ApiError> {
    if !credentials.chain.is_empty()
        && let Some(identity) = from_certificate(credentials.chain, realm.authority, now)
    {
        return Ok(identity);
    }
    match credentials.bearer() {
        Some(token) => from_token(token, realm, now).ok_or_else(ApiError::unauthorized),
        None if credentials.chain.is_empty() => Ok(Identity::anonymous()),
        None => Err(ApiError::unauthorized()),
    }
}

fn from_certificate(chain: &[CertificateDer<'_>], authority: &Authority, now: Timestamp) -> Option<Identity> {
    if !authority.vouches_for(chain, now) {
        return None;
    }
    let own = chain.first()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(own).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().last()?.as_str().ok()?;
    if user.is_empty() {
        return None;
    }
    let groups: Result<Vec<String>, _> = subject
        .iter_organization()
        .map(|group| group.as_str().map(ToOwned::to_owned))
        .collect();
    let fingerprint: String = Sha256::digest(own)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(Identity::known(user, groups.ok()?).holding(format!("X509SHA256={fingerprint}")))
}

fn from_token(token: &str, realm: &Realm<'_>, now: Timestamp) -> Option<Identity> {
    let shown = digest(token);
    let made = realm.tokens.iter().find(|made| is_same(&made.digest, &shown));
    made.map(|made| made.identity.clone())
        .or_else(|| from_bootstrap_token(token, realm.secret, now))
}

/// Compares without telling by its time where two texts begin to differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// `abcdef.0123456789abcdef`
fn parse_bootstrap_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

fn from_bootstrap_token(
    token: &str,
    secret: &dyn Fn(&str) -> Option<Value>,
    now: Timestamp,
) -> Option<Identity> {
    let (id, password) = parse_bootstrap_token(token)?;
    let secret = secret(&format!("bootstrap-token-{id}"))?;
    let data = |key: &str| {
        let bytes = BASE64
            .decode(secret["data"][key].as_str().unwrap_or_default())
            .ok()?;
        String::from_utf8(bytes).ok()
    };
    let usable = secret["metadata"]["deletionTimestamp"].is_null()
        && secret["type"] == BOOTSTRAP_TYPE
        && data("token-id").as_deref() == Some(id)
        && data("usage-bootstrap-authentication").as_deref() == Some("true");
    let expected = digest(&data("token-secret")?);
    if !usable || !is_same(&expected, &digest(password)) || has_expired(data("expiration"), now) {
        return None;
    }
    let mut groups = BTreeSet::from([BOOTSTRAPPERS.to_owned()]);
    for group in data("auth-extra-groups")
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|one| !one.is_empty())
    {
        if !is_bootstrap_group(group) {
            return None;
        }
        groups.insert(group.to_owned());
    }
    Some(Identity::known(
        format!("{BOOTSTRAP_PREFIX}{id}"),
        groups.into_iter().collect(),
    ))
}

/// A time that cannot be read has passed.
fn has_expired(expiration: Option<String>, now: Timestamp) -> bool {
    match expiration.as_deref() {
        None | Some("") => false,
        Some(at) => at.parse::<Timestamp>().is_ok_and(|at| now < at).eq(&false),
    }
}

/// `system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]`
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else {
        return false;
    };
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.len() <= 256
        && rest.as_bytes().last().is_some_and(alphanumeric)
        && rest
            .bytes()
            .all(|byte| alphanumeric(&byte) || byte == b':' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;
    use rustls::pki_types::pem::PemObject;
    use serde_json::json;

    use super::*;

    fn noon() -> Timestamp {
        "2026-08-20T12:00:00Z".parse().unwrap()
    }

    fn bootstrap_secret() -> Value {
        let data = |text: &str| BASE64.encode(text);
        json!({
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {
                "token-id": data("abcdef"), "token-secret": data("0123456789abcdef"),
                "usage-bootstrap-authentication": data("true"),
                "auth-extra-groups": data("system:bootstrappers:nodes"),
                "expiration": data("2026-08-20T13:00:00Z"),
            },
        })
    }

    fn ask(
        authority: &Authority,
        chain: &[CertificateDer<'static>],
        authorization: Option<&str>,
        secret: &Value,
        now: Timestamp,
    ) -> Result<Identity, ApiError> {
        let tokens = [StaticToken::new("made", Identity::administrator())];
        let secret = |name: &str| (secret["metadata"]["name"] == name).then(|| secret.clone());
        let realm = Realm {
            authority,
            tokens: &tokens,
            secret: &secret,
        };
        authenticate(Credentials { chain, authorization }, &realm, now)
    }

    fn with_token(authorization: &str, secret: &Value, now: Timestamp) -> Result<Identity, ApiError> {
        ask(
            &Authority::generate("clients", noon()).unwrap(),
            &[],
            Some(authorization),
            secret,
            now,
        )
    }

    fn certificate(authority: &Authority, name: &str, group: Option<&str>) -> Vec<CertificateDer<'static>> {
        let issued = authority
            .client(name, group, noon(), SignedDuration::from_hours(1))
            .unwrap();
        vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()]
    }

    #[rstest]
    #[case("admin", Some("system:masters"), Role::Administrator)]
    #[case("host", Some("system:controllers"), Role::Host)]
    #[case("system:node:a", Some("system:nodes"), Role::Node { name: "a".into() })]
    #[case("system:node:", Some("system:nodes"), Role::Guest)]
    #[case("system:node:a", None, Role::Guest)]
    #[case("a", Some("system:nodes"), Role::Guest)]
    #[case("system:bootstrap:abcdef", Some("other"), Role::Guest)]
    fn a_certificate_gives_the_role_of_its_subject(
        #[case] name: &str,
        #[case] group: Option<&str>,
        #[case] role: Role,
    ) {
        let authority = Authority::generate("clients", noon()).unwrap();
        let chain = certificate(&authority, name, group);
        let identity = ask(&authority, &chain, None, &Value::Null, noon()).unwrap();
        assert_eq!(identity.role, role);
        assert_eq!(identity.user, name);
        assert_eq!(
            identity.groups.last().map(String::as_str),
            Some("system:authenticated")
        );
        assert!(identity.extra[CREDENTIAL][0].starts_with("X509SHA256="));
    }

    #[test]
    fn a_certificate_of_another_cluster_is_refused_and_not_anonymous() {
        let authority = Authority::generate("clients", noon()).unwrap();
        let other = Authority::generate("clients", noon()).unwrap();
        let chain = certificate(&other, "admin", Some("system:masters"));
        let error = ask(&authority, &chain, None, &Value::Null, noon()).unwrap_err();
        assert_eq!(
            (error.code.as_u16(), error.message.as_str()),
            (401, "Unauthorized")
        );
        let by_token = ask(&authority, &chain, Some("Bearer made"), &Value::Null, noon()).unwrap();
        assert_eq!(by_token.role, Role::Administrator);
    }

    #[test]
    fn nothing_shown_is_anonymous() {
        let authority = Authority::generate("clients", noon()).unwrap();
        for authorization in [None, Some("Bearer "), Some("Basic abc")] {
            let identity = ask(&authority, &[], authorization, &Value::Null, noon()).unwrap();
            assert_eq!(
                (identity.user.as_str(), identity.role),
                ("system:anonymous", Role::Anonymous)
            );
        }
    }

    #[test]
    fn a_bootstrap_token_is_a_bootstrapper_with_its_groups() {
        let identity = with_token("Bearer abcdef.0123456789abcdef", &bootstrap_secret(), noon()).unwrap();
        assert_eq!(identity.user, "system:bootstrap:abcdef");
        assert_eq!(
            identity.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:nodes",
                "system:authenticated"
            ]
        );
        assert_eq!(identity.role, Role::Bootstrapper);
    }

    #[rstest]
    #[case::wrong_secret("abcdef.0123456789abcdee", "/x", json!(0))]
    #[case::other_id("abcdeg.0123456789abcdef", "/x", json!(0))]
    #[case::not_a_token("abcdef", "/x", json!(0))]
    #[case::type_of_another("abcdef.0123456789abcdef", "/type", json!("Opaque"))]
    #[case::deleted("abcdef.0123456789abcdef", "/metadata/deletionTimestamp", json!("2026-08-20T11:00:00Z"))]
    #[case::not_for_this("abcdef.0123456789abcdef", "/data/usage-bootstrap-authentication", json!("ZmFsc2U="))]
    #[case::id_of_another("abcdef.0123456789abcdef", "/data/token-id", json!("YWJjZGVn"))]
    #[case::no_secret("abcdef.0123456789abcdef", "/data/token-secret", json!(null))]
    #[case::odd_expiry("abcdef.0123456789abcdef", "/data/expiration", json!("c29vbg=="))]
    #[case::masters("abcdef.0123456789abcdef", "/data/auth-extra-groups", json!("c3lzdGVtOm1hc3RlcnM="))]
    fn a_bootstrap_token_that_does_not_hold_is_refused(
        #[case] token: &str,
        #[case] path: &str,
        #[case] value: Value,
    ) {
        let mut secret = bootstrap_secret();
        if let Some((parent, last)) = path.rsplit_once('/') {
            secret.pointer_mut(parent).unwrap()[last] = value;
        }
        let error = with_token(&format!("Bearer {token}"), &secret, noon()).unwrap_err();
        assert_eq!(error.code.as_u16(), 401);
    }

    #[test]
    fn a_bootstrap_token_ends_with_its_time() {
        let at = |time: &str| {
            with_token(
                "Bearer abcdef.0123456789abcdef",
                &bootstrap_secret(),
                time.parse().unwrap(),
            )
        };
        assert!(at("2026-08-20T12:59:59Z").is_ok());
        assert!(at("2026-08-20T13:00:00Z").is_err());
        let mut forever = bootstrap_secret();
        forever["data"].as_object_mut().unwrap().remove("expiration");
        assert!(
            with_token(
                "bearer abcdef.0123456789abcdef",
                &forever,
                noon() + SignedDuration::from_hours(9)
            )
            .is_ok()
        );
    }

    #[test]
    fn minted_tokens_differ_and_are_no_bootstrap_tokens() {
        let (a, b) = (mint_token(), mint_token());
        assert_ne!(a, b);
        assert!(a.len() > 40 && parse_bootstrap_token(&a).is_none());
    }
}
