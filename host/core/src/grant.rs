//! What the operator lets one component do: the file `NAME.toml` beside `NAME.wasm`. Nothing is granted by default.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::seams::Access;

/// One component's grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// `[settings]`: handed to resolvers and policies as JSON text.
    pub settings: Value,
    /// `[limits]`
    pub limits: Limits,
    /// `[[kinds]]`
    pub kinds: Vec<KindGrant>,
}

/// Bounds of one call; always on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sum of all memories and tables of one call, in bytes; 64 MiB by default.
    pub memory: u64,
    /// Time that the guest may run; 500 ms by default.
    pub time: Duration,
    /// Size of an answer, in bytes; 1 MiB by default.
    pub output: u64,
}

/// What may be done with one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindGrant {
    /// `apiVersion`
    pub api_version: String,
    /// `kind`
    pub kind: String,
    /// The most that is allowed.
    pub access: Access,
    /// Namespaces; `*` for any.
    pub namespaces: Vec<String>,
    /// JSON pointers that may be borrowed; a trailing `*` makes a prefix of the last segment.
    pub places: Vec<String>,
    /// ServiceAccount that the host sets on kinds that run things.
    pub service_account: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            time: Duration::from_millis(500),
            output: 1 << 20,
        }
    }
}

/// Why an operator file is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// It is not TOML of the known form.
    #[error("{0}")]
    Malformed(String),
    /// It grants what no component may have.
    #[error("kinds[{index}]: {kind} of {api_version} can never be granted; remove this entry")]
    Never {
        /// Position in `kinds`.
        index: usize,
        /// `apiVersion`
        api_version: String,
        /// `kind`
        kind: String,
    },
    /// A field has a value that means nothing.
    #[error("{path}: {problem}")]
    Field {
        /// Where.
        path: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// For people; the component's own exports decide.
    #[serde(default)]
    #[allow(dead_code, reason = "accepted for people, decided by the component")]
    world: Option<String>,
    #[serde(default)]
    settings: toml::Table,
    #[serde(default)]
    limits: FileLimits,
    #[serde(default)]
    kinds: Vec<FileKind>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLimits {
    memory: Option<String>,
    time: Option<String>,
    output: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileKind {
    api_version: String,
    kind: String,
    access: Access,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default)]
    places: Vec<String>,
    #[serde(default)]
    service_account: Option<String>,
}

/// Groups of which nothing can be granted: who holds them holds the cluster.
const NEVER_GROUPS: [&str; 6] = [
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "management.loft.sh",
    "hostler.dev",
];
/// Kinds of other groups that can never be granted.
const NEVER_KINDS: [(&str, &str); 4] = [
    ("v1", "ServiceAccount"),
    ("v1", "Namespace"),
    ("certificates.k8s.io/v1", "CertificateSigningRequest"),
    ("v1", "Node"),
];
/// Largest bounds that a file may set, and the smallest that make sense.
const MEMORY: (u64, u64) = (1 << 20, 4 << 30);
const OUTPUT: (u64, u64) = (1 << 10, 64 << 20);
const TIME: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(30));

impl Grant {
    /// Nothing granted, default limits: what a component without an operator file gets.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            settings: Value::Object(serde_json::Map::new()),
            limits: Limits::default(),
            kinds: Vec::new(),
        }
    }

    /// Reads an operator file.
    ///
    /// # Errors
    /// The first thing that is wrong with it, by path.
    pub fn parse(text: &str) -> Result<Self, GrantError> {
        let file: File = toml::from_str(text).map_err(|error| GrantError::Malformed(error.to_string()))?;
        let mut limits = Limits::default();
        if let Some(text) = &file.limits.memory {
            limits.memory = bytes("limits.memory", text, MEMORY)?;
        }
        if let Some(text) = &file.limits.output {
            limits.output = bytes("limits.output", text, OUTPUT)?;
        }
        if let Some(text) = &file.limits.time {
            limits.time = time("limits.time", text)?;
        }
        let kinds = file
            .kinds
            .into_iter()
            .enumerate()
            .map(|(index, kind)| kind.granted(index));
        Ok(Self {
            settings: serde_json::to_value(&file.settings)
                .map_err(|error| GrantError::Malformed(format!("settings: {error}")))?,
            limits,
            kinds: kinds.collect::<Result<_, _>>()?,
        })
    }

    /// The grant of a kind in a namespace, if there is one.
    #[must_use]
    pub fn of(&self, api_version: &str, kind: &str, namespace: &str) -> Option<&KindGrant> {
        self.kinds.iter().find(|granted| {
            granted.api_version == api_version
                && granted.kind == kind
                && granted
                    .namespaces
                    .iter()
                    .any(|one| one == "*" || one == namespace)
        })
    }

    /// The grant as people read it: for the `Plugin` object.
    #[must_use]
    pub fn shown(&self) -> Value {
        serde_json::json!({
            "limits": {
                "memory": format!("{}MiB", self.limits.memory >> 20),
                "time": format!("{}ms", self.limits.time.as_millis()),
                "output": format!("{}KiB", self.limits.output >> 10),
            },
            "kinds": self.kinds.iter().map(|kind| serde_json::json!({
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "access": kind.access,
                "namespaces": kind.namespaces,
                "places": kind.places,
            })).collect::<Vec<_>>(),
        })
    }
}

/// Whether a kind may never be touched by a plugin, whatever is granted.
#[must_use]
pub fn is_never_granted(api_version: &str, kind: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    NEVER_GROUPS.contains(&group) || NEVER_KINDS.contains(&(api_version, kind))
}

impl FileKind {
    fn granted(self, index: usize) -> Result<KindGrant, GrantError> {
        let field = |name: &str, problem: String| GrantError::Field {
            path: format!("kinds[{index}].{name}"),
            problem,
        };
        if is_never_granted(&self.api_version, &self.kind) {
            return Err(GrantError::Never {
                index,
                api_version: self.api_version,
                kind: self.kind,
            });
        }
        if self.namespaces.is_empty() {
            return Err(field(
                "namespaces",
                "names no namespace; list them, or \"*\" for any".to_owned(),
            ));
        }
        if let Some(place) = self.places.iter().find(|place| !place.starts_with('/')) {
            return Err(field(
                "places",
                format!("{place:?} is no JSON pointer; it starts with '/'"),
            ));
        }
        let forbidden = [
            "/status",
            "/metadata/finalizers",
            "/metadata/ownerReferences",
            "/apiVersion",
            "/kind",
        ];
        if let Some(place) = self
            .places
            .iter()
            .find(|place| forbidden.iter().any(|never| place.starts_with(never)) || *place == "/*")
        {
            return Err(field("places", format!("{place:?} can never be lent; remove it")));
        }
        if self.access != Access::BorrowFields && !self.places.is_empty() {
            return Err(field(
                "places",
                "are for access = \"borrow-fields\" only".to_owned(),
            ));
        }
        Ok(KindGrant {
            api_version: self.api_version,
            kind: self.kind,
            access: self.access,
            namespaces: self.namespaces,
            places: self.places,
            service_account: self.service_account,
        })
    }
}

impl KindGrant {
    /// Whether a place (a JSON pointer) may be borrowed.
    #[must_use]
    pub fn lends(&self, place: &str) -> bool {
        self.places.iter().any(|granted| match granted.strip_suffix('*') {
            Some(prefix) => place.starts_with(prefix),
            None => {
                place == granted
                    || place
                        .strip_prefix(granted.as_str())
                        .is_some_and(|rest| rest.starts_with('/'))
            }
        })
    }
}

fn bytes(path: &str, text: &str, (least, most): (u64, u64)) -> Result<u64, GrantError> {
    let problem = |problem: String| GrantError::Field {
        path: path.to_owned(),
        problem,
    };
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[split..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => {
            return Err(problem(format!(
                "unit {other:?} is unknown; use B, KiB, MiB or GiB"
            )));
        }
    };
    let size = text[..split]
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| problem(format!("{text:?} is no size; write one like \"64MiB\"")))?;
    if (least..=most).contains(&size) {
        Ok(size)
    } else {
        Err(problem(format!(
            "{text} is out of bounds; set {least} to {most} bytes"
        )))
    }
}

fn time(path: &str, text: &str) -> Result<Duration, GrantError> {
    let problem = |problem: String| GrantError::Field {
        path: path.to_owned(),
        problem,
    };
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(""), 1000),
    };
    let millis = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| problem(format!("{text:?} is no time; write one like \"500ms\" or \"2s\"")))?;
    let time = Duration::from_millis(millis);
    if (TIME.0..=TIME.1).contains(&time) {
        Ok(time)
    } else {
        Err(problem(format!("{text} is out of bounds; set 10ms to 30s")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn a_grant_is_read_as_written() {
        let grant = Grant::parse(
            r#"
            [settings]
            strict = true
            [limits]
            memory = "32MiB"
            time = "2s"
            [[kinds]]
            apiVersion = "metal3.io/v1alpha1"
            kind = "BareMetalHost"
            access = "borrow-fields"
            namespaces = ["metal3-system"]
            places = ["/spec/image", "/metadata/labels/metal3.vcluster.com~1*"]
            "#,
        )
        .unwrap();
        assert_eq!(grant.limits.memory, 32 << 20);
        assert_eq!(grant.limits.time, Duration::from_secs(2));
        assert_eq!(grant.settings, serde_json::json!({ "strict": true }));
        let hosts = grant
            .of("metal3.io/v1alpha1", "BareMetalHost", "metal3-system")
            .unwrap();
        assert!(hosts.lends("/spec/image"));
        assert!(hosts.lends("/spec/image/url"));
        assert!(!hosts.lends("/spec/imageOther"));
        assert!(hosts.lends("/metadata/labels/metal3.vcluster.com~1node-claim"));
        assert!(!hosts.lends("/spec/bmc/address"));
        assert!(
            grant
                .of("metal3.io/v1alpha1", "BareMetalHost", "default")
                .is_none()
        );
    }

    #[rstest]
    #[case::rbac("rbac.authorization.k8s.io/v1", "ClusterRoleBinding")]
    #[case::accounts("v1", "ServiceAccount")]
    #[case::ours("management.loft.sh/v1", "NodeClaim")]
    #[case::memory("hostler.dev/v1alpha1", "Enrollment")]
    #[case::definitions("apiextensions.k8s.io/v1", "CustomResourceDefinition")]
    #[case::webhooks("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")]
    #[case::services("apiregistration.k8s.io/v1", "APIService")]
    fn what_holds_the_cluster_is_never_granted(#[case] api_version: &str, #[case] kind: &str) {
        let text = format!(
            "[[kinds]]\napiVersion = \"{api_version}\"\nkind = \"{kind}\"\naccess = \"read\"\nnamespaces = [\"*\"]\n"
        );
        let error = Grant::parse(&text).unwrap_err();
        assert!(matches!(error, GrantError::Never { index: 0, .. }), "{error}");
    }

    #[rstest]
    #[case::typo("[limit]\nmemory = \"1MiB\"", "unknown field `limit`")]
    #[case::unit("[limits]\nmemory = \"64MB\"", "limits.memory: unit \"MB\" is unknown")]
    #[case::time("[limits]\ntime = \"1h\"", "limits.time")]
    #[case::status(
        "[[kinds]]\napiVersion=\"a/v1\"\nkind=\"B\"\naccess=\"borrow-fields\"\nnamespaces=[\"*\"]\nplaces=[\"/status/x\"]",
        "can never be lent"
    )]
    fn a_bad_file_names_the_place(#[case] text: &str, #[case] want: &str) {
        let error = Grant::parse(text).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}
