//! What a provider offers, in the words of the contract.

use hostler_sdk::driver::{Access, Capacity, Description, KindUse, NodeType, Role};
use serde_json::{Value, json};

use crate::bmh;
use crate::config::Config;
use crate::image;
use crate::network;

/// Pins a claim to one host, by name. Machines carry it as a property.
pub(crate) const SERVER_NAME: &str = "metal3.vcluster.com/server-name";

pub(crate) fn description(config: &Config) -> Description {
    let hosts = KindUse {
        api_version: bmh::API_VERSION.to_owned(),
        kind: bmh::KIND.to_owned(),
        namespace: config.namespace.clone(),
        access: Access::BorrowFields,
        role: Role::Machine,
        selector: String::new(),
    };
    let node_type = |kind: &crate::config::NodeType| NodeType {
        name: kind.name.clone(),
        capacity: Capacity::Machines,
        json: Value::Object(kind.spec.clone()),
    };
    let properties = [
        image::URL,
        image::CHECKSUM,
        image::CHECKSUM_TYPE,
        image::FORMAT,
        network::DNS_SERVERS,
        network::NTP_SERVERS,
        SERVER_NAME,
    ];
    Description {
        config_schema: schema(),
        cluster: config.cluster.clone(),
        uses: vec![hosts],
        node_types: config.node_types.iter().map(node_type).collect(),
        properties: properties.map(str::to_owned).to_vec(),
    }
}

/// JSON Schema of `spec.metal3`. `config` is what really judges; this is for people, editors and early answers.
fn schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let label = json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"});
    let quantities = json!({
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}
    });
    let closed = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let chart = json!({"enabled": {"type": "boolean"}, "helmValues": text, "chartRepo": text, "chart": text, "version": text});
    let deploy = closed(
        json!({
            "multus": closed(json!({"enabled": {"type": "boolean"}, "helmValues": text}), &[]),
            "dhcp": closed(chart.clone(), &[]),
            "metal3": closed(chart, &[]),
        }),
        &[],
    );
    let expression = closed(
        json!({
            "key": text,
            "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            "values": {"type": "array", "items": text},
        }),
        &["key", "operator"],
    );
    let selector = closed(
        json!({"matchLabels": texts, "matchExpressions": {"type": "array", "items": expression}}),
        &[],
    );
    let node_type = closed(
        json!({
            "name": label,
            "displayName": text,
            "bareMetalHosts": closed(json!({"selector": selector}), &[]),
            "resources": quantities,
            "overhead": closed(json!({"kubeReserved": quantities}), &[]),
            "cost": {"type": "integer", "minimum": 0},
            "properties": texts,
            "metadata": closed(json!({"labels": texts, "annotations": texts}), &[]),
        }),
        &["name"],
    );
    let secret = closed(json!({"name": text, "namespace": text}), &["name", "namespace"]);
    let mut schema = closed(
        json!({
            "clusterRef": closed(json!({"cluster": text, "namespace": label}), &["namespace"]),
            "nodeTypes": {"type": "array", "items": node_type},
            "allowDisabledCleaning": {
                "type": "boolean",
                "description": "promise hosts with automatedCleaningMode disabled, whose disks keep the last tenant's data"
            },
            "deploy": deploy,
            "neutronEnabled": {"type": "boolean"},
            "netris": closed(json!({"secretRef": secret}), &["secretRef"]),
        }),
        &["clusterRef"],
    );
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("NodeProvider spec.metal3");
    schema
}
