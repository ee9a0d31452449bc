//! Objects as YAML that people read: one document each, each after its own line of dashes.

use anyhow::Context;
use serde_json::Value;

/// A stream of documents.
pub(super) fn stream(objects: &[Value]) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&one(object)?);
    }
    Ok(text)
}

/// One document, ended by a line break.
pub(super) fn one(object: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(object).context("an object cannot be written as YAML")?;
    Ok(format!("{}\n", text.trim_end()))
}
