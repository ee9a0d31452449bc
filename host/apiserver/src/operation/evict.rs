//! Eviction of a pod: a delete by another name, as there are no disruption budgets here.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::Call;
use super::delete::{DeleteOptions, remove};
use crate::admission;
use crate::answer::{Body, json_answer};
use crate::status::ApiError;

/// `POST …/pods/<name>/eviction`
pub(super) async fn evict(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(call, body)?;
    let admit = |old: &Value| admission::admit(&call.identity, &call.wish(None), Some(old), None);
    remove(
        &call.storage,
        (&call.cluster, call.resource()),
        &call.key(),
        &options,
        call.now,
        admit,
    )
    .await?;
    let done =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(json_answer(StatusCode::CREATED, done.to_string(), &[]))
}
