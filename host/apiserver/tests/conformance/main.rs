//! The server against the Kubernetes contract. Everything asserted here holds of a real kube-apiserver with its
//! controller manager, too, unless the test's name says that it is about this server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on says so and ends"
)]

mod clusters;
mod deletion;
mod harness;
mod kubectl;
mod lists;
mod objects;
mod runtime;
mod storage;
mod watches;
