//! Golden cases: one call and its answer, written in YAML, that holds natively and through the component alike.
//!
//! The format is specified in this crate's README, without any Rust in it, so that another runner can drive a component from the same files.
//! [`read`] and [`differences`] are that specification in code, over plain JSON; [`run`] calls the traits of this crate with it.

mod compare;
mod file;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use compare::differences;
pub use file::{Case, Expectation, read};

use crate::driver::{Driver, Order};
use crate::policy::{Policy, Request, Verdict, bad_settings};
use crate::resolver::{Candidate, Resolver, Subject};
use crate::{Failure, Object};

/// A plugin that golden cases can call. The export macros implement it.
pub trait Plugin {
    /// Calls a function by its name in `wit/`, with arguments by theirs.
    fn call(function: &str, arguments: Value) -> Result<Value, String>;
}

/// Runs all cases of a folder, and says which of them do not hold, and where.
pub fn run<P: Plugin>(folder: &Path) -> Result<usize, String> {
    let cases = read(folder)?;
    let mut failures = String::new();
    for case in &cases {
        let found = match P::call(&case.call, case.arguments.clone()) {
            Ok(answer) => differences(&case.expectation, &answer),
            Err(error) => vec![error],
        };
        for difference in &found {
            failures.push_str(&format!("\n{}: {}\n  {difference}", case.file, case.name));
        }
    }
    if cases.is_empty() {
        return Err(format!("{} holds no case", folder.display()));
    }
    if failures.is_empty() {
        Ok(cases.len())
    } else {
        Err(failures)
    }
}

#[doc(hidden)]
pub fn call_driver<D: Driver>(function: &str, arguments: Value) -> Result<Value, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Describe {
        provider: Object,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct MachineOf {
        provider: Object,
        seen: Object,
        #[serde(default)]
        related: Vec<Object>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Turn {
        order: Order,
        #[serde(default)]
        seen: Vec<Object>,
    }
    match function {
        "describe" => {
            let Describe { provider } = arguments_of(arguments)?;
            Ok(result(D::describe(&provider)))
        }
        "machine-of" => {
            let MachineOf {
                provider,
                seen,
                related,
            } = arguments_of(arguments)?;
            Ok(result(D::machine_of(&provider, &seen, &related)))
        }
        "prepare" => {
            let Turn { order, seen } = arguments_of(arguments)?;
            Ok(result(D::prepare(&order, &seen)))
        }
        "provision" => {
            let Turn { order, seen } = arguments_of(arguments)?;
            Ok(result(D::provision(&order, &seen)))
        }
        "release" => {
            let Turn { order, seen } = arguments_of(arguments)?;
            Ok(result(D::release(&order, &seen)))
        }
        other => Err(format!("a driver has no function {other}")),
    }
}

#[doc(hidden)]
pub fn call_policy<P: Policy>(function: &str, arguments: Value) -> Result<Value, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Accepts {
        #[serde(default)]
        settings: Value,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Review {
        #[serde(default)]
        settings: Value,
        request: Request,
    }
    match function {
        "accepts" => {
            let Accepts { settings } = arguments_of(arguments)?;
            Ok(result(match settings_in::<P::Settings>(settings) {
                Ok(settings) => P::accepts(&settings),
                Err(error) => Err(bad_settings(&error)),
            }))
        }
        "review" => {
            let Review { settings, request } = arguments_of(arguments)?;
            Ok(json!(match settings_in::<P::Settings>(settings) {
                Ok(settings) => P::review(&settings, &request),
                Err(error) => Verdict::deny(bad_settings(&error)),
            }))
        }
        other => Err(format!("a policy has no function {other}")),
    }
}

#[doc(hidden)]
pub fn call_resolver<R: Resolver>(function: &str, arguments: Value) -> Result<Value, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resolve {
        #[serde(default)]
        settings: Value,
        subject: Subject,
        #[serde(default)]
        candidates: Vec<Candidate>,
    }
    match function {
        "resolve" => {
            let Resolve {
                settings,
                subject,
                candidates,
            } = arguments_of(arguments)?;
            Ok(result(match settings_in::<R::Settings>(settings) {
                Ok(settings) => R::resolve(&settings, &subject, &candidates),
                Err(error) => Err(Failure::Refused(bad_settings(&error))),
            }))
        }
        other => Err(format!("a resolver has no function {other}")),
    }
}

fn arguments_of<T: DeserializeOwned>(arguments: Value) -> Result<T, String> {
    serde_json::from_value(arguments).map_err(|error| format!("the arguments do not fit: {error}"))
}

/// Through text, as the host sends them, so that both runs report the same error.
fn settings_in<T: DeserializeOwned>(settings: Value) -> serde_json::Result<T> {
    let settings = if settings.is_null() { json!({}) } else { settings };
    serde_json::from_str(&settings.to_string())
}

fn result<T: Serialize, E: Serialize>(result: Result<T, E>) -> Value {
    match result {
        Ok(answer) => json!({ "ok": answer }),
        Err(failure) => json!({ "err": failure }),
    }
}
