//! Definitions of custom resources: what their status says, and how one and all its objects go.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agenda::Agenda;
use crate::background::{self, AGAIN, Pace};
use crate::clock::{Clock, stamp};
use crate::operation::delete::{DeleteOptions, remove};
use crate::registry::{DEFINITIONS, Registry};
use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::Storage;
use crate::store::object::Key;

/// Keeps a definition until its objects are gone.
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Works out the status of a definition: whether its names are free, and so whether it is served.
pub(crate) fn complete(registry: &Registry, definition: &mut Value, old: Option<&Value>, now: &str) {
    let names = definition["spec"]["names"].clone();
    let group = definition["spec"]["group"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let own = definition["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let refusal = taken_name(registry, &group, &own, &names);
    let storage = definition["spec"]["versions"].as_array().into_iter().flatten();
    let storage = storage
        .clone()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone());
    let mut stored = old
        .and_then(|old| old["status"]["storedVersions"].as_array().cloned())
        .unwrap_or_default();
    stored.extend(storage.filter(|version| !stored.contains(version)));

    let mut conditions = old
        .and_then(|old| old["status"]["conditions"].as_array().cloned())
        .unwrap_or_default();
    let was_established = is_true(&conditions, "Established");
    match &refusal {
        None => {
            set(
                &mut conditions,
                now,
                ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            );
            let message = "the initial names have been accepted";
            set(
                &mut conditions,
                now,
                ("Established", "True", "InitialNamesAccepted", message),
            );
        }
        Some((reason, message)) => {
            set(&mut conditions, now, ("NamesAccepted", "False", reason, message));
            if !was_established {
                let message = "not all names are accepted";
                set(
                    &mut conditions,
                    now,
                    ("Established", "False", "NotAccepted", message),
                );
            }
        }
    }
    let accepted = match (&refusal, old) {
        (None, _) => names,
        (Some(_), Some(old)) => old["status"]["acceptedNames"].clone(),
        (Some(_), None) => json!({"plural": "", "kind": ""}),
    };
    definition["status"] =
        json!({"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored});
}

/// The first name that someone else in the group has, as reason and message.
fn taken_name(registry: &Registry, group: &str, own: &str, names: &Value) -> Option<(&'static str, String)> {
    let (kinds, words) = registry.taken(group, own);
    let text = |field: &str| names[field].as_str().unwrap_or_default().to_owned();
    let short = names["shortNames"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned);
    let mut wanted: Vec<(&'static str, String, bool)> = vec![
        ("PluralConflict", text("plural"), false),
        ("SingularConflict", text("singular"), false),
    ];
    wanted.extend(short.map(|name| ("ShortNamesConflict", name, false)));
    wanted.push(("KindConflict", text("kind"), true));
    wanted.push(("ListKindConflict", text("listKind"), true));
    wanted
        .into_iter()
        .filter(|(_, name, _)| !name.is_empty())
        .find_map(|(reason, name, is_kind)| {
            let taken = if is_kind { &kinds } else { &words };
            taken
                .contains(&name.as_str())
                .then(|| (reason, format!("{name:?} is already in use")))
        })
}

fn is_true(conditions: &[Value], kind: &str) -> bool {
    conditions
        .iter()
        .any(|one| one["type"] == kind && one["status"] == "True")
}

/// Sets a condition; its time only moves when its status does.
fn set(conditions: &mut Vec<Value>, now: &str, (kind, status, reason, message): (&str, &str, &str, &str)) {
    let old = conditions.iter_mut().find(|one| one["type"] == kind);
    let since = match &old {
        Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
        _ => json!(now),
    };
    // Who was established stays so for the reason of that time.
    let condition = json!({
        "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
    });
    match old {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

/// Keeps a definition that is being deleted until its objects are gone.
pub(crate) fn before_delete(resource: &Resource, object: &mut Value, now: &str) {
    if resource.custom
        || resource.kind != "CustomResourceDefinition"
        || !object["metadata"]["deletionTimestamp"].is_null()
    {
        return;
    }
    let mut conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set(
        &mut conditions,
        now,
        ("Terminating", "True", "InstanceDeletionPending", message),
    );
    object["status"]["conditions"] = Value::Array(conditions);
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let mut names = meta
        .get("finalizers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    names.push(json!(FINALIZER));
    meta.insert("finalizers".to_owned(), Value::Array(names));
}

/// Deletes the objects of definitions that are being deleted, then lets those go.
pub(crate) async fn run(storage: Arc<Storage>, clock: Clock, stop: CancellationToken) {
    let mut pace = Pace::new(&storage, stop);
    let mut again = None;
    while pace.next(again.take()).await {
        for cluster in background::clusters(&storage) {
            let due = background::take(
                &storage,
                &cluster,
                Agenda::has_definitions,
                Agenda::take_definitions,
            );
            for name in due {
                if let Err(error) = finish(&storage, &cluster, &name, &clock).await {
                    tracing::warn!(cluster, name, %error, "deleting the objects of a definition");
                    storage.with_agenda(&cluster, Agenda::look_again);
                    again = Some(AGAIN);
                }
            }
        }
    }
}

async fn finish(storage: &Arc<Storage>, cluster: &str, name: &str, clock: &Clock) -> Result<(), ApiError> {
    let Some(definition) = storage.get(cluster, DEFINITIONS, &Key::new("", name)) else {
        return Ok(());
    };
    if !definition
        .meta
        .finalizers
        .iter()
        .any(|finalizer| finalizer.as_ref() == FINALIZER)
    {
        return Ok(());
    }
    let Some(registry) = storage.registry(cluster) else {
        return Ok(());
    };
    if let Some(resource) = registry.by_table(name) {
        let objects: Vec<Key> = {
            let state = storage.read();
            let table = state.cluster(cluster).and_then(|cluster| cluster.table(name));
            table
                .into_iter()
                .flat_map(|table| table.range("", None))
                .map(|object| object.key.clone())
                .collect()
        };
        for key in &objects {
            match remove(
                storage,
                (cluster, resource),
                key,
                &DeleteOptions::default(),
                clock(),
                |_| Ok(()),
            )
            .await
            {
                Ok(_) => {}
                Err(error) if error.reason == "NotFound" => {}
                Err(error) => return Err(error),
            }
        }
    }
    let remaining = {
        let state = storage.read();
        state
            .cluster(cluster)
            .and_then(|cluster| cluster.table(name))
            .map_or(0, crate::store::table::Table::len)
    };
    // The change that empties the table brings us back here.
    if remaining > 0 {
        return Ok(());
    }
    let now = stamp(clock());
    background::edit(storage, cluster, (DEFINITIONS, &Key::new("", name)), |object| {
        let mut conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let message = "removed all instances";
        set(
            &mut conditions,
            &now,
            ("Terminating", "False", "InstanceDeletionCompleted", message),
        );
        object["status"]["conditions"] = Value::Array(conditions);
        background::drop_from(object, "/metadata/finalizers", |finalizer| finalizer == FINALIZER)
    })
    .await
}
