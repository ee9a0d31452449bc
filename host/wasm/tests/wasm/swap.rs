//! Versions that come and go while the host runs, and what a restart remembers.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hostler_core::seams::{Object, Plugins as _};
use hostler_wasm::Catalog;
use serde_json::json;

use crate::fixtures::{Policy, allowing, denying, driver, looping, resolver, slow, trapping};
use crate::shelf::{Shelf, error, policy, review, says, state, until};

fn serving(catalog: &Catalog, name: &str) -> Option<String> {
    state(catalog, name).and_then(|state| state.serving)
}

async fn property(catalog: &Catalog, digest: Option<&str>) -> Option<String> {
    let driver = catalog.driver("driver-d", digest).ok()?;
    let provider = Object {
        api_version: "v1".to_owned(),
        kind: "NodeProvider".to_owned(),
        namespace: None,
        name: "p".to_owned(),
        uid: "u".to_owned(),
        json: Arc::new(json!({})),
    };
    driver.describe(&provider).await.ok()?.properties.pop()
}

#[tokio::test]
async fn a_new_version_is_what_answers_afterwards() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("one"));
    let catalog = shelf.open().await;
    let mut generation = catalog.generation();
    for version in ["two", "three", "one", "four"] {
        let before = serving(&catalog, "policy-p");
        shelf.put("policy-p", &denying(version));
        until(&catalog, |catalog| serving(catalog, "policy-p") != before).await;
        assert_eq!(says(&catalog).await, version);
        assert!(catalog.generation() > generation);
        generation = catalog.generation();
    }
}

#[tokio::test]
async fn a_file_that_is_copied_slowly_over_the_old_one_is_taken_when_it_is_whole() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("one"));
    let catalog = shelf.open().await;
    let new = denying("two");
    fs::write(shelf.path("policy-p.wasm"), &new[..100]).unwrap();
    until(&catalog, |catalog| !state(catalog, "policy-p").unwrap().healthy).await;
    assert_eq!(says(&catalog).await, "one", "the half is not taken");
    fs::write(shelf.path("policy-p.wasm"), &new).unwrap();
    until(&catalog, |catalog| state(catalog, "policy-p").unwrap().healthy).await;
    assert_eq!(says(&catalog).await, "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_end_on_the_version_they_began_on() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &slow(100_000_000, "old"))
        .grant("policy-p", "[limits]\ntime = \"30s\"\n");
    let catalog = shelf.open().await;
    let old = policy(&catalog);
    let under_way = tokio::spawn(async move { review(&old).await });
    let before = serving(&catalog, "policy-p");
    shelf.put("policy-p", &denying("new"));
    until(&catalog, |catalog| serving(catalog, "policy-p") != before).await;
    assert_eq!(says(&catalog).await, "new");
    assert_eq!(under_way.await.unwrap().unwrap().reasons[0].message, "old");
}

#[tokio::test]
async fn a_bad_new_version_changes_nothing_but_the_condition_also_across_a_restart() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("good"))
        .grant("policy-p", "[limits]\ntime = \"5s\"\n");
    let catalog = shelf.open().await;
    let good = serving(&catalog, "policy-p");
    let start = "(func $start unreachable) (start $start)";
    let bad_start = Policy {
        more: start,
        ..Policy::default()
    }
    .build();
    let refuses = Policy {
        accepts: "(i32.const 2048)",
        ..Policy::default()
    }
    .build();
    let traps = Policy {
        accepts: "unreachable",
        ..Policy::default()
    }
    .build();
    let whole = denying("other");
    for (bytes, code) in [
        (b"garbage".as_slice(), "NotWebAssembly"),
        (&bad_start, "ProbeFailed"),
        (&refuses, "SettingsRefused"),
        (&traps, "ProbeFailed"),
        (&driver("x"), "UnknownWorld"),
        (&whole[..whole.len() - 10], "InvalidComponent"),
    ] {
        shelf.put("policy-p", bytes);
        until(&catalog, |catalog| {
            state(catalog, "policy-p")
                .unwrap()
                .error
                .is_some_and(|error| error.code == code)
        })
        .await;
        let state = state(&catalog, "policy-p").unwrap();
        assert_eq!((&state.serving, state.healthy), (&good, false), "{code}");
        assert_ne!(state.on_disk, good, "{code}");
        assert_eq!(says(&catalog).await, "good", "{code}");
    }
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(serving(&catalog, "policy-p"), good);
    assert_eq!(error(&catalog, "policy-p").0, "InvalidComponent");
    assert_eq!(says(&catalog).await, "good");
}

#[tokio::test]
async fn a_bad_operator_file_leaves_version_and_grant_as_they_were() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("one"))
        .grant("policy-p", "[limits]\nmemory = \"16MiB\"\n");
    let catalog = shelf.open().await;
    let before = state(&catalog, "policy-p").unwrap();
    shelf.grant("policy-p", "[limits]\nmemory = \"as much as it likes\"\n");
    until(&catalog, |catalog| {
        state(catalog, "policy-p").unwrap().error.is_some()
    })
    .await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "GrantInvalid");
    assert!(text.starts_with("policy-p.toml: limits.memory"), "{text}");
    assert_eq!(state(&catalog, "policy-p").unwrap().grant, before.grant);
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(
        state(&catalog, "policy-p").unwrap().grant,
        before.grant,
        "also across a restart"
    );
    assert_eq!(says(&catalog).await, "one");
}

#[tokio::test]
async fn a_changed_operator_file_alone_is_a_new_version() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &looping())
        .grant("policy-p", "[limits]\ntime = \"20ms\"\n");
    let catalog = shelf.open().await;
    let digest = serving(&catalog, "policy-p");
    let failure = review(&policy(&catalog)).await.unwrap_err().to_string();
    assert!(failure.contains("limit is 20 ms"), "{failure}");
    let before = state(&catalog, "policy-p").unwrap().grant;
    shelf.grant("policy-p", "[limits]\ntime = \"60ms\"\n");
    until(&catalog, |catalog| {
        state(catalog, "policy-p").unwrap().grant != before
    })
    .await;
    assert_eq!(serving(&catalog, "policy-p"), digest);
    let failure = review(&policy(&catalog)).await.unwrap_err().to_string();
    assert!(failure.contains("limit is 60 ms"), "{failure}");
}

#[tokio::test]
async fn a_removed_policy_and_resolver_go_on_also_across_a_restart() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("still here"))
        .put("resolver-r", &resolver());
    let catalog = shelf.open().await;
    shelf.remove("policy-p");
    shelf.remove("resolver-r");
    let both_missed = |catalog: &Catalog| {
        ["policy-p", "resolver-r"].iter().all(|name| {
            state(catalog, name)
                .unwrap()
                .error
                .is_some_and(|error| error.code == "FileMissing")
        })
    };
    until(&catalog, both_missed).await;
    assert_eq!(says(&catalog).await, "still here");
    drop(catalog);
    let catalog = shelf.open().await;
    assert!(both_missed(&catalog));
    assert_eq!(says(&catalog).await, "still here");
    assert!(catalog.resolver().is_ok());
}

#[tokio::test]
async fn a_removed_driver_takes_no_new_orders_and_finishes_the_old_ones() {
    let shelf = Shelf::new();
    shelf.put("driver-d", &driver("one"));
    let catalog = shelf.open().await;
    let one = serving(&catalog, "driver-d").unwrap();
    shelf.remove("driver-d");
    until(&catalog, |catalog| state(catalog, "driver-d").is_none()).await;
    assert_eq!(property(&catalog, None).await, None);
    assert_eq!(property(&catalog, Some(&one)).await.as_deref(), Some("one"));
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(property(&catalog, None).await, None);
    assert_eq!(
        property(&catalog, Some(&one)).await.as_deref(),
        Some("one"),
        "also across a restart"
    );
}

#[tokio::test]
async fn an_order_finds_the_very_driver_that_it_names_until_nobody_names_it() {
    let shelf = Shelf::new();
    shelf.put("driver-d", &driver("one"));
    let catalog = shelf.open().await;
    let one = serving(&catalog, "driver-d").unwrap();
    shelf.put("driver-d", &driver("two"));
    until(&catalog, |catalog| {
        serving(catalog, "driver-d").is_some_and(|digest| digest != one)
    })
    .await;
    let two = serving(&catalog, "driver-d").unwrap();
    assert_eq!(property(&catalog, None).await.as_deref(), Some("two"));
    assert_eq!(property(&catalog, Some(&one)).await.as_deref(), Some("one"));
    assert_eq!(property(&catalog, Some(&two)).await.as_deref(), Some("two"));
    let other_name = catalog.driver("driver-e", Some(&one));
    assert!(other_name.is_err(), "a digest is served under its own name only");

    catalog.retain(&BTreeSet::from([one.clone()]));
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(
        property(&catalog, Some(&one)).await.as_deref(),
        Some("one"),
        "kept across a restart"
    );

    let held = catalog.driver("driver-d", Some(&one)).unwrap();
    catalog.retain(&BTreeSet::new());
    until(&catalog, |catalog| {
        catalog.driver("driver-d", Some(&one)).is_err()
    })
    .await;
    assert_eq!(
        property(&catalog, None).await.as_deref(),
        Some("two"),
        "what serves is never dropped"
    );
    assert_eq!(held.digest(), one, "who holds it goes on");
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(property(&catalog, Some(&one)).await, None);
    assert_eq!(property(&catalog, Some(&two)).await.as_deref(), Some("two"));
}

#[tokio::test]
async fn the_operators_word_of_today_binds_the_driver_of_yesterday() {
    let shelf = Shelf::new();
    let kind = |access: &str| {
        format!(
            "[[kinds]]\napiVersion = \"v1\"\nkind = \"ConfigMap\"\naccess = \"{access}\"\nnamespaces = [\"metal\"]\n"
        )
    };
    shelf
        .put("driver-d", &driver("one"))
        .grant("driver-d", &kind("manage"));
    let catalog = shelf.open().await;
    let one = serving(&catalog, "driver-d").unwrap();
    assert_eq!(
        catalog
            .driver("driver-d", Some(&one))
            .unwrap()
            .grant()
            .kinds
            .len(),
        1
    );
    shelf.put("driver-d", &driver("two"));
    shelf.grant("driver-d", "");
    until(&catalog, |catalog| {
        serving(catalog, "driver-d").is_some_and(|digest| digest != one)
            && catalog.driver("driver-d", None).unwrap().grant().kinds.is_empty()
    })
    .await;
    assert_eq!(catalog.driver("driver-d", Some(&one)).unwrap().grant().kinds, []);
}

#[tokio::test]
async fn a_directory_that_goes_away_changes_nothing_and_is_read_again_when_it_is_back() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("one"))
        .put("driver-d", &driver("x"));
    let mut options = shelf.options();
    options.rescan = Duration::from_millis(100);
    let catalog = shelf.open_with(options).await;
    let elsewhere = shelf.state().with_file_name("elsewhere");
    fs::rename(shelf.path(""), &elsewhere).unwrap();
    catalog.rescan();
    for _ in 0..3 {
        tokio::task::yield_now().await;
        assert_eq!(says(&catalog).await, "one");
        assert_eq!(property(&catalog, None).await.as_deref(), Some("x"));
    }
    fs::create_dir(shelf.path("")).unwrap();
    shelf
        .put("policy-p", &denying("two"))
        .put("driver-d", &driver("y"));
    until(&catalog, |catalog| {
        state(catalog, "driver-d").is_some_and(|state| state.healthy)
    })
    .await;
    let before = says(&catalog).await;
    if before == "one" {
        let digest = serving(&catalog, "policy-p");
        until(&catalog, |catalog| serving(catalog, "policy-p") != digest).await;
    }
    assert_eq!(says(&catalog).await, "two");
}

#[tokio::test]
async fn without_events_the_directory_is_read_again_all_the_same() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("one"));
    let mut options = shelf.options();
    options.settle = Duration::from_secs(3_600);
    options.rescan = Duration::from_millis(200);
    let catalog = shelf.open_with(options).await;
    let before = serving(&catalog, "policy-p");
    shelf.put("policy-p", &denying("two"));
    until(&catalog, |catalog| serving(catalog, "policy-p") != before).await;
    assert_eq!(says(&catalog).await, "two");
}

#[tokio::test]
async fn one_that_cannot_be_helped_does_not_stop_another_from_being_swapped() {
    let shelf = Shelf::new();
    shelf
        .put("policy-p", &denying("one"))
        .put("driver-d", &trapping());
    shelf.put("driver-e", b"garbage");
    let catalog = shelf.open().await;
    shelf
        .put("driver-e", &driver("mended"))
        .put("policy-p", &allowing());
    until(&catalog, |catalog| state(catalog, "driver-e").unwrap().healthy).await;
    until(&catalog, |catalog| state(catalog, "policy-p").unwrap().healthy).await;
    assert!(catalog.driver("driver-e", None).is_ok());
}

#[tokio::test]
async fn a_removed_driver_keeps_its_grant_for_the_orders_that_name_it() {
    let shelf = Shelf::new();
    let grant = "[[kinds]]\napiVersion = \"v1\"\nkind = \"ConfigMap\"\naccess = \"manage\"\nnamespaces = [\"metal\"]\n";
    shelf.put("driver-d", &driver("one")).grant("driver-d", grant);
    let catalog = shelf.open().await;
    let one = serving(&catalog, "driver-d").unwrap();
    shelf.remove("driver-d");
    fs::remove_file(shelf.path("driver-d.toml")).unwrap();
    until(&catalog, |catalog| state(catalog, "driver-d").is_none()).await;
    assert_eq!(
        catalog
            .driver("driver-d", Some(&one))
            .unwrap()
            .grant()
            .kinds
            .len(),
        1
    );
    drop(catalog);
    let catalog = shelf.open().await;
    assert_eq!(
        catalog
            .driver("driver-d", Some(&one))
            .unwrap()
            .grant()
            .kinds
            .len(),
        1
    );
}

#[tokio::test]
async fn a_host_that_lost_what_it_kept_starts_from_the_directory() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("one"));
    drop(shelf.open().await);
    fs::remove_dir_all(shelf.state().join("kept")).unwrap();
    fs::remove_dir_all(shelf.state().join("compiled")).unwrap();
    let catalog = shelf.open().await;
    assert_eq!(says(&catalog).await, "one");
    assert!(state(&catalog, "policy-p").unwrap().healthy);
}

#[tokio::test]
async fn code_that_is_mapped_survives_that_the_same_code_is_compiled_again() {
    let shelf = Shelf::new();
    shelf.put("policy-p", &denying("one"));
    let first = shelf.open().await;
    for entry in fs::read_dir(shelf.state().join("compiled")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sha256") {
            fs::write(path, "no digest").unwrap();
        }
    }
    let second = shelf.open().await;
    assert_eq!(says(&second).await, "one");
    drop(second);
    for _ in 0..10 {
        assert_eq!(says(&first).await, "one");
    }
}

#[tokio::test]
async fn a_driver_that_was_swapped_a_moment_ago_is_kept_for_an_order_not_heard_of_yet() {
    let shelf = Shelf::new();
    shelf.put("driver-d", &driver("one"));
    let mut options = shelf.options();
    options.grace = Duration::from_secs(3_600);
    let catalog = shelf.open_with(options).await;
    let one = serving(&catalog, "driver-d").unwrap();
    shelf.put("driver-d", &driver("two"));
    until(&catalog, |catalog| {
        serving(catalog, "driver-d").is_some_and(|digest| digest != one)
    })
    .await;
    let generation = catalog.generation();
    catalog.retain(&BTreeSet::new());
    // Something that comes after the sweep: when it is done, so is the sweep.
    shelf.put("driver-e", &driver("e"));
    until(&catalog, |catalog| {
        state(catalog, "driver-e").is_some_and(|state| state.healthy)
    })
    .await;
    assert_eq!(property(&catalog, Some(&one)).await.as_deref(), Some("one"));
    assert!(catalog.generation() > generation);
}

#[tokio::test]
async fn a_sweep_that_drops_nothing_wakes_nobody() {
    let shelf = Shelf::new();
    shelf.put("driver-d", &driver("one"));
    let catalog = shelf.open().await;
    let generation = catalog.generation();
    for _ in 0..10 {
        catalog.retain(&BTreeSet::new());
        catalog.rescan();
        tokio::task::yield_now().await;
    }
    let woken = tokio::time::timeout(Duration::from_millis(200), catalog.changed(generation)).await;
    assert!(woken.is_err(), "nothing changed, so nobody is told: {woken:?}");
}
