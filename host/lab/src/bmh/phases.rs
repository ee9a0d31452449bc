//! What a host does in the states in which it has something to do: inspect, wait, install, clean, go.

use super::hardware::{Work, inventory};
use super::machine::{Change, Outcome, REST, Turn, Write};
use super::status::State;
use super::{CustomDeploy, INSPECT, Image, REBOOT};

impl Turn<'_> {
    pub(super) fn inspecting(&mut self) -> Outcome {
        if self.host.inspection_disabled() {
            self.note("InspectionSkipped", "disabled by user");
            return self.go(State::Preparing);
        }
        let started = !self.hardware.busy_with(Work::Inspect);
        let left = self.hardware.work(Work::Inspect, self.times.inspect, self.now);
        if started {
            self.note("InspectionStarted", "Hardware inspection started");
        }
        for annotation in [INSPECT, REBOOT] {
            if self.host.annotation(annotation).is_some() {
                return Outcome::Write(Write::Object(Change::RemoveAnnotation(annotation)));
            }
        }
        if let Some(left) = left {
            return self.under_way(left);
        }
        self.clear_error();
        self.note("InspectionComplete", "Hardware inspection completed");
        self.status.hardware = Some(inventory(self.host));
        self.status.error_count = 0;
        self.hardware.set_inspected();
        self.go(State::Preparing)
    }

    pub(super) fn available(&mut self) -> Outcome {
        let spec = &self.host.spec;
        if spec.externally_provisioned {
            return self.go(State::ExternallyProvisioned);
        }
        if self.host.wants_inspection() {
            return self.go(State::Inspecting);
        }
        let image = spec.image.as_ref().is_some_and(|image| !image.url.is_empty());
        let deploy = spec
            .custom_deploy
            .as_ref()
            .is_some_and(|deploy| !deploy.method.is_empty());
        if spec.online && (image || deploy) {
            self.clear_error();
            self.note("ProvisioningStarted", "Image provisioning started");
            return self.go(State::Provisioning);
        }
        self.power()
    }

    pub(super) fn provisioning(&mut self) -> Outcome {
        if self.status.error_type.is_some() || self.cancelled() {
            return self.deprovision();
        }
        let left = self
            .hardware
            .work(Work::Provision, self.times.provision, self.now);
        if self.host.annotation(REBOOT).is_some() {
            return Outcome::Write(Write::Object(Change::RemoveAnnotation(REBOOT)));
        }
        if let Some(left) = left {
            return self.under_way(left);
        }
        self.note("ProvisioningComplete", "Image provisioning completed");
        self.status.provisioning.image = self.host.spec.image.clone().unwrap_or_default();
        self.status
            .provisioning
            .custom_deploy
            .clone_from(&self.host.spec.custom_deploy);
        self.status.error_count = 0;
        self.go(State::Provisioned)
    }

    pub(super) fn deprovision(&mut self) -> Outcome {
        self.note("DeprovisioningStarted", "Image deprovisioning started");
        // The cleaning system boots in place of what was installed.
        self.hardware.wipe();
        self.go(State::Deprovisioning)
    }

    pub(super) fn deprovisioning(&mut self) -> Outcome {
        self.hardware.wipe();
        if let Some(left) = self
            .hardware
            .work(Work::Deprovision, self.times.deprovision, self.now)
        {
            return self.under_way(left);
        }
        if self.host.annotation(REBOOT).is_some() {
            return Outcome::Write(Write::Object(Change::RemoveAnnotation(REBOOT)));
        }
        self.note("DeprovisioningComplete", "Image deprovisioning completed");
        let provisioning = &mut self.status.provisioning;
        provisioning.image = Image::default();
        provisioning.custom_deploy = None;
        provisioning.root_device_hints = None;
        self.status.error_count = 0;
        self.go(if self.host.deleting() {
            State::PoweringOffBeforeDelete
        } else {
            State::Available
        })
    }

    pub(super) fn deleting(&mut self) -> Outcome {
        if !self.host.has_finalizer() {
            return REST;
        }
        if self.secret.is_some_and(|secret| secret.held) {
            return Outcome::Write(Write::ReleaseSecret);
        }
        Outcome::Write(Write::Object(Change::RemoveFinalizer))
    }

    /// Whether what is on the disk, or being written to it, is not what is asked for.
    pub(super) fn cancelled(&self) -> bool {
        let method =
            |deploy: &Option<CustomDeploy>| deploy.as_ref().map_or(String::new(), |d| d.method.clone());
        let on_disk = &self.status.provisioning;
        let (wanted_deploy, deployed) = (
            method(&self.host.spec.custom_deploy),
            method(&on_disk.custom_deploy),
        );
        let wanted_image = self.host.spec.image.as_ref().map_or("", |image| &image.url);
        let image_differs = !on_disk.image.url.is_empty() && wanted_image != on_disk.image.url;
        if wanted_deploy.is_empty() {
            return !deployed.is_empty() || wanted_image.is_empty() || image_differs;
        }
        (!deployed.is_empty() && wanted_deploy != deployed) || image_differs
    }
}
