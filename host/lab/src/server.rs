//! A booted server: what runs on a simulated machine while it has power and an image on its disk.
//!
//! boot → network → cloud-init (at the first boot of an installation) → certificate → Node → Ready → heartbeats.
//!
//! # Guarantees
//! It knows nothing that a real server would not know: its disk, what the rack's DHCP tells it, and what the API server at
//! the address in its kubeconfig answers. It never looks at claims. Whoever takes the power away drops the future of
//! [`run`], and everything ends at once, whatever it was doing.

mod cloud_init;
mod disk;
mod join;
mod kubelet;
mod life;
mod logs;
mod node;
mod pods;
mod rack;
mod registration;
mod script;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use self::disk::Disk;
pub(crate) use self::disk::Disks;
use self::join::JoinError;
use self::kubelet::{BOOTSTRAP_KUBECONFIG, EXTRA_ARGUMENTS, parse_arguments, parse_bootstrap};
use self::node::Machine;
use crate::bmh::{Host, Instance, SecretName};
use crate::identity::uuid;
use crate::network::{Identity, Network};
use crate::notices::{Notices, Source};
use crate::options::Options;

/// How long an API server may take to answer a server.
const ANSWER: Duration = Duration::from_secs(30);

/// What all servers of a data centre share.
pub(crate) struct Site {
    pub(crate) client: Client,
    pub(crate) network: Network,
    pub(crate) options: Options,
    pub(crate) disks: Disks,
    pub(crate) notices: Notices,
}

/// A boot.
pub(crate) struct Boot {
    /// What runs.
    pub(crate) instance: Instance,
    /// Whether it ran already when the laboratory started.
    pub(crate) running: bool,
    /// The host as it is now.
    pub(crate) host: watch::Receiver<Arc<Host>>,
}

/// Why a server does not go on.
#[derive(Debug)]
struct Problem {
    reason: &'static str,
    message: String,
    /// Whether it is worth another try. What the disk or the network says stays so until the next boot.
    lasting: bool,
}

impl Problem {
    fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            lasting: true,
        }
    }

    fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            lasting: false,
        }
    }
}

/// Runs a server until it is dropped.
pub(crate) async fn run(site: Arc<Site>, boot: Boot) {
    let times = &site.options.times;
    if !boot.running {
        sleep(times.boot).await;
    }
    // What stands in the host's annotations now is what DHCP answers at this boot.
    let host = boot.host.borrow().clone();
    let this_boot = uuid(&[&boot.instance.disk, &Timestamp::now().to_string()]);
    let mut last = String::new();
    let mut failures = 0_u32;
    loop {
        let Err(problem) = live(&site, &host, &boot, &this_boot).await;
        // What passes by itself at once, an API server that starts beside the servers, is not worth an Event.
        failures = if problem.message == last {
            failures.saturating_add(1)
        } else {
            0
        };
        last.clone_from(&problem.message);
        if problem.lasting || failures == 1 {
            site.notices
                .say(&host, Source::Server, true, problem.reason, &problem.message);
        }
        if problem.lasting {
            return std::future::pending().await;
        }
        let pause = times.poll.max(Duration::from_millis(1)) * 2_u32.pow(failures.min(6));
        sleep(pause.min(times.retry.max(times.poll))).await;
    }
}

async fn live(
    site: &Site,
    host: &Host,
    boot: &Boot,
    this_boot: &str,
) -> Result<std::convert::Infallible, Problem> {
    let uid = host.meta.uid.as_deref().unwrap_or_default();
    let lost =
        |error: kube::Error| Problem::passing("DiskNotReady", format!("its disk cannot be reached: {error}"));
    let mut disk = match site.disks.read(uid, &boot.instance.disk).await.map_err(lost)? {
        Some(disk) => disk,
        None => first_boot(site, host, &boot.instance.disk).await?,
    };
    let booted = disk.boot.is_empty() || (!boot.running && disk.boot != this_boot);
    if booted {
        this_boot.clone_into(&mut disk.boot);
    }
    let address = rack::address(host, disk.network_data.as_deref())
        .map_err(|error| Problem::lasting("NoNetwork", format!("booted without a network: {error}")))?;
    let arguments = parse_arguments(&disk.environment)
        .map_err(|error| Problem::lasting("KubeletFailed", format!("the kubelet does not start: {error}")))?;
    let name = arguments
        .hostname
        .clone()
        .unwrap_or_else(|| disk.hostname.clone());
    let keyless = disk.certificate.is_empty() && disk.key.is_empty();
    if keyless {
        disk.key = join::new_key().map_err(refused)?;
    }
    if keyless || booted {
        site.disks.write(uid, &disk).await.map_err(lost)?;
    }
    if disk.certificate.is_empty() {
        let client = dial(site, &disk, &Identity::Token(&disk.token), ANSWER)?;
        match join::certificate(client, &name, &disk.key, site.options.times.poll).await {
            Ok(certificate) => {
                disk.certificate = certificate;
                disk.token.clear();
                site.disks.write(uid, &disk).await.map_err(lost)?;
            }
            Err(error) => {
                if matches!(error, JoinError::Refused { .. }) {
                    // As a kubelet does: another try is another key.
                    disk.key.clear();
                    site.disks.write(uid, &disk).await.map_err(lost)?;
                }
                return Err(refused(error));
            }
        }
    }
    let identity = Identity::Certificate {
        certificate: &disk.certificate,
        key: &disk.key,
    };
    let client = dial(site, &disk, &identity, ANSWER)?;
    let spec = &host.spec;
    let machine = Machine {
        name,
        address: arguments
            .address
            .as_deref()
            .and_then(|address| address.parse().ok())
            .unwrap_or(address),
        arguments,
        hardware: host
            .status
            .as_ref()
            .and_then(|status| status.hardware.clone())
            .unwrap_or_default(),
        chassis: [host.namespace(), host.name(), &spec.boot_mac_address].map(str::to_owned),
        boot: disk.boot.clone(),
    };
    // The watch of its pods goes on for minutes without a word.
    let watching = dial(site, &disk, &identity, pods::SILENCE)?;
    let clients = registration::Clients { client, watching };
    let kubelet = registration::Kubelet::new(site, host, boot.host.clone(), clients, machine);
    kubelet.run(&mut disk, boot.running).await
}

fn dial(site: &Site, disk: &Disk, identity: &Identity<'_>, patience: Duration) -> Result<Client, Problem> {
    let authority = kubelet::certificates(&disk.authority);
    site.network
        .dial(&disk.server, authority, identity, patience)
        .map_err(|error| Problem::passing("ApiUnreachable", error.to_string()))
}

fn refused(error: JoinError) -> Problem {
    match &error {
        JoinError::Api(error) => unreachable_or_refused("JoinRefused", error),
        _ => Problem::passing("JoinRefused", error.to_string()),
    }
}

/// An answer that says no is told apart from no answer.
fn unreachable_or_refused(reason: &'static str, error: &kube::Error) -> Problem {
    match error {
        kube::Error::Api(status) => Problem::passing(
            reason,
            format!("the API server refused ({}): {}", status.code, status.message),
        ),
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            Problem::passing("ApiUnreachable", text)
        }
    }
}

/// What cloud-init does at the first boot of an installation.
async fn first_boot(site: &Site, host: &Host, installed: &str) -> Result<Disk, Problem> {
    let ignored = |message: String| Problem::lasting("UserDataIgnored", message);
    let Some(reference) = &host.spec.user_data else {
        return Err(ignored("booted without user data: it joins nothing".to_owned()));
    };
    let user_data = boot_data(site, host, reference, "userData").await?;
    let config = cloud_init::parse(&user_data).map_err(|error| ignored(error.to_string()))?;
    let Some(bootstrap) = config.files.get(BOOTSTRAP_KUBECONFIG) else {
        return Err(ignored(format!(
            "the user data writes no {BOOTSTRAP_KUBECONFIG}: it joins nothing"
        )));
    };
    if !config.starts_kubelet() {
        return Err(ignored(
            "no command of the user data starts the kubelet: it joins nothing".to_owned(),
        ));
    }
    let failed = |error: kubelet::KubeletError| {
        Problem::lasting("KubeletFailed", format!("the kubelet does not start: {error}"))
    };
    let bootstrap = parse_bootstrap(bootstrap).map_err(failed)?;
    let environment = EXTRA_ARGUMENTS.iter().find_map(|path| config.files.get(*path));
    let environment = environment.cloned().unwrap_or_default();
    parse_arguments(&environment).map_err(failed)?;
    let hostname = config.hostname.as_deref().unwrap_or(host.name());
    let mut disk = Disk::installed(installed, hostname, bootstrap, &environment);
    if let Some(reference) = &host.spec.network_data {
        disk.network_data = Some(boot_data(site, host, reference, "networkData").await?);
    }
    Ok(disk)
}

/// The text in a boot Secret. Metal3 reads only Secrets in the host's own namespace.
async fn boot_data(site: &Site, host: &Host, reference: &SecretName, key: &str) -> Result<String, Problem> {
    let SecretName { name, namespace } = reference;
    let reason = if key == "networkData" {
        "NoNetwork"
    } else {
        "UserDataIgnored"
    };
    if !namespace.is_empty() && namespace != host.namespace() {
        let own = host.namespace();
        let message = format!("{key} Secret {namespace}/{name} must be in the namespace of the host ({own})");
        return Err(Problem::lasting(reason, message));
    }
    let secrets: Api<Secret> = Api::namespaced(site.client.clone(), host.namespace());
    let found = secrets.get_opt(name).await;
    let found =
        found.map_err(|error| Problem::passing(reason, format!("Secret {name} cannot be read: {error}")))?;
    let secret =
        found.ok_or_else(|| Problem::lasting(reason, format!("{key} Secret {name} does not exist")))?;
    let data = secret.data.unwrap_or_default();
    let bytes = data.get(key).or_else(|| data.get("value"));
    let bytes =
        bytes.ok_or_else(|| Problem::lasting(reason, format!("Secret {name} does not contain key {key}")))?;
    let text = String::from_utf8(bytes.0.clone());
    text.map_err(|_| Problem::lasting(reason, format!("{key} in Secret {name} is no text")))
}
