//! The power of a host that is available or provisioned, and the last power-off.

use super::REBOOT;
use super::hardware::Work;
use super::machine::{Again, Change, Outcome, Turn, Write};
use super::status::State;

impl Turn<'_> {
    /// Reports a change of power, and asks for one where it is not as it should be.
    pub(super) fn power(&mut self) -> Outcome {
        let on = self.hardware.power();
        if self.status.powered_on != on {
            self.status.powered_on = on;
            return Outcome::Report(Again::Now);
        }
        if !on && self.host.annotation(REBOOT).is_some() {
            return Outcome::Write(Write::Object(Change::RemoveAnnotation(REBOOT)));
        }
        let wanted = self.host.spec.online && !self.held_off();
        if wanted == on {
            return Outcome::Rest(Again::OnChange);
        }
        if !wanted && self.host.spec.disable_power_off {
            return self.reboot_instead();
        }
        let (work, reason, message) = if wanted {
            (Work::PowerOn, "PowerOn", "Host powered on")
        } else {
            (Work::PowerOff, "PowerOff", "Host soft powered off")
        };
        if !self.hardware.busy_with(work) {
            self.note(reason, message);
        }
        // Zero time still passes between the order and the report of it: that is how it is recorded.
        match self.hardware.work(work, self.times.power, self.now) {
            Some(left) => Outcome::Rest(Again::After(left)),
            None => {
                self.hardware.set_power(wanted);
                Outcome::Rest(Again::Now)
            }
        }
    }

    /// Whether a reboot annotation keeps the power off. Only in states where something is installed, as in the real thing.
    fn held_off(&self) -> bool {
        if !matches!(self.next, State::Provisioned | State::ExternallyProvisioned) {
            return false;
        }
        let annotations = self.host.meta.annotations.iter().flatten();
        annotations
            .map(|(key, _)| key)
            .any(|key| key == REBOOT || key.starts_with("reboot.metal3.io/"))
    }

    fn reboot_instead(&mut self) -> Outcome {
        if self.host.annotation(REBOOT).is_none() {
            return Outcome::Rest(Again::OnChange);
        }
        self.note("Reboot", "Host rebooted");
        self.hardware.set_power(false);
        self.hardware.set_power(true);
        Outcome::Write(Write::Object(Change::RemoveAnnotation(REBOOT)))
    }

    pub(super) fn last_power_off(&mut self) -> Outcome {
        if !self.host.spec.disable_power_off && self.hardware.power() {
            if let Some(left) = self.hardware.work(Work::PowerOff, self.times.power, self.now) {
                return Outcome::Rest(Again::After(left));
            }
            self.note("PowerOff", "Host powered off");
            self.hardware.set_power(false);
        }
        self.status.error_count = 0;
        self.status.powered_on = false;
        self.go(State::Deleting)
    }
}
