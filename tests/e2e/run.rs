//! The program that holds Kubernetes' tests: what it is asked, and what it reports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tokio::process::Command;

/// The tests that are considered.
const AREA: &str = r"\[sig-api-machinery\]";

/// `e2e.test`, and the kubectl that some tests drive.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The tests.
    pub(crate) path: PathBuf,
    /// kubectl.
    pub(crate) kubectl: PathBuf,
}

/// What became of a test.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Whether it passed: one that found a reason not to run did not.
    pub(crate) passed: bool,
    /// In the program's words.
    pub(crate) state: String,
    /// Why it did not pass.
    pub(crate) message: String,
    /// How long it took.
    pub(crate) took: Duration,
}

/// What is read of a report of the test framework.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// In nanoseconds.
    #[serde(default)]
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let above = self.container_hierarchy_texts.iter().flatten();
        let parts: Vec<&str> = above.chain([&self.leaf_node_text]).map(String::as_str).collect();
        parts.join(" ")
    }
}

impl Program {
    /// Names of all tests that are considered.
    pub(crate) async fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let report = folder.join("list.json");
        let arguments = [
            "--ginkgo.dry-run".to_owned(),
            format!("--ginkgo.focus={AREA}"),
            format!("--ginkgo.json-report={}", report.display()),
        ];
        self.call(&arguments, folder, "list").await?;
        let specs = read(&report).await?;
        let meant = specs
            .iter()
            .filter(|spec| spec.leaf_node_type == "It" && spec.state != "skipped");
        Ok(meant.map(Spec::name).collect())
    }

    /// Runs tests one after the other, by name.
    pub(crate) async fn run(
        &self,
        names: &[String],
        kubeconfig: &Path,
        folder: &Path,
        title: &str,
    ) -> Result<BTreeMap<String, Outcome>> {
        let escaped: Vec<String> = names.iter().map(|name| regex::escape(name)).collect();
        let report = folder.join(format!("{title}.json"));
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--kubectl-path={}", self.kubectl.display()),
            "--provider=skeleton".to_owned(),
            "--minStartupPods=0".to_owned(),
            "--kube-api-content-type=application/json".to_owned(),
            // Nodes here have nothing to collect.
            "--disable-log-dump=true".to_owned(),
            "--dump-logs-on-failure=false".to_owned(),
            format!("--e2e-output-dir={}", folder.display()),
            "--ginkgo.no-color".to_owned(),
            "--ginkgo.timeout=30m".to_owned(),
            format!("--ginkgo.focus=(?:{})$", escaped.join("|")),
            format!("--ginkgo.json-report={}", report.display()),
        ];
        let log = self.call(&arguments, folder, title).await?;
        let specs = read(&report).await.with_context(|| end_of(&log))?;
        let mut told = BTreeMap::new();
        for spec in &specs {
            if spec.leaf_node_type != "It" {
                // What is done before all tests: without it none is run.
                anyhow::ensure!(
                    spec.state == "passed",
                    "{}: {}",
                    spec.leaf_node_type,
                    end_of(&log)
                );
                continue;
            }
            let (name, ran) = (spec.name(), spec.run_time > 0 || spec.state == "passed");
            if !ran && !names.contains(&name) {
                continue;
            }
            let message = spec.failure.as_ref().map(|failure| failure.message.clone());
            told.insert(
                name,
                Outcome {
                    passed: spec.state == "passed",
                    state: spec.state.clone(),
                    message: message.unwrap_or_default(),
                    took: Duration::from_nanos(spec.run_time),
                },
            );
        }
        Ok(told)
    }

    /// Runs the program and gives what it printed. That tests failed is in its report, not an error here.
    async fn call(&self, arguments: &[String], folder: &Path, title: &str) -> Result<String> {
        let path = folder.join(format!("{title}.log"));
        let log = std::fs::File::create(&path)?;
        let mut child = Command::new(&self.path)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| self.path.display().to_string())?;
        child.wait().await?;
        Ok(std::fs::read_to_string(&path)?)
    }
}

async fn read(report: &Path) -> Result<Vec<Spec>> {
    let text = tokio::fs::read(report)
        .await
        .context("the program wrote no report")?;
    let reports: Vec<Report> = serde_json::from_slice(&text).context("the program's report")?;
    Ok(reports
        .into_iter()
        .flat_map(|report| report.spec_reports.unwrap_or_default())
        .collect())
}

/// The end of what was printed.
fn end_of(log: &str) -> String {
    // A line has a letter for each of thousands of tests that were not asked for.
    let short = |line: &str| line.chars().take(300).collect::<String>();
    let lines: Vec<String> = log.lines().rev().take(30).map(short).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
