//! Names that are the same each time: machine ids, serial numbers, request names.

use sha2::{Digest, Sha256};

/// A number of hexadecimal digits (at most 64) that stand for `parts`.
pub(crate) fn digest(parts: &[&str], digits: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut text: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(digits);
    text
}

/// A UUID that stands for `parts`.
pub(crate) fn uuid(parts: &[&str]) -> String {
    let hex = digest(parts, 32);
    // Version 8 and variant 1: made by a rule of one's own.
    format!(
        "{}-{}-8{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_same_parts_give_the_same_uuid_and_others_another() {
        let one = super::uuid(&["rack", "server1"]);
        assert_eq!(one, super::uuid(&["rack", "server1"]));
        assert_ne!(one, super::uuid(&["racks", "erver1"]));
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    }
}
