//! The two foreign kinds that the laboratory brings along: BareMetalHost and NetworkAttachmentDefinition.
//!
//! Names, columns and field names are those of the real ones. What nobody here uses of a BareMetalHost (firmware settings, switch
//! ports, taints) is left out, and pruned like any unknown field. What is in here is nowhere wider than Metal3 v0.13.0: an object
//! that is accepted here is accepted there, and kept whole.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// A network card's address, wherever one stands.
const MAC: &str = "[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}";
/// Name of a condition: a word, which a domain may stand before.
const CONDITION_TYPE: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// The kinds, to be applied before anything else.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![bare_metal_host(), network_attachment_definition()]
}

/// How clients address BareMetalHosts.
#[must_use]
pub fn bare_metal_hosts() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("metal3.io", "v1alpha1", "BareMetalHost"),
        "baremetalhosts",
    )
}

/// `baremetalhosts.metal3.io`.
#[must_use]
pub fn bare_metal_host() -> CustomResourceDefinition {
    let column = |name: &str, path: &str, priority: i32, kind: &str, description: &str| {
        let mut column = json!({"name": name, "jsonPath": path, "type": kind, "description": description});
        if priority > 0 {
            column["priority"] = json!(priority);
        }
        column
    };
    parsed(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "baremetalhosts.metal3.io"},
        "spec": {
            "group": "metal3.io",
            "names": {
                "kind": "BareMetalHost", "listKind": "BareMetalHostList", "plural": "baremetalhosts",
                "singular": "baremetalhost", "shortNames": ["bmh", "bmhost"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Status", ".status.operationalStatus", 1, "string", "How the host fares"),
                    column("State", ".status.provisioning.state", 0, "string", "Where the host is in its life"),
                    column("Consumer", ".spec.consumerRef.name", 0, "string", "Who uses the host"),
                    column("BMC", ".spec.bmc.address", 1, "string", "Address of the management controller"),
                    column("Online", ".spec.online", 0, "string", "Whether the host should be powered on"),
                    column("Error", ".status.errorType", 0, "string", "Kind of the last error"),
                    column("Age", ".metadata.creationTimestamp", 0, "date", "Time since the host was created"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "One physical server, and what should be installed on it.",
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": spec(),
                        "status": status(),
                    },
                }},
            }],
        },
    }))
}

/// `network-attachment-definitions.k8s.cni.cncf.io`.
#[must_use]
pub fn network_attachment_definition() -> CustomResourceDefinition {
    parsed(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "names": {
                "kind": "NetworkAttachmentDefinition", "listKind": "NetworkAttachmentDefinitionList",
                "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                "shortNames": ["net-attach-def"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "A further network that pods may be attached to.",
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": {"type": "object", "description": "The network.", "properties": {
                            "config": {"type": "string", "description": "CNI configuration, as JSON."},
                        }},
                    },
                }},
            }],
        },
    }))
}

fn parsed(definition: Value) -> CustomResourceDefinition {
    serde_json::from_value(definition)
        .expect("the definition above has the shape of a CustomResourceDefinition")
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn one_of(values: &[&str], description: &str) -> Value {
    json!({"type": "string", "enum": values, "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn secret_reference(description: &str) -> Value {
    json!({
        "type": "object", "x-kubernetes-map-type": "atomic", "description": description,
        "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}},
    })
}

fn image(description: &str) -> Value {
    json!({
        "type": "object", "required": ["url"], "description": description,
        "properties": {
            "url": text("Where the image is found."),
            "checksum": text("Checksum of the image, or where that is found."),
            "checksumType": one_of(&["md5", "sha256", "sha512", "auto"], "Which checksum it is."),
            "format": one_of(&["raw", "qcow2", "vdi", "vmdk", "live-iso"], "Format of the image."),
            "ociAuthSecretName": text("Secret with credentials for an OCI registry."),
        },
    })
}

fn custom_deploy() -> Value {
    json!({
        "type": "object", "required": ["method"], "description": "A way to deploy that is no image.",
        "properties": {"method": {"type": "string"}},
    })
}

fn root_device_hints() -> Value {
    let mut properties: serde_json::Map<String, Value> = [
        "deviceName",
        "hctl",
        "model",
        "vendor",
        "serialNumber",
        "wwn",
        "wwnWithExtension",
        "wwnVendorExtension",
    ]
    .iter()
    .map(|name| ((*name).to_owned(), json!({"type": "string"})))
    .collect();
    properties.insert(
        "minSizeGigabytes".to_owned(),
        json!({"type": "integer", "minimum": 0}),
    );
    properties.insert("rotational".to_owned(), json!({"type": "boolean"}));
    json!({"type": "object", "description": "Which disk the image is written to.", "properties": properties})
}

/// Accepted, as on the real thing; a simulated server has no RAID controller to set up.
fn raid() -> Value {
    let volumes = |levels: &[&str], most: Option<u64>, properties: Value| {
        let mut all = json!({
            "level": {"type": "string", "enum": levels},
            "sizeGibibytes": {"type": "integer", "minimum": 0},
        });
        for (name, schema) in properties.as_object().into_iter().flatten() {
            all[name] = schema.clone();
        }
        let mut list = json!({"type": "array", "nullable": true,
            "items": {"type": "object", "required": ["level"], "properties": all}});
        if let Some(most) = most {
            list["maxItems"] = json!(most);
        }
        list
    };
    let hardware = json!({
        "controller": {"type": "string"}, "name": {"type": "string", "maxLength": 64},
        "numberOfPhysicalDisks": {"type": "integer", "minimum": 1},
        "physicalDisks": {"type": "array", "items": {"type": "string"}},
        "rotational": {"type": "boolean"},
    });
    let software = json!({"physicalDisks": {"type": "array", "minItems": 2, "items": root_device_hints()}});
    json!({
        "type": "object", "description": "RAID volumes to create.",
        "properties": {
            "hardwareRAIDVolumes": volumes(&["0", "1", "2", "5", "6", "1+0", "5+0", "6+0"], None, hardware),
            "softwareRAIDVolumes": volumes(&["0", "1", "1+0"], Some(2), software),
        },
    })
}

fn spec() -> Value {
    let reference: serde_json::Map<String, Value> = [
        "apiVersion",
        "fieldPath",
        "kind",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    ]
    .iter()
    .map(|name| ((*name).to_owned(), json!({"type": "string"})))
    .collect();
    json!({
        "type": "object", "required": ["online"], "description": "What is asked of the host.",
        "properties": {
            "architecture": text("CPU architecture; filled in by inspection."),
            "automatedCleaningMode": {
                "type": "string", "enum": ["metadata", "disabled"], "default": "metadata",
                "description": "Whether disks are cleaned when the host is released.",
            },
            "bmc": {
                "type": "object", "required": ["address", "credentialsName"],
                "description": "How to reach the management controller.",
                "properties": {
                    "address": text("URL of the management controller; its scheme names the protocol."),
                    "credentialsName": text("Name of the Secret with username and password."),
                    "disableCertificateVerification": flag("Do not check the controller's certificate."),
                },
            },
            "bootMACAddress": {
                "type": "string", "pattern": MAC,
                "description": "The network card that the host boots from.",
            },
            "bootMode": one_of(&["UEFI", "UEFISecureBoot", "legacy"], "How the host boots."),
            "consumerRef": {
                "type": "object", "x-kubernetes-map-type": "atomic", "properties": reference,
                "description": "What uses the host; none when it is free.",
            },
            "customDeploy": custom_deploy(),
            "description": text("A remark."),
            "disablePowerOff": flag("Never power the host off."),
            "externallyProvisioned": flag("What runs on the host was installed by somebody else."),
            "hardwareProfile": text("Not used any more."),
            "image": image("What to install."),
            "inspectionMode": one_of(&["disabled", "agent"], "How the inventory is taken."),
            "metaData": secret_reference("Secret with meta data for cloud-init."),
            "networkData": secret_reference("Secret with network data for cloud-init."),
            "online": flag("Whether the host should be powered on."),
            "preprovisioningNetworkDataName": text("Secret with network data for inspection and deployment."),
            "raid": raid(),
            "rootDeviceHints": root_device_hints(),
            "userData": secret_reference("Secret with user data for cloud-init."),
        },
    })
}

fn status() -> Value {
    let time = || json!({"type": "string", "format": "date-time", "nullable": true});
    let period = || json!({"type": "object", "properties": {"start": time(), "end": time()}});
    let credentials = || {
        json!({"type": "object", "properties": {
            "credentials": secret_reference("The Secret."),
            "credentialsVersion": {"type": "string"},
        }})
    };
    json!({
        "type": "object", "description": "What is known of the host.",
        "required": ["errorCount", "errorMessage", "operationalStatus", "poweredOn", "provisioning"],
        "properties": {
            "conditions": {
                "type": "array", "maxItems": 32, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object", "required": ["lastTransitionTime", "message", "reason", "status", "type"],
                    "properties": {
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "message": {"type": "string", "maxLength": 32768},
                        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                        "reason": {"type": "string", "minLength": 1, "maxLength": 1024,
                            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "type": {"type": "string", "maxLength": 316, "pattern": CONDITION_TYPE},
                    },
                },
            },
            "errorCount": {"type": "integer", "default": 0},
            "errorMessage": {"type": "string"},
            "errorType": {"type": "string", "enum": [
                "provisioned registration error", "registration error", "inspection error", "preparation error",
                "provisioning error", "power management error", "servicing error",
            ]},
            "goodCredentials": credentials(),
            "hardware": hardware(),
            "hardwareProfile": {"type": "string"},
            "lastUpdated": {"type": "string", "format": "date-time"},
            "operationHistory": {"type": "object", "properties": {
                "deprovision": period(), "inspect": period(), "provision": period(), "register": period(),
            }},
            "operationalStatus": {"type": "string", "enum": [
                "", "OK", "discovered", "error", "delayed", "detached", "servicing",
            ]},
            "poweredOn": {"type": "boolean"},
            "provisioning": {
                "type": "object", "required": ["ID", "state"],
                "properties": {
                    "ID": {"type": "string"},
                    "bootMode": one_of(&["UEFI", "UEFISecureBoot", "legacy"], "How the host boots."),
                    "customDeploy": custom_deploy(),
                    "image": image("What is on the disk."),
                    "rootDeviceHints": root_device_hints(),
                    "state": {"type": "string"},
                },
            },
            "triedCredentials": credentials(),
        },
    })
}

fn hardware() -> Value {
    let text = || json!({"type": "string"});
    let number = || json!({"type": "integer"});
    json!({
        "type": "object", "description": "The inventory.",
        "properties": {
            "cpu": {"type": "object", "properties": {
                "arch": text(), "model": text(), "count": number(),
                "clockMegahertz": {"type": "number", "format": "double"},
                "flags": {"type": "array", "items": text()},
            }},
            "firmware": {"type": "object", "properties": {"bios": {"type": "object", "properties": {
                "date": text(), "vendor": text(), "version": text(),
            }}}},
            "hostname": text(),
            "nics": {"type": "array", "items": {"type": "object", "properties": {
                "ip": text(), "mac": {"type": "string", "pattern": MAC}, "model": text(), "name": text(),
                "pxe": {"type": "boolean"}, "speedGbps": number(),
                "vlanId": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 4094},
                "lldp": {"type": "object", "properties": {
                    "portID": text(), "switchID": text(), "switchSystemName": text(),
                }},
            }}},
            "ramMebibytes": number(),
            "storage": {"type": "array", "items": {"type": "object", "properties": {
                "hctl": text(), "model": text(), "name": text(), "rotational": {"type": "boolean"},
                "serialNumber": text(), "sizeBytes": {"type": "integer", "format": "int64"},
                "type": {"type": "string", "enum": ["HDD", "SSD", "NVME"]},
                "vendor": text(), "wwn": text(),
            }}},
            "systemVendor": {"type": "object", "properties": {
                "manufacturer": text(), "productName": text(), "serialNumber": text(),
            }},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(definition: &CustomResourceDefinition) -> Vec<String> {
        let columns = definition.spec.versions[0]
            .additional_printer_columns
            .as_deref()
            .unwrap_or_default();
        let shown = columns.iter().filter(|column| column.priority.unwrap_or(0) == 0);
        shown.map(|column| column.name.to_uppercase()).collect()
    }

    #[test]
    fn a_host_shows_the_columns_of_the_real_one() {
        assert_eq!(
            columns(&bare_metal_host()),
            ["STATE", "CONSUMER", "ONLINE", "ERROR", "AGE"]
        );
    }

    #[test]
    fn every_field_of_a_full_status_is_in_the_schema() {
        let status = crate::bmh::Status {
            error_type: Some("registration error".into()),
            hardware: Some(json!({})),
            hardware_profile: Some("unknown".into()),
            last_updated: Some(jiff::Timestamp::UNIX_EPOCH),
            conditions: vec![crate::bmh::Condition::default()],
            ..Default::default()
        };
        let written = serde_json::to_value(status).unwrap();
        let known = super::status();
        for field in written.as_object().unwrap().keys() {
            assert!(known["properties"].get(field).is_some(), "status.{field}");
        }
    }
}
