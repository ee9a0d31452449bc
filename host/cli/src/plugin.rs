//! `hostler plugin build`, `hostler plugin inspect` and `hostler crds`.

use std::process::ExitCode;

use anyhow::Context;
use hostler_wasm::Inspection;
use hostler_wasm::encode::{self, Build};

use crate::args::PluginCommand;
use crate::telemetry::say;

pub(crate) fn main(command: PluginCommand) -> anyhow::Result<ExitCode> {
    match command {
        PluginCommand::Build { crates, out } => {
            for folder in crates {
                let build = Build {
                    out: Some(out.clone()),
                    ..Build::new(&folder)
                };
                let built = encode::build(&build)
                    .with_context(|| format!("plugin in {} was not built", folder.display()))?;
                say(&format!(
                    "{}: {} ({} KiB, {})",
                    built.component.display(),
                    built.inspection.world.as_deref().unwrap_or("no known world"),
                    built.inspection.size.div_ceil(1024),
                    built.inspection.digest
                ));
            }
        }
        PluginCommand::Inspect { file } => {
            let found =
                hostler_wasm::inspect(&file).with_context(|| format!("component {}", file.display()))?;
            print(&found);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn print_crds() -> anyhow::Result<ExitCode> {
    for crd in hostler_api::all_crds() {
        say("---");
        say(serde_saphyr::to_string(&crd)
            .context("a definition cannot be written as YAML")?
            .trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

fn print(found: &Inspection) {
    let none = "none".to_owned();
    say(&format!("name:     {}", found.name));
    say(&format!("world:    {}", found.world.as_ref().unwrap_or(&none)));
    say(&format!("version:  {}", found.version.as_ref().unwrap_or(&none)));
    say(&format!(
        "size:     {} bytes ({} KiB)",
        found.size,
        found.size.div_ceil(1024)
    ));
    say(&format!("digest:   {}", found.digest));
    say(&format!(
        "imports:  {}",
        if found.imports.is_empty() {
            none
        } else {
            found.imports.join("\n          ")
        }
    ));
    say(&format!("exports:  {}", found.exports.join("\n          ")));
    for (key, value) in &found.producers {
        say(&format!("made by:  {key} {value}"));
    }
    if let Some(problem) = &found.problem {
        say(&format!("problem:  {problem}"));
    }
}
