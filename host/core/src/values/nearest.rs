//! Which known word somebody may have meant.

/// The known word with the fewest edits to the written one, if they are few enough to be a slip.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = written.to_lowercase();
    let slip = (lower.chars().count() / 3).clamp(1, 3);
    known
        .map(|word| (edits(&lower, &word.to_lowercase()), word))
        .filter(|(edits, _)| *edits <= slip)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, word)| word)
}

/// Edits from one word to another: insert, delete, replace, and swap of neighbours.
fn edits(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    // Three rows suffice: a swap looks two rows back.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (row, a) in from.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, b) in to.iter().enumerate() {
            let replaced = last[column] + usize::from(a != b);
            let mut best = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            if row > 0 && column > 0 && *a == to[column - 1] && from[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_strange_word_finds_none() {
        let known = ["nodeTypeSelector", "nodeLabels", "name", "quantity", "taints"];
        for (written, meant) in [
            ("nodeTypeSelectr", Some("nodeTypeSelector")),
            ("nodetypeselector", Some("nodeTypeSelector")),
            ("quanitty", Some("quantity")),
            ("taint", Some("taints")),
            ("nmae", Some("name")),
            ("replicas", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, known.into_iter()), meant, "{written}");
        }
    }
}
