//! The rack network: which address leads to which API server.
//!
//! Servers know the address that stands in their bootstrap kubeconfig (`192.168.100.2:8443`). Where the API server behind it
//! really listens, a loopback port with a path for the cluster, is known here alone. Who dials checks the certificate
//! against the authority in the kubeconfig; nothing is skipped because the network is simulated.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::{Client, Config};

/// The rack network. Copies are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    bindings: Arc<RwLock<BTreeMap<String, Binding>>>,
}

#[derive(Clone, Debug)]
struct Binding {
    owner: String,
    base: Uri,
}

/// Why an address could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another owner has it.
    // Whose it is, the one who asks must not learn.
    #[error("address {address} leads to another control plane already; choose another controlPlane.endpoint")]
    Taken {
        /// The address.
        address: String,
    },
    /// It is no `host:port`.
    #[error("address {0:?} is no host with a port; write it like 192.168.100.2:8443")]
    Malformed(String),
    /// Only encrypted servers are dialled.
    #[error("target {0} of an address must be an https URL")]
    NotHttps(Uri),
}

/// Why a server could not dial.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no route to {0}: no control plane is bound to that address")]
    NoRoute(String),
    #[error("server {0:?} of the kubeconfig is no https URL")]
    Server(String),
    #[error("cannot make a client for {address}: {source}")]
    Client {
        address: String,
        source: Box<kube::Error>,
    },
}

/// Who a server says it is.
pub(crate) enum Identity<'a> {
    Token(&'a str),
    Certificate { certificate: &'a str, key: &'a str },
}

impl Network {
    /// A network without any address.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `address` (`host:port`; port 443 when none is given) lead to `base`, an https URL that may have a path. The
    /// same owner may bind again, to another base too.
    ///
    /// # Errors
    /// When the address belongs to another owner, or one of the two cannot be dialled.
    pub fn bind(&self, address: &str, owner: &str, base: Uri) -> Result<(), BindError> {
        let address = normal(address).ok_or_else(|| BindError::Malformed(address.to_owned()))?;
        if base.scheme_str() != Some("https") || base.host().is_none() {
            return Err(BindError::NotHttps(base));
        }
        let mut bindings = self.bindings.write().unwrap_or_else(PoisonError::into_inner);
        match bindings.get(&address) {
            Some(binding) if binding.owner != owner => Err(BindError::Taken { address }),
            _ => {
                bindings.insert(
                    address,
                    Binding {
                        owner: owner.to_owned(),
                        base,
                    },
                );
                Ok(())
            }
        }
    }

    /// Takes back every address that leads to this owner; tells how many there were. An owner may have several: machines
    /// that joined before its endpoint was changed go on with the old one.
    pub fn release(&self, owner: &str) -> usize {
        let mut bindings = self.bindings.write().unwrap_or_else(PoisonError::into_inner);
        let before = bindings.len();
        bindings.retain(|_, binding| binding.owner != owner);
        before - bindings.len()
    }

    /// Where an address leads.
    #[must_use]
    pub fn target(&self, address: &str) -> Option<Uri> {
        let bindings = self.bindings.read().unwrap_or_else(PoisonError::into_inner);
        Some(bindings.get(&normal(address)?)?.base.clone())
    }

    /// A client for the API server behind the server URL of a kubeconfig.
    pub(crate) fn dial(
        &self,
        server: &str,
        authority: Vec<Vec<u8>>,
        identity: &Identity<'_>,
    ) -> Result<Client, DialError> {
        let url: Uri = server.parse().map_err(|_| DialError::Server(server.to_owned()))?;
        let (Some("https"), Some(address)) = (url.scheme_str(), url.authority()) else {
            return Err(DialError::Server(server.to_owned()));
        };
        let address = address.as_str().to_owned();
        let base = self
            .target(&address)
            .ok_or_else(|| DialError::NoRoute(address.clone()))?;
        let mut config = Config::new(base);
        config.root_cert = Some(authority);
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(30));
        match identity {
            Identity::Token(token) => config.auth_info.token = Some((*token).to_owned().into()),
            Identity::Certificate { certificate, key } => {
                config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
                config.auth_info.client_key_data = Some(STANDARD.encode(key).into());
            }
        }
        Client::try_from(config).map_err(|source| DialError::Client {
            address,
            source: Box::new(source),
        })
    }
}

/// An address with its port, in one spelling.
fn normal(address: &str) -> Option<String> {
    let address = address.trim().to_ascii_lowercase();
    let parsed: http::uri::Authority = address.parse().ok()?;
    let plain = !parsed.host().is_empty() && !address.contains('@');
    plain.then(|| format!("{}:{}", parsed.host(), parsed.port_u16().unwrap_or(443)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_one_owner_who_may_bind_it_again() {
        let network = Network::new();
        network
            .bind(
                "192.168.100.2:8443",
                "tenant one",
                base("https://127.0.0.1:6443/clusters/one"),
            )
            .unwrap();
        network
            .bind(
                "192.168.100.2:8443",
                "tenant one",
                base("https://127.0.0.1:7443/clusters/one"),
            )
            .unwrap();
        let taken = network.bind(
            "192.168.100.2:8443",
            "tenant two",
            base("https://127.0.0.1:6443/clusters/two"),
        );
        assert_eq!(
            taken.unwrap_err().to_string(),
            "address 192.168.100.2:8443 leads to another control plane already; choose another controlPlane.endpoint"
        );
        assert_eq!(
            network.target("192.168.100.2:8443"),
            Some(base("https://127.0.0.1:7443/clusters/one"))
        );
    }

    #[test]
    fn an_owner_that_goes_leaves_no_address_behind_and_takes_no_other() {
        let network = Network::new();
        for (address, owner) in [
            ("one.example", "one"),
            ("192.168.100.2:8443", "one"),
            ("two.example", "two"),
        ] {
            network
                .bind(address, owner, base("https://127.0.0.1:6443"))
                .unwrap();
        }
        assert_eq!(network.release("one"), 2);
        assert_eq!(network.target("one.example"), None);
        assert_eq!(network.target("192.168.100.2:8443"), None);
        assert!(network.target("two.example").is_some());
        network
            .bind("192.168.100.2:8443", "two", base("https://127.0.0.1:6443"))
            .unwrap();
    }

    #[test]
    fn what_cannot_be_dialled_is_not_bound() {
        let network = Network::new();
        assert!(matches!(
            network.bind("", "one", base("https://a")),
            Err(BindError::Malformed(_))
        ));
        assert!(matches!(
            network.bind("a@b:1", "one", base("https://a")),
            Err(BindError::Malformed(_))
        ));
        assert!(matches!(
            network.bind("a:1", "one", base("http://a")),
            Err(BindError::NotHttps(_))
        ));
    }

    #[test]
    fn nobody_answers_at_an_address_without_a_control_plane() {
        let dialled = Network::new().dial("https://192.168.100.2:8443", Vec::new(), &Identity::Token("t"));
        assert!(matches!(dialled, Err(DialError::NoRoute(address)) if address == "192.168.100.2:8443"));
    }
}
