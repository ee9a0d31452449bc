//! The manifests of `examples/02-node-profile`: a profile on a pool, edited while its nodes run; pools that grow and shrink; allowlists.

use serde_json::Value;

use super::kubectl::{Kubectl, file};
use super::lab::{Lab, tenant_in};
use super::until;

const AUDITED: &str = "compliance.vcluster.com/audited";

#[test]
fn a_profile_follows_its_nodes_and_pools_follow_their_quantity() {
    let lab = Lab::start("");
    lab.furnish();
    let kubectl = lab.kubectl();
    let second = std::fs::read_to_string(file("examples/01-lab/hosts.yaml")).unwrap();
    let second = second
        .split("\n---\n")
        .skip(3)
        .collect::<Vec<_>>()
        .join("\n---\n");
    kubectl.apply(
        &second
            .replace("bare-metal-2", "bare-metal-3")
            .replace("00:01:02", "00:01:03")
            .replace(".11/24", ".12/24"),
    );
    lab.all_free();

    kubectl.run(&format!(
        "apply -f {}",
        file("examples/02-node-profile/profile.yaml")
    ));
    quantity(&kubectl, 1);
    let tenant = lab.tenant("default", "training");
    until("the tenant's API answers", || {
        let said = tenant.try_run("get nodes");
        if said.code == 0 { Ok(()) } else { Err(said.err) }
    });
    let taints = tenant.watch("get nodes -w --no-headers -o custom-columns=TAINTS:.spec.taints[*].key");
    all_there(&kubectl, 1);
    let before = joined_as_the_profile_says(&tenant);
    let seen = taints.lines();
    assert!(
        seen[0].contains("node.vcluster.com/bootstrap"),
        "it joined with the startup taint: {seen:?}"
    );
    drop(taints);
    edits_arrive(&kubectl, &tenant, &before);
    edits_of_the_pool_wait(&kubectl, &tenant, &before);
    grows_and_shrinks(&lab, &tenant);
    not_allowed(&lab);
}

fn node(tenant: &Kubectl, name: &str) -> Value {
    serde_json::from_str(&tenant.run(&format!("get node {name} -o json"))).unwrap()
}

/// The tenant of the example, with this quantity, through kubectl apply.
fn quantity(kubectl: &Kubectl, quantity: u64) {
    let text = std::fs::read_to_string(file("examples/02-node-profile/tenant.yaml")).unwrap();
    assert!(text.contains("quantity: 1\n"));
    kubectl.apply(&text.replace("quantity: 1\n", &format!("quantity: {quantity}\n")));
}

fn all_there(kubectl: &Kubectl, count: usize) {
    let line = "get vci training -n p-default -o jsonpath='{.status.conditions[?(@.type==\"NodesProvisioned\")].status} {.status.observedGeneration} {.metadata.generation} {.status.pools[0].available}'";
    kubectl.until(line, |text| {
        let words: Vec<&str> = text.split(' ').collect();
        words[0] == "True" && words[1] == words[2] && words[3] == count.to_string()
    });
}

fn joined_as_the_profile_says(tenant: &Kubectl) -> Value {
    let listed = tenant.table("get nodes -l vcluster.com/node-profile=gpu-training");
    let names = listed.of(&["NAME", "STATUS"]);
    assert_eq!((names.len(), names[0][1]), (1, "Ready"), "{listed:?}");
    let name = names[0][0].to_owned();
    until(
        "the startup taint is gone from the Ready node, the other one stays",
        || {
            let taints = node(tenant, &name)["spec"]["taints"].clone();
            let kinds: Vec<_> = taints
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| (one["key"].clone(), one["effect"].clone()))
                .collect();
            if kinds == [("nvidia.com/gpu".into(), "NoSchedule".into())] {
                Ok(())
            } else {
                Err(taints.to_string())
            }
        },
    );
    let node = node(tenant, &name);
    assert_eq!(node["metadata"]["labels"]["workload.vcluster.com/class"], "gpu");
    assert_eq!(
        node["metadata"]["labels"]["node-restriction.kubernetes.io/node-profile"],
        "gpu-training"
    );
    assert_eq!(
        node["metadata"]["annotations"]["ops.vcluster.com/owner"],
        "ml-platform"
    );
    assert_eq!(node["spec"]["taints"][0]["value"], "true");
    node
}

fn edits_arrive(kubectl: &Kubectl, tenant: &Kubectl, before: &Value) {
    let name = before["metadata"]["name"].as_str().unwrap();
    tenant.run(&format!("label node {name} mine=stays"));
    tenant.run(&format!("annotate node {name} note=stays"));
    tenant.run(&format!("taint node {name} mine=stays:NoSchedule"));
    kubectl.run(&format!(
        "apply -f {}",
        file("examples/02-node-profile/audited.yaml")
    ));
    tenant.until(&format!("get nodes -l {AUDITED}=true -o name"), |text| {
        text.trim() == format!("node/{name}")
    });
    kubectl.run(&format!(
        "apply -f {}",
        file("examples/02-node-profile/profile.yaml")
    ));
    until("the removed key is pruned", || {
        let node = node(tenant, name);
        if node["metadata"]["labels"].get(AUDITED).is_none() {
            Ok(())
        } else {
            Err(node["metadata"].to_string())
        }
    });
    let node = node(tenant, name);
    assert_eq!(
        node["metadata"]["uid"], before["metadata"]["uid"],
        "the same node all the time"
    );
    assert_eq!(node["metadata"]["labels"]["mine"], "stays");
    assert_eq!(node["metadata"]["annotations"]["note"], "stays");
    let mut keys: Vec<_> = node["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| taint["key"].as_str().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["mine", "nvidia.com/gpu"],
        "and the startup taint never comes back"
    );
    let enrollment = kubectl.run(&format!("get enrollment training.{name} -n p-default -o json"));
    assert!(
        enrollment.contains("gpu-training") && !enrollment.contains(AUDITED),
        "{enrollment}"
    );
}

/// What a pool says of its machines is for new claims; live ones only tell that they differ, and stop when they do not.
fn edits_of_the_pool_wait(kubectl: &Kubectl, tenant: &Kubectl, before: &Value) {
    let drift = "get nodeclaims -n p-default -o jsonpath='{.items[0].status.conditions[?(@.type==\"NotDrifted\")].status} {.items[0].status.conditions[?(@.type==\"NotDrifted\")].message}'";
    let text = std::fs::read_to_string(file("examples/02-node-profile/tenant.yaml")).unwrap();
    kubectl.apply(&text.replace(
        "quantity: 1\n",
        "quantity: 1\n                  nodeLabels: {rack: new}\n",
    ));
    kubectl.until(drift, |text| {
        text.starts_with("False") && text.contains("the pool's nodeLabels")
    });
    let name = before["metadata"]["name"].as_str().unwrap();
    let node = node(tenant, name);
    assert_eq!(node["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(node["metadata"]["labels"].get("rack"), None);
    quantity(kubectl, 1);
    kubectl.until(drift, |text| text.starts_with("True"));
}

fn grows_and_shrinks(lab: &Lab, tenant: &Kubectl) {
    let kubectl = lab.kubectl();
    quantity(&kubectl, 2);
    all_there(&kubectl, 2);
    assert_eq!(
        tenant
            .table("get nodes -l vcluster.com/node-profile=gpu-training")
            .len(),
        2
    );
    assert_eq!(kubectl.table("get nodeclaims -n p-default").len(), 2);
    quantity(&kubectl, 0);
    kubectl.until("get nodeclaims -n p-default -o name", str::is_empty);
    assert_eq!(
        tenant.try_run("get nodes").err,
        "No resources found\n",
        "no Node is left behind"
    );
    assert_eq!(kubectl.try_run("get enrollments -n p-default -o name").out, "");
    lab.all_free();
    all_there(&kubectl, 0);
    let told = kubectl.run("describe vci training -n p-default");
    assert!(!told.contains("Warning"), "{told}");
}

fn not_allowed(lab: &Lab) {
    let kubectl = lab.kubectl();
    kubectl.apply(
        "apiVersion: management.loft.sh/v1\nkind: Project\nmetadata: {name: closed}\nspec: {allowedNodeProfiles: [{name: plain}]}\n",
    );
    kubectl.until("get project closed -o jsonpath={.status.phase}", |phase| {
        phase == "Ready"
    });
    kubectl.apply(&tenant_in(
        "closed",
        "shut",
        "192.168.100.9:8443",
        "name: gpu;quantity: 1;profile: gpu-training",
    ));
    let line =
        "get nodeclaims -n p-closed -o jsonpath='{.items[0].status.reason}: {.items[0].status.message}'";
    let said = kubectl.until(line, |text| text.starts_with("ProfileNotAllowed"));
    assert!(
        said.contains("gpu-training")
            && said.contains("add {name: gpu-training} to Project closed spec.allowedNodeProfiles"),
        "{said}"
    );
    // The pool and the tenant say so, too.
    let line = "get vci shut -n p-closed -o jsonpath='{.status.pools[0].reason} {.status.conditions[?(@.type==\"NodesProvisioned\")].reason}'";
    kubectl.until(line, |text| text == "ProfileNotAllowed ProfileNotAllowed");
    nothing_ordered(&kubectl, "p-closed");
    // The remedy works as it is written.
    kubectl.run("patch project closed --type=merge -p '{\"spec\":{\"allowedNodeProfiles\":[{\"name\":\"plain\"},{\"name\":\"gpu-training\"}]}}'");
    kubectl.run("wait --for=condition=NodesProvisioned vci/shut -n p-closed --timeout=120s");
}

/// No claim of a namespace has a machine, and no host, Secret or Enrollment was touched for one.
pub(crate) fn nothing_ordered(kubectl: &Kubectl, namespace: &str) {
    let line = format!(
        "get nodeclaims -n {namespace} -o jsonpath='{{range .items[*]}}{{.metadata.name}}{{.status.machine.uid}}{{.status.order.digest}} {{end}}'"
    );
    for claim in kubectl.run(&line).split_whitespace() {
        assert!(
            claim.len() < 50,
            "a uid or a digest: something was ordered for {claim}"
        );
    }
    let enrollments = kubectl.run(&format!("get enrollments -n {namespace} -o name"));
    assert_eq!(enrollments, "");
    let consumers =
        kubectl.run("get bmh -A -o jsonpath='{range .items[*]}{.spec.consumerRef.namespace} {end}'");
    assert!(
        !consumers.split_whitespace().any(|one| one == namespace),
        "{consumers}"
    );
}
