//! A simulated data centre that speaks only the Kubernetes API.
//!
//! It plays what stands behind a Metal3 provider: the controller of BareMetalHosts, the servers with their management
//! controllers, and the kubelets that run on them once an image was written. Whoever uses it sees objects change as they
//! were recorded to change on the real thing (`tests/traces/`), and cannot tell it apart by anything but its speed.
//!
//! - [`bmh`]: the pure machine of one host.
//! - [`Lab`], [`run`]: all hosts of a cluster, driven by watches.
//! - `server`: what runs on a machine that has power and an image: cloud-init, a kubelet, a Node.
//! - [`scheduler`]: plays kube-scheduler where a cluster has none.
//! - [`Network`]: which address on the rack leads to which API server.
//! - [`crds`], [`inventory`]: the kinds it needs, and racks full of hosts to begin with.

pub mod bmh;
pub mod crds;
mod datacentre;
mod identity;
pub mod inventory;
mod network;
mod notices;
mod options;
mod records;
pub mod scheduler;
mod server;

pub use datacentre::{Lab, LabError, run};
pub use network::{BindError, Network};
pub use options::{Options, Times};
