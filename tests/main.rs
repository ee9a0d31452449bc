//! Every test over more than one crate, in one binary: the sandbox is linked once.

mod crashes;
mod harness;
mod scenarios;
mod tidy;
