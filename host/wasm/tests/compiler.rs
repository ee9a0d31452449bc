//! The compiler child of this crate's tests: what `hostler __compile` is to the product.

use std::process::ExitCode;

fn main() -> ExitCode {
    hostler_wasm::compile_child_main(std::env::args_os().skip(1))
}
