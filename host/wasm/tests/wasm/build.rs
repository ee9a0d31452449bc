//! From a crate to a component, as a plugin author does it.

use std::fs;
use std::path::Path;

use hostler_wasm::encode::{Build, BuildError, build, encode};
use tempfile::TempDir;

use crate::fixtures::description_of;

/// A policy without a single dependency: the canonical ABI by hand.
const SOURCE: &str = r#"
#![no_std]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { core::arch::wasm32::unreachable() }

#[unsafe(link_section = "component-type:policy")]
#[used]
static WORLD: [u8; include_bytes!("world.bin").len()] = *include_bytes!("world.bin");

static mut HEAP: [u8; 65536] = [0; 65536];
static mut USED: usize = 0;

#[unsafe(export_name = "cabi_realloc")]
unsafe extern "C" fn realloc(_: usize, _: usize, align: usize, size: usize) -> usize {
    unsafe {
        USED = (USED + align - 1) & !(align - 1);
        let place = &raw mut HEAP as usize + USED;
        USED += size;
        place
    }
}

static ACCEPTED: [u32; 8] = [0; 8];
static ALLOWED: [u32; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

#[unsafe(export_name = "hostler:plugin/policy@0.1.0#accepts")]
extern "C" fn accepts(_: usize, _: usize) -> usize { ACCEPTED.as_ptr() as usize }

#[unsafe(export_name = "hostler:plugin/policy@0.1.0#review")]
extern "C" fn review(_: usize, _: usize, _: usize, _: usize, _: usize, _: usize) -> usize {
    ALLOWED.as_ptr() as usize
}
"#;

const MANIFEST: &str = r#"
[package]
name = "policy-tiny"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib"]
[workspace]
[profile.guest]
inherits = "release"
opt-level = "s"
panic = "abort"
"#;

fn a_crate(manifest: &str, source: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("src/lib.rs"), source).unwrap();
    fs::write(
        folder.path().join("src/world.bin"),
        description_of("review-policy"),
    )
    .unwrap();
    folder
}

fn built(folder: &Path) -> Result<hostler_wasm::encode::Built, BuildError> {
    build(&Build::new(folder))
}

#[test]
fn a_crate_becomes_a_component_with_its_operator_file_beside_it() {
    let folder = a_crate(MANIFEST, SOURCE);
    fs::write(
        folder.path().join("policy-tiny.toml"),
        "[settings]\nstrict = true\n",
    )
    .unwrap();
    let made = built(folder.path()).unwrap();
    let components = folder.path().canonicalize().unwrap().join("target/components");
    assert_eq!(made.component, components.join("policy-tiny.wasm"));
    assert_eq!(made.operator_file, Some(components.join("policy-tiny.toml")));
    assert_eq!(made.inspection.world.as_deref(), Some("review-policy@0.1.0"));
    assert_eq!(made.inspection.problem, None);
    assert_eq!(fs::metadata(&made.component).unwrap().len(), made.inspection.size);
    assert!(
        components.join("../wasm32-unknown-unknown/guest").exists(),
        "built with the profile for guests"
    );

    fs::write(
        folder.path().join("policy-tiny.toml"),
        "[limits]\nmemory = \"lots\"\n",
    )
    .unwrap();
    let refused = built(folder.path()).unwrap_err();
    assert!(matches!(refused, BuildError::OperatorFile { .. }), "{refused}");

    let out = folder.path().join("elsewhere");
    fs::remove_file(folder.path().join("policy-tiny.toml")).unwrap();
    let again = build(&Build {
        out: Some(out.clone()),
        ..Build::new(folder.path())
    })
    .unwrap();
    assert_eq!(again.component, out.join("policy-tiny.wasm"));
    assert_eq!(
        again.inspection.digest, made.inspection.digest,
        "the same source makes the same bytes"
    );
}

#[test]
fn a_crate_that_makes_no_module_or_none_of_a_world_says_what_is_missing() {
    let folder = a_crate(&MANIFEST.replace("crate-type = [\"cdylib\"]", ""), "");
    let error = built(folder.path()).unwrap_err();
    assert!(
        matches!(&error, BuildError::NoModule(name) if name == "policy-tiny"),
        "{error}"
    );
    assert!(error.to_string().contains("cdylib"));

    let folder = a_crate(MANIFEST, "#[unsafe(no_mangle)] pub extern \"C\" fn nothing() {}");
    let error = built(folder.path()).unwrap_err();
    assert!(
        matches!(
            error,
            BuildError::NotEncoded { .. } | BuildError::NotLoadable { .. }
        ),
        "{error}"
    );
    assert!(!folder.path().join("target/components/policy-tiny.wasm").exists());
}

#[test]
fn what_is_no_crate_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        built(&folder.path().join("not-there"))
            .unwrap_err()
            .to_string()
            .contains("not-there")
    );
    let no_cargo = Build {
        cargo: "/nonexistent/cargo".into(),
        ..Build::new(folder.path())
    };
    assert!(matches!(
        build(&no_cargo).unwrap_err(),
        BuildError::NoCargo { .. }
    ));
}

#[test]
fn bytes_that_are_no_module_are_not_encoded() {
    assert!(encode(b"\0asm garbage").is_err());
    assert!(encode(b"").is_err());
}
