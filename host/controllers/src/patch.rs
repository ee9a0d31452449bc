//! The only place that writes to an API. Every write has a time limit, and every change a precondition.

use std::fmt::Debug;
use std::future::Future;

use hostler_api::names::FIELD_MANAGER;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Error, Result, code};
use crate::requests::{self, PATIENCE};

/// What a create found.
pub enum Created<K> {
    /// It was made.
    New(K),
    /// An object of that name is there already; nothing was written.
    Exists,
}

/// Creates an object; one that exists is left alone and told.
///
/// # Errors
/// `Error::Api` and `Error::Timeout`.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<Created<K>>
where
    K: Clone + Debug + DeserializeOwned + Serialize + Resource,
{
    let doing = format!("creating {}", object.name_any());
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match within(doing, api.create(&params, object)).await {
        Ok(made) => Ok(Created::New(made)),
        Err(Error::Api {
            source: kube::Error::Api(status),
            ..
        }) if status.reason == "AlreadyExists" => Ok(Created::Exists),
        Err(error) => Err(error),
    }
}

/// Changes an object by a JSON merge patch, only if it is still at this resourceVersion.
///
/// # Errors
/// `Error::Api` (409 when somebody else wrote first) and `Error::Timeout`.
pub async fn update<K>(api: &Api<K>, name: &str, resource_version: &str, change: Value) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    let body = guarded(change, resource_version);
    within(
        format!("changing {name}"),
        api.patch(name, &params(), &Patch::Merge(&body)),
    )
    .await
}

/// Changes the status by a JSON merge patch, only if the object is still at this resourceVersion.
///
/// # Errors
/// As `update`.
pub async fn update_status<K, S>(api: &Api<K>, name: &str, resource_version: &str, status: &S) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned,
    S: Serialize,
{
    let body = guarded(json!({ "status": status }), resource_version);
    within(
        format!("writing the status of {name}"),
        api.patch_status(name, &params(), &Patch::Merge(&body)),
    )
    .await
}

/// Changes an object by the operations of a JSON patch, only if it is still at this resourceVersion. It says what a merge patch cannot: a
/// null that stands as a value.
///
/// # Errors
/// As `update`.
pub async fn operate<K>(api: &Api<K>, name: &str, resource_version: &str, operations: Vec<Value>) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    let doing = format!("changing {name}");
    // The server takes the version that stands in the outcome for the one that was meant.
    let guard = json!({ "op": "add", "path": "/metadata/resourceVersion", "value": resource_version });
    let whole: Vec<Value> = std::iter::once(guard).chain(operations).collect();
    let patch = serde_json::from_value(Value::Array(whole))
        .map_err(|error| Error::Bug(format!("{doing}: no JSON patch: {error}")))?;
    within(doing, api.patch(name, &params(), &Patch::<()>::Json(patch))).await
}

/// Writes a whole object over the one that is at its resourceVersion.
///
/// # Errors
/// As `update`.
pub async fn replace<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize + Resource,
{
    let name = object.name_any();
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    within(format!("replacing {name}"), api.replace(&name, &params, object)).await
}

/// Writes a whole status over that of the object that is at its resourceVersion: fields left out go away.
///
/// # Errors
/// As `update`.
pub async fn replace_status<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize + Resource,
{
    let name = object.name_any();
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    within(
        format!("writing the status of {name}"),
        api.replace_status(&name, &params, object),
    )
    .await
}

/// Deletes an object, only if it is still the one with this uid. True when it is (or was) gone already.
///
/// # Errors
/// `Error::Api` and `Error::Timeout`; another object of the same name counts as gone.
pub async fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> Result<bool>
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    match within(format!("deleting {name}"), api.delete(name, &params)).await {
        Ok(either) => Ok(either.is_right()),
        Err(Error::Api { source, .. }) if matches!(code(&source), Some(404 | 409)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Approves (`Approved`) or denies (`Denied`) a certificate request, only if nobody has changed it since it was read.
///
/// # Errors
/// As `update`.
pub async fn decide(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
    decision: &str,
    reason: &str,
    message: &str,
) -> Result<()> {
    let name = request.name_any();
    let mut conditions = request
        .status
        .clone()
        .unwrap_or_default()
        .conditions
        .unwrap_or_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: decision.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..CertificateSigningRequestCondition::default()
    });
    let version = request.resource_version().unwrap_or_default();
    let body = guarded(json!({ "status": { "conditions": conditions } }), &version);
    within(
        format!("deciding on {name}"),
        api.patch_approval(&name, &params(), &Patch::Merge(&body)),
    )
    .await?;
    Ok(())
}

/// What becomes of a pod that is asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It leaves, or has left.
    Leaves,
    /// A disruption budget keeps it for now.
    Kept,
}

/// Asks a pod to leave its node, if it still is the one that was seen there.
///
/// # Errors
/// `Error::Api` and `Error::Timeout`.
pub async fn evict(pods: &Api<Pod>, name: &str, uid: &str) -> Result<Eviction> {
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name },
        "deleteOptions": { "preconditions": { "uid": uid } },
    });
    let options = PostParams::default();
    let asked = pods.create_subresource::<_, Value>("eviction", name, &options, &body);
    match within(format!("evicting pod {name}"), asked).await {
        Ok(_) => Ok(Eviction::Leaves),
        // Gone, or another one of its name, which may be elsewhere.
        Err(Error::Api { source, .. }) if matches!(code(&source), Some(404 | 409)) => Ok(Eviction::Leaves),
        Err(Error::Api {
            source: kube::Error::Api(status),
            ..
        }) if requests::keeps_a_pod(&status) => Ok(Eviction::Kept),
        Err(error) => Err(error),
    }
}

/// Runs one request with a name and a time limit.
pub(crate) async fn within<T>(doing: String, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { doing, source }),
        Err(_) => Err(Error::Timeout {
            doing,
            seconds: PATIENCE.as_secs(),
        }),
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn guarded(mut change: Value, resource_version: &str) -> Value {
    change["metadata"]["resourceVersion"] = Value::String(resource_version.to_owned());
    change
}
