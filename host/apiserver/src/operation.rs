//! One request for objects: who asks for what, and what is done about it.

mod bind;
pub(crate) mod create;
pub(crate) mod decode;
pub(crate) mod delete;
mod evict;
mod log;
mod metadata;
mod patch;
mod question;
mod read;
mod update;

pub(crate) use self::read::check_future;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::answer::{Body, Format, json_answer, object_bytes, value_bytes, warned};
use crate::authenticate::Identity;
use crate::authorize::{self, Attributes};
use crate::builtin;
use crate::clock::stamp;
use crate::kubelets::Kubelets;
use crate::query::Query;
use crate::registry::{self, Registry};
use crate::resource::Resource;
use crate::routes::{Target, Verb};
use crate::selector::Selector;
use crate::status::ApiError;
use crate::store::object::{Key, Stored};
use crate::store::{Refused, Storage};
use crate::watch;

/// One request.
pub(crate) struct Call {
    /// The store.
    pub(crate) storage: Arc<Storage>,
    /// Cluster.
    pub(crate) cluster: String,
    /// Who asks.
    pub(crate) identity: Identity,
    /// The kinds of the cluster when the request came.
    pub(crate) registry: Arc<Registry>,
    /// Which of them is meant.
    pub(crate) index: usize,
    /// Where.
    pub(crate) target: Target,
    /// What is to be done.
    pub(crate) verb: Verb,
    /// Parameters.
    pub(crate) query: Query,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// The form of the answer.
    pub(crate) format: Format,
    /// When the request came.
    pub(crate) now: Timestamp,
    /// Ends watches.
    pub(crate) stop: CancellationToken,
    /// The way to kubelets.
    pub(crate) kubelets: Arc<Kubelets>,
}

impl Call {
    /// The resource.
    pub(crate) fn resource(&self) -> &Resource {
        &self.registry.all()[self.index]
    }

    /// Table of the resource.
    pub(crate) fn table(&self) -> String {
        registry::table(self.resource())
    }

    /// The object that the path names.
    pub(crate) fn key(&self) -> Key {
        Key::new(&self.target.namespace, &self.target.name)
    }

    /// The time as objects carry it.
    pub(crate) fn stamp(&self) -> String {
        stamp(self.now)
    }

    /// The subresource, if any.
    pub(crate) fn subresource(&self) -> Option<&str> {
        Some(self.target.subresource.as_str()).filter(|name| !name.is_empty())
    }

    /// Who writes, for managed fields: as the client says, or the begin of its user agent.
    pub(crate) fn manager(&self) -> String {
        if !self.query.manager.is_empty() {
            return self.query.manager.clone();
        }
        let agent = self
            .headers
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok());
        let name: String = agent
            .unwrap_or_default()
            .split('/')
            .next()
            .unwrap_or_default()
            .chars()
            .take(128)
            .collect();
        if name.is_empty() {
            "unknown".to_owned()
        } else {
            name
        }
    }

    /// What the authorizer is asked.
    pub(crate) fn wish(&self, selector: Option<&Selector>) -> Attributes {
        Attributes {
            verb: self.verb.as_str().to_owned(),
            group: self.resource().group.clone(),
            resource: self.resource().plural.clone(),
            subresource: self.target.subresource.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
            path: String::new(),
            field_selector: selector.map(Selector::equalities).unwrap_or_default(),
        }
    }

    /// The object that the path names, as it is now.
    pub(crate) fn current(&self) -> Option<Arc<Stored>> {
        self.storage.get(&self.cluster, &self.table(), &self.key())
    }

    /// That the object does not exist.
    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.resource().group, &self.resource().plural, &self.target.name)
    }

    /// An object as the answer.
    pub(crate) fn show(&self, code: StatusCode, object: &Shown, warnings: &[String]) -> Response<Body> {
        let bytes = match object {
            Shown::Stored(stored) => object_bytes(self.resource(), self.format, stored),
            Shown::Value(value) => value_bytes(self.resource(), self.format, value),
        };
        json_answer(code, bytes, warnings)
    }

    /// Carries out the request.
    pub(crate) async fn answer(self, body: Bytes) -> Result<Response<Body>, ApiError> {
        let selector = Selector::parse(
            self.resource(),
            &self.query.label_selector,
            &self.query.field_selector,
        )?;
        let lookup = Lookup {
            storage: &self.storage,
            cluster: &self.cluster,
        };
        authorize::authorize(&self.identity, &self.wish(Some(&selector)), &lookup)?;
        let plain = self.target.subresource.is_empty();
        let kind = (
            self.resource().custom,
            self.resource().kind.as_str(),
            self.target.subresource.as_str(),
        );
        let is_known = match kind {
            (_, _, "") => true,
            (_, _, "status") => self.resource().has_status,
            (false, "Namespace", "finalize") | (false, "CertificateSigningRequest", "approval") => true,
            (false, "Pod", "eviction" | "binding") => self.verb == Verb::Create,
            (false, "Pod", "log") => self.verb == Verb::Get,
            _ => false,
        };
        if !is_known {
            // The real server looks a custom kind's object up before it finds that it has no such part.
            return Err(if self.resource().custom {
                self.not_found()
            } else {
                ApiError::unknown_path()
            });
        }
        if builtin::is_question(self.resource()) {
            return question::ask(&self, &body);
        }
        let warning = self.resource().deprecation.clone();
        let answer = self.carry_out(selector, &body, plain).await;
        answer.map(|answer| match warning {
            Some(warning) => warned(answer, &warning),
            None => answer,
        })
    }

    async fn carry_out(
        self,
        selector: Selector,
        body: &Bytes,
        plain: bool,
    ) -> Result<Response<Body>, ApiError> {
        match self.verb {
            Verb::Get if self.target.subresource == "log" => log::log(&self).await,
            Verb::Get => read::get(&self),
            Verb::List => read::list(&self, &selector),
            Verb::Watch => watch::watch(&self, selector),
            Verb::Create if self.target.subresource == "eviction" => evict::evict(&self, body).await,
            Verb::Create if self.target.subresource == "binding" => bind::bind(&self, body).await,
            Verb::Create if plain => create::create(&self, body).await,
            Verb::Update => update::update(&self, body).await,
            Verb::Patch => patch::patch(&self, body).await,
            Verb::Delete if plain => delete::delete(&self, body).await,
            Verb::DeleteCollection if plain => delete::delete_collection(&self, &selector, body).await,
            Verb::Create | Verb::Delete | Verb::DeleteCollection => Err(ApiError::method_not_allowed()),
        }
    }
}

/// An object to be shown.
#[derive(Debug)]
pub(crate) enum Shown {
    /// As it is in the store.
    Stored(Arc<Stored>),
    /// As it would be, or was; in the shape of the resource.
    Value(Value),
}

/// Lets the authorizer look at objects.
pub(crate) struct Lookup<'a> {
    /// The store.
    pub(crate) storage: &'a Storage,
    /// The cluster.
    pub(crate) cluster: &'a str,
}

impl authorize::Lookup for Lookup<'_> {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let table = crate::status::qualified(group, resource);
        self.storage
            .get(self.cluster, &table, &Key::new(namespace, name))
            .map(|found| found.value())
    }

    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Value> {
        let table = crate::status::qualified(group, resource);
        let found: Vec<Arc<Stored>> = {
            let state = self.storage.read();
            let table = state
                .cluster(self.cluster)
                .and_then(|cluster| cluster.table(&table));
            table
                .into_iter()
                .flat_map(|table| table.range(namespace, None).cloned())
                .collect()
        };
        found.iter().map(|object| object.value()).collect()
    }
}

/// The refusal of the store, for the client.
pub(crate) fn refused(refused: Refused) -> ApiError {
    match refused {
        Refused::NoCluster => ApiError::unknown_path(),
        other @ (Refused::Raced | Refused::Disk(_)) => ApiError::internal(other),
    }
}
