//! Which of Kubernetes' tests are run, and why the others are not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// Both lists.
#[derive(Debug)]
pub(crate) struct Lists {
    /// Names of the tests that pass on both servers, one a line of `run.txt`.
    pub(crate) run: Vec<String>,
    skip: Vec<Skipped>,
}

/// Tests that are not run for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skipped {
    why: String,
    tests: Vec<String>,
}

impl Lists {
    /// Reads `run.txt` and `skip.yaml` of a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let run = text("run.txt")?.lines().map(ToOwned::to_owned).collect();
        let skip = serde_saphyr::from_str(&text("skip.yaml")?).context("skip.yaml")?;
        Ok(Self { run, skip })
    }

    /// Every name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        let skipped = self.skip.iter().flat_map(|group| &group.tests);
        self.run.iter().chain(skipped).map(String::as_str)
    }

    /// What is wrong with the lists themselves, one fault a line.
    pub(crate) fn faults(&self) -> String {
        let (mut faults, mut seen) = (String::new(), BTreeSet::new());
        for name in self.all() {
            if !name.starts_with("[sig-api-machinery] ") || name.trim() != name {
                let _ = writeln!(faults, "not the name of such a test: {name:?}");
            }
            if !seen.insert(name) {
                let _ = writeln!(faults, "listed twice: {name}");
            }
        }
        if self.run.is_empty() {
            faults.push_str("nothing is run\n");
        }
        for group in &self.skip {
            if group.why.split_whitespace().count() < 3 || group.tests.is_empty() {
                let _ = writeln!(
                    faults,
                    "a reason in words, and what it is for, are missing: {group:?}"
                );
            }
        }
        faults
    }
}
