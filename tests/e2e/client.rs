//! The tests that kube's client has of its own and that ask for a server, pointed at ours and at the real one.
//!
//! `tests/kubernetes/client` builds them. Each passes on both, or stands in `client.yaml` with a reason.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::Command;

use super::Stage;
use crate::harness::root;
use crate::kubernetes::Binaries;

/// How long one may take: they wait for pods at most.
const PATIENCE: Duration = Duration::from_secs(180);

/// Tests that are not run for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skipped {
    why: String,
    tests: Vec<String>,
}

fn skipped() -> Vec<Skipped> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/client.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The program, or a line that says why there is none and how to get it.
fn program() -> Result<PathBuf, String> {
    let path = root().join("target/kube-client.test");
    if path.exists() {
        return Ok(path);
    }
    Err(format!(
        "kube's own client tests were not run: no {}; `tests/kubernetes/client` builds it",
        path.display()
    ))
}

/// Names of its tests that ask for something that is not always there.
async fn listed(program: &Path) -> Result<Vec<String>> {
    let told = Command::new(program)
        .args(["--list", "--ignored", "--format", "terse"])
        .output()
        .await?;
    let text = String::from_utf8(told.stdout).context("names are text")?;
    Ok(text
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(Into::into)
        .collect())
}

/// Runs one; what it said if it did not pass.
async fn run(program: &Path, kubeconfig: &Path, name: &str) -> Result<Option<String>> {
    let home = TempDir::new()?;
    let told = Command::new(program)
        .args(["--ignored", "--exact", name])
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(told) = tokio::time::timeout(PATIENCE, told).await else {
        return Ok(Some(format!("no end within {} s", PATIENCE.as_secs())));
    };
    let told = told?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let passed = told.status.success() && text.contains("test result: ok. 1 passed");
    Ok((!passed).then(|| format!("{text}{}", String::from_utf8_lossy(&told.stderr))))
}

/// Runs all that are not skipped.
async fn judge(program: &Path, stage: &Stage) -> Result<String> {
    let skipped = skipped();
    let kubeconfig = stage.kubeconfigs.first().context("a stage has a kubeconfig")?;
    let mut report = String::new();
    let mut ran = 0;
    for name in listed(program).await? {
        if skipped.iter().any(|group| group.tests.contains(&name)) {
            continue;
        }
        ran += 1;
        if let Some(said) = run(program, kubeconfig, &name).await? {
            let _ = writeln!(report, "{name}\n{said}");
        }
    }
    if ran == 0 {
        report.push_str("nothing was run\n");
    }
    Ok(report)
}

#[tokio::test]
async fn each_of_kubes_own_client_tests_that_is_left_out_is_one_and_has_a_reason() {
    let skipped = skipped();
    for group in &skipped {
        assert!(
            group.why.split_whitespace().count() > 3 && !group.tests.is_empty(),
            "{group:?}"
        );
    }
    let program = match program() {
        Ok(program) => program,
        Err(why) => return eprintln!("{why}"),
    };
    let known = listed(&program).await.unwrap();
    for name in skipped.iter().flat_map(|group| &group.tests) {
        assert!(known.contains(name), "no test is called {name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubes_own_client_tests_pass_on_the_embedded_api() {
    let program = match program() {
        Ok(program) => program,
        Err(why) => return eprintln!("{why}"),
    };
    let stage = Stage::ours().await.unwrap();
    let report = judge(&program, &stage).await.unwrap();
    assert!(report.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubes_own_client_tests_pass_on_the_real_api() {
    let found = Binaries::find()
        .map_err(|why| format!("{why:#}"))
        .and_then(|binaries| Ok((binaries, program()?)));
    let (binaries, program) = match found {
        Ok(found) => found,
        Err(why) => return eprintln!("{why}"),
    };
    let stage = Stage::real(&binaries).await.unwrap();
    let report = judge(&program, &stage).await.unwrap();
    assert!(report.is_empty(), "{report}");
}
