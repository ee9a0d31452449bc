//! The way to the platform's API: by kubeconfig or in the cluster, and by new credentials once the old ones are refused.
//!
//! # Guarantees
//! An answer of 401 means that nothing was done: the configuration is read again, and if it can be, the request is sent once more. What was
//! read is replaced as a whole, so a kubeconfig, its client certificate and its CA may all be exchanged on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time between two readings of the configuration while the credentials are refused: every request asks for one.
const REFUSED: Duration = Duration::from_secs(2);
/// The same while there is no answer at all, which is seldom for want of a new configuration.
const SILENT: Duration = Duration::from_secs(30);

/// Reads the configuration; how the process was told where it is.
///
/// # Errors
/// Where there is none, or it cannot be read.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .with_context(|| format!("kubeconfig {} cannot be read", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("kubeconfig {} cannot be used", path.display()))?
        }
        None => Config::infer()
            .await
            .context("no cluster to run against; set KUBECONFIG, or run in a pod with a service account")?,
    };
    // What is to be sent again, and when, is decided once, above all clients: `hostler_controllers::requests`.
    config.default_retry = false;
    Ok(config)
}

/// A client that goes on with what is on disk when its credentials are refused.
pub(crate) fn renewing(first: Config, kubeconfig: Option<PathBuf>) -> anyhow::Result<Client> {
    let namespace = first.default_namespace.clone();
    let known = Known {
        client: Client::try_from(first).context("the cluster's configuration cannot be used")?,
        read: Instant::now(),
        number: 0,
    };
    let renewing = Renewing {
        kubeconfig,
        known: Mutex::new(known),
    };
    let renewing = Arc::new(renewing);
    let service = tower::service_fn(move |request| {
        let renewing = renewing.clone();
        async move { renewing.send(request).await }
    });
    Ok(Client::new(service, namespace))
}

/// The client that is used now.
#[derive(Clone)]
struct Known {
    client: Client,
    read: Instant,
    /// Which reading it is of.
    number: u64,
}

struct Renewing {
    kubeconfig: Option<PathBuf>,
    known: Mutex<Known>,
}

impl Renewing {
    /// A client of a later reading than this one, if there is something to read.
    async fn after(&self, number: u64, pause: Duration) -> Option<Client> {
        let mut known = self.known.lock().await;
        if known.number == number && known.read.elapsed() >= pause {
            known.read = Instant::now();
            let read = config(self.kubeconfig.as_deref()).await;
            match read.and_then(|config| Ok(Client::try_from(config)?)) {
                Ok(client) => {
                    if pause == REFUSED {
                        tracing::info!("the configuration of the cluster was read again");
                    }
                    known.client = client;
                    known.number += 1;
                }
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "the configuration of the cluster cannot be read again"
                ),
            }
        }
        (known.number > number).then(|| known.client.clone())
    }

    async fn send(&self, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let whole = || Request::from_parts(parts.clone(), Body::from(body.clone()));
        let known = self.known.lock().await.clone();
        match known.client.send(whole()).await {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                match self.after(known.number, REFUSED).await {
                    Some(client) => client.send(whole()).await,
                    None => Ok(answer),
                }
            }
            Err(error) => {
                // Another address or another CA, maybe. Whether anything arrived is not known, so who asked decides what is sent again.
                self.after(known.number, SILENT).await;
                Err(error)
            }
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use hostler_apiserver::{Identity, Options, Server, Store};
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use kube::api::ListParams;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A kubeconfig with a token, written as a site's agent would: whole, over the one that is there.
    fn write(path: &Path, server: &Server, base: &str, token: &str) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": server.url("platform", base), "certificate-authority": path.with_extension("ca")}}],
            "users": [{"name": "it", "user": {"token": token}}],
        });
        std::fs::write(path.with_extension("ca"), server.ca_pem()).unwrap();
        std::fs::write(path, config.to_string()).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn credentials_that_were_replaced_on_disk_are_used_once_the_old_ones_are_refused() {
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        let mut options = Options::new(Store::Memory);
        options.cluster = "platform".to_owned();
        let server = Arc::new(Server::open(options).unwrap());
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn({
            let server = server.clone();
            async move { server.serve(listener, stop).await }
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        write(&path, &server, &base, "expired");
        let first = config(Some(&path)).await.unwrap();
        assert!(!first.default_retry, "what is sent again is decided elsewhere");
        let namespaces: Api<Namespace> = Api::all(renewing(first, Some(path.clone())).unwrap());
        let list = async || namespaces.list(&ListParams::default()).await;
        let refused = |error: kube::Error| match error {
            kube::Error::Api(status) => status.code,
            other => panic!("{other}"),
        };
        assert_eq!(refused(list().await.unwrap_err()), 401);

        // What cannot be read is no reason to give up what is known.
        std::fs::write(&path, "nonsense: [").unwrap();
        tokio::time::sleep(REFUSED).await;
        assert_eq!(refused(list().await.unwrap_err()), 401);

        let token = server.token("platform", Identity::administrator());
        write(&path, &server, &base, &token);
        let mut said = Vec::new();
        for _ in 0..100 {
            match list().await {
                Ok(found) => {
                    assert!(!found.items.is_empty());
                    return;
                }
                Err(error) => said.push(error.to_string()),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("{said:?}");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let error = config(Some(Path::new("/nowhere/kubeconfig"))).await.unwrap_err();
        assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
    }
}
