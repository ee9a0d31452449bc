//! Good and bad objects of every kind, from `cases/*.yaml`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::site::{Definition, Refusal, Site, children};

/// One file: a kind, objects of it that set every field, and what becomes of changes of the first of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sheet {
    pub(crate) kind: String,
    /// Good objects that together set every field.
    pub(crate) full: Vec<Value>,
    pub(crate) cases: Vec<Case>,
}

/// A change and what the server says to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Which of the full objects it starts from.
    #[serde(default)]
    full: usize,
    /// Merged into the full object; makes the case an update of what comes out.
    old: Option<Value>,
    /// Merged into the old object, or else into the full one.
    new: Value,
    /// Whether the status is written.
    #[serde(default)]
    status: bool,
    /// Whether the old object has been told of: its status stands when it is updated.
    #[serde(default)]
    told: bool,
    /// Field and a part of the message of every cause; none where it is accepted.
    #[serde(default)]
    refused: Vec<(String, String)>,
}

impl Case {
    pub(crate) fn is_create(&self) -> bool {
        self.old.is_none()
    }

    pub(crate) fn is_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    pub(crate) fn of_status(&self) -> bool {
        self.status
    }

    /// The object before, and the object that is sent.
    pub(crate) fn objects(&self, sheet: &Sheet) -> (Value, Value) {
        let mut old = sheet.full[self.full].clone();
        if let Some(change) = &self.old {
            json_patch::merge(&mut old, change);
        }
        let mut new = old.clone();
        json_patch::merge(&mut new, &self.new);
        (old, new)
    }
}

/// Every sheet, with its definition.
pub(crate) fn sheets() -> Vec<(Definition, Sheet)> {
    let mut all = Definition::all();
    let mut found = Vec::new();
    let folder = crate::harness::root().join("tests/definitions/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let sheet: Sheet =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let at = all.iter().position(|one| one.kind == sheet.kind).unwrap();
        found.push((all.remove(at), sheet));
    }
    assert!(all.is_empty(), "without cases: {all:?}");
    found
}

/// Runs every case and returns what was said to each.
pub(super) async fn run(site: &Site) -> BTreeMap<String, Vec<Refusal>> {
    let mut said = BTreeMap::new();
    let mut wrong = Vec::new();
    for (definition, sheet) in sheets() {
        for case in &sheet.cases {
            let title = format!("{}: {}", sheet.kind, case.name);
            let (code, causes) = one(site, &definition, &sheet, case).await;
            if let Some(why) = unexpected(case, code, &causes) {
                wrong.push(format!("{title}: {why}"));
            }
            assert!(
                said.insert(title.clone(), causes).is_none(),
                "{title} stands there twice"
            );
        }
    }
    assert!(wrong.is_empty(), "{} server:\n{}", site.name, wrong.join("\n"));
    said
}

async fn one(site: &Site, definition: &Definition, sheet: &Sheet, case: &Case) -> (u16, Vec<Refusal>) {
    let (old, new) = case.objects(sheet);
    if case.old.is_none() && !case.status {
        let answer = site.create(definition, &new, true).await;
        return (answer.code, answer.causes());
    }
    let name = old["metadata"]["name"].as_str().unwrap();
    let mut live = site.create(definition, &old, false).await;
    assert_eq!(live.code, 201, "{}: {}: {}", site.name, case.name, live.body);
    if case.status || case.told {
        let mut object = old.clone();
        object["metadata"]["resourceVersion"] = live.body["metadata"]["resourceVersion"].clone();
        live = site.replace(definition, &object, true).await;
        assert_eq!(live.code, 200, "{}: {}: {}", site.name, case.name, live.body);
    }
    let mut object = new;
    object["metadata"]["resourceVersion"] = live.body["metadata"]["resourceVersion"].clone();
    let answer = site.replace(definition, &object, case.status).await;
    site.delete(definition, name).await;
    (answer.code, answer.causes())
}

fn unexpected(case: &Case, code: u16, causes: &[Refusal]) -> Option<String> {
    if case.refused.is_empty() {
        return (code >= 300).then(|| format!("{code}, not accepted: {causes:?}"));
    }
    // Rules are not looked at where the schema alone says no; the server tells so with a cause of its own.
    let told: Vec<_> = causes
        .iter()
        .filter(|cause| !cause.message.contains("some validation rules were not checked"))
        .collect();
    let fits = |cause: &Refusal| {
        case.refused
            .iter()
            .any(|(field, message)| *field == cause.field && cause.message.contains(message.as_str()))
    };
    let all = told.len() == case.refused.len() && told.iter().all(|cause| fits(cause));
    (code != 422 || !all).then(|| format!("{code}, not refused for {:?} but: {told:?}", case.refused))
}

/// Where a rule is told, and what it says.
type Told = (String, String, String);

/// Every rule of every definition trips in some case.
pub(super) fn every_rule_was_tripped(said: &BTreeMap<String, Vec<Refusal>>) {
    let mut rules = BTreeSet::new();
    for definition in Definition::all() {
        let mut schema = definition.schema.clone();
        collect(&definition.kind, &mut schema, "", &mut rules);
    }
    assert!(rules.len() > 40, "{rules:?}");
    let number = regex::Regex::new(r"\[\d+\]").unwrap();
    let mut tripped: BTreeSet<Told> = BTreeSet::new();
    for (title, causes) in said {
        let kind = title.split(':').next().unwrap();
        for cause in causes {
            let field = number.replace_all(&cause.field, "[]").replace("<nil>", "");
            let message = cause
                .message
                .rsplit_once("\": ")
                .map_or(cause.message.as_str(), |(_, said)| said);
            let message = message.strip_prefix("Invalid value: ").unwrap_or(message);
            tripped.insert((kind.to_owned(), field, message.to_owned()));
        }
    }
    let silent: Vec<_> = rules
        .iter()
        .filter(|(kind, field, message)| {
            !tripped.iter().any(|(known, place, said)| {
                known == kind && place == field && said.contains(message.as_str())
            })
        })
        .collect();
    assert!(silent.is_empty(), "rules that no case trips: {silent:#?}");
}

fn collect(kind: &str, schema: &mut Value, path: &str, rules: &mut BTreeSet<Told>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let below = rule["fieldPath"].as_str().unwrap_or_default();
        let field = format!("{path}{below}").trim_start_matches('.').to_owned();
        rules.insert((
            kind.to_owned(),
            field,
            rule["message"].as_str().unwrap().to_owned(),
        ));
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, child) in properties {
            collect(kind, child, &format!("{path}.{name}"), rules);
        }
    }
    if let Some(items) = schema.get_mut("items") {
        collect(kind, items, &format!("{path}[]"), rules);
    }
    if let Some(values) = schema
        .get_mut("additionalProperties")
        .filter(|values| values.is_object())
    {
        assert!(
            children(values).is_empty() && values["x-kubernetes-validations"] == json!(null),
            "rules on values of a map: {path}"
        );
    }
}
