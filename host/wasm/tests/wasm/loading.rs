//! What is no good component, and what is: one class each, and nobody else is held up.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hostler_core::seams::Plugins as _;
use hostler_wasm::inspect;
use hostler_wasm::inspect::inspect_bytes;
use rstest::rstest;

use crate::fixtures::{FOREVER, Policy, allowing, component_with, denying, driver, resolver};
use crate::shelf::{Shelf, error, policy, review, state, until};

#[tokio::test]
async fn each_bad_file_gets_a_class_of_its_own_and_the_good_ones_serve() {
    let shelf = Shelf::new();
    let good = allowing();
    shelf
        .put("policy-p", &good)
        .put("resolver-r", &resolver())
        .put("driver-d", &driver("x"));
    shelf.put("a-random", b"\x93\x11random bytes, no magic");
    shelf.put(
        "b-garbled",
        &[b"\0asm\x0d\0\x01\0".as_slice(), &[0xff; 64]].concat(),
    );
    shelf.put("c-core", &wat::parse_str("(module)").unwrap());
    shelf.put("d-empty", b"");
    shelf.put(
        "e-compiled",
        b"\x7fELF\x02\x01\x01 native code under a wrong name",
    );
    shelf.put("f-truncated", &good[..good.len() / 2]);
    shelf.put("h-large", &vec![0; 3 << 20]);
    shelf.put("Wrong_Name", &good);
    shelf.put("j-other", &wat::parse_str("(component)").unwrap());
    shelf
        .put("k-bad-grant", &good)
        .grant("k-bad-grant", "[[kinds]]\nkind = 3\n");
    shelf.put("l-never", &good).grant(
        "l-never",
        "[[kinds]]\napiVersion = \"rbac.authorization.k8s.io/v1\"\nkind = \"ClusterRoleBinding\"\naccess = \"manage\"\nnamespaces = [\"*\"]\n",
    );
    fs::create_dir(shelf.path("m-directory.wasm")).unwrap();
    let fifo = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, shelf.path("n-pipe.wasm"), fifo.0, fifo.1, 0).unwrap();
    std::os::unix::fs::symlink("nowhere", shelf.path("o-dangling.wasm")).unwrap();

    let mut options = shelf.options();
    options.largest = 2 << 20;
    let catalog = shelf.open_with(options).await;

    for (name, code) in [
        ("a-random", "NotWebAssembly"),
        ("b-garbled", "InvalidComponent"),
        ("c-core", "CoreModule"),
        ("d-empty", "FileEmpty"),
        ("e-compiled", "Precompiled"),
        ("f-truncated", "InvalidComponent"),
        ("h-large", "FileTooLarge"),
        ("wrong-name", "NameInvalid"),
        ("j-other", "UnknownWorld"),
        ("k-bad-grant", "GrantInvalid"),
        ("l-never", "GrantInvalid"),
        ("m-directory", "NotAFile"),
        ("n-pipe", "NotAFile"),
        ("o-dangling", "FileUnreadable"),
    ] {
        let state = state(&catalog, name).unwrap_or_else(|| panic!("{name} is not listed"));
        assert_eq!(
            state.error.as_ref().map(|error| error.code.as_str()),
            Some(code),
            "{name}"
        );
        assert!(state.serving.is_none() && !state.healthy, "{name}");
        assert!(
            error(&catalog, name).1.starts_with(name),
            "the text names the file"
        );
    }
    assert!(
        error(&catalog, "f-truncated").1.contains("offset 0x"),
        "{:?}",
        error(&catalog, "f-truncated")
    );
    assert!(
        error(&catalog, "l-never").1.contains("kinds[0]") && error(&catalog, "l-never").1.contains("remove")
    );
    for name in ["policy-p", "resolver-r", "driver-d"] {
        let state = state(&catalog, name).unwrap();
        assert!(
            state.healthy && state.error.is_none() && state.serving == state.on_disk,
            "{state:?}"
        );
    }
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
}

/// Whoever loads it leaves the code of functions to the compiler; whoever inspects it looks at all.
#[tokio::test]
async fn code_that_is_not_valid_is_found_where_it_is_compiled_and_where_it_is_inspected() {
    // A number that nothing else is, taken off the stack; where it is taken off, one more is wanted than there is.
    let number = [0xf8, 0xac, 0xd1, 0x91, 0x01];
    let mut bytes = Policy {
        review: "(drop (i32.const 0x12345678)) unreachable",
        ..Policy::default()
    }
    .build();
    let at = bytes.windows(5).position(|window| window == number).unwrap() + 5;
    assert_eq!(
        std::mem::replace(&mut bytes[at], 0x6a),
        0x1a,
        "drop becomes i32.add"
    );

    let shelf = Shelf::new();
    shelf.put("policy-p", &bytes).put("resolver-r", &resolver());
    let catalog = shelf.open().await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "CompileFailed");
    assert!(
        text.contains("type mismatch") && text.contains("offset"),
        "{text}"
    );
    assert!(state(&catalog, "resolver-r").unwrap().healthy);
    let inspected = inspect_bytes("policy-p", &bytes).unwrap_err();
    assert!(inspected.to_string().contains("type mismatch"), "{inspected}");
}

#[tokio::test]
async fn a_file_without_rights_is_said_to_be_unreadable() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &allowing());
    fs::set_permissions(shelf.path("policy-p.wasm"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(shelf.path("policy-p.wasm")).is_ok() {
        return; // Rights do not bind this user.
    }
    let catalog = shelf.open().await;
    assert_eq!(error(&catalog, "policy-p").0, "FileUnreadable");
}

#[tokio::test]
async fn what_is_required_and_missing_is_listed_and_denies() {
    let shelf = Shelf::new();
    let catalog = shelf.open().await;
    assert_eq!(catalog.policies().err().unwrap().reason().code, "PolicyMissing");
    assert_eq!(catalog.resolver().err().unwrap().reason().code, "ResolverMissing");
    assert_eq!(
        catalog.driver("driver-d", None).err().unwrap().reason().code,
        "DriverMissing"
    );
    assert_eq!(error(&catalog, "policy-p").0, "FileMissing");
}

#[tokio::test]
async fn a_component_under_a_required_name_must_be_of_its_world() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &driver("x"));
    let catalog = shelf.open().await;
    assert_eq!(error(&catalog, "policy-p").0, "UnknownWorld");
    assert!(catalog.policies().is_err());
}

#[tokio::test]
async fn a_missing_plugin_directory_is_an_error_that_says_what_to_do() {
    let shelf = Shelf::new();
    let mut options = shelf.options();
    options.directory = shelf.path("not-there");
    let error = hostler_wasm::Catalog::open(options)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("not-there") && error.contains("create it"),
        "{error}"
    );
}

/// A policy of a world with one import more.
fn importing(package: &str, import: &str, function: &str) -> Vec<u8> {
    let world = format!(
        "package test:guest; world guest {{ include hostler:plugin/review-policy@0.1.0; import {import}; }}"
    );
    let imports = format!("(import \"{import}\" \"{function}\" (func $wanted))");
    let module = Policy {
        imports: &imports,
        review: "(call $wanted) (i32.const 256)",
        ..Policy::default()
    }
    .module();
    component_with("guest", &[package, &world], &module)
}

#[rstest]
#[case::sockets(
    "package wasi:sockets@0.2.6; interface tcp { go: func(); }",
    "wasi:sockets/tcp@0.2.6"
)]
#[case::files(
    "package wasi:filesystem@0.2.6; interface preopens { go: func(); }",
    "wasi:filesystem/preopens@0.2.6"
)]
#[case::http(
    "package wasi:http@0.2.6; interface outgoing-handler { go: func(); }",
    "wasi:http/outgoing-handler@0.2.6"
)]
#[case::newer_wasi(
    "package wasi:random@0.3.0; interface random { go: func(); }",
    "wasi:random/random@0.3.0"
)]
#[case::anything(
    "package evil:host@1.0.0; interface shell { go: func(); }",
    "evil:host/shell@1.0.0"
)]
#[tokio::test]
async fn an_import_that_nobody_gets_is_refused_by_name_before_anything_is_compiled(
    #[case] package: &str,
    #[case] import: &str,
) {
    let shelf = Shelf::new();
    shelf.put("policy-p", &importing(package, import, "go"));
    let catalog = shelf.open().await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "ImportRefused");
    assert!(
        text.contains(import) && text.contains("no line of policy-p.toml can grant it"),
        "{text}"
    );
    let compiled = fs::read_dir(shelf.state().join("compiled")).unwrap().count();
    assert_eq!(compiled, 0, "it never came to the compiler");
}

#[tokio::test]
async fn another_version_of_the_contract_is_told_which_ones_there_are() {
    let later = "package hostler:plugin@0.2.0;
        interface policy { accepts: func(settings: string) -> u32; }
        world review-policy { export policy; }";
    let module = r#"(module (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8)
        (func (export "hostler:plugin/policy@0.2.0#accepts") (param i32 i32) (result i32) i32.const 1))"#;
    let shelf = Shelf::new();
    shelf.put("policy-p", &component_with("review-policy", &[later], module));
    let catalog = shelf.open().await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "UnknownWorld");
    assert!(
        text.contains("0.2.0") && text.contains("review-policy@0.1.x"),
        "{text}"
    );
}

#[tokio::test]
async fn a_later_patch_of_the_contract_loads_as_it_is() {
    let patch = r#"package hostler:plugin@0.1.7;
        interface policy {
            record interest { kind: string, wants: list<string> }
            record request { kind: string, json: string }
            record reason { code: string, message: string, remedy: option<string> }
            record verdict { allowed: bool, reasons: list<reason>, valid-for: option<u32> }
            accepts: func(settings: string) -> result<list<interest>, reason>;
            review: func(settings: string, request: request) -> verdict;
        }
        world review-policy { export policy; }"#;
    let module = Policy {
        version: "0.1.7",
        ..Policy::default()
    }
    .module();
    let shelf = Shelf::new();
    shelf.put("policy-p", &component_with("review-policy", &[patch], &module));
    let catalog = shelf.open().await;
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
    assert_eq!(
        state(&catalog, "policy-p").unwrap().world.as_deref(),
        Some("review-policy@0.1.7")
    );
}

#[tokio::test]
async fn the_right_name_with_other_shapes_does_not_link() {
    let other = r#"package hostler:plugin@0.1.1;
        interface policy { accepts: func(settings: string) -> u32; review: func(settings: string) -> u32; }
        world review-policy { export policy; }"#;
    let module = r#"(module (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8)
        (func (export "hostler:plugin/policy@0.1.1#accepts") (param i32 i32) (result i32) i32.const 1)
        (func (export "hostler:plugin/policy@0.1.1#review") (param i32 i32) (result i32) i32.const 1))"#;
    let shelf = Shelf::new();
    shelf.put("policy-p", &component_with("review-policy", &[other], module));
    let catalog = shelf.open().await;
    let code = error(&catalog, "policy-p").0;
    assert!(code == "LinkFailed" || code == "ProbeFailed", "{code}");
    assert!(catalog.policies().is_err());
}

#[tokio::test]
async fn a_component_that_loops_while_it_starts_is_stopped_by_the_same_deadline() {
    let start = format!("(func $start {FOREVER}) (start $start)");
    let shelf = Shelf::new();
    shelf.put(
        "policy-p",
        &Policy {
            more: &start,
            ..Policy::default()
        }
        .build(),
    );
    shelf.grant("policy-p", "[limits]\ntime = \"50ms\"\n");
    let catalog = shelf.open().await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "ProbeFailed");
    assert!(text.contains("ran out of time"), "{text}");
}

#[tokio::test]
async fn settings_that_a_policy_does_not_take_keep_it_out_and_are_shown_with_its_reason() {
    let picky = Policy {
        accepts: "(select (i32.const 16) (i32.const 2048) (i32.gt_u (local.get 1) (i32.const 2)))",
        ..Policy::default()
    }
    .build();
    let shelf = Shelf::new();
    shelf.put("policy-p", &picky);
    let catalog = shelf.open().await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "SettingsRefused");
    assert!(text.contains("bad settings") && text.contains("Bad"), "{text}");
    shelf.grant("policy-p", "[settings]\nstrict = true\n");
    until(&catalog, |catalog| state(catalog, "policy-p").unwrap().healthy).await;
    let grant = state(&catalog, "policy-p").unwrap().grant;
    assert_eq!(grant["settings"], serde_json::json!({ "strict": true }));
}

#[test]
fn an_inspection_says_what_a_component_is_and_why_it_would_not_load() {
    let shelf = Shelf::new();
    shelf.put("driver-d", &driver("x")).put("policy-p", &denying("x"));
    let seen = inspect(&shelf.path("driver-d.wasm")).unwrap();
    assert_eq!(seen.world.as_deref(), Some("machine-driver@0.1.0"));
    assert_eq!(seen.exports, ["hostler:plugin/driver@0.1.0"]);
    assert!(
        seen.imports
            .iter()
            .all(|import| import == "hostler:plugin/types@0.1.0"),
        "{:?}",
        seen.imports
    );
    assert_eq!(seen.problem, None);
    assert!(seen.digest.starts_with("sha256:") && seen.size > 0);
    assert!(
        seen.producers
            .iter()
            .any(|(_, tool)| tool.starts_with("wit-component")),
        "{:?}",
        seen.producers
    );

    let refused = importing(
        "package wasi:sockets@0.2.6; interface tcp { go: func(); }",
        "wasi:sockets/tcp@0.2.6",
        "go",
    );
    shelf.put("policy-s", &refused);
    let seen = inspect(&shelf.path("policy-s.wasm")).unwrap();
    assert_eq!(seen.world.as_deref(), Some("review-policy@0.1.0"));
    assert_eq!(seen.problem.map(|problem| problem.code()), Some("ImportRefused"));
}

#[test]
fn no_damage_to_a_component_makes_the_host_panic() {
    let whole = driver("x");
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap()
    };
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(4) {
            if bytes.is_empty() {
                break;
            }
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                1 => bytes.truncate(at),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        refused += usize::from(inspect_bytes("driver-d", &bytes).is_err());
    }
    assert!(refused > 1_000, "damage is mostly noticed: {refused}");
}
