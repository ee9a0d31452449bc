//! Flags and environment: the whole configuration of the process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Flags, Parser, Subcommand};

/// Gives tenants their own machines.
#[derive(Debug, Parser)]
#[command(name = "hostler", version, about, arg_required_else_help = true)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a laboratory: an API server, a simulated data centre, and the host with real plugins.
    Lab(LabOptions),
    /// Run the controllers against the current kubeconfig, or in a cluster.
    Run(RunOptions),
    /// Build and inspect plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Print the custom resource definitions.
    Crds,
}

/// Flags of `hostler lab`.
#[derive(Clone, Debug, Flags)]
pub struct LabOptions {
    /// Where all state is kept; starting again on the same directory goes on where it was.
    #[arg(long, value_name = "DIR", default_value = ".lab")]
    pub data: PathBuf,
    /// Address of the API server; port 0 takes a free one, once, and keeps it in DIR.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Where plugins are copied from.
    #[arg(long, value_name = "DIR", default_value = "target/components")]
    pub plugins: PathBuf,
    /// Manifests (files, or directories of them) to apply once the lab is ready; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub apply: Vec<PathBuf>,
    /// End once everything applied is Available: 0, or 1 with the causes after the time limit.
    #[arg(long)]
    pub once: bool,
    /// Time limit of `--once`, like `90s`.
    #[arg(long, value_name = "TIME", default_value = "180s", value_parser = duration)]
    pub timeout: Duration,
    /// Plugins that must be loaded.
    #[command(flatten)]
    pub required: RequiredPlugins,
    /// Simulated servers to add, beyond those in manifests.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub servers: u16,
    /// Simulated time of writing an image.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub imaging_time: Option<Duration>,
}

/// The components without which nothing is allowed.
#[derive(Clone, Debug, Flags)]
pub struct RequiredPlugins {
    /// The resolver that chooses profiles.
    #[arg(long, value_name = "NAME", default_value = "resolver-precedence")]
    pub resolver: String,
    /// A policy that must be loaded, or all that policies judge is denied; may be given several times.
    #[arg(long = "policy", value_name = "NAME", default_value = "policy-allowlist")]
    pub policies: Vec<String>,
}

/// Flags of `hostler run`.
#[derive(Clone, Debug, Flags)]
pub struct RunOptions {
    /// Directory of plugins.
    #[arg(long, value_name = "DIR", default_value = "plugins", env = "HOSTLER_PLUGINS")]
    pub plugins: PathBuf,
    /// Where the host keeps what it needs across restarts: bytes of components that live claims name, compiled code.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "hostler-state",
        env = "HOSTLER_STATE"
    )]
    pub state: PathBuf,
    /// Name of this installation; two hosts on one data centre must differ in it.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        env = "HOSTLER_INSTALLATION"
    )]
    pub installation: String,
    /// Name of the cluster that the host runs in.
    #[arg(long, value_name = "NAME", default_value = hostler_api::names::PLATFORM_CLUSTER, env = "HOSTLER_CLUSTER")]
    pub cluster: String,
    /// Plugins that must be loaded.
    #[command(flatten)]
    pub required: RequiredPlugins,
}

/// `hostler plugin …`
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Compile the crate in DIR to a component and put it, with its operator file, into the output directory.
    Build {
        /// Directory of the crate; may be given several times.
        #[arg(value_name = "DIR", default_value = ".")]
        crates: Vec<PathBuf>,
        /// Output directory.
        #[arg(long, value_name = "DIR", default_value = "target/components")]
        out: PathBuf,
    },
    /// Print world, version, imports, size and digest of a component.
    Inspect {
        /// The component.
        file: PathBuf,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis(1)),
        None => match text.strip_suffix('m') {
            Some(number) => (number, Duration::from_secs(60)),
            None => (text.strip_suffix('s').unwrap_or(text), Duration::from_secs(1)),
        },
    };
    let count: u32 = number
        .parse()
        .map_err(|_| format!("{text:?} is no time; write one like 90s, 5m or 500ms"))?;
    unit.checked_mul(count)
        .ok_or_else(|| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("soon").is_err());
    }
}
