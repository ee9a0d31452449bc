//! One BareMetalHost as the simulated Metal3 sees it: parsed fields, and the pure machine that decides what it does next.
//!
//! [`step`] is a function from what was seen (the object, its BMC Secret, what the simulated server is doing, the time) to
//! at most one write. It has no clock and no client; whoever calls it does the write and calls again.

mod conditions;
mod hardware;
mod machine;
mod phases;
mod power;
mod registration;
mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

pub use self::hardware::{Hardware, Instance};
pub use self::machine::{Again, Change, Note, Secret, Seen, Step, Write, step};
pub use self::status::{
    Condition, Credentials, History, Operational, Period, Provisioning, SecretName, State, Status,
};

/// Keeps a host until it has been cleaned.
pub const FINALIZER: &str = "baremetalhost.metal3.io";
/// Keeps a BMC Secret while a host needs it.
pub const SECRET_FINALIZER: &str = "baremetalhost.metal3.io/secret";
/// The label that makes a Secret known to Metal3, with the value [`ENVIRONMENT`].
pub const ENVIRONMENT_LABEL: &str = "environment.metal3.io";
/// The value of [`ENVIRONMENT_LABEL`].
pub const ENVIRONMENT: &str = "baremetal";
/// Any value stops all work on the host.
pub const PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Leaves the server alone while the object stays.
pub const DETACHED: &str = "baremetalhost.metal3.io/detached";
/// One reboot; with a suffix (`reboot.metal3.io/key`), off until it is removed.
pub const REBOOT: &str = "reboot.metal3.io";
/// Asks for another inspection of an available host; `disabled` skips inspection.
pub const INSPECT: &str = "inspect.metal3.io";
/// Inventory supplied by hand, as JSON of `status.hardware`.
pub const HARDWARE_DETAILS: &str = "inspect.metal3.io/hardwaredetails";
/// The address of a server on the rack network, with its prefix length.
pub const IP_ADDRESS: &str = "metal3.vcluster.com/ip-address";

/// What an administrator or a consumer asked of a host. Only what the simulation acts on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Whether the server should be powered on.
    pub online: bool,
    /// CPU architecture; filled in by inspection.
    pub architecture: String,
    /// How to reach the management controller.
    pub bmc: Option<Bmc>,
    /// The network card that boots.
    #[serde(rename = "bootMACAddress")]
    pub boot_mac_address: String,
    /// `UEFI`, `UEFISecureBoot` or `legacy`.
    pub boot_mode: String,
    /// What to write to the disk.
    pub image: Option<Image>,
    /// A deployment that is no image.
    pub custom_deploy: Option<CustomDeploy>,
    /// Where cloud-init finds its user data.
    pub user_data: Option<SecretName>,
    /// Where cloud-init finds its network data.
    pub network_data: Option<SecretName>,
    /// The server runs something that Metal3 did not install.
    pub externally_provisioned: bool,
    /// `disabled` skips inspection.
    pub inspection_mode: String,
    /// Which disk to write to.
    pub root_device_hints: Option<Value>,
    /// The server must never be powered off.
    pub disable_power_off: bool,
}

/// How to reach a management controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bmc {
    /// URL whose scheme names the protocol.
    pub address: String,
    /// Name of the Secret with username and password.
    pub credentials_name: String,
}

/// An image on disk, or to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    /// Where it comes from; empty for no image.
    pub url: String,
    /// Its checksum or where that is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Which kind of checksum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_type: Option<String>,
    /// Its disk format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Secret for an OCI registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oci_auth_secret_name: Option<String>,
}

/// A deployment by a named method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct CustomDeploy {
    /// Its name.
    pub method: String,
}

/// A host object, parsed.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Its metadata.
    pub meta: ObjectMeta,
    /// What is asked.
    pub spec: Spec,
    /// What was reported; none before the first report.
    pub status: Option<Status>,
}

/// A host object that cannot be worked on.
#[derive(Debug, thiserror::Error)]
#[error("host {name} has a {part} that cannot be read ({source}); correct it")]
pub struct Unreadable {
    name: String,
    part: &'static str,
    source: serde_json::Error,
}

impl Host {
    /// Parses an object as it came from the API.
    ///
    /// # Errors
    /// When spec or status do not have the shape of a BareMetalHost.
    pub fn parse(object: &DynamicObject) -> Result<Self, Unreadable> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let part = |part: &'static str, name: String| move |source| Unreadable { name, part, source };
        let spec = match object.data.get("spec") {
            Some(spec) => Spec::deserialize(spec).map_err(part("spec", name.clone()))?,
            None => Spec::default(),
        };
        let status = match object.data.get("status") {
            None | Some(Value::Null) => None,
            Some(Value::Object(fields)) if fields.is_empty() => None,
            Some(status) => Some(Status::deserialize(status).map_err(part("status", name))?),
        };
        Ok(Self {
            meta: object.metadata.clone(),
            spec,
            status,
        })
    }

    /// Its provisioning state.
    #[must_use]
    pub fn state(&self) -> State {
        self.status
            .as_ref()
            .map(|status| status.provisioning.state)
            .unwrap_or_default()
    }

    /// The value of one of its annotations.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.meta.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn deleting(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    /// Whether it names a management controller at all.
    #[must_use]
    pub fn has_bmc(&self) -> bool {
        self.spec
            .bmc
            .as_ref()
            .is_some_and(|bmc| !bmc.address.is_empty() || !bmc.credentials_name.is_empty())
    }

    /// Name of the Secret with the BMC's credentials; empty when none is named.
    #[must_use]
    pub fn credentials_name(&self) -> &str {
        self.spec.bmc.as_ref().map_or("", |bmc| &bmc.credentials_name)
    }

    pub(crate) fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    fn has_finalizer(&self) -> bool {
        self.meta
            .finalizers
            .as_ref()
            .is_some_and(|all| all.iter().any(|one| one == FINALIZER))
    }

    fn inspection_disabled(&self) -> bool {
        self.spec.inspection_mode == "disabled" || self.annotation(INSPECT) == Some("disabled")
    }

    fn wants_inspection(&self) -> bool {
        self.annotation(INSPECT).is_some_and(|value| value != "disabled")
    }
}
