//! A kubeconfig: what a client needs to reach one logical cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::tls::Issued;

/// How the client proves who it is.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'a> {
    /// A client certificate of the cluster.
    Certificate(&'a Issued),
    /// A bearer token.
    Token(&'a str),
}

/// The text of a kubeconfig whose current context leads to the cluster.
///
/// `server` is a URL with the path prefix of the cluster; `authority` is the PEM of the server's authority.
pub fn kubeconfig(cluster: &str, user: &str, server: &str, authority: &str, proof: Proof<'_>) -> String {
    let base64 = |text: &str| BASE64.encode(text);
    let proof = match proof {
        Proof::Certificate(issued) => format!(
            "    client-certificate-data: {}\n    client-key-data: {}\n",
            base64(&issued.certificate),
            base64(&issued.key)
        ),
        Proof::Token(token) => format!("    token: {}\n", quoted(token)),
    };
    let (cluster, context, user) = (
        quoted(cluster),
        quoted(&format!("{user}@{cluster}")),
        quoted(user),
    );
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n  \
           cluster:\n    \
             server: {}\n    \
             certificate-authority-data: {}\n\
         users:\n\
         - name: {user}\n  \
           user:\n{proof}\
         contexts:\n\
         - name: {context}\n  \
           context:\n    \
             cluster: {cluster}\n    \
             user: {user}\n\
         current-context: {context}\n",
        quoted(server),
        base64(authority),
    )
}

/// A YAML string; JSON's form of one is YAML too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn a_client_reads_back_what_was_written() {
        let issued = Issued {
            certificate: "cert".into(),
            key: "key".into(),
        };
        let text = kubeconfig(
            "a: b",
            "me",
            "https://127.0.0.1:1/clusters/a",
            "ca",
            Proof::Certificate(&issued),
        );
        let read = Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("me@a: b"));
        assert_eq!(read.contexts[0].context.as_ref().unwrap().cluster, "a: b");
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:1/clusters/a"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("Y2E="));
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("Y2VydA=="));
        assert!(user.client_key_data.is_some() && user.token.is_none());
    }

    #[test]
    fn a_token_stands_in_for_a_certificate() {
        let text = kubeconfig("c", "me", "https://x", "ca", Proof::Token("secret"));
        let read = Kubeconfig::from_yaml(&text).unwrap();
        assert!(read.auth_infos[0].auth_info.as_ref().unwrap().token.is_some());
    }
}
