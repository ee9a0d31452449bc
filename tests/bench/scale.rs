//! `make scale`: 100 tenants with 20 machines each, as Markdown. The platform is a real API server, the tenants' APIs are embedded ones in
//! this process, the machines are simulated here too; what is measured is a `hostler run` beside them, from outside.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the report is the output, and how far it is goes beside it"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The part of the tests' harness that the clusters know.
mod harness {
    /// The repository.
    pub(crate) fn root() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("tests/ has a parent")
            .to_owned()
    }
}

#[path = "../"]
mod beside {
    #[allow(dead_code, unused_imports, reason = "the tests use more of it")]
    pub(crate) mod kubernetes;
}
#[path = "scale/host.rs"]
mod host;
#[path = "scale/site.rs"]
mod site;

use beside::kubernetes::Binaries;
use host::{Host, Usage};
use site::Site;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(1200);
/// How long the steady state is watched.
const STEADY: Duration = Duration::from_secs(120);

/// One number of the environment, or what the report is usually made with.
fn number(name: &str, usual: u16) -> Result<u16> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name}={text} is no number up to 65535")),
        Err(_) => Ok(usual),
    }
}

/// Asks until the answer is yes.
async fn until<F: Future<Output = Result<bool>>>(what: &str, mut ask: impl FnMut() -> F) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        if ask().await? {
            return Ok(begun.elapsed());
        }
        if begun.elapsed() > PATIENCE {
            bail!("{what}: not within {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<ExitCode> {
    // `cargo test --benches` runs this too, without the word: nothing is measured then.
    if !std::env::args().any(|word| word == "--bench") {
        return Ok(ExitCode::SUCCESS);
    }
    let binaries = match Binaries::find() {
        Ok(binaries) => binaries,
        Err(why) => {
            println!("{why}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let (tenants, each) = (number("TENANTS", 100)?, number("MACHINES", 20)?);
    let machines = tenants
        .checked_mul(each)
        .context("that many machines have no addresses")?;
    let site = Site::start(&binaries, tenants, machines).await?;
    let host = Host::start(&site).await?;
    host.leads().await?;
    let idle = host.usage().await?;

    let begun = Instant::now();
    site.create_tenants(each).await?;
    let asked = host.available(machines).await?;
    let converged = begun.elapsed();
    let busy = host.usage().await?;
    println!("## {tenants} tenants with {each} machines each\n");
    println!("| | |\n| --- | --- |");
    println!(
        "| first tenant created → {machines} claims Available | {:.0} s |",
        converged.as_secs_f64()
    );
    println!(
        "| of that after the last tenant was created | {:.0} s |",
        asked.as_secs_f64()
    );
    println!(
        "| processor time of the host | {:.1} s |",
        busy.processor - idle.processor
    );
    println!("| resident memory, most | {:.0} MiB |", busy.most);
    print_requests("per machine", &busy, &idle, f64::from(machines));

    // The last reports and events of the rush are not what stays.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = host.usage().await?;
    tokio::time::sleep(STEADY).await;
    let after = host.usage().await?;
    println!("\n## Steady, over {} s\n\n| | |\n| --- | --- |", STEADY.as_secs());
    let part = (after.processor - before.processor) / STEADY.as_secs_f64() * 100.0;
    println!("| processor | {part:.1} % of one core |");
    println!("| resident memory | {:.0} MiB |", after.resident);
    print_requests(
        "per minute, all together",
        &after,
        &before,
        STEADY.as_secs_f64() / 60.0,
    );

    let begun = Instant::now();
    site.delete_tenants().await?;
    host.available(0).await?;
    until("all hosts free", || site.all_free()).await?;
    let gone = begun.elapsed();
    let end = host.usage().await?;
    println!("\n## Deletion of all tenants\n\n| | |\n| --- | --- |");
    println!("| deleted → all hosts free | {:.0} s |", gone.as_secs_f64());
    println!(
        "| processor time of the host | {:.1} s |",
        end.processor - after.processor
    );
    print_requests("per machine", &end, &after, f64::from(machines));
    let left = until("nothing left", || site.nothing_left()).await;
    println!(
        "| left over | {} |",
        if left.is_ok() {
            "nothing"
        } else {
            "something: see above"
        }
    );
    host.end().await?;
    left?;
    Ok(ExitCode::SUCCESS)
}

fn print_requests(per: &str, now: &Usage, then: &Usage, parts: f64) {
    let mut all = 0.0;
    for (kind, count) in &now.requests {
        let more = count - then.requests.get(kind).copied().unwrap_or_default();
        all += more;
        if more > 0.0 {
            println!("| requests, {per}: {kind} | {:.2} |", more / parts);
        }
    }
    println!("| requests, {per}: all | {:.2} |", all / parts);
}
