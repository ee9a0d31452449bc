//! A simulated data centre that speaks only the Kubernetes API.
pub mod bmh;
mod identity;
mod options;
pub use options::{Options, Times};
