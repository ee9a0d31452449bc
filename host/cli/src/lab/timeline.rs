//! What happens after an apply, as it happens: a line for each moment that changed something, and the milestones at the end.

mod milestones;
mod picture;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use hostler_api as api;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};

use self::milestones::Milestones;
use self::picture::{Kind, Line, Mood, Picture, Subject};
use crate::telemetry::say;

/// Between two looks. The lines show what is true then; their times are as exact as this.
const LOOK: Duration = Duration::from_millis(100);
/// Without a new line for so long, what is waited for is told.
const STILL: Duration = Duration::from_secs(20);
/// Hosts beyond this number are shown once somebody has them.
const FEW: usize = 12;

/// What is looked at.
pub(super) struct Sources<'a> {
    /// Names of the logical clusters.
    pub(super) clusters: &'a (dyn Fn() -> Vec<String> + Sync),
    /// Client for one of them.
    pub(super) tenant: &'a (dyn Fn(&str) -> Client + Sync),
    /// Said when everything has stood still for a while.
    pub(super) still: &'a (dyn Fn() + Sync),
}

/// A running clock and what was already said.
pub(super) struct Timeline {
    client: Client,
    started: Instant,
    coloured: bool,
}

impl Timeline {
    pub(super) fn start(client: Client) -> Self {
        let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self {
            client,
            started: Instant::now(),
            coloured,
        }
    }

    /// Prints changes until every tenant and claim is as wished; within the limit, if there is one.
    pub(super) async fn follow(
        &self,
        sources: &Sources<'_>,
        limit: Option<Duration>,
    ) -> anyhow::Result<ExitCode> {
        say("\nTime after apply | What happened");
        say("-----------------|----------------------------------------------------------------------");
        let mut said = Picture::new();
        let mut milestones = Milestones::default();
        let mut moved = Instant::now();
        let mut told = false;
        loop {
            let begin = Instant::now();
            let Look { picture, waits, few } = self.look(sources).await?;
            let elapsed = self.started.elapsed();
            let mut news: Vec<(&Subject, &Line)> = picture
                .iter()
                .filter(|(subject, line)| said.get(*subject) != Some(*line))
                .collect();
            news.sort_by_key(|(subject, line)| (line.rank, (*subject).clone()));
            let gone: Vec<_> = said
                .iter()
                .filter(|(subject, _)| !picture.contains_key(*subject))
                .collect();
            if !news.is_empty() || !gone.is_empty() {
                (moved, told) = (Instant::now(), false);
            }
            for (subject, line) in gone {
                self.line(subject.kind, line, gone_word(subject.kind, few), "", Mood::Plain);
            }
            for (subject, line) in news {
                milestones.note(subject, line, elapsed);
                self.line(subject.kind, line, &line.state, &line.detail, line.mood);
            }
            let first = said.is_empty();
            said = picture;
            if waits.is_empty() {
                self.summary(&milestones, first);
                return Ok(ExitCode::SUCCESS);
            }
            if limit.is_some_and(|limit| elapsed > limit) {
                say("\nnot everything became Available in time:");
                waits.iter().for_each(|wait| say(&format!("  {wait}")));
                return Ok(ExitCode::FAILURE);
            }
            if !told && moved.elapsed() > STILL {
                told = true;
                say("\nstill waiting:");
                waits.iter().for_each(|wait| say(&format!("  {wait}")));
                (sources.still)();
            }
            // A look at a large data centre takes its time; the lab must not be busy with nothing but being looked at.
            tokio::time::sleep(LOOK.max(begin.elapsed() * 4)).await;
        }
    }

    fn summary(&self, milestones: &Milestones, at_once: bool) {
        if at_once {
            say(&format!(
                "{} | everything is Available already",
                stamp(self.started.elapsed())
            ));
            return;
        }
        say("\nTime after apply | Milestone");
        say("-----------------|----------------------------------------------------------------------");
        for (at, text) in milestones.rows(self.started.elapsed()) {
            say(&format!("{} | {text}", stamp(at)));
        }
    }

    fn line(&self, kind: Kind, line: &Line, state: &str, detail: &str, mood: Mood) {
        let colour = match mood {
            Mood::Good => "32",
            Mood::Moving => "33",
            Mood::Bad => "31",
            Mood::Plain => "0",
        };
        let pad = " ".repeat(13_usize.saturating_sub(state.len()));
        let shown = if self.coloured {
            format!("\u{1b}[{colour}m{state}\u{1b}[0m{pad}")
        } else {
            format!("{state}{pad}")
        };
        let text = format!(
            "{} | {:<6} {:<16} {shown} {detail}",
            stamp(self.started.elapsed()),
            kind.word(),
            line.name
        );
        say(text.trim_end());
    }

    async fn look(&self, sources: &Sources<'_>) -> anyhow::Result<Look> {
        let mut picture = Picture::new();
        let mut waits = Vec::new();
        let all = ListParams::default();
        for tenant in Api::<api::VirtualClusterInstance>::all(self.client.clone())
            .list(&all)
            .await?
            .items
        {
            let (subject, line, wait) = picture::tenant(&tenant);
            picture.insert(subject, line);
            waits.extend(wait);
        }
        for claim in Api::<api::NodeClaim>::all(self.client.clone())
            .list(&all)
            .await?
            .items
        {
            let (subject, line, wait) = picture::claim(&claim);
            picture.insert(subject, line);
            waits.extend(wait);
        }
        let hosts = hostler_lab::crds::bare_metal_hosts();
        let hosts: Api<DynamicObject> = Api::all_with(self.client.clone(), &hosts);
        let hosts = hosts.list(&all).await.context("hosts cannot be listed")?.items;
        let few = hosts.len() <= FEW;
        for host in hosts
            .iter()
            .filter(|host| few || picture::consumer(host).is_some())
        {
            let (subject, line) = picture::host(host);
            picture.insert(subject, line);
        }
        for cluster in (sources.clusters)() {
            // A cluster that is being removed answers nothing.
            let Ok(nodes) = Api::<Node>::all((sources.tenant)(&cluster)).list(&all).await else {
                continue;
            };
            picture.extend(nodes.iter().map(|node| picture::node(&cluster, node)));
        }
        Ok(Look { picture, waits, few })
    }
}

/// What is true at one moment.
struct Look {
    picture: Picture,
    /// Why not everything is as wished.
    waits: Vec<String>,
    /// Whether all hosts are shown.
    few: bool,
}

fn gone_word(kind: Kind, few: bool) -> &'static str {
    match kind {
        Kind::Tenant => "gone",
        Kind::Claim => "released",
        Kind::Host if few => "removed",
        Kind::Host => "free again",
        Kind::Node => "left",
    }
}

fn stamp(at: Duration) -> String {
    format!("{:>+14.1} s", at.as_secs_f64())
}
