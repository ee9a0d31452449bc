//! The way of a claim: how long the host takes where nothing simulated takes time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use hostler_api as api;
use hostler_api::names;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::{Lab, root, spread};

const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(120);

/// What was first seen when, by name.
#[derive(Default)]
struct Seen(BTreeMap<String, Instant>);

impl Seen {
    fn between(&self, from: &str, to: &str) -> Option<Duration> {
        Some(self.0.get(to)?.duration_since(*self.0.get(from)?))
    }
}

/// Prints a table for the tenant of `examples/01-lab`, made and deleted several times.
pub(crate) async fn measure(lab: &Lab) -> Result<()> {
    let client = lab.client().await?;
    for file in ["project.yaml", "provider.yaml", "hosts.yaml"] {
        kubectl(
            lab,
            &[
                "apply",
                "-f",
                &root().join("examples/01-lab").join(file).display().to_string(),
            ],
        )
        .await?;
    }
    wait_for_hosts(&client, 2).await?;
    let times = hostler_lab::Options::default().times;
    let back = times.deprovision + times.power;
    let mut taken = Vec::new();
    let mut available = Vec::new();
    let mut freed = Vec::new();
    for _ in 0..ROUNDS {
        let seen = life(lab, &client).await?;
        taken.extend(seen.between("claim", "loan"));
        available.extend(seen.between("ready", "available"));
        freed.extend(
            seen.between("delete", "free")
                .map(|time| time.saturating_sub(back)),
        );
    }
    println!("## The way of a claim\n\n| (ms) | least | middle | most |\n| --- | --- | --- | --- |");
    println!("| claim created → host taken | {} |", spread(&mut taken));
    println!("| node Ready → claim Available | {} |", spread(&mut available));
    println!(
        "| tenant deleted → hosts free, less {} ms simulated | {} |\n",
        back.as_millis(),
        spread(&mut freed)
    );
    Ok(())
}

/// Returns once so many hosts are available and off.
pub(crate) async fn wait_for_hosts(client: &Client, count: usize) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let hosts: Api<DynamicObject> = Api::all_with(client.clone(), &hostler_lab::crds::bare_metal_hosts());
    loop {
        let free = hosts
            .list(&ListParams::default())
            .await?
            .iter()
            .filter(|host| is_free(host))
            .count();
        if free >= count {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{free} of {count} hosts are available after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn is_free(host: &DynamicObject) -> bool {
    let state = host
        .data
        .pointer("/status/provisioning/state")
        .and_then(serde_json::Value::as_str);
    let on = host
        .data
        .pointer("/status/poweredOn")
        .and_then(serde_json::Value::as_bool);
    state == Some("available") && on == Some(false) && !host.annotations().contains_key(names::LOAN)
}

/// One tenant from apply to deletion; the first of its two machines counts.
async fn life(lab: &Lab, client: &Client) -> Result<Seen> {
    let (tell, mut told) = mpsc::unbounded_channel::<(&'static str, Instant)>();
    let claims: Api<api::NodeClaim> = Api::all(client.clone());
    let hosts: Api<DynamicObject> = Api::all_with(client.clone(), &hostler_lab::crds::bare_metal_hosts());
    let watches = [
        tokio::spawn(watch(claims, (), tell.clone(), |claim: &api::NodeClaim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            let mut facts = vec!["claim"];
            facts.extend((phase == Some("Available")).then_some("available"));
            facts
        })),
        tokio::spawn(watch(
            hosts,
            hostler_lab::crds::bare_metal_hosts(),
            tell.clone(),
            |host: &DynamicObject| {
                host.annotations()
                    .contains_key(names::LOAN)
                    .then_some("loan")
                    .into_iter()
                    .collect()
            },
        )),
    ];
    let mut seen = Seen::default();
    kubectl(
        lab,
        &[
            "apply",
            "-f",
            &root().join("examples/01-lab/tenant.yaml").display().to_string(),
        ],
    )
    .await?;
    let mut nodes = None;
    let end = Instant::now() + PATIENCE;
    while !seen.0.contains_key("available") {
        if nodes.is_none()
            && let Some(tenant) = tenant(lab).await?
        {
            nodes = Some(tokio::spawn(watch(
                Api::<Node>::all(tenant),
                (),
                tell.clone(),
                |node: &Node| {
                    let ready = node
                        .status
                        .as_ref()
                        .and_then(|status| status.conditions.as_ref())
                        .is_some_and(|all| {
                            all.iter()
                                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
                        });
                    ready.then_some("ready").into_iter().collect()
                },
            )));
        }
        if let Ok(Some((fact, when))) = tokio::time::timeout(Duration::from_millis(50), told.recv()).await {
            seen.0.entry(fact.to_owned()).or_insert(when);
        }
        if Instant::now() > end {
            bail!("no claim became Available within {PATIENCE:?}");
        }
    }
    // The second machine too, so that the way back is the same each time.
    let all: Api<api::NodeClaim> = Api::all(client.clone());
    while !all
        .list(&ListParams::default())
        .await?
        .iter()
        .all(|claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available"))
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for watch in watches.into_iter().chain(nodes) {
        watch.abort();
    }
    let tenants: Api<api::VirtualClusterInstance> = Api::namespaced(client.clone(), "p-default");
    seen.0.insert("delete".to_owned(), Instant::now());
    tenants.delete("one", &DeleteParams::default()).await?;
    let hosts: Api<DynamicObject> = Api::all_with(client.clone(), &hostler_lab::crds::bare_metal_hosts());
    while !hosts.list(&ListParams::default()).await?.iter().all(is_free) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    seen.0.insert("free".to_owned(), Instant::now());
    while tenants.get_opt("one").await?.is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(seen)
}

async fn watch<K>(
    api: Api<K>,
    _kind: K::DynamicType,
    tell: mpsc::UnboundedSender<(&'static str, Instant)>,
    facts: impl Fn(&K) -> Vec<&'static str>,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(
        watcher(api, watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    while let Some(event) = events.next().await {
        let Ok(object) = event else { continue };
        for fact in facts(&object) {
            if tell.send((fact, Instant::now())).is_err() {
                return;
            }
        }
    }
}

async fn tenant(lab: &Lab) -> Result<Option<Client>> {
    let path = lab.folder.path().join("tenants/default/one.kubeconfig");
    if !path.exists() {
        return Ok(None);
    }
    let kubeconfig = Kubeconfig::read_from(path)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Some(Client::try_from(config)?))
}

async fn kubectl(lab: &Lab, arguments: &[&str]) -> Result<()> {
    for _ in 0..50 {
        let output = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(lab.folder.path().join("kubeconfig"))
            .args(arguments)
            .output()
            .await
            .context("kubectl cannot be run")?;
        if output.status.success() {
            return Ok(());
        }
        // A namespace that the host is only now making.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("kubectl {arguments:?} failed")
}
