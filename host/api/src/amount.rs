//! Amounts of resources as people write them: `4`, `"500m"`, `64Gi`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// A quantity that is not negative.
pub(crate) const UNSIGNED: &str = r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Resource name → amount.
pub type ResourceList = BTreeMap<String, Amount>;

/// A Kubernetes quantity, kept as written. A bare number in YAML is accepted, as the API server accepts it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Amount(pub String);

impl Amount {
    /// The value in thousandths, rounded up; `None` when it is no quantity or does not fit.
    ///
    /// Suffixes are those of Kubernetes: `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, and a decimal exponent.
    #[must_use]
    pub fn millis(&self) -> Option<i128> {
        let text = self.0.trim();
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let (scale, divisor): (i128, i128) = match suffix {
            "n" => (1, 1_000_000),
            "u" => (1, 1_000),
            "m" => (1, 1),
            "" => (1_000, 1),
            "k" => (1_000_000, 1),
            "M" => (1_000_000_000, 1),
            "G" => (1_000_000_000_000, 1),
            "T" => (1_000_000_000_000_000, 1),
            "P" => (1_000_000_000_000_000_000, 1),
            "E" => (1_000_000_000_000_000_000_000, 1),
            "Ki" => (1_000 << 10, 1),
            "Mi" => (1_000 << 20, 1),
            "Gi" => (1_000 << 30, 1),
            "Ti" => (1_000 << 40, 1),
            "Pi" => (1_000 << 50, 1),
            "Ei" => (1_000 << 60, 1),
            exponent => {
                let power: u32 = exponent
                    .strip_prefix(['e', 'E'])?
                    .parse()
                    .ok()
                    .filter(|p| *p <= 18)?;
                (1_000 * 10_i128.pow(power), 1)
            }
        };
        let negative = number.starts_with('-');
        let number = number.trim_start_matches(['+', '-']);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || whole.len() > 18 || fraction.len() > 9 {
            return None;
        }
        let ten = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let scaled = digits.checked_mul(scale)?;
        let below = ten.checked_mul(divisor)?;
        let value = scaled.div_euclid(below) + i128::from(scaled.rem_euclid(below) != 0);
        Some(if negative { -value } else { value })
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Whole(i64),
            Real(f64),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Text(text) => text,
            Written::Whole(number) => number.to_string(),
            Written::Real(number) => number.to_string(),
        }))
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, millis) in [
            ("4", 4_000),
            ("500m", 500),
            ("1.5", 1_500),
            ("1Gi", 1_073_741_824_000),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("100n", 1),
            ("-1", -1_000),
        ] {
            assert_eq!(Amount(text.into()).millis(), Some(millis), "{text}");
        }
        for text in ["", "Gi", "1x", "1e99", "one"] {
            assert_eq!(Amount(text.into()).millis(), None, "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_an_amount() {
        let list: ResourceList = serde_json::from_str(r#"{"cpu": 4, "memory": "16Gi"}"#).unwrap();
        assert_eq!(list["cpu"], Amount("4".into()));
    }
}
