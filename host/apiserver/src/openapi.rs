//! OpenAPI v3 of what is served: as much as kubectl reads for `explain`, strict validation, `apply` and `diff`.
//!
//! Version 2 is served as JSON only. kubectl asks for it in protobuf when it applies custom resources; a `404` there makes it
//! fall back to what it knows.

pub(crate) mod v2;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::resource::Resource;
use crate::schema::{ListType, Schema, Type};

/// Path of a version's document below `/openapi/v3/`: `api/v1` or `apis/{group}/{version}`.
fn place(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// A document that was made, with what it was made of: it is made again when a definition changes.
struct Made {
    place: String,
    of: Vec<Arc<Schema>>,
    document: Arc<Value>,
    hash: Arc<str>,
}

/// Documents of all clusters, the latest last.
static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());

/// More are not kept.
const KEPT: usize = 64;

/// `/openapi/v3`: where each version's document is, with a hash by which clients cache it.
pub(crate) fn index(resources: &[Resource]) -> Value {
    let mut paths = BTreeMap::new();
    for resource in resources {
        let place = place(&resource.group, &resource.version);
        if paths.contains_key(&place) {
            continue;
        }
        if let Some((_, hash)) = made(resources, &resource.group, &resource.version) {
            let url = format!("/openapi/v3/{place}?hash={hash}");
            paths.insert(place, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// `/openapi/v3/…`: the document of one version; none if nobody serves it.
pub(crate) fn group_version(resources: &[Resource], group: &str, version: &str) -> Option<Arc<Value>> {
    made(resources, group, version).map(|(document, _)| document)
}

fn made(resources: &[Resource], group: &str, version: &str) -> Option<(Arc<Value>, Arc<str>)> {
    let own: Vec<_> = resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .collect();
    if own.is_empty() {
        return None;
    }
    let place = place(group, version);
    let same = |made: &Made| {
        made.place == place
            && made.of.len() == own.len()
            && made
                .of
                .iter()
                .zip(&own)
                .all(|(schema, resource)| Arc::ptr_eq(schema, &resource.schema))
    };
    // A document is whole before it is put in, so a poisoned lock guards nothing broken.
    let mut all = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = all.iter().find(|made| same(made)) {
        return Some((Arc::clone(&found.document), Arc::clone(&found.hash)));
    }
    let document = Arc::new(document(&own));
    let hash = Sha256::digest(document.to_string().as_bytes());
    let hash: Arc<str> = hash
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect::<String>()
        .into();
    if all.len() >= KEPT {
        all.remove(0);
    }
    let of = own.iter().map(|resource| Arc::clone(&resource.schema)).collect();
    all.push(Made {
        place,
        of,
        document: Arc::clone(&document),
        hash: Arc::clone(&hash),
    });
    Some((document, hash))
}

fn document(own: &[&Resource]) -> Value {
    let mut components = Components::default();
    let mut paths = Map::new();
    for resource in own {
        components.root(resource);
        add_paths(resource, &mut paths);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": components.done},
    })
}

fn kind_of(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

/// The component that stands for a resource.
fn name_of(resource: &Resource) -> String {
    match &resource.schema.component {
        Some(name) => name.clone(),
        None => {
            let reversed: Vec<_> = resource.group.split('.').rev().collect();
            format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind)
        }
    }
}

fn reference(name: &str) -> String {
    format!("#/components/schemas/{name}")
}

fn add_paths(resource: &Resource, paths: &mut Map<String, Value>) {
    let prefix = match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let collection = match resource.namespaced {
        true => format!("{prefix}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{prefix}/{}", resource.plural),
    };
    let one = format!("{collection}/{{name}}");
    let operation = |action: &str, parameters: &[&str]| {
        let parameters: Vec<_> = parameters.iter().map(|name| parameter(name)).collect();
        let mut operation = json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind_of(resource),
            "responses": {"200": {"description": "OK", "content": {
                "application/json": {"schema": {"$ref": reference(&name_of(resource))}},
            }}},
        });
        // Clients take an empty list for none when they write it again.
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let read = [
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "watch",
    ];
    let mut patch = operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"]);
    let mut content = Map::new();
    let mut kinds = vec![
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    if !resource.custom {
        kinds.push("application/strategic-merge-patch+json");
    }
    for kind in kinds {
        content.insert(kind.into(), json!({"schema": {"type": "object"}}));
    }
    patch["requestBody"] = json!({"required": true, "content": content});
    if crate::builtin::is_question(resource) {
        paths.insert(collection, json!({"post": operation("post", &write)}));
        return;
    }
    paths.insert(
        collection,
        json!({"get": operation("list", &read), "post": operation("post", &write)}),
    );
    paths.insert(
        one,
        json!({
            "get": operation("get", &[]),
            "put": operation("put", &write),
            "patch": patch,
            "delete": operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
        }),
    );
}

fn parameter(name: &str) -> Value {
    let kind = match name {
        "force" | "watch" => "boolean",
        "limit" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

/// What the built-in kinds say of their metadata.
fn metadata_of_any_kind() -> Option<String> {
    let known = crate::builtin::component("io.k8s.api.core.v1.Secret")?;
    known.properties.get("metadata")?.description.clone()
}

#[derive(Default)]
struct Components {
    done: Map<String, Value>,
    /// Whether a custom kind is written, which says of lists only what its definition says.
    custom: bool,
}

impl Components {
    fn root(&mut self, resource: &Resource) {
        let name = name_of(resource);
        self.custom = resource.custom;
        let mut node = self.node(&resource.schema);
        // Definitions leave metadata to the server, which says the same of it for every kind.
        if let (true, Some(described)) = (resource.custom, metadata_of_any_kind()) {
            let metadata = &mut node["properties"]["metadata"];
            if metadata.is_object() && metadata["description"].is_null() {
                metadata["description"] = described.into();
            }
        }
        node["x-kubernetes-group-version-kind"] = json!([kind_of(resource)]);
        self.done.insert(name, node);
    }

    /// A node where it is used: by name if it stands for a component.
    fn used(&mut self, schema: &Arc<Schema>) -> Value {
        let Some(name) = &schema.component else {
            return self.node(schema);
        };
        if !self.done.contains_key(name) {
            // Its own mention below must not build it again.
            self.done.insert(name.clone(), Value::Null);
            let whole = schema.here();
            let custom = std::mem::take(&mut self.custom);
            let node = match crate::builtin::component(name) {
                Some(whole) => self.node(whole),
                None => self.node(whole),
            };
            self.custom = custom;
            self.done.insert(name.clone(), node);
        }
        let mut used = json!({"allOf": [{"$ref": reference(name)}]});
        let known = crate::builtin::component(name).and_then(|whole| whole.description.as_ref());
        if let Some(description) = schema
            .description
            .as_ref()
            .filter(|description| Some(*description) != known)
        {
            used["description"] = description.as_str().into();
        }
        if let Some(default) = &schema.default {
            used["default"] = default.clone();
        }
        used
    }

    fn node(&mut self, schema: &Schema) -> Value {
        let mut node = Map::new();
        if let Some(description) = &schema.description {
            node.insert("description".into(), description.as_str().into());
        }
        if schema.int_or_string {
            node.insert("x-kubernetes-int-or-string".into(), true.into());
            if schema.component.is_some() {
                node.insert("oneOf".into(), json!([{"type": "string"}, {"type": "number"}]));
            }
        } else if schema.kind != Type::Any {
            node.insert("type".into(), schema.kind.word().into());
        }
        for (name, value) in &schema.checks {
            node.insert(name.clone(), value.clone());
        }
        if schema.nullable {
            node.insert("nullable".into(), true.into());
        }
        if schema.preserve_unknown && schema.component.is_none() {
            node.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        if schema.embedded {
            node.insert("x-kubernetes-embedded-resource".into(), true.into());
        }
        if let Some(default) = &schema.default {
            node.insert("default".into(), default.clone());
        }
        if !schema.required.is_empty() {
            node.insert("required".into(), json!(schema.required));
        }
        if !schema.properties.is_empty() {
            let properties: Map<_, _> = schema
                .properties
                .iter()
                .map(|(name, below)| (name.clone(), self.used(below)))
                .collect();
            node.insert("properties".into(), properties.into());
        }
        if let Some(below) = &schema.additional {
            let below = self.used(below);
            node.insert("additionalProperties".into(), below);
        }
        if let Some(items) = &schema.items {
            let items = self.used(items);
            node.insert("items".into(), items);
        }
        if !schema.rules.is_empty() {
            node.insert(
                "x-kubernetes-validations".into(),
                Value::Array(schema.rules.clone()),
            );
        }
        merging(schema, &mut node, self.custom);
        Value::Object(node)
    }
}

fn merging(schema: &Schema, node: &mut Map<String, Value>, custom: bool) {
    match &schema.list_type {
        ListType::Atomic if schema.kind == Type::Array && !custom => {
            node.insert("x-kubernetes-list-type".into(), "atomic".into());
        }
        ListType::Atomic => {}
        ListType::Set => {
            node.insert("x-kubernetes-list-type".into(), "set".into());
        }
        ListType::Map(keys) => {
            node.insert("x-kubernetes-list-type".into(), "map".into());
            node.insert("x-kubernetes-list-map-keys".into(), json!(keys));
        }
    }
    if schema.atomic_map {
        node.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    if let Some(key) = &schema.patch_merge_key {
        node.insert("x-kubernetes-patch-strategy".into(), "merge".into());
        if !key.is_empty() {
            node.insert("x-kubernetes-patch-merge-key".into(), key.as_str().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn every_reference_leads_somewhere() {
        let resources = builtin::resources();
        for resource in &resources {
            let document = group_version(&resources, &resource.group, &resource.version).expect("served");
            let mut open = vec![document.as_ref()];
            let mut seen = 0;
            while let Some(value) = open.pop() {
                match value {
                    Value::Object(fields) => {
                        if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                            let target = target.trim_start_matches('#');
                            assert!(document.pointer(target).is_some_and(Value::is_object), "{target}");
                            seen += 1;
                        }
                        open.extend(fields.values());
                    }
                    Value::Array(list) => open.extend(list),
                    _ => {}
                }
            }
            assert!(seen > 0, "{}", resource.kind);
        }
    }

    #[test]
    fn kubectl_finds_what_it_looks_for() {
        let resources = builtin::resources();
        let document = group_version(&resources, "", "v1").expect("the core");
        let patch = &document["paths"]["/api/v1/nodes/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Node");
        let parameters = patch["parameters"].as_array().expect("parameters");
        assert!(
            parameters
                .iter()
                .any(|one| one["name"] == "fieldValidation" && one["in"] == "query")
        );
        assert!(
            patch["requestBody"]["content"]
                .get("application/strategic-merge-patch+json")
                .is_some()
        );
        let schemas = &document["components"]["schemas"];
        assert_eq!(
            schemas["io.k8s.api.core.v1.Node"]["x-kubernetes-group-version-kind"][0]["kind"],
            "Node"
        );
        let conditions = &schemas["io.k8s.api.core.v1.NodeStatus"]["properties"]["conditions"];
        assert_eq!(conditions["x-kubernetes-patch-merge-key"], "type");
        let index = index(&resources);
        let url = index["paths"]["api/v1"]["serverRelativeURL"]
            .as_str()
            .expect("a place");
        assert!(url.starts_with("/openapi/v3/api/v1?hash="));
    }
}
