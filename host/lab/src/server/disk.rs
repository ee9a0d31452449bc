//! What a server keeps on its simulated disk, and where that is: one Secret a server in the laboratory's own namespace.
//!
//! A real server keeps its kubelet's certificate across reboots and does not care whether the simulation runs. So the
//! contents of a disk outlive the process: they lie in the Secret `disk-<uid of the host>`, beside nothing else. The
//! administrator of the platform may read it; no component of Hostler does.
//!
//! # Guarantees
//! A key is on disk before a certificate is asked for with it, so that a laboratory that was killed in between asks for the
//! same certificate again. A disk that was written anew (another image, another time) has forgotten all of it.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use super::kubelet::Bootstrap;

/// Marks the Secrets that are disks.
pub(crate) const DISK_LABEL: &str = "hostler.dev/simulated-disk";
/// The key in the Secret under which everything lies, as JSON.
const CONTENTS: &str = "contents";

/// The contents of a disk, after the first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Disk {
    /// Names what was installed, and when.
    pub(crate) installed: String,
    /// The server's host name.
    pub(crate) hostname: String,
    /// Network data it was installed with.
    pub(crate) network_data: Option<String>,
    /// URL of its API server.
    pub(crate) server: String,
    /// The authority of its API server, as PEM.
    pub(crate) authority: String,
    /// The token of the bootstrap kubeconfig; gone when there is a certificate.
    pub(crate) token: String,
    /// The environment file of the kubelet.
    pub(crate) environment: String,
    /// The kubelet's private key, as PEM.
    pub(crate) key: String,
    /// The kubelet's certificate, as PEM; empty before it was issued.
    pub(crate) certificate: String,
    /// Names the present boot.
    pub(crate) boot: String,
    /// Whether the node was registered.
    pub(crate) registered: bool,
}

impl Disk {
    /// A disk after cloud-init wrote the files of a kubelet to it.
    pub(crate) fn installed(
        installed: &str,
        hostname: &str,
        bootstrap: Bootstrap,
        environment: &str,
    ) -> Self {
        Self {
            installed: installed.to_owned(),
            hostname: hostname.to_owned(),
            server: bootstrap.server,
            authority: bootstrap.authority,
            token: bootstrap.token,
            environment: environment.to_owned(),
            ..Self::default()
        }
    }
}

/// All disks.
#[derive(Clone)]
pub(crate) struct Disks {
    secrets: Api<Secret>,
    namespace: String,
}

impl Disks {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    /// What is on the disk of a host, if it is what was installed there last.
    pub(crate) async fn read(&self, host: &str, installed: &str) -> Result<Option<Disk>, kube::Error> {
        let Some(secret) = self.secrets.get_opt(&name(host)).await? else {
            return Ok(None);
        };
        let contents = secret.data.as_ref().and_then(|data| data.get(CONTENTS));
        let disk = contents.and_then(|bytes| serde_json::from_slice::<Disk>(&bytes.0).ok());
        Ok(disk.filter(|disk| disk.installed == installed))
    }

    /// Writes a disk.
    pub(crate) async fn write(&self, host: &str, disk: &Disk) -> Result<(), kube::Error> {
        let contents = serde_json::to_vec(disk).map_err(kube::Error::SerdeError)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name(host)),
                namespace: Some(self.namespace.clone()),
                labels: Some(BTreeMap::from([(DISK_LABEL.to_owned(), host.to_owned())])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(CONTENTS.to_owned(), ByteString(contents))])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        match self.secrets.create(&PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let patch = Patch::Merge(serde_json::json!({"data": secret.data}));
                self.secrets
                    .patch(&name(host), &PatchParams::default(), &patch)
                    .await
                    .map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Erases a disk, if there is one.
    pub(crate) async fn erase(&self, host: &str) -> Result<(), kube::Error> {
        match self.secrets.delete(&name(host), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }

    /// The hosts that have a disk.
    pub(crate) async fn hosts(&self) -> Result<Vec<String>, kube::Error> {
        let disks = kube::api::ListParams::default().labels(DISK_LABEL);
        let found = self.secrets.list(&disks).await?;
        Ok(found
            .items
            .into_iter()
            .filter_map(|disk| disk.metadata.labels?.remove(DISK_LABEL))
            .collect())
    }
}

fn name(host: &str) -> String {
    format!("disk-{host}")
}
