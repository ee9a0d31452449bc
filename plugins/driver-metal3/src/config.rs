//! The provider's own part of the spec, parsed strictly: a bad value is refused with its path.

use std::collections::BTreeMap;

use hostler_sdk::{Failure, Field, Object};
use serde_json::Value;

use crate::quantity;
use crate::selector::Selector;

/// Keys that the host sets itself on every node type.
const BUILT_IN: [&str; 4] = [
    "vcluster.com/node-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "karpenter.sh/capacity-type",
];

/// What a provider says.
pub(crate) struct Config {
    /// None for the platform's own cluster.
    pub(crate) cluster: Option<String>,
    /// Where the hosts are.
    pub(crate) namespace: String,
    pub(crate) node_types: Vec<NodeType>,
    /// Hosts whose disks Metal3 does not clean may be promised all the same.
    pub(crate) allow_disabled_cleaning: bool,
}

/// One type of node.
pub(crate) struct NodeType {
    pub(crate) name: String,
    pub(crate) selector: Selector,
    /// What a host must have at least, in thousandths.
    pub(crate) needs: BTreeMap<String, i128>,
    /// The rest, as a NodeType's spec has it.
    pub(crate) spec: serde_json::Map<String, Value>,
}

impl Config {
    pub(crate) fn of(provider: &Object) -> Result<Self, Failure> {
        let spec = provider.field("spec");
        // A site may have the same driver under a name of its own.
        let own = spec.key("metal3");
        let config = if own.is_absent() && !spec.key("driver").is_absent() {
            spec.key("driver").key("config")
        } else {
            own
        };
        config.only(&[
            "clusterRef",
            "deploy",
            "nodeTypes",
            "neutronEnabled",
            "netris",
            "allowDisabledCleaning",
        ])?;
        let cluster = config.key("clusterRef");
        cluster.only(&["cluster", "namespace"])?;
        check_deploy(&config.key("deploy"))?;
        check_netris(&config.key("netris"))?;
        config.key("neutronEnabled").flag()?;
        let node_types: Vec<NodeType> = config
            .key("nodeTypes")
            .items()?
            .iter()
            .map(node_type)
            .collect::<Result<_, _>>()?;
        for (index, kind) in node_types.iter().enumerate() {
            if node_types[..index].iter().any(|other| other.name == kind.name) {
                let place = config.key("nodeTypes").items()?[index].key("name");
                return Err(place.refuse(format!("{} is the name of an earlier type", kind.name)));
            }
        }
        Ok(Self {
            cluster: cluster
                .key("cluster")
                .optional_text()?
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            namespace: dns_label(&cluster.key("namespace"))?.to_owned(),
            node_types,
            allow_disabled_cleaning: config.key("allowDisabledCleaning").flag()?,
        })
    }
}

/// What the platform deploys for a provider is not this driver's work; it is read so that a typo shows.
fn check_deploy(deploy: &Field<'_>) -> Result<(), Failure> {
    deploy.only(&["multus", "dhcp", "metal3"])?;
    for (part, keys) in [
        ("multus", &["enabled", "helmValues"][..]),
        (
            "dhcp",
            &["enabled", "helmValues", "chartRepo", "chart", "version"][..],
        ),
        (
            "metal3",
            &["enabled", "helmValues", "chartRepo", "chart", "version"][..],
        ),
    ] {
        let part = deploy.key(part);
        part.only(keys)?;
        part.key("enabled").flag()?;
        for key in keys.iter().filter(|key| **key != "enabled") {
            part.key(key).optional_text()?;
        }
    }
    Ok(())
}

fn check_netris(netris: &Field<'_>) -> Result<(), Failure> {
    netris.only(&["secretRef"])?;
    let secret = netris.key("secretRef");
    secret.only(&["name", "namespace"])?;
    if !netris.is_absent() {
        secret.key("name").text()?;
        secret.key("namespace").text()?;
    }
    Ok(())
}

fn node_type(field: &Field<'_>) -> Result<NodeType, Failure> {
    field.only(&[
        "name",
        "displayName",
        "bareMetalHosts",
        "resources",
        "overhead",
        "cost",
        "properties",
        "metadata",
    ])?;
    let hosts = field.key("bareMetalHosts");
    hosts.only(&["selector"])?;
    let needs = quantities(&field.key("resources"))?;
    field.key("overhead").only(&["kubeReserved"])?;
    quantities(&field.key("overhead").key("kubeReserved"))?;
    field.key("displayName").optional_text()?;
    if field.key("cost").optional_integer()?.is_some_and(|cost| cost < 0) {
        return Err(field.key("cost").refuse("must not be negative"));
    }
    let properties = field.key("properties");
    if let Some(key) = properties
        .texts()?
        .keys()
        .find(|key| BUILT_IN.contains(&key.as_str()))
    {
        return Err(properties.key(key).refuse("is set by the host, remove it"));
    }
    let metadata = field.key("metadata");
    metadata.only(&["labels", "annotations"])?;
    metadata.key("labels").texts()?;
    metadata.key("annotations").texts()?;
    let parts = [
        "displayName",
        "resources",
        "overhead",
        "cost",
        "properties",
        "metadata",
    ];
    let spec = parts
        .into_iter()
        .filter_map(|key| {
            field
                .key(key)
                .value()
                .map(|value| (key.to_owned(), value.clone()))
        })
        .collect();
    Ok(NodeType {
        name: dns_label(&field.key("name"))?.to_owned(),
        selector: Selector::parse(&hosts.key("selector"))?,
        needs,
        spec,
    })
}

fn quantities(field: &Field<'_>) -> Result<BTreeMap<String, i128>, Failure> {
    let mut found = BTreeMap::new();
    for (key, field) in field.entries()? {
        // YAML reads `cpu: 4` as a number, and Kubernetes takes that for a quantity.
        let text = match field.value() {
            Some(Value::Number(number)) => number.to_string(),
            _ => field.text()?.to_owned(),
        };
        let amount = quantity::parse(&text)
            .ok_or_else(|| field.refuse(format!("{text} is no quantity, write one like 4, 500m or 64Gi")))?;
        found.insert(key.to_owned(), amount);
    }
    Ok(found)
}

fn dns_label<'a>(field: &Field<'a>) -> Result<&'a str, Failure> {
    let text = field.text()?;
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let outer = |c: Option<char>| c.is_some_and(|c| c != '-' && inner(c));
    if text.len() <= 63 && text.chars().all(inner) && outer(text.chars().next()) && outer(text.chars().last())
    {
        Ok(text)
    } else {
        Err(field.refuse("must be a DNS label: lower case letters, digits and '-', at most 63 of them"))
    }
}
