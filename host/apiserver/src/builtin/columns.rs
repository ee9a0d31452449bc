//! What `kubectl get` shows of built-in kinds.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::resource::{Column, Source};

/// A column of text that is worked out.
pub(super) fn column(name: &str, wide: bool, description: &str, cell: fn(&Value) -> Value) -> Column {
    Column {
        name: name.into(),
        kind: "string".into(),
        format: String::new(),
        description: description.into(),
        priority: i32::from(wide),
        source: Source::Computed(cell),
    }
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn or(text: &str, otherwise: &str) -> Value {
    Value::from(if text.is_empty() { otherwise } else { text })
}

/// How long ago a time was, as Kubernetes writes it.
pub(super) fn since(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human_duration(Timestamp::now().duration_since(time)),
        Err(_) if time.is_empty() => "<unknown>".into(),
        Err(_) => "<invalid>".into(),
    }
}

fn age(object: &Value) -> Value {
    since(text(object, "/metadata/creationTimestamp")).into()
}

pub(super) fn age_column() -> Column {
    column("Age", false, super::CREATED, age)
}

/// A duration in two or three significant figures: `45s`, `3m20s`, `5h`, `12d`.
pub(crate) fn human_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let both = |big: i64, unit: char, small: i64, rest: char| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{rest}"),
    };
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => both(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => both(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => both(hours / 24, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => both(hours / 24 / 365, 'y', hours / 24 % 365, 'd'),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// Kinds without columns of their own.
pub(super) fn named() -> Vec<Column> {
    vec![Column {
        name: "Created At".into(),
        kind: "date".into(),
        format: String::new(),
        description: super::CREATED.into(),
        priority: 0,
        source: Source::Computed(|object| {
            object
                .pointer("/metadata/creationTimestamp")
                .cloned()
                .unwrap_or_default()
        }),
    }]
}

/// Kinds that show their age alone.
pub(super) fn aged() -> Vec<Column> {
    vec![age_column()]
}

pub(super) fn namespace() -> Vec<Column> {
    let status = column("Status", false, "The status of the namespace", |object| {
        text(object, "/status/phase").into()
    });
    vec![status, age_column()]
}

pub(super) fn node() -> Vec<Column> {
    vec![
        column("Status", false, "The status of the node", node_status),
        column("Roles", false, "The roles of the node", node_roles),
        age_column(),
        column(
            "Version",
            false,
            "Kubelet Version reported by the node.",
            |node| text(node, "/status/nodeInfo/kubeletVersion").into(),
        ),
        column("Internal-IP", true, ADDRESSES, |node| {
            node_address(node, "InternalIP")
        }),
        column("External-IP", true, ADDRESSES, |node| {
            node_address(node, "ExternalIP")
        }),
        column(
            "OS-Image",
            true,
            "OS Image reported by the node from /etc/os-release.",
            |node| or(text(node, "/status/nodeInfo/osImage"), "<unknown>"),
        ),
        column(
            "Kernel-Version",
            true,
            "Kernel Version reported by the node from 'uname -r'.",
            kernel,
        ),
        column(
            "Container-Runtime",
            true,
            "ContainerRuntime Version reported by the node.",
            |node| {
                or(
                    text(node, "/status/nodeInfo/containerRuntimeVersion"),
                    "<unknown>",
                )
            },
        ),
    ]
}

const ADDRESSES: &str = "List of addresses reachable to the node.";

fn node_status(node: &Value) -> Value {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready {
        None => "Unknown".to_owned(),
        Some(ready) if ready["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    status.into()
}

fn node_roles(node: &Value) -> Value {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), "<none>")
}

fn node_address(node: &Value, kind: &str) -> Value {
    let list = node.pointer("/status/addresses").and_then(Value::as_array);
    let found = list.into_iter().flatten().find(|address| address["type"] == kind);
    or(found.map_or("", |address| text(address, "/address")), "<none>")
}

fn kernel(node: &Value) -> Value {
    let version = text(node, "/status/nodeInfo/kernelVersion");
    let mut shown = if version.is_empty() { "<unknown>" } else { version }.to_owned();
    let architecture = text(node, "/status/nodeInfo/architecture");
    if !architecture.is_empty() {
        let _ = write!(shown, " ({architecture})");
    }
    shown.into()
}

fn count(object: &Value, fields: &[&str]) -> Value {
    let sizes = fields
        .iter()
        .map(|field| object[*field].as_object().map_or(0, serde_json::Map::len));
    Value::from(sizes.sum::<usize>())
}

pub(super) fn secret() -> Vec<Column> {
    vec![
        column(
            "Type",
            false,
            "Used to facilitate programmatic handling of secret data.",
            |secret| text(secret, "/type").into(),
        ),
        column("Data", false, "Data contains the secret data.", |secret| {
            count(secret, &["data"])
        }),
        age_column(),
    ]
}

pub(super) fn config_map() -> Vec<Column> {
    let data = column("Data", false, "Data contains the configuration data.", |map| {
        count(map, &["data", "binaryData"])
    });
    vec![data, age_column()]
}

pub(super) fn lease() -> Vec<Column> {
    let holder = column(
        "Holder",
        false,
        "The identity of the holder of a current lease.",
        |lease| text(lease, "/spec/holderIdentity").into(),
    );
    vec![holder, age_column()]
}

pub(super) fn signing_request() -> Vec<Column> {
    vec![
        age_column(),
        column("SignerName", false, "The requested signer.", |csr| {
            or(text(csr, "/spec/signerName"), "<none>")
        }),
        column("Requestor", false, "The user that created the request.", |csr| {
            text(csr, "/spec/username").into()
        }),
        column(
            "RequestedDuration",
            false,
            "The requested duration of validity of the issued certificate.",
            |csr| match csr.pointer("/spec/expirationSeconds").and_then(Value::as_i64) {
                Some(seconds) => human_duration(SignedDuration::from_secs(seconds)).into(),
                None => "<none>".into(),
            },
        ),
        column(
            "Condition",
            false,
            "Conditions applied to the request.",
            signing_status,
        ),
    ]
}

fn signing_status(csr: &Value) -> Value {
    let conditions = csr.pointer("/status/conditions").and_then(Value::as_array);
    let has = |kind: &str| {
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == kind)
    };
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text(csr, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status.into()
}

pub(super) fn role_binding() -> Vec<Column> {
    vec![
        column("Role", false, "The role that is bound.", |binding| {
            format!(
                "{}/{}",
                text(binding, "/roleRef/kind"),
                text(binding, "/roleRef/name")
            )
            .into()
        }),
        age_column(),
        column("Users", true, "Users in the binding", |binding| {
            subjects(binding, "User")
        }),
        column("Groups", true, "Groups in the binding", |binding| {
            subjects(binding, "Group")
        }),
        column(
            "ServiceAccounts",
            true,
            "ServiceAccounts in the binding",
            |binding| subjects(binding, "ServiceAccount"),
        ),
    ]
}

fn subjects(binding: &Value, kind: &str) -> Value {
    let list = binding["subjects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|subject| subject["kind"] == kind);
    let names: Vec<_> = list
        .map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(subject, "/namespace"), text(subject, "/name")),
            _ => text(subject, "/name").to_owned(),
        })
        .collect();
    names.join(", ").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[rstest::rstest]
    #[case(-5, "<invalid>")]
    #[case(-1, "0s")]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(200, "3m20s")]
    #[case(600, "10m")]
    #[case(3 * 3600, "3h")]
    #[case(3 * 3600 + 300, "3h5m")]
    #[case(30 * 3600, "30h")]
    #[case(50 * 3600, "2d2h")]
    #[case(12 * 86400, "12d")]
    #[case(800 * 86400, "2y70d")]
    #[case(4000 * 86400, "10y")]
    fn durations_are_short(#[case] seconds: i64, #[case] shown: &str) {
        assert_eq!(human_duration(SignedDuration::from_secs(seconds)), shown);
    }

    #[test]
    fn a_node_shows_its_state_and_roles() {
        let node = json!({
            "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/gpu": ""}},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kernelVersion": "6.8", "architecture": "amd64"},
            },
        });
        assert_eq!(node_status(&node), "Ready,SchedulingDisabled");
        assert_eq!(node_roles(&node), "gpu,worker");
        assert_eq!(node_address(&node, "InternalIP"), "10.0.0.1");
        assert_eq!(node_address(&node, "ExternalIP"), "<none>");
        assert_eq!(kernel(&node), "6.8 (amd64)");
        assert_eq!(node_status(&json!({})), "Unknown");
        assert_eq!(node_roles(&json!({})), "<none>");
    }

    #[rstest::rstest]
    #[case(json!({}), "Pending")]
    #[case(json!({"status": {"conditions": [{"type": "Approved"}], "certificate": "x"}}), "Approved,Issued")]
    #[case(json!({"status": {"conditions": [{"type": "Denied"}, {"type": "Failed"}]}}), "Denied,Failed")]
    fn a_signing_request_shows_how_far_it_is(#[case] csr: Value, #[case] shown: &str) {
        assert_eq!(signing_status(&csr), shown);
    }
}
