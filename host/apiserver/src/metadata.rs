//! Names, labels, annotations, owners and finalizers: what every object must get right.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::fault;
use crate::status::Cause;

/// Annotations of one object may hold this many bytes in all.
const ANNOTATIONS: usize = 256 * 1024;

/// One way to write a name: its pattern, its length, and how messages explain it.
struct Form {
    pattern: &'static str,
    regex: LazyLock<Regex>,
    longest: usize,
    /// What its length is counted in, for messages.
    unit: &'static str,
    explained: &'static str,
    examples: &'static [&'static str],
}

macro_rules! form {
    ($name:ident, $pattern:expr, $longest:expr, $unit:expr, $explained:expr, $examples:expr) => {
        static $name: Form = Form {
            pattern: $pattern,
            regex: LazyLock::new(|| {
                Regex::new(concat!("^(", $pattern, ")$")).expect("a constant pattern compiles")
            }),
            longest: $longest,
            unit: $unit,
            explained: $explained,
            examples: $examples,
        };
    };
}

form!(
    LABEL,
    "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    63,
    "characters",
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with \
     an alphanumeric character",
    &["my-name", "123-abc"]
);
form!(
    SUBDOMAIN,
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    253,
    "characters",
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and \
     end with an alphanumeric character",
    &["example.com"]
);
form!(
    LABEL_1035,
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    63,
    "characters",
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, \
     and end with an alphanumeric character",
    &["my-name", "abc-123"]
);
form!(
    QUALIFIED,
    "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    63,
    "bytes",
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    &["MyName", "my.name", "123-abc"]
);
form!(
    LABEL_VALUE,
    "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    63,
    "bytes",
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and \
     end with an alphanumeric character",
    &["MyValue", "my_value", "12345"]
);
form!(
    DATA_KEY,
    "[-._a-zA-Z0-9]+",
    253,
    "characters",
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    &["key.name", "KEY_NAME", "key-name"]
);

impl Form {
    fn check(&self, text: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        if text.len() > self.longest {
            wrong.push(self.too_long());
        }
        if !self.regex.is_match(text) {
            wrong.push(self.mismatch());
        }
        wrong
    }

    fn too_long(&self) -> String {
        format!("must be no more than {} {}", self.longest, self.unit)
    }

    fn mismatch(&self) -> String {
        let examples: Vec<_> = self
            .examples
            .iter()
            .map(|example| format!("'{example}'"))
            .collect();
        // Two blanks, as the real server has them.
        let examples = examples.join(",  or ");
        format!(
            "{} (e.g. {examples}, regex used for validation is '{}')",
            self.explained, self.pattern
        )
    }
}

/// What is wrong with a DNS-1123 label.
pub(crate) fn label(text: &str) -> Vec<String> {
    if text.len() <= LABEL.longest && text.contains('.') && SUBDOMAIN.regex.is_match(text) {
        return vec!["must not contain dots".into()];
    }
    LABEL.check(text)
}

/// What is wrong with a DNS-1123 subdomain, the usual form of a name.
pub(crate) fn subdomain(text: &str) -> Vec<String> {
    SUBDOMAIN.check(text)
}

/// What is wrong with a DNS-1035 label.
pub(crate) fn label_1035(text: &str) -> Vec<String> {
    LABEL_1035.check(text)
}

/// What is wrong with a name that only must fit into a path, as for roles.
pub(crate) fn path_segment(text: &str) -> Vec<String> {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let bad = ["/", "%"].into_iter().filter(|bad| text.contains(bad));
    bad.map(|bad| format!("may not contain '{bad}'")).collect()
}

/// What is wrong with the value of a label.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    LABEL_VALUE.check(text)
}

/// What is wrong with a key of a Secret or ConfigMap.
pub(crate) fn data_key(text: &str) -> Vec<String> {
    let mut wrong = DATA_KEY.check(text);
    match text {
        "." => wrong.push("must not be '.'".into()),
        ".." => wrong.push("must not be '..'".into()),
        text if text.starts_with("..") => wrong.push("must not start with '..'".into()),
        _ => {}
    }
    wrong
}

/// What is wrong with a key of a label or annotation, or with a finalizer: `name` or `prefix/name`.
pub(crate) fn qualified(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<_> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".into());
            } else {
                wrong.extend(
                    subdomain(prefix)
                        .into_iter()
                        .map(|message| format!("prefix part {message}")),
                );
            }
            name
        }
        _ => {
            let optional = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {}{optional}", QUALIFIED.mismatch())];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > QUALIFIED.longest {
        wrong.push(format!("name part {}", QUALIFIED.too_long()));
    }
    if !QUALIFIED.regex.is_match(name) {
        wrong.push(format!("name part {}", QUALIFIED.mismatch()));
    }
    wrong
}

/// Everything that is wrong with the metadata of an object. `name` judges its name.
pub(crate) fn check(object: &Value, namespaced: bool, name: fn(&str) -> Vec<String>) -> Vec<Cause> {
    let mut found = Vec::new();
    let meta = &object["metadata"];
    let text = |field: &str| meta[field].as_str().unwrap_or_default();
    if !text("generateName").is_empty() {
        // What is put behind it always ends well.
        let told = name(text("generateName").trim_end_matches(['-', '.']));
        found.extend(
            told.iter()
                .map(|told| fault::invalid("metadata.generateName", &meta["generateName"], told)),
        );
    }
    if text("name").is_empty() {
        found.push(fault::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        found.extend(
            name(text("name"))
                .iter()
                .map(|told| fault::invalid("metadata.name", &meta["name"], told)),
        );
    }
    match (namespaced, text("namespace")) {
        (true, "") => found.push(fault::required("metadata.namespace", "")),
        (true, space) => {
            let told = label(space);
            found.extend(
                told.iter()
                    .map(|told| fault::invalid("metadata.namespace", &meta["namespace"], told)),
            );
        }
        (false, "") => {}
        (false, _) => found.push(fault::forbidden("metadata.namespace", "not allowed on this type")),
    }
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        let told = qualified(key);
        found.extend(
            told.iter()
                .map(|told| fault::invalid("metadata.labels", &Value::from(key.as_str()), told)),
        );
        let told = label_value(value.as_str().unwrap_or_default());
        found.extend(
            told.iter()
                .map(|told| fault::invalid("metadata.labels", value, told)),
        );
    }
    let mut size = 0;
    for (key, value) in meta["annotations"].as_object().into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        let told = qualified(&key.to_lowercase());
        found.extend(
            told.iter()
                .map(|told| fault::invalid("metadata.annotations", &Value::from(key.as_str()), told)),
        );
    }
    if size > ANNOTATIONS {
        found.push(fault::too_long("metadata.annotations", 262_144));
    }
    owners(&meta["ownerReferences"], &mut found);
    for finalizer in meta["finalizers"].as_array().into_iter().flatten() {
        let told = qualified(finalizer.as_str().unwrap_or_default());
        found.extend(
            told.iter()
                .map(|told| fault::invalid("metadata.finalizers", finalizer, told)),
        );
    }
    found
}

fn owners(owners: &Value, found: &mut Vec<Cause>) {
    let mut controller: Option<String> = None;
    for owner in owners.as_array().into_iter().flatten() {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let version = text("apiVersion").rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            let field = "metadata.ownerReferences.apiVersion";
            found.push(fault::invalid(
                field,
                &Value::from(version),
                "version must not be empty",
            ));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                found.push(fault::invalid(path, &Value::from(""), "must not be empty"));
            }
        }
        if owner["controller"] == true {
            let name = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                found.push(fault::invalid("metadata.ownerReferences", owners, &detail));
            } else {
                controller = Some(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bad_name_is_explained_as_kubernetes_explains_it() {
        assert_eq!(
            label("Web"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
              end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert!(subdomain("a.b-c.d").is_empty());
        assert_eq!(
            subdomain(&"a".repeat(254)),
            ["must be no more than 253 characters"]
        );
    }

    #[rstest::rstest]
    #[case("app", true)]
    #[case("example.com/app", true)]
    #[case("example.com/", false)]
    #[case("/app", false)]
    #[case("a/b/c", false)]
    #[case("-x", false)]
    fn keys_are_qualified_names(#[case] key: &str, #[case] good: bool) {
        assert_eq!(qualified(key).is_empty(), good);
    }

    #[test]
    fn metadata_is_checked_part_by_part() {
        let object = json!({"metadata": {
            "name": "n", "namespace": "s", "labels": {"a b": "x", "ok": "not ok!"}, "finalizers": ["-"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "", "controller": true},
            ],
        }});
        let fields: Vec<_> = check(&object, true, subdomain)
            .into_iter()
            .map(|cause| cause.field)
            .collect();
        assert_eq!(
            fields,
            [
                "metadata.labels",
                "metadata.labels",
                "metadata.ownerReferences.uid",
                "metadata.ownerReferences",
                "metadata.finalizers",
            ]
        );
    }
}
