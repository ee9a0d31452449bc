//! A server in memory, a way to ask it, and a way to wait.

use std::time::Duration;

use hostler_apiserver::{Identity, Options, Server, Store};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Waiting longer than this means that it will never be. Longer than the time between two bookmarks.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with one client.
pub(crate) struct Lab {
    pub(crate) server: Server,
    pub(crate) client: kube::Client,
    stop: CancellationToken,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.code < 300, "{} {}", self.code, self.body);
        self.body
    }

    /// Code, reason and message of a refusal.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, &str, &str) {
        assert!(self.code >= 400, "{} {}", self.code, self.body);
        let text = |field: &str| self.body[field].as_str().unwrap_or_default();
        (self.code, text("reason"), text("message"))
    }
}

impl Lab {
    /// With the background loops.
    pub(crate) fn new() -> Self {
        let lab = Self::with(Options::new(Store::Memory));
        lab.server.start(lab.stop.clone());
        lab
    }

    /// Without them.
    pub(crate) fn with(options: Options) -> Self {
        let server = Server::open(options).expect("a server in memory opens");
        let client = server.client("platform", Identity::administrator());
        Self {
            server,
            client,
            stop: CancellationToken::new(),
        }
    }

    /// The same server, asked for another cluster.
    pub(crate) fn of(&self, cluster: &str) -> Self {
        let client = self.server.client(cluster, Identity::administrator());
        Self {
            server: self.server.clone(),
            client,
            stop: CancellationToken::new(),
        }
    }

    /// Asks with headers of one's own.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self
            .client
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let warnings = parts
            .headers
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned());
        Answer {
            code: parts.status.as_u16(),
            warnings: warnings.collect(),
            body: serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.to_string().into_bytes(),
        )
        .await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(
            "PUT",
            path,
            &[("content-type", "application/json")],
            body.to_string().into_bytes(),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str, body: Value) -> Answer {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        self.send("DELETE", path, &[("content-type", "application/json")], body)
            .await
    }

    /// `kind` is `json`, `merge`, `strategic-merge` or `apply`.
    pub(crate) async fn patch(&self, kind: &str, path: &str, body: Value) -> Answer {
        let media = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            other => format!("application/{other}-patch+json"),
        };
        self.send(
            "PATCH",
            path,
            &[("content-type", &media)],
            body.to_string().into_bytes(),
        )
        .await
    }

    /// Asks again until the answer is as wanted.
    #[track_caller]
    pub(crate) fn until<'a>(
        &'a self,
        path: &'a str,
        wanted: impl Fn(&Answer) -> bool + 'a,
    ) -> impl Future<Output = Answer> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let end = Instant::now() + PATIENCE;
            loop {
                let answer = self.get(path).await;
                if wanted(&answer) {
                    return answer;
                }
                assert!(Instant::now() < end, "{place}: {path} stays {answer:?}");
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Opens a watch; `query` follows `watch=true`.
    pub(crate) async fn watch(&self, path: &str, query: &str) -> Watch {
        self.watch_as(path, query, "application/json").await
    }

    /// Opens a watch with an `Accept` header.
    pub(crate) async fn watch_as(&self, path: &str, query: &str, accept: &str) -> Watch {
        let request = Request::get(format!("{path}?watch=true&{query}")).header("accept", accept);
        let answer = self
            .client
            .send(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        Watch {
            body: answer.into_body(),
            rest: Vec::new(),
        }
    }

    pub(crate) async fn gone(&self, path: &str) {
        self.until(path, |answer| answer.code == 404).await;
    }

    /// Creates a definition of `Widget`s and waits until they are served.
    pub(crate) async fn widgets(&self) {
        self.post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            widgets(),
        )
        .await
        .ok();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
        self.until(path, |answer| has_condition(&answer.body, "Established", "True"))
            .await;
        self.until("/apis/example.com/v1/widgets", |answer| answer.code == 200)
            .await;
    }
}

/// A running watch.
pub(crate) struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = timeout(PATIENCE, self.body.frame())
                .await
                .expect("something happens in time")?;
            self.rest.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    /// Type and name of the next events.
    pub(crate) async fn told(&mut self, count: usize) -> Vec<(String, String)> {
        let mut told = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("the watch goes on");
            let text = |pointer: &str| {
                event
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            told.push((text("/type"), text("/object/metadata/name")));
        }
        told
    }
}

/// `resourceVersion` of an object or a list.
pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Names in a list,
/// but for what every namespace has.
pub(crate) fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .filter(|name| *name != "kube-root-ca.crt")
        .collect()
}

/// Whether a condition of an object has this status.
pub(crate) fn has_condition(object: &Value, kind: &str, status: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == kind && one["status"] == status)
}

/// A config map of the namespace `default`.
pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

pub(crate) fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1}})
}

/// A namespaced kind with a status, two served versions, a default and a bound.
pub(crate) fn widgets() -> Value {
    let schema = json!({"openAPIV3Schema": {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer", "maximum": 10},
                "color": {"type": "string", "default": "red"},
            }},
            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
        },
    }});
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": schema,
            "subresources": {"status": {}},
            "selectableFields": [{"jsonPath": ".spec.color"}],
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}
