//! A policy for the host's tests: what it does stands in its settings, `plan`, and `at` which function (`review` unless said otherwise).
//!
//! | plan | what it does |
//! |---|---|
//! | `allow`, `deny` | answers |
//! | `warn` | allows, with a warning |
//! | `loop`, `trap`, `recurse`, `eat` | never ends; panics; overflows its stack; takes all the memory there is |
//! | `shout` | denies with a megabyte of text and control characters in it |
//! | `flood` | writes the log full, then allows |
//! | `expire` | allows for one second |
//! | `greedy` | accepts kinds that nobody knows, and wants facts that there are not |

use std::hint::black_box;

use hostler_sdk::policy::{Interest, Policy, Request, Verdict};
use hostler_sdk::{Reason, log};
use serde::Deserialize;

/// The policy; see the module.
pub struct Hostile;

/// What to do, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    plan: String,
    #[serde(default)]
    at: String,
}

impl Policy for Hostile {
    type Settings = Settings;

    fn accepts(settings: &Settings) -> Result<Vec<Interest>, Reason> {
        if settings.at == "accepts" {
            misbehave(&settings.plan);
            if settings.plan == "deny" {
                return Err(
                    Reason::new("Unwilling", "these settings are not to my taste").remedy("try others")
                );
            }
        }
        let kinds = [
            "profile-assignment",
            "claim",
            "type-choice",
            "pool-change",
            "plugin-grant",
        ];
        let mut interests: Vec<Interest> = kinds.into_iter().map(Interest::in_kind).collect();
        if settings.plan == "greedy" {
            interests.push(Interest::in_kind("launch-rocket").wanting("secrets"));
        }
        Ok(interests)
    }

    fn review(settings: &Settings, request: &Request) -> Verdict {
        if settings.at == "accepts" {
            return Verdict::allow();
        }
        misbehave(&settings.plan);
        match settings.plan.as_str() {
            "deny" => Verdict::deny(
                Reason::new("Unwilling", format!("no {} today", request.kind)).remedy("ask again tomorrow"),
            ),
            "warn" => Verdict {
                reasons: vec![Reason::new("Uneasy", "if you must")],
                ..Verdict::allow()
            },
            "shout" => Verdict::deny(
                Reason::new("not a word", "\u{1b}[31mNO\n".repeat(200_000)).remedy("\u{7}".repeat(1000)),
            ),
            "expire" => Verdict {
                valid_for: Some(1),
                ..Verdict::allow()
            },
            _ => Verdict::allow(),
        }
    }
}

#[allow(clippy::panic, reason = "that is what this plan is for")]
fn misbehave(plan: &str) {
    match plan {
        "loop" => loop {
            black_box(plan);
        },
        "trap" => panic!("this policy panics, as its settings ask"),
        "recurse" => {
            black_box(deeper(0));
        }
        "eat" => {
            let mut eaten = Vec::new();
            loop {
                eaten.push(black_box(vec![1_u8; 1 << 20]));
            }
        }
        "flood" => (0..10_000).for_each(|line| log::error(&format!("{line}: {}", "x".repeat(2000)))),
        _ => {}
    }
}

fn deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX {
        depth
    } else {
        deeper(depth + 1) + frame[7]
    }
}

hostler_sdk::export_policy!(Hostile);
hostler_sdk::cases!(Hostile);
