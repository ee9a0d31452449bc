//! Every test over more than one crate, in one binary: the sandbox is linked once.

mod cli;
mod conformance;
mod crashes;
mod guests;
mod harness;
mod kubernetes;
mod safety;
mod scenarios;
mod tidy;
mod transcript;
mod user;
