//! Takes away what a schema does not know, and fills in what it knows the value of.

use serde_json::Value;

use crate::schema::Schema;

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops every field that the schema does not declare.
pub(crate) fn prune(schema: &Schema, value: &mut Value) {
    let schema = schema.here();
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                if schema.embedded && META.contains(&name.as_str()) {
                    if name == "metadata" {
                        prune(&crate::builtin::object_meta(), value);
                    }
                    return true;
                }
                match schema.field(name) {
                    Some(below) => {
                        prune(below, value);
                        true
                    }
                    None => schema.preserve_unknown,
                }
            });
        }
        Value::Array(list) => match &schema.items {
            Some(items) => list.iter_mut().for_each(|item| prune(items, item)),
            None if schema.preserve_unknown => {}
            None => {
                let nothing = Schema::default();
                list.iter_mut().for_each(|item| prune(&nothing, item));
            }
        },
        _ => {}
    }
}

/// Fills in defaults, from the outside in, and drops a `null` where the schema allows none.
pub(crate) fn default(schema: &Schema, value: &mut Value) {
    let schema = schema.here();
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let bad = |below: &Schema| below.drops_null() && below.default.is_none();
                !(value.is_null() && schema.field(name).is_some_and(|below| bad(below)))
            });
            for (name, below) in &schema.properties {
                let Some(default) = &below.default else { continue };
                match fields.get_mut(name) {
                    None => {
                        fields.insert(name.clone(), default.clone());
                    }
                    Some(value) if value.is_null() && below.drops_null() => *value = default.clone(),
                    Some(_) => {}
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(below) = schema.field(name) {
                    fill(below, value);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| fill(items, item));
            }
        }
        _ => {}
    }
}

fn fill(schema: &Schema, value: &mut Value) {
    if value.is_null()
        && schema.drops_null()
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
    default(schema, value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "nullable": true},
            "d": {"type": "string"},
            "keep": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                     "properties": {"inner": {"type": "object", "properties": {"k": {"type": "string"}}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"v": {"type": "integer", "default": 3}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"v": {"type": "integer"}}}},
            "nested": {"type": "object", "default": {}, "properties": {"deep": {"type": "integer", "default": 1}}},
            "emb": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "string"}}},
        }}))
    }

    #[test]
    fn unknown_fields_go_and_preserved_ones_stay() {
        let mut value = json!({
            "a": "1", "gone": 1, "keep": {"free": {"x": 1}, "inner": {"k": "v", "gone": 1}},
            "list": [{"v": 1, "gone": 2}], "map": {"one": {"v": 1, "gone": 1}},
            "emb": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "gone": 1}, "spec": "s", "gone": 1},
        });
        prune(&schema(), &mut value);
        assert_eq!(
            value,
            json!({
                "a": "1", "keep": {"free": {"x": 1}, "inner": {"k": "v"}},
                "list": [{"v": 1}], "map": {"one": {"v": 1}},
                "emb": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": "s"},
            })
        );
    }

    #[test]
    fn defaults_are_filled_in_from_the_outside_in() {
        let mut value = json!({"list": [{}], "d": null, "n": null, "a": null});
        default(&schema(), &mut value);
        assert_eq!(
            value,
            json!({"list": [{"v": 3}], "n": null, "a": "x", "nested": {"deep": 1}})
        );
    }

    proptest! {
        #[test]
        fn both_are_done_once_and_for_all(depth in 0..4_usize, name in "[a-z]{1,4}", number in any::<i64>()) {
            let mut value = json!({name.clone(): number, "keep": {name.clone(): number}});
            for _ in 0..depth {
                value = json!({"map": {name.clone(): value.clone()}, "nested": value, name.clone(): [number]});
            }
            prune(&schema(), &mut value);
            default(&schema(), &mut value);
            let mut again = value.clone();
            prune(&schema(), &mut again);
            default(&schema(), &mut again);
            prop_assert_eq!(value, again);
        }
    }
}
