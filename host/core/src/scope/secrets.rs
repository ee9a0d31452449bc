//! Finds what in an object points at Secrets, by the ways in which Kubernetes objects do that.

use serde_json::Value;

use super::OutOfScope;

/// One pointer at a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference<'v> {
    /// Where it stands.
    pub(super) path: String,
    /// Name; none where a patch sets the namespace alone.
    pub(super) name: Option<&'v str>,
    /// Namespace, where one is written.
    pub(super) namespace: Option<&'v str>,
}

/// Fields that hold a pointer at a Secret without saying so. (`userData` as a text is user data, and not a name.)
const POINTERS: [&str; 4] = [
    "userData",
    "networkData",
    "metaData",
    "preprovisioningNetworkData",
];
/// Fields whose text is the name of a Secret without saying so.
const NAMES: [&str; 2] = ["credentialsName", "preprovisioningNetworkDataName"];
/// Fields of a Secret that are its content: nothing in them points anywhere.
const CONTENT: [&str; 2] = ["data", "stringData"];

/// Calls `check` for each pointer at a Secret, until one fails.
pub(super) fn references<'v>(
    object: &'v Value,
    check: &mut impl FnMut(Reference<'v>) -> Result<(), OutOfScope>,
) -> Result<(), OutOfScope> {
    let Value::Object(map) = object else { return Ok(()) };
    let is_secret = map.get("kind").is_some_and(|kind| kind == "Secret");
    map.iter()
        .filter(|(key, _)| *key != "metadata" && !(is_secret && CONTENT.contains(&key.as_str())))
        .try_for_each(|(key, value)| walk(&format!("/{key}"), key, value, check))
}

fn walk<'v>(
    path: &str,
    key: &str,
    value: &'v Value,
    check: &mut impl FnMut(Reference<'v>) -> Result<(), OutOfScope>,
) -> Result<(), OutOfScope> {
    match value {
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str);
            if POINTERS.contains(&key) || says_secret(key) {
                let (name, namespace) = (text("name"), text("namespace"));
                if name.is_some() || namespace.is_some() {
                    check(Reference {
                        path: path.to_owned(),
                        name,
                        namespace,
                    })?;
                }
            }
            if text("kind") == Some("Secret") && text("name").is_some() {
                check(Reference {
                    path: path.to_owned(),
                    name: text("name"),
                    namespace: text("namespace"),
                })?;
            }
            map.iter()
                .try_for_each(|(key, value)| walk(&format!("{path}/{key}"), key, value, check))
        }
        Value::Array(list) => list
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| walk(&format!("{path}/{index}"), key, value, check)),
        Value::String(text) if NAMES.contains(&key) || says_secret(key) => check(Reference {
            path: path.to_owned(),
            name: Some(text),
            namespace: None,
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn says_secret(key: &str) -> bool {
    key.to_ascii_lowercase().contains("secret")
}
