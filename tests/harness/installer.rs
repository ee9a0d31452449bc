//! Whoever installs control planes where the host does not: for each tenant a real cluster, and its kubeconfig in the Secret
//! `vc-<name>` of the tenant's own namespace, with the rights that the host asks for and no more.
//!
//! It knows what people know: the tenant's object and its namespace. The address that machines join leads to the cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hostler_api::{VirtualClusterInstance, names};
use hostler_lab::Network;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::real::{AT_TENANTS, Real};
use super::stack::PLATFORM;
use crate::kubernetes::ADMINISTRATOR;

/// Between two looks for something that somebody else is about to make.
const MOMENT: Duration = Duration::from_millis(20);

/// One tenant's cluster.
struct Installed {
    cluster: String,
    kubeconfig: PathBuf,
}

/// Installs and uninstalls until it is dropped.
pub(super) async fn run(real: Arc<Real>, network: Network, tenants: PathBuf) {
    let client = real.administrator(PLATFORM);
    let mut installed: BTreeMap<String, Installed> = BTreeMap::new();
    let all: Api<VirtualClusterInstance> = Api::all(client.clone());
    let mut events = pin!(watch(all, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(tenant) | Event::Apply(tenant)) => {
                let uid = tenant.uid().unwrap_or_default();
                if tenant.metadata.deletion_timestamp.is_none() && !installed.contains_key(&uid) {
                    let one = install(&real, &client, &network, &tenants, &tenant).await;
                    installed.insert(uid, one);
                }
            }
            Ok(Event::Delete(tenant)) => {
                let uid = tenant.uid().unwrap_or_default();
                network.release(&uid);
                if let Some(one) = installed.remove(&uid) {
                    real.uninstall(&one.cluster);
                    drop(std::fs::remove_file(one.kubeconfig));
                }
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

async fn install(
    real: &Arc<Real>,
    client: &Client,
    network: &Network,
    tenants: &Path,
    tenant: &VirtualClusterInstance,
) -> Installed {
    let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
    let namespace = tenant.namespace().unwrap_or_default();
    let project = names::project_of(&namespace).unwrap_or_default().to_owned();
    let place = &tenant.spec.cluster_ref;
    let virtual_cluster = text(
        place.as_ref().and_then(|place| place.virtual_cluster.clone()),
        &name,
    );
    let short: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let cluster = format!("{virtual_cluster}-{short}");
    real.install(&cluster).await;
    let url = real.url(&cluster);
    let mut addresses = vec![url.trim_start_matches("https://").to_owned()];
    addresses.extend(endpoint(tenant));
    for address in addresses {
        // An address of another tenant stays that one's; machines of this one then find nobody there.
        drop(network.bind(&address, &uid, url.parse().unwrap()));
    }
    let kubeconfig = tenants.join(&project).join(format!("{name}.kubeconfig"));
    std::fs::create_dir_all(kubeconfig.parent().unwrap()).unwrap();
    std::fs::write(&kubeconfig, real.kubeconfig(&cluster, ADMINISTRATOR).unwrap()).unwrap();
    let host_namespace = text(
        place.as_ref().and_then(|place| place.namespace.clone()),
        &format!("loft-{project}-v-{name}"),
    );
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("vc-{virtual_cluster}"), "namespace": host_namespace},
        "stringData": {"config": real.kubeconfig(&cluster, AT_TENANTS).unwrap()},
    });
    let client = client.clone();
    // The namespace is the host's to make; other tenants are not kept waiting for it.
    tokio::spawn(async move {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let secrets: Api<Secret> = Api::namespaced(client, &host_namespace);
        let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
        let params = PatchParams::apply("installer").force();
        loop {
            let theirs = match namespaces.get_opt(&host_namespace).await {
                Ok(Some(found)) => found.labels().get(names::TENANT_UID) == Some(&uid),
                Ok(None) => false,
                Err(_) => return, // the world has ended
            };
            if theirs
                && secrets
                    .patch(&name, &params, &Patch::Apply(&secret))
                    .await
                    .is_ok()
            {
                return;
            }
            tokio::time::sleep(MOMENT).await;
        }
    });
    Installed { cluster, kubeconfig }
}

/// `controlPlane.endpoint` of a tenant's values.
fn endpoint(tenant: &VirtualClusterInstance) -> Option<String> {
    let release = tenant.spec.template.as_ref()?.helm_release.as_ref()?;
    let values: Value = serde_saphyr::from_str(release.values.as_deref()?).ok()?;
    values
        .pointer("/controlPlane/endpoint")?
        .as_str()
        .map(ToOwned::to_owned)
}

fn text(given: Option<String>, otherwise: &str) -> String {
    given
        .filter(|one| !one.is_empty())
        .unwrap_or_else(|| otherwise.to_owned())
}
