//! One suite, two servers: the same requests to the embedded API and to a real kube-apiserver, and the answers compared.
//!
//! Ours answers every case, with the status that the case names. Where the real server's binaries are (`make kubernetes`),
//! it answers them too, and what differs fails, unless `docs/conformance.md` lists it with a reason.

mod answer;
mod case;
mod listed;
mod run;
mod server;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use futures::StreamExt as _;
use hostler_apiserver::{Identity, Options, Server as Embedded, Store};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::answer::{Answer, Difference, differences};
use self::case::Case;
use self::listed::Listed;
use self::server::Server;
use crate::kubernetes::{Binaries, Cluster};

/// Cases that run at the same time.
const TOGETHER: usize = 6;

/// Our server on a socket, stopped when dropped.
struct Ours {
    server: Server,
    _folder: TempDir,
    _stop: DropGuard,
}

impl Ours {
    async fn start() -> Result<Self> {
        let folder = TempDir::new()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("https://{}", listener.local_addr()?);
        let embedded = Embedded::open(Options::new(Store::Memory))?;
        let stop = CancellationToken::new();
        embedded.start(stop.clone());
        let kubeconfig = embedded.kubeconfig("platform", &base, &Identity::administrator())?;
        let (served, ended) = (embedded.clone(), stop.clone());
        tokio::spawn(async move { served.serve(listener, ended).await });
        let server = Server::new(kubeconfig, folder.path()).await?;
        Ok(Self {
            server,
            _folder: folder,
            _stop: stop.drop_guard(),
        })
    }
}

/// The real one.
struct Real {
    server: Server,
    _cluster: Cluster,
}

impl Real {
    async fn start(binaries: &Binaries) -> Result<Self> {
        let mut cluster = Cluster::start(binaries).await?;
        cluster.start_controllers()?;
        let kubeconfig = std::fs::read_to_string(cluster.kubeconfig())?;
        let server = Server::new(kubeconfig, &cluster.folder().join("client")).await?;
        Ok(Self {
            server,
            _cluster: cluster,
        })
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

fn read_listed() -> Result<Vec<Listed>> {
    listed::parse(&std::fs::read_to_string(root().join("docs/conformance.md"))?)
}

/// Cases of some files; `CONFORMANCE` may narrow them to those whose name contains it.
fn cases(wanted: impl Fn(&str) -> bool) -> Vec<Case> {
    let only = std::env::var("CONFORMANCE").unwrap_or_default();
    let all = case::read_all(&root().join("tests/conformance/cases")).expect("cases that can be read");
    all.into_iter()
        .filter(|case| wanted(&case.file) && title(case).contains(&only))
        .collect()
}

fn title(case: &Case) -> String {
    format!("{}: {}", case.file, case.name)
}

type Told = Vec<Result<Vec<(usize, Answer)>>>;

async fn run_all(server: &Server, cases: &[Case], kubectl: Option<&Path>) -> Told {
    let runs = cases
        .iter()
        .map(|case| run::run(server, case, kubectl.map(Path::to_owned)));
    futures::stream::iter(runs).buffered(TOGETHER).collect().await
}

/// What ours answers in another way, and is not listed; listed differences that are none any more, too.
fn compare(cases: &[Case], ours: &Told, real: &Told, listed: &[Listed], used: &mut [bool]) -> String {
    let mut report = String::new();
    for ((case, ours), real) in cases.iter().zip(ours).zip(real) {
        let title = title(case);
        let (ours, real) = match (ours, real) {
            (Ok(ours), Ok(real)) => (ours, real),
            (ours, real) => {
                for (who, told) in [("ours", ours), ("the real server", real)] {
                    if let Err(error) = told {
                        let _ = writeln!(report, "{who}: {error:#}\n");
                    }
                }
                continue;
            }
        };
        let mut found = Vec::new();
        for ((number, ours), (_, real)) in ours.iter().zip(real) {
            if let Some(expected) = real.expected.filter(|expected| *expected != real.status) {
                let told = &real.shown["body"];
                let _ = writeln!(
                    report,
                    "{title}: step {number} says {expected}, the real server {}: {told}\n",
                    real.status
                );
            }
            differences(&number.to_string(), &ours.shown, &real.shown, &mut found);
        }
        found.retain(|difference| {
            let covering: Vec<usize> = (0..listed.len())
                .filter(|row| listed[*row].covers(&title, difference))
                .collect();
            covering.iter().for_each(|row| used[*row] = true);
            covering.is_empty()
        });
        for difference in found {
            let _ = writeln!(
                report,
                "{title}\n  {}\n  ours {}\n  real {}\n",
                difference.at, difference.ours, difference.real
            );
        }
    }
    report
}

/// What ours answers with another status than the case says, and is not listed: all that can be told without the real one.
fn judge_alone(cases: &[Case], told: &Told, listed: &[Listed]) -> String {
    let mut report = String::new();
    for (case, told) in cases.iter().zip(told) {
        let title = title(case);
        let answers = match told {
            Ok(answers) => answers,
            Err(error) => {
                let _ = writeln!(report, "{error:#}\n");
                continue;
            }
        };
        for (number, answer) in answers {
            let expected = answer.expected.unwrap_or(answer.status);
            let (ours, real) = (answer.status.to_string(), expected.to_string());
            let difference = Difference {
                at: format!("{number}/status"),
                ours,
                real,
            };
            if answer.status != expected && !listed.iter().any(|row| row.covers(&title, &difference)) {
                let _ = writeln!(
                    report,
                    "{title}: step {number} says {expected}, ours {}: {}\n",
                    answer.status, answer.shown
                );
            }
        }
    }
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_api_answers_as_the_real_one_does() {
    let cases = cases(|file| !file.starts_with("kubectl"));
    judge(&cases, &[None]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_sees_the_same_in_the_embedded_api_as_in_the_real_one() {
    let found = Binaries::find()
        .ok()
        .and_then(|binaries| binaries.path("kubectl"));
    let programs: Vec<Option<PathBuf>> = found.into_iter().chain(on_path("kubectl")).map(Some).collect();
    if programs.is_empty() {
        return eprintln!("kubectl was not driven: there is none on the PATH; `make kubernetes` builds one");
    }
    let cases = cases(|file| file.starts_with("kubectl"));
    judge(&cases, &programs).await;
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

#[expect(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what was not asked, and how it would be"
)]
async fn judge(cases: &[Case], programs: &[Option<PathBuf>]) {
    let listed = read_listed().expect("docs/conformance.md can be read");
    let mut used = vec![false; listed.len()];
    let binaries = Binaries::find();
    let mut report = String::new();
    for program in programs {
        let ours = Ours::start().await.expect("ours starts");
        let told = run_all(&ours.server, cases, program.as_deref()).await;
        match &binaries {
            Ok(binaries) => {
                let real = Real::start(binaries).await.expect("the real one starts");
                let truth = run_all(&real.server, cases, program.as_deref()).await;
                report += &compare(cases, &told, &truth, &listed, &mut used);
            }
            Err(why) => {
                eprintln!("{why}");
                report += &judge_alone(cases, &told, &listed);
            }
        }
    }
    if binaries.is_ok() && std::env::var_os("CONFORMANCE").is_none() {
        let is_meant = |row: &Listed| match row.case.as_str() {
            "*" => cases.iter().any(|case| !case.file.starts_with("kubectl")),
            named => cases.iter().any(|case| title(case) == named),
        };
        let stale = listed
            .iter()
            .zip(used)
            .filter(|(row, used)| !used && is_meant(row));
        for (row, _) in stale {
            let _ = writeln!(
                report,
                "docs/conformance.md: `{}` at {} differs no longer; remove the row",
                row.case, row.at
            );
        }
    }
    assert!(report.is_empty(), "{report}");
}

#[test]
fn listed_differences_name_cases_that_exist() {
    let listed = read_listed().unwrap();
    let known: Vec<String> = case::read_all(&root().join("tests/conformance/cases"))
        .unwrap()
        .iter()
        .map(title)
        .collect();
    let lost: Vec<&Listed> = listed
        .iter()
        .filter(|row| row.case != "*" && !known.contains(&row.case))
        .collect();
    assert!(
        lost.is_empty(),
        "rows of docs/conformance.md without a case: {lost:?}"
    );
}
