//! What the API serves of what the host needs: its kinds, each with every field.
//!
//! A host that is newer than the definitions would write fields that the server drops without a word: what it noted of a claim would be
//! gone at its next look. The server says what it knows in its OpenAPI description, which whoever is known to it may read; the definitions
//! themselves would ask for a right more.

use std::collections::BTreeMap;

use http::Request;
use http::header::ACCEPT;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::Client;
use serde_json::Value;

/// Parts of each object that every kind has, and that no definition describes.
const COMMON: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Kinds that are not served, as `nodeclaims.management.loft.sh/v1`, and those without some fields, with the fields.
    pub(crate) missing: Vec<String>,
    /// What is served and not described: not yet, or never where there is no OpenAPI 3, or not to us.
    pub(crate) silent: Vec<String>,
}

/// Looks for these definitions' kinds.
///
/// # Errors
/// What the API server says.
pub(crate) async fn look(client: &Client, definitions: &[CustomResourceDefinition]) -> kube::Result<Look> {
    let mut versions: BTreeMap<String, Vec<Kind<'_>>> = BTreeMap::new();
    for kind in definitions.iter().flat_map(Kind::served) {
        let version = format!("{}/{}", kind.definition.spec.group, kind.version.name);
        versions.entry(version).or_default().push(kind);
    }
    let mut look = Look::default();
    for (version, kinds) in versions {
        let served = match client.list_api_group_resources(&version).await {
            Ok(list) => list.resources,
            // By its code: a real server says so in plain text, which has no reason.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(error),
        };
        let (there, absent): (Vec<_>, Vec<_>) = kinds
            .into_iter()
            .partition(|kind| served.iter().any(|one| one.name == kind.plural()));
        look.missing.extend(absent.iter().map(Kind::title));
        if there.is_empty() {
            continue;
        }
        match description(client, &version).await {
            Ok(description) => {
                for kind in there {
                    kind.judge(&description, &mut look);
                }
            }
            Err(error) => {
                tracing::debug!(version, error = %error, "the API does not describe its kinds");
                look.silent.push(version);
            }
        }
    }
    Ok(look)
}

/// How the server describes a group's version.
async fn description(client: &Client, version: &str) -> kube::Result<Value> {
    let request = Request::get(format!("/openapi/v3/apis/{version}"))
        .header(ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

/// One served version of a kind of ours.
struct Kind<'a> {
    definition: &'a CustomResourceDefinition,
    version: &'a CustomResourceDefinitionVersion,
}

impl<'a> Kind<'a> {
    fn served(definition: &'a CustomResourceDefinition) -> impl Iterator<Item = Self> {
        let versions = definition.spec.versions.iter().filter(|version| version.served);
        versions.map(move |version| Self { definition, version })
    }

    fn plural(&self) -> &str {
        &self.definition.spec.names.plural
    }

    fn title(&self) -> String {
        format!(
            "{}.{}/{}",
            self.plural(),
            self.definition.spec.group,
            self.version.name
        )
    }

    /// Notes what a server of this description does not know of it.
    fn judge(&self, description: &Value, look: &mut Look) {
        let schema = self.version.schema.as_ref();
        let Some(ours) = schema.and_then(|schema| schema.open_api_v3_schema.as_ref()) else {
            return;
        };
        let ours = serde_json::to_value(ours).expect("a schema is JSON");
        let schemas = &description["components"]["schemas"];
        let mut known = schemas.as_object().into_iter().flat_map(serde_json::Map::values);
        let Some(theirs) = known.find(|schema| self.is_of(schema)) else {
            return look.silent.push(self.title());
        };
        let mut fields = Vec::new();
        collect_absent(&ours, theirs, schemas, "", &mut fields);
        if !fields.is_empty() {
            let fields = fields.join(", ");
            look.missing.push(format!("{} without {fields}", self.title()));
        }
    }

    fn is_of(&self, schema: &Value) -> bool {
        let spec = &self.definition.spec;
        let wanted = |one: &Value| {
            one["group"] == spec.group.as_str()
                && one["version"] == self.version.name.as_str()
                && one["kind"] == spec.names.kind.as_str()
        };
        schema["x-kubernetes-group-version-kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(wanted))
    }
}

/// Adds the path of each field of `ours` that `theirs` does not know, as `spec.pools[].name`, and nothing below it. What keeps fields that
/// nobody described is taken to keep all.
fn collect_absent(ours: &Value, theirs: &Value, schemas: &Value, path: &str, fields: &mut Vec<String>) {
    let theirs = referred(theirs, schemas);
    if theirs["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, below) in ours["properties"].as_object().into_iter().flatten() {
        if path.is_empty() && COMMON.contains(&name.as_str()) {
            continue;
        }
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{name}");
        match theirs["properties"].get(name) {
            Some(known) => collect_absent(below, known, schemas, &path, fields),
            None => fields.push(path),
        }
    }
    for (key, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if ours[key].is_object() {
            collect_absent(
                &ours[key],
                &theirs[key],
                schemas,
                &format!("{path}{sign}"),
                fields,
            );
        }
    }
}

/// The schema that is meant, where one only refers to it.
fn referred<'s>(schema: &'s Value, schemas: &'s Value) -> &'s Value {
    [&schema["$ref"], &schema["allOf"][0]["$ref"]]
        .into_iter()
        .find_map(Value::as_str)
        .and_then(|reference| schemas.get(reference.rsplit('/').next()?))
        .unwrap_or(schema)
}

#[cfg(test)]
mod tests {
    use http::Response;
    use kube::CustomResourceExt;
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::more_than_ours(json!({"properties": {"spec": {"properties": {"a": {}, "list": {"items": {"properties": {"b": {}}}}, "map": {"additionalProperties": {"properties": {"c": {}}}}, "z": {}}}}}), &[])]
    #[case::any(json!({"properties": {"spec": {"x-kubernetes-preserve-unknown-fields": true}}}), &[])]
    #[case::by_reference(json!({"properties": {"spec": {"allOf": [{"$ref": "#/components/schemas/known"}]}}}), &[])]
    #[case::none(json!({}), &["spec"])]
    #[case::fewer(json!({"properties": {"spec": {"properties": {"list": {"items": {}}}}}}), &["spec.a", "spec.list[].b", "spec.map"])]
    fn what_the_other_one_lacks_is_named_by_path(#[case] theirs: Value, #[case] expected: &[&str]) {
        let known = json!({"properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"properties": {"b": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"properties": {"c": {"type": "string"}}}},
        }});
        let ours = json!({"properties": {"kind": {"type": "string"}, "metadata": {"type": "object"}, "spec": known}});
        let mut fields = Vec::new();
        collect_absent(&ours, &theirs, &json!({"known": known}), "", &mut fields);
        assert_eq!(fields, expected);
    }

    /// An API that serves what `answer` says by path, as a real one does: 404 in plain text, if at all.
    fn api(answer: impl Fn(&str) -> Option<Value> + Clone + Send + Sync + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, body) = match answer(request.uri().path()) {
                Some(body) => (200, body.to_string()),
                None => (404, "404 page not found\n".to_owned()),
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(body.into_bytes()));
            async move { answer }
        });
        Client::new(service, "default")
    }

    fn resources() -> Value {
        json!({"kind": "APIResourceList", "groupVersion": "management.loft.sh/v1", "resources": [
            {"name": "nodeclaims", "singularName": "", "namespaced": true, "kind": "NodeClaim", "verbs": ["get"]},
        ]})
    }

    #[rstest]
    #[case::no_kind(None, None, &["nodeclaims.management.loft.sh/v1"], &[])]
    #[case::no_description(Some(resources()), None, &[], &["management.loft.sh/v1"])]
    #[case::not_described_yet(
        Some(resources()), Some(json!({"components": {"schemas": {}}})),
        &[], &["nodeclaims.management.loft.sh/v1"]
    )]
    #[case::without_a_part(
        Some(resources()),
        Some(json!({"components": {"schemas": {"a": {
            "x-kubernetes-group-version-kind": [{"group": "management.loft.sh", "version": "v1", "kind": "NodeClaim"}],
            "properties": {"spec": {"x-kubernetes-preserve-unknown-fields": true}},
        }}}})),
        &["nodeclaims.management.loft.sh/v1 without status"], &[]
    )]
    #[tokio::test]
    async fn what_a_server_lacks_is_told_whatever_it_looks_like(
        #[case] served: Option<Value>,
        #[case] described: Option<Value>,
        #[case] missing: &[&str],
        #[case] silent: &[&str],
    ) {
        let client = api(move |path| match path {
            "/apis/management.loft.sh/v1" => served.clone(),
            "/openapi/v3/apis/management.loft.sh/v1" => described.clone(),
            _ => None,
        });
        let found = look(&client, &[hostler_api::NodeClaim::crd()]).await.unwrap();
        assert_eq!(found.missing, missing);
        assert_eq!(found.silent, silent);
    }
}
