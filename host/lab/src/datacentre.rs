//! The whole data centre: one task a host, fed by two watches.
//!
//! ```text
//! watch BareMetalHosts ──► one task a host: step (pure) → write → step … ──► server while it has power and an image
//! watch BMC Secrets ─────► nudges the hosts that name the Secret
//! ```
//!
//! # Guarantees
//! All writes are checked against the resource version that the step was decided from; a conflict is looked at anew. An
//! unreadable host is told once a version and stops no other. Steady hosts send nothing but their node's heartbeats.

mod host;
mod secrets;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ListParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use self::host::HostTask;
use self::secrets::Secrets;
use crate::bmh::{ENVIRONMENT, ENVIRONMENT_LABEL};
use crate::crds::bare_metal_hosts;
use crate::network::Network;
use crate::notices::Notices;
use crate::options::Options;
use crate::server::{Disks, Site};

/// Why a data centre did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The namespace of the disks could not be made.
    #[error(
        "namespace {name} for the simulated disks could not be made; may the laboratory create namespaces?"
    )]
    Namespace {
        /// Its name.
        name: String,
        /// What the API said.
        source: Box<kube::Error>,
    },
    /// The kind of the hosts is not served.
    #[error("BareMetalHosts cannot be listed; apply the laboratory's CustomResourceDefinitions first")]
    Hosts(#[source] Box<kube::Error>),
}

/// A running data centre. It ends when [`Lab::stop`] is called or when it is dropped.
#[derive(Debug)]
pub struct Lab {
    stop: CancellationToken,
    running: JoinHandle<Result<(), LabError>>,
}

impl Lab {
    /// Starts a data centre of its own task. It ends when `stop` is cancelled, too.
    #[must_use]
    pub fn start(client: Client, network: Network, options: Options, stop: CancellationToken) -> Self {
        let running = tokio::spawn(run(client, network, options, stop.clone()));
        Self { stop, running }
    }

    /// Stops everything and waits until it has stopped.
    ///
    /// # Errors
    /// When the data centre had not started, with the reason.
    pub async fn stop(mut self) -> Result<(), LabError> {
        self.stop.cancel();
        match (&mut self.running).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a data centre until `stop` is cancelled: all BareMetalHosts of the cluster behind `client`, in all namespaces.
///
/// # Errors
/// When it cannot start. Once it runs, an API that is away is waited for.
pub async fn run(
    client: Client,
    network: Network,
    options: Options,
    stop: CancellationToken,
) -> Result<(), LabError> {
    let namespace = options.namespace.clone();
    ensure_namespace(&client, &namespace).await?;
    let hosts: Api<DynamicObject> = Api::all_with(client.clone(), &bare_metal_hosts());
    let probe = hosts.list(&ListParams::default().limit(1)).await;
    probe.map_err(|error| LabError::Hosts(Box::new(error)))?;
    let (notices, send_notices) = Notices::new(client.clone());
    let sender = AbortOnDropHandle::new(tokio::spawn(send_notices));
    let disks = Disks::new(client.clone(), &namespace);
    let site = Arc::new(Site {
        client: client.clone(),
        network,
        options,
        disks,
        notices,
    });
    let mut centre = Centre {
        site,
        secrets: Arc::new(Secrets::new(client.clone())),
        hosts: HashMap::new(),
        by_secret: HashMap::new(),
        listed: None,
        swept: false,
    };
    let mut host_events = watch_objects(hosts, watcher::Config::default())
        .default_backoff()
        .boxed();
    let labelled = watcher::Config::default().labels(&format!("{ENVIRONMENT_LABEL}={ENVIRONMENT}"));
    let secrets: Api<Secret> = Api::all(client);
    let mut secret_events = watch_objects(secrets, labelled).default_backoff().boxed();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(event) = host_events.next() => match event {
                Ok(event) => centre.host_event(event),
                Err(error) => debug!(%error, "the watch of hosts was interrupted"),
            },
            Some(event) = secret_events.next() => match event {
                Ok(event) => centre.secret_event(event),
                Err(error) => debug!(%error, "the watch of BMC Secrets was interrupted"),
            },
        }
    }
    centre.close().await;
    drop(sender);
    Ok(())
}

async fn ensure_namespace(client: &Client, name: &str) -> Result<(), LabError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let failed = |source| LabError::Namespace {
        name: name.to_owned(),
        source: Box::new(source),
    };
    if namespaces.get_opt(name).await.map_err(failed)?.is_some() {
        return Ok(());
    }
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).map_err(failed),
    }
}

/// Namespace and name.
type Key = (String, String);

struct Running {
    uid: String,
    object: watch::Sender<Arc<DynamicObject>>,
    nudge: Arc<Notify>,
    secret: Option<Key>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct Centre {
    site: Arc<Site>,
    secrets: Arc<Secrets>,
    hosts: HashMap<Key, Running>,
    by_secret: HashMap<Key, HashSet<Key>>,
    /// The hosts of a list that is being read.
    listed: Option<HashSet<Key>>,
    /// Whether disks of hosts that went while the laboratory was away were erased.
    swept: bool,
}

impl Centre {
    fn host_event(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed = Some(HashSet::new()),
            Event::InitApply(object) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(key(&object));
                }
                self.host_seen(object);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let gone: Vec<Key> = self
                    .hosts
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.host_gone(&key);
                }
                self.sweep();
            }
            Event::Apply(object) => self.host_seen(object),
            Event::Delete(object) => {
                let key = key(&object);
                if self
                    .hosts
                    .get(&key)
                    .is_some_and(|running| Some(&running.uid) == object.metadata.uid.as_ref())
                {
                    self.host_gone(&key);
                }
            }
        }
    }

    fn host_seen(&mut self, object: DynamicObject) {
        let key = key(&object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        if self.hosts.get(&key).is_some_and(|running| running.uid != uid) {
            self.host_gone(&key);
        }
        let secret = object.data["spec"]["bmc"]["credentialsName"].as_str();
        let secret = secret.map(|name| (key.0.clone(), name.to_owned()));
        let object = Arc::new(object);
        match self.hosts.get_mut(&key) {
            Some(running) => {
                if running.secret != secret {
                    let before = std::mem::replace(&mut running.secret, secret.clone());
                    forget(&mut self.by_secret, before.as_ref(), &key);
                    remember(&mut self.by_secret, secret, &key);
                }
                running.object.send_replace(object);
            }
            None => {
                let (sender, receiver) = watch::channel(object);
                let (nudge, stop) = (Arc::new(Notify::new()), CancellationToken::new());
                let task = HostTask::new(
                    Arc::clone(&self.site),
                    Arc::clone(&self.secrets),
                    receiver,
                    Arc::clone(&nudge),
                    stop.clone(),
                );
                let task = tokio::spawn(task.run());
                remember(&mut self.by_secret, secret.clone(), &key);
                self.hosts.insert(
                    key,
                    Running {
                        uid,
                        object: sender,
                        nudge,
                        secret,
                        stop,
                        task,
                    },
                );
            }
        }
    }

    /// Ends the task of a host that is no more. Its disk goes with it.
    fn host_gone(&mut self, key: &Key) {
        let Some(running) = self.hosts.remove(key) else {
            return;
        };
        forget(&mut self.by_secret, running.secret.as_ref(), key);
        let disks = self.site.disks.clone();
        tokio::spawn(async move {
            running.stop.cancel();
            // Whether it ended well does not matter: what it held is erased now.
            let _ended = running.task.await;
            if let Err(error) = disks.erase(&running.uid).await {
                warn!(host = running.uid, %error, "the disk of a host that has gone was not erased");
            }
        });
    }

    fn secret_event(&mut self, event: Event<Secret>) {
        let changed = match event {
            Event::Init => return self.secrets.list_begins(),
            Event::InitApply(secret) | Event::Apply(secret) => self.secrets.seen(secret),
            Event::Delete(secret) => self.secrets.gone(&secret),
            Event::InitDone => {
                for key in self.secrets.list_ends() {
                    self.nudge(&key);
                }
                None
            }
        };
        if let Some(key) = changed {
            self.nudge(&key);
        }
    }

    fn nudge(&self, secret: &Key) {
        for host in self.by_secret.get(secret).into_iter().flatten() {
            if let Some(running) = self.hosts.get(host) {
                running.nudge.notify_one();
            }
        }
    }

    /// Erases the disks of hosts that went while the laboratory was away.
    fn sweep(&mut self) {
        if std::mem::replace(&mut self.swept, true) {
            return;
        }
        let known: HashSet<String> = self.hosts.values().map(|running| running.uid.clone()).collect();
        let disks = self.site.disks.clone();
        tokio::spawn(async move {
            let result = async {
                for host in disks
                    .hosts()
                    .await?
                    .into_iter()
                    .filter(|host| !known.contains(host))
                {
                    disks.erase(&host).await?;
                }
                Ok::<_, kube::Error>(())
            };
            if let Err(error) = result.await {
                warn!(%error, "disks of hosts that have gone were not erased");
            }
        });
    }

    async fn close(self) {
        for running in self.hosts.values() {
            running.stop.cancel();
        }
        for running in self.hosts.into_values() {
            // A task that panicked has said so already.
            let _ended = running.task.await;
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn remember(by_secret: &mut HashMap<Key, HashSet<Key>>, secret: Option<Key>, host: &Key) {
    if let Some(secret) = secret {
        by_secret.entry(secret).or_default().insert(host.clone());
    }
}

fn forget(by_secret: &mut HashMap<Key, HashSet<Key>>, secret: Option<&Key>, host: &Key) {
    if let Some(secret) = secret
        && let Some(hosts) = by_secret.get_mut(secret)
    {
        hosts.remove(host);
        if hosts.is_empty() {
            by_secret.remove(secret);
        }
    }
}
