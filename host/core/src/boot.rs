//! Boot data: what a machine reads when it first starts, so that it joins its tenant under its reserved name.
//!
//! It is plain `#cloud-config`. Everything in it is built as data and written by a YAML encoder; what ends up in a command line
//! of the kubelet is checked character by character instead, because two programs that quote differently read it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Taint;
use serde::Serialize;

/// Where the kubelet finds its first kubeconfig.
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// Where it finds the authority of the tenant.
pub const AUTHORITY: &str = "/etc/kubernetes/pki/ca.crt";
/// Where its unit finds extra arguments.
pub const EXTRA_ARGUMENTS: &str = "/etc/default/kubelet";

/// Key of the boot Secret for user data.
pub const USER_DATA: &str = "userData";
/// Key of the boot Secret for network data.
pub const NETWORK_DATA: &str = "networkData";

/// Arguments of the kubelet that the host sets itself, or that would let a node be another one.
const RESERVED_ARGUMENTS: [&str; 12] = [
    "bootstrap-kubeconfig",
    "cert-dir",
    "client-ca-file",
    "config",
    "hostname-override",
    "kubeconfig",
    "node-labels",
    "provider-id",
    "register-node",
    "register-with-taints",
    "tls-cert-file",
    "tls-private-key-file",
];

/// Labels of `kubernetes.io` that a kubelet may give itself; it refuses to start with any other of that domain.
const KUBELET_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// A bootstrap token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Public half: six characters.
    pub id: String,
    /// Secret half: sixteen characters.
    pub secret: String,
}

/// Everything that a machine must know to join.
#[derive(Clone, Debug, PartialEq)]
pub struct Boot {
    /// Name of the Node to come.
    pub node_name: String,
    /// URL of the tenant's API.
    pub server: String,
    /// Its authority, in PEM.
    pub ca_pem: String,
    /// The token that it joins by.
    pub token: Token,
    /// Public keys that may log in.
    pub ssh_keys: Vec<String>,
    /// Labels from the join on; those that a kubelet may not set itself are left out.
    pub labels: BTreeMap<String, String>,
    /// Taints from the join on; of two with one key and effect the later one stands.
    pub taints: Vec<Taint>,
    /// `spec.providerID`, where it is known before the machine runs.
    pub provider_id: Option<String>,
    /// Further arguments of the kubelet.
    pub kubelet_args: BTreeMap<String, String>,
}

/// What cannot be written into boot data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// A value that would change the command line around it.
    #[error(
        "{what} has {text:?}, which can not stand in a command line; use letters, digits and -._/:@%+= only"
    )]
    Unsafe {
        /// Where it comes from.
        what: String,
        /// The value.
        text: String,
    },
    /// An argument that is the host's.
    #[error("spec.kubeletArgs[{0:?}] is set by the host; remove it")]
    Reserved(String),
    /// An encoder failed.
    #[error("boot data of node {node} has no YAML form: {why}")]
    Yaml {
        /// The node.
        node: String,
        /// What the encoder said.
        why: String,
    },
}

#[derive(Serialize)]
struct CloudConfig<'a> {
    hostname: &'a str,
    preserve_hostname: bool,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    ssh_authorized_keys: &'a [String],
    write_files: Vec<File<'a>>,
    runcmd: Vec<Vec<&'a str>>,
}

#[derive(Serialize)]
struct File<'a> {
    path: &'a str,
    owner: &'a str,
    permissions: &'a str,
    content: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kubeconfig<'a> {
    api_version: &'a str,
    kind: &'a str,
    clusters: [Named<&'a str, Cluster<'a>>; 1],
    users: [User<'a>; 1],
    contexts: [Context<'a>; 1],
    #[serde(rename = "current-context")]
    current_context: &'a str,
}

#[derive(Serialize)]
struct Named<N, C> {
    name: N,
    cluster: C,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster<'a> {
    server: &'a str,
    certificate_authority_data: String,
}

#[derive(Serialize)]
struct User<'a> {
    name: &'a str,
    user: Bearer,
}

#[derive(Serialize)]
struct Bearer {
    token: String,
}

#[derive(Serialize)]
struct Context<'a> {
    name: &'a str,
    context: Pair<'a>,
}

#[derive(Serialize)]
struct Pair<'a> {
    cluster: &'a str,
    user: &'a str,
}

/// User data of a machine.
///
/// # Errors
/// A value that cannot be written safely, by the path that it comes from.
pub fn user_data(boot: &Boot) -> Result<String, BootError> {
    let failed = |why: String| BootError::Yaml {
        node: boot.node_name.clone(),
        why,
    };
    let kubeconfig = serde_saphyr::to_string(&kubeconfig(boot)).map_err(|error| failed(error.to_string()))?;
    let file = |path, permissions, content| File {
        path,
        owner: "root:root",
        permissions,
        content,
    };
    let config = CloudConfig {
        hostname: &boot.node_name,
        preserve_hostname: false,
        ssh_authorized_keys: &boot.ssh_keys,
        write_files: vec![
            file(BOOTSTRAP_KUBECONFIG, "0600", kubeconfig),
            file(AUTHORITY, "0644", boot.ca_pem.clone()),
            file(
                EXTRA_ARGUMENTS,
                "0644",
                format!("KUBELET_EXTRA_ARGS=\"{}\"\n", arguments(boot)?),
            ),
        ],
        runcmd: vec![
            vec!["systemctl", "daemon-reload"],
            vec!["systemctl", "enable", "--now", "kubelet"],
        ],
    };
    let body = serde_saphyr::to_string(&config).map_err(|error| failed(error.to_string()))?;
    Ok(format!("#cloud-config\n{body}"))
}

/// Whether a kubelet may give itself this label.
#[must_use]
pub fn kubelet_accepts(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain == parent
            || domain
                .strip_suffix(parent)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    if within("kubelet.kubernetes.io") || within("node.kubernetes.io") || KUBELET_LABELS.contains(&key) {
        return true;
    }
    !within("kubernetes.io") && !within("k8s.io")
}

/// Taints as a set: of two with one key and effect the later one stands, in the place of the first.
#[must_use]
pub fn one_each(taints: &[Taint]) -> Vec<&Taint> {
    let mut kept: Vec<&Taint> = Vec::new();
    for taint in taints {
        match kept
            .iter_mut()
            .find(|known| known.key == taint.key && known.effect == taint.effect)
        {
            Some(known) => *known = taint,
            None => kept.push(taint),
        }
    }
    kept
}

fn kubeconfig(boot: &Boot) -> Kubeconfig<'_> {
    Kubeconfig {
        api_version: "v1",
        kind: "Config",
        clusters: [Named {
            name: "tenant",
            cluster: Cluster {
                server: &boot.server,
                certificate_authority_data: STANDARD.encode(&boot.ca_pem),
            },
        }],
        users: [User {
            name: "bootstrap",
            user: Bearer {
                token: format!("{}.{}", boot.token.id, boot.token.secret),
            },
        }],
        contexts: [Context {
            name: "tenant",
            context: Pair {
                cluster: "tenant",
                user: "bootstrap",
            },
        }],
        current_context: "tenant",
    }
}

fn arguments(boot: &Boot) -> Result<String, BootError> {
    let mut words = Vec::new();
    let labels = boot
        .labels
        .iter()
        .filter(|(key, _)| kubelet_accepts(key))
        .map(|(key, value)| {
            Ok(format!(
                "{}={}",
                plain("a label's key", key)?,
                plain(&format!("label {key}"), value)?
            ))
        });
    let labels = labels.collect::<Result<Vec<_>, _>>()?.join(",");
    if !labels.is_empty() {
        words.push(format!("--node-labels={labels}"));
    }
    let taints = one_each(&boot.taints).into_iter().map(|taint| {
        let value = plain(
            &format!("taint {}", taint.key),
            taint.value.as_deref().unwrap_or_default(),
        )?;
        Ok(format!(
            "{}={value}:{}",
            plain("a taint's key", &taint.key)?,
            plain("a taint's effect", &taint.effect)?
        ))
    });
    let taints = taints.collect::<Result<Vec<_>, _>>()?.join(",");
    if !taints.is_empty() {
        words.push(format!("--register-with-taints={taints}"));
    }
    if let Some(id) = &boot.provider_id {
        words.push(format!("--provider-id={}", plain("the provider id", id)?));
    }
    for (key, value) in &boot.kubelet_args {
        // A kubelet takes `node_labels` for `node-labels`.
        if RESERVED_ARGUMENTS.contains(&key.trim_start_matches(['-', '_']).replace('_', "-").as_str()) {
            return Err(BootError::Reserved(key.clone()));
        }
        let what = format!("spec.kubeletArgs[{key:?}]");
        if key.is_empty() || key.starts_with('-') || key.contains(['=', ',']) {
            return Err(BootError::Unsafe {
                what: "spec.kubeletArgs".to_owned(),
                text: key.clone(),
            });
        }
        // Commas separate here, and only here: labels and taints may hold none.
        words.push(format!(
            "--{}={}",
            plain("spec.kubeletArgs", key)?,
            spread(&what, value)?
        ));
    }
    Ok(words.join(" "))
}

fn plain<'t>(what: &str, text: &'t str) -> Result<&'t str, BootError> {
    if text.contains(',') {
        return Err(BootError::Unsafe {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    spread(what, text)
}

fn spread<'t>(what: &str, text: &'t str) -> Result<&'t str, BootError> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:@%+=,".contains(&byte);
    if text.bytes().all(is_safe) {
        return Ok(text);
    }
    Err(BootError::Unsafe {
        what: what.to_owned(),
        text: text.chars().take(64).collect(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

    fn taint(key: &str, value: Option<&str>, effect: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            value: value.map(ToOwned::to_owned),
            effect: effect.to_owned(),
            time_added: None,
        }
    }

    fn strings<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn boot() -> Boot {
        Boot {
            node_name: "bare-metal-2".to_owned(),
            server: "https://192.168.100.2:8443".to_owned(),
            ca_pem: PEM.to_owned(),
            token: Token {
                id: "abcdef".to_owned(),
                secret: "0123456789abcdef".to_owned(),
            },
            ssh_keys: vec!["ssh-ed25519 AAAA \"quote\": # me".to_owned()],
            labels: strings([
                ("workload", "gpu"),
                ("node-restriction.kubernetes.io/node-profile", "x"),
                ("node-role.kubernetes.io/control-plane", ""),
                ("topology.kubernetes.io/zone", "a"),
            ]),
            taints: vec![
                taint("gpu", Some("yes"), "NoSchedule"),
                taint("startup", None, "NoExecute"),
                taint("gpu", Some("profile"), "NoSchedule"),
            ],
            provider_id: Some("metal3://default/bare-metal-2/u".to_owned()),
            kubelet_args: strings([("max-pods", "200"), ("system-reserved", "cpu=1,memory=1Gi")]),
        }
    }

    fn files(text: &str) -> BTreeMap<String, String> {
        let body: Value = serde_saphyr::from_str(text).unwrap();
        let files = body["write_files"].as_array().unwrap().iter();
        files
            .map(|f| {
                (
                    f["path"].as_str().unwrap().to_owned(),
                    f["content"].as_str().unwrap().to_owned(),
                )
            })
            .collect()
    }

    #[test]
    fn user_data_reads_as_it_was_meant() {
        let text = user_data(&boot()).unwrap();
        insta::assert_snapshot!(text);
        let body: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(body["hostname"], "bare-metal-2");
        assert_eq!(
            body["ssh_authorized_keys"],
            json!(["ssh-ed25519 AAAA \"quote\": # me"])
        );
        assert_eq!(body["write_files"][0]["permissions"], json!("0600"));
        assert_eq!(
            body["runcmd"][1],
            json!(["systemctl", "enable", "--now", "kubelet"])
        );
        let files = files(&text);
        assert_eq!(files[AUTHORITY], PEM);
        let kubeconfig: Value = serde_saphyr::from_str(&files[BOOTSTRAP_KUBECONFIG]).unwrap();
        assert_eq!(kubeconfig["users"][0]["user"]["token"], "abcdef.0123456789abcdef");
        assert_eq!(
            kubeconfig["clusters"][0]["cluster"]["server"],
            "https://192.168.100.2:8443"
        );
        assert_eq!(
            kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"],
            STANDARD.encode(PEM)
        );
        assert_eq!(
            files[EXTRA_ARGUMENTS],
            "KUBELET_EXTRA_ARGS=\"--node-labels=topology.kubernetes.io/zone=a,workload=gpu \
             --register-with-taints=gpu=profile:NoSchedule,startup=:NoExecute \
             --provider-id=metal3://default/bare-metal-2/u --max-pods=200 --system-reserved=cpu=1,memory=1Gi\"\n"
        );
    }

    #[test]
    fn a_node_name_that_looks_like_a_number_stays_a_name() {
        let text = user_data(&Boot {
            node_name: "0123".to_owned(),
            ..boot()
        })
        .unwrap();
        let body: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(body["hostname"], json!("0123"));
    }

    #[rstest]
    #[case("123456", "0123456789012345")]
    #[case("1e1234", "0000000000000000")]
    #[case("0x12ab", "ffffffffffffffff")]
    fn a_token_that_looks_like_a_number_stays_a_token(#[case] id: &str, #[case] secret: &str) {
        let token = Token {
            id: id.to_owned(),
            secret: secret.to_owned(),
        };
        let files = files(&user_data(&Boot { token, ..boot() }).unwrap());
        let kubeconfig: Value = serde_saphyr::from_str(&files[BOOTSTRAP_KUBECONFIG]).unwrap();
        assert_eq!(
            kubeconfig["users"][0]["user"]["token"],
            json!(format!("{id}.{secret}"))
        );
    }

    #[rstest]
    #[case::a_space(strings([("max-pods", "1 --hostname-override=x")]))]
    #[case::a_quote(strings([("v", "1\"")]))]
    #[case::a_variable(strings([("v", "$HOME")]))]
    #[case::a_new_line(strings([("v", "1\nX=1")]))]
    #[case::an_argument_in_a_key(strings([("v=1 --x", "1")]))]
    #[case::a_dash(strings([("--v", "1")]))]
    #[case::the_hosts_own(strings([("node-labels", "a=b")]))]
    #[case::the_hosts_own_with_dashes(strings([("--hostname-override", "x")]))]
    #[case::the_hosts_own_with_underscores(strings([("hostname_override", "x")]))]
    #[case::the_hosts_own_half_and_half(strings([("register_with-taints", "x")]))]
    fn an_argument_is_refused_for(#[case] kubelet_args: BTreeMap<String, String>) {
        let error = user_data(&Boot {
            kubelet_args,
            ..boot()
        })
        .unwrap_err();
        assert!(error.to_string().starts_with("spec.kubeletArgs"), "{error}");
    }

    #[test]
    fn a_label_cannot_smuggle_another_one() {
        let error = user_data(&Boot {
            labels: strings([("a", "b,c=d")]),
            ..boot()
        })
        .unwrap_err();
        assert!(matches!(error, BootError::Unsafe { .. }), "{error}");
    }

    #[rstest]
    #[case("workload", true)]
    #[case("run.ai/simulated-gpu-node-pool", true)]
    #[case("node.kubernetes.io/instance-type", true)]
    #[case("kubelet.kubernetes.io/x", true)]
    #[case("x.node.kubernetes.io/y", true)]
    #[case("notkubernetes.io/x", true)]
    #[case("node-role.kubernetes.io/worker", false)]
    #[case("node-restriction.kubernetes.io/node-profile", false)]
    #[case("a.node-restriction.kubernetes.io/b", false)]
    #[case("k8s.io/x", false)]
    fn a_kubelet_takes(#[case] key: &str, #[case] takes: bool) {
        assert_eq!(kubelet_accepts(key), takes);
    }
}
