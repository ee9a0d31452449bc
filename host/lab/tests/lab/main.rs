//! The laboratory from outside: what was recorded from the real Metal3 is done again to it, and servers join.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod live;
mod pods;
mod pure;
mod recording;
mod scheduling;
mod servers;
mod world;
