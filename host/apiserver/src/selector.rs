//! Label and field selectors: what a list or a watch leaves out.

use serde_json::Value;

use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::object::Stored;

/// One demand on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Demand {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Above(String, i64),
    Below(String, i64),
}

/// One demand on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    path: String,
    value: String,
    equal: bool,
}

/// Both selectors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Demand>,
    fields: Vec<Field>,
}

impl Selector {
    /// Parses both; fields must be ones that the resource offers.
    pub(crate) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = parse_labels(labels)
            .map_err(|why| ApiError::bad_request(format!("unable to parse requirement: {why}")))?;
        let fields = parse_fields(fields).map_err(ApiError::bad_request)?;
        for field in &fields {
            let known = matches!(field.path.as_str(), "metadata.name" | "metadata.namespace")
                || resource
                    .selectable
                    .iter()
                    .any(|path| path.trim_start_matches('.') == field.path);
            if !known {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {}",
                    field.path
                )));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Whether nothing is left out.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// What fields must equal, for the authorizer.
    pub(crate) fn equalities(&self) -> Vec<(String, String)> {
        let equal = self.fields.iter().filter(|field| field.equal);
        equal
            .map(|field| (field.path.clone(), field.value.clone()))
            .collect()
    }

    /// The one name that can match, if the selector says so.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|field| field.equal && field.path == "metadata.name")
            .map(|field| field.value.as_str())
    }

    /// Whether an object matches. `shape` gives it in the shape in which the resource shows it.
    pub(crate) fn matches(&self, object: &Stored, shape: impl Fn(&Stored) -> Value) -> bool {
        let label = |key: &str| {
            object
                .meta
                .labels
                .iter()
                .find(|(name, _)| name.as_ref() == key)
                .map(|(_, value)| value.as_ref())
        };
        let number = |key: &str| label(key).and_then(|found| found.parse::<i64>().ok());
        let labelled = self.labels.iter().all(|demand| match demand {
            Demand::In(key, values) => {
                label(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            Demand::NotIn(key, values) => {
                !label(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            Demand::Exists(key) => label(key).is_some(),
            Demand::Absent(key) => label(key).is_none(),
            Demand::Above(key, bound) => number(key).is_some_and(|found| found > *bound),
            Demand::Below(key, bound) => number(key).is_some_and(|found| found < *bound),
        });
        if !labelled || self.fields.is_empty() {
            return labelled;
        }
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|field| {
            let equal = match field.path.as_str() {
                "metadata.name" => object.key.name == field.value,
                "metadata.namespace" => object.key.namespace == field.value,
                path => field_text(parsed.get_or_insert_with(|| shape(object)), path) == field.value,
            };
            equal == field.equal
        })
    }
}

/// A field as text; absent is empty.
fn field_text(object: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(object, |at, name| at.get(name));
    match found {
        None | Some(Value::Null) => match path {
            "spec.unschedulable" => "false".to_owned(),
            _ => String::new(),
        },
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn parse_fields(text: &str) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
            (path, value, false)
        } else if let Some((path, value)) = part.split_once("==") {
            (path, value, true)
        } else if let Some((path, value)) = part.split_once('=') {
            (path, value, true)
        } else {
            return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
        };
        fields.push(Field {
            path: path.trim().to_owned(),
            value: value.trim().to_owned(),
            equal,
        });
    }
    Ok(fields)
}

/// Splits at commas outside of parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Demand>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split_requirements(text).into_iter().map(parse_label).collect()
}

fn parse_label(part: &str) -> Result<Demand, String> {
    let part = part.trim();
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list
            .split_once('(')
            .ok_or_else(|| format!("found ')', expected '(' in '{part}'"))?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Ok(Demand::In(parse_key(key)?, values)),
            (Some(key), Some("notin"), None) => Ok(Demand::NotIn(parse_key(key)?, values)),
            _ => Err(format!("found '{head}', expected: in, notin")),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(Demand::NotIn(parse_key(key)?, vec![parse_value(value)?]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Demand::In(parse_key(key)?, vec![parse_value(value)?]));
    }
    if let Some((key, value)) = part.split_once('>') {
        return Ok(Demand::Above(parse_key(key)?, parse_bound(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return Ok(Demand::Below(parse_key(key)?, parse_bound(value)?));
    }
    match part.strip_prefix('!') {
        Some(key) => Ok(Demand::Absent(parse_key(key)?)),
        None => Ok(Demand::Exists(parse_key(part)?)),
    }
}

fn parse_key(key: &str) -> Result<String, String> {
    let key = key.trim();
    match crate::metadata::qualified(key).into_iter().next() {
        None => Ok(key.to_owned()),
        Some(why) => Err(format!("<nil>: Invalid value: {key:?}: {why}")),
    }
}

fn parse_bound(value: &str) -> Result<i64, String> {
    let value = value.trim();
    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
    value
        .parse()
        .map_err(|_| format!("values[0]: Invalid value: {value:?}: {why}"))
}

fn parse_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    match crate::metadata::label_value(value).into_iter().next() {
        None => Ok(value.to_owned()),
        Some(why) => Err(format!("values[0][{value}]: Invalid value: {value:?}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::store::object::Key;

    fn object() -> Stored {
        let object = json!({
            "metadata": {"name": "n", "labels": {"env": "prod", "tier": "web", "size": "5"}},
            "spec": {"nodeName": "a"},
        });
        Stored::freeze(Key::new("", "n"), object, 1, 0)
    }

    #[rstest]
    #[case("", true)]
    #[case("env=prod", true)]
    #[case("env==prod,tier=web", true)]
    #[case("env=test", false)]
    #[case("env!=test", true)]
    #[case("absent!=x", true)]
    #[case("env in (prod, test)", true)]
    #[case("env in (test)", false)]
    #[case("env notin (test),tier", true)]
    #[case("absent notin (x)", true)]
    #[case("!absent", true)]
    #[case("!env", false)]
    #[case("absent", false)]
    #[case("size>4", true)]
    #[case("size>5", false)]
    #[case("size<6,size>4", true)]
    #[case("env>4", false)]
    fn labels_select(#[case] selector: &str, #[case] expected: bool) {
        let selector = Selector {
            labels: parse_labels(selector).unwrap(),
            fields: Vec::new(),
        };
        assert_eq!(selector.matches(&object(), Stored::value), expected);
    }

    #[rstest]
    #[case("metadata.name=n", true)]
    #[case("metadata.name!=n", false)]
    #[case("metadata.namespace=", true)]
    #[case("spec.nodeName=a,metadata.name==n", true)]
    #[case("spec.nodeName=", false)]
    #[case("status.phase=", true)]
    #[case("status.phase!=Running", true)]
    fn fields_select(#[case] selector: &str, #[case] expected: bool) {
        let selector = Selector {
            labels: Vec::new(),
            fields: parse_fields(selector).unwrap(),
        };
        assert_eq!(selector.matches(&object(), Stored::value), expected);
    }

    #[rstest]
    #[case("a in b")]
    #[case("=x")]
    #[case("a=b=c")]
    #[case("a in (b")]
    #[case("-a")]
    #[case("a,")]
    #[case("a>b")]
    fn nonsense_is_refused(#[case] selector: &str) {
        assert!(parse_labels(selector).is_err(), "{selector}");
    }
}
