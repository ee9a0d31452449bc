//! Single calls: answers, limits, traps, and what the caller is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostler_core::seams::{Candidate, Failure, Object, Plugins as _, Subject};
use hostler_wasm::{Pool, Sandbox, SandboxOptions};
use rstest::rstest;
use serde_json::json;

use crate::fixtures::{
    ALLOWED, DENIED, FOREVER, Policy, allowing, denying, driver, looping, resolver, slow, trapping,
    trapping_on_long_requests,
};
use crate::shelf::{PATIENCE, Shelf, fault, policy, request, review, state, until};

fn object(kind: &str) -> Object {
    Object {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        namespace: Some("team".to_owned()),
        name: "one".to_owned(),
        uid: "u".to_owned(),
        json: Arc::new(json!({ "kind": kind })),
    }
}

pub(crate) async fn of(component: &[u8], grant: &str) -> (Shelf, Arc<hostler_wasm::Catalog>) {
    let shelf = Shelf::new();
    shelf.put("policy-p", component).grant("policy-p", grant);
    let catalog = shelf.open().await;
    (shelf, catalog)
}

#[tokio::test]
async fn a_policy_allows_and_another_denies_with_its_reason() {
    let (_shelf, catalog) = of(&allowing(), "").await;
    let allowed = review(&policy(&catalog)).await.unwrap();
    assert!(allowed.allowed && allowed.reasons.is_empty());
    assert_eq!(policy(&catalog).interests(), [("claim".to_owned(), vec![])]);

    let (_shelf, catalog) = of(&denying("not on Sundays\n\u{1b}[31m"), "").await;
    let denied = review(&policy(&catalog)).await.unwrap();
    assert!(!denied.allowed);
    assert_eq!(denied.reasons[0].code, "No");
    assert_eq!(denied.reasons[0].message, "not on Sundays [31m");
}

#[tokio::test]
async fn a_driver_and_a_resolver_answer_through_the_seams() {
    let shelf = Shelf::new();
    shelf
        .put("driver-d", &driver("rack"))
        .put("resolver-r", &resolver());
    let catalog = shelf.open().await;
    let driver = catalog.driver("driver-d", None).unwrap();
    let description = driver.describe(&object("NodeProvider")).await.unwrap();
    assert_eq!(description.properties, ["rack"]);
    assert_eq!(description.config_schema, json!({}));

    let trapped = driver
        .machine_of(&object("NodeProvider"), &object("BareMetalHost"), &[])
        .await
        .unwrap_err();
    assert!(
        matches!(&trapped, Failure::Faulty(reason) if reason.code == "PluginTrapped"),
        "{trapped:?}"
    );

    let subject = Subject {
        tenant: object("V"),
        project: object("P"),
        enrollment: object("E"),
        claim: Some(object("C")),
    };
    let candidate = Candidate {
        source: "explicit".to_owned(),
        profile: "gpu".to_owned(),
        exists: true,
    };
    let resolver = catalog.resolver().unwrap();
    let chosen = resolver.resolve(&subject, &[candidate]).await.unwrap();
    assert_eq!((chosen.chosen, chosen.why.as_str()), (Some(0), "first"));
    assert_eq!(resolver.resolve(&subject, &[]).await.unwrap().chosen, None);
}

#[tokio::test]
async fn a_call_after_a_trap_works_because_each_has_a_store_of_its_own() {
    let (_shelf, catalog) = of(&trapping_on_long_requests(), "").await;
    let policy = policy(&catalog);
    let long = request(json!({ "long": "x".repeat(100) }));
    for _ in 0..3 {
        let trapped = policy.review(&long).await.unwrap_err();
        assert_eq!(trapped.reason().code, "PluginTrapped");
        assert!(trapped.reason().message.contains("unreachable"), "{trapped}");
        assert!(review(&policy).await.unwrap().allowed);
    }
    assert_eq!(state(&catalog, "policy-p").unwrap().faults, 3);
}

#[tokio::test]
async fn a_loop_is_stopped_at_the_limit_of_its_operator_file_and_the_text_says_all() {
    let (_shelf, catalog) = of(&looping(), "[limits]\ntime = \"70ms\"\n").await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginTimedOut");
    let digest = state(&catalog, "policy-p").unwrap().serving.unwrap();
    for part in [
        "policy-p",
        &digest[..19],
        "`review`",
        "ran out of time",
        "limit is 70 ms",
        "policy-p.toml",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[tokio::test]
async fn a_plugin_without_a_time_of_its_own_gets_the_usual_one_and_not_none() {
    // Some tens of milliseconds of work: more than one tick, less than the usual limit even on a busy machine.
    let (_shelf, catalog) = of(&slow(10_000_000, "done"), "").await;
    assert_eq!(
        review(&policy(&catalog)).await.unwrap().reasons[0].message,
        "done"
    );
}

#[test]
fn a_busy_guest_on_a_runtime_of_one_thread_lets_others_go_on_and_is_stopped() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_shelf, catalog) = of(&looping(), "[limits]\ntime = \"300ms\"\n").await;
        let policy = policy(&catalog);
        let done = Arc::new(AtomicBool::new(false));
        let neighbour = tokio::spawn({
            let done = done.clone();
            async move {
                let mut turns = 0;
                while !done.load(Ordering::Relaxed) {
                    tokio::task::yield_now().await;
                    turns += 1;
                }
                turns
            }
        });
        assert_eq!(fault(&policy).await.0, "PluginTimedOut");
        done.store(true, Ordering::Relaxed);
        assert!(
            neighbour.await.unwrap() > 5,
            "the other task had its turns meanwhile"
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_that_runs_out_of_time_takes_nobody_with_it() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &slow(30_000_000, "done"))
        .grant("policy-p", "[limits]\ntime = \"20s\"\n");
    shelf
        .put("policy-q", &looping())
        .grant("policy-q", "[limits]\ntime = \"20ms\"\n");
    let mut options = shelf.options();
    options.required.policies = vec!["policy-p".to_owned(), "policy-q".to_owned()];
    let catalog = shelf.open_with(options).await;
    let policies = catalog.policies().unwrap();
    let (slow, looping) = tokio::join!(review(&policies[0]), review(&policies[1]));
    assert_eq!(looping.unwrap_err().reason().code, "PluginTimedOut");
    assert_eq!(slow.unwrap().reasons[0].message, "done");
}

#[rstest]
#[case::wild_pointer("(i32.const -8)")]
#[case::no_utf8("(i32.store8 (i32.const 512) (i32.const 255)) (i32.const 320)")]
#[case::bad_boolean_and_list("(i32.store (i32.const 324) (i32.const 3)) (i32.const 320)")]
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_fault_and_no_more(#[case] review: &str) {
    let (_shelf, catalog) = of(
        &Policy {
            review,
            ..Policy::default()
        }
        .build(),
        "",
    )
    .await;
    assert_eq!(fault(&policy(&catalog)).await.0, "PluginAnswerInvalid");
}

#[tokio::test]
async fn endless_recursion_is_a_trap_of_the_guest_and_not_of_the_host() {
    let deep = Policy {
        review: "(call $f) (i32.const 256)",
        more: "(func $f (call $f))",
        ..Policy::default()
    };
    let (_shelf, catalog) = of(&deep.build(), "").await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginTrapped");
    assert!(text.contains("call stack exhausted"), "{text}");
}

#[tokio::test]
async fn a_call_that_is_dropped_in_the_middle_gives_its_seat_back() {
    let sandbox = Sandbox::new(SandboxOptions {
        concurrency: 1,
        pool: Pool::Auto,
    })
    .unwrap();
    let shelf = Shelf::new();
    let review = format!("(if (i32.gt_u (local.get 5) (i32.const 40)) (then {FOREVER})) {ALLOWED}");
    shelf.put(
        "policy-p",
        &Policy {
            review: &review,
            ..Policy::default()
        }
        .build(),
    );
    shelf.grant("policy-p", "[limits]\ntime = \"30s\"\n");
    let mut options = shelf.options();
    options.sandbox = Some(sandbox);
    let catalog = shelf.open_with(options).await;
    let policy = policy(&catalog);
    for _ in 0..5 {
        let long = request(json!({ "long": "x".repeat(100) }));
        let endless = tokio::spawn({
            let policy = policy.clone();
            async move { policy.review(&long).await }
        });
        tokio::task::yield_now().await;
        endless.abort();
        assert!(endless.await.unwrap_err().is_cancelled());
        let next = tokio::time::timeout(PATIENCE, self::review(&policy)).await;
        assert!(next.unwrap().unwrap().allowed);
    }
    assert_eq!(state(&catalog, "policy-p").unwrap().faults, 0);
}

#[tokio::test]
async fn without_a_seat_in_time_a_call_is_put_off_and_nobody_is_blamed() {
    let sandbox = Sandbox::new(SandboxOptions {
        concurrency: 1,
        pool: Pool::OnDemand,
    })
    .unwrap();
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &looping())
        .grant("policy-p", "[limits]\ntime = \"30s\"\n");
    shelf
        .put("policy-q", &allowing())
        .grant("policy-q", "[limits]\ntime = \"10ms\"\n");
    let mut options = shelf.options();
    options.sandbox = Some(sandbox);
    options.required.policies = vec!["policy-p".to_owned(), "policy-q".to_owned()];
    let catalog = shelf.open_with(options).await;
    let policies = catalog.policies().unwrap();
    let holding = tokio::spawn({
        let policy = policies[0].clone();
        async move { review(&policy).await }
    });
    // The loop takes the only seat as soon as it is polled; until then the other is served.
    let put_off = loop {
        if let Err(failure) = review(&policies[1]).await {
            break failure;
        }
        tokio::task::yield_now().await;
    };
    assert!(
        matches!(&put_off, Failure::Broken(reason) if reason.code == "HostBusy"),
        "{put_off:?}"
    );
    holding.abort();
    assert!(holding.await.unwrap_err().is_cancelled());
    assert!(review(&policies[1]).await.unwrap().allowed);
    assert_eq!(state(&catalog, "policy-q").unwrap().faults, 0);
}

#[tokio::test]
async fn thousands_of_calls_leave_nothing_behind() {
    let (_shelf, catalog) = of(&allowing(), "").await;
    let policy = policy(&catalog);
    for _ in 0..5_000 {
        assert!(review(&policy).await.unwrap().allowed);
    }
}

/// Logs a line each time it is asked, and says for how many seconds its answer is good. Wants to know the time, if so told.
fn counting(seconds: u8, wants_now: bool) -> Vec<u8> {
    let review = format!(
        "(call $log (i32.const 1) (i32.const 512) (i32.const 5))
         (i32.store8 (i32.const 268) (i32.const 1)) (i32.store (i32.const 272) (i32.const {seconds})) {ALLOWED}"
    );
    // wants: one entry at 3100, which is three bytes at 3200.
    let wants = r#"(data (i32.const 72) "\1c\0c\00\00\01\00\00\00")
        (data (i32.const 3100) "\80\0c\00\00\03\00\00\00") (data (i32.const 3200) "now")"#;
    Policy {
        review: &review,
        imports: r#"(import "hostler:plugin/log@0.1.0" "write" (func $log (param i32 i32 i32)))"#,
        more: if wants_now { wants } else { "" },
        says: "asked",
        ..Policy::default()
    }
    .build()
}

#[tokio::test]
async fn an_equal_request_is_answered_from_memory_for_as_long_as_the_answer_is_good() {
    let (lines, _guard) = crate::shelf::listen();
    let asked = || lines.taken().iter().filter(|line| line.contains("asked")).count();
    let (_shelf, catalog) = of(&counting(5, false), "").await;
    let same = request(json!({ "same": 1 }));
    let first = policy(&catalog).review(&same).await.unwrap();
    assert_eq!((first.valid_for, asked()), (Some(5), 1));
    assert_eq!(policy(&catalog).review(&same).await.unwrap(), first);
    assert_eq!(asked(), 1, "the second answer came from memory");
    policy(&catalog)
        .review(&request(json!({ "same": 2 })))
        .await
        .unwrap();
    assert_eq!(asked(), 2, "another question");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    tokio::time::resume();
    assert_eq!(policy(&catalog).review(&same).await.unwrap(), first);
    assert_eq!(asked(), 3, "the answer is no longer good");
}

#[tokio::test]
async fn an_answer_of_one_who_asked_for_the_time_is_good_for_a_minute_at_most() {
    let (_shelf, catalog) = of(&counting(200, true), "").await;
    let policy = policy(&catalog);
    assert_eq!(policy.interests(), [("claim".to_owned(), vec!["now".to_owned()])]);
    assert_eq!(review(&policy).await.unwrap().valid_for, Some(60));
}

#[tokio::test]
async fn a_crash_loop_rests_longer_and_longer_and_a_new_version_ends_it_at_once() {
    let (shelf, catalog) = of(&trapping(), "").await;
    let looping = policy(&catalog);
    for _ in 0..5 {
        assert_eq!(fault(&looping).await.0, "PluginTrapped");
    }
    let (code, text) = fault(&looping).await;
    assert_eq!(code, "PluginBackingOff");
    assert!(text.contains("5 times in a row"), "{text}");
    let resting = state(&catalog, "policy-p").unwrap();
    assert_eq!((resting.faults, resting.healthy), (5, false));
    assert_eq!(resting.error.unwrap().code, "PluginBackingOff");

    shelf.put("policy-p", &denying("mended"));
    until(&catalog, |catalog| state(catalog, "policy-p").unwrap().healthy).await;
    assert_eq!(crate::shelf::says(&catalog).await, "mended");
    assert_eq!(
        state(&catalog, "policy-p").unwrap().faults,
        5,
        "what was counted stays counted"
    );
}

#[test]
fn the_ticker_beats_by_itself_and_its_silence_shows() {
    let sandbox = Sandbox::new(SandboxOptions {
        concurrency: 1,
        pool: Pool::OnDemand,
    })
    .unwrap();
    let start = Instant::now();
    while sandbox.since_last_beat() > Duration::from_millis(500) && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert!(sandbox.is_alive());
}

#[tokio::test]
async fn no_secret_crosses_to_a_guest_whatever_the_caller_left_in() {
    // Says what it was shown: the message is the request itself.
    let review = format!(
        "(i32.store (i32.const 392) (local.get 4)) (i32.store (i32.const 396) (local.get 5)) {DENIED}"
    );
    let (_shelf, catalog) = of(
        &Policy {
            review: &review,
            ..Policy::default()
        }
        .build(),
        "",
    )
    .await;
    let facts = json!({
        "claim": { "kind": "NodeClaim", "metadata": { "name": "c", "managedFields": [1] }, "token": "t0k3n" },
        "secret": { "kind": "Secret", "metadata": { "name": "bmc" }, "data": { "a": "aHVudGVyMg==" } },
    });
    let shown = policy(&catalog)
        .review(&request(facts))
        .await
        .unwrap()
        .reasons
        .remove(0)
        .message;
    let seen = json!({
        "claim": { "kind": "NodeClaim", "metadata": { "name": "c" } },
        "secret": { "kind": "Secret", "metadata": { "name": "bmc" } },
    });
    assert_eq!(shown, seen.to_string());
}

#[tokio::test]
async fn the_log_of_a_guest_is_cut_cleaned_counted_and_under_its_name() {
    let (lines, _guard) = crate::shelf::listen();
    let review = format!(
        "(local $n i32)
         (loop $on
            (call $log (i32.const 2) (i32.const 512) (i32.const 300))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $on (i32.lt_u (local.get $n) (i32.const 100))))
         {ALLOWED}"
    );
    let says = format!("\u{1b}[31mred\nline {}", "x".repeat(300));
    let talkative = Policy {
        review: &review,
        imports: r#"(import "hostler:plugin/log@0.1.0" "write" (func $log (param i32 i32 i32)))"#,
        says: &says,
        ..Policy::default()
    };
    let (_shelf, catalog) = of(&talkative.build(), "").await;
    assert!(self::review(&policy(&catalog)).await.unwrap().allowed);
    let lines = lines.taken();
    let kept: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("[31mred line xxx"))
        .collect();
    assert_eq!(kept.len(), 32, "{lines:#?}");
    for line in kept {
        assert!(
            line.contains("WARN") && line.contains("plugin=\"policy-p\"") && line.contains("review"),
            "{line}"
        );
        assert!(
            !line.contains('\u{1b}') && line.matches('x').count() < 256,
            "{line}"
        );
    }
    assert!(
        lines
            .iter()
            .any(|line| line.contains("68 more lines of this call were dropped")),
        "{lines:#?}"
    );
}
