//! Walks the transcript of the reference laboratory: the same commands, in the same order, print the same columns and states.

mod pods;

use std::collections::BTreeMap;

use crate::user::kubectl::{Kubectl, file, is_time};
use crate::user::lab::Lab;
use crate::user::table::Table;
use crate::user::until;

const TENANT: &str = "examples/01-lab/tenant.yaml";
const NETWORK: [&str; 3] = [
    "metal3.vcluster.com/ip-address",
    "metal3.vcluster.com/gateway",
    "metal3.vcluster.com/dns-servers",
];

#[test]
fn the_seeds_transcript_can_be_typed_as_it_stands() {
    let lab = Lab::start("");
    lab.furnish();
    let kubectl = lab.kubectl();
    before(&kubectl);
    let hosts = hosts(&kubectl);

    let names = apply_and_watch(&kubectl);
    final_state(&kubectl);
    conditions(&kubectl);
    inside_the_tenant(&lab);
    described(&kubectl, &names);
    nothing_changes_where_nothing_was_asked(&kubectl);
    other_verbs(&kubectl, &names);

    clean_up(&lab);
    assert_eq!(self::hosts(&kubectl), hosts, "byte for byte as they came");

    // A second, identical run, as in the seed: same place, same address, other claims.
    let again = apply_and_watch(&kubectl);
    assert!(
        names.iter().all(|name| !again.contains(name)),
        "{names:?} {again:?}"
    );
    clean_up(&lab);
    assert_eq!(self::hosts(&kubectl), hosts);
}

fn before(kubectl: &Kubectl) {
    let table = kubectl.table("get nodeproviders.management.loft.sh");
    assert_eq!(table.headers, ["NAME", "CREATED AT"]);
    assert_eq!(table.of(&["NAME"]), [["metal3"]]);
    assert!(is_time(table.of(&["CREATED AT"])[0][0]), "{table:?}");

    kubectl.until("get nodetypes.management.loft.sh", |text| {
        Table::read(text)
            .of(&["TOTAL"])
            .iter()
            .filter(|row| row[0] == "1")
            .count()
            == 2
    });
    let table = kubectl.table("get nodetypes.management.loft.sh");
    assert_eq!(
        table.headers,
        [
            "NAME",
            "TOTAL",
            "CLAIMED",
            "PROVIDER",
            "COST",
            "PHASE",
            "CREATED AT"
        ]
    );
    assert_eq!(
        table.of(&["NAME", "TOTAL", "CLAIMED", "PROVIDER", "COST", "PHASE"]),
        [
            ["metal3.cpu-server", "1", "0", "metal3", "0", "Available"],
            ["metal3.gpu-server", "1", "0", "metal3", "0", "Available"],
        ]
    );

    let table = kubectl.table("get bmh -A --show-labels");
    assert_eq!(
        table.of(&["NAMESPACE", "NAME", "STATE", "ONLINE", "LABELS"]),
        [
            ["default", "bare-metal-1", "available", "false", "role=cpu"],
            ["default", "bare-metal-2", "available", "false", "role=gpu"],
        ]
    );
    assert_eq!(table.of(&["AGE"]).len(), 2);

    let said = kubectl.try_run("get virtualclusterinstances.management.loft.sh -A");
    assert_eq!((said.code, said.err.as_str()), (0, "No resources found\n"));
}

/// Applies the seed's YAML and sees what the seed saw, in its order. Returns the names of the claims.
fn apply_and_watch(kubectl: &Kubectl) -> Vec<String> {
    // The revision of the store tells what came before what.
    let revision = "REVISION:.metadata.resourceVersion";
    let claims = kubectl.watch(&format!(
        "get nodeclaims.management.loft.sh -A -w --no-headers -o custom-columns={revision},STATUS:.status.phase,NAME:.metadata.name,TYPE:.spec.typeRef"
    ));
    let hosts = kubectl.watch(&format!(
        "get bmh -A -w --no-headers -o custom-columns={revision},STATE:.status.provisioning.state,NAME:.metadata.name,ONLINE:.spec.online"
    ));
    let plain = kubectl.watch("get nodeclaims -A -w");
    hosts.until("the watch on hosts has begun", |line| {
        line.contains("bare-metal-2")
    });
    assert_eq!(
        kubectl.run(&format!("apply -f {}", file(TENANT))),
        "networkattachmentdefinition.k8s.cni.cncf.io/br0-vcluster-one created\n\
         virtualclusterinstance.management.loft.sh/one created\n"
    );
    let waited = kubectl.run(
        "wait --for=condition=NodesProvisioned virtualclusterinstances.management.loft.sh/one -n p-default --timeout=120s",
    );
    assert_eq!(
        waited,
        "virtualclusterinstance.management.loft.sh/one condition met\n"
    );
    until("both claims are seen Available", || {
        let seen = claims.lines();
        let available = seen.iter().filter(|line| line.contains("Available")).count();
        if available >= 2 {
            Ok(())
        } else {
            Err(seen.join("\n"))
        }
    });
    let waited = kubectl
        .run("wait --for=jsonpath={.status.phase}=Available nodeclaims --all -n p-default --timeout=60s");
    assert_eq!(waited.lines().count(), 2, "{waited}");

    let claims = firsts(&claims.lines());
    let hosts = firsts(&hosts.lines());
    let names: Vec<String> = claims.keys().map(|(name, _)| name.clone()).collect();
    let names: Vec<String> = names.into_iter().fold(Vec::new(), |mut all, name| {
        if !all.contains(&name) {
            all.push(name);
        }
        all
    });
    assert_eq!(names.len(), 2, "{claims:?}");
    let at = |seen: &BTreeMap<(String, String), u64>, name: &str, state: &str| {
        *seen
            .get(&(name.to_owned(), state.to_owned()))
            .unwrap_or_else(|| panic!("{name} was never {state}: {seen:?}"))
    };
    let pending = names
        .iter()
        .map(|name| at(&claims, name, "Pending"))
        .max()
        .unwrap();
    let available = names
        .iter()
        .map(|name| at(&claims, name, "Available"))
        .min()
        .unwrap();
    for host in ["bare-metal-1", "bare-metal-2"] {
        let (begun, done) = (
            at(&hosts, host, "provisioning true"),
            at(&hosts, host, "provisioned true"),
        );
        assert!(
            pending < begun && begun < done && done < available,
            "{claims:?} {hosts:?}"
        );
    }
    // As a person would watch it.
    plain.until("the header of a watch", |line| line.starts_with("NAMESPACE"));
    for name in &names {
        plain.until("Pending in a watch", |line| {
            line.contains(name.as_str()) && line.contains("Pending")
        });
        plain.until("Available in a watch", |line| {
            line.contains(name.as_str()) && line.contains("Available")
        });
    }
    names
}

/// First revision of each (name, state) of a watch.
fn firsts(lines: &[String]) -> BTreeMap<(String, String), u64> {
    let mut seen = BTreeMap::new();
    for line in lines {
        let [revision, state, name, more] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let state = if state == "Pending" || state == "Available" {
            state.to_owned()
        } else {
            format!("{state} {more}")
        };
        seen.entry((name.to_owned(), state))
            .or_insert_with(|| revision.parse().unwrap());
    }
    seen
}

fn final_state(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run(
            "get virtualclusterinstances.management.loft.sh -A -o custom-columns=NAME:.metadata.name,PHASE:.status.phase"
        ),
        "NAME   PHASE\none    Ready\n"
    );
    let table = kubectl.table("get nodeclaims.management.loft.sh -A");
    assert_eq!(
        table.headers,
        ["NAMESPACE", "NAME", "STATUS", "VCLUSTER", "TYPE", "CREATED AT"]
    );
    let mut types: Vec<_> = table.of(&["NAMESPACE", "STATUS", "VCLUSTER", "TYPE"]);
    types.sort_unstable();
    assert_eq!(
        types,
        [
            ["p-default", "Available", "one", "metal3.cpu-server"],
            ["p-default", "Available", "one", "metal3.gpu-server"],
        ]
    );
    for row in table.of(&["NAME", "CREATED AT"]) {
        let ending = row[0].strip_prefix("one-").unwrap_or_else(|| panic!("{row:?}"));
        assert!(
            ending.len() == 5
                && ending
                    .chars()
                    .all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter)),
            "{row:?}"
        );
        assert!(is_time(row[1]), "{row:?}");
    }
    let table = kubectl.table("get bmh -A");
    assert_eq!(
        table.of(&["NAMESPACE", "NAME", "STATE", "ONLINE"]),
        [
            ["default", "bare-metal-1", "provisioned", "true"],
            ["default", "bare-metal-2", "provisioned", "true"]
        ]
    );
    kubectl.until("get nodetypes.management.loft.sh", |text| {
        Table::read(text).of(&["TOTAL", "CLAIMED"]) == [["1", "1"], ["1", "1"]]
    });
}

fn conditions(kubectl: &Kubectl) {
    let text = kubectl.run(
        "get vci one -n p-default -o jsonpath='{range .status.conditions[*]}{.type} {.status} {.lastTransitionTime}{\"\\n\"}{end}'",
    );
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let kinds: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(
        kinds,
        [
            "VirtualClusterDeployed",
            "VirtualClusterOnline",
            "VirtualClusterReady",
            "NodesProvisioned"
        ]
    );
    assert!(
        rows.iter().all(|row| row[1] == "True" && is_time(row[2])),
        "{text}"
    );
    let times: Vec<&str> = rows.iter().map(|row| row[2]).collect();
    assert!(times.is_sorted(), "they became true in this order: {text}");
}

fn inside_the_tenant(lab: &Lab) {
    let kubectl = lab.kubectl();
    let copy = lab.folder().join("tenant-one.kubeconfig");
    let said = kubectl.shell(&format!(
        "kubectl get secret vc-one -n loft-default-v-one -o jsonpath='{{.data.config}}' | base64 -d > {}",
        copy.display()
    ));
    assert_eq!(said.code, 0, "{}", said.err);
    for tenant in [
        Kubectl::new(copy, lab.folder().to_owned()),
        lab.tenant("default", "one"),
    ] {
        let table = tenant.table("get nodes -o wide -L run.ai/simulated-gpu-node-pool,workload");
        let seed = [
            "NAME",
            "STATUS",
            "VERSION",
            "INTERNAL-IP",
            "OS-IMAGE",
            "SIMULATED-GPU-NODE-POOL",
            "WORKLOAD",
        ];
        assert_eq!(
            table.of(&seed),
            [
                [
                    "bare-metal-1",
                    "Ready",
                    "v1.36.0",
                    "192.168.100.10",
                    "Ubuntu 24.04.5 LTS",
                    "",
                    "cpu"
                ],
                [
                    "bare-metal-2",
                    "Ready",
                    "v1.36.0",
                    "192.168.100.11",
                    "Ubuntu 24.04.5 LTS",
                    "default",
                    "gpu"
                ],
            ]
        );
        assert!(
            table
                .of(&["KERNEL-VERSION"])
                .iter()
                .all(|row| row[0].starts_with("6.8.0-142-generic")),
            "{table:?}"
        );
        assert_eq!(table.of(&["AGE"]).len(), 2);
    }
    let tenant = lab.tenant("default", "one");
    let table = tenant.table("get nodes -l workload=gpu,run.ai/simulated-gpu-node-pool=default");
    assert_eq!(table.of(&["NAME", "STATUS"]), [["bare-metal-2", "Ready"]]);
    let said = tenant.try_run("get nodeclaims -A");
    assert_ne!(
        said.code, 0,
        "the platform's objects are not the tenant's to see: {}",
        said.out
    );
    assert!(tenant.run("describe node bare-metal-2").contains("workload=gpu"));
    // The nodes are ours, the platform has none.
    assert_eq!(kubectl.try_run("get nodes").err, "No resources found\n");
}

fn described(kubectl: &Kubectl, names: &[String]) {
    let text = kubectl.run("describe virtualclusterinstances one -n p-default");
    for name in names {
        assert!(
            text.contains(&format!("claim {name} for pool")),
            "one event for each claim: {text}"
        );
    }
    assert!(
        text.contains("VirtualClusterReady") && !text.contains("Warning"),
        "{text}"
    );
    for name in names {
        let text = kubectl.run(&format!("describe nodeclaim {name} -n p-default"));
        for said in ["Accepted", "Bound", "MachineTaken", "NodeJoined"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(
            !text.contains("Warning"),
            "an ordinary life has no warnings: {text}"
        );
    }
    assert!(
        kubectl
            .run("describe bmh bare-metal-1 -n default")
            .contains("Provisioned")
    );
}

fn revisions(kubectl: &Kubectl) -> String {
    kubectl.run(
        "get vci,nodeclaims,nodetypes,nodeproviders,projects,osimages,enrollments,plugins -A -o jsonpath='{range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}'",
    )
}

fn nothing_changes_where_nothing_was_asked(kubectl: &Kubectl) {
    let before = revisions(kubectl);
    let applied = kubectl.run(&format!("apply -f {}", file(TENANT)));
    assert_eq!(
        applied,
        "networkattachmentdefinition.k8s.cni.cncf.io/br0-vcluster-one unchanged\n\
         virtualclusterinstance.management.loft.sh/one unchanged\n"
    );
    for name in ["project.yaml", "provider.yaml"] {
        let applied = kubectl.run(&format!("apply -f {}", file(&format!("examples/01-lab/{name}"))));
        assert!(
            applied.lines().all(|line| line.ends_with(" unchanged")),
            "{applied}"
        );
    }
    assert_eq!(kubectl.run(&format!("diff -f {}", file(TENANT))), "");
    assert_eq!(revisions(kubectl), before, "an idle host writes nothing");
}

fn other_verbs(kubectl: &Kubectl, names: &[String]) {
    let name = &names[0];
    let yaml = std::fs::read_to_string(file(TENANT)).unwrap();
    let edited = yaml.replace("user: admin", "user: ops");
    let diff = kubectl.shell(&format!("kubectl diff -f - <<'END'\n{edited}\nEND"));
    assert_eq!(diff.code, 1, "{}{}", diff.out, diff.err);
    assert!(
        diff.out.contains("-    user: admin") && diff.out.contains("+    user: ops"),
        "{}",
        diff.out
    );

    let dry = kubectl.shell(&format!(
        "kubectl apply --dry-run=server -f - <<'END'\n{edited}\nEND"
    ));
    assert!(
        dry.out
            .contains("virtualclusterinstance.management.loft.sh/one configured (server dry run)"),
        "{dry:?}"
    );

    let said = kubectl.shell(
        "KUBE_EDITOR=\"sed -i 's/user: admin/user: ops/'\" kubectl edit virtualclusterinstances one -n p-default",
    );
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "virtualclusterinstance.management.loft.sh/one edited\n"),
        "{said:?}"
    );
    assert_eq!(
        kubectl.run("get vci one -n p-default -o jsonpath={.spec.owner.user}"),
        "ops"
    );

    let applied = kubectl.run(&format!(
        "apply --server-side --force-conflicts -f {}",
        file(TENANT)
    ));
    assert!(
        applied.contains("virtualclusterinstance.management.loft.sh/one serverside-applied"),
        "{applied}"
    );
    assert_eq!(
        kubectl.run("get vci one -n p-default -o jsonpath={.spec.owner.user}"),
        "admin"
    );
    let applied = kubectl.run(&format!("apply --server-side -f {}", file(TENANT)));
    assert!(
        applied.contains("serverside-applied"),
        "no conflict with oneself: {applied}"
    );

    let said = kubectl.run(&format!("label nodeclaim {name} -n p-default team=blue"));
    assert_eq!(said, format!("nodeclaim.management.loft.sh/{name} labeled\n"));
    let table = kubectl.table("get nodeclaims -n p-default -l team=blue");
    assert_eq!(table.of(&["NAME", "STATUS"]), [[name.as_str(), "Available"]]);
    let said = kubectl.run(&format!("annotate nodeclaim {name} -n p-default note=mine"));
    assert_eq!(said, format!("nodeclaim.management.loft.sh/{name} annotated\n"));

    let text = kubectl.run("explain nodeclaims.spec");
    assert!(
        text.contains("providerRef") && text.contains("KIND:       NodeClaim"),
        "{text}"
    );
    assert!(
        kubectl
            .run("explain virtualclusterinstances.spec.template.helmRelease.values")
            .contains("<string>")
    );
    for kind in [
        "nodeprofiles",
        "nodeproviders",
        "nodetypes",
        "nodeenvironments",
        "osimages",
        "projects",
    ] {
        assert!(
            kubectl.run(&format!("explain {kind}.spec")).contains("FIELDS:"),
            "{kind}"
        );
    }
    let wrong = kubectl.shell(&format!(
        "kubectl apply -f - <<'END'\n{}\nEND",
        yaml.replace("  owner:\n", "  ownr: {}\n  owner:\n")
    ));
    assert!(wrong.err.contains("unknown field \"spec.ownr\""), "{wrong:?}");
}

fn clean_up(lab: &Lab) {
    let kubectl = lab.kubectl();
    let said =
        kubectl.run("delete virtualclusterinstances.management.loft.sh one -n p-default --timeout=120s");
    assert!(
        said.starts_with("virtualclusterinstance.management.loft.sh \"one\" deleted"),
        "{said}"
    );
    // It returned because the servers are back; nothing is waited for any more.
    let table = kubectl.table("get bmh -A");
    assert_eq!(
        table.of(&["NAME", "STATE", "ONLINE", "CONSUMER"]),
        [
            ["bare-metal-1", "available", "false", ""],
            ["bare-metal-2", "available", "false", ""]
        ]
    );
    assert_eq!(kubectl.try_run("get nodeclaims -A").err, "No resources found\n");
    assert_eq!(kubectl.try_run("get enrollments -A").err, "No resources found\n");
    let secrets = kubectl.run("get secrets -n default -o name");
    assert!(secrets.lines().all(|name| name.ends_with("-bmc")), "{secrets}");
    until("the tenant's namespace and kubeconfig are gone", || {
        let said = kubectl.try_run("get namespace loft-default-v-one");
        let file = lab.data().join("tenants/default/one.kubeconfig");
        if said.err.contains("NotFound") && !file.exists() {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    });
    // The seed deletes only the tenant; its other object goes so that the next run creates it again.
    kubectl.run("delete network-attachment-definitions br0-vcluster-one -n p-default");
    let told =
        kubectl.run("get events -n p-default -o jsonpath='{range .items[*]}{.type} {.reason}{\"\\n\"}{end}'");
    assert!(
        told.contains("Normal TenantGone") && told.contains("Normal MachineReturned"),
        "{told}"
    );
    assert!(
        !told.contains("Warning"),
        "an ordinary deletion warns of nothing: {told}"
    );
}

/// The hosts, without status and what the server counts; the seed's three annotations are there.
fn hosts(kubectl: &Kubectl) -> Vec<serde_json::Value> {
    let list: serde_json::Value = serde_json::from_str(&kubectl.run("get bmh -A -o json")).unwrap();
    let mut hosts = list["items"].as_array().unwrap().clone();
    for host in &mut hosts {
        for key in NETWORK {
            assert!(host["metadata"]["annotations"][key].is_string(), "{key}: {host}");
        }
        host.as_object_mut().unwrap().remove("status");
        for counted in ["resourceVersion", "generation", "managedFields"] {
            host["metadata"].as_object_mut().unwrap().remove(counted);
        }
    }
    hosts
}
