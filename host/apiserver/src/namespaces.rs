//! Namespaces: the ones that are there from the start, and how one goes with all that is in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agenda::Agenda;
use crate::background::{self, AGAIN, Pace};
use crate::clock::{Clock, stamp};
use crate::operation::delete::{DeleteOptions, remove};
use crate::status::ApiError;
use crate::store::object::{Key, Stored};
use crate::store::{Expect, Storage, Write};

/// Namespaces of a fresh cluster.
const FIRST: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Keeps a namespace until it is empty.
const FINALIZER: &str = "kubernetes";

/// The writes that give a cluster its first namespaces, as far as it has none.
pub(crate) fn first(storage: &Storage, cluster: &str, now: &str) -> Vec<Write> {
    let missing = FIRST.iter().filter(|name| {
        storage
            .get(cluster, "namespaces", &Key::new("", **name))
            .is_none()
    });
    missing
        .map(|name| Write {
            cluster: cluster.to_owned(),
            table: "namespaces".to_owned(),
            key: Key::new("", *name),
            expect: Expect::Absent,
            guards: Vec::new(),
            object: Some(json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": name,
                    "uid": uuid::Uuid::new_v4().to_string(),
                    "creationTimestamp": now,
                    "labels": {"kubernetes.io/metadata.name": name},
                },
                "spec": {"finalizers": [FINALIZER]},
                "status": {"phase": "Active"},
            })),
        })
        .collect()
}

/// Empties namespaces that are being deleted, then lets them go.
pub(crate) async fn run(storage: Arc<Storage>, clock: Clock, stop: CancellationToken) {
    let mut pace = Pace::new(&storage, stop);
    let mut again = None;
    while pace.next(again.take()).await {
        for cluster in background::clusters(&storage) {
            let due = background::take(
                &storage,
                &cluster,
                Agenda::has_namespaces,
                Agenda::take_namespaces,
            );
            for name in due {
                if let Err(error) = finish(&storage, &cluster, &name, &clock).await {
                    tracing::warn!(cluster, name, %error, "emptying a namespace");
                    storage.with_agenda(&cluster, Agenda::look_again);
                    again = Some(AGAIN);
                }
            }
        }
    }
}

async fn finish(storage: &Arc<Storage>, cluster: &str, name: &str, clock: &Clock) -> Result<(), ApiError> {
    let key = Key::new("", name);
    let Some(namespace) = storage.get(cluster, "namespaces", &key) else {
        return Ok(());
    };
    let is_ours = |object: &Value| {
        object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| list.contains(&json!(FINALIZER)))
    };
    if !namespace.meta.deleting || !is_ours(&namespace.value()) {
        return Ok(());
    }
    let Some(registry) = storage.registry(cluster) else {
        return Ok(());
    };
    for (table, objects) in next(contents(storage, cluster, name)) {
        let Some(resource) = registry.by_table(&table) else {
            continue;
        };
        for object in objects.iter().filter(|object| !object.meta.deleting) {
            let options = DeleteOptions {
                uid: Some(object.meta.uid.to_string()),
                ..DeleteOptions::default()
            };
            match remove(
                storage,
                (cluster, resource),
                &object.key,
                &options,
                clock(),
                |_| Ok(()),
            )
            .await
            {
                Ok(_) => {}
                Err(error) if matches!(error.reason, "NotFound" | "Conflict") => {}
                Err(error) => return Err(error),
            }
        }
    }
    let rest = next(contents(storage, cluster, name));
    let now = stamp(clock());
    background::edit(storage, cluster, ("namespaces", &key), |object| {
        if rest.is_empty() {
            background::drop_from(object, "/spec/finalizers", |finalizer| finalizer == FINALIZER)
        } else {
            tell(object, &rest, &now)
        }
    })
    .await
}

/// What goes next: pods before all else, so that none runs on without what it was told to obey.
fn next(mut contents: BTreeMap<String, Vec<Arc<Stored>>>) -> BTreeMap<String, Vec<Arc<Stored>>> {
    if contents.contains_key("pods") {
        contents.retain(|table, _| table == "pods");
    }
    contents
}

/// What is in a namespace, by table.
fn contents(storage: &Storage, cluster: &str, namespace: &str) -> BTreeMap<String, Vec<Arc<Stored>>> {
    let state = storage.read();
    let Some(cluster) = state.cluster(cluster) else {
        return BTreeMap::new();
    };
    let tables = cluster.tables().map(|(name, table)| {
        let objects: Vec<Arc<Stored>> = table.range(namespace, None).cloned().collect();
        (name.to_owned(), objects)
    });
    tables.filter(|(_, objects)| !objects.is_empty()).collect()
}

/// Says in the status what the namespace waits for. Whether that is news.
fn tell(namespace: &mut Value, rest: &BTreeMap<String, Vec<Arc<Stored>>>, now: &str) -> bool {
    let counts: Vec<String> = rest
        .iter()
        .map(|(table, objects)| {
            // The real server puts the group behind a dot, also when there is none.
            let dot = if table.contains('.') { "" } else { "." };
            format!("{table}{dot} has {} resource instances", objects.len())
        })
        .collect();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for name in rest.values().flatten().flat_map(|object| &object.meta.finalizers) {
        *finalizers.entry(name).or_default() += 1;
    }
    let kept: Vec<String> = finalizers
        .iter()
        .map(|(name, count)| format!("{name} in {count} resource instances"))
        .collect();
    let content = |list: &[String]| format!("Some resources are remaining: {}", list.join(", "));
    let waiting = |list: &[String]| {
        format!(
            "Some content in the namespace has finalizers remaining: {}",
            list.join(", ")
        )
    };
    let told = [
        (
            "NamespaceDeletionDiscoveryFailure",
            None,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            None,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            (!counts.is_empty()).then(|| ("SomeResourcesRemain", content(&counts))),
            "ContentRemoved",
            "All content successfully removed",
        ),
        (
            "NamespaceFinalizersRemaining",
            (!kept.is_empty()).then(|| ("SomeFinalizersRemain", waiting(&kept))),
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ];
    let mut conditions = namespace["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let before = conditions.clone();
    for (kind, holding, reason, message) in told {
        let status = if holding.is_some() { "True" } else { "False" };
        let (reason, message) = holding.unwrap_or_else(|| (reason, message.to_owned()));
        let old = conditions.iter().position(|one| one["type"] == kind);
        let same = old.filter(|at| conditions[*at]["status"] == status);
        let since = same.map_or_else(|| json!(now), |at| conditions[at]["lastTransitionTime"].clone());
        let condition = json!({
            "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
        });
        match old {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
    }
    let is_news = conditions != before;
    namespace["status"]["conditions"] = Value::Array(conditions);
    is_news
}
