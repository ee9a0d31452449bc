//! What every namespace has: a `default` service account, and the authority by which pods know the server.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agenda::Agenda;
use crate::background::{self, AGAIN, Pace};
use crate::builtin::service::{FIRST, allocate};
use crate::clock::{Clock, stamp};
use crate::managed_fields;
use crate::status::ApiError;
use crate::store::object::Key;
use crate::store::{Expect, Guard, Refused, Storage, Write};

/// Table and name of the account.
const ACCOUNT: (&str, &str) = ("serviceaccounts", "default");

/// Table and name of the authority.
const AUTHORITY: (&str, &str) = ("configmaps", "kube-root-ca.crt");

/// Table and name of the service by which pods find the server, in the namespace `default`.
const SERVICE: (&str, &str) = ("services", "kubernetes");

/// What the authority says of itself, on the real server too.
const DESCRIBED: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
    such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of \
    Kubernetes clusters.";

/// Who writes these objects.
const MANAGER: &str = "kube-controller-manager";

/// Whether an object is one that every namespace has.
pub(crate) fn is_any(table: &str, name: &str) -> bool {
    [ACCOUNT, AUTHORITY, SERVICE].contains(&(table, name))
}

/// Gives namespaces what they lack, and puts back what was changed. `authority` is the PEM of the server's.
pub(crate) async fn run(storage: Arc<Storage>, clock: Clock, authority: String, stop: CancellationToken) {
    let mut pace = Pace::new(&storage, stop);
    let mut again = None;
    while pace.next(again.take()).await {
        for cluster in background::clusters(&storage) {
            for name in background::take(&storage, &cluster, Agenda::has_bare, Agenda::take_bare) {
                let now = stamp(clock());
                if let Err(error) = furnish(&storage, &cluster, &name, &authority, &now).await {
                    tracing::warn!(cluster, name, %error, "giving a namespace what each has");
                    storage.with_agenda(&cluster, |agenda| agenda.still_bare(name));
                    again = Some(AGAIN);
                }
            }
        }
    }
}

async fn furnish(
    storage: &Arc<Storage>,
    cluster: &str,
    namespace: &str,
    authority: &str,
    now: &str,
) -> Result<(), ApiError> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT.1, "namespace": namespace},
    });
    ensure(storage, cluster, (ACCOUNT.0, namespace), (account, MANAGER), now).await?;
    if namespace == "default" {
        ensure(
            storage,
            cluster,
            (SERVICE.0, namespace),
            (service(), "kube-apiserver"),
            now,
        )
        .await?;
    }
    let data = json!({"ca.crt": authority});
    let bundle = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": AUTHORITY.1, "namespace": namespace,
            "annotations": {"kubernetes.io/description": DESCRIBED},
        },
        "data": data,
    });
    ensure(storage, cluster, (AUTHORITY.0, namespace), (bundle, MANAGER), now).await?;
    let key = Key::new(namespace, AUTHORITY.1);
    background::edit(storage, cluster, (AUTHORITY.0, &key), |object| {
        let is_meddled_with = object["data"] != data;
        object["data"] = data.clone();
        is_meddled_with
    })
    .await
}

/// The server itself, as pods would find it.
fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": SERVICE.1, "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": FIRST, "internalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// Writes an object that may be there already. A namespace that goes, or is gone, needs nothing.
async fn ensure(
    storage: &Arc<Storage>,
    cluster: &str,
    (table, namespace): (&str, &str),
    (mut object, manager): (Value, &str),
    now: &str,
) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let key = Key::new(namespace, name);
    let home = Key::new("", namespace);
    let is_wanted = storage
        .get(cluster, "namespaces", &home)
        .is_some_and(|found| !found.meta.deleting);
    if !is_wanted || storage.get(cluster, table, &key).is_some() {
        return Ok(());
    }
    if let Some(registry) = storage.registry(cluster)
        && let Some(resource) = registry.by_table(table)
    {
        managed_fields::update(resource, None, &mut object, manager, None, now);
    }
    if table == SERVICE.0 {
        allocate(&mut object, &BTreeSet::new());
    }
    object["metadata"]["uid"] = json!(uuid::Uuid::new_v4().to_string());
    object["metadata"]["creationTimestamp"] = json!(now);
    let write = Write {
        cluster: cluster.to_owned(),
        table: table.to_owned(),
        key,
        expect: Expect::Absent,
        guards: vec![Guard {
            table: "namespaces".to_owned(),
            key: home,
        }],
        object: Some(object),
    };
    match storage.write(write).await {
        Ok(_) | Err(Refused::NoCluster | Refused::Raced) => Ok(()),
        Err(other @ Refused::Disk(_)) => Err(ApiError::internal(other)),
    }
}
