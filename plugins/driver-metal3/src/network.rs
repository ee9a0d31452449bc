//! Network data for the first boot: OpenStack's `network_data.json`, which Metal3 hands to cloud-init, keyed on the card that booted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hostler_sdk::Reason;
use hostler_sdk::driver::Properties;
use serde_json::{Value, json};

use crate::bmh::{Host, IP_ADDRESS};

pub(crate) const GATEWAY: &str = "metal3.vcluster.com/gateway";
pub(crate) const DNS_SERVERS: &str = "metal3.vcluster.com/dns-servers";
pub(crate) const NTP_SERVERS: &str = "metal3.vcluster.com/ntp-servers";

/// The address of a host, without its prefix length.
pub(crate) fn address(host: &Host<'_>) -> Option<String> {
    let (address, _) = parse_cidr(host.object.annotation(IP_ADDRESS)?)?;
    Some(address.to_string())
}

/// The document, from the host's annotations; DNS and NTP servers may come from properties, too.
pub(crate) fn document(host: &Host<'_>, properties: &Properties) -> Result<Value, Reason> {
    let bad = |key: &str, what: String| {
        Reason::new("BadAddress", format!("{}: annotation {key} {what}", host.title()))
            .remedy(format!("correct {key} on the host"))
    };
    let cidr = host.object.annotation(IP_ADDRESS).unwrap_or_default();
    let (address, prefix) = parse_cidr(cidr).ok_or_else(|| {
        bad(
            IP_ADDRESS,
            format!("{cidr:?} is no address with a prefix length like 10.0.0.11/24"),
        )
    })?;
    let mac = host.boot_mac().ok_or_else(|| {
        Reason::new(
            "NoBootMac",
            format!("{} has no MAC address to boot from", host.title()),
        )
        .remedy("set its spec.bootMACAddress")
    })?;
    let gateway = match host
        .object
        .annotation(GATEWAY)
        .filter(|text| !text.trim().is_empty())
    {
        None => first_host(address, prefix).filter(|first| *first != address),
        Some(text) => {
            let gateway = text
                .trim()
                .parse()
                .ok()
                .filter(|gateway: &IpAddr| gateway.is_ipv4() == address.is_ipv4());
            Some(
                gateway
                    .ok_or_else(|| bad(GATEWAY, format!("{text:?} is no address of the host's family")))?,
            )
        }
    };
    let mut services = Vec::new();
    for (kind, key) in [("dns", DNS_SERVERS), ("ntp", NTP_SERVERS)] {
        for server in servers(
            host.object
                .annotation(key)
                .or_else(|| properties.get(key))
                .unwrap_or_default(),
        ) {
            if kind == "dns" && server.parse::<IpAddr>().is_err() {
                return Err(bad(key, format!("{server:?} is no address")));
            }
            services.push(json!({"type": kind, "address": server}));
        }
    }
    let (family, any) = match address {
        IpAddr::V4(_) => ("ipv4", "0.0.0.0"),
        IpAddr::V6(_) => ("ipv6", "::"),
    };
    let routes: Vec<Value> = gateway
        .iter()
        .map(|gateway| json!({"network": any, "netmask": any, "gateway": gateway.to_string()}))
        .collect();
    Ok(json!({
        "links": [{"id": "boot", "type": "phy", "ethernet_mac_address": mac}],
        "networks": [{
            "id": "boot",
            "type": family,
            "link": "boot",
            "ip_address": address.to_string(),
            "netmask": netmask(address, prefix).to_string(),
            "routes": routes,
        }],
        "services": services,
    }))
}

fn servers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|server| !server.is_empty())
}

fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.trim().split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

/// The mask as a number, in the low bits of the family's width.
fn mask(prefix: u8, width: u32) -> u128 {
    let all = if width == 128 { u128::MAX } else { (1 << width) - 1 };
    let host_bits = width - u32::from(prefix);
    if host_bits == 128 {
        0
    } else {
        all & (u128::MAX << host_bits)
    }
}

fn netmask(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(mask(prefix, 32)).unwrap_or_default()).into(),
        IpAddr::V6(_) => Ipv6Addr::from(mask(prefix, 128)).into(),
    }
}

/// The first address of the network after its own: by custom the gateway. None where the network has no room for one.
fn first_host(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) if prefix < 31 => {
            let mask = u32::try_from(mask(prefix, 32)).unwrap_or_default();
            Some(Ipv4Addr::from((u32::from(v4) & mask) | 1).into())
        }
        IpAddr::V6(v6) if prefix < 127 => {
            Some(Ipv6Addr::from((u128::from(v6) & mask(prefix, 128)) | 1).into())
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_sdk::Object;

    fn data(annotations: Value) -> Result<Value, Reason> {
        let object = Object::from_value(json!({
            "metadata": {"name": "a", "namespace": "m", "annotations": annotations},
            "spec": {"bootMACAddress": "52:54:00:AB:00:01"},
        }));
        document(&Host::of(&object), &Properties::default())
    }

    #[test]
    fn the_gateway_is_the_first_host_of_the_network_unless_named() {
        let gateway = |cidr: &str| {
            data(json!({IP_ADDRESS: cidr})).unwrap()["networks"][0]["routes"][0]["gateway"].clone()
        };
        assert_eq!(gateway("10.0.0.11/24"), "10.0.0.1");
        assert_eq!(gateway("10.0.5.200/20"), "10.0.0.1");
        assert_eq!(gateway("2001:db8::11/64"), "2001:db8::1");
        assert_eq!(
            gateway("10.0.0.1/24"),
            Value::Null,
            "a host is not its own gateway"
        );
        assert_eq!(gateway("10.0.0.1/32"), Value::Null);
        let named = data(json!({IP_ADDRESS: "10.0.0.11/24", GATEWAY: "10.0.0.254"})).unwrap();
        assert_eq!(named["networks"][0]["routes"][0]["gateway"], "10.0.0.254");
    }

    #[test]
    fn a_link_is_found_by_the_boot_mac_in_lower_case() {
        let data = data(json!({IP_ADDRESS: "10.0.0.11/24", DNS_SERVERS: "1.1.1.1, 8.8.8.8"})).unwrap();
        assert_eq!(data["links"][0]["ethernet_mac_address"], "52:54:00:ab:00:01");
        assert_eq!(data["networks"][0]["netmask"], "255.255.255.0");
        assert_eq!(
            data["services"],
            json!([{"type": "dns", "address": "1.1.1.1"}, {"type": "dns", "address": "8.8.8.8"}])
        );
    }

    #[test]
    fn addresses_that_are_none_are_named() {
        for annotations in [
            json!({IP_ADDRESS: "10.0.0.11"}),
            json!({IP_ADDRESS: "10.0.0.256/24"}),
            json!({IP_ADDRESS: "10.0.0.11/33"}),
            json!({IP_ADDRESS: "10.0.0.11/24", GATEWAY: "fe80::1"}),
            json!({IP_ADDRESS: "10.0.0.11/24", DNS_SERVERS: "dns.example.com"}),
        ] {
            assert_eq!(
                data(annotations.clone()).unwrap_err().code,
                "BadAddress",
                "{annotations}"
            );
        }
    }
}
