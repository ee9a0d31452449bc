//! Components from toolchains that import WASI whether they use it or not.

use crate::calls::of;
use crate::fixtures::{ALLOWED, DENIED, Policy, component_with};
use crate::shelf::{fault, listen, policy, review, says};

const IO: &str = "package wasi:io@0.2.6;
    interface error { resource error; }
    interface poll { resource pollable { block: func(); } }
    interface streams {
        use error.{error};
        variant stream-error { last-operation-failed(error), closed }
        resource output-stream { blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>; }
    }";

#[tokio::test]
async fn a_guest_with_wasi_finds_no_environment_and_the_same_random_numbers_each_time() {
    let wasi = [
        "package wasi:cli@0.2.6; interface environment { get-environment: func() -> list<tuple<string, string>>; }",
        "package wasi:random@0.2.6; interface random { get-random-u64: func() -> u64; }",
        "package test:guest; world guest {
            include hostler:plugin/review-policy@0.1.0;
            import wasi:cli/environment@0.2.6;
            import wasi:random/random@0.2.6;
        }",
    ];
    // The message has two characters: whether the environment was empty, and one that the random number picks.
    let review = format!(
        "(call $environment (i32.const 3000))
         (i32.store8 (i32.const 512) (select (i32.const 101) (i32.const 102) (i32.eqz (i32.load (i32.const 3004)))))
         (i32.store8 (i32.const 513)
            (i32.add (i32.const 97) (i32.wrap_i64 (i64.rem_u (call $random) (i64.const 26)))))
         {DENIED}"
    );
    let module = Policy {
        review: &review,
        imports: r#"(import "wasi:cli/environment@0.2.6" "get-environment" (func $environment (param i32)))
                    (import "wasi:random/random@0.2.6" "get-random-u64" (func $random (result i64)))"#,
        says: "??",
        ..Policy::default()
    }
    .module();
    let (_shelf, catalog) = of(&component_with("guest", &wasi, &module), "").await;
    let first = says(&catalog).await;
    assert!(first.starts_with('e'), "its environment is empty: {first}");
    assert_eq!(says(&catalog).await, first);
}

#[tokio::test]
async fn what_a_guest_prints_goes_to_its_log_and_more_than_that_nowhere() {
    let (lines, _guard) = listen();
    let packages = [
        IO,
        "package wasi:cli@0.2.6; interface stdout {
            use wasi:io/streams@0.2.6.{output-stream};
            get-stdout: func() -> output-stream;
        }",
        "package test:guest; world guest {
            include hostler:plugin/review-policy@0.1.0;
            import wasi:io/streams@0.2.6;
            import wasi:cli/stdout@0.2.6;
        }",
    ];
    // Prints 20 bytes a thousand times: more than is kept, and it must not matter to the guest.
    let review = format!(
        "(local $out i32) (local $n i32)
         (local.set $out (call $stdout))
         (loop $on
            (call $print (local.get $out) (i32.const 512) (i32.const 20) (i32.const 3000))
            (if (i32.load8_u (i32.const 3000)) (then unreachable))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $on (i32.lt_u (local.get $n) (i32.const 1000))))
         {ALLOWED}"
    );
    let module = Policy {
        review: &review,
        imports: r#"
            (import "wasi:cli/stdout@0.2.6" "get-stdout" (func $stdout (result i32)))
            (import "wasi:io/streams@0.2.6" "[method]output-stream.blocking-write-and-flush"
                (func $print (param i32 i32 i32 i32)))"#,
        says: "one line of a guest\n",
        ..Policy::default()
    }
    .module();
    let (_shelf, catalog) = of(
        &component_with("guest", &packages, &module),
        "[limits]\ntime = \"5s\"\n",
    )
    .await;
    assert!(self::review(&policy(&catalog)).await.unwrap().allowed);
    let kept = lines
        .taken()
        .iter()
        .filter(|line| line.contains("one line of a guest"))
        .count();
    assert_eq!(kept, 32);
}

#[tokio::test]
async fn a_guest_that_exits_ends_its_call_and_nothing_else() {
    let packages = [
        "package wasi:cli@0.2.6; interface exit { exit: func(status: result); }",
        "package test:guest; world guest {
            include hostler:plugin/review-policy@0.1.0;
            import wasi:cli/exit@0.2.6;
        }",
    ];
    let module = Policy {
        review: "(call $exit (i32.const 1)) (i32.const 256)",
        imports: r#"(import "wasi:cli/exit@0.2.6" "exit" (func $exit (param i32)))"#,
        ..Policy::default()
    }
    .module();
    let (_shelf, catalog) = of(&component_with("guest", &packages, &module), "").await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginTrapped");
    assert!(text.contains("exited with status 1"), "{text}");
}

#[tokio::test]
async fn a_guest_that_sleeps_is_ended_by_the_outer_limit_which_no_epoch_would_reach() {
    let packages = [
        IO,
        "package wasi:clocks@0.2.6; interface monotonic-clock {
            use wasi:io/poll@0.2.6.{pollable};
            subscribe-duration: func(when: u64) -> pollable;
        }",
        "package test:guest; world guest {
            include hostler:plugin/review-policy@0.1.0;
            import wasi:io/poll@0.2.6;
            import wasi:clocks/monotonic-clock@0.2.6;
        }",
    ];
    let module = Policy {
        review: "(call $block (call $sleep (i64.const 86400000000000))) (i32.const 256)",
        imports: r#"
            (import "wasi:clocks/monotonic-clock@0.2.6" "subscribe-duration" (func $sleep (param i64) (result i32)))
            (import "wasi:io/poll@0.2.6" "[method]pollable.block" (func $block (param i32)))"#,
        ..Policy::default()
    }
    .module();
    let (_shelf, catalog) = of(
        &component_with("guest", &packages, &module),
        "[limits]\ntime = \"20ms\"\n",
    )
    .await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginTimedOut");
    assert!(text.contains("waited too long"), "{text}");
}
