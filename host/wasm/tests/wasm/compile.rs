//! The compiler: a child with limits, and a cache that trusts nobody.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use hostler_core::seams::Plugins as _;
use hostler_wasm::{CompileCommand, CompileLimits, CompileWith};

use crate::fixtures::{allowing, compile_bomb, denying, driver};
use crate::shelf::{Shelf, error, policy, review, says, state};

fn files(shelf: &Shelf, ends: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(shelf.state().join("compiled")).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ends))
        .collect()
}

#[tokio::test]
async fn a_compile_bomb_dies_with_its_compiler_and_everything_else_serves() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &allowing())
        .put("a-bomb", &compile_bomb(20_000));
    assert!(
        fs::metadata(shelf.path("a-bomb.wasm")).unwrap().len() < 400_000,
        "no limit on size would stop it"
    );
    let mut options = shelf.options();
    options.compile_limits = CompileLimits {
        memory: 600 << 20,
        time: Duration::from_secs(600),
    };
    let catalog = shelf.open_with(options).await;
    let (code, text) = error(&catalog, "a-bomb");
    assert_eq!(code, "CompileMemory");
    assert!(text.contains("600 MiB"), "{text}");
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
    assert_eq!(
        files(&shelf, ".cwasm").len(),
        1,
        "nothing of the bomb is left in the cache"
    );
}

#[tokio::test]
async fn a_compilation_that_takes_too_long_is_killed() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &allowing())
        .put("a-bomb", &compile_bomb(20_000));
    let mut options = shelf.options();
    options.compile_limits = CompileLimits {
        memory: 8 << 30,
        time: Duration::from_secs(2),
    };
    let catalog = shelf.open_with(options).await;
    let (code, text) = error(&catalog, "a-bomb");
    assert_eq!(code, "CompileTimeout");
    assert!(text.contains("within 2 s"), "{text}");
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
}

#[tokio::test]
async fn a_compiler_that_cannot_be_run_is_said_so() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &allowing());
    let mut options = shelf.options();
    options.compile = CompileWith::Child(CompileCommand {
        program: "/nonexistent/compiler".into(),
        args: Vec::new(),
    });
    let catalog = shelf.open_with(options).await;
    assert_eq!(error(&catalog, "policy-p").0, "CompileFailed");
}

#[tokio::test]
async fn a_compiler_that_lies_about_what_it_wrote_is_not_believed() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &allowing());
    let mut options = shelf.options();
    let script = "cat > /dev/null; printf 'native code'; echo sha256:0000 >&2";
    options.compile = CompileWith::Child(CompileCommand {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
    });
    let catalog = shelf.open_with(options).await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "CompileFailed");
    assert!(text.contains("not what it says"), "{text}");
}

#[tokio::test]
async fn a_second_start_takes_the_code_from_the_cache_and_needs_no_compiler() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("cached"));
    drop(shelf.open().await);
    let mut options = shelf.options();
    options.compile = CompileWith::Child(CompileCommand {
        program: "/nonexistent/compiler".into(),
        args: Vec::new(),
    });
    let catalog = shelf.open_with(options).await;
    assert_eq!(says(&catalog).await, "cached");
}

#[tokio::test]
async fn code_that_was_tampered_with_in_the_cache_is_compiled_again_and_not_run() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("mine"));
    drop(shelf.open().await);
    let [code] = files(&shelf, ".cwasm").try_into().unwrap();
    let honest = fs::read(&code).unwrap();
    let mut forged = honest.clone();
    let middle = forged.len() / 2;
    forged[middle..middle + 64].fill(0xcc);
    fs::write(&code, &forged).unwrap();
    let catalog = shelf.open().await;
    assert_eq!(says(&catalog).await, "mine");
    assert_eq!(fs::read(&code).unwrap(), honest, "the cache is whole again");
}

#[tokio::test]
async fn code_of_another_build_that_was_recorded_properly_is_compiled_again() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("mine"))
        .put("driver-d", &driver("x"));
    drop(shelf.open().await);
    // As if an earlier build had left it: well recorded, and not for this engine.
    for (code, digest) in files(&shelf, ".cwasm").iter().zip(files(&shelf, ".sha256")) {
        fs::remove_file(code).unwrap();
        fs::remove_file(digest).unwrap();
    }
    let catalog = shelf.open().await;
    assert_eq!(says(&catalog).await, "mine");
    assert!(state(&catalog, "driver-d").unwrap().healthy);
    assert!(catalog.driver("driver-d", None).is_ok());
}

#[test]
fn the_child_refuses_a_component_that_is_not_the_one_it_was_sent_for() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &allowing());
    let input = fs::File::open(shelf.path("policy-p.wasm")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_hostler-compile"))
        .args([format!("sha256:{}", "0".repeat(64)).as_str(), "2147483648", "60"])
        .stdin(Stdio::from(input))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("changed on its way"));
}

#[test]
fn the_child_without_its_arguments_says_what_it_takes() {
    let output = Command::new(env!("CARGO_BIN_EXE_hostler-compile"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("takes a digest"));
}
