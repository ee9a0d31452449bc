//! Whether a provider's own part of its spec is what its driver says it must be, by the JSON Schema that the driver gave.
//!
//! The schema is a guest's text: references are refused (a few of them, nested, cost more than any limit), patterns are matched in linear time, and
//! nothing is fetched.

use jsonschema::PatternOptions;
use serde_json::Value;

use crate::seams::Reason;

/// Problems that one condition can hold.
const SHOWN: usize = 5;
/// Words that point elsewhere in a schema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Checks `config`, which stands at `path` of the provider, against the driver's schema.
///
/// # Errors
/// `ProviderSpecInvalid`, naming each place that does not fit; `DriverSchemaInvalid` where the schema itself is none.
pub fn check(schema: &Value, config: &Value, path: &str) -> Result<(), Reason> {
    if let Some(word) = reference(schema) {
        let text = format!("the driver's schema for {path} uses {word}, which is not taken from a driver");
        return Err(Reason::new("DriverSchemaInvalid", text).remedy("write the schema without references"));
    }
    let validator = jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|error| {
            Reason::new(
                "DriverSchemaInvalid",
                format!("the driver's schema for {path} is none: {error}"),
            )
        })?;
    let mut problems: Vec<String> = validator
        .iter_errors(config)
        .map(|error| format!("{}: {error}", place(path, &error.instance_path().to_string())))
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    let mut text = problems.join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    Err(Reason::new("ProviderSpecInvalid", text).remedy(format!("correct {path} of the NodeProvider")))
}

fn reference(schema: &Value) -> Option<&'static str> {
    match schema {
        Value::Object(map) => REFERENCES
            .into_iter()
            .find(|word| map.contains_key(*word))
            .or_else(|| map.values().find_map(reference)),
        Value::Array(list) => list.iter().find_map(reference),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// `/nodeTypes/0/name` below `spec.metal3` → `spec.metal3.nodeTypes[0].name`
fn place(path: &str, pointer: &str) -> String {
    pointer
        .split('/')
        .filter(|part| !part.is_empty())
        .fold(path.to_owned(), |path, part| {
            if part.chars().all(|c| c.is_ascii_digit()) {
                format!("{path}[{part}]")
            } else {
                format!("{path}.{part}")
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_does_not_fit_is_named_by_its_path() {
        let schema = json!({
            "type": "object",
            "properties": { "pools": { "type": "array", "items": { "type": "object", "properties": { "size": { "type": "integer" } } } } },
            "additionalProperties": false,
        });
        assert_eq!(
            check(
                &schema,
                &json!({ "pools": [{ "size": 1 }] }),
                "spec.driver.config"
            ),
            Ok(())
        );
        let reason = check(
            &schema,
            &json!({ "pools": [{ "size": "big" }] }),
            "spec.driver.config",
        )
        .unwrap_err();
        assert_eq!(reason.code, "ProviderSpecInvalid");
        assert!(
            reason.message.starts_with("spec.driver.config.pools[0].size: "),
            "{}",
            reason.message
        );
        let reason = check(&schema, &json!({ "pool": [] }), "spec.driver.config").unwrap_err();
        assert!(reason.message.contains("pool"), "{}", reason.message);
    }

    #[test]
    fn a_schema_that_could_cost_anything_is_refused() {
        let levels = (0..40).map(|n| {
            let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
            (format!("d{n}"), json!({ "allOf": [next.clone(), next] }))
        });
        let bomb = json!({ "$ref": "#/$defs/d0", "$defs": levels.collect::<serde_json::Map<_, _>>() });
        assert_eq!(
            check(&bomb, &json!({}), "spec.driver.config").unwrap_err().code,
            "DriverSchemaInvalid"
        );
        let slow = json!({ "properties": { "p": { "pattern": "^(a+)+$" } } });
        let text = format!("{}b", "a".repeat(5_000));
        assert_eq!(
            check(&slow, &json!({ "p": text }), "spec.x").unwrap_err().code,
            "ProviderSpecInvalid"
        );
        assert_eq!(
            check(&json!({ "type": 7 }), &json!({}), "spec.x")
                .unwrap_err()
                .code,
            "DriverSchemaInvalid"
        );
    }
}
