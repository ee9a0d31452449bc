//! The JSON paths of printer columns: names, quoted names, indexes, `[*]` and filters on one field.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Name(String),
    Index(i64),
    Every,
    /// `[?(@.a.b == "c")]`: the names, whether it must be equal, and to what; nothing to compare with asks for presence.
    Where(Vec<String>, bool, Option<Value>),
}

impl JsonPath {
    /// Parses a path like `.status.conditions[?(@.type=="Ready")].status`; none if it is not understood.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let end = closing(inner)?;
                steps.push(bracket(inner[..end].trim())?);
                rest = &inner[end + 1..];
            } else if let Some(after) = rest.strip_prefix('.') {
                let (name, left) = plain(after);
                match name.as_str() {
                    "" if left.is_empty() && steps.is_empty() => {}
                    "" if left.starts_with('[') => {}
                    "" => return None,
                    "*" => steps.push(Step::Every),
                    _ => steps.push(Step::Name(name)),
                }
                rest = left;
            } else {
                return None;
            }
        }
        Some(Self(steps))
    }

    /// The first value that the path leads to.
    pub(crate) fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        find(&self.0, value)
    }
}

/// A name up to the next unescaped `.` or `[`, and what follows.
fn plain(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Where a bracket closes, quotes and inner brackets left alone.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0_usize);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), other) if open == other => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn unquoted(text: &str) -> Option<&str> {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('\'').or_else(|| inner('"'))
}

fn bracket(text: &str) -> Option<Step> {
    if text == "*" {
        return Some(Step::Every);
    }
    if let Some(name) = unquoted(text) {
        return Some(Step::Name(name.to_owned()));
    }
    if let Ok(index) = text.parse() {
        return Some(Step::Index(index));
    }
    let condition = text.strip_prefix("?(")?.strip_suffix(')')?.trim();
    let (left, equal, right) = match (condition.split_once("=="), condition.split_once("!=")) {
        (Some((left, right)), _) => (left, true, Some(right)),
        (None, Some((left, right))) => (left, false, Some(right)),
        (None, None) => (condition, true, None),
    };
    let path = JsonPath::parse(left.trim().strip_prefix('@')?)?;
    let names = path.0.into_iter().map(|step| match step {
        Step::Name(name) => Some(name),
        Step::Index(_) | Step::Every | Step::Where(..) => None,
    });
    let right = match right.map(str::trim) {
        None => None,
        Some(text) => Some(match unquoted(text) {
            Some(inner) => Value::from(inner),
            None => serde_json::from_str(text).ok()?,
        }),
    };
    Some(Step::Where(names.collect::<Option<_>>()?, equal, right))
}

fn find<'v>(steps: &[Step], value: &'v Value) -> Option<&'v Value> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(value);
    };
    match step {
        Step::Name(name) => find(rest, value.get(name)?),
        Step::Index(index) => {
            let list = value.as_array()?;
            let length = i64::try_from(list.len()).ok()?;
            let at = if *index < 0 { length + index } else { *index };
            find(rest, list.get(usize::try_from(at).ok()?)?)
        }
        Step::Every => below(value).find_map(|child| find(rest, child)),
        Step::Where(names, equal, wanted) => below(value)
            .filter(|child| {
                let found = names.iter().try_fold(*child, |at, name| at.get(name));
                match wanted {
                    None => found.is_some(),
                    Some(wanted) => (found == Some(wanted)) == *equal,
                }
            })
            .find_map(|child| find(rest, child)),
    }
}

fn below(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[rstest::rstest]
    #[case(".spec.name", json!("n"))]
    #[case(".spec['dotted.name']", json!(1))]
    #[case(".spec.dotted\\.name", json!(1))]
    #[case(".list[0].v", json!("a"))]
    #[case(".list[-1].v", json!("b"))]
    #[case(".list[*].v", json!("a"))]
    #[case(".list[?(@.k==\"2\")].v", json!("b"))]
    #[case(".list[?(@.k != '1')].v", json!("b"))]
    #[case(".list[?(@.only)].v", json!("b"))]
    #[case(".list[?(@.n == 7)].v", json!("a"))]
    fn a_path_finds_its_value(#[case] path: &str, #[case] expected: Value) {
        let object = json!({
            "spec": {"name": "n", "dotted.name": 1},
            "list": [{"k": "1", "v": "a", "n": 7}, {"k": "2", "v": "b", "only": true}],
        });
        assert_eq!(
            JsonPath::parse(path).expect("parses").first(&object),
            Some(&expected)
        );
    }

    #[rstest::rstest]
    #[case("spec")]
    #[case(".a[")]
    #[case(".a[?(@.b")]
    #[case(".a..b")]
    fn nonsense_is_refused(#[case] path: &str) {
        assert_eq!(JsonPath::parse(path), None);
    }
}
