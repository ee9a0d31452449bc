//! YAML of people who are not trusted, as a tree: bounded in size, depth, nodes, anchors and aliases before anything is built from it.

use serde_json::Value;

/// Most bytes that are read.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// Deepest nesting that is read.
pub(crate) const MAX_DEPTH: usize = 64;

/// Why a text is no tree.
#[derive(Debug)]
pub(crate) struct Broken {
    /// What the parser says; it may hold a piece of the text.
    pub(crate) told: String,
    /// The same without any of the text, for texts that hold secrets.
    pub(crate) bare: String,
}

/// The tree of one document; nothing but blanks is `null`.
pub(crate) fn tree(text: &str) -> Result<Value, Broken> {
    let both = |message: String| Broken {
        told: message.clone(),
        bare: message,
    };
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes are too many, at most {MAX_BYTES} are read", text.len());
        return Err(both(message));
    }
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
            max_events: 100_000,
            max_nodes: 50_000,
            max_anchors: 64,
            max_aliases: 256,
            max_merge_keys: 256,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 8,
        },
        strict_booleans: true,
        emit_comments: false,
        with_snippet: false,
    };
    let tree: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().map_or_else(String::new, |at| {
            format!(", at line {} column {}", at.line(), at.column())
        });
        Broken {
            told: format!("not YAML that can be read: {}", one_line(&error.to_string())),
            bare: format!("not YAML that can be read{place}"),
        }
    })?;
    if depth(&tree) > MAX_DEPTH {
        return Err(both(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(tree)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn one_line(text: &str) -> String {
    let line: String = text
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    if line.chars().count() > 200 {
        line.chars().take(200).collect()
    } else {
        line
    }
}
