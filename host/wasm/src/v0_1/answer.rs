//! Answers of guests, checked: sizes, depths, names. What breaks the contract is named by its field.

use serde_json::Value;

use crate::text;

/// Depth of JSON that is taken.
const DEPTH: usize = 64;

/// Entries of a list that is taken.
const ENTRIES: usize = 1_024;

/// How an answer breaks the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) field: String,
    pub(crate) what: String,
}

pub(crate) type Checked<T> = Result<T, Breach>;

pub(crate) fn breach<T>(field: &str, what: impl Into<String>) -> Checked<T> {
    Err(Breach {
        field: field.to_owned(),
        what: what.into(),
    })
}

/// JSON text that must be an object.
pub(crate) fn object(field: &str, text: &str) -> Checked<Value> {
    if nesting(text) > DEPTH {
        return breach(field, format!("is nested deeper than {DEPTH}"));
    }
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => breach(field, "is JSON but no object"),
        Err(error) => breach(field, format!("is not JSON: {error}")),
    }
}

/// The same, where an empty text stands for an empty object.
pub(crate) fn object_or_empty(field: &str, text: &str) -> Checked<Value> {
    if text.is_empty() {
        Ok(Value::Object(serde_json::Map::new()))
    } else {
        object(field, text)
    }
}

/// A name, a key, a version: something short that people and servers read.
pub(crate) fn plain(field: &str, value: String, most: usize) -> Checked<String> {
    if value.len() > most {
        return breach(
            field,
            format!("has {} bytes, at most {most} are taken", value.len()),
        );
    }
    if !text::is_plain(&value, most) {
        return breach(field, "contains control characters");
    }
    Ok(value)
}

/// The same, where it must say something.
pub(crate) fn named(field: &str, value: String, most: usize) -> Checked<String> {
    if value.is_empty() {
        breach(field, "is empty")
    } else {
        plain(field, value, most)
    }
}

/// Each entry of a list, with its place as the field.
pub(crate) fn each<T, U>(field: &str, list: Vec<T>, one: impl Fn(&str, T) -> Checked<U>) -> Checked<Vec<U>> {
    if list.len() > ENTRIES {
        return breach(
            field,
            format!("has {} entries, at most {ENTRIES} are taken", list.len()),
        );
    }
    list.into_iter()
        .enumerate()
        .map(|(at, item)| one(&format!("{field}[{at}]"), item))
        .collect()
}

/// How deep a text would nest, whether it is JSON or not; the parser is only shown what is flat enough.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::not_json("{", "is not JSON")]
    #[case::trailing("{} {}", "is not JSON")]
    #[case::a_list("[]", "is JSON but no object")]
    #[case::too_deep(&format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65)), "is nested deeper than 64")]
    #[case::bomb(&"[".repeat(1_000_000), "is nested deeper than 64")]
    fn bad_json_is_a_breach_that_names_its_field(#[case] text: &str, #[case] what: &str) {
        let breach = object("owned[3]", text).unwrap_err();
        assert_eq!(breach.field, "owned[3]");
        assert!(breach.what.starts_with(what), "{}", breach.what);
    }

    #[test]
    fn brackets_in_strings_are_no_depth() {
        let text = format!("{{\"a\": \"{}\\\"{{\"}}", "[".repeat(1_000));
        assert!(object("f", &text).is_ok());
    }

    #[test]
    fn a_name_with_control_characters_or_without_end_is_a_breach() {
        assert!(plain("name", "a\nb".to_owned(), 253).is_err());
        assert!(plain("name", "a\u{202e}b".to_owned(), 253).is_err());
        assert!(plain("name", "a".repeat(254), 253).is_err());
        assert!(named("name", String::new(), 253).is_err());
        assert_eq!(named("name", "rack1-3".to_owned(), 253), Ok("rack1-3".to_owned()));
    }
}
