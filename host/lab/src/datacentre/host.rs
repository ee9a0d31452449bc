//! The task of one host: look, decide, write, and look again; and the server that runs meanwhile.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::core::{DynamicObject, TypeMeta};
use kube::{Api, Error, ResourceExt};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::secrets::{Secrets, digest, is_newer};
use crate::bmh::{self, Again, Hardware, Host, Instance, Note, Seen, State, Write, step};
use crate::crds::bare_metal_hosts;
use crate::notices::Source;
use crate::server::{Boot, Site, run};

/// The task of one host.
pub(super) struct HostTask {
    site: Arc<Site>,
    secrets: Arc<Secrets>,
    seen: watch::Receiver<Arc<DynamicObject>>,
    nudge: Arc<Notify>,
    stop: CancellationToken,
    api: Api<DynamicObject>,
    hardware: Option<Hardware>,
    server: Option<(Instance, AbortOnDropHandle<()>)>,
    view: watch::Sender<Arc<Host>>,
    /// Failures of the API since the last answer.
    failures: u32,
}

/// What makes the real controller look at a host again. Its own reports do not.
#[derive(Clone, PartialEq)]
struct Trigger {
    generation: Option<i64>,
    finalizers: Vec<String>,
    annotations: Vec<(String, String)>,
}

impl Trigger {
    fn of(object: &DynamicObject) -> Self {
        let annotations = object.annotations().iter();
        Self {
            generation: object.metadata.generation,
            finalizers: object.finalizers().to_vec(),
            annotations: annotations
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

impl HostTask {
    pub(super) fn new(
        site: Arc<Site>,
        secrets: Arc<Secrets>,
        seen: watch::Receiver<Arc<DynamicObject>>,
        nudge: Arc<Notify>,
        stop: CancellationToken,
    ) -> Self {
        let namespace = seen.borrow().namespace().unwrap_or_default();
        let api = Api::namespaced_with(site.client.clone(), &namespace, &bare_metal_hosts());
        let (view, _) = watch::channel(Arc::default());
        Self {
            site,
            secrets,
            seen,
            nudge,
            stop,
            api,
            hardware: None,
            server: None,
            view,
            failures: 0,
        }
    }

    /// Runs until it is stopped. A server that runs then is dropped with it.
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.turns() => {}
        }
        if let Some((_, server)) = self.server.take() {
            server.abort();
            // It was told to end, and whether it could say so does not matter.
            let _ended = server.await;
        }
    }

    async fn turns(&mut self) {
        let nudge = Arc::clone(&self.nudge);
        let mut current = self.seen.borrow_and_update().clone();
        loop {
            let looked_at = Trigger::of(&current);
            let again = match self.turn(&mut current).await {
                Ok(again) => {
                    self.failures = 0;
                    again
                }
                // Somebody else was faster, or something has gone: decide anew on what is there now.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    self.refresh(&mut current).await
                }
                Err(error) => {
                    debug!(host = current.name_any(), %error, "a write for a host failed");
                    Again::After(self.backoff())
                }
            };
            let rest = async {
                match again {
                    Again::Now => {}
                    Again::After(left) => sleep(left).await,
                    Again::OnChange => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rest => {}
                () = self.triggered(&mut current, &looked_at) => {}
                () = nudge.notified() => {}
            }
            let newest = self.seen.borrow_and_update().clone();
            if is_newer(&newest.metadata, &current.metadata) {
                current = newest;
            }
        }
    }

    /// Waits for a change that makes the real controller look again.
    async fn triggered(&mut self, current: &mut Arc<DynamicObject>, looked_at: &Trigger) {
        while self.seen.changed().await.is_ok() {
            let newest = self.seen.borrow_and_update().clone();
            if is_newer(&newest.metadata, &current.metadata) {
                let triggers = Trigger::of(&newest) != *looked_at;
                *current = newest;
                if triggers {
                    return;
                }
            }
        }
        // The object has gone; whoever knows stops this task.
        std::future::pending::<()>().await;
    }

    /// Reads the object again.
    async fn refresh(&mut self, current: &mut Arc<DynamicObject>) -> Again {
        match self.api.get_opt(&current.name_any()).await {
            Ok(Some(object)) if object.metadata.uid == current.metadata.uid => {
                *current = Arc::new(object);
                Again::Now
            }
            Ok(_) => Again::OnChange,
            Err(_) => Again::After(self.backoff()),
        }
    }

    fn backoff(&mut self) -> Duration {
        let doublings = self.failures.min(6);
        self.failures += 1;
        Duration::from_millis(100) * 2_u32.pow(doublings)
    }

    /// One look at the host, with the write that comes of it.
    async fn turn(&mut self, current: &mut Arc<DynamicObject>) -> Result<Again, Error> {
        let host = match Host::parse(current) {
            Ok(host) => Arc::new(host),
            Err(error) => {
                warn!(%error, "a host is left alone");
                return Ok(Again::OnChange);
            }
        };
        self.view.send_replace(Arc::clone(&host));
        let recalled = self.hardware.is_none();
        if recalled {
            self.hardware = Some(Hardware::recall(host.status.as_ref()));
            self.match_server(true).await;
        }
        let needs_secret = !matches!(host.state(), State::None | State::Unmanaged);
        let secret = if needs_secret {
            self.secrets.of(&host).await?
        } else {
            None
        };
        let known = secret.as_ref().map(|secret| digest(secret, &host));
        // A step is taken back when its write does not succeed.
        let mut hardware = self.hardware.clone().unwrap_or_default();
        let seen = Seen {
            host: &host,
            secret: known.as_ref(),
        };
        let step = step(seen, &mut hardware, Timestamp::now(), &self.site.options.times);
        let cleaning = matches!(&step.write, Some(Write::Status(status))
            if status.provisioning.state == State::Deprovisioning && host.state() != State::Deprovisioning);
        if let Some(write) = step.write {
            self.write(&host, current, secret, write).await?;
        }
        self.hardware = Some(hardware);
        for Note { reason, message } in step.notes {
            let warning = reason.ends_with("Error");
            self.site
                .notices
                .say(&host, Source::Metal3, warning, reason, &message);
        }
        self.match_server(false).await;
        if cleaning || (recalled && host.state() == State::Deprovisioning) {
            self.erase_disk(&host).await;
        }
        Ok(step.again)
    }

    async fn write(
        &self,
        host: &Host,
        current: &mut Arc<DynamicObject>,
        secret: Option<Secret>,
        write: Write,
    ) -> Result<(), Error> {
        let params = PostParams::default();
        let name = current.name_any();
        let mut object = DynamicObject::clone(current);
        let kinds = bare_metal_hosts();
        object.types.get_or_insert(TypeMeta {
            api_version: kinds.api_version,
            kind: kinds.kind,
        });
        match write {
            Write::Status(status) => {
                object.data["status"] = serde_json::to_value(status).map_err(Error::SerdeError)?;
                *current = Arc::new(self.api.replace_status(&name, &params, &object).await?);
            }
            Write::Object(change @ bmh::Change::RemoveFinalizer) => {
                change.apply(&mut object);
                // The answer is of no use: it may be that of an object that is no more.
                self.api.replace(&name, &params, &object).await?;
            }
            Write::Object(change) => {
                change.apply(&mut object);
                *current = Arc::new(self.api.replace(&name, &params, &object).await?);
            }
            Write::ClaimSecret => {
                if let Some(secret) = secret {
                    self.secrets.claim(host, secret).await?;
                }
            }
            Write::ReleaseSecret => {
                if let Some(secret) = secret {
                    self.secrets.release(secret).await?;
                }
            }
        }
        Ok(())
    }

    /// Starts and ends the server, as power and disk have it.
    async fn match_server(&mut self, running: bool) {
        let wanted = self.hardware.as_ref().and_then(Hardware::running);
        if self.server.as_ref().map(|(instance, _)| instance) == wanted.as_ref() {
            return;
        }
        if let Some((_, server)) = self.server.take() {
            server.abort();
            // It was told to end, and whether it could say so does not matter.
            let _ended = server.await;
        }
        if let Some(instance) = wanted {
            let boot = Boot {
                instance: instance.clone(),
                running,
                host: self.view.subscribe(),
            };
            let server = tokio::spawn(run(Arc::clone(&self.site), boot));
            self.server = Some((instance, AbortOnDropHandle::new(server)));
        }
    }

    async fn erase_disk(&self, host: &Host) {
        let uid = host.meta.uid.as_deref().unwrap_or_default();
        if let Err(error) = self.site.disks.erase(uid).await {
            // No harm: what is installed next has another name, and is not mistaken for this.
            debug!(host = host.meta.name, %error, "a disk was not erased");
        }
    }
}
