//! A tenant's kubeconfig, read as data: where its API is, by which CA it is known, and one proof of who asks. Nothing in it is ever run,
//! looked up in a file, or followed elsewhere.
//!
//! Every field is known by name. Those that make a client run a program, read a file, go through a proxy, believe any certificate or act as
//! somebody else refuse the whole text (`TenantKubeconfigUnsafe`), also in an entry that the current context does not use, and so does a
//! field that is not known: what it would do, nobody here can say. What is merely incomplete is `TenantKubeconfigInvalid`.
//!
//! # Guarantees
//! No text of the kubeconfig but names of fields, the server's address and plain names gets into a reason: it holds secrets.

mod address;
mod fields;
mod material;

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

pub use address::{Address, Own};

use crate::seams::Reason;
use crate::yaml;

/// Code of what must not be used.
pub const UNSAFE: &str = "TenantKubeconfigUnsafe";
/// Code of what cannot be used as it is.
pub const INVALID: &str = "TenantKubeconfigInvalid";

/// What is trusted of a kubeconfig after parsing.
#[derive(Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    /// Where the API is.
    pub server: Address,
    /// The CA of the server, in PEM, certificates only.
    pub ca_pem: String,
    /// The same certificates in DER.
    pub ca: Vec<Vec<u8>>,
    /// Who asks.
    pub proof: Proof,
    /// When the proof ends, where it says so.
    pub expires: Option<Timestamp>,
}

/// One proof of who asks.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// A client certificate and its key.
    Certificate {
        /// The chain, in PEM.
        chain: String,
        /// The key, in PEM.
        key: String,
    },
    /// A bearer token.
    Token(String),
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("server", &self.server)
            .field("proof", &self.proof)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate { .. } => "Certificate",
            Self::Token(_) => "Token",
        })
    }
}

/// Reads a kubeconfig; `own` are the addresses of the platform's own API, which is nobody's tenant.
///
/// # Errors
/// `TenantKubeconfigUnsafe` and `TenantKubeconfigInvalid`, naming the field and what would mend it.
pub fn parse(text: &str, own: &Own) -> Result<Kubeconfig, Reason> {
    let tree = yaml::tree(text).map_err(|broken| invalid(broken.bare))?;
    fields::judge(&tree)?;
    let (context, path) = current(&tree)?;
    let (cluster, at_cluster) = entry(&tree, "clusters", "cluster", context, &path)?;
    let (user, at_user) = entry(&tree, "users", "user", context, &path)?;
    let server = text_of(cluster, "server").ok_or_else(|| {
        invalid(format!(
            "{at_cluster}.server is missing; write the address of the tenant's API"
        ))
    })?;
    let server = Address::parse(server, &format!("{at_cluster}.server"))?;
    if own.has(&server) {
        let message = format!(
            "{at_cluster}.server names the platform's own API, {}",
            server.authority()
        );
        return Err(
            Reason::new(UNSAFE, message).remedy("name the tenant's own API; the platform is no tenant")
        );
    }
    let authority = text_of(cluster, "certificate-authority-data").ok_or_else(|| {
        let message =
            format!("{at_cluster}.certificate-authority-data is missing, so nothing tells the server");
        Reason::new(UNSAFE, message).remedy("write the CA of the tenant's API into it")
    })?;
    let at = format!("{at_cluster}.certificate-authority-data");
    let ca = material::certificates(authority, &at)?;
    let (proof, expires) = proof(user, &at_user)?;
    Ok(Kubeconfig {
        server,
        ca_pem: material::pem(&ca),
        ca,
        proof,
        expires,
    })
}

/// The current context and its path.
fn current(tree: &Value) -> Result<(&Value, String), Reason> {
    let name = text_of(tree, "current-context")
        .ok_or_else(|| invalid("current-context is missing; name the context to use".to_owned()))?;
    let (index, found) = named(tree, "contexts", name)
        .ok_or_else(|| invalid("current-context names no entry of contexts; name one of them".to_owned()))?;
    let path = format!("contexts[{index}].context");
    match found.get("context").filter(|context| context.is_object()) {
        Some(context) => Ok((context, path)),
        None => Err(invalid(format!(
            "{path} is missing; name a cluster and a user in it"
        ))),
    }
}

/// What the context names in a list, and its path.
fn entry<'a>(
    tree: &'a Value,
    list: &str,
    key: &str,
    context: &Value,
    path: &str,
) -> Result<(&'a Value, String), Reason> {
    let name = text_of(context, key)
        .ok_or_else(|| invalid(format!("{path}.{key} is missing; name an entry of {list}")))?;
    let (index, found) = named(tree, list, name)
        .ok_or_else(|| invalid(format!("{path}.{key} names no entry of {list}; name one of them")))?;
    let at = format!("{list}[{index}].{key}");
    match found.get(key).filter(|inner| inner.is_object()) {
        Some(inner) => Ok((inner, at)),
        None => Err(invalid(format!("{at} is missing; fill it in"))),
    }
}

fn named<'a>(tree: &'a Value, list: &str, name: &str) -> Option<(usize, &'a Value)> {
    let entries = tree.get(list)?.as_array()?.iter().enumerate();
    entries
        .into_iter()
        .find(|(_, entry)| text_of(entry, "name") == Some(name))
}

fn proof(user: &Value, path: &str) -> Result<(Proof, Option<Timestamp>), Reason> {
    let token = text_of(user, "token");
    let chain = text_of(user, "client-certificate-data");
    let key = text_of(user, "client-key-data");
    match (token, chain, key) {
        (Some(token), None, None) => Ok((
            Proof::Token(material::token(token, &format!("{path}.token"))?),
            None,
        )),
        (None, Some(chain), Some(key)) => {
            let chain = material::certificates(chain, &format!("{path}.client-certificate-data"))?;
            let expires = material::ends(&chain);
            let key = material::key(key, &format!("{path}.client-key-data"))?;
            let chain = material::pem(&chain);
            Ok((Proof::Certificate { chain, key }, expires))
        }
        (None, Some(_), None) => Err(invalid(format!(
            "{path}.client-key-data is missing; write the key of the client certificate into it"
        ))),
        (None, None, Some(_)) => Err(invalid(format!(
            "{path}.client-certificate-data is missing; write the certificate of the key into it"
        ))),
        (None, None, None) => Err(invalid(format!(
            "{path} has no credentials; write client-certificate-data and client-key-data, or token"
        ))),
        (Some(_), ..) => Err(invalid(format!(
            "{path} has both a token and a client certificate; keep one of them"
        ))),
    }
}

/// A text that is set and not empty.
fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

fn invalid(message: String) -> Reason {
    Reason::new(INVALID, message)
}

#[cfg(test)]
mod tests;
