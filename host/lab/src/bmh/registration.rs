//! Whether the management controller of a host can be reached: its credentials, its address, and the first contact.

use super::hardware::Work;
use super::machine::{Again, Outcome, Secret, Turn, Write};
use super::status::{Credentials, SecretName, State, second};

/// The only kind of error that this simulation makes.
pub(super) const REGISTRATION_ERROR: &str = "registration error";

/// Protocols of management controllers that Metal3 knows.
const PROTOCOLS: [&str; 9] = [
    "ipmi",
    "libvirt",
    "redfish",
    "redfish-virtualmedia",
    "redfish-uefihttp",
    "idrac-redfish",
    "idrac-virtualmedia",
    "ilo5-redfish",
    "ilo5-virtualmedia",
];

/// A missing Secret is looked for this often at the same pace; other failures wait twice as long each time, up to this
/// many doublings.
const DOUBLINGS: u32 = 6;

impl Turn<'_> {
    /// Looks for the credentials. `Ok(true)` when there are some, `Ok(false)` when they are not needed.
    pub(super) fn credentials(&mut self) -> Result<bool, Outcome> {
        if matches!(self.next, State::None | State::Unmanaged) {
            return Ok(false);
        }
        let name = self.host.credentials_name();
        let problem = match self.secret {
            _ if name.is_empty() => Some((
                "No BMC CredentialsName defined The BMC secret reference is empty".to_owned(),
                false,
            )),
            None => {
                let namespace = self.host.namespace();
                let missing = format!("The BMC secret {namespace}/{name} does not exist");
                Some((
                    format!("BMC CredentialsName secret doesn't exist {missing}"),
                    true,
                ))
            }
            Some(secret)
                if !secret.owned || (!secret.held && !secret.going && self.next != State::Deleting) =>
            {
                return Err(Outcome::Write(Write::ClaimSecret));
            }
            Some(secret) => self.unusable(secret).map(|problem| (problem, false)),
        };
        let Some((problem, temporary)) = problem else {
            return Ok(true);
        };
        if self.host.deleting() {
            return Ok(false);
        }
        self.note("BMCCredentialError", problem.clone());
        self.fail(problem);
        let again = if temporary {
            Again::After(self.times.retry)
        } else {
            Again::OnChange
        };
        Err(Outcome::Report(again))
    }

    fn unusable(&self, secret: &Secret) -> Option<String> {
        let address = self.host.spec.bmc.as_ref().map_or("", |bmc| &bmc.address);
        if address.is_empty() {
            Some("Empty BMC address Missing BMC connection detail 'Address'".to_owned())
        } else if !secret.username {
            Some("Validation error with BMC credentials: Missing BMC connection detail 'username' in credentials".to_owned())
        } else if !secret.password {
            Some("Validation error with BMC credentials: Missing BMC connection details 'password' in credentials".to_owned())
        } else {
            None
        }
    }

    /// Registers the host if it is not, or not with these credentials. None when there is nothing to do.
    pub(super) fn registered(&mut self) -> Option<Outcome> {
        let secret = self.secret?;
        if matches!(self.next, State::None | State::Unmanaged | State::Deleting) {
            return None;
        }
        let these = Credentials {
            credentials: Some(SecretName {
                name: self.host.credentials_name().to_owned(),
                namespace: self.host.namespace().to_owned(),
            }),
            credentials_version: Some(secret.version.clone()),
        };
        let again = self.next != State::Registering;
        let failed = self.status.error_type.as_deref() == Some(REGISTRATION_ERROR);
        if again && (failed || self.status.good_credentials != these) {
            self.status.operation_history.register.begin(second(self.now));
        }
        let outcome = self.register(&these);
        let complete = matches!(outcome, None | Some(Outcome::Complete));
        if complete && again && self.status.operation_history.register.finish(second(self.now)) {
            return Some(Outcome::Report(Again::Now));
        }
        match outcome {
            Some(Outcome::Complete) => Some(Outcome::Report(Again::Now)),
            other => other,
        }
    }

    fn register(&mut self, these: &Credentials) -> Option<Outcome> {
        let mut dirty = self.status.tried_credentials != *these;
        if dirty {
            self.status.tried_credentials = these.clone();
        }
        let address = self.host.spec.bmc.as_ref().map_or("", |bmc| &bmc.address);
        if let Some(protocol) = unknown_protocol(address) {
            let problem = format!("Unknown BMC type '{protocol}' for address {address}");
            self.note("RegistrationError", problem.clone());
            self.fail(problem);
            let doublings = u32::try_from(self.status.error_count - 1)
                .unwrap_or(DOUBLINGS)
                .min(DOUBLINGS);
            return Some(Outcome::Report(Again::After(
                self.times.retry * 2_u32.pow(doublings),
            )));
        }
        if self.status.provisioning.id.is_empty() {
            self.note("Registered", "Registered new host");
            self.status.provisioning.id =
                crate::identity::uuid(&[self.host.namespace(), self.host.name(), "node"]);
            let left = self.hardware.work(Work::Register, self.times.register, self.now);
            self.clear_error();
            return Some(Outcome::Report(left.map_or(Again::Now, Again::After)));
        }
        if self.hardware.busy_with(Work::Register)
            && let Some(left) = self.hardware.work(Work::Register, self.times.register, self.now)
        {
            let report = self.clear_error() || dirty;
            let again = Again::After(left);
            return Some(if report {
                Outcome::Report(again)
            } else {
                Outcome::Rest(again)
            });
        }
        if self.save_profile() {
            return Some(Outcome::Report(Again::Now));
        }
        let new = self.status.good_credentials != *these;
        if new {
            self.status.good_credentials = these.clone();
            self.note("BMCAccessValidated", "Verified access to BMC");
            dirty = true;
        }
        if new || self.status.error_type.as_deref() == Some(REGISTRATION_ERROR) {
            dirty = self.clear_error();
        }
        dirty.then_some(Outcome::Complete)
    }

    /// Fills in the hardware profile and which disk is written to; tells whether one of them changed.
    fn save_profile(&mut self) -> bool {
        let hints = self.host.spec.root_device_hints.clone();
        let hints = hints.unwrap_or_else(|| serde_json::json!({"deviceName": "/dev/sda"}));
        let status = &mut self.status;
        let changed = status.hardware_profile.is_none()
            || status.provisioning.root_device_hints.as_ref() != Some(&hints);
        status
            .hardware_profile
            .get_or_insert_with(|| "unknown".to_owned());
        status.provisioning.root_device_hints = Some(hints);
        changed
    }
}

/// The protocol of a BMC address when it is none that Metal3 knows. An address without one means IPMI.
fn unknown_protocol(address: &str) -> Option<&str> {
    let (protocol, _) = address.split_once("://")?;
    let (kind, transport) = protocol.split_once('+').unwrap_or((protocol, ""));
    let secured = !matches!(kind, "ipmi" | "libvirt");
    let known = PROTOCOLS.contains(&kind)
        && (transport.is_empty() || (secured && matches!(transport, "http" | "https")));
    (!known).then_some(protocol)
}
