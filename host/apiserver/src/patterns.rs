//! Regular expressions that are compiled once, however many clusters have a definition with them and however often a rule asks.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use regex::Regex;

/// Fewer than this are not worth a look at which of them are still in use.
const FEW: usize = 256;

/// What is in use, by its text.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Known {
    patterns: HashMap<String, Weak<Regex>>,
    /// How many were in use at the last look.
    in_use: usize,
}

/// A pattern, compiled anew only if nobody holds it. It is not kept here: whoever needs it again holds it.
///
/// # Errors
/// The pattern is none.
pub(crate) fn compiled(pattern: &str) -> Result<Arc<Regex>, regex::Error> {
    let known = || KNOWN.lock().expect("no holder panics");
    if let Some(compiled) = known().patterns.get(pattern).and_then(Weak::upgrade) {
        return Ok(compiled);
    }
    let compiled = Arc::new(Regex::new(pattern)?);
    let mut known = known();
    if known.patterns.len() >= FEW.max(known.in_use * 2) {
        known.patterns.retain(|_, held| held.strong_count() > 0);
        known.in_use = known.patterns.len();
    }
    known
        .patterns
        .insert(pattern.to_owned(), Arc::downgrade(&compiled));
    Ok(compiled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_while_somebody_holds_it_and_no_other_is_kept() {
        let held = compiled("^held$").unwrap();
        assert!(Arc::ptr_eq(&held, &compiled("^held$").unwrap()));
        for n in 0..FEW * 3 {
            assert!(compiled(&format!("^{n}$")).unwrap().is_match(&n.to_string()));
        }
        assert!(
            KNOWN.lock().unwrap().patterns.len() <= FEW * 2,
            "{FEW} at most, and other tests' own"
        );
        assert!(Arc::ptr_eq(&held, &compiled("^held$").unwrap()));
        assert!(compiled("(").is_err());
    }
}
