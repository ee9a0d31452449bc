//! The rack network: which address leads to which API server.
//!
//! Servers know the address that stands in their bootstrap kubeconfig (`192.168.100.2:8443`). Where the API server behind it
//! really listens, a loopback port with a path for the cluster, is known here alone. Who dials checks the certificate
//! against the authority in the kubeconfig; nothing is skipped because the network is simulated.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::{Client, Config};

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The rack network. Copies are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    bindings: Arc<RwLock<BTreeMap<String, Binding>>>,
    /// Kubelets by their address on the rack.
    kubelets: Arc<RwLock<BTreeMap<(IpAddr, u16), Listening>>>,
}

/// A kubelet that listens.
#[derive(Clone, Debug)]
struct Listening {
    /// Tells it from another at the same address.
    number: u64,
    /// Where it really listens.
    at: SocketAddr,
    /// The address of the API server in its kubeconfig.
    server: String,
}

/// A kubelet's place on the network; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Plug {
    network: Network,
    address: (IpAddr, u16),
    number: u64,
}

impl Drop for Plug {
    fn drop(&mut self) {
        let mut kubelets = self
            .network
            .kubelets
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if kubelets
            .get(&self.address)
            .is_some_and(|known| known.number == self.number)
        {
            kubelets.remove(&self.address);
        }
    }
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

    /// Makes an address and port of the rack lead to a kubelet that has the server URL `server` in its kubeconfig. Of two
    /// machines with one address, the one that came last is reached.
    pub(crate) fn plug(&self, address: IpAddr, port: u16, at: SocketAddr, server: &str) -> Plug {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let server = server
            .parse::<Uri>()
            .ok()
            .and_then(|url| normal(url.authority()?.as_str()));
        let listening = Listening {
            number,
            at,
            server: server.unwrap_or_default(),
        };
        let mut kubelets = self.kubelets.write().unwrap_or_else(PoisonError::into_inner);
        kubelets.insert((address, port), listening);
        Plug {
            network: self.clone(),
            address: (address, port),
            number,
        }
    }

    /// Where the kubelet at an address of the rack really listens, and the base of the API that it joined: whoever is not
    /// that API has no business with it.
    #[must_use]
    pub fn kubelet(&self, address: &str, port: u16) -> Option<(SocketAddr, Uri)> {
        let address = address.parse().ok()?;
        let found = {
            let kubelets = self.kubelets.read().unwrap_or_else(PoisonError::into_inner);
            kubelets.get(&(address, port))?.clone()
        };
        Some((found.at, self.target(&found.server)?))
    }

    /// A client for the API server behind the server URL of a kubeconfig. `patience` is how long an answer, or the next part
    /// of one, may take.
    pub(crate) fn dial(
        &self,
        server: &str,
        authority: Vec<Vec<u8>>,
        identity: &Identity<'_>,
        patience: Duration,
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
        config.read_timeout = Some(patience);
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
    fn a_kubelet_is_reached_while_it_is_plugged_in_and_the_last_one_at_its_address_counts() {
        let network = Network::new();
        let base = base("https://127.0.0.1:6443/clusters/one");
        network.bind("192.168.100.2:8443", "one", base.clone()).unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let address = "192.168.100.11".parse().unwrap();
        let old = network.plug(address, 10250, at(1), "https://192.168.100.2:8443");
        let new = network.plug(address, 10250, at(2), "https://192.168.100.2:8443");
        drop(old);
        assert_eq!(network.kubelet("192.168.100.11", 10250), Some((at(2), base)));
        assert_eq!(network.kubelet("192.168.100.12", 10250), None);
        assert_eq!(network.kubelet("192.168.100.11", 10251), None);
        // Whose API has gone belongs to nobody.
        network.release("one");
        assert_eq!(network.kubelet("192.168.100.11", 10250), None);
        drop(new);
        assert!(network.kubelets.read().unwrap().is_empty());
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
        let dialled = Network::new().dial(
            "https://192.168.100.2:8443",
            Vec::new(),
            &Identity::Token("t"),
            Duration::from_secs(1),
        );
        assert!(matches!(dialled, Err(DialError::NoRoute(address)) if address == "192.168.100.2:8443"));
    }
}
