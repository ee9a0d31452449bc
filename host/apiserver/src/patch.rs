//! The three patches that are not apply: JSON patch, JSON merge patch and strategic merge patch.

mod strategic;

use http::StatusCode;
use json_patch::PatchOperation;
use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiError;

/// Most operations of one JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// Most that the `copy` operations of one JSON patch may copy in all: as much as a request may carry.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// What the real server says of a patch that cannot be applied; the detail stays in its log.
fn unprocessable() -> ApiError {
    ApiError::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        "the server rejected our request due to an error in our request",
    )
}

/// Applies a JSON patch (RFC 6902). On an error the object is as it was.
pub(crate) fn json_patch(object: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Array(operations) = patch else {
        return Err(ApiError::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
            kind(patch)
        )));
    };
    if operations.len() > MAX_OPERATIONS {
        let message = format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        ));
    }
    let mut patched = object.clone();
    let mut copied = 0;
    for operation in operations {
        let operation: PatchOperation = serde_json::from_value(operation.clone()).map_err(|error| {
            tracing::debug!(%error, "a JSON patch with an unknown operation");
            unprocessable()
        })?;
        if is_satisfied_by_absence(&patched, &operation) {
            continue;
        }
        if let PatchOperation::Copy(copy) = &operation {
            copied += copy
                .from
                .resolve(&patched)
                .map_or(0, |value| value.to_string().len());
        }
        if copied > MAX_COPIED_BYTES {
            return Err(unprocessable());
        }
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(&operation)).map_err(|error| {
            tracing::debug!(%error, "a JSON patch does not apply");
            unprocessable()
        })?;
    }
    *object = patched;
    Ok(())
}

/// The real server lets a test for null pass where the field is not there.
fn is_satisfied_by_absence(object: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else {
        return false;
    };
    let Some((parent, last)) = test.path.split_back() else {
        return false;
    };
    let parent = parent.resolve(object).ok().and_then(Value::as_object);
    test.value.is_null() && parent.is_some_and(|parent| !parent.contains_key(last.decoded().as_ref()))
}

/// Applies a JSON merge patch (RFC 7396).
pub(crate) fn merge_patch(object: &mut Value, patch: &Value) {
    json_patch::merge(object, patch);
}

/// Applies a strategic merge patch, which built-in kinds take. On an error the object is as it was.
pub(crate) fn strategic(schema: &Schema, object: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            kind(patch)
        )));
    };
    let original = object.as_object().cloned().unwrap_or_default();
    let merged = strategic::merge(Some(schema), original, patch).map_err(|fault| match fault {
        strategic::Fault::Format(message) => ApiError::bad_request(message),
        strategic::Fault::Content(message) => {
            tracing::debug!(message, "a strategic merge patch does not apply");
            unprocessable()
        }
    })?;
    *object = Value::Object(merged);
    Ok(())
}

/// The JSON kind of a value, as decoding errors name it.
const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_json_patch_is_applied_in_order() {
        let mut object = json!({"a": [1, 2], "b": {"c": "x"}});
        let patch = json!([
            {"op": "test", "path": "/b/c", "value": "x"},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "replace", "path": "/b/c", "value": "y"},
            {"op": "copy", "from": "/b/c", "path": "/d"},
            {"op": "remove", "path": "/a/0"},
            {"op": "move", "from": "/d", "path": "/b/e~1f"},
            {"op": "test", "path": "/none", "value": null},
        ]);
        json_patch(&mut object, &patch).unwrap();
        assert_eq!(object, json!({"a": [2, 3], "b": {"c": "y", "e/f": "y"}}));
    }

    #[rstest]
    #[case::failed_test(json!([{"op": "test", "path": "/a", "value": 2}]), 422)]
    #[case::after_a_change(json!([{"op": "add", "path": "/b", "value": 2}, {"op": "test", "path": "/b", "value": 3}]), 422)]
    #[case::no_parent(json!([{"op": "add", "path": "/x/y", "value": 2}]), 422)]
    #[case::absent(json!([{"op": "remove", "path": "/x"}]), 422)]
    #[case::unknown(json!([{"op": "increment", "path": "/a"}]), 422)]
    #[case::no_value_there(json!([{"op": "test", "path": "/x/y", "value": null}]), 422)]
    #[case::object(json!({"op": "add"}), 400)]
    fn a_json_patch_that_does_not_fit_changes_nothing(#[case] patch: Value, #[case] code: u16) {
        let mut object = json!({"a": 1});
        let error = json_patch(&mut object, &patch).unwrap_err();
        assert_eq!(error.code.as_u16(), code);
        assert_eq!(object, json!({"a": 1}));
        if code == 422 {
            assert_eq!(
                error.body()["message"],
                "the server rejected our request due to an error in our request"
            );
            assert_eq!(error.reason, "Invalid");
        }
    }

    #[test]
    fn a_json_patch_cannot_blow_an_object_up() {
        let mut object = json!({"a": ["x".repeat(1000)]});
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let patch = Value::Array(vec![double; 30]);
        assert_eq!(json_patch(&mut object, &patch).unwrap_err().code.as_u16(), 422);
        let long = Value::Array(vec![json!({"op": "test", "path": "/a", "value": 1}); 10_001]);
        assert_eq!(json_patch(&mut object, &long).unwrap_err().code.as_u16(), 413);
    }

    /// The examples of RFC 7396, appendix A.
    #[rstest]
    #[case(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}))]
    #[case(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}))]
    #[case(json!({"a": "b"}), json!({"a": null}), json!({}))]
    #[case(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}))]
    #[case(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}))]
    #[case(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}))]
    #[case(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}))]
    #[case(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}))]
    #[case(json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"]))]
    #[case(json!({"a": "b"}), json!(["c"]), json!(["c"]))]
    #[case(json!({"a": "foo"}), json!(null), json!(null))]
    #[case(json!({"a": "foo"}), json!("bar"), json!("bar"))]
    #[case(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}))]
    #[case(json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"}))]
    #[case(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}))]
    fn merge_patches_behave_as_the_standard_shows(
        #[case] mut object: Value,
        #[case] patch: Value,
        #[case] result: Value,
    ) {
        merge_patch(&mut object, &patch);
        assert_eq!(object, result);
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(1)),
            Just(json!("x")),
            Just(json!(true)),
            Just(Value::Null)
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
                prop::collection::hash_map("[a-c]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_merge_patch_applied_twice_is_applied_once(object in json_value(), patch in json_value()) {
            let mut once = object;
            merge_patch(&mut once, &patch);
            let mut twice = once.clone();
            merge_patch(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }
    }
}
