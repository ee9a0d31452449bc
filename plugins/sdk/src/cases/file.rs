//! Reads case files: YAML, with objects taken from other files where they are long.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One call and what must come of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file that it stands in.
    pub file: String,
    /// A sentence.
    pub name: String,
    /// The function's name in `wit/`.
    pub call: String,
    /// Its arguments by their names in `wit/`, with nothing left to look up.
    pub arguments: Value,
    /// What must come of it.
    pub expectation: Expectation,
}

/// What a case says of the answer.
#[derive(Clone, Debug)]
pub enum Expectation {
    /// The answer has all of this.
    Contains(Value),
    /// The answer is this and nothing more.
    Equals(Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    with: Value,
    cases: Vec<WrittenCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    name: String,
    call: String,
    #[serde(default)]
    with: Value,
    expect: Option<Value>,
    exactly: Option<Value>,
}

/// All cases of a folder, in order of file names. Folders below it hold what cases take from, not cases.
pub fn read(folder: &Path) -> Result<Vec<Case>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = read_text(&path)?;
        let written: Written =
            serde_saphyr::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        for case in written.cases {
            let at = |error: String| format!("{file}: {}: {error}", case.name);
            let mut arguments = taken(written.with.clone(), folder).map_err(at)?;
            merge(&mut arguments, taken(case.with, folder).map_err(at)?);
            let expectation = match (case.expect, case.exactly) {
                (Some(expected), None) => Expectation::Contains(taken(expected, folder).map_err(at)?),
                (None, Some(expected)) => Expectation::Equals(taken(expected, folder).map_err(at)?),
                _ => return Err(at("a case has either `expect` or `exactly`".to_owned())),
            };
            cases.push(Case {
                file: file.clone(),
                name: case.name,
                call: case.call,
                arguments,
                expectation,
            });
        }
    }
    Ok(cases)
}

fn read_text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Puts in place of each `{from, line, patch}` what it points at.
fn taken(value: Value, folder: &Path) -> Result<Value, String> {
    match value {
        Value::Object(mut map) if map.get("from").is_some_and(Value::is_string) => {
            if let Some(key) = map
                .keys()
                .find(|key| !["from", "line", "patch"].contains(&key.as_str()))
            {
                return Err(format!("`from` stands beside {key}, only `line` and `patch` may"));
            }
            let path = folder.join(map["from"].as_str().unwrap_or_default());
            let mut base = load(&path, map.get("line").and_then(Value::as_u64))?;
            base = taken(base, folder)?;
            if let Some(patch) = map.remove("patch") {
                merge(&mut base, taken(patch, folder)?);
            }
            Ok(base)
        }
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| Ok((key, taken(value, folder)?)))
            .collect::<Result<_, _>>()
            .map(Value::Object),
        Value::Array(items) => items
            .into_iter()
            .map(|item| taken(item, folder))
            .collect::<Result<_, _>>()
            .map(Value::Array),
        plain => Ok(plain),
    }
}

/// A YAML document; or, with a line number, that line of a recorded watch: its `object`.
fn load(path: &Path, line: Option<u64>) -> Result<Value, String> {
    let text = read_text(path)?;
    let named = |error: String| format!("{}: {error}", path.display());
    let Some(line) = line else {
        return serde_saphyr::from_str(&text).map_err(|error| named(error.to_string()));
    };
    let index = usize::try_from(line).unwrap_or_default().checked_sub(1);
    let text = index
        .and_then(|index| text.lines().nth(index))
        .ok_or_else(|| named(format!("has no line {line}")))?;
    let mut event: Value = serde_json::from_str(text).map_err(|error| named(error.to_string()))?;
    Ok(event.get_mut("object").map(Value::take).unwrap_or(event))
}

/// JSON merge patch.
fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(&key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        // Nulls inside a new object take nothing away, they just are not there.
        (target, Value::Object(patch)) => {
            *target = Value::Object(serde_json::Map::new());
            merge(target, Value::Object(patch));
        }
        (_, Value::Null) => {}
        (target, patch) => *target = patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_lays_itself_over_what_stands_there() {
        let mut base = json!({"spec": {"online": true, "image": {"url": "a"}}, "list": [1, 2]});
        merge(
            &mut base,
            json!({"spec": {"online": false, "image": null}, "list": [3], "new": {"a": null, "b": 1}}),
        );
        assert_eq!(
            base,
            json!({"spec": {"online": false}, "list": [3], "new": {"b": 1}})
        );
    }
}
