//! Every test over more than one crate, in one binary: the sandbox is linked once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on says so and ends"
)]

mod cli;
mod conformance;
mod crashes;
mod definitions;
mod e2e;
mod guests;
mod harness;
mod kill;
mod kubernetes;
mod leader;
mod manifests;
mod metal3;
mod modules;
mod races;
mod real;
mod safety;
mod scenarios;
mod scheduling;
mod tidy;
mod timeline;
mod transcript;
mod upgrade;
mod user;
