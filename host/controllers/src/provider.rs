//! Keeps each NodeProvider's node types and inventory as its driver describes them.
//!
//! observe: driver, description → judge: grant, cluster, names → act: NodeTypes, inventory task → report: conditions.
//!
//! # Guarantees
//! A NodeType is written only if this provider (by uid) made it. A provider stays, with its finalizer, while a claim is
//! bound to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use hostler_api as api;
use hostler_api::conditions::{self, Fact, phase};
use hostler_api::names;
use hostler_core::seams::{Description, Driver, Failure, Object, Reason};
use hostler_core::{config, protected, scope, selector, view};
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::retries::steadily;
use crate::{patch, turn};

mod inventory;

const NAME: &str = "provider";

/// The inventory tasks that run, by provider uid.
#[derive(Default)]
struct Tasks(Mutex<HashMap<String, Task>>);

/// An inventory task, with what it was started for.
struct Task {
    signature: Signature,
    description: Arc<Description>,
    stop: CancellationToken,
}

/// What an inventory was started for: generation of the provider and digest of the driver.
type Signature = (i64, String);

/// Runs until `stop`.
pub(crate) async fn run(ctx: Arc<Ctx>, stop: CancellationToken) {
    let tasks = Arc::new(Tasks::default());
    // A provider that is to go waits for the last claim that is bound to it.
    let by_claim = ctx
        .stores
        .claims
        .subscribe_to(|claim| claim.machine().map(drop))
        .flat_map({
            let ctx = ctx.clone();
            move |_| {
                let mut going = ctx.stores.providers.state();
                going.retain(|provider| provider.meta().deletion_timestamp.is_some());
                stream::iter(going).map(|provider| ObjectRef::from_obj(provider.as_ref()))
            }
        });
    let by_plugin = crate::plugins_changed(ctx.plugins.clone(), stop.clone());
    Controller::for_stream(stream::pending(), ctx.stores.providers.store())
        .reconcile_on(ctx.stores.providers.subscribe())
        .reconcile_on(by_claim.boxed())
        .reconcile_all_on(by_plugin)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(
            move |provider: Arc<api::NodeProvider>, ctx: Arc<Ctx>| {
                let (tasks, stop) = (tasks.clone(), stop.clone());
                async move {
                    let work = reconcile(provider.clone(), ctx.clone(), tasks, stop);
                    Box::pin(turn::of(&ctx, NAME, provider.as_ref(), work)).await
                }
            },
            |provider: Arc<api::NodeProvider>, error: &Error, ctx| {
                tracing::warn!(provider = provider.name_any(), error = %error, "provider turn failed");
                ctx.retries
                    .after(NAME, &provider.uid().unwrap_or_default(), error.class())
            },
            ctx,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(
    provider: Arc<api::NodeProvider>,
    ctx: Arc<Ctx>,
    tasks: Arc<Tasks>,
    stop: CancellationToken,
) -> Result<Action> {
    let uid = provider.uid().unwrap_or_default();
    let providers: Api<api::NodeProvider> = Api::all(ctx.client.clone());
    if provider.meta().deletion_timestamp.is_some() {
        return retire(&ctx, &providers, &provider, &tasks).await;
    }
    if !provider
        .finalizers()
        .iter()
        .any(|one| one == names::PROVIDER_FINALIZER)
    {
        let mut finalizers = provider.finalizers().to_vec();
        finalizers.push(names::PROVIDER_FINALIZER.to_owned());
        let version = provider.resource_version().unwrap_or_default();
        let change = json!({ "metadata": { "finalizers": finalizers } });
        patch::update(&providers, &provider.name_any(), &version, change).await?;
        return Ok(Action::await_change());
    }
    let outcome = drive(&ctx, &provider, &tasks, &stop).await;
    report(&ctx, &providers, &provider, &outcome).await?;
    match outcome {
        Ok(_) => {
            ctx.retries.reset(NAME, &uid);
            Ok(steadily(ctx.settings.steady))
        }
        Err(Stop::Refused(_)) => Ok(Action::await_change()),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// Why a provider offers nothing.
enum Stop {
    /// Somebody must change something.
    Refused(Reason),
    /// It may work later.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Plugin(Failure::Refused(reason) | Failure::Missing(reason)) => Self::Refused(reason),
            error => Self::Failed(error),
        }
    }
}

async fn drive(
    ctx: &Arc<Ctx>,
    provider: &api::NodeProvider,
    tasks: &Tasks,
    stop: &CancellationToken,
) -> Result<usize, Stop> {
    let Some((component, settings)) = provider.spec.driver() else {
        return Err(Stop::Refused(
            Reason::new(
                "NoDriver",
                format!("NodeProvider {} names no driver", provider.name_any()),
            )
            .remedy("set exactly one of spec.metal3, spec.kubeVirt, spec.terraform or spec.driver"),
        ));
    };
    let driver = ctx.plugins.driver(&component, None).map_err(Error::from)?;
    let object = object_of(provider);
    let description = Arc::new(driver.describe(&object).await.map_err(Error::from)?);
    config::check(&description.config_schema, settings, provider.spec.config_path())
        .map_err(Stop::Refused)?;
    if let Err(reason) = judge(ctx, provider, driver.as_ref(), &description) {
        tasks.end_ungranted(ctx, provider, driver.as_ref());
        return Err(Stop::Refused(reason));
    }
    let count = ensure_types(ctx, provider, &description).await?;
    tasks.ensure(ctx, provider, driver, description, stop);
    Ok(count)
}

/// Whether the description is within what the operator grants.
fn judge(
    ctx: &Ctx,
    provider: &api::NodeProvider,
    driver: &dyn Driver,
    description: &Description,
) -> Result<(), Reason> {
    if let Some(cluster) = description
        .cluster
        .as_ref()
        .filter(|cluster| **cluster != ctx.settings.cluster_name)
    {
        return Err(Reason::new(
            "UnknownCluster",
            format!(
                "{}.clusterRef.cluster: {cluster} is not known here",
                provider.spec.config_path()
            ),
        )
        .remedy(format!("name {}", ctx.settings.cluster_name)));
    }
    scope::asked(&driver.grant(), &object_of(provider).json, &description.uses)?;
    for offer in &description.node_types {
        let is_label = !offer.name.is_empty()
            && offer.name.len() <= 63
            && !offer.name.starts_with('-')
            && !offer.name.ends_with('-')
            && offer
                .name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !is_label {
            return Err(Reason::new(
                "NodeTypeInvalid",
                format!("node type name {:?} is not a DNS label", offer.name),
            )
            .remedy("use lower-case letters, digits and '-', without dots"));
        }
        for key in offer.json["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            if selector::BUILT_IN.contains(&key.as_str()) {
                return Err(Reason::new(
                    "NodeTypeInvalid",
                    format!("node type {}: property {key} is built in", offer.name),
                )
                .remedy("remove it from the node type's properties"));
            }
            if let Some(protected) = protected::property(key) {
                let problem = protected.at(&format!("node type {}: properties", offer.name));
                return Err(Reason::new("ProtectedKey", problem.to_string()));
            }
        }
        for map in ["labels", "annotations"] {
            for key in offer.json["metadata"][map]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key)
            {
                if let Some(protected) = protected::annotation(key) {
                    let problem = protected.at(&format!("node type {}: metadata.{map}", offer.name));
                    return Err(Reason::new("ProtectedKey", problem.to_string()));
                }
            }
        }
    }
    Ok(())
}

/// Makes, changes and removes this provider's NodeTypes; returns how many there are.
async fn ensure_types(
    ctx: &Ctx,
    provider: &api::NodeProvider,
    description: &Description,
) -> Result<usize, Stop> {
    let types: Api<api::NodeType> = Api::all(ctx.client.clone());
    let uid = provider.uid().unwrap_or_default();
    let mut wanted: BTreeMap<String, api::NodeType> = BTreeMap::new();
    for offer in &description.node_types {
        let full_name = names::node_type(&provider.name_any(), &offer.name);
        wanted.insert(full_name.clone(), type_object(provider, &full_name, &offer.json)?);
    }
    for (name, next) in &wanted {
        match ctx.stores.node_types.get(None, name) {
            None => {
                if let patch::Created::Exists = patch::create(&types, next).await? {
                    return Err(Stop::Failed(Error::Busy(format!(
                        "NodeType {name} appeared meanwhile"
                    ))));
                }
            }
            Some(known) if known.annotations().get(names::PROVIDER_UID) != Some(&uid) => {
                return Err(Stop::Refused(
                    Reason::new(
                        "NodeTypeTaken",
                        format!("NodeType {name} was not made by this provider"),
                    )
                    .remedy(format!("delete NodeType {name}, or rename the node type")),
                ));
            }
            Some(known) if known.spec == next.spec && is_covered(&known, next) => {}
            Some(known) => {
                let version = known.resource_version().unwrap_or_default();
                let mut whole = (*known).clone();
                whole.spec = next.spec.clone();
                whole.labels_mut().extend(next.labels().clone());
                whole.annotations_mut().extend(next.annotations().clone());
                whole.metadata.resource_version = Some(version);
                patch::replace(&types, &whole).await?;
            }
        }
    }
    for known in ctx.stores.node_types.state() {
        let ours = known.annotations().get(names::PROVIDER_UID) == Some(&uid);
        if ours && !wanted.contains_key(&known.name_any()) {
            patch::delete(&types, &known.name_any(), &known.uid().unwrap_or_default()).await?;
        }
    }
    Ok(wanted.len())
}

fn is_covered(known: &api::NodeType, next: &api::NodeType) -> bool {
    next.labels()
        .iter()
        .all(|(key, value)| known.labels().get(key) == Some(value))
        && next
            .annotations()
            .iter()
            .all(|(key, value)| known.annotations().get(key) == Some(value))
}

fn type_object(
    provider: &api::NodeProvider,
    name: &str,
    json: &serde_json::Value,
) -> Result<api::NodeType, Stop> {
    let mut spec = json.clone();
    let metadata = spec
        .as_object_mut()
        .and_then(|spec| spec.remove("metadata"))
        .unwrap_or_default();
    if spec.is_null() {
        spec = json!({});
    }
    spec["providerRef"] = json!(provider.name_any());
    let spec: api::NodeTypeSpec = serde_json::from_value(spec).map_err(|error| {
        Stop::Refused(Reason::new(
            "NodeTypeInvalid",
            format!("node type {name}: {error}"),
        ))
    })?;
    let mut object = api::NodeType::new(name, spec);
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        object
            .labels_mut()
            .insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
    }
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        object
            .annotations_mut()
            .insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
    }
    object
        .annotations_mut()
        .insert(names::PROVIDER_UID.to_owned(), provider.uid().unwrap_or_default());
    object.metadata.owner_references = provider.controller_owner_ref(&()).map(|owner| vec![owner]);
    Ok(object)
}

/// The provider as its driver sees it.
pub(crate) fn object_of(provider: &api::NodeProvider) -> Object {
    view::object(&serde_json::to_value(provider).unwrap_or_default())
}

impl Tasks {
    fn ensure(
        &self,
        ctx: &Arc<Ctx>,
        provider: &api::NodeProvider,
        driver: Arc<dyn Driver>,
        description: Arc<Description>,
        stop: &CancellationToken,
    ) {
        let uid = provider.uid().unwrap_or_default();
        let signature = (
            provider.meta().generation.unwrap_or(0),
            driver.digest().to_owned(),
        );
        let mut all = self.0.lock().expect("no holder panics");
        if all.get(&uid).is_some_and(|known| known.signature == signature) {
            return;
        }
        if let Some(old) = all.remove(&uid) {
            old.stop.cancel();
        }
        let token = stop.child_token();
        let task = Task {
            signature,
            description: description.clone(),
            stop: token.clone(),
        };
        tokio::spawn(inventory::run(
            ctx.clone(),
            object_of(provider),
            driver,
            description,
            token,
        ));
        all.insert(uid, task);
    }

    fn end(&self, uid: &str) {
        if let Some(task) = self.0.lock().expect("no holder panics").remove(uid) {
            task.stop.cancel();
        }
    }

    /// Ends an inventory that reads what was granted once and is not any more.
    fn end_ungranted(&self, ctx: &Ctx, provider: &api::NodeProvider, driver: &dyn Driver) {
        let uid = provider.uid().unwrap_or_default();
        let description = self
            .0
            .lock()
            .expect("no holder panics")
            .get(&uid)
            .map(|task| task.description.clone());
        let asked = |description: Arc<Description>| {
            scope::asked(&driver.grant(), &object_of(provider).json, &description.uses)
        };
        if description.map(asked).is_some_and(|asked| asked.is_err()) {
            self.end(&uid);
            ctx.machines.remove(&uid);
        }
    }
}

async fn retire(
    ctx: &Ctx,
    providers: &Api<api::NodeProvider>,
    provider: &api::NodeProvider,
    tasks: &Tasks,
) -> Result<Action> {
    let name = provider.name_any();
    // A live list: a claim bound a moment ago must count.
    let claims: Api<api::NodeClaim> = Api::all(ctx.client.clone());
    let bound = patch::within(
        format!("listing claims of provider {name}"),
        claims.list(&kube::api::ListParams::default()),
    )
    .await?
    .items
    .into_iter()
    .filter(|claim| {
        claim
            .machine()
            .is_some_and(|machine| names::is_type_of(&machine.type_ref, &name))
    })
    .count();
    if bound > 0 {
        let message = format!("{bound} claims still hold machines of this provider; delete them first");
        let reason = Reason::new("InUse", message);
        report(ctx, providers, provider, &Err(Stop::Refused(reason))).await?;
        return Ok(Action::requeue(std::time::Duration::from_secs(5)));
    }
    let uid = provider.uid().unwrap_or_default();
    tasks.end(&uid);
    ctx.machines.remove(&uid);
    let finalizers: Vec<_> = provider
        .finalizers()
        .iter()
        .filter(|one| *one != names::PROVIDER_FINALIZER)
        .cloned()
        .collect();
    if finalizers.len() != provider.finalizers().len() {
        let change = json!({ "metadata": { "finalizers": finalizers } });
        let version = provider.resource_version().unwrap_or_default();
        patch::update(providers, &name, &version, change).await?;
    }
    Ok(Action::await_change())
}

async fn report(
    ctx: &Ctx,
    providers: &Api<api::NodeProvider>,
    provider: &api::NodeProvider,
    outcome: &Result<usize, Stop>,
) -> Result<()> {
    let generation = provider.meta().generation;
    let mut status = provider.status.clone().unwrap_or_default();
    let before = status.clone();
    let text;
    let (fact, phase, reason) = match outcome {
        Ok(count) => {
            text = format!("the driver offers {count} node types");
            (
                Fact::yes("Initialized", "Described", &text),
                phase::AVAILABLE,
                None,
            )
        }
        Err(Stop::Refused(reason)) => {
            text = reason.text();
            (
                Fact::no("Initialized", &reason.code, &text),
                phase::FAILED,
                Some(reason.code.clone()),
            )
        }
        Err(Stop::Failed(Error::Plugin(Failure::Faulty(reason)))) => {
            text = reason.text();
            (
                Fact::no("Initialized", &reason.code, &text),
                phase::FAILED,
                Some(reason.code.clone()),
            )
        }
        Err(Stop::Failed(error)) => {
            text = error.to_string();
            (
                Fact::unknown("Initialized", error.reason(), &text),
                phase::PENDING,
                Some(error.reason().to_owned()),
            )
        }
    };
    conditions::set(&mut status.conditions, &fact, generation, ctx.clock.now());
    status.phase = Some(phase.to_owned());
    status.message = reason.is_some().then(|| text.clone());
    status.reason = reason;
    status.observed_generation = generation;
    if status == before {
        return Ok(());
    }
    if let Err(Stop::Refused(reason) | Stop::Failed(Error::Plugin(Failure::Faulty(reason)))) = outcome {
        ctx.events
            .warning(provider, &reason.code, "Describing", &text)
            .await;
    }
    let mut whole = provider.clone();
    whole.status = Some(status);
    patch::replace_status(providers, &whole).await?;
    Ok(())
}
