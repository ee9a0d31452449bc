//! Where an API is, in one spelling, and which addresses are the platform's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{INVALID, UNSAFE};
use crate::seams::Reason;
use crate::values::syntax;

/// Port of https.
const HTTPS: u16 = 443;
/// The platform's own API as every pod of the platform knows it.
const SERVICE: [&str; 3] = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
/// Longest URL: a name, a port and some path.
const MAX_URL: usize = 512;
/// One name for all ways to say "this machine".
const LOOPBACK: &str = "localhost";

/// An https URL of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// As it was written, less the end of an empty path.
    pub url: String,
    /// Name or IP address in lower case and its one spelling.
    host: String,
    port: u16,
}

impl Address {
    /// Reads a URL; `path` is the field that it stands in.
    ///
    /// # Errors
    /// `TenantKubeconfigUnsafe` where it is not https or says more than where the server is, `TenantKubeconfigInvalid` where it is none.
    pub fn parse(url: &str, path: &str) -> Result<Self, Reason> {
        let broken = || {
            Reason::new(INVALID, format!("{path} is no address"))
                .remedy("write it like https://192.168.100.2:8443")
        };
        let Some(rest) = url.strip_prefix("https://") else {
            return Err(
                Reason::new(UNSAFE, format!("{path} does not begin with https://"))
                    .remedy("write it like https://192.168.100.2:8443"),
            );
        };
        if rest.contains(['@', '?', '#']) {
            let message = format!("{path} holds more than host, port and path");
            return Err(Reason::new(UNSAFE, message).remedy("write it like https://192.168.100.2:8443"));
        }
        let (authority, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let plain = |part: &str| {
            part != "."
                && part != ".."
                && part.bytes().all(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':')
                })
        };
        if url.len() > MAX_URL || !tail.split('/').all(plain) || tail.contains("//") {
            return Err(broken());
        }
        let (host, port) = split(authority).ok_or_else(broken)?;
        let tail = tail.trim_end_matches('/');
        Ok(Self {
            url: format!("https://{authority}{tail}"),
            host,
            port,
        })
    }

    /// `host:port` in the one spelling.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Host in its one spelling, and port.
fn split(authority: &str) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inner, port) = rest.split_once(']')?;
            let ip: Ipv6Addr = inner.parse().ok()?;
            (one_spelling(IpAddr::V6(ip)), port.strip_prefix(':'))
        }
        None => {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            (name(host)?, port)
        }
    };
    let port = match port {
        None => HTTPS,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0)?
        }
        Some(_) => return None,
    };
    Some((host, port))
}

fn name(host: &str) -> Option<String> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Some(one_spelling(IpAddr::V4(ip)));
    }
    // Resolvers read `2130706433`, `127.1` and `0x7f.1` as addresses: a name never ends in a number.
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if number || syntax::subdomain(&host).is_err() {
        return None;
    }
    if host == LOOPBACK || host.ends_with(".localhost") {
        return Some(LOOPBACK.to_owned());
    }
    Some(host)
}

fn one_spelling(ip: IpAddr) -> String {
    let ip = ip.to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        LOOPBACK.to_owned()
    } else {
        ip.to_string()
    }
}

/// The addresses of the platform's own API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own(Vec<(String, u16)>);

impl Own {
    /// From the URLs that the host reaches the platform by, and `host:port` pairs; what is neither is left out.
    pub fn new<'a>(known: impl IntoIterator<Item = &'a str>) -> Self {
        let places = known.into_iter().filter_map(|one| {
            let rest = one
                .strip_prefix("https://")
                .or_else(|| one.strip_prefix("http://"))
                .unwrap_or(one);
            split(rest.split('/').next().unwrap_or_default())
        });
        Self(places.collect())
    }

    /// Whether an address is one of them, or the name that every pod of the platform knows the platform by.
    #[must_use]
    pub fn has(&self, address: &Address) -> bool {
        let service =
            SERVICE.contains(&address.host.as_str()) || address.host.starts_with("kubernetes.default.svc.");
        service
            || self
                .0
                .iter()
                .any(|(host, port)| *host == address.host && *port == address.port)
    }
}
