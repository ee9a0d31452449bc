//! The recorded actions against the pure machine: every single write is compared, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostler_lab::Times;
use hostler_lab::bmh::{Again, Hardware, Host, Secret, Seen, Write, step};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::recording::{Action, Recording, distinct, read, whole};

/// How long the real thing took when it was recorded.
fn recorded_times() -> Times {
    Times {
        register: Duration::ZERO,
        inspect: Duration::from_secs(2),
        prepare: Duration::ZERO,
        provision: Duration::from_secs(10),
        deprovision: Duration::from_secs(10),
        power: Duration::from_secs(1),
        // Ten seconds and the time that the attempt itself took.
        retry: Duration::from_millis(10_005),
        ..Times::default()
    }
}

pub(crate) struct Kept {
    pub(crate) object: DynamicObject,
    pub(crate) hardware: Hardware,
    wake: Option<Timestamp>,
}

#[derive(Default)]
pub(crate) struct KeptSecret {
    version: u64,
    owners: BTreeSet<String>,
    held: bool,
}

/// The least that an API server does.
pub(crate) struct World {
    pub(crate) now: Timestamp,
    version: u64,
    times: Times,
    pub(crate) hosts: BTreeMap<String, Kept>,
    pub(crate) secrets: BTreeMap<String, KeptSecret>,
    pub(crate) seen: BTreeMap<String, Vec<Option<Value>>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let secrets = ["server1-bmc", "server2-bmc"].map(|name| (name.to_owned(), KeptSecret::default()));
        Self {
            now: "2026-11-29T17:30:50Z".parse().unwrap(),
            version: 1,
            times: recorded_times(),
            hosts: BTreeMap::new(),
            secrets: secrets.into(),
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn create(&mut self, mut object: DynamicObject, hardware: Hardware) {
        let name = object.metadata.name.clone().unwrap();
        object.metadata.generation = Some(1);
        object.metadata.uid = Some(name.clone());
        object.data["spec"]["automatedCleaningMode"] = json!("metadata");
        self.hosts.insert(
            name.clone(),
            Kept {
                object,
                hardware,
                wake: Some(self.now),
            },
        );
        self.record(&name);
    }

    fn record(&mut self, name: &str) {
        let object = self
            .hosts
            .get(name)
            .map(|kept| serde_json::to_value(&kept.object).unwrap());
        self.seen.entry(name.to_owned()).or_default().push(object);
    }

    /// Stores a new version of an object; a changed spec is a new generation.
    fn store(&mut self, name: &str, object: DynamicObject, wake: bool) {
        let kept = self.hosts.get_mut(name).unwrap();
        let changed = kept.object.data["spec"] != object.data["spec"]
            || kept.object.metadata.deletion_timestamp != object.metadata.deletion_timestamp;
        kept.object = object;
        if changed {
            kept.object.metadata.generation =
                kept.object.metadata.generation.map(|generation| generation + 1);
        }
        let gone = kept.object.metadata.deletion_timestamp.is_some()
            && kept.object.metadata.finalizers.iter().flatten().count() == 0;
        if wake {
            kept.wake = Some(self.now);
        }
        if gone {
            self.hosts.remove(name);
        }
        self.record(name);
    }

    pub(crate) fn patch(&mut self, name: &str, patch: &Value) {
        let mut object = serde_json::to_value(&self.hosts[name].object).unwrap();
        merge(&mut object, patch);
        self.store(name, serde_json::from_value(object).unwrap(), true);
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let mut object = self.hosts[name].object.clone();
        object.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
        self.store(name, object, true);
    }

    fn secret_changed(&mut self, name: &str) {
        self.version += 1;
        self.secrets.get_mut(name).unwrap().version = self.version;
        for kept in self.hosts.values_mut() {
            if kept.object.data["spec"]["bmc"]["credentialsName"] == name {
                kept.wake = Some(self.now);
            }
        }
    }

    /// Lets everything happen that falls before `until`.
    pub(crate) fn run(&mut self, until: Timestamp, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            let next = self
                .hosts
                .iter()
                .filter_map(|(name, kept)| Some((kept.wake?, name.clone())))
                .min();
            let Some((at, name)) = next.filter(|(at, _)| *at < until) else {
                break;
            };
            self.now = self.now.max(at);
            self.turn(&name);
        }
        if !enough(self) {
            self.now = until;
        }
    }

    fn turn(&mut self, name: &str) {
        let kept = self.hosts.get_mut(name).unwrap();
        kept.wake = None;
        let host = Host::parse(&kept.object).unwrap();
        let secret_name = host.credentials_name().to_owned();
        let secret = self.secrets.get(&secret_name).map(|secret| Secret {
            version: secret.version.to_string(),
            username: true,
            password: true,
            owned: secret.owners.contains(name),
            held: secret.held,
            going: false,
        });
        let seen = Seen {
            host: &host,
            secret: secret.as_ref(),
        };
        let step = step(seen, &mut kept.hardware, self.now, &self.times);
        kept.wake = match step.again {
            Again::Now => Some(self.now),
            Again::After(left) => Some(self.now + left),
            Again::OnChange => None,
        };
        let mut object = kept.object.clone();
        match step.write {
            None => {}
            Some(Write::Status(status)) => {
                object.data["status"] = serde_json::to_value(status).unwrap();
                self.store(name, object, false);
            }
            Some(Write::Object(change)) => {
                change.apply(&mut object);
                self.store(name, object, false);
            }
            Some(Write::ClaimSecret) => {
                let secret = self.secrets.get_mut(&secret_name).unwrap();
                secret.owners.insert(name.to_owned());
                secret.held = true;
                self.secret_changed(&secret_name);
            }
            Some(Write::ReleaseSecret) => {
                self.secrets.get_mut(&secret_name).unwrap().held = false;
                self.secret_changed(&secret_name);
            }
        }
    }

    fn act(&mut self, action: &Action) {
        let settled = self.now + Duration::from_millis(1);
        match action {
            Action::Apply(objects) => {
                for object in objects {
                    // The recording of one host began with an inventory left over from an earlier run.
                    let left_over = objects.len() == 1;
                    let hardware = if left_over {
                        Hardware::inspected_before()
                    } else {
                        Hardware::default()
                    };
                    self.create(object.clone(), hardware);
                }
            }
            Action::Wait(state) => {
                let deadline = self.now + Duration::from_secs(60);
                let there = |world: &Self| {
                    world
                        .hosts
                        .values()
                        .all(|kept| kept.object.data["status"]["provisioning"]["state"] == **state)
                };
                self.run(deadline, there);
                assert!(there(self), "{state} was not reached");
                // Whoever waited needs a moment to see it, in which the power settles.
                self.run(self.now + Duration::from_millis(1500), |_| false);
            }
            Action::Sleep(seconds) => self.run(self.now + Duration::from_secs_f64(*seconds), |_| false),
            Action::Patch { host, patch } => self.patch(host, patch),
            Action::Delete(host) => self.delete(host),
            Action::DeleteSecret(name) => self.secret_changed(name),
            Action::DeleteAll => {
                for host in self.hosts.keys().cloned().collect::<Vec<_>>() {
                    self.delete(&host);
                }
            }
        }
        if !matches!(action, Action::Sleep(_) | Action::Wait(_)) {
            self.run(settled, |_| false);
        }
    }

    fn replay(recording: &Recording) -> Self {
        let mut world = Self::new();
        for action in &recording.actions {
            world.act(action);
        }
        world.run(world.now + Duration::from_secs(60), |world| {
            world.hosts.is_empty()
        });
        world
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(json!({})), change);
        }
    }
}

fn assert_same(name: &str, seen: &[Option<Value>], recorded: &[Option<Value>], mask_power: bool) {
    let comparable = |all: &[Option<Value>]| {
        distinct(all.iter().map(|object| {
            object
                .as_ref()
                .map_or(Value::Null, |object| whole(object, mask_power))
        }))
    };
    let (seen, recorded) = (comparable(seen), comparable(recorded));
    for (index, (seen, recorded)) in seen.iter().zip(&recorded).enumerate() {
        assert_eq!(
            serde_json::to_string_pretty(&sorted(seen)).unwrap(),
            serde_json::to_string_pretty(&sorted(recorded)).unwrap(),
            "{name}, look {index}"
        );
    }
    assert_eq!(seen.len(), recorded.len(), "{name}: looks");
}

/// Order of fields is no difference.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<_, _> = fields
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect();
            serde_json::to_value(sorted).unwrap()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

#[test]
fn one_host_lives_and_dies_write_for_write_as_recorded() {
    let recording = read("one-host");
    let world = World::replay(&recording);
    assert_same(
        "server1",
        &world.seen["server1"],
        &recording.hosts["server1"],
        false,
    );
}

#[rstest::rstest]
#[case::whose_secret_is_missing("no-secret")]
#[case::without_a_controller("no-bmc")]
#[case::that_is_detached("detached")]
#[case::that_is_registered_online("online-registered")]
fn a_host(#[case] name: &str) {
    let recording = read("errors");
    let world = World::replay(&recording);
    // The recorded fixture kept one power state for all hosts.
    assert_same(name, &world.seen[name], &recording.hosts[name], true);
}

#[test]
fn an_unknown_protocol_is_a_registration_error_as_with_ironic() {
    let world = World::replay(&read("errors"));
    let seen = distinct(world.seen["bad-scheme"].iter().flatten().filter_map(|object| {
        let status = object.get("status")?;
        let reasons = status["conditions"]
            .as_array()?
            .iter()
            .map(|c| c["reason"].as_str().unwrap().to_owned());
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        let state = status["provisioning"]["state"].as_str()?.to_owned();
        Some((
            state,
            text("operationalStatus"),
            text("errorMessage"),
            reasons.collect::<Vec<_>>().join(" "),
        ))
    }));
    let seen: Vec<_> = seen
        .iter()
        .map(|(a, b, c, d)| (a.as_str(), b.as_str(), c.as_str(), d.as_str()))
        .collect();
    let problem = "Unknown BMC type 'carrier-pigeon' for address carrier-pigeon://127.0.0.1/1";
    assert_eq!(
        seen,
        [
            (
                "registering",
                "",
                "",
                "NotProvisioned NotAvailable Unknown Registering Registering NotProvisioned"
            ),
            (
                "registering",
                "error",
                problem,
                "Error NotAvailable Unknown RegistrationFailed Registering NotProvisioned"
            ),
            (
                "deleting",
                "error",
                problem,
                "Error NotAvailable Unknown Manageable Deleting NotProvisioned"
            ),
        ]
    );
    assert_eq!(world.seen["bad-scheme"].last(), Some(&None));
}

#[test]
fn a_missing_secret_is_counted_each_time_it_is_looked_for() {
    let world = World::replay(&read("errors"));
    let counts = world.seen["no-secret"]
        .iter()
        .flatten()
        .filter_map(|object| object["status"]["errorCount"].as_i64());
    assert_eq!(distinct(counts), [0, 1, 2, 0]);
}

#[test]
fn a_laboratory_that_forgot_everything_goes_on_from_the_objects() {
    let recording = read("one-host");
    let times = recorded_times();
    for interruption in 0..40 {
        let mut world = World::new();
        let mut writes = 0;
        for action in &recording.actions {
            world.act(action);
            writes += 1;
            if writes == interruption {
                for kept in world.hosts.values_mut() {
                    let status = Host::parse(&kept.object).unwrap().status;
                    kept.hardware = Hardware::recall(status.as_ref());
                    kept.wake = Some(world.now);
                }
            }
        }
        world.run(world.now + times.deprovision * 4, |world| world.hosts.is_empty());
        let states = |all: &[Option<Value>]| {
            let state = |object: &Option<Value>| {
                object.as_ref().map(|object| {
                    let status = &object["status"];
                    (
                        status["provisioning"]["state"]
                            .as_str()
                            .unwrap_or_default()
                            .to_owned(),
                        status["poweredOn"] == true,
                    )
                })
            };
            distinct(all.iter().map(state))
        };
        assert_eq!(
            states(&world.seen["server1"]),
            states(&recording.hosts["server1"]),
            "forgotten after action {interruption}"
        );
    }
}
