//! The end of the seed's transcript, inside the tenant: GPUs, four pods, and where each of them comes to be.

use super::{TENANT, clean_up};
use crate::user::kubectl::{Kubectl, file};
use crate::user::lab::Lab;
use crate::user::table::Table;

const PODS: &str = "examples/03-gpu-pods/pods.yaml";
/// What the seed's `kubectl logs gpu-smi` printed.
const CARD: &str = "| 1 Tesla-K80 Off | 00000001:00:00.0 Off | Off |";

#[test]
fn the_seeds_pods_are_placed_where_the_seed_says() {
    let lab = Lab::start("");
    lab.furnish();
    let platform = lab.kubectl();
    platform.run(&format!("apply -f {}", file(TENANT)));
    platform.run(
        "wait --for=condition=NodesProvisioned virtualclusterinstances.management.loft.sh/one -n p-default --timeout=120s",
    );
    let tenant = lab.tenant("default", "one");
    assert_eq!(
        tenant
            .shell(r"kubectl get nodes -o custom-columns='NAME:.metadata.name,GPU:.status.allocatable.nvidia\.com/gpu,CPU:.status.capacity.cpu'")
            .out,
        "NAME           GPU      CPU\nbare-metal-1   <none>   32\nbare-metal-2   4        32\n"
    );
    // What servers announce costs nothing: the node types stay as in the seed.
    let types = platform.table("get nodetypes.management.loft.sh");
    assert_eq!(types.of(&["COST"]), [["0"], ["0"]]);

    assert_eq!(
        tenant.run(&format!("apply -f {}", file(PODS))),
        "pod/gpu-ok created\npod/gpu-too-big created\npod/cpu-only created\npod/gpu-smi created\n"
    );
    tenant.until("get pods -o wide", |text| {
        let columns = ["NAME", "READY", "STATUS", "RESTARTS", "NODE"];
        Table::read(text).of(&columns)
            == [
                ["cpu-only", "1/1", "Running", "0", "bare-metal-1"],
                ["gpu-ok", "1/1", "Running", "0", "bare-metal-2"],
                ["gpu-smi", "0/1", "Completed", "0", "bare-metal-2"],
                ["gpu-too-big", "0/1", "Pending", "0", "<none>"],
            ]
    });
    let table = tenant.table("get pods -o wide");
    assert_eq!(
        table.headers,
        [
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "AGE",
            "IP",
            "NODE",
            "NOMINATED NODE",
            "READINESS GATES"
        ]
    );
    let mut addresses: Vec<String> = table.of(&["IP"]).iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(
        addresses.pop().as_deref(),
        Some("<none>"),
        "what runs nowhere has no address"
    );
    addresses.dedup();
    assert_eq!(addresses.len(), 3, "{addresses:?}");

    logs(&tenant);
    waiting(&tenant);
    ending(&tenant);
    clean_up(&lab);
}

fn logs(tenant: &Kubectl) {
    let said = tenant.run("logs gpu-smi");
    assert_eq!(said.lines().count(), 6, "{said}");
    assert_eq!(said.lines().nth(3), Some(CARD));
    assert_eq!(tenant.run("logs gpu-smi --tail=3").lines().next(), Some(CARD));
    assert_eq!(tenant.run("logs -f gpu-smi"), said, "nothing follows the end");
    let stamped = tenant.run("logs gpu-smi --tail=1 --timestamps");
    assert!(stamped.contains("Z +-----"), "{stamped}");
    assert_eq!(
        tenant.run("logs gpu-ok"),
        "",
        "who is not told to say anything says nothing"
    );
    let refused = tenant.try_run("logs gpu-smi --previous");
    assert_eq!(
        refused.err,
        "Error from server (BadRequest): previous terminated container \"main\" in pod \"gpu-smi\" not found\n"
    );
}

fn waiting(tenant: &Kubectl) {
    let why = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is \
               not helpful for scheduling.";
    let told = tenant.shell("kubectl describe pod gpu-too-big | tail -2").out;
    let told: Vec<&str> = told
        .lines()
        .last()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(
        (told[0], told[1], told[3]),
        ("Warning", "FailedScheduling", "default-scheduler")
    );
    assert_eq!(told[4..].join(" "), why);
    let condition =
        r#"kubectl get pod gpu-too-big -o jsonpath='{.status.conditions[?(@.type=="PodScheduled")].reason}'"#;
    assert_eq!(tenant.shell(condition).out, "Unschedulable");
    assert!(
        tenant
            .run("describe pod gpu-ok")
            .contains("Successfully assigned default/gpu-ok to bare-metal-2")
    );
}

/// A GPU that is given back is there for others; a container that keeps failing is started again.
fn ending(tenant: &Kubectl) {
    let all = tenant.shell(
        "kubectl apply -f - <<'END'\n\
         apiVersion: v1\nkind: Pod\nmetadata: {name: greedy}\nspec:\n  containers:\n  - {name: main, image: \"i:1\", resources: {limits: {nvidia.com/gpu: 4}}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {name: failing, annotations: {lab.hostler.dev/exit-code: \"2\", lab.hostler.dev/logs: boom}}\nspec:\n  containers:\n  - {name: main, image: \"i:1\"}\nEND",
    );
    assert_eq!(all.code, 0, "{all:?}");
    tenant.until("get pod greedy -o wide", |text| {
        Table::read(text).of(&["STATUS", "NODE"]) == [["Pending", "<none>"]]
    });
    // The one that has ended gave its GPU back already.
    assert!(
        tenant
            .run("delete pod gpu-ok")
            .starts_with("pod \"gpu-ok\" deleted")
    );
    tenant.until("get pod greedy -o wide", |text| {
        Table::read(text).of(&["STATUS", "NODE"]) == [["Running", "bare-metal-2"]]
    });
    tenant.until("get pod failing", |text| text.contains("CrashLoopBackOff"));
    assert_eq!(tenant.run("logs failing --previous"), "boom\n");
}
