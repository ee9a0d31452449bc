//! What the driver is asked again, and what not.

use std::sync::Mutex;

use async_trait::async_trait;
use hostler_core::grant::Grant;
use hostler_core::seams::{Access, Availability, Failure, Order, Plan, Preparation};
use serde_json::json;

use super::*;

/// Notes what it is asked about, and gives no answer about the one that it is told not to.
#[derive(Default)]
struct Asked {
    names: Mutex<Vec<String>>,
    silent_on: Mutex<Option<String>>,
}

#[async_trait]
impl Driver for Asked {
    fn digest(&self) -> &'static str {
        "sha256:asked"
    }

    fn grant(&self) -> Arc<Grant> {
        unreachable!("an inventory writes nothing")
    }

    async fn describe(&self, _: &Object) -> Result<Description, Failure> {
        unreachable!("described before")
    }

    async fn machine_of(
        &self,
        _: &Object,
        seen: &Object,
        related: &[Object],
    ) -> Result<Option<Machine>, Failure> {
        self.names
            .lock()
            .unwrap()
            .push(format!("{}+{}", seen.name, related.len()));
        if self.silent_on.lock().unwrap().as_ref() == Some(&seen.name) {
            return Err(Failure::Exhausted(Reason::new("Busy", "no seat")));
        }
        Ok(Some(Machine {
            node_types: vec!["gpu".to_owned()],
            availability: Availability::Free,
            json: json!({}),
        }))
    }

    async fn prepare(&self, _: &Order, _: &[Object]) -> Result<Preparation, Failure> {
        unreachable!("an inventory orders nothing")
    }

    async fn provision(&self, _: &Order, _: &[Object]) -> Result<Plan, Failure> {
        unreachable!("an inventory orders nothing")
    }

    async fn release(&self, _: &Order, _: &[Object]) -> Result<Plan, Failure> {
        unreachable!("an inventory orders nothing")
    }
}

const HOSTS: usize = 0;
const DATA: usize = 1;

fn used(kind: &str, role: Role) -> KindUse {
    KindUse {
        api_version: "metal3.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        namespace: "hosts".to_owned(),
        access: Access::Read,
        role,
        selector: String::new(),
    }
}

fn object(name: &str, version: u32) -> DynamicObject {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "hosts", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
    }))
    .unwrap()
}

/// An eye on hosts and the data beside them, and a driver.
struct Scene {
    sight: Sight,
    driver: Asked,
}

impl Scene {
    fn new() -> Self {
        let uses = vec![
            used("BareMetalHost", Role::Machine),
            used("HardwareData", Role::Related),
        ];
        Self {
            sight: Sight::new(uses),
            driver: Asked::default(),
        }
    }

    fn list(&mut self, index: usize, all: &[(&str, u32)]) {
        self.sight.note(index, watcher::Event::Init);
        for (name, version) in all {
            self.sight
                .note(index, watcher::Event::InitApply(object(name, *version)));
        }
        self.sight.note(index, watcher::Event::InitDone);
    }

    /// Names of the machines that differ, with how they ended up, and what the driver was asked for it.
    async fn judge(&mut self) -> (Vec<String>, Vec<String>) {
        let provider = view::object(&json!({"metadata": {"name": "metal3", "uid": "p"}}));
        let changes = self.sight.judge(&provider, &self.driver).await;
        let told = changes
            .iter()
            .map(|(name, entry)| {
                let how = match entry.as_ref().map(|entry| &entry.machine) {
                    None => "gone",
                    Some(Ok(_)) => "known",
                    Some(Err(_)) => "unknown",
                };
                format!("{} {how}", name.name)
            })
            .collect();
        (told, std::mem::take(&mut self.driver.names.lock().unwrap()))
    }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

#[tokio::test]
async fn a_driver_is_asked_only_about_what_changed_or_stands_beside_it() {
    let mut scene = Scene::new();
    scene.list(HOSTS, &[("a", 1), ("b", 2)]);
    assert!(!scene.sight.is_listed());
    scene.list(DATA, &[("b", 3)]);
    assert!(scene.sight.is_listed());
    assert_eq!(
        scene.judge().await,
        (texts(&["a known", "b known"]), texts(&["a+0", "b+1"]))
    );
    // The same list again changes nothing.
    scene.list(HOSTS, &[("a", 1), ("b", 2)]);
    assert_eq!(scene.judge().await, (Vec::new(), Vec::new()));
    scene.sight.note(DATA, watcher::Event::Apply(object("a", 4)));
    assert_eq!(scene.judge().await, (texts(&["a known"]), texts(&["a+1"])));
    scene.sight.note(HOSTS, watcher::Event::Apply(object("b", 5)));
    assert_eq!(scene.judge().await, (texts(&["b known"]), texts(&["b+1"])));
    scene.sight.note(DATA, watcher::Event::Delete(object("b", 6)));
    scene.sight.note(HOSTS, watcher::Event::Delete(object("a", 7)));
    assert_eq!(
        scene.judge().await,
        (texts(&["a gone", "b known"]), texts(&["b+0"]))
    );
    // One that a list no longer has.
    scene.list(HOSTS, &[]);
    assert_eq!(scene.judge().await, (texts(&["b gone"]), Vec::new()));
}

#[tokio::test]
async fn a_call_that_failed_is_made_again_though_nothing_changes_and_an_answer_ends_that() {
    let mut scene = Scene::new();
    *scene.driver.silent_on.lock().unwrap() = Some("a".to_owned());
    scene.list(HOSTS, &[("a", 1), ("b", 2)]);
    scene.list(DATA, &[]);
    assert_eq!(
        scene.judge().await,
        (texts(&["a unknown", "b known"]), texts(&["a+0", "b+0"]))
    );
    // A change of another one is no reason to ask.
    scene.sight.note(HOSTS, watcher::Event::Apply(object("b", 3)));
    assert_eq!(scene.judge().await, (texts(&["b known"]), texts(&["b+0"])));
    scene.sight.doubt_failed();
    assert_eq!(scene.judge().await, (texts(&["a unknown"]), texts(&["a+0"])));
    *scene.driver.silent_on.lock().unwrap() = None;
    scene.sight.doubt_failed();
    assert_eq!(scene.judge().await, (texts(&["a known"]), texts(&["a+0"])));
    scene.sight.doubt_failed();
    assert_eq!(scene.judge().await, (Vec::new(), Vec::new()));
}
