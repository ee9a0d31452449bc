//! What was applied before, as kubectl keeps it on the object, and what a file changed since.

use serde_json::{Map, Value};

/// What kubectl writes there, so that a later `kubectl apply` finds what was applied before.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The record of an object, letter by letter as kubectl writes it: else its next apply would say `configured`.
///
/// # Errors
/// Where the object is no JSON object.
pub(super) fn text(object: &mut Value) -> anyhow::Result<String> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let metadata = metadata.ok_or_else(|| anyhow::anyhow!("metadata is no mapping"))?;
    let annotations = metadata
        .entry("annotations")
        .or_insert_with(|| Value::Object(Map::new()));
    match annotations {
        Value::Object(annotations) => drop(annotations.remove(LAST_APPLIED)),
        Value::Null => *annotations = Value::Object(Map::new()),
        _ => anyhow::bail!("metadata.annotations is no mapping"),
    }
    // Go's encoder writes these letters so, and ends with a new line.
    let text = serde_json::to_string(&sorted(object))?;
    let text = text
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026");
    Ok(format!(
        "{}\n",
        text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
    ))
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            Value::Object(
                keys.into_iter()
                    .map(|key| (key.clone(), sorted(&fields[key])))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// The merge patch that makes what was known what is wanted; none if they are the same.
pub(super) fn changes(known: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (known, wanted) else {
        return (known != wanted).then(|| wanted.clone());
    };
    let mut change = Map::new();
    for (key, value) in after {
        if let Some(part) = changes(before.get(key).unwrap_or(&Value::Null), value) {
            change.insert(key.clone(), part);
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        change.insert(key.clone(), Value::Null);
    }
    (!change.is_empty()).then(|| Value::Object(change))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_record_is_what_kubectl_would_write() {
        let mut object = json!({"kind": "A", "apiVersion": "v1", "spec": {"b": "x<y & z", "a": 1}, "metadata": {"name": "one"}});
        assert_eq!(
            text(&mut object).unwrap(),
            "{\"apiVersion\":\"v1\",\"kind\":\"A\",\"metadata\":{\"annotations\":{},\"name\":\"one\"},\"spec\":{\"a\":1,\"b\":\"x\\u003cy \\u0026 z\"}}\n"
        );
    }

    #[test]
    fn only_what_changed_in_the_file_is_sent() {
        let known =
            json!({"spec": {"online": false, "bmc": {"address": "a", "old": 1}}, "metadata": {"name": "h"}});
        assert_eq!(changes(&known, &known), None);
        let mut wanted = known.clone();
        wanted["spec"]["bmc"] = json!({"address": "b"});
        assert_eq!(
            changes(&known, &wanted),
            Some(json!({"spec": {"bmc": {"address": "b", "old": null}}}))
        );
    }

    #[test]
    fn of_an_object_that_nobody_applied_before_all_is_sent() {
        let wanted = json!({"spec": {"a": 1}});
        assert_eq!(changes(&Value::Null, &wanted), Some(wanted));
    }
}
