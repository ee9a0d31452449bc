//! Objects in Kubernetes' protobuf form, as far as kubectl sends any.
//!
//! Since 1.32 the typed commands of kubectl (`create configmap`, `create namespace`, `certificate approve`, `drain`, …)
//! write protobuf and would not take a refusal for an answer. Only what those commands send is read here; a kind or a
//! field that is not known is an error, never dropped in silence. Answers are JSON, which they accept.

mod definition;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::clock::stamp;

/// Media type of this form.
pub(crate) const MEDIA: &str = "application/vnd.kubernetes.protobuf";

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// How a field is written, and what it is in JSON.
#[derive(Clone, Copy)]
enum Form {
    /// Text; empty means absent.
    Text,
    /// Bytes, which JSON has as base64.
    Bytes,
    /// A number.
    Number,
    /// A number of which none is nothing.
    Count,
    /// A number that may have a fraction.
    Double,
    /// A truth value.
    Truth,
    /// A truth value of which no is nothing.
    Flag,
    /// Seconds since 1970; none means absent.
    Time,
    /// JSON in bytes, wrapped in a message.
    Json,
    /// A message.
    Message(&'static [Field]),
    /// The schema of a custom kind, which holds others.
    Schema,
    /// One of several, wrapped in a message; the first of those that are there.
    Choice(&'static [Field]),
    /// A map from texts to this.
    Map(&'static Form),
}

struct Field {
    number: u64,
    name: &'static str,
    form: Form,
    is_list: bool,
}

const fn one(number: u64, name: &'static str, form: Form) -> Field {
    Field {
        number,
        name,
        form,
        is_list: false,
    }
}

const fn list(number: u64, name: &'static str, form: Form) -> Field {
    Field {
        number,
        name,
        form,
        is_list: true,
    }
}

use Form::{Bytes, Choice, Count, Double, Flag, Json, Map as Pairs, Message, Number, Text, Time, Truth};

const ENVELOPE: &[Field] = &[
    one(
        1,
        "typeMeta",
        Message(&[one(1, "apiVersion", Text), one(2, "kind", Text)]),
    ),
    one(2, "raw", Bytes),
    one(3, "contentEncoding", Text),
    one(4, "contentType", Text),
];

const META: &[Field] = &[
    one(1, "name", Text),
    one(2, "generateName", Text),
    one(3, "namespace", Text),
    one(4, "selfLink", Text),
    one(5, "uid", Text),
    one(6, "resourceVersion", Text),
    one(7, "generation", Number),
    one(8, "creationTimestamp", Time),
    one(9, "deletionTimestamp", Time),
    one(10, "deletionGracePeriodSeconds", Number),
    one(11, "labels", Pairs(&Text)),
    one(12, "annotations", Pairs(&Text)),
    list(13, "ownerReferences", Message(OWNER)),
    list(14, "finalizers", Text),
    list(17, "managedFields", Message(MANAGED)),
];

const OWNER: &[Field] = &[
    one(1, "kind", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "controller", Truth),
    one(7, "blockOwnerDeletion", Truth),
];

const MANAGED: &[Field] = &[
    one(1, "manager", Text),
    one(2, "operation", Text),
    one(3, "apiVersion", Text),
    one(4, "time", Time),
    one(6, "fieldsType", Text),
    one(7, "fieldsV1", Json),
    one(8, "subresource", Text),
];

const CONFIG_MAP: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "data", Pairs(&Text)),
    one(3, "binaryData", Pairs(&Bytes)),
    one(4, "immutable", Truth),
];

const SECRET: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "data", Pairs(&Bytes)),
    one(3, "type", Text),
    one(4, "stringData", Pairs(&Text)),
    one(5, "immutable", Truth),
];

const NAMESPACE: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "spec", Message(&[list(1, "finalizers", Text)])),
    one(3, "status", Message(&[one(1, "phase", Text)])),
];

const REFERENCE: &[Field] = &[
    one(1, "kind", Text),
    one(2, "namespace", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "resourceVersion", Text),
    one(7, "fieldPath", Text),
];

const SERVICE_ACCOUNT: &[Field] = &[
    one(1, "metadata", Message(META)),
    list(2, "secrets", Message(REFERENCE)),
    list(3, "imagePullSecrets", Message(&[one(1, "name", Text)])),
    one(4, "automountServiceAccountToken", Truth),
];

const RULE: &[Field] = &[
    list(1, "verbs", Text),
    list(2, "apiGroups", Text),
    list(3, "resources", Text),
    list(4, "resourceNames", Text),
    list(5, "nonResourceURLs", Text),
];

const ROLE: &[Field] = &[one(1, "metadata", Message(META)), list(2, "rules", Message(RULE))];

const LABEL_SELECTOR: &[Field] = &[
    one(1, "matchLabels", Pairs(&Text)),
    list(
        2,
        "matchExpressions",
        Message(&[
            one(1, "key", Text),
            one(2, "operator", Text),
            list(3, "values", Text),
        ]),
    ),
];

const CLUSTER_ROLE: &[Field] = &[
    one(1, "metadata", Message(META)),
    list(2, "rules", Message(RULE)),
    one(
        3,
        "aggregationRule",
        Message(&[list(1, "clusterRoleSelectors", Message(LABEL_SELECTOR))]),
    ),
];

const SUBJECT: &[Field] = &[
    one(1, "kind", Text),
    one(2, "apiGroup", Text),
    one(3, "name", Text),
    one(4, "namespace", Text),
];

const BINDING: &[Field] = &[
    one(1, "metadata", Message(META)),
    list(2, "subjects", Message(SUBJECT)),
    one(
        3,
        "roleRef",
        Message(&[
            one(1, "apiGroup", Text),
            one(2, "kind", Text),
            one(3, "name", Text),
        ]),
    ),
];

const CONDITION: &[Field] = &[
    one(1, "type", Text),
    one(2, "reason", Text),
    one(3, "message", Text),
    one(4, "lastUpdateTime", Time),
    one(5, "lastTransitionTime", Time),
    one(6, "status", Text),
];

const REQUEST: &[Field] = &[
    one(1, "request", Bytes),
    one(2, "username", Text),
    one(3, "uid", Text),
    list(4, "groups", Text),
    list(5, "usages", Text),
    one(6, "extra", Pairs(&Message(&[list(1, "items", Text)]))),
    one(7, "signerName", Text),
    one(8, "expirationSeconds", Number),
];

const SIGNING_REQUEST: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "spec", Message(REQUEST)),
    one(
        3,
        "status",
        Message(&[
            list(1, "conditions", Message(CONDITION)),
            one(2, "certificate", Bytes),
        ]),
    ),
];

const REQUIREMENTS: &[Field] = &[
    one(1, "rawSelector", Text),
    list(
        2,
        "requirements",
        Message(&[
            one(1, "key", Text),
            one(2, "operator", Text),
            list(3, "values", Text),
        ]),
    ),
];

const WISH: &[Field] = &[
    one(1, "namespace", Text),
    one(2, "verb", Text),
    one(3, "group", Text),
    one(4, "version", Text),
    one(5, "resource", Text),
    one(6, "subresource", Text),
    one(7, "name", Text),
    one(8, "fieldSelector", Message(REQUIREMENTS)),
    one(9, "labelSelector", Message(REQUIREMENTS)),
];

const ACCESS_REVIEW: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(
        2,
        "spec",
        Message(&[
            one(1, "resourceAttributes", Message(WISH)),
            one(
                2,
                "nonResourceAttributes",
                Message(&[one(1, "path", Text), one(2, "verb", Text)]),
            ),
        ]),
    ),
    one(
        3,
        "status",
        Message(&[
            one(1, "allowed", Truth),
            one(2, "reason", Text),
            one(3, "evaluationError", Text),
            one(4, "denied", Truth),
        ]),
    ),
];

const SUBJECT_REVIEW: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(
        2,
        "status",
        Message(&[one(
            1,
            "userInfo",
            Message(&[
                one(1, "username", Text),
                one(2, "uid", Text),
                list(3, "groups", Text),
                one(4, "extra", Pairs(&Message(&[list(1, "items", Text)]))),
            ]),
        )]),
    ),
];

const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Number),
    one(
        2,
        "preconditions",
        Message(&[one(1, "uid", Text), one(2, "resourceVersion", Text)]),
    ),
    one(3, "orphanDependents", Truth),
    one(4, "propagationPolicy", Text),
    list(5, "dryRun", Text),
];

const EVICTION: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "deleteOptions", Message(DELETE_OPTIONS)),
];

/// What is known of a kind.
fn fields_of(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" => NAMESPACE,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "Role" => ROLE,
        "ClusterRole" => CLUSTER_ROLE,
        "RoleBinding" | "ClusterRoleBinding" => BINDING,
        "CertificateSigningRequest" => SIGNING_REQUEST,
        "SelfSubjectAccessReview" => ACCESS_REVIEW,
        "SelfSubjectReview" => SUBJECT_REVIEW,
        "CustomResourceDefinition" => definition::DEFINITION,
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => EVICTION,
        _ => return None,
    })
}

/// Reads a body; an error says what is not read here.
pub(crate) fn decode(body: &[u8]) -> Result<Value, String> {
    let body = body
        .strip_prefix(MAGIC)
        .ok_or("the body does not begin as a Kubernetes object does")?;
    let envelope = message("object", ENVELOPE, body)?;
    let text = |pointer: &str| {
        envelope
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let kind = text("/typeMeta/kind");
    let fields = fields_of(kind).ok_or_else(|| format!("{kind} is not read in protobuf; send JSON"))?;
    let raw = BASE64.decode(text("/raw")).map_err(|error| error.to_string())?;
    let Value::Object(decoded) = message(kind, fields, &raw)? else {
        return Err("the body holds no object".to_owned());
    };
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), json!(text("/typeMeta/apiVersion")));
    object.insert("kind".to_owned(), json!(kind));
    object.extend(decoded);
    if let Some(Value::Object(extra)) = object.get_mut("spec").and_then(|spec| spec.get_mut("extra")) {
        // A map of lists, which protobuf can only have as a map of messages with a list.
        for value in extra.values_mut() {
            *value = value["items"].take();
        }
    }
    Ok(Value::Object(object))
}

fn message(name: &str, fields: &[Field], mut bytes: &[u8]) -> Result<Value, String> {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let (number, content) = field(&mut bytes)?;
        let field = fields
            .iter()
            .find(|field| field.number == number)
            .ok_or_else(|| format!("field {number} of {name} is not read in protobuf; send JSON"))?;
        if let Pairs(form) = field.form {
            let pair: [Field; 2] = [one(1, "key", Text), one(2, "value", *form)];
            let entry = message(field.name, &pair, content.bytes()?)?;
            let key = entry["key"].as_str().unwrap_or_default().to_owned();
            // An empty text in a map is a value like any other.
            let value = entry.get("value").cloned().unwrap_or_else(|| json!(""));
            let map = object.entry(field.name).or_insert_with(|| json!({}));
            map[key] = value;
            continue;
        }
        match (value(field, content)?, field.is_list) {
            (Some(value), false) => {
                object.insert(field.name.to_owned(), value);
            }
            (value, true) => {
                let items = object.entry(field.name).or_insert_with(|| json!([]));
                if let Some(items) = items.as_array_mut() {
                    items.push(value.unwrap_or_else(|| json!("")));
                }
            }
            (None, false) => {}
        }
    }
    Ok(Value::Object(object))
}

/// A field in JSON; none where JSON would leave it out.
fn value(field: &Field, content: Content<'_>) -> Result<Option<Value>, String> {
    Ok(match field.form {
        Text => {
            let text = std::str::from_utf8(content.bytes()?).map_err(|error| error.to_string())?;
            (!text.is_empty()).then(|| json!(text))
        }
        Bytes => Some(json!(BASE64.encode(content.bytes()?))),
        Number => Some(json!(content.number()?.cast_signed())),
        Count => Some(json!(content.number()?.cast_signed())).filter(|number| *number != json!(0)),
        Double => {
            let number = f64::from_bits(content.number()?);
            // Whole numbers are written without a fraction.
            let whole = number as i64;
            Some(if whole as f64 == number {
                json!(whole)
            } else {
                json!(number)
            })
        }
        Truth => Some(json!(content.number()? != 0)),
        Flag => (content.number()? != 0).then(|| json!(true)),
        Time => {
            let parts = message(
                field.name,
                &[one(1, "seconds", Number), one(2, "nanos", Number)],
                content.bytes()?,
            )?;
            let seconds = parts["seconds"].as_i64().unwrap_or_default();
            let at = Timestamp::from_second(seconds).map_err(|error| error.to_string())?;
            (seconds != 0).then(|| json!(stamp(at)))
        }
        Json => {
            let raw = message(field.name, &[one(1, "raw", Bytes)], content.bytes()?)?;
            let raw = BASE64
                .decode(raw["raw"].as_str().unwrap_or_default())
                .map_err(|error| error.to_string())?;
            Some(serde_json::from_slice(&raw).map_err(|error| error.to_string())?)
        }
        Message(fields) => Some(message(field.name, fields, content.bytes()?)?),
        Form::Schema => Some(message(field.name, definition::SCHEMA, content.bytes()?)?),
        Choice(fields) => {
            let mut held = message(field.name, fields, content.bytes()?)?;
            let found = fields.iter().find(|choice| held.get(choice.name).is_some());
            found.map(|choice| held[choice.name].take())
        }
        Pairs(_) => None,
    })
}

/// What a field holds on the wire.
#[derive(Clone, Copy)]
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Content<'a> {
    fn number(self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err("there are bytes where a number should be".to_owned()),
        }
    }

    fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err("there is a number where bytes should be".to_owned()),
        }
    }
}

/// Takes a field off the front.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, Content<'a>), String> {
    let tag = varint(bytes)?;
    let content = match tag & 7 {
        0 => Content::Number(varint(bytes)?),
        1 => {
            let (own, rest) = bytes.split_first_chunk::<8>().ok_or("the body is cut short")?;
            *bytes = rest;
            Content::Number(u64::from_le_bytes(*own))
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).map_err(|error| error.to_string())?;
            let (own, rest) = bytes.split_at_checked(length).ok_or("the body is cut short")?;
            *bytes = rest;
            Content::Bytes(own)
        }
        other => return Err(format!("wire type {other} is not read here; send JSON")),
    };
    Ok((tag >> 3, content))
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("the body is cut short")?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a number is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes on the wire.
    fn wire(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        out.extend_from_slice(content);
        out
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let types = [wire(1, b"v1"), wire(2, kind.as_bytes())].concat();
        [
            MAGIC.to_vec(),
            wire(1, &types),
            wire(2, raw),
            wire(3, b""),
            wire(4, b""),
        ]
        .concat()
    }

    #[test]
    fn a_secret_reads_as_in_json() {
        let meta = [
            wire(1, b"s"),
            wire(2, b""),
            vec![7 << 3, 0],
            wire(8, b""),
            wire(14, b"a/b"),
        ]
        .concat();
        let data = [wire(1, b"k"), wire(2, b"v")].concat();
        let raw = [wire(1, &meta), wire(2, &data), wire(3, b"Opaque")].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "generation": 0, "finalizers": ["a/b"]}, "data": {"k": "dg=="}, "type": "Opaque",
        });
        assert_eq!(decode(&body("Secret", &raw)).unwrap(), expected);
    }

    #[test]
    fn options_of_a_deletion_keep_their_zero() {
        let raw = [vec![1 << 3, 0], wire(4, b"Foreground")].concat();
        let options = decode(&body("DeleteOptions", &raw)).unwrap();
        assert_eq!(
            (&options["gracePeriodSeconds"], &options["propagationPolicy"]),
            (&json!(0), &json!("Foreground"))
        );
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(
            decode(&body("Pod", b"")).unwrap_err(),
            "Pod is not read in protobuf; send JSON"
        );
        let raw = wire(9, b"x");
        assert_eq!(
            decode(&body("Secret", &raw)).unwrap_err(),
            "field 9 of Secret is not read in protobuf; send JSON"
        );
        for bytes in [
            &b"{}"[..],
            b"k8s\0\x0a\xff",
            b"k8s\0\xff",
            &body("Secret", b"\x0a\x05a"),
        ] {
            assert!(decode(bytes).is_err());
        }
    }

    #[test]
    fn a_definition_is_read_with_its_schema() {
        let number = wire(5, b"integer");
        let maximum = [&[9 << 3 | 1][..], &2.5_f64.to_le_bytes()].concat();
        let number = [number, maximum].concat();
        let list = [wire(5, b"array"), vec![18 << 3 & 0x7f | 0x80, 1, 0]].concat();
        // Tags above 15 take two bytes.
        let long = |number: u16, content: &[u8]| {
            let tag = number << 3 | 2;
            let mut out = vec![(tag & 0x7f) as u8 | 0x80, (tag >> 7) as u8];
            out.push(u8::try_from(content.len()).unwrap());
            out.extend_from_slice(content);
            out
        };
        let list = [list, long(24, &wire(1, &number))].concat();
        let open = [&[8, 1][..], &[]].concat();
        let map = [wire(5, b"object"), long(30, &open)].concat();
        let entry = |name: &[u8], schema: &[u8]| long(29, &[wire(1, name), wire(2, schema)].concat());
        let schema = [wire(5, b"object"), entry(b"a", &list), entry(b"b", &map)].concat();
        let version = [
            wire(1, b"v1"),
            vec![2 << 3, 1],
            vec![3 << 3, 0],
            wire(4, &wire(1, &schema)),
        ]
        .concat();
        let spec = [wire(1, b"example.com"), wire(7, &version)].concat();
        let read = decode(&body("CustomResourceDefinition", &wire(2, &spec))).unwrap();
        assert_eq!(
            read["spec"],
            json!({"group": "example.com", "versions": [{"name": "v1", "served": true, "storage": false, "schema": {
                "openAPIV3Schema": {"type": "object", "properties": {
                    "a": {"type": "array", "items": {"type": "integer", "maximum": 2.5}},
                    "b": {"type": "object", "additionalProperties": true},
                }},
            }}]})
        );
    }
}
