//! Binding of a pod: how a scheduler says on which node it is to run.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Call, decode, metadata, refused};
use crate::answer::{Body, json_answer};
use crate::registry;
use crate::status::ApiError;
use crate::store::{Expect, Refused, Write};

/// `POST …/pods/<name>/binding`
pub(super) async fn bind(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let binding = match decode::media_type(call).as_str() {
        "application/json" | "application/yaml" => decode::yaml(body).map_err(ApiError::bad_request)?,
        _ => {
            return Err(ApiError::unsupported_media_type(&[
                "application/json",
                "application/yaml",
            ]));
        }
    };
    if metadata::text(&binding, "name") != call.target.name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    check_target(&binding["target"])?;
    loop {
        let old = call.current().ok_or_else(|| call.not_found())?;
        let mut pod = old.value();
        check_preconditions(call, &binding, &pod, old.revision)?;
        assign(call, &binding, &mut pod)?;
        let write = Write {
            cluster: call.cluster.clone(),
            table: registry::table(call.resource()),
            key: call.key(),
            expect: Expect::Revision(old.revision),
            guards: Vec::new(),
            object: Some(pod),
        };
        if !call.query.dry_run {
            match call.storage.write(write).await {
                Ok(_) => {}
                Err(Refused::Raced) => continue,
                Err(other) => return Err(refused(other)),
            }
        }
        let done =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        return Ok(json_answer(StatusCode::CREATED, done.to_string(), &[]));
    }
}

/// The real server does not call these invalid: its refusal has no reason.
fn check_target(target: &Value) -> Result<(), ApiError> {
    let mut wrong = Vec::new();
    let kind = target["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Node") {
        wrong.push(format!(
            "target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\""
        ));
    }
    if target["name"].as_str().unwrap_or_default().is_empty() {
        wrong.push("target.name: Required value".to_owned());
    }
    let message = match wrong.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message))
}

/// A scheduler that looked at another pod of the name, or at another version of it, binds nothing.
fn check_preconditions(call: &Call, binding: &Value, pod: &Value, revision: u64) -> Result<(), ApiError> {
    let found = revision.to_string();
    let checks = [
        ("UID", metadata::text(binding, "uid"), metadata::text(pod, "uid")),
        (
            "ResourceVersion",
            metadata::text(binding, "resourceVersion"),
            found.as_str(),
        ),
    ];
    for (what, asked, found) in checks {
        if !asked.is_empty() && asked != found {
            let why = format!(
                "Precondition failed: {what} in precondition: {asked}, {what} in object meta: {found}"
            );
            return Err(ApiError::conflict("", "pods", &call.target.name, &why));
        }
    }
    Ok(())
}

fn assign(call: &Call, binding: &Value, pod: &mut Value) -> Result<(), ApiError> {
    let name = &call.target.name;
    let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return conflict(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !node.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {node:?}"));
    }
    if pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for field in ["annotations", "labels"] {
        let more = binding["metadata"][field]
            .as_object()
            .cloned()
            .unwrap_or_default();
        if more.is_empty() {
            continue;
        }
        if let Some(meta) = metadata::of(pod) {
            let known = meta.entry(field).or_insert_with(|| json!({}));
            if let Some(known) = known.as_object_mut() {
                known.extend(more);
            }
        }
    }
    let Some(status) = pod
        .as_object_mut()
        .map(|pod| pod.entry("status").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
    else {
        return Ok(());
    };
    status.remove("nominatedNodeName");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return Ok(());
    };
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": call.stamp()});
    match conditions.iter_mut().find(|one| one["type"] == "PodScheduled") {
        Some(known) if known["status"] == "True" => {}
        Some(known) => *known = scheduled,
        None => conditions.push(scheduled),
    }
    Ok(())
}
