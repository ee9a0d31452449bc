//! `hostler plugin build`, `hostler plugin inspect` and `hostler crds`.

use std::process::ExitCode;

use anyhow::Context;

use crate::args::PluginCommand;
use crate::telemetry::say;

pub(crate) fn main(command: PluginCommand) -> anyhow::Result<ExitCode> {
    match command {
        PluginCommand::Build { crates, out } => {
            for folder in crates {
                let built = hostler_wasm::encode::build(&folder, &out)
                    .with_context(|| format!("plugin in {} was not built", folder.display()))?;
                say(&format!(
                    "{}: {} ({} KiB, {})",
                    built.component.display(),
                    built.inspection.world_text(),
                    built.inspection.size.div_ceil(1024),
                    built.inspection.digest
                ));
            }
        }
        PluginCommand::Inspect { file } => {
            let found = hostler_wasm::inspect(&file)?;
            say(&found.to_string());
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn print_crds() -> anyhow::Result<ExitCode> {
    for crd in hostler_api::all_crds() {
        say("---");
        say(serde_saphyr::to_string(&crd).context("a definition cannot be written as YAML")?.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
