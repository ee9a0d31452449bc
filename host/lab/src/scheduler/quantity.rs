//! Amounts as Kubernetes writes them (`500m`, `4Gi`, `1e3`), as whole numbers.
//!
//! Both roundings are upwards, as the real quantity rounds when it is asked for a number:
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

/// Billionths: the smallest part that a quantity can name.
const NANO: i128 = 1_000_000_000;

/// A quantity in whole units. `None` when it is no quantity.
pub(crate) fn units(text: &str) -> Option<i64> {
    rounded(text, NANO)
}

/// A quantity in thousandths, which is how CPU is counted.
pub(crate) fn thousandths(text: &str) -> Option<i64> {
    rounded(text, NANO / 1000)
}

fn rounded(text: &str, unit: i128) -> Option<i64> {
    let nano = nano(text.trim())?;
    let whole = nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0);
    Some(i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX }))
}

fn nano(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return None;
    }
    let digits: i128 = format!("0{whole}{part}").parse().ok()?;
    let scaled = digits.checked_mul(scale(suffix)?)?;
    let parts = 10_i128.checked_pow(part.len().try_into().ok()?)?;
    let value = scaled / parts + i128::from(scaled % parts != 0);
    Some(if negative { -value } else { value })
}

/// What a suffix multiplies with, in billionths.
fn scale(suffix: &str) -> Option<i128> {
    let decimal = |power: u32| NANO.checked_mul(10_i128.checked_pow(power)?);
    let binary = |steps: u32| NANO.checked_mul(1024_i128.checked_pow(steps)?);
    match suffix {
        "" => Some(NANO),
        "n" => Some(1),
        "u" => Some(1000),
        "m" => Some(NANO / 1000),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        other => {
            let power: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            match u32::try_from(power) {
                Ok(power) => decimal(power),
                // Beyond billionths there is nothing.
                Err(_) => Some(NANO / 10_i128.checked_pow(power.unsigned_abs())?).filter(|scale| *scale > 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_number("4", Some(4), Some(4000))]
    #[case::nothing("0", Some(0), Some(0))]
    #[case::thousandths("500m", Some(1), Some(500))]
    #[case::a_fraction("1.5", Some(2), Some(1500))]
    #[case::a_bare_fraction(".5", Some(1), Some(500))]
    #[case::a_billionth("1n", Some(1), Some(1))]
    #[case::binary("128Mi", Some(134_217_728), Some(134_217_728_000))]
    #[case::decimal("2k", Some(2000), Some(2_000_000))]
    #[case::exa_and_not_an_exponent("1E", Some(1_000_000_000_000_000_000), Some(i64::MAX))]
    #[case::an_exponent("1e3", Some(1000), Some(1_000_000))]
    #[case::a_negative_exponent("1e-3", Some(1), Some(1))]
    #[case::negative("-2", Some(-2), Some(-2000))]
    #[case::no_number("m", None, None)]
    #[case::two_points("1.2.3", None, None)]
    #[case::a_strange_suffix("1GB", None, None)]
    #[case::empty("", None, None)]
    fn a_quantity_is_read(#[case] text: &str, #[case] whole: Option<i64>, #[case] parts: Option<i64>) {
        assert_eq!((units(text), thousandths(text)), (whole, parts));
    }
}
