//! The address of a server on the rack network: from DHCP, or from the network data it was installed with.
//!
//! The DHCP server of the rack answers only servers whose host carries the annotation `metal3.vcluster.com/ip-address`.
//! Network data (the OpenStack format, as YAML or JSON) sets an address by hand, for the card that the host boots from.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::bmh::{Host, IP_ADDRESS};

/// Why a server has no network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoNetwork {
    #[error(
        "the host has no annotation {IP_ADDRESS}; set it to an address with its prefix length and power the host off and on"
    )]
    Annotation,
    #[error(
        "annotation {IP_ADDRESS} is {0:?}, which is no address with a prefix length such as 192.168.100.11/24"
    )]
    Address(String),
    #[error("its network data cannot be read: {0}")]
    Data(String),
    #[error("its network data has no link with the MAC address {0}, from which the host boots")]
    Link(String),
    #[error("its network data has no usable network for link {0:?}")]
    Network(String),
}

#[derive(Deserialize)]
struct NetworkData {
    #[serde(default)]
    links: Vec<Link>,
    #[serde(default)]
    networks: Vec<Network>,
}

#[derive(Deserialize)]
struct Link {
    id: String,
    #[serde(default)]
    ethernet_mac_address: String,
}

#[derive(Deserialize)]
struct Network {
    link: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    ip_address: Option<String>,
}

/// The address that a server has after it booted.
pub(crate) fn address(host: &Host, network_data: Option<&str>) -> Result<IpAddr, NoNetwork> {
    let cidr = host.annotation(IP_ADDRESS).ok_or(NoNetwork::Annotation)?;
    let leased = parse(cidr, true).ok_or_else(|| NoNetwork::Address(cidr.to_owned()))?;
    let Some(text) = network_data.filter(|text| !text.trim().is_empty()) else {
        return Ok(leased);
    };
    // Read as a tree first: YAML of the wrong shape and no YAML at all deserve the same care.
    let tree: Value = serde_saphyr::from_str(text).map_err(|error| NoNetwork::Data(error.to_string()))?;
    let data = NetworkData::deserialize(&tree).map_err(|error| NoNetwork::Data(error.to_string()))?;
    let mac = &host.spec.boot_mac_address;
    let link = data
        .links
        .iter()
        .find(|link| link.ethernet_mac_address.eq_ignore_ascii_case(mac));
    let link = link.ok_or_else(|| NoNetwork::Link(mac.clone()))?;
    let networks = data.networks.iter().filter(|network| network.link == link.id);
    let mut found = networks.filter_map(|network| match (&network.ip_address, network.kind.as_str()) {
        (Some(address), _) => parse(address, false),
        (None, "ipv4_dhcp" | "ipv6_dhcp") => Some(leased),
        (None, _) => None,
    });
    found.next().ok_or_else(|| NoNetwork::Network(link.id.clone()))
}

fn parse(text: &str, needs_prefix: bool) -> Option<IpAddr> {
    let (address, prefix) = match text.trim().split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text.trim(), None),
    };
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    match prefix {
        Some(prefix) => prefix
            .parse::<u8>()
            .is_ok_and(|length| length <= longest)
            .then_some(address),
        None => (!needs_prefix).then_some(address),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn host(cidr: Option<&str>) -> Host {
        let mut host = Host::default();
        host.spec.boot_mac_address = "52:54:00:AB:00:01".to_owned();
        host.meta.annotations = cidr.map(|cidr| [(IP_ADDRESS.to_owned(), cidr.to_owned())].into());
        host
    }

    const STATIC: &str = "links: [{id: nic, type: phy, ethernet_mac_address: '52:54:00:ab:00:01'}]\n\
        networks: [{id: net, type: ipv4, link: nic, ip_address: 10.0.0.12, netmask: 255.255.255.0}]\n";

    #[rstest]
    #[case::is_leased(None, "10.0.0.11")]
    #[case::is_set_by_hand(Some(STATIC), "10.0.0.12")]
    #[case::is_leased_when_the_data_say_so(
        Some(
            "{\"links\": [{\"id\": \"a\", \"ethernet_mac_address\": \"52:54:00:ab:00:01\"}], \
        \"networks\": [{\"link\": \"a\", \"type\": \"ipv4_dhcp\"}]}"
        ),
        "10.0.0.11"
    )]
    fn an_address(#[case] data: Option<&str>, #[case] want: &str) {
        assert_eq!(
            address(&host(Some("10.0.0.11/24")), data).unwrap().to_string(),
            want
        );
    }

    #[rstest]
    #[case::without_the_annotation(None, Some(STATIC), "has no annotation metal3.vcluster.com/ip-address")]
    #[case::with_an_address_without_prefix(Some("10.0.0.11"), None, "no address with a prefix length")]
    #[case::with_a_wrong_address(Some("10.0.0.256/24"), None, "no address with a prefix length")]
    #[case::with_broken_data(Some("10.0.0.11/24"), Some("links: ["), "cannot be read")]
    #[case::with_data_of_another_card(
        Some("10.0.0.11/24"),
        Some("links: [{id: a, ethernet_mac_address: '00:00:00:00:00:00'}]"),
        "no link with the MAC"
    )]
    #[case::with_data_without_a_network(
        Some("10.0.0.11/24"),
        Some("links: [{id: a, ethernet_mac_address: '52:54:00:ab:00:01'}]"),
        "no usable network"
    )]
    fn a_server_has_no_network(#[case] cidr: Option<&str>, #[case] data: Option<&str>, #[case] why: &str) {
        let error = address(&host(cidr), data).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
