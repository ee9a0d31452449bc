//! Kubernetes' own end-to-end tests of the API machinery, against the real servers and against ours.
//!
//! `make e2e` builds them (`e2e.test`) and runs this. Each test that they have is in one of two lists: `e2e/run.txt`, which
//! passes on both, or `e2e/skip.yaml`, with a reason.

mod client;
mod lists;
mod node;
mod run;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use hostler_apiserver::{Identity, Options, Server as Embedded, Store};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::lists::Lists;
use self::node::{Node, Scheduling};
use self::run::{Outcome, Program};
use crate::kubernetes::{Binaries, Cluster, client_of};

/// Programs that share a list. Most of their time is waiting.
const TOGETHER: usize = 6;

/// The tests' program, or a line that says why there is none and how to get it.
fn program() -> Result<(Binaries, Program), String> {
    let binaries = Binaries::find().map_err(|why| format!("{why:#}"))?;
    let missing = |name: &str| format!("Kubernetes' own tests were not run: no {name}; `make e2e` builds it");
    let path = binaries.path("e2e.test").ok_or_else(|| missing("e2e.test"))?;
    let kubectl = binaries.path("kubectl").ok_or_else(|| missing("kubectl"))?;
    for name in ["kube-controller-manager", "kube-scheduler"] {
        binaries.path(name).ok_or_else(|| missing(name))?;
    }
    Ok((binaries, Program { path, kubectl }))
}

/// A server that the tests are sent to: stopped when dropped.
struct Stage {
    /// One for each program that runs at the same time; the real server has one for all.
    kubeconfigs: Vec<PathBuf>,
    _nodes: Vec<Node>,
    _real: Option<Cluster>,
    _ours: Option<DropGuard>,
    folder: TempDir,
}

impl Stage {
    /// The real control plane.
    async fn real(binaries: &Binaries) -> Result<Self> {
        let mut cluster = Cluster::start(binaries).await?;
        cluster.start_controllers()?;
        cluster.start_scheduler()?;
        let node = Node::start(cluster.client().await?, Scheduling::Theirs).await?;
        Ok(Self {
            kubeconfigs: vec![cluster.kubeconfig(); TOGETHER],
            _nodes: vec![node],
            _real: Some(cluster),
            _ours: None,
            folder: TempDir::new()?,
        })
    }

    /// Ours, with a logical cluster for each program.
    async fn ours() -> Result<Self> {
        let folder = TempDir::new()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("https://{}", listener.local_addr()?);
        let server = Embedded::open(Options::new(Store::Memory))?;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        server.start(stop.clone());
        let served = server.clone();
        tokio::spawn(async move { served.serve(listener, stop).await });
        let (mut kubeconfigs, mut nodes) = (Vec::new(), Vec::new());
        for number in 0..TOGETHER {
            let name = format!("e2e-{number}");
            server.create_cluster(&name).await?;
            let text = server.kubeconfig(&name, &base, &Identity::administrator())?;
            nodes.push(Node::start(client_of(&text).await?, Scheduling::All).await?);
            let path = folder.path().join(&name);
            std::fs::write(&path, text)?;
            kubeconfigs.push(path);
        }
        Ok(Self {
            kubeconfigs,
            _nodes: nodes,
            _real: None,
            _ours: Some(guard),
            folder,
        })
    }

    /// Runs tests, those that want the server for themselves last and one by one.
    async fn run(&self, program: &Program, names: &[String]) -> Result<BTreeMap<String, Outcome>> {
        let (alone, together): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|name| name.contains("[Serial]"));
        let mut told = BTreeMap::new();
        let shares: Vec<Vec<String>> = (0..TOGETHER)
            .map(|share| together.iter().skip(share).step_by(TOGETHER).cloned().collect())
            .collect();
        let asked = shares.iter().zip(&self.kubeconfigs).enumerate();
        let runs = asked.filter(|(_, (share, _))| !share.is_empty()).map(
            |(number, (share, kubeconfig))| async move {
                let title = format!("run-{number}");
                program.run(share, kubeconfig, self.folder.path(), &title).await
            },
        );
        for outcomes in try_join_all(runs).await? {
            told.extend(outcomes);
        }
        if !alone.is_empty() {
            let kubeconfig = self.kubeconfigs.first().context("a stage has a kubeconfig")?;
            told.extend(
                program
                    .run(&alone, kubeconfig, self.folder.path(), "alone")
                    .await?,
            );
        }
        Ok(told)
    }
}

/// What did not pass, or was not run at all.
fn judge(names: &[String], told: &BTreeMap<String, Outcome>) -> String {
    let mut report = String::new();
    for name in names {
        match told.get(name) {
            Some(outcome) if outcome.passed => {}
            Some(outcome) => {
                let _ = writeln!(report, "{name}\n  {}: {}\n", outcome.state, outcome.message);
            }
            None => {
                let _ = writeln!(report, "{name}\n  was not run: no test has this name\n");
            }
        }
    }
    report
}

#[expect(clippy::print_stderr, reason = "whoever asks for this run wants its numbers")]
fn tell(who: &str, names: &[String], told: &BTreeMap<String, Outcome>) {
    let passed = names
        .iter()
        .filter(|name| told.get(*name).is_some_and(|one| one.passed))
        .count();
    eprintln!("{who}: {passed} of {} passed", names.len());
    let mut slow: Vec<(&String, Duration)> = told.iter().map(|(name, one)| (name, one.took)).collect();
    slow.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    for (name, took) in slow.into_iter().take(5) {
        eprintln!("  {:>5.1} s  {name}", took.as_secs_f64());
    }
}

/// The names to run: those of the list, or what `E2E` names by a part of it, whichever list they are in.
fn wanted(lists: &Lists) -> Vec<String> {
    match std::env::var("E2E") {
        Ok(part) => lists
            .all()
            .filter(|name| name.contains(&part))
            .map(Into::into)
            .collect(),
        Err(_) => lists.run.clone(),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e")
}

#[test]
fn the_lists_of_kubernetes_tests_are_in_order() {
    let lists = Lists::read(&folder()).unwrap();
    assert_eq!(lists.faults(), "");
}

#[tokio::test]
async fn each_of_kubernetes_tests_is_in_exactly_one_list() {
    let program = match program() {
        Ok((_, program)) => program,
        Err(why) => return eprintln!("{why}"),
    };
    let lists = Lists::read(&folder()).unwrap();
    let known = program.list(TempDir::new().unwrap().path()).await.unwrap();
    assert!(!known.is_empty(), "the program names its tests");
    let listed: Vec<&str> = lists.all().collect();
    let unlisted: Vec<&String> = known
        .iter()
        .filter(|name| !listed.contains(&name.as_str()))
        .collect();
    let unknown: Vec<&&str> = listed
        .iter()
        .filter(|name| !known.iter().any(|one| one == *name))
        .collect();
    assert!(
        unlisted.is_empty() && unknown.is_empty(),
        "in no list: {unlisted:#?}\nin a list, but no test: {unknown:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_tests_pass_on_the_embedded_api() {
    let program = match program() {
        Ok((_, program)) => program,
        Err(why) => return eprintln!("{why}"),
    };
    let names = wanted(&Lists::read(&folder()).unwrap());
    let stage = Stage::ours().await.unwrap();
    let told = stage.run(&program, &names).await.unwrap();
    tell("ours", &names, &told);
    let report = judge(&names, &told);
    assert!(report.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_own_tests_pass_on_the_real_api() {
    let (binaries, program) = match program() {
        Ok(found) => found,
        Err(why) => return eprintln!("{why}"),
    };
    let names = wanted(&Lists::read(&folder()).unwrap());
    let stage = Stage::real(&binaries).await.unwrap();
    let told = stage.run(&program, &names).await.unwrap();
    tell("the real one", &names, &told);
    let report = judge(&names, &told);
    assert!(report.is_empty(), "{report}");
}
