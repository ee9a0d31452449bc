//! What goes back: bodies, formats, and objects in the shape in which a resource shows them.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};

use crate::builtin;
use crate::crd;
use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::object::Stored;
use crate::table::{self, IncludeObject};

/// The body of every answer: whole, or a stream of events.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Form in which the client wants objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// As they are.
    Json,
    /// As rows.
    Table(IncludeObject, MetaVersion),
    /// Their metadata only.
    Partial(MetaVersion),
}

/// The version of the kinds that are made for the answer; both look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaVersion {
    /// The usual one.
    V1,
    /// What older clients ask for.
    V1Beta1,
}

impl MetaVersion {
    fn parse(text: Option<&str>) -> Option<Self> {
        match text? {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        }
    }

    /// As objects carry it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

impl Format {
    /// The first form in `Accept` that we have.
    pub(crate) fn negotiate(headers: &HeaderMap, include_object: &str) -> Result<Self, ApiError> {
        let Some(accept) = headers.get(ACCEPT).and_then(|value| value.to_str().ok()) else {
            return Ok(Self::Json);
        };
        for wish in accept.split(',') {
            let mut parts = wish.split(';').map(str::trim);
            if !matches!(
                parts.next(),
                Some("application/json" | "application/*" | "*/*" | "")
            ) {
                continue;
            }
            let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let parameter = |name: &str| {
                parameters
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| *value)
            };
            let version =
                MetaVersion::parse(parameter("v")).filter(|_| parameter("g") == Some("meta.k8s.io"));
            match (parameter("as"), version) {
                (None, _) => return Ok(Self::Json),
                (Some("Table"), Some(version)) => {
                    let include = IncludeObject::parse(include_object).ok_or_else(|| {
                        ApiError::bad_request(format!("unrecognized includeObject value: {include_object:?}"))
                    })?;
                    return Ok(Self::Table(include, version));
                }
                (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some(version)) => {
                    return Ok(Self::Partial(version));
                }
                (Some(_), _) => {}
            }
        }
        let message = "only the following media types are accepted: application/json";
        Err(ApiError::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            message,
        ))
    }
}

/// A stored object in the shape of a resource.
pub(crate) fn shape(resource: &Resource, stored: &Stored) -> Value {
    let mut object = stored.value();
    if is_reshaped(resource) {
        reshape(resource, &mut object);
    }
    if is_outdated(resource, stored) {
        crd::prune(&resource.schema, &mut object);
        crd::default(&resource.schema, &mut object);
    }
    object
}

/// Whether what is stored is not what the resource shows.
fn is_reshaped(resource: &Resource) -> bool {
    resource.version != resource.storage_version || builtin::storage_group(resource) != resource.group
}

/// Whether an object was written before its definition became what it is, and so may have what that does not know, and
/// lack what that adds.
fn is_outdated(resource: &Resource, stored: &Stored) -> bool {
    resource.custom && stored.revision < resource.since
}

fn reshape(resource: &Resource, object: &mut Value) {
    if resource.version != resource.storage_version {
        object["apiVersion"] = Value::String(api_version(resource));
    }
    builtin::from_storage(resource, object);
}

/// The object as it is stored, from the shape of a resource.
pub(crate) fn unshape(resource: &Resource, object: &mut Value) {
    if resource.version != resource.storage_version {
        object["apiVersion"] = Value::String(format!("{}/{}", resource.group, resource.storage_version));
    }
    builtin::to_storage(resource, object);
}

/// `v1`, or `group/version`.
pub(crate) fn api_version(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.version.clone()
    } else {
        format!("{}/{}", resource.group, resource.version)
    }
}

/// The bytes of one object in a format.
pub(crate) fn object_bytes(resource: &Resource, format: Format, stored: &Stored) -> Bytes {
    if format == Format::Json && !is_reshaped(resource) && !is_outdated(resource, stored) {
        return stored.bytes.clone();
    }
    value_bytes(resource, format, &shape(resource, stored))
}

/// The bytes of one object, in the shape of the resource, in a format.
pub(crate) fn value_bytes(resource: &Resource, format: Format, object: &Value) -> Bytes {
    let shown = match format {
        Format::Json => return Bytes::from(object.to_string()),
        Format::Table(include, version) => {
            let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            table::table(resource, std::slice::from_ref(object), &meta, (include, version))
        }
        Format::Partial(version) => table::partial(object, version),
    };
    Bytes::from(shown.to_string())
}

/// The bytes of a list in a format.
pub(crate) fn list_bytes(
    resource: &Resource,
    format: Format,
    items: &[std::sync::Arc<Stored>],
    meta: &Value,
) -> Bytes {
    let (kind, version) = match format {
        Format::Json => (resource.list_kind.clone(), api_version(resource)),
        Format::Partial(version) => (
            "PartialObjectMetadataList".to_owned(),
            version.as_str().to_owned(),
        ),
        Format::Table(include, version) => {
            let items: Vec<Value> = items.iter().map(|item| shape(resource, item)).collect();
            return Bytes::from(table::table(resource, &items, meta, (include, version)).to_string());
        }
    };
    // As the real server writes them: items of built-in kinds do not repeat what the list says, and an untyped list
    // always says whether it goes on.
    let mut meta = meta.clone();
    if resource.custom && format == Format::Json && meta["continue"].is_null() {
        meta["continue"] = Value::String(String::new());
    }
    let size: usize = items.iter().map(|item| item.bytes.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{meta},\"items\":[",
        Value::String(kind),
        Value::String(version)
    );
    out.extend_from_slice(head.as_bytes());
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let bytes = object_bytes(resource, format, item);
        if !resource.custom && format == Format::Json {
            push_untyped(&mut out, &bytes, resource);
        } else {
            out.extend_from_slice(&bytes);
        }
    }
    out.extend_from_slice(b"]}");
    Bytes::from(out)
}

/// Adds an object without its `apiVersion` and `kind`.
fn push_untyped(out: &mut Vec<u8>, bytes: &[u8], resource: &Resource) {
    // Both come first in all that is kept, so that nothing has to be parsed here.
    let head = format!(
        "{{\"apiVersion\":\"{}\",\"kind\":\"{}\",",
        api_version(resource),
        resource.kind
    );
    if let Some(rest) = bytes.strip_prefix(head.as_bytes()) {
        out.push(b'{');
        return out.extend_from_slice(rest);
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(bytes) else {
        return out.extend_from_slice(bytes);
    };
    fields.shift_remove("apiVersion");
    fields.shift_remove("kind");
    out.extend_from_slice(Value::Object(fields).to_string().as_bytes());
}

/// An answer of JSON.
pub(crate) fn json_answer(code: StatusCode, bytes: impl Into<Bytes>, warnings: &[String]) -> Response<Body> {
    let mut answer = Response::new(Full::new(bytes.into()).boxed_unsync());
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    warnings
        .iter()
        .fold(answer, |answer, warning| warned(answer, warning))
}

/// An answer with a warning for the user of the client.
pub(crate) fn warned(mut answer: Response<Body>, warning: &str) -> Response<Body> {
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        answer.headers_mut().append(WARNING, value);
    }
    answer
}

/// An answer of plain text.
pub(crate) fn text_answer(code: StatusCode, text: &'static str) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync());
    *answer.status_mut() = code;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// A refusal.
pub(crate) fn error_answer(error: &ApiError) -> Response<Body> {
    let mut answer = json_answer(error.code, error.body().to_string(), &[]);
    if let Some(seconds) = error.details.get("retryAfterSeconds").and_then(Value::as_u64) {
        answer
            .headers_mut()
            .insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}
