//! The next step of one host: the order in which Metal3 looks at things, and the states.
//!
//! finalizer → credentials → deletion → detachment → registration → what the state asks for → conditions.

use std::time::Duration;

use jiff::Timestamp;

use super::hardware::{Hardware, Work, inventory, supplied_inventory};
use super::status::{Operational, Period, State, Status, second};
use super::{DETACHED, FINALIZER, HARDWARE_DETAILS, Host, PAUSED, conditions};
use crate::options::Times;

/// What a BMC Secret looks like, as far as a host needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secret {
    /// Its resource version: another version is tried anew.
    pub version: String,
    /// Whether it has a user name.
    pub username: bool,
    /// Whether it has a password.
    pub password: bool,
    /// Whether it carries the label, and this host as an owner.
    pub owned: bool,
    /// Whether it carries [`super::SECRET_FINALIZER`].
    pub held: bool,
    /// Whether it is being deleted, so that it takes no finalizer any more.
    pub going: bool,
}

/// All that a step is decided from, but for the server itself and the time.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The host.
    pub host: &'a Host,
    /// The BMC Secret that it names, if that exists.
    pub secret: Option<&'a Secret>,
}

/// A write that a step asks for. Each is checked against the resource version that was seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Replace the status.
    Status(Box<Status>),
    /// Change metadata or spec.
    Object(Change),
    /// Put label, owner and finalizer on the BMC Secret.
    ClaimSecret,
    /// Take the finalizer off the BMC Secret.
    ReleaseSecret,
}

/// A change of metadata or spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add the finalizer; an absent `spec.bmc` becomes an empty one, as it does in the real thing.
    AddFinalizer,
    /// Take the finalizer off.
    RemoveFinalizer,
    /// Take an annotation off.
    RemoveAnnotation(&'static str),
    /// Fill in `spec.architecture`.
    SetArchitecture(String),
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At once.
    Now,
    /// After a while, or when something changes.
    After(Duration),
    /// When generation, annotations, finalizers or the Secret change.
    OnChange,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// A word for it.
    pub reason: &'static str,
    /// A sentence for it.
    pub message: String,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The write, if any.
    pub write: Option<Write>,
    /// When to look again, after the write.
    pub again: Again,
    /// Events to send after the write.
    pub notes: Vec<Note>,
}

/// How one look at a host ended.
pub(super) enum Outcome {
    /// Nothing to report; look again then.
    Rest(Again),
    /// The status changed.
    Report(Again),
    /// The state is done with.
    Complete,
    /// A write that is not of the status.
    Write(Write),
}

/// One look at a host.
pub(super) struct Turn<'a> {
    pub(super) host: &'a Host,
    pub(super) secret: Option<&'a Secret>,
    pub(super) hardware: &'a mut Hardware,
    pub(super) times: &'a Times,
    pub(super) status: Status,
    pub(super) next: State,
    pub(super) now: Timestamp,
    pub(super) notes: Vec<Note>,
}

/// Nothing to do until something changes.
pub(super) const REST: Outcome = Outcome::Rest(Again::OnChange);

/// Decides what a host does next.
#[must_use]
pub fn step(seen: Seen<'_>, hardware: &mut Hardware, now: Timestamp, times: &Times) -> Step {
    let host = seen.host;
    let switching = hardware.settle_power(times.power, now);
    if host.annotation(PAUSED).is_some() {
        let again = switching.map_or(Again::OnChange, Again::After);
        return Step {
            write: None,
            again,
            notes: Vec::new(),
        };
    }
    let status = host.status.clone().unwrap_or_default();
    let next = status.provisioning.state;
    let secret = seen.secret;
    let mut turn = Turn {
        host,
        secret,
        hardware,
        times,
        status,
        next,
        now,
        notes: Vec::new(),
    };
    let outcome = turn.look();
    turn.conclude(outcome)
}

impl Turn<'_> {
    fn look(&mut self) -> Outcome {
        if let Some(write) = self.before_all() {
            return Outcome::Write(write);
        }
        let credentials = match self.credentials() {
            Ok(credentials) => credentials,
            Err(outcome) => return outcome,
        };
        let state = self.next;
        let outcome = self.in_state(credentials);
        if self.next != state {
            self.enter(state);
        }
        let generation = self.host.meta.generation.unwrap_or_default();
        let before = self.status.conditions.clone();
        if !matches!(outcome, Outcome::Write(_)) {
            conditions::compute(&mut self.status, generation, second(self.now));
        }
        match outcome {
            Outcome::Rest(again) if before != self.status.conditions => Outcome::Report(again),
            other => other,
        }
    }

    fn conclude(mut self, outcome: Outcome) -> Step {
        let (write, again) = match outcome {
            Outcome::Rest(again) => (None, again),
            Outcome::Report(again) => (Some(self.saved()), again),
            Outcome::Complete => (Some(self.saved()), Again::Now),
            Outcome::Write(Write::Object(Change::RemoveFinalizer)) => {
                (Some(Write::Object(Change::RemoveFinalizer)), Again::OnChange)
            }
            Outcome::Write(write) => (Some(write), Again::Now),
        };
        Step {
            write,
            again,
            notes: self.notes,
        }
    }

    fn saved(&mut self) -> Write {
        self.status.last_updated = Some(second(self.now));
        Write::Status(Box::new(self.status.clone()))
    }

    /// What comes before everything else: inventory that is known already, and the finalizer.
    fn before_all(&mut self) -> Option<Write> {
        let host = self.host;
        if self.hardware.inspected() && host.spec.architecture.is_empty() {
            let known = self.status.hardware.clone().unwrap_or_else(|| inventory(host));
            if let Some(arch) = known["cpu"]["arch"].as_str().filter(|arch| !arch.is_empty()) {
                return Some(Write::Object(Change::SetArchitecture(arch.to_owned())));
            }
        }
        if self.status.hardware.is_none() {
            let known = if self.hardware.inspected() {
                Some(inventory(host))
            } else {
                supplied_inventory(host)
            };
            if known.is_some() {
                self.hardware.set_inspected();
                self.status.hardware = known;
                return Some(self.saved());
            }
        }
        if host.annotation(HARDWARE_DETAILS).is_some() {
            return Some(Write::Object(Change::RemoveAnnotation(HARDWARE_DETAILS)));
        }
        if !host.deleting() && !host.has_finalizer() {
            return Some(Write::Object(Change::AddFinalizer));
        }
        None
    }

    /// Records the change of state that was decided.
    fn enter(&mut self, from: State) {
        let now = second(self.now);
        let history = &mut self.status.operation_history;
        history.of(from).map(|period| period.finish(now));
        history
            .of(self.next)
            .into_iter()
            .for_each(|period: &mut Period| period.begin(now));
        self.status.provisioning.state = self.next;
        if matches!(
            self.next,
            State::Registering | State::Inspecting | State::Provisioning
        ) {
            let mode = if self.host.spec.boot_mode.is_empty() {
                "UEFI"
            } else {
                &self.host.spec.boot_mode
            };
            self.status.provisioning.boot_mode = Some(mode.to_owned());
        }
        if self.next == State::Provisioned && from == State::Provisioning {
            // Named after the end of the period, which is known only now.
            let status = &self.status;
            self.hardware.image(status);
        }
    }

    fn in_state(&mut self, credentials: bool) -> Outcome {
        if self.begin_delete() {
            return Outcome::Complete;
        }
        if let Some(outcome) = self.detached() {
            return outcome;
        }
        if credentials && let Some(outcome) = self.registered() {
            return outcome;
        }
        match self.next {
            State::None if self.host.has_bmc() => self.go(State::Registering),
            State::None => {
                self.note("Discovered", "Discovered host with no BMC details");
                self.status.operational_status = Operational::Discovered;
                self.go(State::Unmanaged)
            }
            State::Unmanaged if self.host.has_bmc() => self.go(State::Registering),
            State::Unmanaged => REST,
            State::Registering => {
                self.status.error_count = 0;
                self.go(if self.host.spec.externally_provisioned {
                    State::ExternallyProvisioned
                } else if self.host.inspection_disabled() {
                    State::Preparing
                } else {
                    State::Inspecting
                })
            }
            State::Inspecting => self.inspecting(),
            State::Preparing => match self.hardware.work(Work::Prepare, self.times.prepare, self.now) {
                Some(left) => self.under_way(left),
                None => {
                    self.status.error_count = 0;
                    self.go(State::Available)
                }
            },
            State::Available => self.available(),
            State::Provisioning => self.provisioning(),
            State::Provisioned if self.cancelled() => self.deprovision(),
            State::Provisioned => self.power(),
            State::ExternallyProvisioned if self.host.spec.externally_provisioned => self.power(),
            State::ExternallyProvisioned => {
                let provisioning = &mut self.status.provisioning;
                provisioning.image = self.host.spec.image.clone().unwrap_or_default();
                provisioning.custom_deploy = self.host.spec.custom_deploy.clone();
                self.go(State::Provisioned)
            }
            State::Deprovisioning => self.deprovisioning(),
            State::PoweringOffBeforeDelete => self.last_power_off(),
            State::Deleting => self.deleting(),
        }
    }

    /// Turns a host that is being deleted towards its end.
    fn begin_delete(&mut self) -> bool {
        if !self.host.deleting() || self.next == State::Deleting {
            return false;
        }
        if let Some(value) = self.host.annotation(DETACHED) {
            let options: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
            if options["deleteAction"] == "delay" {
                return false;
            }
        }
        if self.status.operational_status == Operational::Detached || self.host.annotation(DETACHED).is_some()
        {
            self.next = State::Deleting;
            return true;
        }
        self.next = match self.next {
            State::None | State::Unmanaged | State::Registering => State::Deleting,
            State::Provisioning | State::Provisioned => {
                self.hardware.wipe();
                State::Deprovisioning
            }
            State::Deprovisioning | State::PoweringOffBeforeDelete => return false,
            State::Inspecting
            | State::Preparing
            | State::Available
            | State::ExternallyProvisioned
            | State::Deleting => State::PoweringOffBeforeDelete,
        };
        true
    }

    fn detached(&mut self) -> Option<Outcome> {
        if let Some(value) = self.host.annotation(DETACHED) {
            let options: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
            let still = match self.next {
                State::Provisioned | State::ExternallyProvisioned | State::Available => true,
                State::Deleting => false,
                _ => options["force"] == true,
            };
            if still && self.status.operational_status == Operational::Detached {
                return Some(REST);
            }
            if still {
                self.status.operational_status = Operational::Detached;
                return Some(Outcome::Report(Again::OnChange));
            }
        }
        (self.status.operational_status == Operational::Detached).then(|| {
            self.status.operational_status = match self.status.error_type {
                None => Operational::Ok,
                Some(_) => Operational::Error,
            };
            Outcome::Report(Again::Now)
        })
    }

    pub(super) fn under_way(&mut self, left: Duration) -> Outcome {
        if self.clear_error() {
            Outcome::Report(Again::After(left))
        } else {
            Outcome::Rest(Again::After(left))
        }
    }

    pub(super) fn go(&mut self, next: State) -> Outcome {
        self.next = next;
        Outcome::Complete
    }

    pub(super) fn note(&mut self, reason: &'static str, message: impl Into<String>) {
        self.notes.push(Note {
            reason,
            message: message.into(),
        });
    }

    /// Takes an error back; tells whether there was one, or no word of well-being yet.
    pub(super) fn clear_error(&mut self) -> bool {
        let status = &mut self.status;
        let dirty = status.operational_status != Operational::Ok
            || status.error_type.is_some()
            || !status.error_message.is_empty();
        status.operational_status = Operational::Ok;
        status.error_type = None;
        status.error_message.clear();
        dirty
    }

    pub(super) fn fail(&mut self, message: String) {
        self.status.operational_status = Operational::Error;
        self.status.error_type = Some(super::registration::REGISTRATION_ERROR.to_owned());
        self.status.error_message = message;
        self.status.error_count += 1;
    }
}

impl Change {
    /// Makes the change in an object.
    pub fn apply(&self, object: &mut kube::core::DynamicObject) {
        match self {
            Change::AddFinalizer => {
                object
                    .metadata
                    .finalizers
                    .get_or_insert_default()
                    .push(FINALIZER.to_owned());
                if let Some(spec) = object
                    .data
                    .get_mut("spec")
                    .and_then(serde_json::Value::as_object_mut)
                {
                    spec.entry("bmc")
                        .or_insert_with(|| serde_json::json!({"address": "", "credentialsName": ""}));
                }
            }
            Change::RemoveFinalizer => {
                if let Some(all) = &mut object.metadata.finalizers {
                    all.retain(|one| one != FINALIZER);
                }
            }
            Change::RemoveAnnotation(key) => {
                if let Some(all) = &mut object.metadata.annotations {
                    all.remove(*key);
                }
            }
            Change::SetArchitecture(arch) => object.data["spec"]["architecture"] = serde_json::json!(arch),
        }
    }
}
