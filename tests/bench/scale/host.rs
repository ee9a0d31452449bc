//! The measured process: `hostler run`, its figures as the kernel and its own `/metrics` tell them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::process::Command;

use super::beside::kubernetes::process::Process;
use super::site::Site;
use super::until;
use crate::harness::root;

/// Ticks of the kernel's processor times in a second: the same on every Linux.
const TICKS: f64 = 100.0;

/// A running host.
pub(crate) struct Host {
    process: Process,
    metrics: String,
    _folder: TempDir,
}

/// What it has used so far.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Seconds of processor time.
    pub(crate) processor: f64,
    /// Resident memory now, in MiB.
    pub(crate) resident: f64,
    /// The most there was.
    pub(crate) most: f64,
    /// Requests sent, by whose API and verb.
    pub(crate) requests: BTreeMap<String, f64>,
}

impl Host {
    /// Starts one against the site's platform.
    pub(crate) async fn start(site: &Site) -> Result<Self> {
        let root = root();
        let binary = root.join("target/release/hostler");
        if !binary.exists() {
            bail!("{} is missing; run `make scale`", binary.display());
        }
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, site.host_kubeconfig()?)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = std::env::temp_dir().join("hostler-scale.log");
        println!("log of the host: {}\n", log.display());
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let arguments = [
            "run".to_owned(),
            "--kubeconfig".to_owned(),
            path(kubeconfig),
            "--plugins".to_owned(),
            path(root.join("target/components")),
            "--state".to_owned(),
            path(folder.path().join("state")),
            "--metrics-listen".to_owned(),
            format!("127.0.0.1:{port}"),
        ];
        Ok(Self {
            process: Process::start(&binary, &arguments, folder.path(), &log)?,
            metrics: format!("http://127.0.0.1:{port}/metrics"),
            _folder: folder,
        })
    }

    async fn scrape(&self) -> Result<String> {
        Ok(reqwest::get(&self.metrics).await?.text().await?)
    }

    /// Returns once it leads and its caches are there.
    pub(crate) async fn leads(&self) -> Result<Duration> {
        until("the host leads", || async {
            let text = self.scrape().await.unwrap_or_default();
            Ok(sum(&text, "hostler_leader", "") == 1.0)
        })
        .await
    }

    /// Returns once so many claims are Available, and no other ones are there.
    pub(crate) async fn available(&self, count: u16) -> Result<Duration> {
        let wanted = f64::from(count);
        until("claims Available", || async {
            let text = self.scrape().await?;
            let available = sum(&text, "hostler_claims", "phase=\"Available\"");
            let all = sum(&text, "hostler_claims", "");
            eprintln!("{available} of {all} claims are Available");
            Ok(available == wanted && all == wanted)
        })
        .await
    }

    /// What it has used so far.
    pub(crate) async fn usage(&self) -> Result<Usage> {
        let id = self.process.id().context("the host has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // After the name, which may hold blanks; processor times are the 14th and 15th field of all.
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("stat is short")?.parse()?) };
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let mib = |name: &str| -> Result<f64> {
            let line = status
                .lines()
                .find(|line| line.starts_with(name))
                .context("no such line in status")?;
            let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
            Ok(kib / 1024.0)
        };
        Ok(Usage {
            processor: (ticks(11)? + ticks(12)?) / TICKS,
            resident: mib("VmRSS:")?,
            most: mib("VmHWM:")?,
            requests: requests(&self.scrape().await?),
        })
    }

    /// Ends it, as whoever runs it would.
    pub(crate) async fn end(mut self) -> Result<()> {
        let id = self.process.id().context("the host has ended")?;
        Command::new("kill")
            .args(["-TERM", &id.to_string()])
            .status()
            .await?;
        until("the host has ended", || {
            let ended = self.process.ended().map(|log| log.is_some());
            std::future::ready(ended)
        })
        .await?;
        Ok(())
    }
}

/// Samples of a metric whose labels hold a text.
fn samples<'a>(text: &'a str, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = series.strip_prefix(name)?;
        let named = labels.is_empty() || labels.starts_with('{');
        (named && labels.contains(label)).then_some((labels, value.parse().ok()?))
    })
}

fn sum(text: &str, name: &str, label: &str) -> f64 {
    samples(text, name, label).map(|(_, value)| value).sum()
}

fn requests(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for (labels, value) in samples(text, "hostler_requests_total", "") {
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let kind = format!(
            "{} {}",
            label("target").unwrap_or("?"),
            label("verb").unwrap_or("?")
        );
        *all.entry(kind).or_default() += value;
    }
    all
}
