//! Kubernetes quantities, as far as comparing needs them.

/// Thousandths of the unit. `None` for what is no quantity or negative.
pub(crate) fn parse(text: &str) -> Option<i128> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = scale(suffix)?;
    // Rounded up, as Kubernetes does with what is finer than it keeps.
    let divisor = denominator.checked_mul(10_i128.pow(u32::try_from(fraction.len()).ok()?))?;
    let product = digits.checked_mul(numerator)?.checked_mul(1000)?;
    Some(product.div_euclid(divisor) + i128::from(product.rem_euclid(divisor) != 0))
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "" => (1, 1),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let size = 10_i128
                .checked_pow(power.unsigned_abs())
                .filter(|_| power.abs() <= 18)?;
            if power < 0 { (1, size) } else { (size, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (text, thousandths) in [
            ("0", 0),
            ("4", 4_000),
            ("1500m", 1_500),
            ("1.5", 1_500),
            (".5", 500),
            ("64Gi", (64 << 30) * 1000),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("5E-1", 500),
            ("1n", 1),
        ] {
            assert_eq!(parse(text), Some(thousandths), "{text}");
        }
        for text in [
            "",
            "-1",
            "4 GB",
            "Gi",
            "1.2.3",
            "1ee3",
            "9999999999999999999",
            "1e99",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
