//! How long things take in the simulated data centre.

use std::time::Duration;

/// How long the work of servers and their management takes. A few seconds in all by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Trying a management controller for the first time.
    pub register: Duration,
    /// Taking the inventory.
    pub inspect: Duration,
    /// Setting RAID and firmware.
    pub prepare: Duration,
    /// Writing an image.
    pub provision: Duration,
    /// Cleaning.
    pub deprovision: Duration,
    /// From the order to switch power on or off until it is.
    pub power: Duration,
    /// From power on until cloud-init runs.
    pub boot: Duration,
    /// From the registration of a node until it is Ready.
    pub ready: Duration,
    /// Between two renewals of a node's lease.
    pub heartbeat: Duration,
    /// Between two full status reports of a node on which nothing changes.
    pub report: Duration,
    /// Before missing BMC credentials are looked for again, and at most before an API server that does not answer is dialled
    /// again.
    pub retry: Duration,
    /// Between two looks of a server at its signing request.
    pub poll: Duration,
    /// From a kubelet's first sight of a pod until its containers run.
    pub start: Duration,
    /// From the order to end a pod until its containers have ended; never longer than the pod's own grace period.
    pub stop: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            register: Duration::from_millis(200),
            inspect: Duration::from_millis(400),
            prepare: Duration::from_millis(100),
            provision: Duration::from_millis(2000),
            deprovision: Duration::from_millis(1000),
            power: Duration::from_millis(300),
            boot: Duration::from_millis(500),
            ready: Duration::from_millis(500),
            heartbeat: Duration::from_secs(10),
            report: Duration::from_secs(300),
            retry: Duration::from_secs(2),
            poll: Duration::from_millis(250),
            start: Duration::from_millis(300),
            stop: Duration::from_millis(300),
        }
    }
}

/// What a laboratory is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long things take.
    pub times: Times,
    /// The namespace in which the contents of the simulated disks are kept. Created when it does not exist.
    pub namespace: String,
    /// Whether a kubelet whose Node object was deleted registers again while it runs. The real one does not (only when it is
    /// started again); `true` makes the laboratory a harder test for whoever deletes Nodes.
    pub reregister: bool,
    /// Whether kubelets run pods. Without it they leave them alone, for whoever else plays that part.
    pub pods: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            times: Times::default(),
            namespace: "hostler-lab".to_owned(),
            reregister: false,
            pods: true,
        }
    }
}

impl Options {
    /// Nothing takes any time; what is tried again is tried at once. For tests.
    #[must_use]
    pub fn instant() -> Self {
        let moment = Duration::from_millis(20);
        Self {
            times: Times {
                register: Duration::ZERO,
                inspect: Duration::ZERO,
                prepare: Duration::ZERO,
                provision: Duration::ZERO,
                deprovision: Duration::ZERO,
                power: Duration::ZERO,
                boot: Duration::ZERO,
                ready: Duration::ZERO,
                retry: moment,
                poll: moment,
                start: Duration::ZERO,
                stop: Duration::ZERO,
                ..Times::default()
            },
            ..Self::default()
        }
    }
}
