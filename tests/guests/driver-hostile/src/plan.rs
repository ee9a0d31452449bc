//! What the driver tries: a table, and how each entry bends a good answer.

use std::hint::black_box;

use hostler_sdk::driver::{
    Access, Availability, Description, KindUse, Loan, Machine, NodeType, Order, Outcome, Plan, Preparation,
    Role,
};
use hostler_sdk::{Object, ObjectRef, Reason, log};
use serde_json::{Value, json};

/// Every plan: its name, the function in which it strikes, and what it tries.
pub const PLANS: &[(&str, &str, &str)] = &[
    ("none", "-", "nothing: drives hosts in a plain way"),
    (
        "other-host",
        "provision",
        "a loan on the host named by hostile/victim",
    ),
    (
        "two-hosts",
        "provision",
        "the order's own host, and the victim's as well",
    ),
    (
        "other-secret",
        "provision",
        "the Secret named by hostile/victim as userData",
    ),
    (
        "other-namespace-secret",
        "provision",
        "the boot Secret's name in namespace kube-system as userData",
    ),
    ("bmc-address", "provision", "a loan at /spec/bmc/address"),
    (
        "bmc-credentials",
        "provision",
        "a loan at /spec/bmc/credentialsName",
    ),
    ("whole-spec", "provision", "a loan that takes /spec away"),
    ("status", "provision", "a loan in /status"),
    ("finalizers", "provision", "a loan at /metadata/finalizers"),
    (
        "owner-references",
        "provision",
        "a loan at /metadata/ownerReferences",
    ),
    (
        "loan-record",
        "provision",
        "a loan at the annotation hostler.dev/loan",
    ),
    ("other-label", "provision", "a loan at a label outside its prefix"),
    ("no-patch", "provision", "a loan whose patch is a list"),
    (
        "cluster-role-binding",
        "provision",
        "owns a ClusterRoleBinding to cluster-admin",
    ),
    (
        "existing-secret",
        "provision",
        "owns the Secret named by hostile/victim, which exists",
    ),
    (
        "existing-config-map",
        "provision",
        "owns the ConfigMap named by hostile/victim, which exists, in a kind it may make",
    ),
    ("pod", "provision", "owns a Pod that mounts the node's disk"),
    ("crd", "provision", "owns a CustomResourceDefinition"),
    ("project", "provision", "owns a Project of management.loft.sh"),
    ("no-object", "provision", "owns a text"),
    (
        "see-secret",
        "provision",
        "wants to see the Secret named by hostile/victim",
    ),
    ("gone-in-provision", "provision", "says gone before it has begun"),
    ("lost-at-once", "provision", "gives every machine up"),
    ("ready-at-once", "provision", "says ready before the machine runs"),
    (
        "other-identity",
        "provision",
        "says ready with the victim's address, and a provider id full of control characters",
    ),
    ("big-memo", "provision", "leaves a megabyte in its memo"),
    (
        "big-answer",
        "provision",
        "answers with 8 MiB: less than its memory, more than an answer may be",
    ),
    (
        "shout",
        "provision",
        "a step and a message of a megabyte with control characters",
    ),
    (
        "gone-at-once",
        "release",
        "says gone while the tenant's image is on the disk",
    ),
    ("never-gone", "release", "never lets go"),
    ("ready-in-release", "release", "says ready on the way back"),
    (
        "drop-loan-in-release",
        "release",
        "gives the loan back before the host is clean",
    ),
    (
        "other-host-in-release",
        "release",
        "a loan on the host named by hostile/victim, on the way back",
    ),
    (
        "other-node-name",
        "prepare",
        "takes the node name in hostile/victim",
    ),
    ("bad-node-name", "prepare", "takes a node name that is no name"),
    (
        "other-boot-namespace",
        "prepare",
        "has the boot Secret put into kube-system",
    ),
    (
        "wrong-role",
        "describe",
        "calls Secrets machines, and ClusterRoles its product",
    ),
    ("wrong-access", "describe", "wants to manage BareMetalHosts"),
    (
        "other-namespace",
        "describe",
        "names kube-system, which its provider does not",
    ),
    (
        "built-in-property",
        "describe",
        "a type that calls itself another type",
    ),
    (
        "dotted-type",
        "describe",
        "a type named victim.gpu, to be found under another provider",
    ),
    ("no-schema", "describe", "a config schema that is none"),
    (
        "always-free",
        "machine-of",
        "calls every host free, whoever has it",
    ),
    (
        "unknown-type",
        "machine-of",
        "says that a host serves a type which it never described",
    ),
    ("echo", "any", "keeps everything that it saw in its memo"),
    (
        "gossip",
        "any",
        "tells everybody where the machine is managed from, and by which Secret",
    ),
    ("loop", "any", "never ends"),
    ("trap", "any", "panics"),
    ("recurse", "any", "overflows its stack"),
    ("eat", "any", "takes all the memory there is"),
    ("flood", "any", "writes the log full, then goes on"),
];

/// What this call is about to try.
pub(crate) struct Intent {
    plan: String,
    victim: String,
    at: String,
    namespace: String,
}

impl Intent {
    pub(crate) fn of_provider(provider: &Object) -> Self {
        let config = |key: &str| provider.at("/spec/driver/config")?.get(key)?.as_str();
        let property = |key: &str| {
            provider
                .at("/spec/properties")?
                .get(format!("hostile/{key}"))?
                .as_str()
        };
        let get = |key: &str| {
            config(key)
                .or_else(|| property(key))
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            plan: get("plan"),
            victim: get("victim"),
            at: get("at"),
            namespace: String::new(),
        }
    }

    pub(crate) fn of_order(order: &Order) -> Self {
        let mut intent = Self::of_provider(&order.provider);
        for (place, key) in [
            (&mut intent.plan, "hostile/plan"),
            (&mut intent.victim, "hostile/victim"),
            (&mut intent.at, "hostile/at"),
        ] {
            if let Some(value) = order.properties.get(key) {
                value.clone_into(place);
            }
        }
        intent.namespace = order
            .machine
            .as_ref()
            .and_then(|machine| machine.namespace.clone())
            .unwrap_or_default();
        intent
    }

    /// The plans that are about what a driver sees.
    pub(crate) fn repeat_what_was_seen(&self, order: &Order, seen: &[Object], plan: &mut Plan) {
        if self.plan == "echo" {
            let all = [&order.claim, &order.provider].into_iter().chain(seen);
            plan.memo = all.map(|object| format!("{}\n", object.value())).collect();
        }
        if self.plan == "gossip" {
            let told = |key: &str| seen.first().and_then(|host| host.text(key)).unwrap_or_default();
            let text = format!(
                "{} opens {}",
                told("/spec/bmc/credentialsName"),
                told("/spec/bmc/address")
            );
            plan.outcome = Outcome::working("Gossip", text);
        }
    }

    /// The plans that are about the call and not about the answer.
    #[allow(clippy::panic, reason = "that is what this plan is for")]
    pub(crate) fn misbehave(&self, function: &str) {
        let at = if self.at.is_empty() { "provision" } else { &self.at };
        if at != function {
            return;
        }
        match self.plan.as_str() {
            "loop" => loop {
                black_box(&self.plan);
            },
            "trap" => panic!("this driver panics, as its plan asks"),
            "recurse" => {
                black_box(deeper(0));
            }
            "eat" => {
                let mut eaten = Vec::new();
                loop {
                    eaten.push(black_box(vec![1_u8; 1 << 20]));
                }
            }
            "flood" => (0..10_000).for_each(|line| log::error(&format!("{line}: {}", "x".repeat(2000)))),
            _ => {}
        }
    }

    pub(crate) fn bend_description(&self, mut description: Description) -> Description {
        let secret = |role, access| KindUse {
            api_version: "v1".to_owned(),
            kind: "Secret".to_owned(),
            namespace: description.uses[0].namespace.clone(),
            access,
            role,
            selector: String::new(),
        };
        match self.plan.as_str() {
            "wrong-role" => {
                let roles = KindUse {
                    api_version: "rbac.authorization.k8s.io/v1".to_owned(),
                    kind: "ClusterRole".to_owned(),
                    ..secret(Role::Product, Access::Manage)
                };
                let secrets = secret(Role::Machine, Access::Read);
                description.uses.extend([secrets, roles]);
            }
            "wrong-access" => description.uses[0].access = Access::Manage,
            "other-namespace" => description.uses[0].namespace = "kube-system".to_owned(),
            "built-in-property" => {
                description.node_types[0].json =
                    json!({"properties": {"vcluster.com/node-type": "gpu-server"}});
            }
            "dotted-type" => {
                let stolen = NodeType {
                    name: "victim.gpu".to_owned(),
                    ..description.node_types[0].clone()
                };
                description.node_types.push(stolen);
            }
            "no-schema" => description.config_schema = json!("none"),
            _ => {}
        }
        description
    }

    pub(crate) fn bend_machine(&self, mut machine: Machine) -> Machine {
        match self.plan.as_str() {
            "always-free" => machine.availability = Availability::Free,
            "unknown-type" => machine.node_types.push("crown-jewels".to_owned()),
            _ => {}
        }
        machine
    }

    pub(crate) fn bend_preparation(&self, mut preparation: Preparation) -> Preparation {
        match self.plan.as_str() {
            "other-node-name" => preparation.node_name.clone_from(&self.victim),
            "bad-node-name" => preparation.node_name = "../kube-system\n".to_owned(),
            "other-boot-namespace" => preparation.boot_namespace = "kube-system".to_owned(),
            _ => {}
        }
        preparation
    }

    pub(crate) fn bend_plan(&self, function: &str, plan: Plan) -> Plan {
        let strikes = PLANS
            .iter()
            .any(|(name, at, _)| *name == self.plan && *at == function);
        if strikes { self.struck(plan) } else { plan }
    }

    fn struck(&self, mut plan: Plan) -> Plan {
        match self.plan.as_str() {
            "other-host" | "other-host-in-release" => plan.loans.iter_mut().for_each(|loan| self.aim(loan)),
            "two-hosts" => {
                let mut second = plan.loans.clone();
                second.iter_mut().for_each(|loan| self.aim(loan));
                plan.loans.extend(second);
            }
            "other-secret" => patch(&mut plan, json!({"spec": {"userData": {"name": self.victim}}})),
            "other-namespace-secret" => patch(&mut plan, json!({"spec": {"userData": {"namespace": "kube-system"}}})),
            "bmc-address" => patch(&mut plan, json!({"spec": {"bmc": {"address": "redfish://198.51.100.1/1"}}})),
            "bmc-credentials" => patch(&mut plan, json!({"spec": {"bmc": {"credentialsName": self.victim}}})),
            "whole-spec" => plan.loans.iter_mut().for_each(|loan| loan.patch = json!({"spec": null})),
            "status" => patch(&mut plan, json!({"status": {"provisioning": {"state": "available"}}})),
            "finalizers" => patch(&mut plan, json!({"metadata": {"finalizers": []}})),
            "owner-references" => {
                let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": self.victim, "uid": "1"});
                patch(&mut plan, json!({"metadata": {"ownerReferences": [owner]}}));
            }
            "loan-record" => patch(&mut plan, json!({"metadata": {"annotations": {"hostler.dev/loan": null}}})),
            "other-label" => patch(&mut plan, json!({"metadata": {"labels": {"example.com/type": "cpu-server"}}})),
            "no-patch" => plan.loans.iter_mut().for_each(|loan| loan.patch = json!(["spec"])),
            "cluster-role-binding" => plan.owned.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "hostile"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}],
            })),
            "existing-secret" => plan.owned.push(self.object("v1", "Secret", json!({"stringData": {"password": "x"}}))),
            "existing-config-map" => plan.owned.push(self.object("v1", "ConfigMap", json!({"data": {"a": "b"}}))),
            "pod" => {
                let volume = json!({"name": "disk", "hostPath": {"path": "/"}});
                let spec = json!({"containers": [{"name": "a", "image": "a"}], "volumes": [volume]});
                plan.owned.push(self.object("v1", "Pod", json!({"spec": spec})));
            }
            "crd" => plan.owned.push(json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "nodeclaims.management.loft.sh"},
            })),
            "project" => plan.owned.push(json!({
                "apiVersion": "management.loft.sh/v1",
                "kind": "Project",
                "metadata": {"name": "default"},
                "spec": {},
            })),
            "no-object" => plan.owned.push(json!("no object at all")),
            "see-secret" => plan.wants.push(ObjectRef {
                api_version: "v1".to_owned(),
                kind: "Secret".to_owned(),
                namespace: Some(self.namespace.clone()),
                name: self.victim.clone(),
            }),
            "gone-in-provision" => plan.outcome = Outcome::Gone,
            "lost-at-once" => plan.outcome = Outcome::Lost(Reason::new("Bored", "this machine is not good enough")),
            "ready-at-once" | "ready-in-release" => plan.outcome = Outcome::Ready(Default::default()),
            "other-identity" => {
                plan.outcome = Outcome::Ready(hostler_sdk::driver::Identity {
                    provider_id: Some("hostile://\u{1b}[31m\n".to_owned()),
                    addresses: vec![self.victim.clone(), "not an address".to_owned()],
                });
            }
            "big-memo" => plan.memo = "x".repeat(1 << 20),
            "big-answer" => plan.memo = "x".repeat(8 << 20),
            "shout" => plan.outcome = Outcome::working("not a word", "\u{1b}[31mNO\n".repeat(200_000)),
            "gone-at-once" | "drop-loan-in-release" => {
                plan.loans.clear();
                if self.plan == "gone-at-once" {
                    plan.outcome = Outcome::Gone;
                }
            }
            "never-gone" => plan.outcome = Outcome::working("Dawdling", "not yet"),
            _ => {}
        }
        plan
    }

    fn aim(&self, loan: &mut Loan) {
        loan.target.name.clone_from(&self.victim);
    }

    fn object(&self, api_version: &str, kind: &str, mut rest: Value) -> Value {
        rest["apiVersion"] = json!(api_version);
        rest["kind"] = json!(kind);
        rest["metadata"] = json!({"name": self.victim, "namespace": self.namespace});
        rest
    }
}

fn patch(plan: &mut Plan, more: Value) {
    plan.loans
        .iter_mut()
        .for_each(|loan| lay(&mut loan.patch, more.clone()));
}

fn lay(target: &mut Value, more: Value) {
    match (target, more) {
        (Value::Object(target), Value::Object(more)) => {
            more.into_iter()
                .for_each(|(key, value)| lay(target.entry(key).or_insert(Value::Null), value));
        }
        (target, more) => *target = more,
    }
}

fn deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX {
        depth
    } else {
        deeper(depth + 1) + frame[7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Plan {
        let host = |name: &str| ObjectRef {
            api_version: "metal3.io/v1alpha1".to_owned(),
            kind: "BareMetalHost".to_owned(),
            namespace: Some("racks".to_owned()),
            name: name.to_owned(),
        };
        let patch = json!({"spec": {"online": true, "userData": {"name": "boot", "namespace": "racks"}}});
        Plan::new(Outcome::working("Installing", "the host is being installed"))
            .borrowing(host("mine"), patch)
    }

    #[test]
    fn every_plan_of_the_answer_changes_the_answer() {
        for (name, at, _) in PLANS
            .iter()
            .filter(|(_, at, _)| ["provision", "release"].contains(at))
        {
            let intent = Intent {
                plan: (*name).to_owned(),
                victim: "victim".to_owned(),
                at: String::new(),
                namespace: "racks".to_owned(),
            };
            assert_ne!(intent.bend_plan(at, good()), good(), "{name}");
        }
    }
}
