//! What a server answered, less what no two servers can have in common.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// Values that are the same thing on both servers under one name: `$uid`.
pub(crate) type Names = BTreeMap<String, String>;

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// What the case says.
    pub(crate) expected: Option<u16>,
    /// Status, or exit code.
    pub(crate) status: u16,
    /// `{status, headers, body}`, masked.
    pub(crate) shown: Value,
}

static UID: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"));
static TIME: LazyLock<Regex> = LazyLock::new(|| pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"));
static DATE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"));
static AGE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(<invalid>|\b(\d+h)?(\d+m)?\d+s\b)"));
/// An age that changes at midnight; alone, since uids hold such letters too.
static DAYS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(^|\s)\d+[dy](\d+[dh])?(\s|$)"));
static DIGEST: LazyLock<Regex> = LazyLock::new(|| pattern("SHA256=[0-9a-f]{64}"));
static STAMP: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4}"));
static COUNTED: LazyLock<Regex> = LazyLock::new(|| pattern(r"(Resource Version: +)\d+"));
static NUMBER: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b\d+\b"));
static PLACE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(https://127\.0\.0\.1:\d+)?(/clusters/[a-z0-9-]+)?"));
static GAP: LazyLock<Regex> = LazyLock::new(|| pattern(r"  +"));
static FILE: LazyLock<Regex> = LazyLock::new(|| pattern(r"/tmp/[A-Za-z0-9./_-]+"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of the tests")
}

/// Puts values in the place of `$name`.
pub(crate) fn fill(text: &str, names: &Names) -> String {
    // Longest first: $ns must not eat the begin of $nsx.
    let mut order: Vec<_> = names.iter().collect();
    order.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    order.into_iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${name}"), value)
    })
}

/// [`fill`] for all texts in a value.
pub(crate) fn fill_value(value: &Value, names: &Names) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, names)),
        Value::Array(items) => items.iter().map(|item| fill_value(item, names)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (fill(key, names), fill_value(value, names)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Masks what differs between any two servers.
pub(crate) fn mask(value: &Value, names: &Names) -> Value {
    if value["reason"] == "Invalid" && value["details"]["causes"].is_array() {
        return mask_fields(&unordered(value), names);
    }
    mask_fields(value, names)
}

/// The real server finds what is wrong in any order, and some of it twice.
fn unordered(status: &Value) -> Value {
    let mut status = status.clone();
    let mut causes = status["details"]["causes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    causes.sort_by_key(ToString::to_string);
    causes.dedup();
    if let Some((head, _)) = status["message"]
        .as_str()
        .and_then(|message| message.split_once(" is invalid: "))
    {
        status["message"] = format!("{head} is invalid: (causes)").into();
    }
    status["details"]["causes"] = causes.into();
    status
}

fn mask_fields(value: &Value, names: &Names) -> Value {
    match value {
        Value::String(text) => Value::String(mask_text(text, names)),
        Value::Array(items) => items.iter().map(|item| mask(item, names)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let masked = match (key.as_str(), value) {
                    ("resourceVersion", Value::String(text)) if is_number(text) => "(version)".into(),
                    ("continue", Value::String(text)) if !text.is_empty() => "(token)".into(),
                    // An age in a cell of a table.
                    ("cells", Value::Array(cells)) => {
                        cells.iter().map(|cell| mask_cell(cell, names)).collect()
                    }
                    ("managedFields", Value::Array(entries)) => {
                        // Their order is that of their times, and two may fall into one second or not.
                        let mut entries: Vec<Value> =
                            entries.iter().map(|entry| mask(entry, names)).collect();
                        entries.sort_by_key(|entry| {
                            format!(
                                "{} {} {}",
                                entry["manager"], entry["operation"], entry["subresource"]
                            )
                        });
                        entries.into()
                    }
                    _ => mask(value, names),
                };
                (mask_text(key, names), masked)
            })
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text != "0" && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn mask_cell(cell: &Value, names: &Names) -> Value {
    match cell {
        Value::String(text) => {
            let text = mask_text(text, names);
            let text = AGE.replace_all(&text, "(age)");
            DAYS.replace_all(&text, "$1(age)$3").into_owned().into()
        }
        other => mask(other, names),
    }
}

/// Masks a text: kept values get their names back.
pub(crate) fn mask_text(text: &str, names: &Names) -> String {
    let mut text = text.to_owned();
    let is_given = |name: &str| matches!(name, "ns" | "core" | "crds");
    for (name, value) in names
        .iter()
        .filter(|(name, value)| !is_given(name) && value.len() > 4)
    {
        text = text.replace(value.as_str(), &format!("${name}"));
    }
    let text = UID.replace_all(&text, "(uid)");
    let text = TIME.replace_all(&text, "(time)");
    let text = DIGEST.replace_all(&text, "SHA256=(digest)");
    let text = PLACE.replace_all(&text, "");
    if ["resource version", "resourceVersion", "ResourceVersion"]
        .iter()
        .any(|word| text.contains(word))
    {
        return NUMBER.replace_all(&text, "(number)").into_owned();
    }
    text.into_owned()
}

/// Masks what a command printed: ages, dates and the widths of columns.
pub(crate) fn mask_output(text: &str, names: &Names) -> Value {
    let lines = text.lines().map(|line| {
        let line = DATE.replace_all(line, "(date)");
        let line = STAMP.replace_all(&line, "(date)");
        let line = COUNTED.replace_all(&line, "$1(number)");
        let line = FILE.replace_all(&line, "(file)");
        let line = AGE.replace_all(&line, "(age)");
        let line = DAYS.replace_all(&line, "$1(age)$3");
        let line = GAP.replace_all(&line, "  ");
        Value::String(mask_text(line.trim_end(), names))
    });
    lines.collect()
}

/// The places where two values differ, each with what either side has.
pub(crate) fn differences(at: &str, ours: &Value, real: &Value, found: &mut Vec<Difference>) {
    match (ours, real) {
        (Value::Object(one), Value::Object(other)) => {
            for (key, value) in one {
                let at = format!("{at}/{}", escape(key));
                differences(&at, value, other.get(key).unwrap_or(&ABSENT), found);
            }
            for (key, value) in other.iter().filter(|(key, _)| !one.contains_key(*key)) {
                let at = format!("{at}/{}", escape(key));
                differences(&at, &ABSENT, value, found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(&format!("{at}/{index}"), one, other, found);
            }
        }
        _ if ours != real => {
            found.push(Difference {
                at: at.to_owned(),
                ours: show(ours),
                real: show(real),
            });
        }
        _ => {}
    }
}

static ABSENT: LazyLock<Value> = LazyLock::new(|| Value::String("(absent)".to_owned()));

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn show(value: &Value) -> String {
    if *value == *ABSENT {
        "(absent)".to_owned()
    } else {
        value.to_string()
    }
}

/// One place where ours answers otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// Step and JSON pointer.
    pub(crate) at: String,
    /// What ours answers there.
    pub(crate) ours: String,
    /// What the real server answers there.
    pub(crate) real: String,
}

#[test]
fn kept_values_uids_times_and_versions_are_masked_and_nothing_else() {
    let names = Names::from([(
        "uid".to_owned(),
        "11111111-2222-3333-4444-555555555555".to_owned(),
    )]);
    let value = serde_json::json!({
        "uid": "11111111-2222-3333-4444-555555555555",
        "other": "aaaaaaaa-2222-3333-4444-555555555555",
        "resourceVersion": "17",
        "zero": {"resourceVersion": "0"},
        "at": "2026-01-02T03:04:05Z",
        "message": "stays 17",
    });
    let expected = serde_json::json!({
        "uid": "$uid", "other": "(uid)", "resourceVersion": "(version)", "zero": {"resourceVersion": "0"},
        "at": "(time)", "message": "stays 17",
    });
    assert_eq!(mask(&value, &names), expected);
}

#[test]
fn ages_in_days_are_masked_and_uids_are_left_whole() {
    let masked = mask_output(
        "332d  Warning  ec66d362-9534-4d45-883d-ca912bc7a98c\n2y12d",
        &Names::new(),
    );
    assert_eq!(masked, serde_json::json!(["(age)  Warning  (uid)", "(age)"]));
}

#[test]
fn a_difference_names_its_place_and_both_sides() {
    let (ours, real) = (
        serde_json::json!({"a": {"b/c": [1, 2]}, "x": 1}),
        serde_json::json!({"a": {"b/c": [1, 3]}}),
    );
    let mut found = Vec::new();
    differences("", &ours, &real, &mut found);
    let told: Vec<_> = found
        .iter()
        .map(|one| format!("{} {} {}", one.at, one.ours, one.real))
        .collect();
    assert_eq!(told, ["/a/b~1c/1 2 3", "/x 1 (absent)"]);
}
