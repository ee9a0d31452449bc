//! Whoever installs control planes where the host does not: for each tenant a real cluster, and its kubeconfig in the Secret
//! `vc-<name>` of the tenant's own namespace, with the rights that the host asks for and no more.
//!
//! It knows what people know: the tenant's object and its namespace. The address that machines join leads to the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
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
use tokio_util::sync::CancellationToken;

use super::real::{AT_TENANTS, Real};
use super::stack::PLATFORM;
use crate::kubernetes::ADMINISTRATOR;

/// Between two looks for something that somebody else is about to make.
const MOMENT: Duration = Duration::from_millis(20);

/// One tenant: ends what is done for it, and where its kubeconfig is.
struct Order {
    ended: CancellationToken,
    cluster: String,
    kubeconfig: PathBuf,
}

/// Installs and uninstalls until it is dropped.
pub(super) async fn run(real: Arc<Real>, network: Network, tenants: PathBuf) {
    let client = real.administrator(PLATFORM);
    let mut orders: BTreeMap<String, Order> = BTreeMap::new();
    let all: Api<VirtualClusterInstance> = Api::all(client.clone());
    let mut events = pin!(watch(all, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(tenant) | Event::Apply(tenant)) => {
                let uid = tenant.uid().unwrap_or_default();
                if tenant.metadata.deletion_timestamp.is_none() && !orders.contains_key(&uid) {
                    let place = Place::of(&tenant);
                    let order = Order {
                        ended: CancellationToken::new(),
                        cluster: place.cluster.clone(),
                        kubeconfig: tenants
                            .join(&place.project)
                            .join(format!("{}.kubeconfig", place.name)),
                    };
                    let work = install(
                        real.clone(),
                        client.clone(),
                        network.clone(),
                        order.kubeconfig.clone(),
                        place,
                    );
                    // Tenants are not kept waiting for each other.
                    tokio::spawn(order.ended.clone().run_until_cancelled_owned(work));
                    orders.insert(uid, order);
                }
            }
            Ok(Event::Delete(tenant)) => {
                let uid = tenant.uid().unwrap_or_default();
                if let Some(order) = orders.remove(&uid) {
                    order.ended.cancel();
                    network.release(&uid);
                    real.uninstall(&order.cluster);
                    // Where nothing was installed, there is none.
                    drop(std::fs::remove_file(order.kubeconfig));
                }
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

/// Where a tenant's control plane is to be.
struct Place {
    uid: String,
    name: String,
    project: String,
    /// Name of the control plane.
    virtual_cluster: String,
    /// Its namespace on the platform.
    namespace: String,
    /// What the cluster is called in this process.
    cluster: String,
    endpoint: Option<String>,
}

impl Place {
    fn of(tenant: &VirtualClusterInstance) -> Self {
        let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
        let namespace = tenant.namespace().unwrap_or_default();
        let project = names::project_of(&namespace).unwrap_or_default().to_owned();
        let asked = tenant.spec.cluster_ref.clone();
        let virtual_cluster = text(asked.as_ref().and_then(|one| one.virtual_cluster.clone()), &name);
        let short: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        Self {
            cluster: format!("{virtual_cluster}-{short}"),
            namespace: text(
                asked.and_then(|one| one.namespace),
                &format!("loft-{project}-v-{name}"),
            ),
            endpoint: endpoint(tenant),
            uid,
            name,
            project,
            virtual_cluster,
        }
    }
}

async fn install(real: Arc<Real>, client: Client, network: Network, kubeconfig: PathBuf, place: Place) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    // The namespace is the host's to make; where it is another tenant's, nothing is installed for this one.
    loop {
        match namespaces.get_opt(&place.namespace).await {
            Ok(Some(found)) if found.labels().get(names::TENANT_UID) == Some(&place.uid) => break,
            Ok(_) => tokio::time::sleep(MOMENT).await,
            Err(_) => return, // the world has ended
        }
    }
    let cluster = &place.cluster;
    real.install(cluster).await;
    let url = real.url(cluster);
    let mut addresses = vec![url.trim_start_matches("https://").to_owned()];
    addresses.extend(place.endpoint);
    for address in addresses {
        // An address of another tenant stays that one's; machines of this one then find nobody there.
        drop(network.bind(&address, &place.uid, url.parse().unwrap()));
    }
    std::fs::create_dir_all(kubeconfig.parent().unwrap()).unwrap();
    std::fs::write(&kubeconfig, real.kubeconfig(cluster, ADMINISTRATOR).unwrap()).unwrap();
    let name = format!("vc-{}", place.virtual_cluster);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": place.namespace},
        "stringData": {"config": real.kubeconfig(cluster, AT_TENANTS).unwrap()},
    });
    let secrets: Api<Secret> = Api::namespaced(client, &place.namespace);
    let params = PatchParams::apply("installer").force();
    while secrets
        .patch(&name, &params, &Patch::Apply(&secret))
        .await
        .is_err()
    {
        tokio::time::sleep(MOMENT).await;
    }
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
