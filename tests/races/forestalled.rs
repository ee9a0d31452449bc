//! A machine that somebody else takes first: what the scheduler chose is forgotten with it, what the claim asked for is not.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use hostler_api as api;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{Place, delete_claim, server};
use crate::crashes::{all_free, claims, delete_tenant, phase, so_many_available, told};
use crate::harness::fault::Moment;
use crate::harness::{Fault, World, eventually};

/// Two machines, each the only one of its type, and a host of Hostler that finds the first one it is about to take in a stranger's hands.
struct Forestalled {
    place: Place,
    fault: Arc<Fault>,
    taken: Arc<OnceLock<String>>,
}

impl Forestalled {
    async fn new() -> Self {
        let mut place = Place::new(2).await;
        let label = json!({"metadata": {"labels": {"role": "cpu"}}});
        merge(&place.world.hosts(), &server(2), &label).await;
        place.hosts = all_free(&place.world, 2).await;
        let (hosts, taken) = (place.world.hosts(), Arc::<OnceLock<String>>::default());
        let told = taken.clone();
        let fault = Fault::meddled(Box::new(move |moment, line| {
            let machine = line
                .split_once("/baremetalhosts/")
                .map(|(_, name)| name.to_owned());
            let first = machine.filter(|name| moment == Moment::Before && told.set(name.clone()).is_ok());
            let hosts = hosts.clone();
            async move {
                if let Some(machine) = first {
                    let stranger = json!({"apiVersion": "example.com/v1", "kind": "Consumer", "name": "stranger", "namespace": "default"});
                    merge(&hosts, &machine, &json!({"spec": {"consumerRef": stranger}})).await;
                }
            }
            .boxed()
        }));
        Self { place, fault, taken }
    }

    /// The claim goes, and all is as it was.
    async fn end(self) {
        delete_claim(&self.place.world, "wish").await;
        delete_tenant(&self.place.world, "one").await;
        self.place.is_as_before().await;
    }

    /// The stranger gives its machine back.
    async fn leave(&self) {
        let machine = self.taken.get().expect("a machine was about to be taken");
        merge(
            &self.place.world.hosts(),
            machine,
            &json!({"spec": {"consumerRef": null}}),
        )
        .await;
    }
}

async fn merge(hosts: &Api<DynamicObject>, name: &str, change: &Value) {
    hosts
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
}

/// The claim, and the machine that it has.
async fn only_claim(world: &World) -> Result<(api::NodeClaim, Option<String>), String> {
    let claim = claims(world).await?.pop().ok_or("no claim")?;
    let machine = claim.machine().and_then(|machine| machine.object.clone());
    Ok((claim, machine.map(|object| object.name)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_asked_for_no_type_goes_to_a_machine_of_another() {
    let race = Forestalled::new().await;
    let host = race.place.world.host_behind(&race.fault).await;
    race.place.wishes(&json!({})).await;
    so_many_available(&race.place.world, 1).await;
    let (claim, machine) = only_claim(&race.place.world).await.unwrap();
    // Of two that cost the same the first by name was chosen, and lost.
    assert_eq!(race.taken.get(), Some(&server(2)));
    assert_eq!(machine, Some(server(1)), "{}", told(&claim));
    let its_type = Some("metal3.gpu-server");
    assert_eq!((claim.type_ref(), claim.chosen_type()), (its_type, its_type));
    let lost = race.place.hosts[&server(2)]["metadata"]["uid"].as_str().unwrap();
    assert_eq!(race.place.history.borrowers(lost), [""; 0]);
    race.leave().await;
    race.end().await;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_asked_for_its_type_waits_for_a_machine_of_that() {
    const WISH: &str = "metal3.gpu-server";
    let race = Forestalled::new().await;
    let host = race.place.world.host_behind(&race.fault).await;
    race.place.wishes(&json!({"typeRef": WISH})).await;
    eventually("the claim gave its place up, and waits", || async {
        let (claim, machine) = only_claim(&race.place.world).await?;
        let reason = claim.status.as_ref().and_then(|status| status.reason.as_deref());
        if race.taken.get().is_some() && machine.is_none() && reason == Some("NoCapacity") {
            assert_eq!((claim.type_ref(), claim.chosen_type()), (Some(WISH), None));
            Ok(())
        } else {
            Err(told(&claim))
        }
    })
    .await;
    race.leave().await;
    eventually("the claim has the machine", || async {
        let (claim, machine) = only_claim(&race.place.world).await?;
        if phase(&claim) == "Available" && machine == Some(server(1)) {
            Ok(())
        } else {
            Err(told(&claim))
        }
    })
    .await;
    race.end().await;
    host.stop().await;
}
