//! How long pods may take to leave a node: `30s`, `1h30m`, `Never`.

use std::time::Duration;

/// A termination grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// Wait for the pods, however long they take.
    Never,
    /// At most so long.
    After(Duration),
}

/// What applies where nothing is set.
const DEFAULT: Duration = Duration::from_secs(30);
/// Longest period that is read: 30 days. Longer ones are spelt `Never`.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

impl Default for Grace {
    fn default() -> Self {
        Self::After(DEFAULT)
    }
}

impl Grace {
    /// Reads `Never` or a duration of whole numbers with units `h`, `m`, `s`, `ms`, such as `1h30m`.
    ///
    /// # Errors
    /// What is wrong with the text and how to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "Never" {
            return Ok(Self::Never);
        }
        let refused = || format!("{text:?} is no duration; write it like 30s, 5m or 1h30m, or Never");
        let mut rest = text;
        let mut total = Duration::ZERO;
        if rest.is_empty() {
            return Err(refused());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refused)?;
            let number: u64 = rest[..digits].parse().map_err(|_| refused())?;
            rest = &rest[digits..];
            let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let part = match &rest[..unit] {
                "h" => number.checked_mul(3_600_000),
                "m" => number.checked_mul(60_000),
                "s" => number.checked_mul(1_000),
                "ms" => Some(number),
                _ => None,
            };
            total = total
                .checked_add(Duration::from_millis(part.ok_or_else(refused)?))
                .ok_or_else(refused)?;
            rest = &rest[unit..];
        }
        if total > LONGEST {
            return Err(format!(
                "{text:?} is longer than 30 days; write Never to wait for the pods"
            ));
        }
        Ok(Self::After(total))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("30s", 30)]
    #[case("1h30m", 5400)]
    #[case("0s", 0)]
    #[case("1000ms", 1)]
    fn a_duration_is_read(#[case] text: &str, #[case] seconds: u64) {
        assert_eq!(Grace::parse(text), Ok(Grace::After(Duration::from_secs(seconds))));
    }

    #[rstest]
    fn what_is_no_duration_is_refused(
        #[values(
            "",
            "30",
            "s",
            "30 s",
            "-1s",
            "1.5h",
            "never",
            "1d",
            "99999999999999999999s",
            "721h"
        )]
        text: &str,
    ) {
        assert!(Grace::parse(text).is_err(), "{text}");
    }

    #[test]
    fn never_is_never() {
        assert_eq!(Grace::parse("Never"), Ok(Grace::Never));
    }
}
