//! The binary: the only crate that knows all the others. It reads the command line and the environment, joins the parts in
//! `wire`, and runs them until it is told to stop.

#![forbid(unsafe_code)]

pub mod args;
mod client;
pub mod control_plane;
pub mod lab;
mod leader;
pub mod manifests;
mod plugin;
mod probes;
mod run;
mod served;
mod telemetry;
pub mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

/// Hidden word that makes this program compile one component and end; see `hostler_wasm::CompileCommand`.
pub const COMPILE: &str = "__compile";

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let mut raw = std::env::args_os().skip(1);
    if raw.next().is_some_and(|word| word == COMPILE) {
        return hostler_wasm::compile_child_main(raw);
    }
    let args = Args::parse();
    match dispatch(args) {
        Ok(code) => code,
        Err(error) => {
            telemetry::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Crds => plugin::print_crds(),
        Command::Manifests(options) => manifests::main(&options),
        Command::Plugin(command) => plugin::main(command),
        Command::Lab(options) => runtime()?.block_on(lab::main(options)),
        Command::Run(options) => runtime()?.block_on(run::main(*options)),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // At least four workers: on a small machine a guest that computes must not hold up heartbeats and watches.
    let workers = std::thread::available_parallelism().map_or(4, usize::from).max(4);
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?)
}
