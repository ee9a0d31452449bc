//! The command line: every form, and what it says when it cannot.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::harness::{components, hostler, root, warm};
use crate::user::kubectl::{Said, file};
use crate::user::lab::Lab;
use crate::user::until;

fn run(words: &[&str]) -> Said {
    Command::new(hostler())
        .args(words)
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

/// Starts a lab that must not come up, and returns what it complained.
fn refused(lab: &Lab, more: &str) -> String {
    let said: Said = lab.command(more).output().unwrap().into();
    assert_eq!(said.code, 1, "{said:?}");
    assert!(!said.out.contains("lab ready"), "{said:?}");
    assert!(
        said.err.starts_with("hostler: ") && said.err.trim_end().lines().count() < 8,
        "{}",
        said.err
    );
    said.err
}

#[test]
fn a_lab_applies_shows_ends_and_goes_on_where_it_was() {
    let mut lab = Lab::cold();
    let apply = format!("--listen 127.0.0.1:0 --apply {}", file("examples/01-lab"));
    lab.go(&apply);
    lab.until("the end of the timeline", |line| {
        line.ends_with("everything is Available")
    });
    lab.until("the next commands", |line| {
        line.contains("kubectl delete virtualclusterinstances.management.loft.sh one -n p-default")
    });
    timeline(&lab.said());
    let kubectl = lab.kubectl();
    let address = kubectl.run("config view --minify -o jsonpath={.clusters[0].cluster.server}");
    let claims = || {
        lab.kubectl().run("get nodeclaims -A -o jsonpath='{range .items[*]}{.metadata.uid} {.status.nodeUid}{\"\\n\"}{end}'")
    };
    let hosts = || {
        lab.kubectl().run("get bmh -A -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.generation} {.status.poweredOn}{\"\\n\"}{end}'")
    };
    let before = (claims(), hosts());

    // A second lab on the same directory would be two hosts of one name.
    let complaint = refused(&lab, "");
    assert!(complaint.contains("another"), "{complaint}");
    // kubectl finds what the lab applied as its own.
    let applied = kubectl.run(&format!("apply -f {}", file("examples/01-lab/tenant.yaml")));
    assert!(
        applied.lines().all(|line| line.ends_with(" unchanged")),
        "{applied}"
    );

    let ended = lab.interrupt();
    assert_eq!(ended.code(), Some(0), "{:?}", lab.said());
    assert!(
        lab.said()
            .iter()
            .any(|line| line.contains("start again with the same --data")),
        "{:?}",
        lab.said()
    );

    lab.go(&apply);
    lab.until("all of it is there already", |line| {
        line.ends_with("everything is Available already") || line.ends_with("everything is Available")
    });
    let unchanged = lab
        .said()
        .iter()
        .filter(|line| line.ends_with(" unchanged"))
        .count();
    assert_eq!(unchanged, 9, "{:?}", lab.said());
    let kubectl = lab.kubectl();
    assert_eq!(
        kubectl.run("config view --minify -o jsonpath={.clusters[0].cluster.server}"),
        address,
        "the port is kept"
    );
    let claims = kubectl.run(
        "get nodeclaims -A -o jsonpath='{range .items[*]}{.metadata.uid} {.status.nodeUid}{\"\\n\"}{end}'",
    );
    let hosts = kubectl.run("get bmh -A -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.generation} {.status.poweredOn}{\"\\n\"}{end}'");
    assert_eq!(
        (claims, hosts),
        before,
        "starting again with the same files takes no server from its tenant"
    );
    let tenant = lab.tenant("default", "one");
    until("both nodes are Ready again", || {
        let said = tenant.try_run("get nodes --no-headers");
        if said.out.matches(" Ready ").count() == 2 {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    });
    assert!(lab.interrupt().success());
}

/// What a person reads: aligned, in order, no line twice, and the milestones at the end.
fn timeline(said: &[String]) {
    let text = said.join("\n");
    let lines: Vec<&String> = said.iter().filter(|line| line.contains(" s | ")).collect();
    let words: Vec<String> = lines
        .iter()
        .map(|line| line.split_once(" | ").unwrap().1.to_owned())
        .collect();
    for (first, second) in words.iter().zip(words.iter().skip(1)) {
        assert_ne!(first, second, "{text}");
    }
    assert!(lines.iter().all(|line| line.find(" | ") == Some(16)), "{text}");
    assert!(
        !text.contains("NoCapacity"),
        "machines that are being inspected are no lack of them: {text}"
    );
    let at = |what: &str| {
        words
            .iter()
            .position(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{what}: {text}"))
    };
    assert!(at("Pending") < at("provisioning"), "{text}");
    assert!(at("provisioning") < at("provisioned"), "{text}");
    assert!(at("provisioned") < at("Available"), "{text}");
    assert!(
        at("tenant one              complete") < at("everything is Available"),
        "{text}"
    );
    for milestone in [
        "control plane of one is Ready",
        "2 NodeClaims created",
        "2 servers started provisioning",
        "2 servers provisioned",
        "node bare-metal-1 is Ready",
    ] {
        at(milestone);
    }
}

#[test]
fn once_ends_with_zero_or_with_one_and_the_causes() {
    let lab = Lab::new();
    let said: Said = lab
        .command(&format!("--once --apply {}", file("examples/01-lab")))
        .output()
        .unwrap()
        .into();
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.out.contains("lab ready") && said.out.contains("everything is Available"),
        "{}",
        said.out
    );

    // The one GPU server is taken.
    let said: Said = lab
        .command(&format!(
            "--once --timeout 3s --apply {}",
            file("examples/02-node-profile")
        ))
        .output()
        .unwrap()
        .into();
    assert_eq!(said.code, 1, "{said:?}");
    let causes = said
        .out
        .split_once("not everything became Available in time:")
        .unwrap_or_else(|| panic!("{}", said.out))
        .1;
    assert!(
        causes.contains("claim training-")
            && causes.contains("NoCapacity")
            && causes.contains("tenant training"),
        "{causes}"
    );
    assert!(
        !causes.contains("tenant one"),
        "what is well is no cause: {causes}"
    );
}

#[test]
fn what_keeps_a_lab_from_starting_is_said_with_its_remedy() {
    let lab = Lab::new();
    let said = refused(&lab, "--plugins nowhere/components");
    assert!(
        said.contains("nowhere/components") && said.contains("--plugins"),
        "{said}"
    );

    let manifest = lab.folder().join("broken.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: [Secret\n").unwrap();
    let said = refused(&lab, &format!("--apply {}", manifest.display()));
    assert!(
        said.contains("broken.yaml, document 1 is not YAML") && said.contains("line 2"),
        "{said}"
    );
    let said = refused(&lab, "--apply nowhere.yaml");
    assert!(
        said.contains("nowhere.yaml") && said.contains("--apply"),
        "{said}"
    );

    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap();
    let said = refused(&lab, &format!("--listen {address}"));
    assert!(
        said.contains(&address.to_string()) && said.contains("--listen"),
        "{said}"
    );

    let folder = lab.folder().join("a-file");
    std::fs::write(&folder, "").unwrap();
    let said: Said = Command::new(hostler())
        .args(["lab", "--data"])
        .arg(&folder)
        .output()
        .unwrap()
        .into();
    assert!(said.code == 1 && said.err.contains("a-file"), "{said:?}");
}

#[test]
fn a_store_that_cannot_be_read_is_left_as_it_is() {
    let mut lab = Lab::start("");
    lab.furnish();
    assert!(lab.interrupt().success());
    let store = lab.data().join("store.redb");
    let whole = std::fs::read(&store).unwrap();
    for (what, bytes) in [
        ("cut short", &whole[..whole.len() / 3]),
        ("empty but for its beginning", &whole[..64]),
        ("of something else", &b"SQLite format 3\0 and so on"[..]),
    ] {
        std::fs::write(&store, bytes).unwrap();
        let said = refused(&lab, "");
        assert!(
            said.contains("store.redb") && said.contains("move it away"),
            "{what}: {said}"
        );
        assert!(
            std::fs::read(&store).unwrap() == bytes,
            "{what}: nothing was written over it"
        );
    }
    std::fs::write(&store, &whole).unwrap();
    format(&store, 7);
    let said = refused(&lab, "");
    assert!(
        said.contains("store.redb") && said.contains("format 7"),
        "another version: {said}"
    );
    format(&store, 1);
    lab.go("");
    assert_eq!(lab.kubectl().table("get bmh -A").len(), 2, "nothing was lost");
}

/// Writes another format into a store, as another version of the program would.
fn format(store: &std::path::Path, format: u64) {
    let numbers: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("numbers");
    let database = redb::Database::open(store).unwrap();
    let transaction = database.begin_write().unwrap();
    let known = transaction
        .open_table(numbers)
        .unwrap()
        .insert("format", format)
        .unwrap()
        .map(|known| known.value());
    assert!(known.is_some(), "the store keeps its format there");
    transaction.commit().unwrap();
}

#[test]
fn ctrl_c_ends_a_lab_in_the_middle_of_its_timeline() {
    let mut lab = Lab::new();
    lab.go(&format!("--imaging-time 10m --apply {}", file("examples/01-lab")));
    lab.until("a server that is being imaged", |line| {
        line.contains("provisioning  for one-")
    });
    assert_eq!(lab.interrupt().code(), Some(0), "{:?}", lab.said());
    // With --once it was asked for an end that did not come.
    lab.go(&format!(
        "--once --imaging-time 10m --apply {}",
        file("examples/01-lab")
    ));
    lab.until("it is still being imaged", |line| {
        line.contains("provisioning  for one-")
    });
    assert_eq!(lab.interrupt().code(), Some(1), "{:?}", lab.said());
}

#[test]
fn the_controllers_run_against_the_cluster_of_a_kubeconfig_until_told() {
    let lab = Lab::start("");
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let state = folder.path().join("state");
    warm::start(&state);
    let mut host = Command::new(hostler())
        .args(["run", "--installation", "second", "--plugins"])
        .arg(components())
        .arg("--state")
        .arg(state)
        .env("KUBECONFIG", lab.data().join("kubeconfig"))
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let said = until("it runs", || {
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(host.try_wait().unwrap().is_none(), "{text}");
        if text.contains("controllers start") {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert!(
        said.lines().all(|line| line.starts_with('{')),
        "a log for machines, where nobody looks: {said}"
    );
    assert!(
        Command::new("kill")
            .args(["-INT", &host.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let ended = until("it ends", || {
        host.try_wait()
            .unwrap()
            .ok_or_else(|| std::fs::read_to_string(&log).unwrap())
    });
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn an_edited_plugin_stays_and_an_unedited_one_follows_its_source() {
    let mut lab = Lab::new();
    let source = lab.folder().join("components");
    std::fs::create_dir(&source).unwrap();
    for entry in std::fs::read_dir(components()).unwrap().flatten() {
        std::fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    let more = format!("--plugins {}", source.display());
    lab.go(&more);
    assert!(lab.interrupt().success());
    let edit = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path).unwrap() + "# edited\n";
        std::fs::write(path, &text).unwrap();
        text
    };
    let copies = lab.data().join("plugins");
    let changed = edit(&source.join("driver-metal3.toml"));
    let mine = edit(&copies.join("policy-allowlist.toml"));
    edit(&source.join("policy-allowlist.toml"));
    edit(&source.join("policy-allowlist.toml"));
    lab.go(&more);
    assert_eq!(
        std::fs::read_to_string(copies.join("driver-metal3.toml")).unwrap(),
        changed
    );
    assert_eq!(
        std::fs::read_to_string(copies.join("policy-allowlist.toml")).unwrap(),
        mine
    );
    assert!(
        lab.said()
            .iter()
            .any(|line| line.contains("policy-allowlist.toml was edited")),
        "{:?}",
        lab.said()
    );
    assert!(lab.interrupt().success());
    // Without its source a lab goes on with its copies.
    std::fs::remove_dir_all(&source).unwrap();
    lab.go(&more);
    assert!(
        lab.said().iter().any(|line| line.contains("using the copies")),
        "{:?}",
        lab.said()
    );
}

#[test]
fn plugins_are_inspected_and_built() {
    let driver = components().join("driver-metal3.wasm");
    let said = run(&["plugin", "inspect", driver.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");
    for word in [
        "world:    machine-driver",
        "version:  0.1",
        "imports:",
        "size:",
        "digest:   sha256:",
    ] {
        assert!(said.out.contains(word), "{word}: {}", said.out);
    }
    assert!(
        !said.out.contains("wasi:"),
        "ours import nothing but the log: {}",
        said.out
    );
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("garbage.wasm");
    std::fs::write(&garbage, b"\0asm nothing").unwrap();
    let said = run(&["plugin", "inspect", garbage.to_str().unwrap()]);
    assert!(said.code == 1 && said.err.contains("garbage.wasm"), "{said:?}");
    let said = run(&["plugin", "inspect", "nowhere.wasm"]);
    assert!(said.code == 1 && said.err.contains("nowhere.wasm"), "{said:?}");
    let said = run(&["plugin", "build", folder.path().to_str().unwrap()]);
    assert!(
        said.code == 1 && said.err.contains(folder.path().to_str().unwrap()),
        "{said:?}"
    );
}

#[test]
fn definitions_are_printed_as_yaml_that_the_lab_takes_back() {
    let said = run(&["crds"]);
    assert_eq!(said.code, 0, "{said:?}");
    let lab = Lab::start("");
    let kubectl = lab.kubectl();
    let applied = kubectl.apply(&said.out);
    for kind in [
        "nodeclaims.management.loft.sh",
        "virtualclusterinstances.management.loft.sh",
        "plugins.hostler.dev",
        "enrollments.hostler.dev",
    ] {
        assert!(
            applied.contains(&format!("customresourcedefinition.apiextensions.k8s.io/{kind} ")),
            "{applied}"
        );
    }
}

#[test]
fn run_without_a_cluster_says_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    let said: Said = Command::new(hostler())
        .args(["run", "--plugins"])
        .arg(components())
        .arg("--state")
        .arg(folder.path().join("state"))
        .env("KUBECONFIG", folder.path().join("none"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap()
        .into();
    assert!(said.code == 1 && said.err.contains("KUBECONFIG"), "{said:?}");
}

#[test]
fn help_names_every_command_and_no_arguments_print_it() {
    for words in [&["--help"][..], &[]] {
        let said = run(words);
        let text = said.out + &said.err;
        for command in ["lab", "run", "plugin", "crds"] {
            assert!(text.contains(&format!("  {command}")), "{command}: {text}");
        }
    }
    assert!(
        run(&["lab", "--imaging-time", "soon"])
            .err
            .contains("write one like 90s")
    );
}
