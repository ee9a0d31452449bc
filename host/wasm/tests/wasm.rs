//! Components in the sandbox: good ones, bad ones, hostile ones. All of them are written here, in text.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what the tests share may fail as the tests themselves do"
)]

#[path = "wasm/fixtures.rs"]
mod fixtures;
#[path = "wasm/shelf.rs"]
mod shelf;

#[path = "wasm/build.rs"]
mod build;
#[path = "wasm/by_name.rs"]
mod by_name;
#[path = "wasm/calls.rs"]
mod calls;
#[path = "wasm/compile.rs"]
mod compile;
#[path = "wasm/limits.rs"]
mod limits;
#[path = "wasm/loading.rs"]
mod loading;
#[path = "wasm/swap.rs"]
mod swap;
#[path = "wasm/wasi.rs"]
mod wasi;
