//! Components in text: the smallest that do what a test needs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

fn wit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit/v0.1")
}

/// Encodes a core module as a component of a world of ours.
pub(crate) fn component(world: &str, module: &str) -> Vec<u8> {
    component_with(world, &[], module)
}

/// The same with further WIT packages, of which the last may define the world.
pub(crate) fn component_with(world: &str, packages: &[&str], module: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (mut package, _) = resolve.push_dir(wit()).unwrap();
    for (at, text) in packages.iter().enumerate() {
        package = resolve.push_str(format!("{at}.wit"), text).unwrap();
    }
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut bytes = wat::parse_str(module).unwrap_or_else(|error| panic!("{error}"));
    embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default()
        .module(&bytes)
        .unwrap()
        .validate(true)
        .encode()
        .unwrap()
}

/// What `wit-bindgen` leaves in a module: the description of its world.
pub(crate) fn description_of(world: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit()).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    wit_component::metadata::encode(&resolve, world, StringEncoding::UTF8, None).unwrap()
}

/// A policy, in parts. What is left alone accepts `claim` and allows everything.
pub(crate) struct Policy<'a> {
    /// Body of `accepts`; leaves a pointer.
    pub(crate) accepts: &'a str,
    /// Body of `review`; leaves a pointer. Parameters 4 and 5 are the request's JSON.
    pub(crate) review: &'a str,
    /// Imports, which text must have first.
    pub(crate) imports: &'a str,
    /// More fields of the module.
    pub(crate) more: &'a str,
    /// What a denial says.
    pub(crate) says: &'a str,
    /// Version of the contract.
    pub(crate) version: &'a str,
}

/// Where the parts of answers are in the fixture's memory.
pub(crate) const ACCEPTED: &str = "(i32.const 16)";
pub(crate) const ALLOWED: &str = "(i32.const 256)";
pub(crate) const DENIED: &str = "(i32.const 320)";

impl Default for Policy<'_> {
    fn default() -> Self {
        Self {
            accepts: ACCEPTED,
            review: ALLOWED,
            imports: "",
            more: "",
            says: "no",
            version: "0.1.0",
        }
    }
}

impl Policy<'_> {
    pub(crate) fn module(&self) -> String {
        let Self {
            accepts,
            review,
            imports,
            more,
            says,
            version,
        } = self;
        let length = says.len();
        let says: String = says.bytes().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "\\{byte:02x}");
            text
        });
        let denial = number(length);
        format!(
            r#"(module
            {imports}
            (memory (export "memory") 2)
            (global $heap (mut i32) (i32.const 65536))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local i32)
                (local.set 4 (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
                (global.set $heap (i32.add (local.get 4) (local.get 3)))
                (block $fits
                    (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
                    (br_if $fits (i32.ne (i32.const -1)
                        (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get 3) (i32.const 16))))))
                    (unreachable))
                (local.get 4))
            (func (export "hostler:plugin/policy@{version}#accepts") (param i32 i32) (result i32)
                {accepts})
            (func (export "hostler:plugin/policy@{version}#review")
                (param i32 i32 i32 i32 i32 i32) (result i32)
                {review})
            ;; ok, [{{kind: "claim", wants: []}}]
            (data (i32.const 16) "\00\00\00\00\40\00\00\00\01\00\00\00")
            (data (i32.const 64) "\80\00\00\00\05\00\00\00\00\00\00\00\00\00\00\00")
            (data (i32.const 128) "claim")
            ;; allowed
            (data (i32.const 256) "\01")
            ;; denied, [{{code: "No", message: …}}]
            (data (i32.const 320) "\00\00\00\00\80\01\00\00\01\00\00\00")
            (data (i32.const 384) "\c0\01\00\00\02\00\00\00\00\02\00\00{denial}")
            (data (i32.const 448) "No")
            (data (i32.const 512) "{says}")
            ;; error, {{code: "Bad", message: "bad settings"}}
            (data (i32.const 2048) "\01\00\00\00\40\08\00\00\03\00\00\00\60\08\00\00\0c\00\00\00")
            (data (i32.const 2112) "Bad")
            (data (i32.const 2144) "bad settings")
            {more})"#
        )
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        component("review-policy", &self.module())
    }
}

/// Four bytes of a number, for a data segment.
fn number(value: usize) -> String {
    u32::try_from(value)
        .unwrap()
        .to_le_bytes()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "\\{byte:02x}");
            text
        })
}

pub(crate) fn allowing() -> Vec<u8> {
    Policy::default().build()
}

/// Denies, and says so.
pub(crate) fn denying(says: &str) -> Vec<u8> {
    Policy {
        review: DENIED,
        says,
        ..Policy::default()
    }
    .build()
}

pub(crate) fn trapping() -> Vec<u8> {
    Policy {
        review: "unreachable",
        ..Policy::default()
    }
    .build()
}

/// Never ends.
pub(crate) const FOREVER: &str = "(loop $on (br $on)) unreachable";

pub(crate) fn looping() -> Vec<u8> {
    Policy {
        review: FOREVER,
        ..Policy::default()
    }
    .build()
}

/// Computes for so many rounds of a few nanoseconds, then denies.
pub(crate) fn slow(rounds: u64, says: &str) -> Vec<u8> {
    let review = format!(
        "(local $left i64) (local.set $left (i64.const {rounds}))
         (loop $on
            (local.set $left (i64.sub (local.get $left) (i64.const 1)))
            (br_if $on (i64.ne (local.get $left) (i64.const 0))))
         {DENIED}"
    );
    Policy {
        review: &review,
        says,
        ..Policy::default()
    }
    .build()
}

/// Trial calls pass, requests whose JSON is longer than 40 bytes trap.
pub(crate) fn trapping_on_long_requests() -> Vec<u8> {
    let review = format!("(if (i32.gt_u (local.get 5) (i32.const 40)) (then unreachable)) {ALLOWED}");
    Policy {
        review: &review,
        ..Policy::default()
    }
    .build()
}

/// A driver that describes itself with one property, and whose other functions trap.
pub(crate) fn driver(property: &str) -> Vec<u8> {
    let object = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)";
    let length = number(property.len());
    let by_pointer = ["machine-of", "prepare", "provision", "release"].iter().fold(
        String::new(),
        |mut text, f| {
            let _ = write!(
                text,
                r#"(func (export "hostler:plugin/driver@0.1.0#{f}") (param i32) (result i32) unreachable)"#
            );
            text
        },
    );
    let module = format!(
        r#"(module
        (memory (export "memory") 2)
        (global $heap (mut i32) (i32.const 4096))
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local i32)
            (local.set 4 (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
            (global.set $heap (i32.add (local.get 4) (local.get 3)))
            (local.get 4))
        (func (export "hostler:plugin/driver@0.1.0#describe") {object} (result i32) (i32.const 16))
        {by_pointer}
        ;; ok: config-schema "{{}}", no cluster, no uses, no types, [property]
        (data (i32.const 20) "\80\00\00\00\02\00\00\00")
        (data (i32.const 56) "\90\00\00\00\01\00\00\00")
        (data (i32.const 128) "{{}}")
        (data (i32.const 144) "\a0\00\00\00{length}")
        (data (i32.const 160) "{property}"))"#
    );
    component("machine-driver", &module)
}

/// A resolver that chooses the first candidate if there is one.
pub(crate) fn resolver() -> Vec<u8> {
    // settings, tenant, project, enrollment, optional claim, candidates: more than sixteen words, so one pointer to all of them. The
    // count of candidates is the last word: 8 + 3 * 52 + 56 + 4.
    let module = r#"(module
        (memory (export "memory") 2)
        (global $heap (mut i32) (i32.const 4096))
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local i32)
            (local.set 4 (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
            (global.set $heap (i32.add (local.get 4) (local.get 3)))
            (local.get 4))
        (func (export "hostler:plugin/resolver@0.1.0#resolve") (param i32) (result i32)
            (i32.store8 (i32.const 20) (i32.ne (i32.const 0) (i32.load (i32.add (local.get 0) (i32.const 224)))))
            (i32.const 16))
        (data (i32.const 28) "\80\00\00\00\05\00\00\00")
        (data (i32.const 128) "first"))"#;
    component("profile-resolver", module)
}

/// Small to read and ruinous to compile: random data flow through thousands of locals, with a way out after each step.
pub(crate) fn compile_bomb(steps: usize) -> Vec<u8> {
    const LOCALS: u64 = 5_000;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % LOCALS
    };
    let mut body = String::from("(func $bomb (local");
    body.push_str(&" i32".repeat(usize::try_from(LOCALS).unwrap()));
    body.push_str(") loop\n");
    for _ in 0..steps {
        let (a, b, c) = (random(), random(), random());
        let _ = writeln!(body, "local.get {a} local.get {b} i32.add local.tee {c} br_if 0");
    }
    body.push_str("end)");
    Policy {
        more: &body,
        ..Policy::default()
    }
    .build()
}
