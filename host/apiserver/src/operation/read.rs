//! Get and list, the latter in pages that all show the same moment.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Call, Shown};
use crate::answer::{Body, json_answer, list_bytes, shape};
use crate::query::VersionMatch;
use crate::selector::Selector;
use crate::status::ApiError;
use crate::store::object::{Key, Stored};
use crate::store::table::TooOld;

/// `GET` of one object.
pub(super) fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    check_future(call)?;
    let found = call.current().ok_or_else(|| call.not_found())?;
    Ok(call.show(StatusCode::OK, &Shown::Stored(found), &[]))
}

/// A revision that was not given out yet cannot be waited for: nothing else writes here.
pub(crate) fn check_future(call: &Call) -> Result<(), ApiError> {
    let current = call.storage.read().revision;
    match call.query.revision.filter(|asked| *asked > current) {
        Some(asked) => Err(ApiError::future_revision(asked, current)),
        None => Ok(()),
    }
}

/// Where a list goes on: at which moment, after which object.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    #[serde(rename = "rv")]
    revision: u64,
    #[serde(rename = "ns")]
    namespace: String,
    #[serde(rename = "n")]
    name: String,
    /// Shows what is there now, instead of a moment that is forgotten.
    #[serde(rename = "now", default, skip_serializing_if = "std::ops::Not::not")]
    inconsistent: bool,
}

impl Page {
    fn encode(&self) -> String {
        BASE64.encode(serde_json::to_vec(self).expect("a page of numbers and texts serialises"))
    }

    fn parse(token: &str) -> Result<Self, ApiError> {
        let wrong = || ApiError::bad_request("continue key is not valid");
        let bytes = BASE64.decode(token).map_err(|_| wrong())?;
        serde_json::from_slice(&bytes).map_err(|_| wrong())
    }
}

/// `GET` of a collection.
pub(super) fn list(call: &Call, selector: &Selector) -> Result<Response<Body>, ApiError> {
    let query = &call.query;
    let page = if query.continues.is_empty() {
        None
    } else {
        Some(Page::parse(&query.continues)?)
    };
    if page.is_some() && query.revision.is_some_and(|revision| revision != 0) {
        return Err(ApiError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    check_future(call)?;
    let after = page.as_ref().map(|page| Key::new(&page.namespace, &page.name));
    let exact = match &page {
        Some(page) if !page.inconsistent => Some(page.revision),
        Some(_) => None,
        None if query.version_match == VersionMatch::Exact => query.revision,
        None => None,
    };
    let (revision, mut items) =
        gather(call, selector, exact, after.as_ref()).map_err(|gone| match page.as_ref() {
            Some(page) => forgotten_page(page, call.storage.read().revision),
            None => ApiError::expired(format!(
                "The resourceVersion for the provided list is too old. ({} < {})",
                exact.unwrap_or_default(),
                gone.floor
            )),
        })?;
    let mut meta = json!({"resourceVersion": revision.to_string()});
    if query.limit > 0 && items.len() > query.limit {
        let rest = items.len() - query.limit;
        items.truncate(query.limit);
        if let Some(last) = items.last() {
            let next = Page {
                revision,
                namespace: last.key.namespace.clone(),
                name: last.key.name.clone(),
                inconsistent: false,
            };
            meta["continue"] = Value::String(next.encode());
            if selector.is_empty() {
                meta["remainingItemCount"] = json!(rest);
            }
        }
    }
    let bytes = list_bytes(call.resource(), call.format, &items, &meta);
    Ok(json_answer(StatusCode::OK, bytes, &[]))
}

/// Everything that matches now, and the moment that this shows.
pub(super) fn select(call: &Call, selector: &Selector) -> Result<(u64, Vec<Arc<Stored>>), ApiError> {
    gather(call, selector, None, None).map_err(|_| ApiError::internal("the present is never too old"))
}

fn gather(
    call: &Call,
    selector: &Selector,
    exact: Option<u64>,
    after: Option<&Key>,
) -> Result<(u64, Vec<Arc<Stored>>), TooOld> {
    let namespace = call.target.namespace.as_str();
    let (revision, mut items) = {
        let state = call.storage.read();
        let cluster = state.cluster(&call.cluster);
        let table = cluster.and_then(|cluster| cluster.table(&call.table()));
        let revision = exact.unwrap_or(state.revision);
        match (table, exact) {
            (Some(table), Some(exact)) => (revision, table.at(exact, namespace, after)?),
            (Some(table), None) => {
                let one = selector
                    .name()
                    .filter(|_| call.resource().namespaced != namespace.is_empty());
                let items = match one {
                    Some(name) => table
                        .get(&Key::new(namespace, name))
                        .into_iter()
                        .cloned()
                        .collect(),
                    None => table.range(namespace, after).cloned().collect(),
                };
                (revision, items)
            }
            (None, Some(exact)) => match cluster.map(crate::store::Cluster::born) {
                Some(floor) if exact < floor => return Err(TooOld { floor }),
                _ => (revision, Vec::new()),
            },
            (None, None) => (revision, Vec::new()),
        }
    };
    if !selector.is_empty() {
        items.retain(|item| selector.matches(item, |item| shape(call.resource(), item)));
    }
    Ok((revision, items))
}

/// The moment of a page is forgotten; the client gets a token to go on with what is there now.
fn forgotten_page(page: &Page, revision: u64) -> ApiError {
    let next = Page {
        revision,
        namespace: page.namespace.clone(),
        name: page.name.clone(),
        inconsistent: true,
    };
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new \
                   list without the continue parameter, or use the continue token in this response to retrieve the \
                   remainder of the results. Continuing with the provided token results in an inconsistent list - \
                   objects that were created, modified, or deleted between the time the first chunk was returned and \
                   now may show up in the list.";
    let mut error = ApiError::expired(message);
    error.continues = Some(next.encode());
    error
}
