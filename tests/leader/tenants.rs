//! Whoever gives the tenant of the example an API: a server of its own, and its kubeconfig in the Secret that the host reads. The host's
//! way there passes a gate, too; nodes and administrators go to the server itself.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hostler_api::{VirtualClusterInstance, names};
use hostler_apiserver::{Identity, Server, Store};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::gate::Counted;
use super::tally::Tally;
use crate::harness::{SelfSigned, World};

/// The tenant's cluster on its server.
const CLUSTER: &str = "one";

pub(super) struct Tenants {
    /// Whose writes to the tenant are counted.
    pub(super) counted: Counted,
    server: Arc<Server>,
    _stop: DropGuard,
}

impl Tenants {
    pub(super) async fn start(world: &World) -> Self {
        let stop = CancellationToken::new();
        let server = Arc::new(Server::open(hostler_apiserver::Options::new(Store::Memory)).unwrap());
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve(listener, stop).await }
        });
        let counted = Counted::by(Tally::idle());
        let gives = Gives {
            client: world.client.clone(),
            network: world.network.clone(),
            counted: counted.clone(),
            server: server.clone(),
            base,
            stop: stop.clone(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(gives.on()));
        Self {
            counted,
            server,
            _stop: stop.drop_guard(),
        }
    }

    /// Whoever may do everything in the tenant.
    pub(super) fn administrator(&self) -> Client {
        self.server.client(CLUSTER, Identity::administrator())
    }
}

struct Gives {
    client: Client,
    network: hostler_lab::Network,
    counted: Counted,
    server: Arc<Server>,
    base: String,
    stop: CancellationToken,
}

impl Gives {
    /// Gives each tenant that comes its API.
    async fn on(self) {
        let tenants: Api<VirtualClusterInstance> = Api::namespaced(self.client.clone(), "p-default");
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let mut given = None;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let Ok(Some(tenant)) = tenants.get_opt("one").await else {
                continue;
            };
            let uid = tenant.uid().unwrap();
            let Ok(Some(place)) = namespaces.get_opt("loft-default-v-one").await else {
                continue;
            };
            if given.as_ref() == Some(&uid) || place.labels().get(names::TENANT_UID) != Some(&uid) {
                continue;
            }
            self.give(&uid).await;
            given = Some(uid);
        }
    }

    async fn give(&self, uid: &str) {
        self.server.create_cluster(CLUSTER).await.unwrap();
        let url = self.server.url(CLUSTER, &self.base).parse().unwrap();
        self.network.bind("192.168.100.2:8443", uid, url).unwrap();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vc-one"},
            "stringData": {"config": self.gate().await.to_string()},
        });
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "loft-default-v-one");
        let params = PatchParams::apply("installer").force();
        secrets
            .patch("vc-one", &params, &Patch::Apply(&secret))
            .await
            .unwrap();
    }

    /// Opens a gate before the tenant's API; returns the kubeconfig that leads to it.
    async fn gate(&self) -> Value {
        let host = Identity::host("system:hostler");
        let router = self.counted.router(self.server.client(CLUSTER, host));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = SelfSigned::new();
        // Nodes are told the same authorities, and meet the server itself.
        let authorities = STANDARD.encode(format!("{}{}", tls.ca_pem, self.server.ca_pem()));
        let listener = Handshaken::start(listener, TlsAcceptor::from(tls.config));
        let served = async move { axum::serve(listener, router).await };
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(served));
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": format!("https://{address}"), "certificate-authority-data": authorities,
            }}],
            "users": [{"name": "it", "user": {"token": "whoever-comes-this-way-is-the-host"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        })
    }
}

/// Connections whose TLS stands; one that is slow about it, since its process is stopped, holds no other up.
struct Handshaken {
    address: SocketAddr,
    arrivals: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl Handshaken {
    fn start(listener: TcpListener, acceptor: TlsAcceptor) -> Self {
        let address = listener.local_addr().unwrap();
        let (arrived, arrivals) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((stream, from)) = listener.accept().await {
                let (acceptor, arrived) = (acceptor.clone(), arrived.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // Without a receiver the gate is closed.
                        drop(arrived.send((stream, from)).await);
                    }
                });
            }
        });
        Self { address, arrivals }
    }
}

impl Listener for Handshaken {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.arrivals.recv().await {
            Some(arrived) => arrived,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
