//! Whether an answer is what a case expects, and where it is not.

use serde_json::Value;

use super::Expectation;

/// Every place where `answer` is not as expected; empty if it holds.
pub fn differences(expectation: &Expectation, answer: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match expectation {
        Expectation::Contains(expected) => compare(expected, answer, false, "", &mut found),
        Expectation::Equals(expected) => compare(expected, answer, true, "", &mut found),
    }
    found
}

fn compare(expected: &Value, answer: &Value, exact: bool, path: &str, found: &mut Vec<String>) {
    // JSON text in a `string` of wit/ may be written as what it says.
    if let (Value::Object(_) | Value::Array(_), Value::String(text)) = (expected, answer)
        && let Ok(parsed) = serde_json::from_str::<Value>(text)
    {
        return compare(expected, &parsed, exact, path, found);
    }
    match (expected, answer) {
        (Value::Object(wanted), Value::Object(given)) => {
            for (key, wanted) in wanted {
                let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                match given.get(key) {
                    Some(given) => compare(wanted, given, exact, &path, found),
                    None => found.push(format!("{path}: expected {wanted}, there is nothing")),
                }
            }
            if exact {
                for (key, given) in given.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
                    found.push(format!("{path}/{key}: expected nothing, there is {given}"));
                }
            }
        }
        (Value::Array(wanted), Value::Array(given)) if wanted.len() == given.len() => {
            for (index, (wanted, given)) in wanted.iter().zip(given).enumerate() {
                compare(wanted, given, exact, &format!("{path}/{index}"), found);
            }
        }
        _ if expected == answer => {}
        _ => found.push(format!("{path}: expected {expected}, there is {answer}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn contained(expected: Value, answer: Value) -> Vec<String> {
        differences(&Expectation::Contains(expected), &answer)
    }

    #[test]
    fn a_subset_holds_and_keys_that_nobody_named_are_free() {
        assert!(contained(json!({"ok": {"a": 1}}), json!({"ok": {"a": 1, "b": 2}})).is_empty());
    }

    #[test]
    fn null_means_null_and_not_absent() {
        assert_eq!(
            contained(json!({"image": null}), json!({})),
            ["/image: expected null, there is nothing"]
        );
        assert!(contained(json!({"image": null}), json!({"image": null})).is_empty());
    }

    #[test]
    fn json_text_compares_by_what_it_says() {
        let answer = json!({"patch": "{\"spec\": {\"online\": true, \"image\": null}}"});
        assert!(contained(json!({"patch": {"spec": {"online": true}}}), answer.clone()).is_empty());
        assert_eq!(
            contained(json!({"patch": {"spec": {"online": false}}}), answer),
            ["/patch/spec/online: expected false, there is true"]
        );
    }

    #[test]
    fn lists_have_the_same_length() {
        assert_eq!(
            contained(json!([1]), json!([1, 2])),
            [": expected [1], there is [1,2]"]
        );
    }

    #[test]
    fn equality_leaves_nothing_over() {
        let found = differences(&Expectation::Equals(json!({"a": 1})), &json!({"a": 1, "b": 2}));
        assert_eq!(found, ["/b: expected nothing, there is 2"]);
    }
}
