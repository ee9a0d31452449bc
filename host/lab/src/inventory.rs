//! Racks full of simulated servers, as manifests.

use k8s_openapi::api::core::v1::Secret;
use kube::core::DynamicObject;
use serde_json::json;

/// Servers of one sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rack<'a> {
    /// Begins the name of each server: `rack1-0001`.
    pub name: &'a str,
    /// Where hosts and Secrets go.
    pub namespace: &'a str,
    /// How many; 60,000 at most have an address of their own.
    pub servers: u16,
    /// Labels of each.
    pub labels: &'a [(&'a str, &'a str)],
    /// Tells racks apart in addresses: the second number of the network `10.<network>.0.0/16`.
    pub network: u8,
}

impl Rack<'_> {
    /// The hosts and the Secrets with their BMC's credentials, two objects a server.
    #[must_use]
    pub fn manifests(&self) -> Vec<(Secret, DynamicObject)> {
        (1..=self.servers.min(60_000))
            .map(|number| self.server(number))
            .collect()
    }

    fn server(&self, number: u16) -> (Secret, DynamicObject) {
        let name = format!("{}-{number:04}", self.name);
        let secret = format!("{name}-bmc");
        let [high, low] = number.to_be_bytes();
        let labels: serde_json::Map<_, _> = self
            .labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let host = json!({
            "apiVersion": "metal3.io/v1alpha1",
            "kind": "BareMetalHost",
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": labels,
                "annotations": {
                    "metal3.vcluster.com/ip-address": format!("10.{}.{high}.{low}/16", self.network),
                    "metal3.vcluster.com/gateway": format!("10.{}.255.254", self.network),
                    "metal3.vcluster.com/dns-servers": format!("10.{}.255.253", self.network),
                },
            },
            "spec": {
                "online": false,
                "bootMACAddress": format!("52:54:{:02x}:00:{high:02x}:{low:02x}", self.network),
                "bmc": {
                    "address": format!("redfish+http://10.{}.{high}.{low}:8000/redfish/v1/Systems/{name}", self.network),
                    "credentialsName": secret,
                },
            },
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": secret, "namespace": self.namespace},
            "stringData": {"username": "admin", "password": "simulated"},
        });
        (
            serde_json::from_value(secret).expect("this is a Secret"),
            serde_json::from_value(host).expect("this is an object"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_thousand_servers_share_no_name_address_or_card() {
        let rack = Rack {
            name: "rack1",
            namespace: "default",
            servers: 1000,
            labels: &[("role", "cpu")],
            network: 7,
        };
        let manifests = rack.manifests();
        let distinct = |of: fn(&DynamicObject) -> String| {
            manifests
                .iter()
                .map(|(_, host)| of(host))
                .collect::<BTreeSet<_>>()
                .len()
        };
        assert_eq!(distinct(|host| host.metadata.name.clone().unwrap()), 1000);
        assert_eq!(
            distinct(|host| host.metadata.annotations.clone().unwrap()[crate::bmh::IP_ADDRESS].clone()),
            1000
        );
        assert_eq!(
            distinct(|host| host.data["spec"]["bootMACAddress"].to_string()),
            1000
        );
        for (secret, host) in &manifests {
            assert_eq!(
                host.data["spec"]["bmc"]["credentialsName"],
                secret.metadata.name.clone().unwrap()
            );
        }
    }
}
