//! A simulated data centre that speaks only the Kubernetes API.
pub mod bmh;
pub mod crds;
mod identity;
pub mod inventory;
mod network;
mod options;
pub use network::{BindError, Network};
pub use options::{Options, Times};
