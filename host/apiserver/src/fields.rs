//! Fields that a request should not have: unknown to the schema, or written twice (`fieldValidation`).

use std::collections::HashSet;
use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::schema::Schema;

/// Names every field that the schema does not know, as `unknown field "spec.foo"`, sorted.
pub(crate) fn unknown(schema: &Schema, value: &Value) -> Vec<String> {
    let (mut found, mut embedded) = (Vec::new(), Vec::new());
    walk(
        schema,
        value,
        &mut String::new(),
        &mut (&mut found, &mut embedded),
    );
    found.sort_unstable();
    embedded.sort_unstable();
    found
        .into_iter()
        .chain(embedded)
        .map(|path| format!("unknown field \"{path}\""))
        .collect()
}

/// What a request is refused with under `fieldValidation=Strict`.
pub(crate) fn strict_error(problems: &[String]) -> String {
    format!("strict decoding error: {}", problems.join(", "))
}

/// What begins the list of keys that come twice in YAML, in a refusal.
const IN_YAML: &str = "yaml: unmarshal errors:\n";

/// Problems as warnings: each by itself.
pub(crate) fn warnings(problems: Vec<String>) -> Vec<String> {
    let split = |problem: String| match problem.strip_prefix(IN_YAML) {
        Some(lines) => lines.lines().map(|line| line.trim().to_owned()).collect(),
        None => vec![problem],
    };
    problems.into_iter().flat_map(split).collect()
}

/// Unknown fields, and those of the metadata of embedded objects, which are told last.
type Found<'f> = (&'f mut Vec<String>, &'f mut Vec<String>);

fn walk(schema: &Schema, value: &Value, path: &mut String, found: &mut Found<'_>) {
    let schema = schema.here();
    let length = path.len();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_own = schema.embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                if is_own && name != "metadata" {
                    continue;
                }
                if length > 0 {
                    path.push('.');
                }
                path.push_str(name);
                if is_own {
                    let mut nothing = Vec::new();
                    let mut below = (&mut *found.1, &mut nothing);
                    walk(&crate::builtin::object_meta(), value, path, &mut below);
                    path.truncate(length);
                    continue;
                }
                match schema.field(name) {
                    Some(below) => walk(below, value, path, found),
                    None if schema.preserve_unknown => {}
                    None => found.0.push(path.clone()),
                }
                path.truncate(length);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (index, item) in list.iter().enumerate() {
                let _ = write!(path, "[{index}]");
                walk(items, item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// Names every field that a JSON body has twice, as `duplicate field "spec.foo"`. A body that is not JSON has none.
pub(crate) fn duplicates_in_json(body: &[u8]) -> Vec<String> {
    // A body that does not parse is told elsewhere.
    twice_in_json(body).0
}

/// The same, and whether the body is JSON to its end.
fn twice_in_json(body: &[u8]) -> (Vec<String>, bool) {
    let mut twice = Twice::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let seed = Seed {
        twice: &mut twice,
        lines: false,
    };
    let is_json = seed
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .is_ok();
    (twice.found, is_json)
}

/// Names every key that a YAML body has twice, as the YAML decoder of the real server does.
pub(crate) fn duplicates_in_yaml(body: &[u8]) -> Vec<String> {
    // JSON, which is what clients apply, is YAML too, and read in a fraction of the time. Lines are asked for only when there is one to tell.
    if let (none, true) = twice_in_json(body)
        && none.is_empty()
    {
        return none;
    }
    let mut twice = Twice::default();
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough };
    let seed = Seed {
        twice: &mut twice,
        lines: true,
    };
    let _ = serde_saphyr::with_deserializer_from_slice_with_options(body, options, |deserializer| {
        seed.deserialize(deserializer)
    });
    if twice.found.is_empty() {
        return Vec::new();
    }
    vec![format!("{IN_YAML}{}", twice.found.join("\n"))]
}

#[derive(Default)]
struct Twice {
    path: String,
    found: Vec<String>,
}

struct Seed<'t> {
    twice: &'t mut Twice,
    /// Whether keys know their line (YAML).
    lines: bool,
}

impl Seed<'_> {
    fn below(&mut self) -> Seed<'_> {
        Seed {
            twice: self.twice,
            lines: self.lines,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        let length = self.twice.path.len();
        loop {
            let (key, line) = if self.lines {
                let Some(key) = map.next_key::<serde_saphyr::Spanned<String>>()? else {
                    break;
                };
                let line = key.referenced.line();
                (key.value, line)
            } else {
                let Some(key) = map.next_key::<String>()? else {
                    break;
                };
                (key, 0)
            };
            if length > 0 {
                self.twice.path.push('.');
            }
            self.twice.path.push_str(&key);
            if !seen.insert(key.clone()) {
                let told = match self.lines {
                    true => format!("  line {line}: key \"{key}\" already set in map"),
                    false => format!("duplicate field \"{}\"", self.twice.path),
                };
                if !self.twice.found.contains(&told) {
                    self.twice.found.push(told);
                }
            }
            map.next_value_seed(self.below())?;
            self.twice.path.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let length = self.twice.path.len();
        for index in 0_usize.. {
            let _ = write!(self.twice.path, "[{index}]");
            let more = list.next_element_seed(self.below())?;
            self.twice.path.truncate(length);
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i128<E>(self, _: i128) -> Result<(), E> {
        Ok(())
    }

    fn visit_u128<E>(self, _: u128) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_named_by_path_and_sorted() {
        let schema = Schema::parse(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}}}),
        );
        let object = json!({"spec": {"z": 1, "list": [{"a": "x"}, {"b": "y"}], "free": {"any": 1}}, "b": 2});
        let told = unknown(&schema, &object);
        let expected = [
            "unknown field \"b\"",
            "unknown field \"spec.list[1].b\"",
            "unknown field \"spec.z\"",
        ];
        assert_eq!(told, expected);
        assert_eq!(
            strict_error(&told[2..]),
            "strict decoding error: unknown field \"spec.z\""
        );
    }

    #[test]
    fn a_field_written_twice_is_named_by_path() {
        let body = br#"{"a": 1, "spec": {"num": 1, "num": 2, "list": [{"x": 1, "x": 2}]}, "a": null}"#;
        let expected = [
            "duplicate field \"spec.num\"",
            "duplicate field \"spec.list[0].x\"",
            "duplicate field \"a\"",
        ];
        assert_eq!(duplicates_in_json(body), expected);
        assert_eq!(duplicates_in_json(br#"{"a": 1"#), Vec::<String>::new());
    }

    #[test]
    fn a_yaml_key_written_twice_is_named_by_line() {
        let body = b"a: 1\nspec:\n  num: 1\n  num: 2\n";
        let expected = ["yaml: unmarshal errors:\n  line 4: key \"num\" already set in map"];
        assert_eq!(duplicates_in_yaml(body), expected);
        assert_eq!(duplicates_in_yaml(b"a: 1\nb: [1, 2]\n"), Vec::<String>::new());
        let json = b"{\"a\": 1,\n \"a\": 2}";
        let expected = ["yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"];
        assert_eq!(duplicates_in_yaml(json), expected, "JSON is YAML, too");
        assert_eq!(duplicates_in_yaml(b"{\"a\": {\"a\": 1}}"), Vec::<String>::new());
        let begun_as_json = b"{\"a\": 1}\n---\nb: 1\nb: 2\n";
        assert_eq!(duplicates_in_yaml(begun_as_json), Vec::<String>::new());
    }
}
