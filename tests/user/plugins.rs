//! Driver components replaced while the laboratory runs, by good ones and by garbage, and across restarts.

use super::kubectl::{Kubectl, file};
use super::lab::{Lab, tenant};
use super::until;
use crate::harness::components;

const DRIVER: &str = "get plugin driver-metal3 -o jsonpath=";

#[test]
fn a_new_driver_serves_new_claims_and_garbage_changes_nothing() {
    let mut lab = Lab::start(&format!(
        "--apply {} --apply {}",
        file("examples/01-lab/project.yaml"),
        file("examples/01-lab/provider.yaml")
    ));
    lab.furnish();
    let kubectl = lab.kubectl();
    kubectl.apply(&tenant("first", GPU));
    available(&kubectl, "first");
    let before = Live::of(&kubectl, "first");
    let old = kubectl.run(&format!("{DRIVER}{{.status.digest}}"));
    assert_eq!(before.digest, old);

    // Another build of the same driver: the same code, other bytes.
    let good = with_note(
        &std::fs::read(components().join("driver-metal3.wasm")).unwrap(),
        "a later build",
    );
    replace(&lab, &good);
    let new = kubectl.until(&format!("{DRIVER}{{.status.digest}}"), |digest| {
        !digest.is_empty() && digest != old
    });
    kubectl.until(
        &format!("{DRIVER}'{{.status.conditions[?(@.type==\"Healthy\")].status}}'"),
        |healthy| healthy == "True",
    );
    kubectl.apply(&tenant("second", CPU));
    available(&kubectl, "second");
    assert_eq!(
        Live::of(&kubectl, "second").digest,
        new,
        "new claims get the new driver without a restart"
    );
    assert_eq!(
        Live::of(&kubectl, "first"),
        before,
        "a machine in use is not touched"
    );

    garbage(&lab, &kubectl, &new);
    assert_eq!(Live::of(&kubectl, "first"), before);

    // The same after a restart: what served last serves on, what is broken is told, what lives is left alone.
    assert!(lab.interrupt().success());
    lab.go("");
    kubectl.until(&format!("{DRIVER}{{.status.digest}}"), |digest| digest == new);
    broken(&kubectl);
    assert_eq!(Live::of(&kubectl, "first"), before);
    kubectl.run("delete vci second -n p-default --timeout=120s");
    kubectl.apply(&tenant("third", CPU));
    available(&kubectl, "third");
    assert_eq!(
        Live::of(&kubectl, "third").digest,
        new,
        "claims are served by the last good one"
    );

    // A machine ordered with the first build goes back with the first build, which no file holds any more.
    kubectl.run("delete vci first -n p-default --timeout=120s");
    kubectl.run("delete vci third -n p-default --timeout=120s");
    lab.all_free();

    replace(
        &lab,
        &std::fs::read(components().join("driver-metal3.wasm")).unwrap(),
    );
    kubectl.until(
        &format!("{DRIVER}'{{.status.conditions[?(@.type==\"Healthy\")].status}} {{.status.digest}}'"),
        |text| text == format!("True {old}"),
    );
}

const GPU: &str =
    "name: gpu;quantity: 1;nodeTypeSelector:;  - property: vcluster.com/node-type;    value: gpu-server";
const CPU: &str =
    "name: cpu;quantity: 1;nodeTypeSelector:;  - property: vcluster.com/node-type;    value: cpu-server";

fn available(kubectl: &Kubectl, tenant: &str) {
    until(&format!("tenant {tenant} is complete"), || {
        let said = kubectl.try_run(&format!("get vci {tenant} -n p-default -o jsonpath='{{.status.conditions[?(@.type==\"NodesProvisioned\")].status}} {{.status.conditions}}'"));
        if said.out.starts_with("True") {
            Ok(())
        } else {
            Err(said.out + &said.err)
        }
    });
}

/// What must not change while nobody asked for it.
#[derive(Debug, PartialEq)]
struct Live {
    digest: String,
    node: String,
    host: String,
}

impl Live {
    fn of(kubectl: &Kubectl, tenant: &str) -> Self {
        let of = |field: &str| {
            let filter = format!("{{.items[?(@.spec.vClusterRef==\"{tenant}\")].status.{field}}}");
            kubectl.run(&format!("get nodeclaims -n p-default -o jsonpath='{filter}'"))
        };
        let host = of("machine.ref.name");
        Self {
            digest: of("order.digest"),
            node: of("nodeUid"),
            // Every write to the spec counts the generation up.
            host: kubectl.run(&format!("get bmh {host} -n default -o jsonpath='{{.metadata.name}} {{.metadata.generation}} {{.status.provisioning.state}} {{.status.poweredOn}}'")),
        }
    }
}

/// Puts bytes where the driver's file is, whole.
fn replace(lab: &Lab, bytes: &[u8]) {
    let folder = lab.data().join("plugins");
    std::fs::write(folder.join(".next"), bytes).unwrap();
    std::fs::rename(folder.join(".next"), folder.join("driver-metal3.wasm")).unwrap();
}

fn garbage(lab: &Lab, kubectl: &Kubectl, serving: &str) {
    replace(lab, b"\0asm this is no component");
    broken(kubectl);
    assert_eq!(
        kubectl.run(&format!("{DRIVER}{{.status.digest}}")),
        serving,
        "the last good one serves on"
    );
    let events = kubectl.until("get events -A -o jsonpath='{range .items[?(@.involvedObject.kind==\"Plugin\")]}{.type} {.involvedObject.name} {.reason}: {.message}{\"\\n\"}{end}'", |text| {
        text.lines().any(|line| line.starts_with("Warning driver-metal3"))
    });
    let warnings: Vec<_> = events
        .lines()
        .filter(|line| line.starts_with("Warning"))
        .collect();
    assert!(
        warnings.iter().all(|line| line.contains("driver-metal3")),
        "nobody else is warned about: {events}"
    );
}

/// The Plugin says that its file is no good, that something serves, and what to do.
fn broken(kubectl: &Kubectl) {
    let line = format!(
        "{DRIVER}'{{range .status.conditions[*]}}{{.type}}={{.status}} {{.reason}}: {{.message}}{{\"\\n\"}}{{end}}'"
    );
    let said = kubectl.until(&line, |text| {
        text.lines().any(|line| line.starts_with("Healthy=False"))
    });
    assert!(said.lines().any(|line| line.starts_with("Loaded=True")), "{said}");
    assert_eq!(
        kubectl.table("get plugins").of(&["NAME", "HEALTHY"])[0],
        ["driver-metal3", "False"]
    );
}

/// A component with one more custom section: valid, the same in what it does, another digest.
fn with_note(component: &[u8], note: &str) -> Vec<u8> {
    let name = b"note";
    let mut section = vec![u8::try_from(name.len()).unwrap()];
    section.extend(name);
    section.extend(note.as_bytes());
    let mut bytes = component.to_vec();
    bytes.extend([0, u8::try_from(section.len()).unwrap()]);
    bytes.extend(section);
    bytes
}
