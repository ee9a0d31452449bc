//! The differences that `docs/conformance.md` lists, each with its reason.

use anyhow::{Result, ensure};

use super::answer::Difference;

/// A row of the table in the docs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Case: the file and the sentence.
    pub(crate) case: String,
    /// Begin of the places: number of the step and JSON pointer.
    pub(crate) at: String,
}

impl Listed {
    /// Whether a difference is meant.
    pub(crate) fn covers(&self, case: &str, difference: &Difference) -> bool {
        let mut found = difference.at.split('/');
        let covers = self
            .at
            .split('/')
            .all(|part| found.next().is_some_and(|found| part == "*" || part == found));
        covers && (self.case == "*" || self.case == case)
    }
}

/// Reads rows, where `*` stands for any case or any part of a place, like ``| `file: sentence` | `2/body/kind` | reason |``.
pub(crate) fn parse(text: &str) -> Result<Vec<Listed>> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        ensure!(
            cells.len() == 3 && !cells[2].is_empty(),
            "a row has a case, places and a reason: {line}"
        );
        let case = cells[0].trim_matches('`').to_owned();
        for at in cells[1].split(',') {
            rows.push(Listed {
                case: case.clone(),
                at: at.trim().trim_matches('`').to_owned(),
            });
        }
    }
    Ok(rows)
}

#[test]
fn a_row_covers_the_places_below_the_one_it_names() {
    let rows = parse("| case | at | why |\n|---|---|---|\n| `a: b` | `1/body/x`, `2` | reason |\n").unwrap();
    assert_eq!(rows.len(), 2);
    let place = |at: &str| Difference {
        at: at.to_owned(),
        ours: String::new(),
        real: String::new(),
    };
    assert!(rows[0].covers("a: b", &place("1/body/x/y")) && rows[1].covers("a: b", &place("2/status")));
    assert!(!rows[0].covers("a: b", &place("1/body/xy")) && !rows[0].covers("a: c", &place("1/body/x")));
    let wide = parse("| `*` | `*/body/x/*/y` | reason |\n").unwrap();
    assert!(
        wide[0].covers("any: case", &place("7/body/x/3/y/z"))
            && !wide[0].covers("any: case", &place("7/body/x/3"))
    );
    assert!(
        parse("| `a: b` | `1` | |\n").is_err(),
        "a row without a reason is none"
    );
}
