//! Everything that people get wrong: each is a clear word on the object, nothing is ordered, and the neighbour goes on.

use super::kubectl::{Kubectl, file};
use super::lab::{Lab, tenant, tenant_in};
use super::profiles::nothing_ordered;
use super::until;

const GPU: &str =
    "name: gpu;quantity: 1;nodeTypeSelector:;  - property: vcluster.com/node-type;    value: gpu-server";
const CPU: &str =
    "name: cpu;quantity: 1;nodeTypeSelector:;  - property: vcluster.com/node-type;    value: cpu-server";

#[test]
fn every_mistake_is_told_where_it_was_made_and_orders_nothing() {
    let lab = Lab::start("");
    lab.furnish();
    let kubectl = lab.kubectl();
    kubectl.apply(&tenant("good", CPU));
    kubectl.run("wait --for=condition=NodesProvisioned vci/good -n p-default --timeout=120s");
    kubectl.apply("apiVersion: management.loft.sh/v1\nkind: Project\nmetadata: {name: bad}\nspec: {}\n");
    kubectl.until("get project bad -o jsonpath={.status.phase}", |phase| {
        phase == "Ready"
    });
    let case = Case {
        kubectl,
        neighbour: String::new(),
    };
    let case = Case {
        neighbour: case.neighbour(),
        ..case
    };

    values(&case);
    places(&case);
    orders(&case);
    providers(&case);
    definitions(&case);
    live_values_that_break(&case);
    let said = case.kubectl.run("describe vci good -n p-default");
    assert!(said.contains("NodesProvisioned"), "{said}");
}

struct Case {
    kubectl: Kubectl,
    /// State of the tenant that did nothing wrong, and of the host that nobody may touch.
    neighbour: String,
}

impl Case {
    fn neighbour(&self) -> String {
        let claims = self.kubectl.run("get nodeclaims -n p-default -o jsonpath='{range .items[*]}{.metadata.uid} {.status.phase} {.status.nodeUid}{\"\\n\"}{end}'");
        let hosts = self.kubectl.run("get bmh -A -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.generation} {.status.provisioning.state}{\"\\n\"}{end}'");
        claims + &hosts
    }

    /// The tenant is told so; then it goes, and all is as before.
    fn tenant(&self, pool: &str, words: &[&str]) {
        let spec = tenant_in("bad", "wrong", "192.168.100.250:8443", pool);
        self.whole_tenant(&spec, words);
    }

    fn whole_tenant(&self, spec: &str, words: &[&str]) {
        self.kubectl.apply(spec);
        self.told("vci wrong -n p-bad", words);
        nothing_ordered(&self.kubectl, "p-bad");
        let events = self.kubectl.run("describe vci wrong -n p-bad");
        assert!(events.contains("Status:"), "{events}");
        self.gone("vci wrong -n p-bad");
    }

    /// One condition says all of it.
    fn told(&self, what: &str, words: &[&str]) {
        let line = format!(
            "get {what} -o jsonpath='{{range .status.conditions[?(@.status==\"False\")]}}{{.type}} {{.reason}}: {{.message}}{{\"\\n\"}}{{end}}'"
        );
        self.kubectl.until(&line, |text| {
            text.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        });
    }

    fn gone(&self, what: &str) {
        self.kubectl.run(&format!("delete {what} --timeout=60s"));
        assert_eq!(self.kubectl.run("get nodeclaims -n p-bad -o name"), "");
        assert_eq!(self.neighbour(), self.neighbour, "the neighbour goes on");
    }
}

fn values(case: &Case) {
    let pool = "privateNodes.autoNodes[0].static[0]";
    case.tenant(
        "name: gpu;quantitty: 1",
        &["InvalidValues", &format!("{pool}.quantitty"), "quantity"],
    );
    case.tenant(
        "name: gpu;quantity: -1",
        &["InvalidValues", &format!("{pool}.quantity"), "-1"],
    );
    case.tenant(
        "name: gpu;quantity: 2000000000",
        &["InvalidValues", &format!("{pool}.quantity"), "at most"],
    );
    case.tenant(
        "name: gpu;quantity: two",
        &["InvalidValues", &format!("{pool}.quantity")],
    );
    case.tenant(
        "name: gpu;quantity: 1;nodeLabels:;  node-restriction.kubernetes.io/rack: mine",
        &[
            "ProtectedKey",
            &format!("{pool}.nodeLabels"),
            "node-restriction.kubernetes.io/rack",
        ],
    );
    let image = "metal3.vcluster.com/image-url";
    let spec = tenant_in("bad", "wrong", "192.168.100.250:8443", GPU).replace(
        "vcluster.com/os-image: ubuntu2404-20260926",
        &format!("{image}: http://images.lab/mine.qcow2"),
    );
    case.whole_tenant(
        &spec,
        &[
            "PropertyNotAllowed",
            "privateNodes.autoNodes[0].properties",
            image,
            "hostler.dev/tenant-properties",
        ],
    );
    let text = tenant_in("bad", "wrong", "192.168.100.250:8443", "name: [gpu");
    case.whole_tenant(
        &text,
        &["InvalidValues", "line", "spec.template.helmRelease.values"],
    );
}

fn places(case: &Case) {
    let spec = |place: &str, endpoint: &str| {
        tenant_in("bad", "wrong", endpoint, GPU)
            .replace("spec:\n", &format!("spec:\n  clusterRef: {place}\n"))
    };
    let free = "192.168.100.250:8443";
    case.whole_tenant(
        &spec("{namespace: loft-default-v-good}", free),
        &["TenantRefTaken", "spec.clusterRef.namespace", "choose another"],
    );
    case.whole_tenant(
        &spec("{namespace: loft-default-v-good, virtualCluster: good}", free),
        &["TenantRefTaken", "spec.clusterRef.namespace"],
    );
    case.whole_tenant(
        &spec("{namespace: kube-system}", free),
        &["TenantRefTaken", "kube-system"],
    );
    case.whole_tenant(
        &spec("{namespace: p-default}", free),
        &["TenantRefTaken", "p-default"],
    );
    case.whole_tenant(
        &spec("{cluster: elsewhere}", free),
        &["UnknownCluster", "spec.clusterRef.cluster", "loft-cluster"],
    );
    let taken = case
        .kubectl
        .run("get vci good -n p-default -o jsonpath={.status.joinAddress}");
    let taken = taken.trim_start_matches("https://");
    case.whole_tenant(
        &tenant_in("bad", "wrong", taken, GPU),
        &["EndpointTaken", "controlPlane.endpoint", taken, "choose another"],
    );
}

/// Mistakes that show on the claim, which is made.
fn orders(case: &Case) {
    let claims = |pool: &str, change: (&str, &str), words: &[&str]| {
        let spec = tenant_in("bad", "wrong", "192.168.100.250:8443", pool).replace(change.0, change.1);
        case.kubectl.apply(&spec);
        let line = "get nodeclaims -n p-bad -o jsonpath='{range .items[*]}{.status.phase} {.status.reason}: {.status.message}{\"\\n\"}{end}'";
        let said = case.kubectl.until(line, |text| {
            text.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        });
        let reason = said.split([' ', ':']).nth(1).unwrap();
        case.told("vci wrong -n p-bad", &["NodesProvisioned", reason]);
        nothing_ordered(&case.kubectl, "p-bad");
        case.gone("vci wrong -n p-bad");
    };
    claims(
        &GPU.replace("gpu-server", "tpu-server"),
        ("", ""),
        &["NoMatchingNodeType", "metal3.gpu-server", "nodeTypeSelector"],
    );
    claims(
        GPU,
        ("ubuntu2404-20260926", "windows95"),
        &[
            "OSImageNotFound",
            "vcluster.com/os-image",
            "windows95",
            "kubectl get osimages",
        ],
    );
    case.tenant_of_unknown_provider();
}

impl Case {
    fn tenant_of_unknown_provider(&self) {
        let spec = tenant_in("bad", "wrong", "192.168.100.250:8443", GPU)
            .replace("provider: metal3", "provider: metal4");
        self.whole_tenant(
            &spec,
            &[
                "UnknownProvider",
                "privateNodes.autoNodes[0]",
                "metal4",
                "kubectl get nodeproviders",
            ],
        );
    }
}

fn providers(case: &Case) {
    let kubectl = &case.kubectl;
    kubectl.apply(
        "apiVersion: management.loft.sh/v1\nkind: NodeProvider\nmetadata: {name: unfit}\nspec:\n  metal3:\n    clusterRef: {namespace: default}\n    nodeTypes:\n      - name: gpu-server\n        bareMetalHosts: {selector: {matchLabel: {role: gpu}}}\n",
    );
    case.told(
        "nodeprovider unfit",
        &["nodeTypes[0].bareMetalHosts.selector.matchLabel"],
    );
    assert_eq!(
        kubectl
            .try_run("get nodetypes -o name")
            .out
            .matches("unfit")
            .count(),
        0,
        "no types of it"
    );
    case.gone("nodeprovider unfit");

    kubectl.apply(
        "apiVersion: management.loft.sh/v1\nkind: NodeProvider\nmetadata: {name: empty}\nspec:\n  metal3:\n    clusterRef: {namespace: default}\n    nodeTypes:\n      - name: tpu-server\n        bareMetalHosts: {selector: {matchLabels: {role: tpu}}}\n",
    );
    case.told(
        "nodetype empty.tpu-server",
        &[
            "HasCapacity",
            "NoMachines",
            "no machine matches empty.tpu-server",
            "selector",
        ],
    );
    let spec = tenant_in("bad", "wrong", "192.168.100.250:8443", "name: tpu;quantity: 1")
        .replace("provider: metal3", "provider: empty");
    case.whole_tenant(
        &spec,
        &[
            "NodesProvisioned",
            "NoCapacity",
            "no machine matches empty.tpu-server",
            "NodeProvider empty",
        ],
    );
    case.gone("nodeprovider empty");

    let alien = "apiVersion: management.loft.sh/v1\nkind: NodeProvider\nmetadata: {name: alien}\nspec: ";
    let said = kubectl.try_apply(&format!("{alien}{{openstack: {{}}}}\n"));
    assert!(said.err.contains("unknown field \"spec.openstack\""), "{said:?}");
    kubectl.apply(&format!("{alien}{{driver: {{name: openstack, config: {{}}}}}}\n"));
    case.told("nodeprovider alien", &["driver-openstack"]);
    case.gone("nodeprovider alien");
}

fn definitions(case: &Case) {
    let said = case.kubectl.try_apply(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.dev}\nspec:\n  group: example.dev\n  scope: Namespaced\n  names: {plural: things, kind: Thing, singular: thing, listKind: ThingList}\n  versions:\n    - name: v1\n      served: true\n      storage: true\n      schema:\n        openAPIV3Schema:\n          type: object\n          properties:\n            spec:\n              properties: {size: {type: integer}}\n",
    );
    // The real server takes it when it is old, and says so in a condition; new ones it refuses.
    assert_ne!(said.code, 0, "{said:?}");
    assert!(
        said.err.contains("things.example.dev")
            && said
                .err
                .contains("openAPIV3Schema.properties[spec].type: Required value"),
        "{}",
        said.err
    );
    let said = case.kubectl.fail("get things");
    assert!(said.contains("the server doesn't have a resource type"), "{said}");
}

/// A tenant that runs, and whose values are then broken, keeps what it has.
fn live_values_that_break(case: &Case) {
    let kubectl = &case.kubectl;
    kubectl.apply(&tenant("good", CPU).replace("quantity: 1", "quantiti: 0"));
    case.told(
        "vci good -n p-default",
        &[
            "NodesProvisioned",
            "InvalidValues",
            "quantiti",
            "existing claims stay",
        ],
    );
    assert_eq!(case.neighbour(), case.neighbour);
    kubectl.apply(&tenant("good", CPU));
    until("mended", || {
        let said = kubectl.try_run("get vci good -n p-default -o jsonpath='{.status.phase} {.status.conditions[?(@.type==\"NodesProvisioned\")].status}'");
        if said.out == "Ready True" {
            Ok(())
        } else {
            Err(said.out)
        }
    });
    assert_eq!(case.neighbour(), case.neighbour);
    // Another file of the same tenant cannot take it over with a typo in a field, either.
    let said = kubectl.try_apply(
        &std::fs::read_to_string(file("examples/01-lab/tenant.yaml"))
            .unwrap()
            .replace("helmRelease", "helmReleases"),
    );
    assert!(
        said.err.contains("unknown field \"spec.template.helmReleases\""),
        "{said:?}"
    );
}
