//! Garbage collection: objects whose owners are all gone, and owners that wait for their dependents.
//!
//! An owner is found by kind, name and (unless its kind has no namespaces) the namespace of the dependent; one with
//! another uid is not the owner. So an owner in another namespace counts as absent, as on the real server. An owner
//! of a kind that is not served, or a namespaced owner of an object without namespace, cannot be looked for: then
//! nothing is deleted.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agenda::{Agenda, FOREGROUND, ORPHAN, Place};
use crate::background::{self, AGAIN, Pace};
use crate::clock::Clock;
use crate::operation::delete::{DeleteOptions, remove};
use crate::query::Propagation;
use crate::registry::{self, Registry};
use crate::status::ApiError;
use crate::store::Storage;
use crate::store::object::{Key, Owner, Stored};

/// Collects garbage until it is stopped.
pub(crate) async fn run(storage: Arc<Storage>, clock: Clock, stop: CancellationToken) {
    let mut pace = Pace::new(&storage, stop);
    let mut again = None;
    while pace.next(again.take()).await {
        for cluster in background::clusters(&storage) {
            for place in background::take(&storage, &cluster, Agenda::has_suspects, Agenda::take_suspects) {
                let Err(error) = look(&storage, &cluster, &place, clock()).await else {
                    continue;
                };
                if error.reason != "Conflict" {
                    tracing::warn!(cluster, table = place.table, name = place.key.name, %error, "collecting garbage");
                }
                storage.with_agenda(&cluster, |agenda| agenda.suspect(place));
                again = Some(AGAIN);
            }
        }
    }
}

async fn look(storage: &Arc<Storage>, cluster: &str, place: &Place, now: Timestamp) -> Result<(), ApiError> {
    let Some(object) = storage.get(cluster, &place.table, &place.key) else {
        return Ok(());
    };
    let has = |finalizer: &str| {
        object
            .meta
            .finalizers
            .iter()
            .any(|name| name.as_ref() == finalizer)
    };
    if object.meta.deleting && has(ORPHAN) {
        return orphan(storage, cluster, place, &object).await;
    }
    if object.meta.deleting && has(FOREGROUND) {
        return wait_for_dependents(storage, cluster, place, &object, now).await;
    }
    if object.meta.deleting || object.meta.owners.is_empty() {
        return Ok(());
    }
    collect(storage, cluster, place, &object, now).await
}

/// Who names `owner` as an owner, and could have it as one.
fn dependents(storage: &Storage, cluster: &str, owner: &Stored) -> Vec<(Place, Arc<Stored>)> {
    let state = storage.read();
    let Some(cluster) = state.cluster(cluster) else {
        return Vec::new();
    };
    let places = cluster.agenda.dependents(&owner.meta.uid).into_iter();
    places
        .filter(|place| owner.key.namespace.is_empty() || owner.key.namespace == place.key.namespace)
        .filter_map(|place| {
            cluster
                .get(&place.table, &place.key)
                .cloned()
                .map(|object| (place, object))
        })
        .collect()
}

async fn orphan(
    storage: &Arc<Storage>,
    cluster: &str,
    place: &Place,
    owner: &Stored,
) -> Result<(), ApiError> {
    for (dependent, _) in dependents(storage, cluster, owner) {
        background::edit(storage, cluster, (&dependent.table, &dependent.key), |object| {
            drop_owners(object, |uid| uid == &*owner.meta.uid)
        })
        .await?;
    }
    drop_finalizer(storage, cluster, place, ORPHAN).await
}

/// An owner that is deleted in the foreground goes when nobody blocks it any more.
async fn wait_for_dependents(
    storage: &Arc<Storage>,
    cluster: &str,
    place: &Place,
    owner: &Stored,
    now: Timestamp,
) -> Result<(), ApiError> {
    let found = dependents(storage, cluster, owner);
    let blocks = |object: &Stored| {
        object
            .meta
            .owners
            .iter()
            .any(|one| one.uid == owner.meta.uid && one.blocks)
    };
    if !found.iter().any(|(_, object)| blocks(object)) {
        return drop_finalizer(storage, cluster, place, FOREGROUND).await;
    }
    for (dependent, object) in found {
        if !object.meta.deleting {
            collect(storage, cluster, &dependent, &object, now).await?;
        }
    }
    Ok(())
}

async fn drop_finalizer(
    storage: &Arc<Storage>,
    cluster: &str,
    place: &Place,
    finalizer: &str,
) -> Result<(), ApiError> {
    background::edit(storage, cluster, (&place.table, &place.key), |object| {
        let changed = background::drop_from(object, "/metadata/finalizers", |name| name == finalizer);
        tidy(object, "finalizers");
        changed
    })
    .await
}

/// Whether an object that is to go is waited for by one that is on its way out itself.
fn closes_circle(storage: &Storage, cluster: &str, object: &Stored) -> bool {
    let waits = |dependent: &Stored| {
        dependent.meta.deleting
            && dependent
                .meta
                .finalizers
                .iter()
                .any(|name| name.as_ref() == FOREGROUND)
    };
    dependents(storage, cluster, object)
        .iter()
        .any(|(_, dependent)| waits(dependent))
}

/// Lets an object's owners go before it.
fn unblock(object: &mut Value) -> bool {
    let owners = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut);
    let mut changed = false;
    for owner in owners.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(blocks) = owner.get_mut("blockOwnerDeletion")
            && *blocks == true
        {
            *blocks = Value::Bool(false);
            changed = true;
        }
    }
    changed
}

fn drop_owners(object: &mut Value, is_dropped: impl Fn(&str) -> bool) -> bool {
    let changed = background::drop_from(object, "/metadata/ownerReferences", |owner| {
        owner["uid"].as_str().is_some_and(&is_dropped)
    });
    tidy(object, "ownerReferences");
    changed
}

/// Leaves no empty list behind.
fn tidy(object: &mut Value, field: &str) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && meta
            .get(field)
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty)
    {
        meta.remove(field);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is there, or nobody can tell.
    Solid,
    /// It is not there.
    Absent,
    /// It waits for this object to go.
    Waiting,
}

fn standing(
    storage: &Storage,
    cluster: &str,
    registry: &Registry,
    object: &Stored,
    owner: &Owner,
) -> Standing {
    let Some(resource) = registry.by_kind(&owner.api_version, &owner.kind) else {
        return Standing::Solid;
    };
    if resource.namespaced && object.key.namespace.is_empty() {
        return Standing::Solid;
    }
    let namespace = if resource.namespaced {
        object.key.namespace.as_str()
    } else {
        ""
    };
    let found = storage.get(
        cluster,
        &registry::table(resource),
        &Key::new(namespace, owner.name.as_ref()),
    );
    match found.filter(|found| found.meta.uid == owner.uid) {
        None => Standing::Absent,
        Some(found) => {
            let waits = found.meta.deleting
                && found
                    .meta
                    .finalizers
                    .iter()
                    .any(|name| name.as_ref() == FOREGROUND);
            if waits { Standing::Waiting } else { Standing::Solid }
        }
    }
}

/// Deletes an object without owners; forgets the absent ones of an object that has others.
async fn collect(
    storage: &Arc<Storage>,
    cluster: &str,
    place: &Place,
    object: &Arc<Stored>,
    now: Timestamp,
) -> Result<(), ApiError> {
    let Some(registry) = storage.registry(cluster) else {
        return Ok(());
    };
    let standings: Vec<(&Owner, Standing)> = object
        .meta
        .owners
        .iter()
        .map(|owner| (owner, standing(storage, cluster, &registry, object, owner)))
        .collect();
    let is_any = |standing: Standing| standings.iter().any(|(_, found)| *found == standing);
    if is_any(Standing::Solid) {
        if !is_any(Standing::Absent) && !is_any(Standing::Waiting) {
            return Ok(());
        }
        let solid: Vec<&str> = standings
            .iter()
            .filter(|(_, standing)| *standing == Standing::Solid)
            .map(|(owner, _)| owner.uid.as_ref())
            .collect();
        return background::edit(storage, cluster, (&place.table, &place.key), |object| {
            drop_owners(object, |uid| !solid.contains(&uid))
        })
        .await;
    }
    let Some(resource) = registry.by_table(&place.table) else {
        return Ok(());
    };
    let has = |finalizer: &str| {
        object
            .meta
            .finalizers
            .iter()
            .any(|name| name.as_ref() == finalizer)
    };
    if is_any(Standing::Waiting) && closes_circle(storage, cluster, object) {
        // Each of a circle would wait for the next for ever.
        background::edit(storage, cluster, (&place.table, &place.key), unblock).await?;
        if storage
            .get(cluster, &place.table, &place.key)
            .is_none_or(|now| now.revision != object.revision)
        {
            // It comes up again, as it now is.
            storage.with_agenda(cluster, |agenda| agenda.suspect(place.clone()));
            return Ok(());
        }
    }
    let policy =
        if is_any(Standing::Waiting) && !dependents(storage, cluster, object).is_empty() || has(FOREGROUND) {
            Propagation::Foreground
        } else if has(ORPHAN) {
            Propagation::Orphan
        } else {
            Propagation::Background
        };
    let options = DeleteOptions {
        propagation: Some(policy),
        uid: Some(object.meta.uid.to_string()),
        // Owners may have been changed since we looked.
        revision: Some(object.revision.to_string()),
        ..DeleteOptions::default()
    };
    match remove(
        storage,
        (cluster, resource),
        &place.key,
        &options,
        now,
        |_| Ok(()),
    )
    .await
    {
        Err(error) if error.reason == "NotFound" => Ok(()),
        other => other.map(|_| ()),
    }
}
