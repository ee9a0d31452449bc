//! Keeps each Project's namespace `p-<project>`.
//!
//! # Guarantees
//! A namespace that another Project or a tenant is marked on is never taken over. One that somebody made by hand is used, and left
//! standing when the Project goes: only what the host created is deleted.

use std::sync::Arc;

use futures::{StreamExt, stream};
use hostler_api as api;
use hostler_api::conditions::{self, Fact, phase};
use hostler_api::names;
use hostler_core::profile::IN_SYNC;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::patch::{self, Created};
use crate::retries::steadily;
use crate::turn;

const NAME: &str = "project";

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let stores = &ctx.stores;
    let namespaces = stores.namespaces.subscribe().map(|namespace| namespace.name);
    let enrollments = stores
        .enrollments
        .subscribe()
        .filter_map(|one| std::future::ready(one.namespace));
    let tenants = stores
        .tenants
        .subscribe()
        .filter_map(|one| std::future::ready(one.namespace));
    let by_namespace = stream::select_all([namespaces.boxed(), enrollments.boxed(), tenants.boxed()])
        .filter_map(|namespace| std::future::ready(names::project_of(&namespace).map(ObjectRef::new)));
    Controller::for_stream(stream::pending(), stores.projects.store())
        .reconcile_on(stores.projects.subscribe())
        .reconcile_on(by_namespace.boxed())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(
            |project: Arc<api::Project>, ctx: Arc<Ctx>| async move {
                let work = reconcile(project.clone(), ctx.clone());
                Box::pin(turn::of(&ctx, NAME, project.as_ref(), work)).await
            },
            |project: Arc<api::Project>, error: &Error, ctx| {
                tracing::warn!(project = project.name_any(), error = %error, "project turn failed");
                ctx.retries
                    .after(NAME, &project.uid().unwrap_or_default(), error.class())
            },
            ctx.clone(),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// How a project's namespace stands.
enum Place {
    Ready,
    Waiting(&'static str, String),
    Refused(&'static str, String),
}

async fn reconcile(project: Arc<api::Project>, ctx: Arc<Ctx>) -> Result<Action> {
    let projects: Api<api::Project> = Api::all(ctx.client.clone());
    if project.meta().deletion_timestamp.is_some() {
        return retire(&ctx, &projects, &project).await;
    }
    if !project
        .finalizers()
        .iter()
        .any(|one| one == names::PROJECT_FINALIZER)
    {
        let mut finalizers = project.finalizers().to_vec();
        finalizers.push(names::PROJECT_FINALIZER.to_owned());
        let version = project.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        patch::update(&projects, &project.name_any(), &version, change).await?;
        return Ok(Action::await_change());
    }
    let place = ensure(&ctx, &project).await?;
    report(&ctx, &projects, &project, &place).await?;
    ctx.retries.reset(NAME, &project.uid().unwrap_or_default());
    Ok(steadily(ctx.settings.steady))
}

async fn ensure(ctx: &Ctx, project: &api::Project) -> Result<Place> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let name = names::project_namespace(&project.name_any());
    let Some(known) = ctx.stores.namespaces.get(None, &name) else {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        namespace
            .labels_mut()
            .insert(names::PROJECT.to_owned(), project.name_any());
        namespace
            .labels_mut()
            .insert(names::INSTALLATION.to_owned(), ctx.settings.installation.clone());
        return match patch::create(&api, &namespace).await? {
            Created::New(_) => Ok(Place::Ready),
            Created::Exists => Err(Error::Busy(format!("namespace {name} appeared meanwhile"))),
        };
    };
    if known.meta().deletion_timestamp.is_some() {
        return Ok(Place::Waiting(
            "NamespaceTerminating",
            format!("namespace {name} is being deleted; made again after"),
        ));
    }
    match known.labels().get(names::PROJECT) {
        Some(owner) if *owner == project.name_any() => Ok(Place::Ready),
        None if !known.labels().contains_key(names::TENANT_UID) => {
            let version = known.resource_version().unwrap_or_default();
            let change = json!({ "metadata": { "labels": { names::PROJECT: project.name_any() } } });
            patch::update(&api, &name, &version, change).await?;
            Ok(Place::Ready)
        }
        Some(_) | None => {
            let message = format!(
                "namespace {name} is marked as somebody else's; rename the Project or remove the mark"
            );
            Ok(Place::Refused("NamespaceTaken", message))
        }
    }
}

/// The namespace goes with everything in it; one that was here before the project is only waited for.
async fn retire(ctx: &Ctx, projects: &Api<api::Project>, project: &api::Project) -> Result<Action> {
    let name = names::project_namespace(&project.name_any());
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let live = patch::within(format!("reading namespace {name}"), api.get_opt(&name)).await?;
    let marked = live.filter(|namespace| namespace.labels().get(names::PROJECT) == Some(&project.name_any()));
    if let Some(namespace) = marked {
        let created = namespace.labels().get(names::INSTALLATION) == Some(&ctx.settings.installation);
        let used = ctx
            .stores
            .tenants
            .state()
            .iter()
            .any(|tenant| tenant.meta().namespace.as_ref() == Some(&name))
            || ctx
                .stores
                .claims
                .state()
                .iter()
                .any(|claim| claim.meta().namespace.as_ref() == Some(&name));
        if created {
            if namespace.meta().deletion_timestamp.is_none() {
                patch::delete(&api, &name, &namespace.uid().unwrap_or_default()).await?;
            }
            let message = format!("namespace {name} is being deleted with its tenants");
            report(ctx, projects, project, &Place::Waiting("Deleting", message)).await?;
            return Ok(Action::requeue(std::time::Duration::from_secs(5)));
        }
        if used {
            let message = format!("namespace {name} was not made by the host; delete its tenants and claims");
            report(ctx, projects, project, &Place::Refused("NamespaceInUse", message)).await?;
            return Ok(Action::requeue(std::time::Duration::from_secs(5)));
        }
        let version = namespace.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "labels": { names::PROJECT: null } } });
        patch::update(&api, &name, &version, change).await?;
    }
    let finalizers: Vec<_> = project
        .finalizers()
        .iter()
        .filter(|one| *one != names::PROJECT_FINALIZER)
        .cloned()
        .collect();
    if finalizers.len() != project.finalizers().len() {
        let version = project.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        match patch::update(projects, &project.name_any(), &version, change).await {
            Err(error) if error.is_not_found() => {}
            other => drop(other?),
        }
    }
    Ok(Action::await_change())
}

async fn report(
    ctx: &Ctx,
    projects: &Api<api::Project>,
    project: &api::Project,
    place: &Place,
) -> Result<()> {
    let mut next = project.clone();
    let status = next.status.get_or_insert_default();
    let before = status.clone();
    let name = names::project_namespace(&project.name_any());
    let text = format!("namespace {name} is there");
    let (fact, phase) = match place {
        Place::Ready => (Fact::yes("NamespaceReady", "NamespaceReady", &text), phase::READY),
        Place::Waiting(reason, message) => (Fact::not_yet("NamespaceReady", reason, message), phase::PENDING),
        Place::Refused(reason, message) => (Fact::no("NamespaceReady", reason, message), phase::FAILED),
    };
    conditions::set(
        &mut status.conditions,
        &fact,
        project.meta().generation,
        ctx.clock.now(),
    );
    status.phase = Some(phase.to_owned());
    let revoked = revoked(ctx, &name);
    let known = conditions::find(&status.conditions, "ProfilesAllowed").is_some();
    if let Some(message) = &revoked {
        let fact = Fact::no("ProfilesAllowed", "ProfileRevoked", message);
        conditions::set(
            &mut status.conditions,
            &fact,
            project.meta().generation,
            ctx.clock.now(),
        );
    } else if known {
        let fact = Fact::yes("ProfilesAllowed", "ProfilesAllowed", "");
        conditions::set(
            &mut status.conditions,
            &fact,
            project.meta().generation,
            ctx.clock.now(),
        );
    }
    if *status == before {
        return Ok(());
    }
    patch::replace_status(projects, &next).await?;
    if let Place::Refused(reason, message) = place
        && conditions::find(&before.conditions, "NamespaceReady").and_then(|known| known.reason.as_deref())
            != Some(reason)
    {
        ctx.events.warning(project, reason, "Reconciling", message).await;
    }
    Ok(())
}

/// Says which nodes of the project lost their profile; none if none did.
fn revoked(ctx: &Ctx, namespace: &str) -> Option<String> {
    let mut nodes: Vec<String> = ctx
        .stores
        .enrollments
        .state()
        .iter()
        .filter(|enrollment| enrollment.meta().namespace.as_deref() == Some(namespace))
        .filter(|enrollment| {
            let status = enrollment.status.as_ref();
            let in_sync = status.and_then(|status| conditions::find(&status.conditions, IN_SYNC));
            in_sync.is_some_and(|in_sync| in_sync.status == "False")
        })
        .map(|enrollment| enrollment.name_any())
        .collect();
    nodes.sort();
    let first: Vec<&str> = nodes.iter().take(3).map(String::as_str).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "{} nodes lost their profile, {} among them; allow it again, or name another (their Enrollments say why)",
            nodes.len(),
            first.join(", ")
        )
    })
}
