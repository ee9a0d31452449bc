//! Objects made from a schema: all that it accepts, within reason.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

/// So many objects that a schema accepts, the same each time.
pub(super) fn samples(schema: &Value, count: usize) -> Vec<Value> {
    let strategy = of(schema);
    let mut runner = TestRunner::deterministic();
    (0..count)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect()
}

fn of(schema: &Value) -> BoxedStrategy<Value> {
    let made = match schema["type"].as_str().unwrap() {
        "object" => object(schema),
        "array" => array(schema),
        "string" => text(schema),
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "integer" => {
            // Bounds of numbers are written as fractions.
            #[expect(clippy::cast_possible_truncation, reason = "the bounds are small and whole")]
            let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
            let (least, most) = (bound("minimum"), bound("maximum"));
            let short = schema["format"] != "int64";
            let (least, most) = (
                least.unwrap_or(if short { i64::from(i32::MIN) } else { i64::MIN }),
                most.unwrap_or(if short { i64::from(i32::MAX) } else { i64::MAX }),
            );
            prop_oneof![Just(least), Just(most), least..=most]
                .prop_map(Value::from)
                .boxed()
        }
        // Halves and wholes: both servers write them the same.
        "number" => (-9_999_i32..9_999)
            .prop_map(|half| {
                if half % 2 == 0 {
                    json!(half / 2)
                } else {
                    json!(f64::from(half) / 2.0)
                }
            })
            .boxed(),
        other => panic!("no values of type {other} are made"),
    };
    if schema["nullable"] == true {
        prop_oneof![4 => made, 1 => Just(Value::Null)].boxed()
    } else {
        made
    }
}

fn text(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return select(values.clone()).boxed();
    }
    if schema["format"] == "date-time" {
        return (0_i64..4_000_000_000)
            .prop_map(|second| json!(jiff::Timestamp::from_second(second).unwrap().to_string()))
            .boxed();
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let most = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
        let inner = pattern.trim_start_matches('^').trim_end_matches('$');
        // What may be repeated for ever is repeated a few times.
        let inner = inner.replace("]*", "]{0,5}").replace(")*", "){0,2}");
        return proptest::string::string_regex(&inner)
            .unwrap()
            .prop_filter("not too long", move |text| text.len() as u64 <= most)
            .prop_map(Value::from)
            .boxed();
    }
    let least = usize::try_from(schema["minLength"].as_u64().unwrap_or(0)).unwrap();
    let most = usize::try_from(schema["maxLength"].as_u64().unwrap_or(64)).unwrap();
    let letters = vec(
        prop_oneof![4 => proptest::char::range(' ', '~'), 1 => any::<char>()],
        least..=most.min(64),
    );
    let short = letters.prop_map(|letters| json!(letters.into_iter().collect::<String>()));
    prop_oneof![8 => short, 1 => Just(json!("x".repeat(most)))].boxed()
}

fn array(schema: &Value) -> BoxedStrategy<Value> {
    let least = usize::try_from(schema["minItems"].as_u64().unwrap_or(0)).unwrap();
    let most = usize::try_from(schema["maxItems"].as_u64().unwrap_or(3))
        .unwrap()
        .min(3);
    let keys: Vec<Value> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    vec(of(&schema["items"]), least..=most.max(least))
        .prop_map(move |mut items| {
            let key = |item: &Value| {
                keys.iter()
                    .map(|key| item[key.as_str().unwrap()].clone())
                    .collect::<Vec<_>>()
            };
            let mut seen = Vec::new();
            items.retain(|item| {
                let own = key(item);
                let fresh = own.is_empty() || !seen.contains(&own);
                seen.push(own);
                fresh
            });
            Value::Array(items)
        })
        .boxed()
}

fn object(schema: &Value) -> BoxedStrategy<Value> {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap())
        .collect();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let mut fields: BoxedStrategy<Map<String, Value>> = Just(Map::new()).boxed();
    for (name, below) in properties {
        let always = required.contains(&name.as_str());
        let value = if always {
            of(&below).prop_map(Some).boxed()
        } else {
            proptest::option::of(of(&below)).boxed()
        };
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                if let Some(value) = value {
                    fields.insert(name.clone(), value);
                }
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}
