//! The `hostler` command. Everything is in the library; this only ends the process with its answer.

use std::process::ExitCode;

fn main() -> ExitCode {
    hostler_cli::main()
}
