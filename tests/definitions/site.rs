//! One API server with our definitions: how objects are sent to it, and what of its answers is compared.

use hostler_apiserver::{Identity, Options, Server, Store};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::client::Body;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::eventually;
use crate::kubernetes::{Binaries, Cluster};

/// Namespace of what is sent.
const NAMESPACE: &str = "default";

/// A server.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    _stop: Option<DropGuard>,
    _cluster: Option<Cluster>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

/// One cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Refusal {
    pub(crate) field: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Answer {
    /// Every cause that it names, in order.
    pub(crate) fn causes(&self) -> Vec<Refusal> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = self.body["details"]["causes"].as_array();
        let mut all: Vec<Refusal> = causes
            .into_iter()
            .flatten()
            .map(|cause| Refusal {
                field: text(&cause["field"]),
                reason: text(&cause["reason"]),
                message: text(&cause["message"]),
            })
            .collect();
        all.sort();
        all
    }
}

/// A definition as far as requests need it.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) kind: String,
    pub(crate) schema: Value,
    version: String,
    plural: String,
    namespaced: bool,
}

impl Definition {
    /// Ours.
    pub(crate) fn all() -> Vec<Self> {
        hostler_api::all_crds().iter().map(Self::of).collect()
    }

    pub(crate) fn of(crd: &CustomResourceDefinition) -> Self {
        let version = &crd.spec.versions[0];
        let schema = version
            .schema
            .as_ref()
            .unwrap()
            .open_api_v3_schema
            .as_ref()
            .unwrap();
        Self {
            kind: crd.spec.names.kind.clone(),
            schema: serde_json::to_value(schema).unwrap(),
            version: format!("{}/{}", crd.spec.group, version.name),
            plural: crd.spec.names.plural.clone(),
            namespaced: crd.spec.scope == "Namespaced",
        }
    }

    fn folder(&self) -> String {
        let namespace = if self.namespaced {
            format!("/namespaces/{NAMESPACE}")
        } else {
            String::new()
        };
        format!("/apis/{}{namespace}/{}", self.version, self.plural)
    }

    /// The object with what every object has.
    pub(crate) fn whole(&self, object: &Value) -> Value {
        let mut object = object.clone();
        object["apiVersion"] = json!(self.version);
        object["kind"] = json!(self.kind);
        if self.namespaced {
            object["metadata"]["namespace"] = json!(NAMESPACE);
        }
        object
    }
}

impl Site {
    /// The embedded server.
    pub(crate) async fn embedded() -> Self {
        let mut options = Options::new(Store::Memory);
        options.cluster = "platform".to_owned();
        let server = Server::open(options).unwrap();
        let stop = CancellationToken::new();
        server.start(stop.clone());
        Self {
            name: "ours",
            client: server.client("platform", Identity::administrator()),
            _stop: Some(stop.drop_guard()),
            _cluster: None,
        }
    }

    /// The real server; none, with a line that says how to get it, where there is none.
    pub(crate) async fn real() -> Option<Self> {
        let binaries = match Binaries::find() {
            Ok(binaries) => binaries,
            Err(why) => {
                eprintln!("{why}");
                return None;
            }
        };
        let cluster = Cluster::start(&binaries).await.unwrap();
        Some(Self {
            name: "real",
            client: cluster.client().await.unwrap(),
            _stop: None,
            _cluster: Some(cluster),
        })
    }

    /// Installs definitions, which must bring no warning, and waits until their objects can be written by the new schemas.
    pub(crate) async fn take(&self, definitions: &[CustomResourceDefinition]) {
        for crd in definitions {
            let name = crd.metadata.name.as_deref().unwrap();
            let path = format!(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=test&force=true&fieldValidation=Strict"
            );
            let answer = self
                .send("PATCH", &path, &serde_json::to_value(crd).unwrap())
                .await;
            assert!(answer.code < 300, "{}: {name}: {}", self.name, answer.body);
            assert!(
                answer.warnings.is_empty(),
                "{}: {name}: {:?}",
                self.name,
                answer.warnings
            );
        }
        for crd in definitions {
            let name = crd.metadata.name.as_deref().unwrap();
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            eventually(&format!("{name} is established"), || async {
                let read = self.send("GET", &path, &Value::Null).await.body;
                let conditions = read["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let is = |kind: &str, status: &str| {
                    conditions
                        .iter()
                        .any(|one| one["type"] == kind && one["status"] == status)
                };
                assert!(!is("NonStructuralSchema", "True"), "{read}");
                if is("Established", "True") && is("NamesAccepted", "True") {
                    Ok(())
                } else {
                    Err(read["status"].to_string())
                }
            })
            .await;
        }
        self.served(definitions).await;
    }

    /// A definition is established a moment before its objects are served.
    async fn served(&self, definitions: &[CustomResourceDefinition]) {
        for definition in definitions.iter().map(Definition::of) {
            eventually(&format!("{} is served", definition.kind), || async {
                let answer = self.send("GET", &definition.folder(), &Value::Null).await;
                if answer.code == 200 {
                    Ok(())
                } else {
                    Err(answer.body.to_string())
                }
            })
            .await;
        }
    }

    /// Creates an object, or only asks what would come of it.
    pub(crate) async fn create(&self, definition: &Definition, object: &Value, dry: bool) -> Answer {
        let dry = if dry { "&dryRun=All" } else { "" };
        let path = format!("{}?fieldValidation=Strict{dry}", definition.folder());
        self.send("POST", &path, &definition.whole(object)).await
    }

    /// Replaces an object or its status.
    pub(crate) async fn replace(&self, definition: &Definition, object: &Value, status: bool) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap();
        let below = if status { "/status" } else { "" };
        let path = format!("{}/{name}{below}?fieldValidation=Strict", definition.folder());
        self.send("PUT", &path, &definition.whole(object)).await
    }

    /// Reads an object.
    pub(crate) async fn read(&self, definition: &Definition, name: &str) -> Answer {
        self.send("GET", &format!("{}/{name}", definition.folder()), &Value::Null)
            .await
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn change(&self, definition: &Definition, name: &str, patch: &Value) -> Answer {
        self.send("PATCH", &format!("{}/{name}", definition.folder()), patch)
            .await
    }

    /// Deletes an object, which must be there.
    pub(crate) async fn delete(&self, definition: &Definition, name: &str) {
        let answer = self
            .send("DELETE", &format!("{}/{name}", definition.folder()), &Value::Null)
            .await;
        assert_eq!(
            answer.code, 200,
            "{}: deleting {name}: {}",
            self.name, answer.body
        );
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let media = match (method, path.contains("force=")) {
            ("PATCH", true) => "application/apply-patch+yaml",
            ("PATCH", false) => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .header("accept", "application/json")
            .body(Body::from(body))
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        let warnings = answer.headers().get_all("warning").iter();
        let warnings = warnings.map(|one| one.to_str().unwrap().to_owned()).collect();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Answer {
            code,
            warnings,
            body: serde_json::from_slice(&body).unwrap(),
        }
    }
}

/// Every schema right below one.
pub(crate) fn children(schema: &mut Value) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (name, below) in schema.as_object_mut().into_iter().flatten() {
        match name.as_str() {
            "properties" => found.extend(
                below
                    .as_object_mut()
                    .into_iter()
                    .flatten()
                    .map(|(_, child)| child),
            ),
            "items" | "additionalProperties" if below.is_object() => found.push(below),
            _ => {}
        }
    }
    found
}
