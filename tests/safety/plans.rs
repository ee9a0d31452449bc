//! The plans of the hostile driver, each against a place of its own: rejected whole, told, and nothing touched.

use std::collections::BTreeSet;

use serde_json::json;

use super::stage::{self, Dump, Told};
use crate::harness::stack::is_real;
use crate::harness::{World, fixtures};

/// Where a refusal is told.
#[derive(Clone, Copy, Debug)]
enum On {
    /// On the provider, which then offers nothing.
    Provider,
    /// On the claim, which then holds nothing.
    Claim,
}

/// One plan: its name, which function misbehaves where the plan leaves that open, where it is told, reason, and a part of the message.
const REFUSED: &[(&str, &str, On, &str, &str)] = &[
    (
        "other-host",
        "",
        On::Claim,
        "DriverOutOfScope",
        "is not the machine of this order",
    ),
    (
        "two-hosts",
        "",
        On::Claim,
        "DriverOutOfScope",
        "is not the machine of this order",
    ),
    (
        "other-secret",
        "",
        On::Claim,
        "DriverOutOfScope",
        "points at a Secret that is not this order's",
    ),
    (
        "other-namespace-secret",
        "",
        On::Claim,
        "DriverOutOfScope",
        "points at a Secret that is not this order's",
    ),
    ("bmc-address", "", On::Claim, "DriverOutOfScope", "/spec/bmc"),
    ("bmc-credentials", "", On::Claim, "DriverOutOfScope", "/spec/bmc"),
    ("whole-spec", "", On::Claim, "DriverOutOfScope", "/spec"),
    ("status", "", On::Claim, "DriverOutOfScope", "/status"),
    (
        "finalizers",
        "",
        On::Claim,
        "DriverOutOfScope",
        "/metadata/finalizers can never be borrowed",
    ),
    (
        "owner-references",
        "",
        On::Claim,
        "DriverOutOfScope",
        "/metadata/ownerReferences can never be borrowed",
    ),
    (
        "loan-record",
        "",
        On::Claim,
        "DriverOutOfScope",
        "can never be borrowed",
    ),
    ("other-label", "", On::Claim, "DriverOutOfScope", "is not granted"),
    ("no-patch", "", On::Claim, "PluginAnswerInvalid", "loans[0].patch"),
    (
        "cluster-role-binding",
        "",
        On::Claim,
        "DriverOutOfScope",
        "ClusterRoleBinding hostile: is of a kind that no driver may touch",
    ),
    (
        "existing-secret",
        "",
        On::Claim,
        "DriverOutOfScope",
        "was not asked for",
    ),
    (
        "existing-config-map",
        "",
        On::Claim,
        "NotOurs",
        "exists already and was not made for this claim",
    ),
    ("pod", "", On::Claim, "DriverOutOfScope", "was not asked for"),
    (
        "crd",
        "",
        On::Claim,
        "DriverOutOfScope",
        "is of a kind that no driver may touch",
    ),
    (
        "project",
        "",
        On::Claim,
        "DriverOutOfScope",
        "is of a kind that no driver may touch",
    ),
    ("no-object", "", On::Claim, "PluginAnswerInvalid", "owned[0]"),
    (
        "see-secret",
        "",
        On::Claim,
        "DriverOutOfScope",
        "was not asked for",
    ),
    (
        "gone-in-provision",
        "",
        On::Claim,
        "DriverOutOfScope",
        "is no answer to provision",
    ),
    (
        "other-identity",
        "",
        On::Claim,
        "PluginAnswerInvalid",
        "provider-id",
    ),
    ("big-memo", "", On::Claim, "PluginAnswerInvalid", "memo"),
    ("big-answer", "", On::Claim, "PluginAnswerTooLarge", ""),
    ("bad-node-name", "", On::Claim, "PluginAnswerInvalid", "node-name"),
    (
        "other-boot-namespace",
        "",
        On::Claim,
        "DriverOutOfScope",
        "kube-system, which the provider does not name",
    ),
    ("loop", "prepare", On::Claim, "PluginTimedOut", ""),
    ("loop", "provision", On::Claim, "PluginTimedOut", ""),
    ("trap", "prepare", On::Claim, "PluginTrapped", ""),
    ("trap", "provision", On::Claim, "PluginTrapped", ""),
    ("recurse", "provision", On::Claim, "PluginTrapped", ""),
    ("eat", "provision", On::Claim, "PluginOutOfMemory", ""),
    ("wrong-role", "", On::Provider, "DriverOutOfScope", "Secret of v1"),
    (
        "wrong-access",
        "",
        On::Provider,
        "DriverOutOfScope",
        "BareMetalHost of metal3.io/v1alpha1",
    ),
    (
        "other-namespace",
        "",
        On::Provider,
        "DriverOutOfScope",
        "in namespace kube-system",
    ),
    (
        "built-in-property",
        "",
        On::Provider,
        "NodeTypeInvalid",
        "is built in",
    ),
    (
        "dotted-type",
        "",
        On::Provider,
        "NodeTypeInvalid",
        "is not a DNS label",
    ),
    (
        "no-schema",
        "",
        On::Provider,
        "PluginAnswerInvalid",
        "config-schema",
    ),
    ("trap", "describe", On::Provider, "PluginTrapped", ""),
    ("loop", "describe", On::Provider, "PluginTimedOut", ""),
];

/// One plan with everything it is played on: a namespace with its host, its victims, and a provider.
struct Play {
    /// Events of one project are bounded: each has a few plays.
    project: String,
    name: String,
    plan: &'static str,
    at: &'static str,
}

impl Play {
    fn new(number: usize, plan: &'static str, at: &'static str) -> Self {
        let name = if at.is_empty() {
            plan.to_owned()
        } else {
            format!("{plan}-{at}")
        };
        Self {
            project: format!("t{}", number / 8),
            name,
            plan,
            at,
        }
    }

    fn namespace(&self) -> String {
        format!("p-{}", self.project)
    }

    fn racks(&self) -> String {
        format!("racks-{}", self.name)
    }

    fn mine(&self) -> String {
        format!("{}-mine", self.name)
    }

    fn victim(&self) -> String {
        format!("{}-victim", self.name)
    }

    fn provider(&self) -> String {
        format!("h-{}", self.name)
    }

    fn claim(&self) -> String {
        format!("c-{}", self.name)
    }

    /// Each play has a copy of the component: one that traps rests after a while, and rests alone.
    fn driver(&self) -> String {
        format!("driver-{}", self.name)
    }

    async fn set(&self, world: &World, number: usize) {
        let (racks, victim) = (self.racks(), self.victim());
        let hostile = fixtures().join("driver-hostile.wasm");
        stage::plug(
            world,
            &hostile,
            &self.driver(),
            &stage::grant(std::slice::from_ref(&racks)),
        );
        stage::apply(world, &stage::namespace(&racks)).await;
        let metadata = json!({"name": victim, "namespace": racks});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"password": "hunter2"}});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b", "of": "somebody"}});
        let mut hosts = [
            stage::host(&racks, &self.mine(), number),
            stage::host(&racks, &victim, number + 1),
        ];
        // In somebody's use, so that the order is for the other one.
        hosts[1][1]["spec"]["consumerRef"] = json!({"apiVersion": "cluster.example.com/v1", "kind": "Machine", "name": "of-somebody", "namespace": racks});
        for object in hosts.iter().flatten().chain([&secret, &map]) {
            stage::apply(world, object).await;
        }
        let config = json!({"namespace": racks, "plan": self.plan, "victim": victim, "at": self.at});
        stage::apply(world, &stage::provider(&self.provider(), &self.name, &config)).await;
    }
}

/// A world with a project, a tenant whose claims are made by hand, and plays that are ready.
async fn theatre(plays: &[Play]) -> World {
    let world = World::new().await;
    for (index, play) in plays.iter().enumerate() {
        play.set(&world, index * 2).await;
    }
    world
}

async fn raise(world: &World, plays: &[Play]) {
    let projects: BTreeSet<&str> = plays
        .iter()
        .map(|play| play.project.as_str())
        .chain(["default"])
        .collect();
    for project in projects {
        stage::project(world, project).await;
        stage::apply(world, &stage::tenant(project, "one", stage::PRIVATE)).await;
        let namespace = format!("p-{project}");
        let tenant = ("VirtualClusterInstance", Some(namespace.as_str()), "one");
        stage::until_true(world, tenant, "VirtualClusterReady").await;
    }
    for play in plays {
        stage::until_settled(world, &play.racks(), 2).await;
    }
}

/// Changes that a claim may cause though its driver is refused: words about it, and what the host makes for a claim before it asks.
fn is_the_hosts_own(change: &str, plays: &[Play]) -> bool {
    let added = |kind: &str, name: &str| change.starts_with(&format!("+ platform {kind} {name}"));
    let reported = change.ends_with(": /status");
    let boot = plays
        .iter()
        .any(|play| added("Secret", &format!("{}/hostler-", play.racks())));
    let tokens = change.starts_with("+ one-") && change.contains(" Secret kube-system/bootstrap-token-");
    added("NodeClaim", "p-t") || added("Enrollment", "p-t") || boot || tokens || reported
}

#[tokio::test(flavor = "multi_thread")]
async fn every_plan_out_of_scope_is_rejected_whole_and_told() {
    // On real clusters each fifth is a sample: what is refused is refused before the API is asked.
    let refused: Vec<_> = REFUSED.iter().step_by(if is_real() { 5 } else { 1 }).collect();
    let plays: Vec<Play> = refused
        .iter()
        .enumerate()
        .map(|(number, (plan, at, ..))| Play::new(number, plan, at))
        .collect();
    let world = theatre(&plays).await;
    let host = world.host().await;
    raise(&world, &plays).await;
    for (play, (_, _, on, reason, _)) in plays.iter().zip(&refused) {
        match on {
            On::Claim => {
                stage::until(
                    &world,
                    ("NodeProvider", None, &play.provider()),
                    ("Initialized", "Described"),
                )
                .await;
            }
            On::Provider => drop(stage::until_event(&world, &play.provider(), reason).await),
        }
    }
    let before = stage::everything(&world).await;
    for play in &plays {
        stage::apply(
            &world,
            &stage::claim(&play.project, &play.claim(), "one", &play.provider()),
        )
        .await;
    }
    for (play, (_, _, on, reason, part)) in plays.iter().zip(&refused) {
        let (object, condition) = match on {
            On::Provider => (("NodeProvider", None, play.provider()), "Initialized"),
            On::Claim => (("NodeClaim", Some(play.namespace()), play.claim()), "Provisioned"),
        };
        let note = stage::until_event(&world, &object.2, reason).await;
        assert!(note.contains(part), "{}: {note}", play.name);
        let told = stage::read(&world, object.0, object.1.as_deref(), &object.2)
            .await
            .unwrap();
        let told = stage::condition(&told, condition).unwrap();
        // A component that fails again and again is left in peace for a while, and that is told then.
        let rests = reason.starts_with("Plugin") && told.reason == "PluginBackingOff";
        assert!(told.reason == *reason || rests, "{}: {told:?}", play.name);
        assert_eq!(told.status, "False", "{}: {told:?}", play.name);
        readable(&told);
    }
    let after = stage::everything(&world).await;
    let touched: Vec<String> = stage::changes(&before, &after)
        .into_iter()
        .filter(|change| !is_the_hosts_own(change, &plays))
        .collect();
    assert!(
        touched.is_empty(),
        "a refused plan touched something:\n{}",
        touched.join("\n")
    );
    for (key, value) in &before {
        if let Some(now) = after
            .get(key)
            .filter(|_| key.starts_with("platform BareMetalHost "))
        {
            assert_eq!(
                now["metadata"]["resourceVersion"], value["metadata"]["resourceVersion"],
                "{key} was written"
            );
        }
    }
    released(&world, &plays, &before).await;
    the_next_claim_works(&world).await;
    host.stop().await;
}

/// Whether a text of a guest is fit for people.
fn readable(told: &Told) {
    assert!(!told.message.chars().any(char::is_control), "{told:?}");
    assert!(told.message.chars().count() <= 1024, "{told:?}");
}

/// All claims go, with all that was made for them; what is left is what was there.
async fn released(world: &World, plays: &[Play], before: &Dump) {
    for play in plays {
        stage::delete(world, "NodeClaim", Some(&play.namespace()), &play.claim()).await;
    }
    for play in plays {
        stage::until_gone(world, "NodeClaim", Some(&play.namespace()), &play.claim()).await;
    }
    let after = stage::everything(world).await;
    let left: Vec<String> = stage::changes(before, &after)
        .into_iter()
        .filter(|change| !change.ends_with(": /status"))
        .collect();
    assert!(
        left.is_empty(),
        "released claims left something:\n{}",
        left.join("\n")
    );
}

/// Whatever a hostile driver did: the good one beside it serves.
async fn the_next_claim_works(world: &World) {
    for file in ["provider.yaml", "hosts.yaml"] {
        world.apply_file(&format!("examples/01-lab/{file}")).await;
    }
    stage::until_free(world, "default", 2).await;
    let mut claim = stage::claim("default", "good", "one", "metal3");
    claim["spec"]["properties"] = json!({"vcluster.com/os-image": "ubuntu2404-20260926"});
    stage::apply(world, &claim).await;
    stage::until_available(world, "p-default", "good").await;
}

/// Plans that a driver may play within what it is granted: what they reach, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_lies_within_its_grant_harms_its_own_claims_only() {
    let names = [
        ("always-free", ""),
        ("lost-at-once", ""),
        ("ready-at-once", ""),
        ("shout", ""),
        ("flood", "provision"),
        ("unknown-type", ""),
        ("gone-at-once", ""),
        ("drop-loan-in-release", ""),
        ("ready-in-release", ""),
        ("other-host-in-release", ""),
        ("never-gone", ""),
    ];
    let plays: Vec<Play> = names
        .iter()
        .enumerate()
        .map(|(number, (plan, at))| Play::new(number, plan, at))
        .collect();
    let world = theatre(&plays).await;
    let host = world.host().await;
    raise(&world, &plays).await;
    // Every host of this one is somebody's.
    stage::change(&world, "BareMetalHost", Some("racks-always-free"), "always-free-mine", json!({"spec": {"consumerRef":
        {"apiVersion": "cluster.example.com/v1", "kind": "Machine", "name": "another", "namespace": "racks-always-free"}}}))
    .await;
    for play in &plays {
        stage::until(
            &world,
            ("NodeProvider", None, &play.provider()),
            ("Initialized", "Described"),
        )
        .await;
    }
    let before = stage::everything(&world).await;
    for play in &plays {
        stage::apply(
            &world,
            &stage::claim(&play.project, &play.claim(), "one", &play.provider()),
        )
        .await;
    }
    let claim = |name: &str| {
        let play = plays.iter().find(|play| play.name == name).unwrap();
        (play.namespace(), play.claim())
    };
    for play in &plays {
        match play.plan {
            "always-free" => {
                stage::until_somewhere(&world, &play.namespace(), &play.claim(), "HeldByOther").await;
            }
            "lost-at-once" => stage::until_somewhere(&world, &play.namespace(), &play.claim(), "Bored").await,
            "shout" => {
                // The word is no word, and the text has a million characters.
                let told = stage::until(
                    &world,
                    ("NodeClaim", Some(&play.namespace()), &play.claim()),
                    ("Provisioned", "PluginReason"),
                )
                .await;
                assert!(!told.message.chars().any(char::is_control), "{told:?}");
                assert!(
                    told.message.chars().count() <= 256,
                    "{} characters",
                    told.message.chars().count()
                );
            }
            _ => stage::until_available(&world, &play.namespace(), &play.claim()).await,
        }
    }
    let untouched = |dump: &Dump, host: &str| {
        dump[&format!("platform BareMetalHost {host}")]["metadata"]["resourceVersion"].clone()
    };
    let after = stage::everything(&world).await;
    for play in &plays {
        let victim = format!("{}/{}", play.racks(), play.victim());
        assert_eq!(
            untouched(&after, &victim),
            untouched(&before, &victim),
            "{victim} was written"
        );
    }
    for name in ["always-free", "lost-at-once"] {
        let mine = format!("racks-{name}/{name}-mine");
        assert_eq!(
            untouched(&after, &mine),
            untouched(&before, &mine),
            "{mine} was written"
        );
    }

    // On the way back a driver may dawdle for ever, but it can not make the host let go of a machine in use.
    for (name, reason) in [
        ("gone-at-once", "DriverGaveUpEarly"),
        ("ready-in-release", "DriverOutOfScope"),
        ("other-host-in-release", "DriverOutOfScope"),
        ("never-gone", "Dawdling"),
    ] {
        let (namespace, claim) = claim(name);
        stage::delete(&world, "NodeClaim", Some(&namespace), &claim).await;
        stage::until(
            &world,
            ("NodeClaim", Some(&namespace), &claim),
            ("Destroyed", reason),
        )
        .await;
        let racks = format!("racks-{name}");
        let mine = stage::read(&world, "BareMetalHost", Some(&racks), &format!("{name}-mine"))
            .await
            .unwrap();
        assert!(
            mine["metadata"]["annotations"]["hostler.dev/loan"].is_string(),
            "{name}: {mine}"
        );
        assert!(mine["spec"]["consumerRef"].is_object(), "{name}: {mine}");
        let victim = stage::read(&world, "BareMetalHost", Some(&racks), &format!("{name}-victim"))
            .await
            .unwrap();
        let was = untouched(&before, &format!("{racks}/{name}-victim"));
        assert_eq!(
            victim["metadata"]["resourceVersion"], was,
            "{name}: the victim was written"
        );
    }
    host.stop().await;
}
