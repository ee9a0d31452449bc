//! Which fields a kubeconfig may have, and what each of the others would make a client do.

use serde_json::{Map, Value};

use super::{INVALID, UNSAFE, invalid};
use crate::seams::Reason;

/// What a field is to us.
enum Field {
    /// A text that is read, or has no meaning here.
    Text,
    /// For other programs, whatever it holds.
    Ignored,
    /// `true` or `false`, without meaning here.
    Flag,
    /// Refused unless it says `false`: why.
    Off(&'static str),
    /// Refused unless it is empty: what it would do, and what would mend it.
    Never(&'static str, &'static str),
}

use Field::{Flag, Ignored, Never, Off, Text};

const FILE: &str = "is a path, and the host reads no file for a tenant";
const ACTS: &str = "would make the host act as somebody else";
const RUNS: &str = "would make the host run a program";
const CREDENTIALS: &str = "write client-certificate-data and client-key-data, or token, instead";
const DROP: &str = "remove it";

const TOP: &[(&str, Field)] = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("current-context", Text),
    ("preferences", Ignored),
    ("extensions", Ignored),
    ("clusters", Ignored),
    ("contexts", Ignored),
    ("users", Ignored),
];

const CLUSTER: &[(&str, Field)] = &[
    ("server", Text),
    ("certificate-authority-data", Text),
    ("disable-compression", Flag),
    ("extensions", Ignored),
    (
        "certificate-authority",
        Never(FILE, "write the CA into certificate-authority-data instead"),
    ),
    (
        "insecure-skip-tls-verify",
        Off("would make the host believe any certificate"),
    ),
    (
        "proxy-url",
        Never("would send the host's requests elsewhere", DROP),
    ),
    (
        "tls-server-name",
        Never(
            "would make the host believe another server's certificate",
            "name the server as its certificate does",
        ),
    ),
];

const CONTEXT: &[(&str, Field)] = &[
    ("cluster", Text),
    ("user", Text),
    ("namespace", Text),
    ("extensions", Ignored),
];

const USER: &[(&str, Field)] = &[
    ("client-certificate-data", Text),
    ("client-key-data", Text),
    ("token", Text),
    ("extensions", Ignored),
    ("client-certificate", Never(FILE, CREDENTIALS)),
    ("client-key", Never(FILE, CREDENTIALS)),
    ("tokenFile", Never(FILE, CREDENTIALS)),
    ("exec", Never(RUNS, CREDENTIALS)),
    ("auth-provider", Never(RUNS, CREDENTIALS)),
    ("as", Never(ACTS, DROP)),
    ("as-uid", Never(ACTS, DROP)),
    ("as-groups", Never(ACTS, DROP)),
    ("as-user-extra", Never(ACTS, DROP)),
    (
        "username",
        Never("is for passwords, which Kubernetes has no more", CREDENTIALS),
    ),
    (
        "password",
        Never("is for passwords, which Kubernetes has no more", CREDENTIALS),
    ),
];

/// Refuses a tree that is no kubeconfig, and one that holds anything but data.
pub(super) fn judge(tree: &Value) -> Result<(), Reason> {
    let top = map(tree, "the kubeconfig")?;
    known(top, "", TOP)?;
    for (key, want) in [("apiVersion", "v1"), ("kind", "Config")] {
        if top.get(key).is_some_and(|is| !is_null(is) && is != want) {
            return Err(invalid(format!(
                "{key} is not {want}; a kubeconfig is of kind Config, v1"
            )));
        }
    }
    for (list, key, inner) in [
        ("clusters", "cluster", CLUSTER),
        ("contexts", "context", CONTEXT),
        ("users", "user", USER),
    ] {
        let entries = match top.get(list) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(invalid(format!("{list} is no list; write one entry with a name"))),
        };
        let mut names = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let path = format!("{list}[{index}]");
            let entry = map(entry, &path)?;
            known(entry, &path, &[("name", Text), (key, Ignored)])?;
            let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
            if names.contains(&name) {
                let message = format!("{path}.name is there twice; give each entry its own");
                return Err(invalid(message));
            }
            names.push(name);
            if let Some(value) = entry.get(key).filter(|value| !is_null(value)) {
                let path = format!("{path}.{key}");
                known(map(value, &path)?, &path, inner)?;
            }
        }
    }
    Ok(())
}

fn known(fields: &Map<String, Value>, path: &str, table: &[(&str, Field)]) -> Result<(), Reason> {
    for (key, value) in fields {
        let Some((name, field)) = table.iter().find(|(name, _)| name == key) else {
            // The key itself may be anything, a secret in the wrong place too: only its place is told.
            let place = if path.is_empty() { "the kubeconfig" } else { path };
            let names: Vec<&str> = table
                .iter()
                .filter(|(_, field)| !matches!(field, Never(..) | Off(_)))
                .map(|(name, _)| *name)
                .collect();
            let message = format!("{place} has a field that is not known");
            return Err(Reason::new(UNSAFE, message)
                .remedy(format!("remove it; known here are {}", names.join(", "))));
        };
        let at = if path.is_empty() {
            (*name).to_owned()
        } else {
            format!("{path}.{name}")
        };
        match field {
            _ if is_null(value) => {}
            Ignored => {}
            Text if value.is_string() => {}
            Text => return Err(invalid(format!("{at} is no text; put it in quotes"))),
            Flag | Off(_) if value == &Value::Bool(false) => {}
            Flag if value.is_boolean() => {}
            Flag => return Err(invalid(format!("{at} is neither true nor false; remove it"))),
            Off(does) => {
                return Err(Reason::new(UNSAFE, format!("{at} {does}")).remedy(DROP));
            }
            Never(..) if value.as_str() == Some("") => {}
            Never(does, remedy) => {
                return Err(Reason::new(UNSAFE, format!("{at} {does}")).remedy(*remedy));
            }
        }
    }
    Ok(())
}

fn map<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, Reason> {
    value
        .as_object()
        .ok_or_else(|| Reason::new(INVALID, format!("{path} is no map; write one with named fields")))
}

fn is_null(value: &Value) -> bool {
    value.is_null()
}
