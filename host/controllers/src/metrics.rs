//! What the host counts about itself, for Prometheus. No label names an object: their number does not grow with what is managed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// Bounds of durations, in seconds: from a turn that read caches only, over an API call, to the longest that is waited for one answer.
const SECONDS: [f64; 11] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTurn {
    area: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfArea {
    area: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    target: &'static str,
    verb: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTarget {
    target: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    component: String,
    call: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfComponent {
    component: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// What is there at one moment, counted when somebody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// NodeClaims by `status.phase`.
    pub(crate) claims: BTreeMap<String, i64>,
    /// Machines by what may be done with them.
    pub(crate) machines: BTreeMap<&'static str, i64>,
    /// Components by whether their newest file serves.
    pub(crate) plugins: BTreeMap<&'static str, i64>,
    /// Tenants whose API answers.
    pub(crate) tenants: i64,
}

/// All counters of one host.
pub struct Metrics {
    registry: Registry,
    turns: Family<OfTurn, Counter>,
    turn_seconds: Seconds<OfArea>,
    retries: Family<OfArea, Counter>,
    requests: Family<OfRequest, Counter>,
    request_seconds: Seconds<OfTarget>,
    refused: Counter,
    calls: Family<OfCall, Counter>,
    call_seconds: Seconds<OfComponent>,
    leading: Gauge,
    lease_seconds: Gauge<f64, AtomicU64>,
    claims: Family<OfPhase, Gauge>,
    machines: Family<OfState, Gauge>,
    plugins: Family<OfState, Gauge>,
    tenants: Gauge,
}

impl Metrics {
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let seconds = || Histogram::new(SECONDS);
        let mut all = Self {
            registry: Registry::with_prefix("hostler"),
            turns: Family::default(),
            turn_seconds: Family::new_with_constructor(seconds),
            retries: Family::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            refused: Counter::default(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(seconds),
            leading: Gauge::default(),
            lease_seconds: Gauge::default(),
            claims: Family::default(),
            machines: Family::default(),
            plugins: Family::default(),
            tenants: Gauge::default(),
        };
        all.register();
        Arc::new(all)
    }

    fn register(&mut self) {
        let all = &mut self.registry;
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "Version of this host", version);
        all.register(
            "turns",
            "Turns that ended, by loop and outcome",
            self.turns.clone(),
        );
        all.register_with_unit(
            "turn",
            "How long a turn took, by loop",
            Unit::Seconds,
            self.turn_seconds.clone(),
        );
        all.register(
            "retries",
            "Turns that are tried again because they failed, by loop",
            self.retries.clone(),
        );
        all.register(
            "requests",
            "Requests sent to Kubernetes APIs, by whose API, verb and answer",
            self.requests.clone(),
        );
        all.register_with_unit(
            "request",
            "How long requests took, watches apart, by whose API",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        all.register(
            "writes_refused",
            "Writes that were not sent because the lease was not held",
            self.refused.clone(),
        );
        all.register(
            "plugin_calls",
            "Calls of components, by component, function and outcome",
            self.calls.clone(),
        );
        all.register_with_unit(
            "plugin_call",
            "How long calls of a component took",
            Unit::Seconds,
            self.call_seconds.clone(),
        );
        all.register("leader", "Whether this host leads: 1 or 0", self.leading.clone());
        all.register_with_unit(
            "lease_left",
            "How long this host may still write if its lease is not renewed",
            Unit::Seconds,
            self.lease_seconds.clone(),
        );
        all.register("claims", "NodeClaims, by phase", self.claims.clone());
        all.register(
            "machines",
            "Machines of all providers, by what may be done with them",
            self.machines.clone(),
        );
        all.register(
            "plugins",
            "Components in the plugin directory, by state",
            self.plugins.clone(),
        );
        all.register(
            "tenants_online",
            "Tenants whose Kubernetes API answers",
            self.tenants.clone(),
        );
    }

    pub(crate) fn turn(&self, area: &'static str, outcome: &'static str, took: Duration) {
        self.turns.get_or_create(&OfTurn { area, outcome }).inc();
        let of_area = OfArea { area };
        self.turn_seconds
            .get_or_create(&of_area)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn retry(&self, area: &'static str) {
        self.retries.get_or_create(&OfArea { area }).inc();
    }

    pub(crate) fn request(
        &self,
        target: &'static str,
        verb: &'static str,
        code: String,
        took: Option<Duration>,
    ) {
        let of_request = OfRequest { target, verb, code };
        self.requests.get_or_create(&of_request).inc();
        if let Some(took) = took {
            let of_target = OfTarget { target };
            self.request_seconds
                .get_or_create(&of_target)
                .observe(took.as_secs_f64());
        }
    }

    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn call(&self, component: &str, call: &'static str, outcome: &'static str, took: Duration) {
        let component = component.to_owned();
        let of_call = OfCall {
            component: component.clone(),
            call,
            outcome,
        };
        self.calls.get_or_create(&of_call).inc();
        let of_component = OfComponent { component };
        self.call_seconds
            .get_or_create(&of_component)
            .observe(took.as_secs_f64());
    }

    /// Says whether this host leads.
    pub fn lead(&self, leads: bool) {
        self.leading.set(i64::from(leads));
    }

    pub(crate) fn lease_left(&self, left: Option<Duration>) {
        self.lease_seconds
            .set(left.map_or(f64::INFINITY, |left| left.as_secs_f64()));
    }

    pub(crate) fn count(&self, census: Census) {
        // Counted anew: a phase that no claim is in any more has no line.
        self.claims.clear();
        for (phase, count) in census.claims {
            self.claims.get_or_create(&OfPhase { phase }).set(count);
        }
        for (family, counts) in [(&self.machines, census.machines), (&self.plugins, census.plugins)] {
            family.clear();
            for (state, count) in counts {
                family.get_or_create(&OfState { state }).set(count);
            }
        }
        self.tenants.set(census.tenants);
    }

    /// Everything, in the text format of Prometheus, and its content type.
    #[must_use]
    pub fn text(&self) -> (&'static str, String) {
        let mut text = String::new();
        if let Err(error) = prometheus_text::encode(&mut text, &self.registry) {
            tracing::error!(error = %error, "the metrics were not written");
        }
        (prometheus_text::CONTENT_TYPE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each, so that each has a line.
    fn all() -> String {
        let metrics = Metrics::new();
        metrics.turn("claim", "ok", Duration::from_millis(3));
        metrics.retry("claim");
        metrics.request(
            "platform",
            "patch",
            "200".to_owned(),
            Some(Duration::from_millis(3)),
        );
        metrics.refused();
        metrics.call("driver-metal3", "provision", "ok", Duration::from_millis(3));
        metrics.lead(true);
        metrics.lease_left(Some(Duration::from_secs(7)));
        metrics.count(Census {
            claims: [("Available".to_owned(), 2)].into(),
            machines: [("free", 3)].into(),
            plugins: [("healthy", 3)].into(),
            tenants: 1,
        });
        metrics.text().1
    }

    /// The reference in the operator's page has one row for each, with the same words.
    #[test]
    fn the_reference_names_every_metric() {
        let page = include_str!("../../../docs/operations.md");
        let text = all();
        let mut rows = Vec::new();
        for line in text.lines() {
            let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '))
            else {
                continue;
            };
            let kind = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")))
                .unwrap();
            let sample = text
                .lines()
                .find(|line| !line.starts_with('#') && line.starts_with(name))
                .unwrap();
            let labels = sample
                .split_once('{')
                .map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
            let labels: Vec<_> = labels
                .split(',')
                .filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0)))
                .filter(|label| label != "`le`")
                .collect();
            rows.push(format!(
                "| `{name}` | {kind} | {} | {} |",
                labels.join(", "),
                help.trim_end_matches('.')
            ));
        }
        assert!(rows.len() > 12, "{text}");
        let wrong: Vec<_> = rows
            .iter()
            .filter(|row| !page.lines().any(|line| line == **row))
            .cloned()
            .collect();
        assert!(
            wrong.is_empty(),
            "docs/operations.md lacks these rows:\n{}",
            wrong.join("\n")
        );
        let written = page
            .lines()
            .filter(|line| line.starts_with("| `hostler_"))
            .count();
        assert_eq!(
            written,
            rows.len(),
            "docs/operations.md has rows of metrics that are no more"
        );
    }

    #[test]
    fn names_follow_the_conventions() {
        for line in all().lines().filter(|line| line.starts_with("# TYPE ")) {
            let mut words = line.split(' ').skip(2);
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            assert!(name.starts_with("hostler_"), "{line}");
            match kind {
                "counter" => assert!(name.ends_with("_total"), "{line}"),
                "histogram" => assert!(name.ends_with("_seconds"), "{line}"),
                _ => assert!(!name.ends_with("_total"), "{line}"),
            }
        }
    }

    #[test]
    fn what_is_there_is_counted_anew_each_time() {
        let metrics = Metrics::new();
        let claims = |phase: &str| Census {
            claims: [(phase.to_owned(), 1)].into(),
            ..Census::default()
        };
        metrics.count(claims("Pending"));
        metrics.count(claims("Available"));
        let text = metrics.text().1;
        assert!(text.contains("hostler_claims{phase=\"Available\"} 1"), "{text}");
        assert!(!text.contains("Pending"), "{text}");
    }
}
