//! How lists and maps say that they are merged.

use serde_json::Value;

use super::is;
use crate::fault::{self, Path};
use crate::status::Cause;

/// `x-kubernetes-map-type`, `x-kubernetes-list-type` and `x-kubernetes-list-map-keys` of a node.
pub(super) fn check(node: &Value, kind: &str, path: &Path<'_>, found: &mut Vec<Cause>) {
    let typed = |wanted: &str, by: &str| {
        let detail = format!("must be {wanted} if {by} is specified");
        match kind {
            "" => fault::required(path.child("type"), &detail),
            _ => fault::invalid(path.child("type"), &node["type"], &detail),
        }
    };
    if let Some(map) = node["x-kubernetes-map-type"].as_str() {
        if kind != "object" {
            found.push(typed("object", "x-kubernetes-map-type"));
        }
        if !matches!(map, "atomic" | "granular") {
            let at = path.child("x-kubernetes-map-type");
            found.push(fault::not_supported(
                at,
                &node["x-kubernetes-map-type"],
                &["atomic", "granular"],
            ));
        }
    }
    let list = node["x-kubernetes-list-type"].as_str();
    let keys = node["x-kubernetes-list-map-keys"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let items = &node["items"];
    let items_path = path.child("items");
    if list.is_some() && kind != "array" {
        found.push(typed("array", "x-kubernetes-list-type"));
    } else if list == Some("set") {
        let atomic = |name: &str| matches!(items[name].as_str(), Some("atomic"));
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        if items["type"] == "array"
            && !items["x-kubernetes-list-type"].is_null()
            && !atomic("x-kubernetes-list-type")
        {
            let at = items_path.child("x-kubernetes-list-type");
            found.push(fault::invalid(at, &items["x-kubernetes-list-type"], detail));
        }
        if items["type"] == "object" && !atomic("x-kubernetes-map-type") {
            let at = items_path.child("x-kubernetes-map-type");
            found.push(fault::invalid(at, &items["x-kubernetes-list-type"], detail));
        }
    }
    if list.is_some_and(|list| !matches!(list, "atomic" | "set" | "map")) {
        let at = path.child("x-kubernetes-list-type");
        found.push(fault::not_supported(
            at,
            &node["x-kubernetes-list-type"],
            &["atomic", "set", "map"],
        ));
    }
    if !keys.is_empty() && list != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        let at = path.child("x-kubernetes-list-type");
        found.push(match list {
            None => fault::required(at, detail),
            Some(_) => fault::invalid(at, &node["x-kubernetes-list-type"], detail),
        });
    }
    if matches!(list, Some("set" | "map")) && is(items, "nullable") {
        let detail = format!(
            "cannot be nullable when x-kubernetes-list-type is {}",
            list.unwrap_or_default()
        );
        found.push(fault::forbidden(items_path.child("nullable"), &detail));
    }
    if list == Some("map") {
        keyed(node, keys, path, found);
    }
}

fn keyed(node: &Value, keys: &[Value], path: &Path<'_>, found: &mut Vec<Cause>) {
    let items = &node["items"];
    let items_path = path.child("items");
    let at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        found.push(fault::required(
            at,
            "must not be empty if x-kubernetes-list-type is map",
        ));
    }
    if items.is_object() && items["type"] != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        found.push(fault::invalid(items_path.child("type"), &items["type"], detail));
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        let written = &node["x-kubernetes-list-map-keys"];
        if keys[..index].contains(key) {
            found.push(fault::invalid(at, written, "must not contain duplicate entries"));
        }
        let Some(field) = items["properties"].get(name) else {
            found.push(fault::invalid(
                at,
                written,
                "entries must all be names of item properties",
            ));
            continue;
        };
        let properties = items_path.child("properties");
        let field_path = properties.key(name);
        if matches!(field["type"].as_str(), Some("array" | "object")) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            found.push(fault::invalid(field_path.child("type"), &items["type"], detail));
        }
        let needed = items["required"]
            .as_array()
            .is_some_and(|required| required.contains(key));
        if !needed && field["default"].is_null() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            found.push(fault::required(field_path.child("default"), detail));
        }
        if is(field, "nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            found.push(fault::forbidden(field_path.child("nullable"), detail));
        }
    }
}
