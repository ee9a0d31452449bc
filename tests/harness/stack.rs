//! What a world runs on: our own API server in memory, or real clusters. `HOSTLER_STACK=real` chooses the latter for every test.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostler_apiserver::{Identity, Server};
use hostler_cli::control_plane::{Clients, Embedded, cluster_of};
use hostler_controllers::control_plane::{ControlPlane, TenantPlace};
use hostler_lab::Network;
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use super::real::{self, Real};
use super::{eventually, installer};
use crate::kubernetes::{ADMINISTRATOR, Cluster};

/// Name of the platform's cluster.
pub(crate) const PLATFORM: &str = "platform";
/// Who the host is.
const HOST: &str = "system:hostler";

/// Every kind that a world has; the same for all.
static DEFINITIONS: OnceLock<Vec<CustomResourceDefinition>> = OnceLock::new();

/// Whether this run is on the real stack.
pub(crate) fn is_real() -> bool {
    std::env::var("HOSTLER_STACK").is_ok_and(|stack| stack == "real")
}

/// Longest wait for anything; far above what a loaded machine needs.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(if is_real() { 180 } else { 60 })
}

/// The platform's API server and those of the tenants.
#[derive(Clone)]
pub(crate) enum Stack {
    /// All are logical clusters of one server of ours, in memory.
    Embedded {
        server: Arc<Server>,
        /// URL of its socket.
        base: String,
    },
    /// Each is a cluster of its own: etcd, kube-apiserver, kube-controller-manager.
    Real(Arc<Real>),
}

impl Stack {
    /// Starts what this run is on, with all kinds installed; ends with `stop`.
    pub(super) async fn start(stop: &CancellationToken) -> Self {
        if is_real() {
            return Self::Real(Arc::new(Real::start(stop.clone()).await));
        }
        let mut options = hostler_apiserver::Options::new(hostler_apiserver::Store::Memory);
        options.cluster = PLATFORM.to_owned();
        let server = Arc::new(Server::open(options).unwrap());
        server.start(stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve(listener, stop).await }
        });
        let client = server.client(PLATFORM, Identity::administrator());
        let definitions =
            DEFINITIONS.get_or_init(|| [hostler_api::all_crds(), hostler_lab::crds::all()].concat());
        hostler_cli::wire::install(&client, definitions.clone())
            .await
            .unwrap();
        Self::Embedded { server, base }
    }

    /// Names of all clusters, the platform's among them.
    pub(crate) fn clusters(&self) -> Vec<String> {
        match self {
            Self::Embedded { server, .. } => server.clusters(),
            Self::Real(real) => real.clusters(),
        }
    }

    /// A client that may do everything in a cluster.
    pub(crate) fn administrator(&self, cluster: &str) -> Client {
        match self {
            Self::Embedded { server, .. } => server.client(cluster, Identity::administrator()),
            Self::Real(real) => real.administrator(cluster),
        }
    }

    /// The host's client of a cluster, with the rights that it has there.
    pub(crate) fn as_host(&self, cluster: &str) -> anyhow::Result<Client> {
        match self {
            Self::Embedded { server, .. } => Ok(server.client(cluster, Identity::host(HOST))),
            Self::Real(real) => real.as_host(cluster),
        }
    }

    /// A kubeconfig that may do everything in a cluster.
    pub(crate) fn kubeconfig(&self, cluster: &str) -> String {
        match self {
            Self::Embedded { server, base } => server
                .kubeconfig(cluster, base, &Identity::administrator())
                .unwrap(),
            Self::Real(real) => real.kubeconfig(cluster, ADMINISTRATOR).unwrap(),
        }
    }

    /// A kubeconfig of the host's own for the platform.
    pub(crate) fn host_kubeconfig(&self) -> String {
        match self {
            Self::Embedded { server, base } => {
                server.kubeconfig(PLATFORM, base, &Identity::host(HOST)).unwrap()
            }
            Self::Real(real) => real.kubeconfig(PLATFORM, real::HOST).unwrap(),
        }
    }

    /// Where a cluster's API is.
    pub(crate) fn url(&self, cluster: &str) -> String {
        match self {
            Self::Embedded { server, base } => server.url(cluster, base),
            Self::Real(real) => real.url(cluster),
        }
    }

    /// The authority behind a cluster's certificate, as PEM.
    pub(crate) fn ca_pem(&self, cluster: &str) -> String {
        match self {
            Self::Embedded { server, .. } => server.ca_pem().to_owned(),
            Self::Real(real) => real.ca_pem(cluster),
        }
    }

    /// What gives tenants their APIs, through these clients. Our own makes them, with kubeconfigs below `tenants`; real ones are given
    /// by [`installer`], which is no part of the host.
    pub(super) fn control_planes(
        &self,
        clients: Clients,
        network: Network,
        tenants: PathBuf,
    ) -> Arc<dyn ControlPlane> {
        match self {
            Self::Embedded { server, base } => Arc::new(Embedded::new(
                server.clone(),
                clients,
                network,
                base.clone(),
                tenants,
            )),
            Self::Real(real) => real.control_planes(clients),
        }
    }

    /// Whether the host has to make the tenant's cluster, and has not yet.
    pub(super) fn would_make(&self, place: &TenantPlace) -> bool {
        match self {
            Self::Embedded { server, .. } => !server.clusters().contains(&cluster_of(place)),
            Self::Real(_) => false,
        }
    }

    /// Starts what makes tenants' clusters, where the host does not.
    pub(super) fn serve(&self, network: Network, tenants: PathBuf, stop: CancellationToken) {
        if let Self::Real(real) = self {
            tokio::spawn(stop.run_until_cancelled_owned(installer::run(real.clone(), network, tenants)));
        }
    }
    /// Full name of a tenant's cluster; the name of its control plane is enough to ask.
    fn full(&self, name: &str) -> String {
        let mut all = self.clusters().into_iter();
        all.find(|cluster| cluster.rsplit_once('-').is_some_and(|(short, _)| short == name))
            .unwrap_or_else(|| name.to_owned())
    }

    /// The audit log of a real cluster, of requests since then: before that it had other users.
    pub(crate) fn audit_log(&self, name: &str, since: Timestamp) -> Option<String> {
        let Self::Real(real) = self else {
            return None;
        };
        let log = real.with(&self.full(name), |one| {
            std::fs::read_to_string(one.audit_log()).unwrap()
        })?;
        let is_since = |line: &&str| {
            serde_json::from_str::<Value>(line)
                .ok()
                .and_then(|event| {
                    event["requestReceivedTimestamp"]
                        .as_str()?
                        .parse::<Timestamp>()
                        .ok()
                })
                .is_some_and(|received| received >= since)
        };
        Some(
            log.lines()
                .filter(is_since)
                .map(|line| format!("{line}\n"))
                .collect(),
        )
    }

    /// Ends the API server of a real cluster, for so long, and starts it again until it answers.
    pub(crate) async fn without_server(&self, name: &str, pause: Duration) {
        let Self::Real(real) = self else { return };
        let name = self.full(name);
        real.with(&name, Cluster::stop_server).unwrap();
        tokio::time::sleep(pause).await;
        let client = self.administrator(&name);
        eventually("the API server is back", || async {
            // Its port was nobody's for a while: who has it now may let it go.
            real.with(&name, Cluster::keep_server)
                .unwrap()
                .map_err(|error| error.to_string())?;
            let ready = Request::get("/readyz").body(Vec::new()).unwrap();
            let answer = client.request_text(ready).await;
            answer.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Starts kwok beside a real cluster.
    pub(crate) fn start_kwok(&self, name: &str) {
        if let Self::Real(real) = self {
            real.with(&self.full(name), |one| one.start_kwok().unwrap())
                .unwrap();
        }
    }

    /// Starts kube-scheduler beside a real cluster.
    pub(crate) fn start_scheduler(&self, name: &str) {
        if let Self::Real(real) = self {
            real.with(&self.full(name), |one| one.start_scheduler().unwrap())
                .unwrap();
        }
    }

    /// Says in one line why a test does not run on the real stack; true when it does not.
    pub(crate) fn only_embedded(why: &str) -> bool {
        if is_real() {
            eprintln!("not run on the real stack: {why}");
        }
        is_real()
    }
}

/// Requests that pass through a client, so that something can stand before it; none once its world has ended.
#[derive(Clone)]
pub(crate) struct Through {
    client: Client,
    ended: CancellationToken,
}

impl Through {
    /// Without an end.
    pub(crate) fn new(client: Client) -> Self {
        Self::until(client, CancellationToken::new())
    }

    /// What is asked for after the end is not sent: the cluster is somebody else's then.
    pub(crate) fn until(client: Client, ended: CancellationToken) -> Self {
        Self { client, ended }
    }

    pub(crate) fn client(self) -> Client {
        Client::new(self, "default")
    }
}

impl Service<Request<Body>> for Through {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (client, ended) = (self.client.clone(), self.ended.clone());
        async move {
            if ended.is_cancelled() {
                return Err("this world has ended".into());
            }
            Ok(client.send(request).await?)
        }
        .boxed()
    }
}
