//! Tenants' APIs that somebody else runs: each is known by the kubeconfig in the Secret `vc-<virtual cluster>` of the tenant's own namespace.
//!
//! The Secret is read and watched, never written, adopted or deleted. Each tenant has a task of its own here, which reads its Secret, makes
//! one client of it, and looks whether the API answers; asking for a tenant's state waits for none of that.
//!
//! # Guarantees
//! A kubeconfig is data (`core::kubeconfig`): one that is refused leads to no process, no file and no connection. A client is made of what
//! stands in the Secret now, and dropped with the Secret, with its content and with the tenant. Everything is kept by the tenant's uid.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use hostler_core::kubeconfig::{self, INVALID, Kubeconfig, Own, Proof};
use hostler_core::seams::Reason;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::config::AuthInfo;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use tokio::sync::{Notify, OnceCell, broadcast};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::probe::{self, LANDMARK, Seen};
use super::{ControlPlane, State, TenantApi, TenantPlace};
use crate::patch;
use crate::tenant::lane;

/// Key of the kubeconfig in the Secret.
const CONFIG: &str = "config";
/// Longest wait for a connection with TLS to stand.
const TO_CONNECT: Duration = Duration::from_secs(5);
/// First wait after a look that failed; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait after a look that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Shortest time between two looks at an API that answers: what some requests complain about is not worth more.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// Changes held for a reader that is behind; who misses one asks again in its own time.
const BACKLOG: usize = 1024;

/// Makes a client from what a kubeconfig says; whoever wires the host puts its own layers around it.
pub type Connect = Arc<dyn Fn(Config) -> kube::Result<Client> + Send + Sync>;

/// Tenants' APIs by the Secrets that somebody else made.
pub struct Given {
    parts: Arc<Parts>,
    tenants: Mutex<HashMap<String, Slot>>,
}

/// What all tenants' tasks share.
struct Parts {
    platform: Client,
    own: Own,
    connect: Connect,
    /// uid of the platform's landmark, read once.
    landmark: OnceCell<String>,
    changes: broadcast::Sender<String>,
}

/// One tenant; its task ends with it.
struct Slot {
    namespace: String,
    secret: String,
    view: Arc<Mutex<View>>,
    _stop: DropGuard,
}

/// What is known of a tenant's API.
#[derive(Clone)]
enum View {
    Unknown,
    Pending(Reason),
    Silent(Reason),
    Unusable(Reason),
    Online(Arc<Way>),
}

/// The one way to a tenant's API.
struct Way {
    kubeconfig: Kubeconfig,
    client: Client,
    doubt: Arc<Notify>,
}

impl Given {
    /// Control planes that are known by Secrets of `platform`. `own` are the addresses of the platform's own API, which no tenant may name.
    #[must_use]
    pub fn new(platform: Client, own: Own, connect: Connect) -> Self {
        Self {
            parts: Arc::new(Parts {
                platform,
                own,
                connect,
                landmark: OnceCell::new(),
                changes: broadcast::Sender::new(BACKLOG),
            }),
            tenants: Mutex::default(),
        }
    }

    /// What is known of a tenant; the first time its task is started.
    fn view(&self, place: &TenantPlace) -> View {
        let secret = secret_name(place);
        let mut tenants = self.tenants.lock().expect("no holder panics");
        if let Some(slot) = tenants.get(&place.uid)
            && slot.namespace == place.host_namespace
            && slot.secret == secret
        {
            return slot.view.lock().expect("no holder panics").clone();
        }
        let stop = CancellationToken::new();
        let view = Arc::new(Mutex::new(View::Unknown));
        let task = Task {
            parts: self.parts.clone(),
            uid: place.uid.clone(),
            namespace: place.host_namespace.clone(),
            secret: secret.clone(),
            view: view.clone(),
            way: None,
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(task.run()));
        let slot = Slot {
            namespace: place.host_namespace.clone(),
            secret,
            view,
            _stop: stop.drop_guard(),
        };
        tenants.insert(place.uid.clone(), slot);
        View::Unknown
    }
}

#[async_trait]
impl ControlPlane for Given {
    async fn ensure(&self, place: &TenantPlace) -> Result<State, Reason> {
        Ok(match self.view(place) {
            View::Unknown => State::Unknown,
            View::Pending(reason) => State::Pending(reason),
            View::Silent(reason) => State::Silent(reason),
            View::Unusable(reason) => State::Unusable(reason),
            View::Online(way) => State::Online(TenantApi {
                uid: place.uid.clone(),
                client: way.client.clone(),
                join_server: place.endpoint.as_ref().map_or_else(
                    || way.kubeconfig.server.url.clone(),
                    |endpoint| format!("https://{endpoint}"),
                ),
                ca_pem: way.kubeconfig.ca_pem.clone(),
                kubeconfig: None,
                doubt: Some(way.doubt.clone()),
            }),
        })
    }

    async fn remove(&self, place: &TenantPlace) -> Result<bool, Reason> {
        // Somebody else made it, and takes it away.
        self.tenants.lock().expect("no holder panics").remove(&place.uid);
        Ok(true)
    }

    fn changes(&self) -> Option<BoxStream<'static, String>> {
        let changes = self.parts.changes.subscribe();
        Some(
            futures::stream::unfold(changes, |mut changes| async move {
                loop {
                    match changes.recv().await {
                        Ok(uid) => return Some((uid, changes)),
                        Err(broadcast::error::RecvError::Lagged(_)) => {}
                        Err(broadcast::error::RecvError::Closed) => return None,
                    }
                }
            })
            .boxed(),
        )
    }
}

/// Name of a tenant's Secret.
fn secret_name(place: &TenantPlace) -> String {
    format!("vc-{}", place.virtual_cluster)
}

/// The task of one tenant.
struct Task {
    parts: Arc<Parts>,
    uid: String,
    namespace: String,
    secret: String,
    view: Arc<Mutex<View>>,
    /// The way to the API, and the uid of the Secret that it came from.
    way: Option<(String, Arc<Way>)>,
}

/// A look that is under way, after its pause.
type Look = BoxFuture<'static, Seen>;

impl Task {
    async fn run(mut self) {
        let secrets: Api<Secret> = Api::namespaced(self.parts.platform.clone(), &self.namespace);
        let mut seen = watcher::watch_object(secrets, &self.secret)
            .default_backoff()
            .boxed();
        let mut look: Option<Look> = None;
        let mut pause = FIRST_PAUSE;
        let mut looked = Instant::now();
        loop {
            let doubt = self.doubted(look.is_some());
            tokio::select! {
                event = seen.next() => match event {
                    Some(Ok(secret)) => {
                        if self.take(secret) {
                            pause = FIRST_PAUSE;
                            look = self.look(Duration::ZERO);
                        }
                        if self.way.is_none() {
                            look = None;
                        }
                    }
                    Some(Err(error)) => self.unread(&error),
                    None => return,
                },
                found = under_way(&mut look) => {
                    look = None;
                    looked = Instant::now();
                    if let Some(again) = self.found(found, &mut pause) {
                        look = self.look(again);
                    }
                }
                () = doubt => look = self.look(BETWEEN_LOOKS.saturating_sub(looked.elapsed())),
            }
        }
    }

    /// Returns once a request has failed that ought not to, if nobody looks already.
    fn doubted(&self, looking: bool) -> BoxFuture<'static, ()> {
        match &self.way {
            Some((_, way)) if !looking => {
                let doubt = way.doubt.clone();
                async move { doubt.notified().await }.boxed()
            }
            _ => std::future::pending().boxed(),
        }
    }

    /// Reads the Secret. True when there is a new way to the API, which nobody has looked at.
    fn take(&mut self, secret: Option<Secret>) -> bool {
        let Some(secret) = secret else {
            self.way = None;
            let message = format!("no Secret {} in namespace {}", self.secret, self.namespace);
            let reason = Reason::new("TenantKubeconfigMissing", message).remedy(format!(
                "install the tenant's control plane there, or write its kubeconfig under key {CONFIG}"
            ));
            self.tell(View::Pending(reason));
            return false;
        };
        let uid = secret.uid().unwrap_or_default();
        let read = self.read(&secret);
        let known = self
            .way
            .as_ref()
            .is_some_and(|(of, way)| *of == uid && read.as_ref().is_ok_and(|read| *read == way.kubeconfig));
        if known {
            return false;
        }
        let before = self.way.take();
        match read.and_then(|kubeconfig| self.connect(kubeconfig)) {
            Ok(way) => {
                let renewed = before.is_some_and(|(of, before)| {
                    of == uid
                        && before.kubeconfig.server == way.kubeconfig.server
                        && before.kubeconfig.ca == way.kubeconfig.ca
                });
                // New credentials of the same API take over once they are known to work; another API is not known at all yet.
                if !renewed {
                    self.tell(View::Unknown);
                }
                self.way = Some((uid, Arc::new(way)));
                true
            }
            Err(reason) => {
                tracing::warn!(tenant = self.uid, code = reason.code, "{}", reason.text());
                self.tell(View::Unusable(reason));
                false
            }
        }
    }

    fn read(&self, secret: &Secret) -> Result<Kubeconfig, Reason> {
        let place = format!("Secret {}/{}", self.namespace, self.secret);
        let named = |mut reason: Reason| {
            reason.message = format!("{place}: {}", reason.message);
            reason
        };
        let Some(ByteString(bytes)) = secret.data.as_ref().and_then(|data| data.get(CONFIG)) else {
            let reason = Reason::new(INVALID, format!("key {CONFIG} is missing"));
            return Err(named(
                reason.remedy("write the kubeconfig of the tenant's API under it"),
            ));
        };
        let text = std::str::from_utf8(bytes).map_err(|_| {
            named(Reason::new(
                INVALID,
                format!("key {CONFIG} is no text; write YAML"),
            ))
        })?;
        kubeconfig::parse(text, &self.parts.own).map_err(named)
    }

    fn connect(&self, kubeconfig: Kubeconfig) -> Result<Way, Reason> {
        // Which part it is that TLS does not take, the error tells; none of it is the kubeconfig's text.
        let refused = |error: String| {
            Reason::new(
                INVALID,
                format!("Secret {}/{}: {error}", self.namespace, self.secret),
            )
            .remedy("write a CA, and a client certificate with its own key, that TLS takes")
        };
        let config = config(&kubeconfig).map_err(|error| refused(error.to_string()))?;
        let client = (self.parts.connect)(config).map_err(|error| refused(error.to_string()))?;
        Ok(Way {
            kubeconfig,
            client,
            doubt: Arc::default(),
        })
    }

    /// The next look, after a pause.
    fn look(&self, pause: Duration) -> Option<Look> {
        let (_, way) = self.way.clone()?;
        let parts = self.parts.clone();
        Some(
            async move {
                tokio::time::sleep(pause).await;
                let platform = match parts.landmark().await {
                    Ok(uid) => uid,
                    Err(reason) => return Seen::Silent(reason),
                };
                // Not among the requests of the loops: it must not wait for those of a tenant that does not answer.
                let client = lane::narrow(&way.client, None);
                probe::look(&client, &way.kubeconfig, &platform).await
            }
            .boxed(),
        )
    }

    /// Tells what a look showed; returns when to look again.
    fn found(&self, seen: Seen, pause: &mut Duration) -> Option<Duration> {
        let (_, way) = self.way.as_ref()?;
        let view = match seen {
            Seen::Online => {
                *pause = FIRST_PAUSE;
                self.tell(View::Online(way.clone()));
                return None;
            }
            Seen::Silent(reason) => View::Silent(reason),
            Seen::Unusable(reason) => View::Unusable(reason),
        };
        self.tell(view);
        let wait = *pause;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        Some(wait)
    }

    /// The platform did not let the Secret be read. What was read before goes on.
    fn unread(&self, error: &watcher::Error) {
        tracing::debug!(tenant = self.uid, error = %error, "the tenant's Secret was not read");
        let unknown = matches!(*self.view.lock().expect("no holder panics"), View::Unknown);
        if unknown {
            let message = format!("Secret {}/{} cannot be read", self.namespace, self.secret);
            let reason = Reason::new("TenantKubeconfigNotRead", message)
                .remedy("see that the platform's API answers, and that the host may get, list and watch Secrets there");
            self.tell(View::Pending(reason));
        }
    }

    fn tell(&self, next: View) {
        let mut view = self.view.lock().expect("no holder panics");
        let same = match (&*view, &next) {
            (View::Pending(was), View::Pending(is))
            | (View::Silent(was), View::Silent(is))
            | (View::Unusable(was), View::Unusable(is)) => was == is,
            (View::Unknown, View::Unknown) => true,
            (View::Online(was), View::Online(is)) => Arc::ptr_eq(was, is),
            _ => false,
        };
        *view = next;
        drop(view);
        if !same {
            // Nobody who listens is nobody who has asked yet.
            drop(self.parts.changes.send(self.uid.clone()));
        }
    }
}

impl Parts {
    /// What tells the platform from a tenant, whatever both are called.
    async fn landmark(&self) -> Result<String, Reason> {
        let read = || async {
            let namespaces: Api<Namespace> = Api::all(self.platform.clone());
            let doing = format!("reading namespace {LANDMARK}");
            let found = patch::within(doing, namespaces.get(LANDMARK)).await?;
            Ok::<_, crate::error::Error>(found.uid().unwrap_or_default())
        };
        self.landmark
            .get_or_try_init(read)
            .await
            .cloned()
            .map_err(|error| {
                tracing::debug!(error = %error, "the platform is not known");
                let message = format!(
                    "namespace {LANDMARK} of the platform cannot be read, so a tenant cannot be told from it"
                );
                Reason::new("PlatformUnknown", message).remedy("see that the host may get namespaces")
            })
    }
}

/// The look under way; never, if there is none.
async fn under_way(look: &mut Option<Look>) -> Seen {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

/// A client's configuration: nothing but what the kubeconfig says, nothing from the environment, and an end to every wait.
fn config(kubeconfig: &Kubeconfig) -> Result<Config, http::uri::InvalidUri> {
    let mut config = Config::new(kubeconfig.server.url.parse()?);
    config.root_cert = Some(kubeconfig.ca.clone());
    config.connect_timeout = Some(TO_CONNECT);
    // The loops try again in their own time; the tenant does not set it.
    config.default_retry = false;
    config.auth_info = match &kubeconfig.proof {
        Proof::Token(token) => AuthInfo {
            token: Some(token.clone().into()),
            ..AuthInfo::default()
        },
        Proof::Certificate { chain, key } => AuthInfo {
            client_certificate_data: Some(STANDARD.encode(chain)),
            client_key_data: Some(STANDARD.encode(key).into()),
            ..AuthInfo::default()
        },
    };
    Ok(config)
}
