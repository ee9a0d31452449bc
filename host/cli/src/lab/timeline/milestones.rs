//! How long it took to each milestone, as a table at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::picture::{Kind, Line, Subject};

/// First moment of each state of each thing.
#[derive(Default)]
pub(super) struct Milestones(BTreeMap<(Subject, String), Duration>);

impl Milestones {
    /// Notes what is seen at a moment.
    pub(super) fn note(&mut self, subject: &Subject, line: &Line, at: Duration) {
        for state in [line.state.as_str(), "seen"] {
            self.0.entry((subject.clone(), state.to_owned())).or_insert(at);
        }
    }

    /// Rows of the table, in the order of time.
    pub(super) fn rows(&self, now: Duration) -> Vec<(Duration, String)> {
        let mut rows = Vec::new();
        let moments = |kind: Kind, state: &str| -> Vec<(&Subject, Duration)> {
            let all = self
                .0
                .iter()
                .filter(|((subject, known), _)| subject.kind == kind && known == state);
            all.map(|((subject, _), at)| (subject, *at)).collect()
        };
        let name = |subject: &Subject| {
            subject
                .key
                .rsplit_once('/')
                .map_or_else(|| subject.key.clone(), |(_, name)| name.to_owned())
        };
        for (subject, at) in moments(Kind::Tenant, "Ready") {
            rows.push((
                at,
                format!("control plane of {} is Ready, before any node", name(subject)),
            ));
        }
        for (kind, state, what) in [
            (Kind::Claim, "seen", "NodeClaims created"),
            (Kind::Host, "provisioning", "servers started provisioning"),
            (Kind::Host, "provisioned", "servers provisioned"),
        ] {
            let all = moments(kind, state);
            if let Some(last) = all.iter().map(|(_, at)| *at).max() {
                let what = if all.len() == 1 {
                    what.replacen("s ", " ", 1)
                } else {
                    what.to_owned()
                };
                rows.push((last, format!("{} {what}", all.len())));
            }
        }
        for (subject, at) in moments(Kind::Node, "Ready") {
            rows.push((at, format!("node {} is Ready in its tenant", name(subject))));
        }
        rows.push((now, "everything is Available".to_owned()));
        rows.sort_by_key(|(at, _)| *at);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::picture::Mood;
    use super::*;

    #[test]
    fn the_last_of_several_is_the_milestone_and_the_first_time_counts() {
        let mut milestones = Milestones::default();
        let mut see = |kind, key: &str, state: &str, seconds| {
            let line = Line {
                name: String::new(),
                state: state.to_owned(),
                detail: String::new(),
                mood: Mood::Plain,
                rank: 0,
            };
            milestones.note(
                &Subject {
                    kind,
                    key: key.to_owned(),
                },
                &line,
                Duration::from_secs(seconds),
            );
        };
        see(Kind::Tenant, "p-default/one", "Ready", 1);
        see(Kind::Host, "default/a", "provisioned", 4);
        see(Kind::Host, "default/b", "provisioned", 6);
        see(Kind::Host, "default/b", "provisioned", 9);
        see(Kind::Node, "one-1/a", "Ready", 7);
        let rows: Vec<_> = milestones
            .rows(Duration::from_secs(10))
            .into_iter()
            .map(|(at, text)| (at.as_secs(), text))
            .collect();
        let want = [
            (1, "control plane of one is Ready, before any node"),
            (6, "2 servers provisioned"),
            (7, "node a is Ready in its tenant"),
            (10, "everything is Available"),
        ];
        assert_eq!(rows, want.map(|(at, text)| (at, text.to_owned())));
    }
}
