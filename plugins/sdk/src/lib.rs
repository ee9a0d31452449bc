//! What a plugin author needs: traits to implement, a macro that makes the component, and a runner for golden cases.
//!
//! ```ignore
//! use hostler_sdk::driver::{Description, Driver, Machine, Order, Plan, Preparation};
//! use hostler_sdk::{Failure, Object};
//!
//! struct Metal3;
//!
//! impl Driver for Metal3 { /* five pure functions */ }
//!
//! hostler_sdk::export_driver!(Metal3);
//! hostler_sdk::cases!(Metal3);
//! ```
//!
//! The contract itself, with what the host does with each answer, is `wit/v0.1`. This crate adds no rule to it: it turns JSON text into
//! values, and back.
//!
//! # Guarantees
//! A component made with this crate imports `hostler:plugin/log` and nothing else. Natively, every function of it runs as a plain function
//! and the log goes nowhere.

#[allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated from wit/: the canonical ABI is raw memory, and its documentation is the WIT"
)]
#[doc(hidden)]
pub mod bindings;
#[cfg(not(target_arch = "wasm32"))]
pub mod cases;
pub mod driver;
mod export;
mod field;
#[doc(hidden)]
pub mod glue;
pub mod log;
mod object;
pub mod policy;
mod reason;
pub mod resolver;

pub use field::Field;
pub use object::{Object, ObjectRef};
pub use reason::{Failure, Reason};

#[doc(hidden)]
pub use serde_json;
