//! Precedence resolver: what was asked for explicitly, else the tenant's default, else the project's, else nothing.
//!
//! # A profile that does not exist
//! Named explicitly, it is a refusal: a node that silently went without, or with a default, would lack the taints and labels that somebody
//! counted on. Named as a default, it is passed over: defaults are dynamic, and the next one is what would hold had this one never been
//! set. Either way the answer says so.

use hostler_sdk::Failure;
use hostler_sdk::resolver::{Candidate, Resolution, Resolver, Subject};
use serde::Deserialize;

/// Sources from the strongest to the weakest, with the words for a person. A source that is not here is a later one: passed over.
const PRECEDENCE: [(&str, &str); 3] = [
    (EXPLICIT, "asked for explicitly"),
    ("tenant-default", "the tenant's privateNodes.defaultProfile"),
    ("project-default", "the Project's spec.defaultNodeProfile"),
];
const EXPLICIT: &str = "explicit";

/// The resolver; see the module.
pub struct Precedence;

/// It has none: a key in `[settings]` is a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Resolver for Precedence {
    type Settings = Settings;

    fn resolve(_: &Settings, _: &Subject, candidates: &[Candidate]) -> Result<Resolution, Failure> {
        let mut passed_over = Vec::new();
        for (source, words) in PRECEDENCE {
            for (index, candidate) in candidates
                .iter()
                .enumerate()
                .filter(|(_, candidate)| candidate.source == source)
            {
                let name = &candidate.profile;
                if candidate.exists {
                    passed_over.push(format!("{name} is {words}"));
                    return Ok(Resolution {
                        chosen: u32::try_from(index).ok(),
                        why: passed_over.join(", "),
                    });
                }
                if source == EXPLICIT {
                    let message = format!(
                        "profile {name} was asked for explicitly, and no NodeProfile of that name exists"
                    );
                    return Err(Failure::refused("ProfileMissing", message).remedy(format!(
                        "create NodeProfile {name}, or name another in the pool or claim"
                    )));
                }
                passed_over.push(format!("{name}, {words}, does not exist"));
            }
        }
        passed_over.push("nobody names a profile that exists".to_owned());
        Ok(Resolution {
            chosen: None,
            why: passed_over.join(", "),
        })
    }
}

hostler_sdk::export_resolver!(Precedence);
hostler_sdk::cases!(Precedence);
