//! Two at a time: claims for one host, hosts for the same claims, deletion while something else goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use hostler_controllers::Settings;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::crashes::{
    all_free, claims, delete_tenant, nodes_ready, nothing_left, phase, so_many_available, told,
};
use crate::harness::{Fault, History, World, eventually};

mod budgets;
mod changed;
mod deletion;
mod forestalled;
mod identity;
mod scale;

/// A host with room for so many machines, and a tenant `one` with a pool of so many nodes.
struct Place {
    world: World,
    history: History,
    hosts: BTreeMap<String, Value>,
}

impl Place {
    /// Project, provider and so many registered servers, all of the type `gpu-server`. Needs a host of Hostler to come up.
    async fn new(servers: usize) -> Self {
        Self::with(servers, hostler_lab::Options::instant()).await
    }

    async fn with(servers: usize, lab: hostler_lab::Options) -> Self {
        let world = World::with(lab).await;
        let history = History::of(&world.client);
        for file in ["project.yaml", "provider.yaml"] {
            world.apply_file(&format!("examples/01-lab/{file}")).await;
        }
        world.apply(&rack(servers)).await;
        let hosts = all_free(&world, servers).await;
        Self {
            world,
            history,
            hosts,
        }
    }

    /// Sets the quantity of the tenant's pool; makes the tenant if it is not there.
    async fn wants(&self, quantity: usize) {
        self.world.apply(&tenant("one", quantity, "")).await;
    }

    /// Makes a tenant without machines, and for it a claim `wish` by hand, with this in its spec.
    async fn wishes(&self, more: &Value) {
        self.wants(0).await;
        let mut claim = json!({
            "apiVersion": "management.loft.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "wish", "namespace": "p-default"},
            "spec": {"providerRef": "metal3", "vClusterRef": "one", "properties": {"vcluster.com/os-image": "ubuntu2404-20260926"}},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            claim["spec"][field] = value.clone();
        }
        self.world.apply(&claim.to_string()).await;
    }

    /// Nothing of any tenant is left, and all servers are as they were.
    async fn is_as_before(&self) {
        nothing_left(&self.world).await;
        assert_eq!(all_free(&self.world, self.hosts.len()).await, self.hosts);
        self.history.is_clean(&self.world).await;
    }
}

/// Names as a rack has them: `gpu-1`, `gpu-2`, …
fn server(number: usize) -> String {
    format!("gpu-{number}")
}

/// Manifests of servers.
fn rack(servers: usize) -> String {
    let mut text = String::new();
    for number in 1..=servers {
        let name = server(number);
        write!(
            text,
            r#"---
apiVersion: v1
kind: Secret
metadata:
  name: {name}-bmc
  namespace: default
type: Opaque
stringData:
  username: admin
  password: password
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata:
  name: {name}
  namespace: default
  labels:
    role: gpu
  annotations:
    metal3.vcluster.com/ip-address: 192.168.100.{address}/24
    metal3.vcluster.com/gateway: 192.168.100.1
spec:
  online: false
  bootMACAddress: "52:54:00:00:02:{number:02x}"
  bmc:
    address: redfish+http://{name}-virtbmc.default:8000/redfish/v1/Systems/1
    credentialsName: {name}-bmc
"#,
            address = 100 + number,
        )
        .unwrap();
    }
    text
}

/// Manifest of a tenant with one pool; `more` are further lines of the pool.
fn tenant(name: &str, quantity: usize, more: &str) -> String {
    let more = if more.is_empty() {
        String::new()
    } else {
        format!("                  {more}\n")
    };
    format!(
        r"apiVersion: management.loft.sh/v1
kind: VirtualClusterInstance
metadata:
  name: {name}
  namespace: p-default
spec:
  template:
    helmRelease:
      chart:
        version: 0.37.3
      values: |
        privateNodes:
          enabled: true
          autoNodes:
            - provider: metal3
              static:
                - name: gpu
                  quantity: {quantity}
{more}                  nodeTypeSelector:
                    - property: vcluster.com/node-type
                      value: gpu-server
              properties:
                vcluster.com/os-image: ubuntu2404-20260926
  clusterRef:
    cluster: loft-cluster
    namespace: loft-default-v-{name}
    virtualCluster: {name}
"
    )
}

/// Deletes a claim, as a user would.
async fn delete_claim(world: &World, name: &str) {
    let claims: Api<hostler_api::NodeClaim> = Api::namespaced(world.client.clone(), "p-default");
    claims.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Settings with short waits.
fn impatient() -> Settings {
    let moment = Duration::from_secs(1);
    Settings {
        unreachable_after: moment,
        node_deletion_cap: moment,
        capacity_retry: moment,
        ..Settings::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_claims_for_one_host_one_gets_it_and_the_other_waits_until_it_is_free() {
    let place = Place::new(1).await;
    let host = place.world.host().await;
    place.wants(2).await;
    let (first, second) = eventually("one has it, one waits", || async {
        let claims = claims(&place.world).await?;
        let first = claims.iter().find(|claim| phase(claim) == "Available");
        let second = claims.iter().find(|claim| {
            claim.status.as_ref().is_some_and(|status| {
                status.phase.as_deref() == Some("Pending")
                    && status.reason.as_deref() == Some("NoCapacity")
                    && status.machine.is_none()
            })
        });
        match (first, second, claims.len()) {
            (Some(first), Some(second), 2) => Ok((first.clone(), second.clone())),
            _ => Err(claims.iter().map(told).collect::<Vec<_>>().join("\n")),
        }
    })
    .await;
    assert!(
        second
            .status
            .clone()
            .unwrap()
            .message
            .is_some_and(|message| !message.is_empty())
    );

    delete_claim(&place.world, &first.name_any()).await;
    eventually("the one that waited has it", || async {
        let claims = claims(&place.world).await?;
        let now = claims
            .iter()
            .find(|claim| claim.uid() == second.uid())
            .ok_or("the claim is gone")?;
        if phase(now) == "Available" {
            Ok(())
        } else {
            Err(claims.iter().map(told).collect::<Vec<_>>().join("\n"))
        }
    })
    .await;
    let uid = place.hosts[&server(1)]["metadata"]["uid"].as_str().unwrap();
    let mut borrowers = place.history.borrowers(uid);
    borrowers.sort();
    let mut both = [first.uid().unwrap(), second.uid().unwrap()];
    both.sort();
    assert_eq!(borrowers, both);
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    place.history.names_are_exclusive();
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_at_work_on_the_same_claims_give_each_claim_one_machine() {
    const MANY: usize = 10;
    let place = Place::new(MANY).await;
    let fault = Fault::none();
    let first = place.world.host_at("first", &fault, Settings::default()).await;
    let second = place.world.host_at("second", &fault, Settings::default()).await;
    place.wants(MANY).await;
    so_many_available(&place.world, MANY).await;
    let names: BTreeSet<String> = claims(&place.world)
        .await
        .unwrap()
        .iter()
        .map(|claim| {
            claim
                .status
                .clone()
                .unwrap()
                .machine
                .unwrap()
                .object
                .unwrap()
                .name
        })
        .collect();
    let servers: BTreeSet<String> = (1..=MANY).map(server).collect();
    assert_eq!(names, servers);
    let nodes: Vec<&str> = servers.iter().map(String::as_str).collect();
    nodes_ready(&place.world, "one", &nodes).await;
    assert_eq!(place.history.claims().len(), MANY, "no claim was made twice");
    delete_tenant(&place.world, "one").await;
    place.is_as_before().await;
    first.stop().await;
    second.stop().await;
}
