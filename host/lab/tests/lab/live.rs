//! The recorded actions against the running laboratory, over the API, in real time with short durations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::recording::{Action, Recording, distinct, read};
use crate::world::{World, eventually};

/// What is compared of a host: state, how it fares, power, kind of error, conditions; nothing of a host that is gone.
type Sighting = Value;

fn sighting(object: &Value, mask_power: bool) -> Sighting {
    let status = &object["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions: BTreeMap<String, Value> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| {
            (
                text(&condition["type"]),
                json!([condition["status"], condition["reason"]]),
            )
        })
        .collect();
    json!([
        text(&status["provisioning"]["state"]),
        text(&status["operationalStatus"]),
        !mask_power && status["poweredOn"] == true,
        text(&status["errorType"]),
        conditions,
    ])
}

fn sightings(all: &[Option<Value>], mask_power: bool) -> Vec<Sighting> {
    distinct(all.iter().map(|object| {
        object
            .as_ref()
            .map_or(Value::Null, |object| sighting(object, mask_power))
    }))
}

/// Where in the recording of a host somebody else than Metal3 changed it.
fn interventions(all: &[Option<Value>]) -> Vec<usize> {
    let asked = |object: &Option<Value>| {
        let object = object.as_ref()?;
        let mut spec = object["spec"].clone();
        let fields = spec.as_object_mut()?;
        fields.remove("architecture");
        fields.retain(|key, value| key != "bmc" || value["address"] != "");
        let mut annotations = object["metadata"]["annotations"].clone();
        // Metal3 itself takes this one off; that it was put on shows in the event before.
        let rebooted = annotations
            .as_object_mut()
            .and_then(|all| all.remove("reboot.metal3.io"))
            .is_some();
        let annotations = Some(annotations).filter(|all| !all.is_null() && *all != json!({}));
        let metadata = &object["metadata"];
        Some((
            json!([
                spec,
                annotations,
                metadata["labels"],
                metadata.get("deletionTimestamp").is_some()
            ]),
            rebooted,
        ))
    };
    (1..all.len())
        .filter(|&index| match (asked(&all[index - 1]), asked(&all[index])) {
            (Some((before, was)), Some((after, is))) => before != after || (is && !was),
            _ => false,
        })
        .collect()
}

struct Replay<'a> {
    world: World,
    recording: &'a Recording,
    mask_power: bool,
    /// Of each host, how many interventions were repeated, and how much had been seen at the last one.
    repeated: BTreeMap<String, (usize, usize)>,
    seen: Arc<Mutex<BTreeMap<String, Vec<Option<Value>>>>>,
    _watch: AbortOnDropHandle<()>,
}

impl<'a> Replay<'a> {
    async fn new(recording: &'a Recording, mask_power: bool) -> Self {
        let world = World::start().await;
        let seen: Arc<Mutex<BTreeMap<String, Vec<Option<Value>>>>> = Arc::default();
        let sink = Arc::clone(&seen);
        let hosts = world.hosts();
        let watch = tokio::spawn(async move {
            let mut events = watcher::watcher(hosts, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let (name, object) = match event.unwrap() {
                    Event::Apply(object) | Event::InitApply(object) => {
                        (object.name_any(), Some(serde_json::to_value(object).unwrap()))
                    }
                    Event::Delete(object) => (object.name_any(), None),
                    Event::Init | Event::InitDone => continue,
                };
                sink.lock().unwrap().entry(name).or_default().push(object);
            }
        });
        Self {
            world,
            recording,
            mask_power,
            repeated: BTreeMap::new(),
            seen,
            _watch: AbortOnDropHandle::new(watch),
        }
    }

    async fn act(&mut self, action: &Action) {
        let hosts = self.world.hosts();
        match action {
            Action::Apply(objects) => {
                for object in objects {
                    hosts.create(&PostParams::default(), object).await.unwrap();
                }
            }
            Action::Wait(state) => {
                eventually(&format!("every host is {state}"), async || {
                    let all = hosts.list(&Default::default()).await.unwrap().items;
                    all.iter()
                        .all(|host| host.data["status"]["provisioning"]["state"] == **state)
                })
                .await;
                // Whoever waited took a moment to see it, in which the power followed.
                self.settle().await;
            }
            Action::Sleep(_) => self.settle().await,
            Action::Patch { host, patch } => {
                let before = self.seen.lock().unwrap().get(host).map_or(0, Vec::len);
                hosts
                    .patch(host, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .unwrap();
                let (count, seen) = self.repeated.entry(host.clone()).or_default();
                (*count, *seen) = (*count + 1, before);
            }
            Action::Delete(host) => {
                hosts.delete(host, &DeleteParams::default()).await.unwrap();
            }
            Action::DeleteSecret(name) => {
                self.world
                    .secrets()
                    .delete(name, &DeleteParams::default())
                    .await
                    .unwrap();
            }
            Action::DeleteAll => {
                for host in hosts.list(&Default::default()).await.unwrap() {
                    hosts
                        .delete(&host.name_any(), &DeleteParams::default())
                        .await
                        .unwrap();
                }
            }
        }
    }

    /// Waits until each host has looked as it did in the recording just before the next intervention.
    async fn settle(&self) {
        for (name, recorded) in &self.recording.hosts {
            if name == "bad-scheme" {
                // The recorded fixture did not look at the address.
                continue;
            }
            let (repeated, since) = self.repeated.get(name).copied().unwrap_or_default();
            let Some(&next) = interventions(recorded).get(repeated) else {
                continue;
            };
            let want = sighting(recorded[next - 1].as_ref().unwrap(), self.mask_power);
            eventually(&format!("{name} looks like {want}"), async || {
                let seen = self.seen.lock().unwrap();
                let mut since = seen.get(name).into_iter().flatten().skip(since).flatten();
                since.any(|object| sighting(object, self.mask_power) == want)
            })
            .await;
        }
    }

    async fn run(&mut self) -> BTreeMap<String, Vec<Option<Value>>> {
        for action in &self.recording.actions {
            self.act(action).await;
        }
        let hosts = self.world.hosts();
        eventually("all hosts are gone", async || {
            hosts.list(&Default::default()).await.unwrap().items.is_empty()
        })
        .await;
        eventually("the watch has seen all hosts go", async || {
            self.seen
                .lock()
                .unwrap()
                .values()
                .all(|all| all.last() == Some(&None))
        })
        .await;
        self.seen.lock().unwrap().clone()
    }
}

fn assert_subsequence(name: &str, seen: &[Sighting], recorded: &[Sighting]) {
    let mut rest = recorded.iter();
    for (index, one) in seen.iter().enumerate() {
        assert!(
            rest.any(|other| other == one),
            "{name}: sighting {index} is not in the recording, or not in that place: {one}\nseen: {seen:#?}"
        );
    }
    let states = |all: &[Sighting]| distinct(all.iter().map(|one| one[0].clone()));
    assert_eq!(states(seen), states(recorded), "{name}: states");
    assert_eq!(seen.last(), recorded.last(), "{name}: the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_lives_and_dies_as_recorded() {
    let recording = read("one-host");
    let seen = Replay::new(&recording, false).await.run().await;
    let recorded = sightings(&recording.hosts["server1"], false);
    assert_subsequence("server1", &sightings(&seen["server1"], false), &recorded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_in_trouble_look_as_recorded() {
    let recording = read("errors");
    let seen = Replay::new(&recording, true).await.run().await;
    for (name, recorded) in &recording.hosts {
        if name != "bad-scheme" {
            // The recorded fixture kept one power state for all hosts.
            assert_subsequence(name, &sightings(&seen[name], true), &sightings(recorded, true));
        }
    }
    let protocol = sightings(&seen["bad-scheme"], true);
    assert!(
        protocol
            .iter()
            .any(|one| one[1] == "error" && one[3] == "registration error"),
        "{protocol:#?}"
    );
}

#[test]
fn every_action_on_a_host_is_found_in_its_recording() {
    let recording = read("one-host");
    assert_eq!(
        interventions(&recording.hosts["server1"]),
        [10, 14, 15, 16, 17, 19, 22, 25, 30, 32, 36]
    );
    let recording = read("errors");
    assert_eq!(interventions(&recording.hosts["online-registered"]).len(), 5);
    assert_eq!(interventions(&recording.hosts["no-secret"]).len(), 2);
}
