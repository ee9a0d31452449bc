//! `make bench`: figures of this machine for `docs/performance.md`, as Markdown. Everything is measured from outside: the real
//! binary, its socket, its memory as the kernel counts it.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

mod path;
mod requests;

/// A `hostler lab` process and its data.
struct Lab {
    child: Child,
    folder: tempfile::TempDir,
}

impl Lab {
    /// Starts one, and says how long it took to `lab ready`.
    async fn start(folder: tempfile::TempDir, more: &[&str]) -> Result<(Self, Duration)> {
        let begun = Instant::now();
        let mut child = Command::new(binary()?)
            .args(["lab", "--plugins"])
            .arg(root().join("target/components"))
            .arg("--data")
            .arg(folder.path())
            .args(more)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("hostler cannot be started")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        while let Some(line) = lines.next_line().await? {
            if line == "lab ready" {
                let took = begun.elapsed();
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok((Self { child, folder }, took));
            }
        }
        bail!(
            "the lab ended before it was ready; see {}",
            folder.path().join("hostler.log").display()
        )
    }

    async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.folder.path().join("kubeconfig"))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Resident memory, in MiB.
    fn memory(&self) -> Result<f64> {
        let id = self.child.id().context("the lab has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .context("no VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib / 1024.0)
    }

    /// Ends it and gives its data back for another start.
    async fn end(mut self) -> Result<tempfile::TempDir> {
        if let Some(id) = self.child.id() {
            Command::new("kill")
                .args(["-INT", &id.to_string()])
                .status()
                .await?;
        }
        self.child.wait().await?;
        Ok(self.folder)
    }
}

fn root() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

fn binary() -> Result<PathBuf> {
    let path = root().join("target/release/hostler");
    if path.exists() {
        Ok(path)
    } else {
        bail!("{} is missing; run `make bench`", path.display())
    }
}

/// Smallest, middle and largest, in milliseconds.
fn spread(times: &mut [Duration]) -> String {
    times.sort();
    let shown = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1000.0);
    match (times.first(), times.get(times.len() / 2), times.last()) {
        (Some(least), Some(middle), Some(most)) => {
            format!("{} | {} | {}", shown(*least), shown(*middle), shown(*most))
        }
        _ => "- | - | -".to_owned(),
    }
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<()> {
    // `cargo test --benches` runs this too, without the word: nothing is measured then.
    if !std::env::args().any(|word| word == "--bench") {
        return Ok(());
    }
    println!("## Starting\n\n| to `lab ready` (ms) | least | middle | most |\n| --- | --- | --- | --- |");
    let mut fresh = Vec::new();
    let mut again = Vec::new();
    for _ in 0..5 {
        let (lab, took) = Lab::start(tempfile::tempdir()?, &[]).await?;
        fresh.push(took);
        let (lab, took) = Lab::start(lab.end().await?, &[]).await?;
        again.push(took);
        lab.end().await?;
    }
    println!(
        "| on an empty directory (components are compiled) | {} |",
        spread(&mut fresh)
    );
    println!("| again on the same directory | {} |\n", spread(&mut again));

    let (lab, _) = Lab::start(tempfile::tempdir()?, &[]).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let at_rest = lab.memory()?;
    path::measure(&lab).await?;
    requests::measure(&lab.client().await?).await?;
    lab.end().await?;

    println!("## Memory\n\n| resident (MiB) | |\n| --- | --- |");
    println!("| at rest | {at_rest:.0} |");
    let (lab, _) = Lab::start(tempfile::tempdir()?, &["--servers", "1000"]).await?;
    path::wait_for_hosts(&lab.client().await?, 1000).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!(
        "| with 1,000 simulated hosts, all available | {:.0} |",
        lab.memory()?
    );
    lab.end().await?;
    Ok(())
}
