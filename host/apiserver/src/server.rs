//! The server: opened once, asked from inside the process or over a socket, stopped with a token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use jiff::SignedDuration;
use rustls::pki_types::CertificateDer;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::answer::{Body, Format, error_answer, json_answer, text_answer};
use crate::authenticate::{self, Credentials, Identity, Realm, StaticToken, mint_token};
use crate::authorize::{self, Attributes};
use crate::background::Pace;
use crate::clock::{Clock, stamp};
use crate::kubeconfig::{Proof, kubeconfig};
use crate::kubelets::Kubelets;
use crate::operation::{Call, Lookup};
use crate::options::{OpenError, Options, Store};
use crate::query::{Query, check_timeout};
use crate::registry::Registry;
use crate::resource::Resource;
use crate::routes::{self, Route, Verb};
use crate::service::Local;
use crate::status::ApiError;
use crate::store::object::Key;
use crate::store::{Refused, Storage, authority_setting};
use crate::tls::{Authority, TlsError};
use crate::{
    certificates, definitions, discovery, expiry, furniture, gc, metadata, namespaces, node_lifecycle,
    openapi, pod_lifecycle,
};

/// Setting that holds the authority for the server's own certificate.
const AUTHORITY: &str = "authority";

/// Life of the certificates in kubeconfigs.
const CLIENT_LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Something about a cluster that did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It exists.
    #[error("cluster {0} exists already; choose another name")]
    Exists(String),
    /// It does not.
    #[error("cluster {0} does not exist; create it first")]
    Missing(String),
    /// Its name does not fit into a path.
    #[error("cluster name {name:?} is not valid ({why}); choose another name")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is the one that paths without a cluster mean.
    #[error("cluster {0} is the server's own and cannot be deleted; delete the store instead")]
    Own(String),
    /// The disk failed.
    #[error("the store cannot be written ({0}); check the disk, then start again")]
    Store(String),
    /// Certificates failed.
    #[error("certificates cannot be made: {0}")]
    Tls(#[from] TlsError),
    /// The socket failed.
    #[error("the socket cannot be served ({0}); choose another address")]
    Socket(#[from] std::io::Error),
}

/// A Kubernetes API server, with its clusters.
#[derive(Clone)]
pub struct Server {
    pub(crate) inner: Arc<Inner>,
}

/// What all parts of a server share.
pub(crate) struct Inner {
    pub(crate) storage: Arc<Storage>,
    pub(crate) options: Options,
    pub(crate) authority: Authority,
    tokens: Mutex<HashMap<String, Vec<StaticToken>>>,
    authorities: Mutex<HashMap<Arc<str>, Arc<Authority>>>,
    kubelets: Arc<Kubelets>,
    pub(crate) stop: CancellationToken,
}

impl Server {
    /// Opens the store, and creates in it what a server cannot be without.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let path = match &options.store {
            Store::File(path) => path.clone(),
            Store::Memory => "memory".into(),
        };
        let storage = Storage::open(&options)?;
        let failed = |why: String| OpenError::Authority {
            path: path.clone(),
            why,
        };
        let unwritten = |refused: Refused| OpenError::Corrupt {
            path: path.clone(),
            why: refused.to_string(),
        };
        let now = (options.clock)();
        let authority = match storage.setting(AUTHORITY) {
            Some(bytes) => load(&bytes).map_err(|error| failed(error.to_string()))?,
            None => {
                let fresh =
                    Authority::generate("apiserver", now).map_err(|error| failed(error.to_string()))?;
                storage
                    .keep_setting(AUTHORITY, fresh.to_pem().into_bytes())
                    .map_err(unwritten)?;
                fresh
            }
        };
        if storage.read().cluster(&options.cluster).is_none() {
            let clients = client_authority(&options.cluster, &options.clock)
                .map_err(|error| failed(error.to_string()))?;
            storage
                .create_cluster_now(&options.cluster, clients.into_bytes())
                .map_err(unwritten)?;
        }
        // A server that was killed between creating a cluster and filling it goes on here.
        for cluster in crate::background::clusters(&storage) {
            for write in namespaces::first(&storage, &cluster, &stamp(now)) {
                storage.write_now(write).map_err(unwritten)?;
            }
        }
        let kubelets = Kubelets::new(options.kubelets.clone());
        kubelets.prepare(&authority, &options.clock);
        let inner = Inner {
            kubelets: Arc::new(kubelets),
            storage,
            options,
            authority,
            tokens: Mutex::default(),
            authorities: Mutex::default(),
            stop: CancellationToken::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Starts the background loops on the current runtime: garbage collection, namespaces, definitions, certificate
    /// requests, expiry of events. They end with `stop`, and so do all watches.
    pub fn start(&self, stop: CancellationToken) {
        let inner = &self.inner;
        let (storage, clock) = (&inner.storage, &inner.options.clock);
        tokio::spawn(gc::run(storage.clone(), clock.clone(), stop.clone()));
        tokio::spawn(namespaces::run(storage.clone(), clock.clone(), stop.clone()));
        tokio::spawn(definitions::run(storage.clone(), clock.clone(), stop.clone()));
        tokio::spawn(furniture::run(
            storage.clone(),
            clock.clone(),
            self.ca_pem().to_owned(),
            stop.clone(),
        ));
        tokio::spawn(expiry::run(
            storage.clone(),
            clock.clone(),
            inner.options.event_ttl,
            stop.clone(),
        ));
        tokio::spawn(attend(self.clone(), stop.clone()));
        let watches = inner.stop.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            watches.cancel();
        });
    }

    /// Ends watches and lets go of the file, so that it can be opened again at once. What is written after this is
    /// refused; reads go on as long as anybody has a client.
    pub fn close(&self) {
        self.inner.stop.cancel();
        self.inner.storage.close();
    }

    /// Creates a cluster, with its first namespaces and an authority of its own for its clients.
    pub async fn create_cluster(&self, name: &str) -> Result<(), ServerError> {
        if let Some(why) = metadata::subdomain(name).into_iter().next() {
            return Err(ServerError::Name {
                name: name.to_owned(),
                why,
            });
        }
        let inner = &self.inner;
        let clients = client_authority(name, &inner.options.clock)?;
        inner
            .storage
            .create_cluster(name, clients.into_bytes())
            .await
            .map_err(|refused| match refused {
                Refused::Disk(why) => ServerError::Store(why),
                Refused::Raced | Refused::NoCluster => ServerError::Exists(name.to_owned()),
            })?;
        for write in namespaces::first(&inner.storage, name, &stamp((inner.options.clock)())) {
            match inner.storage.write(write).await {
                Ok(_) | Err(Refused::Raced | Refused::NoCluster) => {}
                Err(Refused::Disk(why)) => return Err(ServerError::Store(why)),
            }
        }
        Ok(())
    }

    /// Deletes a cluster with all that is in it. Its watches end, its clients' certificates and tokens are worth
    /// nothing, and one created later under the same name is another.
    pub async fn delete_cluster(&self, name: &str) -> Result<(), ServerError> {
        if name == self.inner.options.cluster {
            return Err(ServerError::Own(name.to_owned()));
        }
        self.inner.tokens().remove(name);
        self.inner
            .storage
            .delete_cluster(name)
            .await
            .map_err(|refused| match refused {
                Refused::Disk(why) => ServerError::Store(why),
                Refused::Raced | Refused::NoCluster => ServerError::Missing(name.to_owned()),
            })
    }

    /// Names of all clusters, sorted.
    pub fn clusters(&self) -> Vec<String> {
        let mut names = crate::background::clusters(&self.inner.storage);
        names.sort();
        names
    }

    /// Identity of a cluster, which no other has, not even a later one of the same name.
    pub fn cluster_uid(&self, name: &str) -> Option<String> {
        Some(self.inner.storage.read().cluster(name)?.uid.to_string())
    }

    /// A client of a cluster within this process: no socket, no TLS, and the identity is as given.
    pub fn client(&self, cluster: &str, identity: Identity) -> kube::Client {
        kube::Client::new(self.service(cluster, identity), "default")
    }

    /// The service below such a client, to be wrapped in layers of one's own.
    pub fn service(&self, cluster: &str, identity: Identity) -> Local {
        Local::new(self.inner.clone(), cluster, identity)
    }

    /// A kubeconfig with a fresh client certificate. `base_url` is where the socket is, like `https://127.0.0.1:6443`.
    pub fn kubeconfig(
        &self,
        cluster: &str,
        base_url: &str,
        identity: &Identity,
    ) -> Result<String, ServerError> {
        let authority = self
            .inner
            .client_authority(cluster)
            .ok_or_else(|| ServerError::Missing(cluster.to_owned()))?;
        let group = identity
            .groups
            .iter()
            .find(|group| !group.starts_with("system:authenticated"));
        let now = (self.inner.options.clock)();
        let issued = authority.client(&identity.user, group.map(String::as_str), now, CLIENT_LIFE)?;
        let url = self.url(cluster, base_url);
        Ok(kubeconfig(
            cluster,
            &identity.user,
            &url,
            self.ca_pem(),
            Proof::Certificate(&issued),
        ))
    }

    /// Where a cluster is found below `base_url`.
    pub fn url(&self, cluster: &str, base_url: &str) -> String {
        let base = base_url.trim_end_matches('/');
        if cluster == self.inner.options.cluster {
            base.to_owned()
        } else {
            format!("{base}/clusters/{cluster}")
        }
    }

    /// A new bearer token that stands for `identity` in a cluster until the server stops.
    pub fn token(&self, cluster: &str, identity: Identity) -> String {
        let token = mint_token();
        self.inner
            .tokens()
            .entry(cluster.to_owned())
            .or_default()
            .push(StaticToken::new(&token, identity));
        token
    }

    /// The authority of the server's certificate, as PEM.
    pub fn ca_pem(&self) -> &str {
        self.inner.authority.certificate()
    }
}

fn load(bytes: &[u8]) -> Result<Authority, TlsError> {
    Authority::load(&String::from_utf8_lossy(bytes))
}

/// A new authority for the clients of a cluster.
fn client_authority(cluster: &str, clock: &Clock) -> Result<String, TlsError> {
    Ok(Authority::generate(&format!("{cluster} clients"), clock())?.to_pem())
}

/// Runs a signer of certificate requests and a judge of nodes for every cluster that there is.
async fn attend(server: Server, stop: CancellationToken) {
    let inner = &server.inner;
    let mut running: HashMap<Arc<str>, CancellationToken> = HashMap::new();
    let mut pace = Pace::new(&inner.storage, stop.clone());
    while pace.next(None).await {
        let present: HashMap<Arc<str>, String> = {
            let state = inner.storage.read();
            state
                .clusters()
                .map(|(name, cluster)| (cluster.uid.clone(), name.to_owned()))
                .collect()
        };
        running.retain(|uid, token| {
            let stays = present.contains_key(uid);
            if !stays {
                token.cancel();
            }
            stays
        });
        for (uid, name) in present {
            if running.contains_key(&uid) {
                continue;
            }
            let Some(authority) = inner.client_authority(&name) else {
                continue;
            };
            let token = stop.child_token();
            let client = server.client(&name, Identity::host("system:kube-controller-manager"));
            let clock = &inner.options.clock;
            tokio::spawn(certificates::run(
                client.clone(),
                authority,
                clock.clone(),
                token.clone(),
            ));
            tokio::spawn(pod_lifecycle::run(client.clone(), clock.clone(), token.clone()));
            tokio::spawn(node_lifecycle::run(client, clock.clone(), token.clone()));
            running.insert(uid, token);
        }
    }
}

impl Inner {
    fn tokens(&self) -> MutexGuard<'_, HashMap<String, Vec<StaticToken>>> {
        self.tokens
            .lock()
            .expect("nobody panics while holding the tokens")
    }

    /// The authority for the clients of a cluster; read once per cluster, not per name.
    pub(crate) fn client_authority(&self, cluster: &str) -> Option<Arc<Authority>> {
        let uid = self.storage.read().cluster(cluster)?.uid.clone();
        let mut known = self
            .authorities
            .lock()
            .expect("nobody panics while holding the authorities");
        if let Some(found) = known.get(&uid) {
            return Some(found.clone());
        }
        let loaded = Arc::new(load(&self.storage.setting(&authority_setting(cluster))?).ok()?);
        known.insert(uid, loaded.clone());
        Some(loaded)
    }

    /// Finds out who asks over a socket.
    pub(crate) fn identify(
        &self,
        cluster: &str,
        chain: &[CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<Identity, ApiError> {
        let authority = self
            .client_authority(cluster)
            .ok_or_else(ApiError::unauthorized)?;
        let tokens = self.tokens().get(cluster).cloned().unwrap_or_default();
        let secret = |name: &str| {
            let key = Key::new("kube-system", name);
            self.storage
                .get(cluster, "secrets", &key)
                .map(|secret| secret.value())
        };
        let realm = Realm {
            authority: &authority,
            tokens: &tokens,
            secret: &secret,
        };
        let header = parts.headers.get(http::header::AUTHORIZATION);
        let credentials = Credentials {
            chain,
            authorization: header.and_then(|value| value.to_str().ok()),
        };
        authenticate::authenticate(credentials, &realm, (self.options.clock)())
    }

    /// Answers one request; refusals are answers.
    pub(crate) async fn respond(
        &self,
        cluster: &str,
        identity: Identity,
        parts: &Parts,
        path: &str,
        body: Bytes,
    ) -> Response<Body> {
        if let Err(error) = check_timeout(&parts.uri) {
            return error_answer(&error);
        }
        let answer = match routes::parse(path) {
            Route::Objects(target) => self.objects(cluster, identity, parts, target, body).await,
            route => self.paths(cluster, &identity, parts, path, &route),
        };
        answer.unwrap_or_else(|error| error_answer(&error))
    }

    async fn objects(
        &self,
        cluster: &str,
        identity: Identity,
        parts: &Parts,
        target: routes::Target,
        body: Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let query = Query::parse(&parts.method, &parts.uri)?;
        let verb = Verb::of(&parts.method, &target, &query)?;
        let registry = self
            .storage
            .registry(cluster)
            .ok_or_else(ApiError::unknown_path)?;
        if !registry
            .all()
            .iter()
            .any(|one| one.group == target.group && one.version == target.version)
        {
            return Ok(text_answer(StatusCode::NOT_FOUND, "404 page not found\n"));
        }
        let index = registry
            .find(&target.group, &target.version, &target.plural)
            .ok_or_else(ApiError::unknown_path)?;
        if !registry.all()[index].namespaced && !target.namespace.is_empty() {
            return Err(ApiError::unknown_path());
        }
        let format = Format::negotiate(&parts.headers, &query.include_object)?;
        let call = Call {
            storage: self.storage.clone(),
            cluster: cluster.to_owned(),
            identity,
            registry,
            index,
            target,
            verb,
            query,
            headers: parts.headers.clone(),
            format,
            now: (self.options.clock)(),
            stop: self.stop.clone(),
            kubelets: self.kubelets.clone(),
        };
        call.answer(body).await
    }

    fn paths(
        &self,
        cluster: &str,
        identity: &Identity,
        parts: &Parts,
        path: &str,
        route: &Route,
    ) -> Result<Response<Body>, ApiError> {
        let wish = Attributes {
            verb: parts.method.as_str().to_lowercase(),
            path: path.to_owned(),
            ..Attributes::default()
        };
        authorize::authorize(
            identity,
            &wish,
            &Lookup {
                storage: &self.storage,
                cluster,
            },
        )?;
        let Some(registry) = self.storage.registry(cluster) else {
            return Ok(text_answer(StatusCode::NOT_FOUND, "404 page not found\n"));
        };
        if !matches!(parts.method.as_str(), "GET" | "HEAD") {
            return Err(ApiError::method_not_allowed());
        }
        let prefix = if cluster == self.options.cluster {
            String::new()
        } else {
            format!("/clusters/{cluster}")
        };
        Ok(discover(&registry, &prefix, parts, route)
            .unwrap_or_else(|| text_answer(StatusCode::NOT_FOUND, "404 page not found\n")))
    }
}

/// Answers that need nothing but the kinds that are served. `prefix` is where the cluster is found.
fn discover(registry: &Registry, prefix: &str, parts: &Parts, route: &Route) -> Option<Response<Body>> {
    let all = registry.all();
    let wants_aggregated = || {
        let accept = parts
            .headers
            .get(http::header::ACCEPT)
            .and_then(|value| value.to_str().ok());
        accept.is_some_and(|accept| {
            accept.split(',').next().is_some_and(|first| {
                first.contains("g=apidiscovery.k8s.io") && first.contains("v=v2;") || first.ends_with("v=v2")
            })
        })
    };
    let aggregated = |core: bool| {
        let mut answer = json_answer(StatusCode::OK, discovery::aggregated(all, core).to_string(), &[]);
        let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        answer
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
        answer
    };
    let value = match route {
        Route::Health => return Some(text_answer(StatusCode::OK, "ok")),
        Route::Version => version(),
        Route::Core if wants_aggregated() => return Some(aggregated(true)),
        Route::Groups if wants_aggregated() => return Some(aggregated(false)),
        Route::Core => {
            let host = parts
                .headers
                .get(http::header::HOST)
                .and_then(|host| host.to_str().ok());
            discovery::api_versions(host.unwrap_or_default())
        }
        Route::Groups => discovery::api_groups(all),
        Route::Group(name) => discovery::group(all, name)?,
        Route::Resources { group, version } => discovery::resource_list(all, group, version)?,
        Route::OldSchemas => return old_schemas(all, &parts.headers),
        Route::Schemas => {
            let mut index = openapi::index(all);
            // Clients take these addresses as they are, from the root of the server.
            for entry in index["paths"]
                .as_object_mut()
                .into_iter()
                .flat_map(|paths| paths.values_mut())
            {
                let address = format!(
                    "{prefix}{}",
                    entry["serverRelativeURL"].as_str().unwrap_or_default()
                );
                entry["serverRelativeURL"] = serde_json::Value::String(address);
            }
            index
        }
        Route::Schema { group, version } => {
            let document = openapi::group_version(all, group, version)?;
            return Some(json_answer(StatusCode::OK, document.to_string(), &[]));
        }
        Route::Objects(_) | Route::Unknown => return None,
    };
    Some(json_answer(StatusCode::OK, value.to_string(), &[]))
}

/// The schemas of everything in one document, for those who take JSON and do not have it already.
fn old_schemas(all: &[Resource], headers: &http::HeaderMap) -> Option<Response<Body>> {
    let header = |name| {
        headers
            .get(name)
            .and_then(|value: &http::HeaderValue| value.to_str().ok())
    };
    let wishes = header(http::header::ACCEPT).unwrap_or("*/*");
    if !wishes.split(',').any(|wish| {
        let kind = wish.split(';').next().unwrap_or_default().trim();
        matches!(kind, "" | "*/*" | "application/*" | "application/json")
    }) {
        return None;
    }
    let tag = format!("\"{}\"", openapi::v2::tag(all));
    let mut answer = if header(http::header::IF_NONE_MATCH) == Some(tag.as_str()) {
        json_answer(StatusCode::NOT_MODIFIED, Bytes::new(), &[])
    } else {
        json_answer(StatusCode::OK, openapi::v2::document(all).to_string(), &[])
    };
    if let Ok(tag) = http::HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(http::header::ETAG, tag);
    }
    Some(answer)
}

fn version() -> serde_json::Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
