//! Every enumeration, pattern, format, bound and required field of every definition, broken one at a time in an object that sets all fields.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Value, json};

use super::cases::sheets;
use super::site::{Refusal, Site};

/// One thing that is broken: where in the object, what is put there, and where the server must point.
#[derive(Debug)]
struct Break {
    title: String,
    pointer: String,
    value: Option<Value>,
    field: String,
}

/// Breaks everything and returns what was said to each.
pub(super) async fn run(site: &Site) -> BTreeMap<String, Vec<Refusal>> {
    let mut said = BTreeMap::new();
    for (definition, sheet) in sheets() {
        let (mut wanted, mut broken) = (BTreeSet::new(), BTreeSet::new());
        for full in &sheet.full {
            let mut breaks = Vec::new();
            for part in ["spec", "status"] {
                let schema = &definition.schema["properties"][part];
                let at = Place {
                    pointer: format!("/{part}"),
                    field: part.to_owned(),
                    schema_path: part.to_owned(),
                };
                collect(schema, full.get(part), &at, &mut breaks, &mut wanted, &mut broken);
            }
            let created = site.create(&definition, full, true).await;
            assert_eq!(created.code, 201, "{}: {}", site.name, created.body);
            assert!(
                created.warnings.is_empty(),
                "{}: {:?}",
                site.name,
                created.warnings
            );
            unchanged(
                &full["spec"],
                &created.body["spec"],
                &format!("{}: {} spec", site.name, sheet.kind),
            );
            let (of_status, of_spec): (Vec<_>, Vec<_>) = breaks
                .into_iter()
                .partition(|one| one.field.starts_with("status"));
            for one in of_spec {
                let answer = site.create(&definition, &one.applied(full), true).await;
                one.judge(site, &sheet.kind, answer.code, answer.causes(), &mut said);
            }
            let live = site.create(&definition, full, false).await;
            assert_eq!(live.code, 201, "{}: {}", site.name, live.body);
            let mut current = full.clone();
            current["metadata"]["resourceVersion"] = live.body["metadata"]["resourceVersion"].clone();
            let whole = site.replace(&definition, &current, true).await;
            assert_eq!(whole.code, 200, "{}: {}", site.name, whole.body);
            unchanged(
                &full["status"],
                &whole.body["status"],
                &format!("{}: {} status", site.name, sheet.kind),
            );
            current["metadata"]["resourceVersion"] = whole.body["metadata"]["resourceVersion"].clone();
            for one in of_status {
                let answer = site.replace(&definition, &one.applied(&current), true).await;
                one.judge(site, &sheet.kind, answer.code, answer.causes(), &mut said);
            }
            site.delete(&definition, full["metadata"]["name"].as_str().unwrap())
                .await;
        }
        let missing: Vec<_> = wanted.difference(&broken).collect();
        assert!(missing.is_empty(), "no full {} sets {missing:?}", sheet.kind);
    }
    said
}

/// All that was sent came back, and nothing else.
fn unchanged(sent: &Value, came: &Value, what: &str) {
    assert_eq!(sent, came, "{what} is not what was sent");
}

impl Break {
    fn applied(&self, full: &Value) -> Value {
        let mut object = full.clone();
        match &self.value {
            Some(value) => *object.pointer_mut(&self.pointer).unwrap() = value.clone(),
            None => {
                let (parent, name) = self.pointer.rsplit_once('/').unwrap();
                object
                    .pointer_mut(parent)
                    .unwrap()
                    .as_object_mut()
                    .unwrap()
                    .remove(name);
            }
        }
        object
    }

    fn judge(
        &self,
        site: &Site,
        kind: &str,
        code: u16,
        causes: Vec<Refusal>,
        said: &mut BTreeMap<String, Vec<Refusal>>,
    ) {
        let told = causes.iter().any(|cause| cause.field == self.field);
        assert!(
            code == 422 && told,
            "{}: {kind} {}: {code} {causes:?}",
            site.name,
            self.title
        );
        said.insert(format!("{kind}: broken {}", self.title), causes);
    }
}

/// Where in an object a schema applies.
#[derive(Clone, Debug)]
struct Place {
    pointer: String,
    field: String,
    schema_path: String,
}

impl Place {
    fn below(&self, pointer: &str, field: &str, schema: &str) -> Self {
        Self {
            pointer: format!(
                "{}/{}",
                self.pointer,
                pointer.replace('~', "~0").replace('/', "~1")
            ),
            field: format!("{}{field}", self.field),
            schema_path: format!("{}{schema}", self.schema_path),
        }
    }
}

fn collect(
    schema: &Value,
    value: Option<&Value>,
    at: &Place,
    breaks: &mut Vec<Break>,
    wanted: &mut BTreeSet<String>,
    broken: &mut BTreeSet<String>,
) {
    let bad = bad_values(schema, value);
    if !bad.is_empty() || schema["type"] != "object" {
        wanted.insert(at.schema_path.clone());
    }
    if value.is_some() {
        broken.insert(at.schema_path.clone());
        for (check, bad) in bad {
            breaks.push(Break {
                title: format!("{check} of {}", at.schema_path),
                pointer: at.pointer.clone(),
                value: Some(bad),
                field: at.field.clone(),
            });
        }
    }
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap())
    {
        if value.is_some() {
            let at = at.below(name, &format!(".{name}"), &format!(".{name}"));
            breaks.push(Break {
                title: format!("required {}", at.schema_path),
                pointer: at.pointer,
                value: None,
                field: at.field,
            });
        }
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        let next = at.below(name, &format!(".{name}"), &format!(".{name}"));
        collect(
            below,
            value.and_then(|value| value.get(name)),
            &next,
            breaks,
            wanted,
            broken,
        );
    }
    if let Some(items) = schema.get("items") {
        let first = value.and_then(|value| value.get(0));
        collect(items, first, &at.below("0", "[0]", "[]"), breaks, wanted, broken);
    }
    if let Some(values) = schema
        .get("additionalProperties")
        .filter(|values| values.is_object())
    {
        let first = value.and_then(Value::as_object).and_then(|map| map.iter().next());
        let key = first.map(|(key, _)| key.as_str()).unwrap_or_default();
        let next = at.below(key, &format!(".{key}"), ".*");
        collect(
            values,
            first.map(|(_, value)| value),
            &next,
            breaks,
            wanted,
            broken,
        );
    }
}

/// A value that breaks each check of a node.
fn bad_values(schema: &Value, value: Option<&Value>) -> Vec<(&'static str, Value)> {
    let mut bad = Vec::new();
    // Bounds of numbers are written as fractions.
    let number = |name: &str| {
        #[expect(clippy::cast_possible_truncation, reason = "the bounds are small and whole")]
        schema[name].as_f64().map(|bound| bound as i64)
    };
    if schema["enum"].is_array() {
        bad.push(("enum", json!("no such word")));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let pattern = Regex::new(pattern).unwrap();
        let candidate = ["no such: word!", "!"]
            .into_iter()
            .find(|text| !pattern.is_match(text))
            .unwrap();
        bad.push(("pattern", json!(candidate)));
    }
    if schema["format"] == "date-time" {
        bad.push(("format", json!("yesterday")));
    }
    if let Some(most) = number("maxLength") {
        bad.push(("maxLength", json!("a".repeat(usize::try_from(most).unwrap() + 1))));
    }
    if number("minLength").is_some() {
        bad.push(("minLength", json!("")));
    }
    if let Some(least) = number("minimum") {
        bad.push(("minimum", json!(least - 1)));
    }
    let (element, map) = (
        value.and_then(|value| value.get(0)),
        value.and_then(Value::as_object),
    );
    if let (Some(most), Some(element)) = (number("maxItems"), element) {
        let keys: Vec<_> = schema["x-kubernetes-list-map-keys"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let many: Vec<Value> = (0..=most)
            .map(|index| {
                let mut one = element.clone();
                // A key with an enumeration stays; another of the keys tells the elements apart.
                if let Some(key) = keys.first() {
                    one[key.as_str().unwrap()] = json!(format!("a{index}"));
                }
                one
            })
            .collect();
        bad.push(("maxItems", json!(many)));
    }
    if let (Some(most), Some((_, one))) = (number("maxProperties"), map.and_then(|map| map.iter().next())) {
        let many: serde_json::Map<String, Value> = (0..=most)
            .map(|index| (format!("a{index}"), one.clone()))
            .collect();
        bad.push(("maxProperties", Value::Object(many)));
    }
    bad
}
