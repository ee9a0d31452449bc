//! The status of a BareMetalHost, field for field as Metal3 writes it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CustomDeploy, Image};

/// Where a host is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// Nothing was reported yet.
    #[default]
    #[serde(rename = "")]
    None,
    /// It names no management controller.
    #[serde(rename = "unmanaged")]
    Unmanaged,
    /// The management controller is tried.
    #[serde(rename = "registering")]
    Registering,
    /// The inventory is taken.
    #[serde(rename = "inspecting")]
    Inspecting,
    /// RAID and firmware are set.
    #[serde(rename = "preparing")]
    Preparing,
    /// Free to be provisioned.
    #[serde(rename = "available")]
    Available,
    /// An image is being written.
    #[serde(rename = "provisioning")]
    Provisioning,
    /// An image was written.
    #[serde(rename = "provisioned")]
    Provisioned,
    /// It runs what somebody else installed.
    #[serde(rename = "externally provisioned")]
    ExternallyProvisioned,
    /// It is being cleaned.
    #[serde(rename = "deprovisioning")]
    Deprovisioning,
    /// Its last power-off.
    #[serde(rename = "powering off before delete")]
    PoweringOffBeforeDelete,
    /// It is about to go.
    #[serde(rename = "deleting")]
    Deleting,
}

/// How a host fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operational {
    /// Nothing was reported yet.
    #[default]
    #[serde(rename = "")]
    None,
    /// No management controller is known.
    #[serde(rename = "discovered")]
    Discovered,
    /// Well.
    #[serde(rename = "OK")]
    Ok,
    /// Something failed; see the error.
    #[serde(rename = "error")]
    Error,
    /// It waits for a place.
    #[serde(rename = "delayed")]
    Delayed,
    /// It is left alone.
    #[serde(rename = "detached")]
    Detached,
    /// Its firmware is being changed.
    #[serde(rename = "servicing")]
    Servicing,
}

/// The whole status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// One entry a type, sorted, `Ready` first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Failures since the last success.
    pub error_count: i64,
    /// The last failure.
    pub error_message: String,
    /// What kind of failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Credentials that worked.
    pub good_credentials: Credentials,
    /// The inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Value>,
    /// A leftover of old versions: always `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_profile: Option<String>,
    /// When the status was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Timestamp>,
    /// When each phase last ran.
    pub operation_history: History,
    /// How the host fares.
    pub operational_status: Operational,
    /// Whether the server has power, as last seen.
    pub powered_on: bool,
    /// What is on the disk.
    pub provisioning: Provisioning,
    /// Credentials that were tried last.
    pub tried_credentials: Credentials,
}

/// What is on the disk, and where the host is in its life.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provisioning {
    /// Its name in the provisioning system.
    #[serde(rename = "ID")]
    pub id: String,
    /// How it boots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<String>,
    /// A deployment that is no image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_deploy: Option<CustomDeploy>,
    /// The image that was written; its URL is empty for none.
    pub image: Image,
    /// Which disk is written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_device_hints: Option<Value>,
    /// Where the host is in its life.
    pub state: State,
}

/// A Secret by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretName {
    /// Its name.
    pub name: String,
    /// Its namespace; empty for the host's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// Which credentials, in which version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Credentials {
    /// The Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretName>,
    /// Its resource version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_version: Option<String>,
}

/// When each phase last ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Cleaning.
    pub deprovision: Period,
    /// Taking the inventory.
    pub inspect: Period,
    /// Writing the image.
    pub provision: Period,
    /// Trying the management controller.
    pub register: Period,
}

/// From when to when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Period {
    /// Its end; none while it lasts.
    pub end: Option<Timestamp>,
    /// Its start; none before the first.
    pub start: Option<Timestamp>,
}

impl Period {
    /// Opens a new period, unless one is open already.
    pub(super) fn begin(&mut self, now: Timestamp) {
        if self.start.is_none() || self.end.is_some() {
            *self = Self {
                start: Some(now),
                end: None,
            };
        }
    }

    /// Closes an open period; tells whether there was one.
    pub(super) fn finish(&mut self, now: Timestamp) -> bool {
        let open = self.start.is_some() && self.end.is_none();
        if open {
            self.end = Some(now);
        }
        open
    }
}

impl History {
    /// The period that belongs to a state, if that one is timed.
    pub(super) fn of(&mut self, state: State) -> Option<&mut Period> {
        match state {
            State::Registering => Some(&mut self.register),
            State::Inspecting => Some(&mut self.inspect),
            State::Provisioning => Some(&mut self.provision),
            State::Deprovisioning => Some(&mut self.deprovision),
            State::None
            | State::Unmanaged
            | State::Preparing
            | State::Available
            | State::Provisioned
            | State::ExternallyProvisioned
            | State::PoweringOffBeforeDelete
            | State::Deleting => None,
        }
    }
}

/// A condition, as in the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// When its status last changed.
    pub last_transition_time: Timestamp,
    /// Always empty here.
    pub message: String,
    /// The generation that was judged.
    pub observed_generation: i64,
    /// Why.
    pub reason: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Which condition.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Whole seconds, as the API keeps times.
pub(super) fn second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
