//! Custom resources: what a definition may say, what it makes of the server, and what its objects must be.

mod format;
mod lists;
mod node;
mod prune;
mod structural;
mod value;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::cel;
use crate::fault::{self, Path};
use crate::metadata;
use crate::resource::{Column, Resource, Source};
use crate::schema::{Schema, Type};
use crate::status::Cause;

pub(crate) use prune::{default, prune};

/// Whether a definition is one that this server can serve; if not, everything that is wrong with it.
pub(crate) fn check_structural(crd: &Value) -> Result<(), Vec<Cause>> {
    let found = structural::check(crd);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// What an update of a definition may not change.
pub(crate) fn check_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    let places = [
        ["spec", "group", ""],
        ["spec", "names", "plural"],
        ["spec", "names", "kind"],
        ["spec", "scope", ""],
    ];
    for place in places {
        let at = |crd: &Value| {
            place
                .iter()
                .filter(|part| !part.is_empty())
                .fold(crd.clone(), |at, part| at[*part].clone())
        };
        if at(new) != at(old) {
            let path = place.join(".");
            found.push(fault::invalid(
                path.trim_end_matches('.'),
                &at(new),
                "field is immutable",
            ));
        }
    }
    let kept = new["spec"]["versions"].as_array().into_iter().flatten();
    let kept: Vec<_> = kept.filter_map(|version| version["name"].as_str()).collect();
    let stored = old["status"]["storedVersions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    for (index, version) in stored.enumerate().filter(|(_, version)| !kept.contains(version)) {
        let detail = format!(
            "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions \
             until a storage migration ensures no data remains persisted in {version} and removes {version} from \
             status.storedVersions"
        );
        found.push(fault::invalid(
            format!("status.storedVersions[{index}]"),
            &Value::from(version),
            &detail,
        ));
    }
    found
}

/// Fills in what a definition may leave out.
pub(crate) fn default_definition(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.entry("conversion")
        .or_insert_with(|| json!({"strategy": "None"}));
    spec.entry("scope").or_insert_with(|| json!("Namespaced"));
    let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(kind) = names.get("kind").and_then(Value::as_str).map(str::to_owned) else {
        return;
    };
    if names
        .get("singular")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .is_empty()
    {
        names.insert("singular".into(), Value::from(kind.to_lowercase()));
    }
    if names
        .get("listKind")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .is_empty()
    {
        names.insert("listKind".into(), Value::from(format!("{kind}List")));
    }
}

/// What definitions made, by name and spec: clusters share them, and most changes of a definition are of its status.
static MADE: Mutex<VecDeque<(String, Vec<Resource>)>> = Mutex::new(VecDeque::new());

/// More are not kept.
const KEPT: usize = 64;

/// The resources that a definition makes: one for each served version.
pub(crate) fn resources_of(crd: &Value) -> Result<Vec<Resource>, Vec<Cause>> {
    let mut crd = crd.clone();
    default_definition(&mut crd);
    let key = format!("{}{}", crd["metadata"]["name"], crd["spec"]);
    let find = || {
        // What is in there is whole, so a poisoned lock guards nothing broken.
        let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.iter()
            .find(|(found, _)| *found == key)
            .map(|(_, resources)| resources.clone())
    };
    if let Some(found) = find() {
        return Ok(found);
    }
    check_structural(&crd)?;
    let resources = make(&crd);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.len() >= KEPT {
        made.pop_front();
    }
    made.push_back((key, resources.clone()));
    Ok(resources)
}

fn make(crd: &Value) -> Vec<Resource> {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let words = |value: &Value| {
        value
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect::<Vec<_>>()
    };
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage_version = versions
        .iter()
        .find(|version| version["storage"] == true)
        .map(|version| text(&version["name"]));
    let storage_version = storage_version.unwrap_or_default();
    let served = versions.iter().filter(|version| version["served"] == true);
    served
        .map(|version| Resource {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            storage_version: storage_version.clone(),
            kind: text(&names["kind"]),
            list_kind: text(&names["listKind"]),
            plural: text(&names["plural"]),
            singular: text(&names["singular"]),
            short_names: words(&names["shortNames"]),
            categories: words(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: !version["subresources"]["status"].is_null(),
            counts_generation: true,
            columns: columns(&version["additionalPrinterColumns"]),
            selectable: version["selectableFields"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|field| text(&field["jsonPath"]))
                .collect(),
            deprecation: deprecation(spec, version, versions),
            schema: Arc::new(whole(&version["schema"]["openAPIV3Schema"])),
            since: 0,
            custom: true,
        })
        .collect()
}

/// The warning that clients of a deprecated version get; by default it names the best version that is not.
fn deprecation(spec: &Value, version: &Value, all: &[Value]) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(said) = version["deprecationWarning"].as_str() {
        return Some(said.to_owned());
    }
    let name = |version: &Value| version["name"].as_str().unwrap_or_default().to_owned();
    let told = |version: &str| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{}/{version} {}",
            text(&spec["group"]),
            text(&spec["names"]["kind"])
        )
    };
    let own = name(version);
    let mut better: Vec<String> = all
        .iter()
        .filter(|other| other["served"] == true && other["deprecated"] != true)
        .map(name)
        .collect();
    better.sort_unstable_by(|one, other| crate::discovery::rank(one).cmp(&crate::discovery::rank(other)));
    let better = better
        .into_iter()
        .find(|other| crate::discovery::rank(other) < crate::discovery::rank(&own));
    let instead = better
        .map(|better| format!("; use {}", told(&better)))
        .unwrap_or_default();
    Some(format!("{} is deprecated{instead}", told(&own)))
}

fn columns(written: &Value) -> Vec<Column> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let column = |column: &Value| {
        let path = text(&column["jsonPath"]);
        let description = match text(&column["description"]) {
            empty if empty.is_empty() => {
                format!("Custom resource definition column (in JSONPath format): {path}")
            }
            said => said,
        };
        Column {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            format: text(&column["format"]),
            description,
            priority: column["priority"]
                .as_i64()
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or_default(),
            source: Source::Path(path),
        }
    };
    match written.as_array() {
        Some(columns) if !columns.is_empty() => columns.iter().map(column).collect(),
        _ => vec![Column {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: crate::builtin::CREATED.into(),
            priority: 0,
            source: Source::Path(".metadata.creationTimestamp".into()),
        }],
    }
}

/// The schema of a whole object: what the definition says, and what every object has.
fn whole(written: &Value) -> Schema {
    let mut schema = Schema::parse(written);
    let described = |text: &str| {
        Arc::new(Schema {
            kind: Type::String,
            description: Some(text.into()),
            ..Schema::default()
        })
    };
    let field = |name: &str, text: &str| {
        schema
            .properties
            .get(name)
            .cloned()
            .unwrap_or_else(|| described(text))
    };
    let version = field("apiVersion", crate::builtin::API_VERSION);
    let kind = field("kind", crate::builtin::KIND);
    let mut meta = crate::builtin::object_meta().as_ref().clone();
    if let Some(own) = schema.properties.get("metadata") {
        for (name, check) in &own.properties {
            meta.properties.insert(name.clone(), Arc::clone(check));
        }
    }
    schema.properties.insert("apiVersion".into(), version);
    schema.properties.insert("kind".into(), kind);
    schema.properties.insert("metadata".into(), Arc::new(meta));
    schema.seal();
    schema
}

/// Everything that is wrong with an object, new or replacing `old`. Also for built-in kinds.
pub(crate) fn validate(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    if !resource.custom {
        return crate::builtin::validate(resource, new, old);
    }
    let version = format!("{}/{}", resource.group, resource.version);
    for (name, wanted) in [("kind", &resource.kind), ("apiVersion", &version)] {
        if new[name] != wanted.as_str() {
            return vec![fault::invalid(name, &new[name], &format!("must be {wanted}"))];
        }
    }
    let mut found = metadata::check(new, resource.namespaced, metadata::subdomain);
    found.extend(value::check(&resource.schema, new, old));
    if old.is_none_or(|old| lists::check(&resource.schema, old).is_empty()) {
        found.extend(lists::check(&resource.schema, new));
    }
    if !resource.schema.ruled {
        return found;
    }
    const BLOCKING: [&str; 5] = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if found.iter().any(|cause| BLOCKING.contains(&cause.reason)) {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                      errors to complete validation";
        found.push(fault::invalid(Path::root(), &Value::Null, detail));
    } else {
        found.extend(cel::validate(&resource.schema, new, old));
    }
    found
}

/// Types, required fields and formats of a built-in kind.
pub(crate) fn check_values(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    value::check(schema, new, old)
}

#[cfg(test)]
mod tests;
