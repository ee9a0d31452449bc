//! How plugins run: WebAssembly components in a sandbox. The only crate that knows the engine.
//!
//! Read in this order: [`Catalog`] (a directory of components becomes the set that serves), `inspect` (what a file is, judged
//! before anything is compiled), `compile` (in a child process, with limits), `component` (compiled code, linked once),
//! `call` (one call: fresh store, deadline, limits, failure classes), `v0_1` (the shapes of `wit/v0.1`).
//!
//! # Guarantees
//! A guest reaches nothing but its arguments and the log. Every call has a deadline, a memory limit and an answer limit, also
//! while it is instantiated. A bad file, a trap or a loop costs its own plugin an error and nobody else anything. What served
//! goes on serving until something better has been validated, compiled, linked and tried, also across restarts.

#![warn(missing_docs)]

mod breaker;
mod call;
pub mod cases;
mod catalog;
mod compile;
mod component;
pub mod encode;
mod engine;
mod error;
mod grants;
pub mod inspect;
mod limits;
mod log;
mod memo;
mod source;
mod store;
mod text;
mod v0_1;
mod wasi;

pub use catalog::{Catalog, OpenError, Options, Required};
pub use compile::{CompileCommand, CompileLimits, CompileWith, compile_child_main};
pub use engine::{Pool, Sandbox, SandboxOptions};
pub use error::LoadError;
pub use inspect::{Inspection, World, inspect};
