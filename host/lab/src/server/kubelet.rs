//! The files that a kubelet starts from: its bootstrap kubeconfig and its extra arguments.

mod flags;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

/// Where the bootstrap kubeconfig lies.
pub(crate) const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// Where the extra arguments lie, as Debian and as Red Hat have it.
pub(crate) const EXTRA_ARGUMENTS: [&str; 2] = ["/etc/default/kubelet", "/etc/sysconfig/kubelet"];

/// Labels of kubernetes.io that a kubelet may give itself; all others of that domain stop it.
const OWN_LABELS: [&str; 12] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// How a server first reaches its API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bootstrap {
    /// URL of the API server.
    pub(crate) server: String,
    /// The authority that signed its certificate, as PEM.
    pub(crate) authority: String,
    /// A bootstrap token.
    pub(crate) token: String,
}

/// What the extra arguments say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Arguments {
    /// Labels of the node.
    pub(crate) labels: BTreeMap<String, String>,
    /// Taints of the node when it registers.
    pub(crate) taints: Vec<Taint>,
    /// The node's provider id.
    pub(crate) provider_id: Option<String>,
    /// A node name other than the host name.
    pub(crate) hostname: Option<String>,
    /// An address other than the one found.
    pub(crate) address: Option<String>,
    /// How many pods fit.
    pub(crate) max_pods: Option<u32>,
}

/// Why a kubelet does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletError {
    #[error("{BOOTSTRAP_KUBECONFIG} is no kubeconfig: {0}")]
    Yaml(Box<serde_saphyr::Error>),
    #[error("{BOOTSTRAP_KUBECONFIG} has no {0}")]
    Missing(&'static str),
    #[error("{BOOTSTRAP_KUBECONFIG} has certificate-authority-data that is not the base64 of a PEM")]
    Authority,
    #[error("the kubelet does not know the flag {0:?}")]
    Flag(String),
    #[error("--node-labels has {0:?}, which is no key=value")]
    Label(String),
    #[error("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{0}]")]
    ReservedLabel(String),
    #[error("{flag} has {value:?}, which is no number")]
    Value { flag: &'static str, value: String },
    #[error("--register-with-taints has {0:?}, which is no key=value:Effect")]
    Taint(String),
}

#[derive(Deserialize)]
struct Kubeconfig {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default, rename = "current-context")]
    current: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    #[serde(default)]
    server: String,
    #[serde(default)]
    certificate_authority_data: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    token: String,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

/// Reads a bootstrap kubeconfig: the current context, an authority and a token, all of them inline.
pub(crate) fn parse_bootstrap(text: &str) -> Result<Bootstrap, KubeletError> {
    let config: Kubeconfig =
        serde_saphyr::from_str(text).map_err(|error| KubeletError::Yaml(Box::new(error)))?;
    let context = config.contexts.iter().find(|named| named.name == config.current);
    let context = &context.ok_or(KubeletError::Missing("current context"))?.context;
    let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = &cluster
        .ok_or(KubeletError::Missing("cluster for its current context"))?
        .cluster;
    let user = config.users.iter().find(|named| named.name == context.user);
    let user = &user
        .ok_or(KubeletError::Missing("user for its current context"))?
        .user;
    if cluster.server.is_empty() {
        return Err(KubeletError::Missing("server"));
    }
    if cluster.certificate_authority_data.is_empty() {
        return Err(KubeletError::Missing("certificate-authority-data"));
    }
    if user.token.is_empty() {
        return Err(KubeletError::Missing("token"));
    }
    let authority = STANDARD.decode(&cluster.certificate_authority_data).ok();
    let authority = authority.and_then(|bytes| String::from_utf8(bytes).ok());
    let authority = authority
        .filter(|pem| !certificates(pem).is_empty())
        .ok_or(KubeletError::Authority)?;
    Ok(Bootstrap {
        server: cluster.server.clone(),
        authority,
        token: user.token.clone(),
    })
}

/// The certificates in a PEM, as DER.
pub(crate) fn certificates(pem: &str) -> Vec<Vec<u8>> {
    pem.split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split("-----END CERTIFICATE-----").next())
        .map(|body| body.split_whitespace().collect::<String>())
        .filter_map(|body| STANDARD.decode(body).ok())
        .filter(|der| !der.is_empty())
        .collect()
}

/// Reads the environment file of the kubelet unit.
pub(crate) fn parse_arguments(environment: &str) -> Result<Arguments, KubeletError> {
    let mut line = String::new();
    for assignment in environment
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
    {
        if let Some(value) = assignment.strip_prefix("KUBELET_EXTRA_ARGS=") {
            line = unquoted(value).to_owned();
        }
    }
    let mut arguments = Arguments::default();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let flag = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-').filter(|flag| flag.starts_with('v')));
        let flag = flag.ok_or_else(|| KubeletError::Flag(word.to_owned()))?;
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, value.to_owned()),
            None => (
                flag,
                words
                    .next_if(|word| !word.starts_with("--"))
                    .unwrap_or_default()
                    .to_owned(),
            ),
        };
        match flag {
            "node-labels" => arguments.labels.extend(labels(unquoted(&value))?),
            "register-with-taints" => {
                let all = unquoted(&value).split(',').filter(|taint| !taint.is_empty());
                arguments.taints = all.map(taint).collect::<Result<_, _>>()?;
            }
            "provider-id" => arguments.provider_id = Some(unquoted(&value).to_owned()),
            "hostname-override" => arguments.hostname = Some(unquoted(&value).to_owned()),
            "node-ip" => arguments.address = Some(unquoted(&value).to_owned()),
            "max-pods" => {
                let pods = unquoted(&value).parse().map_err(|_| KubeletError::Value {
                    flag: "--max-pods",
                    value,
                })?;
                arguments.max_pods = Some(pods);
            }
            other if flags::is_known(other) => {}
            other => return Err(KubeletError::Flag(format!("--{other}"))),
        }
    }
    Ok(arguments)
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
        {
            return inner;
        }
    }
    value
}

fn labels(list: &str) -> Result<BTreeMap<String, String>, KubeletError> {
    let mut labels = BTreeMap::new();
    for pair in list.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| KubeletError::Label(pair.to_owned()))?;
        if key.is_empty() {
            return Err(KubeletError::Label(pair.to_owned()));
        }
        if is_reserved(key) {
            return Err(KubeletError::ReservedLabel(key.to_owned()));
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    (within("kubernetes.io") || within("k8s.io"))
        && !within("kubelet.kubernetes.io")
        && !within("node.kubernetes.io")
        && !OWN_LABELS.contains(&key)
}

fn taint(text: &str) -> Result<Taint, KubeletError> {
    let wrong = || KubeletError::Taint(text.to_owned());
    let (pair, effect) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = pair
        .split_once('=')
        .map_or((pair, None), |(key, value)| (key, Some(value)));
    if key.is_empty() || !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(wrong());
    }
    let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(Taint {
        key: key.to_owned(),
        value,
        effect: effect.to_owned(),
        time_added: None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn labels_taints_and_provider_id_are_read() {
        let arguments = parse_arguments(
            "# kubelet\nKUBELET_EXTRA_ARGS=\"--node-labels=workload=gpu,run.ai/simulated-gpu-node-pool=default \
             --register-with-taints=a=b:NoSchedule,c:NoExecute --provider-id metal3://default/bare-metal-2 -v=2 \
             --max-pods=200 --system-reserved=cpu=1,memory=1Gi\"\n",
        )
        .unwrap();
        assert_eq!(arguments.labels["workload"], "gpu");
        assert_eq!(arguments.labels["run.ai/simulated-gpu-node-pool"], "default");
        let taints: Vec<_> = arguments
            .taints
            .iter()
            .map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str()))
            .collect();
        assert_eq!(taints, [("a", Some("b"), "NoSchedule"), ("c", None, "NoExecute")]);
        assert_eq!(
            arguments.provider_id.as_deref(),
            Some("metal3://default/bare-metal-2")
        );
    }

    #[rstest]
    #[case::a_label_without_a_value("--node-labels=a", "no key=value")]
    #[case::a_label_of_kubernetes(
        "--node-labels=node-restriction.kubernetes.io/x=y",
        "unknown 'kubernetes.io'"
    )]
    #[case::a_taint_without_an_effect("--register-with-taints=a=b", "no key=value:Effect")]
    #[case::a_taint_with_a_wrong_effect("--register-with-taints=a=b:Never", "no key=value:Effect")]
    #[case::a_flag_with_one_dash("-node-labels=a=b", "does not know the flag")]
    #[case::pods_that_are_no_number("--max-pods=many", "which is no number")]
    #[case::an_unknown_flag("--node-label=a=b", "does not know the flag")]
    fn a_kubelet_does_not_start_with(#[case] argument: &str, #[case] why: &str) {
        let error = parse_arguments(&format!("KUBELET_EXTRA_ARGS={argument}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case::a_node_label("node.kubernetes.io/anything", false)]
    #[case::an_instance_type("beta.kubernetes.io/instance-type", false)]
    #[case::a_foreign_label("example.com/a", false)]
    #[case::a_control_plane("node-role.kubernetes.io/control-plane", true)]
    fn a_label_is_reserved(#[case] key: &str, #[case] reserved: bool) {
        assert_eq!(is_reserved(key), reserved);
    }

    fn kubeconfig(authority: &str, token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster: {{server: 'https://192.168.100.2:8443', certificate-authority-data: '{authority}'}}\n\
             users:\n- name: u\n  user: {{token: '{token}'}}\n"
        )
    }

    #[test]
    fn a_bootstrap_kubeconfig_needs_an_authority_and_a_token() {
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let bootstrap = parse_bootstrap(&kubeconfig(&pem, "abcdef.0123456789abcdef")).unwrap();
        assert_eq!(bootstrap.server, "https://192.168.100.2:8443");
        assert!(matches!(
            parse_bootstrap(&kubeconfig(&pem, "")),
            Err(KubeletError::Missing("token"))
        ));
        assert!(matches!(
            parse_bootstrap(&kubeconfig("", "t")),
            Err(KubeletError::Missing(_))
        ));
        assert!(matches!(
            parse_bootstrap(&kubeconfig("AAAA", "t")),
            Err(KubeletError::Authority)
        ));
        assert!(matches!(parse_bootstrap("a: ["), Err(KubeletError::Yaml(_))));
        assert!(matches!(
            parse_bootstrap("kind: Config"),
            Err(KubeletError::Missing("current context"))
        ));
    }
}
