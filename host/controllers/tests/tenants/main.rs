//! The tenant loops against the embedded API: what people write, and what must be true afterwards.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod given;
mod house;
mod nodes;
mod pools;
mod tenants;
