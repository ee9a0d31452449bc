//! The Node that a server registers, and the status that it reports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::kubelet::Arguments;
use crate::identity::{digest, uuid};

/// What the simulated image contains.
const OS_IMAGE: &str = "Ubuntu 24.04.5 LTS";
const KERNEL: &str = "6.8.0-142-generic";
const KUBELET: &str = "v1.36.0";
const RUNTIME: &str = "containerd://2.2.1";
/// Where a kubelet listens.
pub(crate) const KUBELET_PORT: u16 = 10250;

/// Resources of a server beyond those that its inventory names, as its device plugins would announce them:
/// `nvidia.com/gpu=4`, several with commas between them. Only the laboratory reads this annotation of a BareMetalHost.
pub(crate) const EXTENDED_RESOURCES: &str = "lab.hostler.dev/extended-resources";

/// Amounts of extended resources by name.
pub(crate) type Extended = BTreeMap<String, u64>;

/// Reads [`EXTENDED_RESOURCES`].
pub(crate) fn parse_extended(text: &str) -> Result<Extended, String> {
    let wrong = |pair: &str| {
        format!(
            "annotation {EXTENDED_RESOURCES} has {pair:?}; write it like nvidia.com/gpu=4, with commas between several"
        )
    };
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, amount) = pair.split_once('=').ok_or_else(|| wrong(pair))?;
            let (name, amount) = (name.trim(), amount.trim());
            let (domain, rest) = name.split_once('/').ok_or_else(|| wrong(pair))?;
            let is_word = |word: &str| {
                let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
                let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
                word.bytes().all(inner) && ends(word.bytes().next()) && ends(word.bytes().last())
            };
            let is_ours = !domain.ends_with("kubernetes.io") && is_word(domain) && is_word(rest);
            let amount = amount
                .parse::<u64>()
                .ok()
                .filter(|amount| i64::try_from(*amount).is_ok());
            match amount.filter(|_| is_ours) {
                Some(amount) => Ok((name.to_owned(), amount)),
                None => Err(wrong(pair)),
            }
        })
        .collect()
}

/// A server, as its kubelet sees it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The node's name.
    pub(crate) name: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// What the kubelet was started with.
    pub(crate) arguments: Arguments,
    /// The inventory that Metal3 took.
    pub(crate) hardware: Value,
    /// Namespace, name and boot MAC address: what stays the same through all installations.
    pub(crate) chassis: [String; 3],
    /// Names the present boot: a UUID.
    pub(crate) boot: String,
}

impl Machine {
    /// The Node as it is registered.
    pub(crate) fn node(&self, extended: &Extended, now: Timestamp) -> Node {
        let mut labels = self.own_labels();
        for (key, value) in &self.arguments.labels {
            labels[key] = json!(value);
        }
        let mut spec = json!({});
        if let Some(id) = &self.arguments.provider_id {
            spec["providerID"] = json!(id);
        }
        if !self.arguments.taints.is_empty() {
            spec["taints"] = json!(self.arguments.taints);
        }
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.name, "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": spec,
            "status": self.status(false, extended, now, now),
        });
        serde_json::from_value(node).expect("this is a Node")
    }

    /// The labels that a kubelet sets by itself, and puts right whenever it starts.
    pub(crate) fn own_labels(&self) -> Value {
        let (os, arch) = ("linux", self.arch());
        json!({
            "beta.kubernetes.io/arch": arch, "beta.kubernetes.io/os": os, "kubernetes.io/arch": arch,
            "kubernetes.io/hostname": self.name, "kubernetes.io/os": os,
        })
    }

    /// The status of the Node: `ready` or not, since when; `extended` comes on top of what the inventory says.
    pub(crate) fn status(&self, ready: bool, extended: &Extended, since: Timestamp, now: Timestamp) -> Value {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": second(now), "lastTransitionTime": second(since)})
        };
        let ready = if ready {
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        } else {
            condition(
                "Ready",
                "False",
                "KubeletNotReady",
                "container runtime network not ready: cni plugin not initialized",
            )
        };
        let mut resources = self.resources();
        for (name, amount) in extended {
            resources[name] = json!(amount.to_string());
        }
        let chassis: Vec<&str> = self.chassis.iter().map(String::as_str).collect();
        json!({
            "addresses": [
                {"type": "InternalIP", "address": self.address.to_string()},
                {"type": "Hostname", "address": self.name},
            ],
            "allocatable": resources,
            "capacity": resources,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                ready,
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": {
                "architecture": self.arch(), "bootID": self.boot, "containerRuntimeVersion": RUNTIME,
                "kernelVersion": KERNEL, "kubeProxyVersion": "", "kubeletVersion": KUBELET,
                "machineID": digest(&chassis, 32), "operatingSystem": "linux", "osImage": OS_IMAGE,
                "systemUUID": uuid(&chassis),
            },
        })
    }

    fn arch(&self) -> &str {
        match self.hardware["cpu"]["arch"].as_str() {
            Some("aarch64") => "arm64",
            Some("x86_64") | None => "amd64",
            Some(other) => other,
        }
    }

    fn resources(&self) -> Value {
        let number = |value: &Value, otherwise: u64| value.as_u64().unwrap_or(otherwise);
        let kibibytes = number(&self.hardware["ramMebibytes"], 4096) * 1024;
        json!({
            "cpu": number(&self.hardware["cpu"]["count"], 2).to_string(),
            "memory": format!("{kibibytes}Ki"),
            "ephemeral-storage": format!("{}Ki", number(&self.hardware["storage"][0]["sizeBytes"], 1 << 36) / 1024),
            "hugepages-1Gi": "0",
            "hugepages-2Mi": "0",
            "pods": self.arguments.max_pods.unwrap_or(110).to_string(),
        })
    }
}

/// Whole seconds, as the API keeps most times.
fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn machine(boot: &str) -> Machine {
        Machine {
            name: "bare-metal-2".into(),
            address: "192.168.100.11".parse().unwrap(),
            arguments: crate::server::kubelet::parse_arguments(
                "KUBELET_EXTRA_ARGS=\"--node-labels=workload=gpu --register-with-taints=a=b:NoSchedule\"",
            )
            .unwrap(),
            hardware: json!({"cpu": {"arch": "x86_64", "count": 32}, "ramMebibytes": 1024}),
            chassis: ["default", "bare-metal-2", "52:54:00:00:00:01"].map(str::to_owned),
            boot: boot.into(),
        }
    }

    #[test]
    fn a_node_looks_like_the_one_in_the_report() {
        let cards = parse_extended("nvidia.com/gpu=4").unwrap();
        let node = machine("1").node(&cards, Timestamp::UNIX_EPOCH);
        assert_eq!(node.metadata.name.as_deref(), Some("bare-metal-2"));
        let labels = node.metadata.labels.unwrap();
        assert_eq!(
            (
                labels["workload"].as_str(),
                labels["kubernetes.io/hostname"].as_str()
            ),
            ("gpu", "bare-metal-2")
        );
        assert_eq!(node.spec.unwrap().taints.unwrap()[0].key, "a");
        let status = node.status.unwrap();
        let info = status.node_info.unwrap();
        assert_eq!(
            (info.os_image.as_str(), info.kernel_version.as_str()),
            (OS_IMAGE, "6.8.0-142-generic")
        );
        assert_eq!(info.kubelet_version, "v1.36.0");
        assert_eq!(status.addresses.unwrap()[0].address, "192.168.100.11");
        assert_eq!(status.capacity.unwrap()["memory"].0, "1048576Ki");
        assert_eq!(status.allocatable.unwrap()["nvidia.com/gpu"].0, "4");
        let ready = status
            .conditions
            .unwrap()
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref()),
            ("False", Some("KubeletNotReady"))
        );
    }

    #[rstest]
    #[case::nothing("", &[])]
    #[case::one("nvidia.com/gpu=4", &[("nvidia.com/gpu", 4)])]
    #[case::several(" nvidia.com/gpu = 4, example.com/nic-vf=0,", &[("example.com/nic-vf", 0), ("nvidia.com/gpu", 4)])]
    fn extended_resources_are(#[case] text: &str, #[case] expected: &[(&str, u64)]) {
        let found = parse_extended(text).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, amount)| (name.as_str(), *amount))
            .collect();
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case::without_an_amount("nvidia.com/gpu")]
    #[case::with_a_strange_amount("nvidia.com/gpu=4Gi")]
    #[case::with_less_than_nothing("nvidia.com/gpu=-1")]
    #[case::without_a_domain("gpu=4")]
    #[case::of_kubernetes("kubernetes.io/gpu=4")]
    #[case::with_a_strange_name("nvidia.com/gpu/x=4")]
    fn an_extended_resource_is_refused(#[case] text: &str) {
        assert!(
            parse_extended(text)
                .unwrap_err()
                .contains("write it like nvidia.com/gpu=4"),
            "{text}"
        );
    }

    #[test]
    fn another_boot_changes_the_boot_id_and_nothing_else() {
        let info = |boot: &str| {
            let (none, epoch) = (Extended::new(), Timestamp::UNIX_EPOCH);
            machine(boot).status(true, &none, epoch, epoch)["nodeInfo"].clone()
        };
        let (mut one, two) = (info("1"), info("2"));
        assert_ne!(one["bootID"], two["bootID"]);
        one["bootID"] = two["bootID"].clone();
        assert_eq!(one, two);
    }
}
