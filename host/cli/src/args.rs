//! Flags and environment: the whole configuration of the process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Flags, Parser, Subcommand};
use hostler_controllers::MOST_REQUESTS;
use hostler_controllers::rights::LEASE;

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
    Run(Box<RunOptions>),
    /// Build and inspect plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Print the custom resource definitions.
    Crds,
    /// Print everything that a cluster needs to run the host: definitions, rights, the host itself; or a Helm chart of it.
    Manifests(Box<ManifestsOptions>),
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
    /// The cluster, and who the host is there; without it that of KUBECONFIG, of `~/.kube/config`, or the one that the host runs in.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Install the definitions of our kinds at start; without it they are waited for.
    #[arg(long, env = "HOSTLER_INSTALL_CRDS")]
    pub install_crds: bool,
    /// Most requests to the platform's API at a time, watches apart.
    #[arg(long, value_name = "N", default_value_t = MOST_REQUESTS, value_parser = at_least_one, env = "HOSTLER_MAX_REQUESTS")]
    pub max_requests: usize,
    /// Where `/metrics`, `/healthz` and `/readyz` are answered, like `0.0.0.0:8080`; nowhere unless given.
    #[arg(long, value_name = "ADDR", env = "HOSTLER_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Who of several hosts leads.
    #[command(flatten)]
    pub lease: LeaseOptions,
    /// How the log is written.
    #[command(flatten)]
    pub log: LogOptions,
}

/// Flags of the leader election.
#[derive(Clone, Debug, Flags)]
pub struct LeaseOptions {
    /// Share the work with hosts of the same installation: one is active, the others wait. `--leader-elect=false` for a laptop.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set,
        env = "HOSTLER_LEADER_ELECT"
    )]
    pub leader_elect: bool,
    /// Name of the Lease; one for each installation.
    #[arg(long, value_name = "NAME", default_value = LEASE, env = "HOSTLER_LEASE_NAME")]
    pub lease_name: String,
    /// Its namespace; without it that of the pod, or of the kubeconfig's context.
    #[arg(long, value_name = "NAME", env = "HOSTLER_LEASE_NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// How long the others wait for a host that is not heard of any more, in whole seconds.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, env = "HOSTLER_LEASE_DURATION")]
    pub lease_duration: Duration,
    /// Time between renewals.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration, env = "HOSTLER_LEASE_RENEW")]
    pub lease_renew: Duration,
}

/// Flags of the log.
#[derive(Clone, Debug, Flags)]
pub struct LogOptions {
    /// Form of the log; text on a terminal, else JSON.
    #[arg(long, value_enum, value_name = "FORM", env = "HOSTLER_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// What is logged, like `debug` or `info,hostler_controllers=debug`; without it what RUST_LOG says, else `info`.
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line, for machines.
    Json,
    /// For people.
    Text,
}

/// Image of the host, unless named: build it as `docs/install.md` says.
pub(crate) const DEFAULT_IMAGE: &str = concat!("hostler:", env!("CARGO_PKG_VERSION"));
/// Image of the plugin directory, unless named.
pub(crate) const DEFAULT_PLUGIN_IMAGE: &str = concat!("hostler-plugins:", env!("CARGO_PKG_VERSION"));
/// Size of a replica's state: a component has at most 64 MiB, compiled some times that, and a few are kept.
pub(crate) const DEFAULT_STATE_SIZE: &str = "1Gi";

/// Flags of `hostler manifests`.
#[derive(Clone, Debug, Flags)]
pub struct ManifestsOptions {
    /// Write files into DIR instead of printing a stream.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write a Helm chart into DIR instead; its values say the rest.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub helm: Option<PathBuf>,
    /// Print the rights of USER in a tenant's API instead, by which the host comes there.
    #[arg(long, value_name = "USER", conflicts_with = "helm")]
    pub tenant: Option<String>,
    /// Print the rights and the reason for each instead, as tables.
    #[arg(long, conflicts_with_all = ["out", "helm", "tenant"])]
    pub rights: bool,
    /// Name of all objects, or how their names begin.
    #[arg(long, value_name = "NAME", default_value = "hostler")]
    pub name: String,
    /// Namespace of the host.
    #[arg(long, value_name = "NAME", default_value = "hostler-system")]
    pub namespace: String,
    /// Image of the host.
    #[arg(long, value_name = "REFERENCE", default_value = DEFAULT_IMAGE)]
    pub image: String,
    /// Replicas; one is active.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub replicas: u16,
    /// Name of the installation; two hosts on one data centre must differ in it.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub installation: String,
    /// Name of the cluster that the host runs in.
    #[arg(long, value_name = "NAME", default_value = hostler_api::names::PLATFORM_CLUSTER)]
    pub cluster: String,
    /// The site's plugin directory: what its operator files grant is what the host may do with machines.
    #[arg(long, value_name = "DIR")]
    pub plugins: Option<PathBuf>,
    /// Image that holds the plugin directory.
    #[arg(long, value_name = "REFERENCE", default_value = DEFAULT_PLUGIN_IMAGE)]
    pub plugin_image: String,
    /// Put the plugin directory into ConfigMaps instead, one for each component of at most 1 MiB.
    #[arg(long, requires = "plugins", conflicts_with_all = ["plugin_image", "helm"])]
    pub plugin_config_maps: bool,
    /// Plural of a kind that the usual rule gets wrong, like `HardwareData.metal3.io=hardwaredata`; may be given several times.
    #[arg(long = "plural", value_name = "KIND.GROUP=PLURAL", value_parser = pair)]
    pub plurals: Vec<(String, String)>,
    /// Where a replica keeps its state.
    #[arg(long, value_enum, default_value_t = StateVolume::Claim)]
    pub state: StateVolume,
    /// Size of that.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_STATE_SIZE)]
    pub state_size: String,
    /// Add a ServiceMonitor; the cluster must have that kind.
    #[arg(long)]
    pub service_monitor: bool,
    /// Namespace that may read metrics; any, if none is named.
    #[arg(long, value_name = "NAME")]
    pub metrics_from: Option<String>,
    /// Plugins that must be loaded.
    #[command(flatten)]
    pub required: RequiredPlugins,
}

/// Where a replica keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StateVolume {
    /// In a volume of its own, which stays when its pod goes: a StatefulSet.
    Claim,
    /// In its pod, and gone with it: a Deployment.
    EmptyDir,
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

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, plural)) if !kind.is_empty() && !plural.is_empty() => {
            Ok((kind.to_owned(), plural.to_owned()))
        }
        _ => Err(format!("{text:?} is no KIND.GROUP=PLURAL")),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        Ok(_) | Err(_) => Err("give a number, at least 1".to_owned()),
    }
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

    #[test]
    fn a_laptop_may_lead_without_an_election() {
        let lease = |words: &[&str]| {
            let words = ["hostler", "run"].iter().chain(words);
            match Args::try_parse_from(words).unwrap().command {
                Command::Run(options) => options.lease.leader_elect,
                other => panic!("{other:?}"),
            }
        };
        assert!(lease(&[]));
        assert!(lease(&["--leader-elect"]));
        assert!(!lease(&["--leader-elect=false"]));
    }

    #[test]
    fn the_defaults_of_the_lease_are_terms_that_hold() {
        let Command::Run(options) = Args::try_parse_from(["hostler", "run"]).unwrap().command else {
            panic!("not a run");
        };
        let lease = options.lease;
        let terms = hostler_core::lease::Terms::new(lease.lease_duration, lease.lease_renew).unwrap();
        // One that waits has read the last renewal at most one renewal's time after it, and looks again when the wait is over.
        let takeover = lease.lease_duration + terms.renew();
        assert!(takeover < Duration::from_secs(15), "{takeover:?}");
    }
}
