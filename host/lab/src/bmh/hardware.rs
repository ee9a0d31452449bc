//! What a simulated server itself knows, as opposed to what its object says: power, disk, and the work under way.
//!
//! # Guarantees
//! Nothing in here is lost for good: [`Hardware::recall`] rebuilds it from the status of the host, so that a laboratory
//! that starts anew goes on where it was.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Host, State, Status};

/// Work that takes a server some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Register,
    Inspect,
    Prepare,
    Provision,
    Deprovision,
    PowerOn,
    PowerOff,
}

/// One run of an installed operating system: what was installed, and the how-manieth boot it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Names what was written to the disk, and when. A new image is another disk.
    pub disk: String,
    /// Counts the times that the power came on since the laboratory started.
    pub boot: u64,
}

/// A simulated server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    power: bool,
    work: Option<(Work, Timestamp)>,
    inspected: bool,
    disk: Option<String>,
    boot: u64,
}

impl Hardware {
    /// The server behind a host whose object says `status`.
    #[must_use]
    pub fn recall(status: Option<&Status>) -> Self {
        let Some(status) = status else {
            return Self::default();
        };
        let history = &status.operation_history;
        let work = match status.provisioning.state {
            State::Registering if !status.provisioning.id.is_empty() => {
                Some((Work::Register, &history.register))
            }
            State::Inspecting => Some((Work::Inspect, &history.inspect)),
            State::Provisioning => Some((Work::Provision, &history.provision)),
            State::Deprovisioning => Some((Work::Deprovision, &history.deprovision)),
            _ => None,
        };
        let disk = (status.provisioning.state == State::Provisioned)
            .then(|| disk_name(status))
            .flatten();
        Self {
            power: status.powered_on,
            work: work.and_then(|(work, period)| Some((work, period.start?))),
            inspected: status.hardware.is_some(),
            disk,
            boot: 0,
        }
    }

    /// A server whose inventory an earlier object of the same name has brought to light already.
    #[must_use]
    pub fn inspected_before() -> Self {
        Self {
            inspected: true,
            ..Self::default()
        }
    }

    /// The operating system that runs now, if one does.
    #[must_use]
    pub fn running(&self) -> Option<Instance> {
        let disk = self.disk.clone()?;
        self.power.then_some(Instance {
            disk,
            boot: self.boot,
        })
    }

    pub(super) fn power(&self) -> bool {
        self.power
    }

    pub(super) fn inspected(&self) -> bool {
        self.inspected
    }

    pub(super) fn set_inspected(&mut self) {
        self.inspected = true;
    }

    /// Starts `work`, or goes on with it. Returns what is left of it; nothing left means that it is done now.
    pub(super) fn work(&mut self, work: Work, takes: Duration, now: Timestamp) -> Option<Duration> {
        let since = match self.work {
            Some((under_way, since)) if under_way == work => since,
            _ => {
                self.work = Some((work, now));
                now
            }
        };
        let left = left(since, takes, now);
        if left.is_none() {
            self.work = None;
        }
        left
    }

    /// Whether `work` was started and is not done.
    pub(super) fn busy_with(&self, work: Work) -> bool {
        self.work.is_some_and(|(under_way, _)| under_way == work)
    }

    /// Lets a change of power that was asked for happen, whoever looks. Returns what is left of it.
    pub(super) fn settle_power(&mut self, takes: Duration, now: Timestamp) -> Option<Duration> {
        let (work, since) = self.work?;
        let on = match work {
            Work::PowerOn => true,
            Work::PowerOff => false,
            Work::Register | Work::Inspect | Work::Prepare | Work::Provision | Work::Deprovision => {
                return None;
            }
        };
        let left = left(since, takes, now);
        if left.is_none() {
            self.work = None;
            self.set_power(on);
        }
        left
    }

    pub(super) fn set_power(&mut self, on: bool) {
        if on && !self.power {
            self.boot += 1;
        }
        self.power = on;
    }

    /// An image was written. A server that has power boots into it.
    pub(super) fn image(&mut self, status: &Status) {
        self.disk = disk_name(status);
        if self.power {
            self.boot += 1;
        }
    }

    /// What was on the disk is gone.
    pub(super) fn wipe(&mut self) {
        self.disk = None;
    }
}

fn left(since: Timestamp, takes: Duration, now: Timestamp) -> Option<Duration> {
    // A clock that went backwards must not make work last longer than it takes.
    let gone = now.duration_since(since).max(SignedDuration::ZERO).unsigned_abs();
    takes.checked_sub(gone).filter(|left| !left.is_zero())
}

fn disk_name(status: &Status) -> Option<String> {
    let what = match &status.provisioning.custom_deploy {
        Some(deploy) if !deploy.method.is_empty() => &deploy.method,
        _ => &status.provisioning.image.url,
    };
    let when = status.operation_history.provision.end?;
    (!what.is_empty()).then(|| format!("{what} {when}"))
}

/// The inventory of a host: what was supplied by hand, or two network cards, two disks and enough memory.
pub(super) fn inventory(host: &Host) -> Value {
    if let Some(given) = supplied_inventory(host) {
        return given;
    }
    let boot = host.spec.boot_mac_address.to_lowercase();
    let boot = if boot.is_empty() {
        "ab:cd:12:34:56:78".to_owned()
    } else {
        boot
    };
    let mut nic = json!({"name": "nic-1", "model": "virt-io", "mac": boot, "speedGbps": 25, "pxe": true,
        "lldp": {"switchID": "aa:bb:cc:dd:ee:ff", "portID": "Ethernet1/1", "switchSystemName": "switch01.example.com"}});
    if let Some(ip) = host
        .annotation(super::IP_ADDRESS)
        .and_then(|cidr| cidr.split('/').next())
    {
        nic["ip"] = json!(ip);
    }
    json!({
        "cpu": {"arch": "x86_64", "model": "Simulated CPU", "clockMegahertz": 3000, "count": 32,
            "flags": ["fpu", "hypervisor", "sse", "vmx"]},
        "firmware": {"bios": {}},
        "nics": [
            nic,
            {"name": "nic-2", "model": "virt-io", "mac": second_mac(&boot), "speedGbps": 25,
                "lldp": {"switchID": "ff:ee:dd:cc:bb:aa", "portID": "Ethernet1/2", "switchSystemName": "switch02.example.com"}},
        ],
        "ramMebibytes": 131_072,
        "storage": [
            {"name": "/dev/sda", "model": "Simulated disk", "sizeBytes": 1_099_511_627_776_i64},
            {"name": "/dev/sdb", "model": "Simulated disk", "sizeBytes": 1_099_511_627_776_i64},
        ],
        "systemVendor": {"manufacturer": "Hostler", "productName": "Simulated server", "serialNumber": boot.replace(':', "")},
    })
}

/// The inventory in the annotation made for it, when that can be read.
pub(super) fn supplied_inventory(host: &Host) -> Option<Value> {
    let text = host
        .annotation(super::HARDWARE_DETAILS)
        .filter(|text| !text.is_empty())?;
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// The neighbour of a boot MAC address: the highest bit of its last byte turned over.
fn second_mac(boot: &str) -> String {
    match boot.get(15..).map(|last| u8::from_str_radix(last, 16)) {
        Some(Ok(last)) => format!("{}{:02x}", &boot[..15], last ^ 0x80),
        _ => "12:34:56:78:ab:cd".to_owned(),
    }
}
