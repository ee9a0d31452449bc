//! Many policies, one answer: any denial wins, and no answer is a denial.

use std::time::Duration;

use crate::seams::{Failure, Reason, Verdict};

/// Code where a policy gave no answer.
pub const FAILED: &str = "PolicyFailed";
/// Code where a required policy is not loaded.
pub const MISSING: &str = "PolicyMissing";
/// Code where a policy denied without saying why.
pub const DENIED: &str = "DeniedByPolicy";

/// What all policies say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combined {
    /// Yes only when every policy said yes.
    pub allowed: bool,
    /// For a no: every reason, each once, in the order of the policies.
    pub reasons: Vec<Reason>,
    /// Reasons of policies that said yes.
    pub warnings: Vec<Reason>,
    /// When to ask again though no fact changed: the shortest that a policy named.
    pub valid_for: Option<Duration>,
    /// Whether some policy really said no; a no without it only means that one could not be asked.
    pub judged: bool,
}

impl Combined {
    /// A yes without anybody to ask.
    #[must_use]
    pub fn yes() -> Self {
        Self {
            allowed: true,
            reasons: Vec::new(),
            warnings: Vec::new(),
            valid_for: None,
            judged: false,
        }
    }

    /// A no because the policies could not be looked up.
    #[must_use]
    pub fn missing(failure: &Failure) -> Self {
        let found = failure.reason();
        let reason = Reason {
            code: MISSING.to_owned(),
            message: found.message.clone(),
            remedy: found
                .remedy
                .clone()
                .or_else(|| Some("put the component into the plugin directory".to_owned())),
        };
        Self {
            allowed: false,
            reasons: vec![reason],
            ..Self::yes()
        }
    }

    /// Code of the first reason.
    #[must_use]
    pub fn code(&self) -> &str {
        self.reasons.first().map_or(DENIED, |reason| reason.code.as_str())
    }

    /// Every reason with its remedy, in one line.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.reasons)
    }
}

/// Reasons with their remedies, in one line.
#[must_use]
pub fn text(reasons: &[Reason]) -> String {
    reasons.iter().map(Reason::text).collect::<Vec<_>>().join(". ")
}

/// Combines the answers of the policies that were asked, each with its name.
#[must_use]
pub fn combine(answers: &[(String, Result<Verdict, Failure>)]) -> Combined {
    let mut all = Combined::yes();
    for (policy, answer) in answers {
        match answer {
            Ok(verdict) => {
                all.valid_for = shortest(all.valid_for, verdict.valid_for);
                if verdict.allowed {
                    add(&mut all.warnings, verdict.reasons.iter().cloned());
                    continue;
                }
                all.allowed = false;
                all.judged = true;
                if verdict.reasons.is_empty() {
                    let silent =
                        Reason::new(DENIED, format!("policy {policy} denied this and gave no reason"))
                            .remedy("ask who runs the policy");
                    add(&mut all.reasons, [silent]);
                }
                add(&mut all.reasons, verdict.reasons.iter().cloned());
            }
            Err(failure) => {
                all.allowed = false;
                let reason = Reason::new(
                    FAILED,
                    format!("policy {policy} gave no answer: {}", failure.reason().message),
                )
                .remedy("see the Plugin object of that name; no answer is a no");
                add(&mut all.reasons, [reason]);
            }
        }
    }
    all
}

fn add(all: &mut Vec<Reason>, more: impl IntoIterator<Item = Reason>) {
    for reason in more {
        if !all.contains(&reason) {
            all.push(reason);
        }
    }
}

fn shortest(known: Option<Duration>, seconds: Option<u32>) -> Option<Duration> {
    let next = seconds.map(|seconds| Duration::from_secs(u64::from(seconds.max(1))));
    match (known, next) {
        (Some(known), Some(next)) => Some(known.min(next)),
        (known, next) => known.or(next),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn says(allowed: bool, reasons: &[&str]) -> Result<Verdict, Failure> {
        let reasons = reasons
            .iter()
            .map(|code| Reason::new(*code, format!("{code} it is")).remedy("mend it"))
            .collect();
        Ok(Verdict {
            allowed,
            reasons,
            valid_for: None,
        })
    }

    fn asked(answers: Vec<Result<Verdict, Failure>>) -> Combined {
        let named: Vec<_> = answers
            .into_iter()
            .enumerate()
            .map(|(index, answer)| (format!("policy-{index}"), answer))
            .collect();
        combine(&named)
    }

    #[test]
    fn any_denial_wins_and_every_reason_is_told_once() {
        let all = asked(vec![
            says(true, &["Soon"]),
            says(false, &["TooMany"]),
            says(false, &["TooMany", "NotYours"]),
        ]);
        assert!(!all.allowed && all.judged);
        assert_eq!(all.code(), "TooMany");
        assert_eq!(all.text(), "TooMany it is; mend it. NotYours it is; mend it");
        assert_eq!(all.warnings[0].code, "Soon");
    }

    #[test]
    fn no_answer_is_a_no_that_nobody_judged() {
        let all = asked(vec![
            says(true, &[]),
            Err(Failure::Faulty(Reason::new("Trap", "unreachable executed"))),
        ]);
        assert!(!all.allowed && !all.judged);
        assert_eq!(all.code(), FAILED);
        assert!(
            all.text()
                .contains("policy-1 gave no answer: unreachable executed")
        );
        let missing = Combined::missing(&Failure::Missing(Reason::new("X", "policy-quota is not loaded")));
        assert!(!missing.allowed);
        assert_eq!(missing.code(), MISSING);
    }

    #[test]
    fn a_silent_denial_gets_a_reason() {
        assert_eq!(asked(vec![says(false, &[])]).code(), DENIED);
    }

    #[test]
    fn nobody_asked_is_a_yes_and_the_shortest_validity_counts() {
        assert!(asked(Vec::new()).allowed);
        let valid = |seconds| {
            Ok(Verdict {
                allowed: true,
                reasons: Vec::new(),
                valid_for: seconds,
            })
        };
        let all = asked(vec![valid(None), valid(Some(90)), valid(Some(30))]);
        assert_eq!(all.valid_for, Some(Duration::from_secs(30)));
    }

    proptest! {
        #[test]
        fn it_is_allowed_only_if_all_allow(answers in proptest::collection::vec(0u8..3, 0..6)) {
            let want = answers.iter().all(|answer| *answer == 0);
            let all = asked(answers.iter().map(|answer| match answer {
                0 => says(true, &[]),
                1 => says(false, &["No"]),
                _ => Err(Failure::Broken(Reason::new("Slow", "no answer in time"))),
            }).collect());
            prop_assert_eq!(all.allowed, want);
            prop_assert_eq!(all.reasons.is_empty(), want);
        }
    }
}
