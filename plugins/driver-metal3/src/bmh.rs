//! A BareMetalHost as the few facts that matter here. Reads leniently: what Metal3 wrote is judged, never parsed strictly.

use hostler_sdk::Object;
use serde_json::Value;

pub(crate) const API_VERSION: &str = "metal3.io/v1alpha1";
pub(crate) const KIND: &str = "BareMetalHost";

/// Any value stops Metal3's reconcile.
const PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Metal3 lets go of the machine without powering it off.
const DETACHED: &str = "baremetalhost.metal3.io/detached";
/// Set by Cluster API's remediation, cleared by nobody but an operator. The second is its older name.
const UNHEALTHY: [&str; 2] = ["capm3.metal3.io/unhealthy", "capi.metal3.io/unhealthy"];
/// `reboot.metal3.io/<key>` keeps a host off until the key's owner removes it.
const KEPT_OFF: &str = "reboot.metal3.io/";

pub(crate) const IP_ADDRESS: &str = "metal3.vcluster.com/ip-address";
pub(crate) const NODE_CLAIM: &str = "metal3.vcluster.com/node-claim";

/// Where a host is in its life, by Metal3's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Unmanaged,
    Registering,
    Inspecting,
    Preparing,
    Available,
    Provisioning,
    Provisioned,
    ExternallyProvisioned,
    Deprovisioning,
    Deleting,
    /// A word that this driver does not know.
    Other,
}

/// One host.
pub(crate) struct Host<'a> {
    pub(crate) object: &'a Object,
}

impl<'a> Host<'a> {
    pub(crate) fn of(object: &'a Object) -> Self {
        Self { object }
    }

    /// `namespace/name`, for messages.
    pub(crate) fn title(&self) -> String {
        format!("host {}/{}", self.namespace(), self.object.name)
    }

    pub(crate) fn namespace(&self) -> &'a str {
        self.object.namespace.as_deref().unwrap_or_default()
    }

    /// What stands at a place, `null` and `{}` being nothing.
    pub(crate) fn set(&self, pointer: &str) -> Option<&'a Value> {
        self.object.at(pointer).filter(|value| match value {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            _ => true,
        })
    }

    pub(crate) fn text(&self, pointer: &str) -> Option<&'a str> {
        self.object.text(pointer).filter(|text| !text.is_empty())
    }

    pub(crate) fn state(&self) -> State {
        match self.text("/status/provisioning/state") {
            None => State::New,
            Some("unmanaged") => State::Unmanaged,
            Some("registering") => State::Registering,
            Some("inspecting") => State::Inspecting,
            Some("match profile" | "preparing") => State::Preparing,
            Some("available" | "ready") => State::Available,
            Some("provisioning") => State::Provisioning,
            Some("provisioned") => State::Provisioned,
            Some("externally provisioned") => State::ExternallyProvisioned,
            Some("deprovisioning") => State::Deprovisioning,
            Some("powering off before delete" | "deleting") => State::Deleting,
            Some(_) => State::Other,
        }
    }

    /// The state in Metal3's own word.
    pub(crate) fn state_word(&self) -> &'a str {
        self.text("/status/provisioning/state").unwrap_or("new")
    }

    pub(crate) fn is_being_deleted(&self) -> bool {
        self.object.is_being_deleted() || self.state() == State::Deleting
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.object.annotation(PAUSED).is_some()
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.object.annotation(DETACHED).is_some() || self.operational() == Some("detached")
    }

    pub(crate) fn is_unhealthy(&self) -> bool {
        UNHEALTHY.iter().any(|key| self.object.annotation(key).is_some())
    }

    /// The annotation that keeps this host off, if there is one.
    pub(crate) fn kept_off_by(&self) -> Option<&'a str> {
        let annotations = self.object.at("/metadata/annotations")?.as_object()?;
        annotations
            .keys()
            .find(|key| key.starts_with(KEPT_OFF))
            .map(String::as_str)
    }

    pub(crate) fn operational(&self) -> Option<&'a str> {
        self.text("/status/operationalStatus")
    }

    /// Metal3's complaint: the type and its text.
    pub(crate) fn error(&self) -> Option<(&'a str, &'a str)> {
        let kind = self.text("/status/errorType");
        let failed = self.operational() == Some("error");
        let message = self.text("/status/errorMessage").unwrap_or("no message");
        kind.or(failed.then_some("error")).map(|kind| (kind, message))
    }

    pub(crate) fn failed_provisionings(&self) -> i64 {
        self.object
            .at("/status/provisioningFailCount")
            .and_then(Value::as_i64)
            .unwrap_or_default()
    }

    pub(crate) fn is_online(&self) -> bool {
        self.object
            .at("/spec/online")
            .and_then(Value::as_bool)
            .unwrap_or_default()
    }

    pub(crate) fn is_powered_on(&self) -> bool {
        self.object
            .at("/status/poweredOn")
            .and_then(Value::as_bool)
            .unwrap_or_default()
    }

    /// Power is as asked for. Metal3 reports `available` a moment before the power goes.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_online() == self.is_powered_on()
    }

    /// The status was made from the spec as it is: Metal3 looked after the last change of it.
    ///
    /// `Healthy` is left out: a provisioner without health reports sets it once to Unknown and never looks again, as recorded.
    pub(crate) fn is_observed(&self) -> bool {
        let conditions = self.object.at("/status/conditions").and_then(Value::as_array);
        let seen = |condition: &Value| condition.get("observedGeneration").and_then(Value::as_i64);
        conditions
            .into_iter()
            .flatten()
            .filter(|condition| condition.get("type").and_then(Value::as_str) != Some("Healthy"))
            .filter_map(seen)
            .all(|generation| generation >= self.object.generation())
    }

    /// Metal3 is about to do something of its own accord.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.operational(), Some("servicing" | "delayed"))
    }

    /// What makes a host somebody's: an image or a deploy step.
    pub(crate) fn is_loaded(&self) -> bool {
        self.set("/spec/image").is_some() || self.set("/spec/customDeploy").is_some()
    }

    /// Metal3 has cleaned it, looked after the last change, and the power is as asked for. Whether it may be *promised* is another
    /// question: see `availability`.
    pub(crate) fn is_clean(&self) -> bool {
        self.state() == State::Available
            && self.error().is_none()
            && !self.is_loaded()
            && !self.is_busy()
            && self.is_observed()
            && self.is_settled()
    }

    /// The consumer as a person reads it.
    pub(crate) fn consumer(&self) -> Option<String> {
        self.set("/spec/consumerRef")?;
        let text = |key| self.text(&format!("/spec/consumerRef/{key}")).unwrap_or("?");
        Some(format!("{} {}/{}", text("kind"), text("namespace"), text("name")))
    }

    /// The card that the host boots from.
    pub(crate) fn boot_mac(&self) -> Option<String> {
        let from_hardware = || {
            let nics = self.object.at("/status/hardware/nics")?.as_array()?;
            let boots = |nic: &&Value| nic.get("pxe").and_then(Value::as_bool) == Some(true);
            nics.iter().find(boots)?.get("mac")?.as_str()
        };
        self.text("/spec/bootMACAddress")
            .or_else(from_hardware)
            .map(str::to_ascii_lowercase)
    }
}
