//! Objects of any kind: where the API serves them, and live reads of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use hostler_core::loan;
use hostler_core::seams::ObjectRef;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::Value;

use super::look::Look;
use crate::error::{Error, Result};
use crate::patch;

/// apiVersion, kind and namespace.
type Place = (String, String, String);

/// Kinds that were looked up, by (apiVersion, kind).
#[derive(Default)]
pub(crate) struct Kinds {
    known: RwLock<HashMap<(String, String), ApiResource>>,
    lent: Mutex<HashMap<Place, Arc<Look<Vec<Value>>>>>,
}

impl Kinds {
    /// The API of a kind in a namespace.
    pub(crate) async fn api(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
    ) -> Result<Api<DynamicObject>> {
        let key = (api_version.to_owned(), kind.to_owned());
        let known = self.known.read().expect("no holder panics").get(&key).cloned();
        let resource = match known {
            Some(resource) => resource,
            None => {
                let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                let kind = GroupVersionKind::gvk(group, version, kind);
                let found = kube::discovery::pinned_kind(client, &kind);
                let (resource, _) = patch::within(format!("looking up {}", kind.kind), found).await?;
                self.known
                    .write()
                    .expect("no holder panics")
                    .insert(key, resource.clone());
                resource
            }
        };
        Ok(match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        })
    }

    /// The API that one object is in.
    pub(crate) async fn api_of(&self, client: &Client, object: &ObjectRef) -> Result<Api<DynamicObject>> {
        self.api(
            client,
            &object.api_version,
            &object.kind,
            object.namespace.as_deref(),
        )
        .await
    }

    /// A live read of one object; `None` where there is none.
    pub(crate) async fn get(&self, client: &Client, object: &ObjectRef) -> Result<Option<Value>> {
        let api = match self.api_of(client, object).await {
            Err(error) if error.is_not_found() => return Ok(None),
            api => api?,
        };
        let found = patch::within(
            format!("reading {} {}", object.kind, object.name),
            api.get_opt(&object.name),
        )
        .await?;
        found.map(|found| whole(&found, object)).transpose()
    }

    /// The metadata of the objects of a kind that are lent to anybody, on a live look. A thousand claims that end together look at all of a
    /// thousand machines a few times, not a thousand times.
    pub(crate) async fn lent(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
        namespace: &str,
    ) -> Result<Arc<Vec<Value>>> {
        let api = match self.api(client, api_version, kind, Some(namespace)).await {
            Err(error) if error.is_not_found() => return Ok(Arc::default()),
            api => api?,
        };
        let key = (api_version.to_owned(), kind.to_owned(), namespace.to_owned());
        let look = self
            .lent
            .lock()
            .expect("no holder panics")
            .entry(key)
            .or_default()
            .clone();
        look.now(async {
            let all = ListParams::default();
            let found = patch::within(format!("listing {kind}"), api.list_metadata(&all)).await?;
            let mut lent = Vec::new();
            for object in &found.items {
                let object = json(object)?;
                if loan::is_lent(&object) {
                    lent.push(object);
                }
            }
            Ok(lent)
        })
        .await
    }
}

/// An object as JSON, with the kind that it was asked for by.
pub(crate) fn whole(object: &DynamicObject, named: &ObjectRef) -> Result<Value> {
    let mut value = json(object)?;
    if object.types.is_none() {
        value["apiVersion"] = Value::String(named.api_version.clone());
        value["kind"] = Value::String(named.kind.clone());
    }
    Ok(value)
}

fn json(object: &impl Serialize) -> Result<Value> {
    serde_json::to_value(object).map_err(|error| Error::Bug(format!("an object has no JSON form: {error}")))
}
