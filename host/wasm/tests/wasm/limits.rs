//! Each limit has an effect, and says so.

use crate::calls::of;
use crate::fixtures::{ALLOWED, DENIED, Policy, allowing, component};
use crate::shelf::{error, fault, policy, review};

/// A policy that also makes two instances of a module with a memory: three memories in one store.
fn two_memories(pages: u32) -> Vec<u8> {
    let big = wat::parse_str(format!("(module (memory {pages}))")).unwrap();
    let mut component = allowing();
    section(&mut component, 1, &big);
    // Two instances, each (instantiate of module 1, no arguments): the policy's own module is number 0.
    section(&mut component, 2, &[2, 0, 1, 0, 0, 1, 0]);
    component
}

fn section(component: &mut Vec<u8>, id: u8, content: &[u8]) {
    component.push(id);
    let mut left = content.len();
    while left > 127 {
        component.push(u8::try_from(left & 127).unwrap() | 128);
        left >>= 7;
    }
    component.push(u8::try_from(left).unwrap());
    component.extend_from_slice(content);
}

#[tokio::test]
async fn memories_are_summed_so_two_of_them_do_not_double_the_limit() {
    let limit = "[limits]\nmemory = \"8MiB\"\n";
    // Twice 32 pages are 4 MiB and fit with the fixture's own; twice 80 are 10 MiB, and each alone would fit.
    let (_shelf, catalog) = of(&two_memories(32), limit).await;
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
    let (_shelf, catalog) = of(&two_memories(80), limit).await;
    let (code, text) = error(&catalog, "policy-p");
    assert_eq!(code, "ProbeFailed");
    assert!(text.contains("memory") && text.contains("8388608"), "{text}");
}

#[tokio::test]
async fn growing_beyond_the_limit_is_a_fault_with_its_cause() {
    let review = format!("(drop (memory.grow (i32.const 200))) {ALLOWED}");
    let greedy = Policy {
        review: &review,
        ..Policy::default()
    }
    .build();
    let (_shelf, catalog) = of(&greedy, "[limits]\nmemory = \"4MiB\"\n").await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginOutOfMemory");
    assert!(
        text.contains("limit is 4194304") && text.contains("`memory` in [limits] of policy-p.toml"),
        "{text}"
    );
    let (_shelf, catalog) = of(&greedy, "").await;
    assert!(
        self::review(&policy(&catalog)).await.unwrap().allowed,
        "the usual limit is larger"
    );
}

/// Denies with one reason whose message is this long.
fn wordy(bytes: u32) -> Vec<u8> {
    let pages = bytes / 65_536 + 1;
    let review = format!(
        "(drop (memory.grow (i32.const {pages})))
         (memory.fill (i32.const 131072) (i32.const 120) (i32.const {bytes}))
         (i32.store (i32.const 392) (i32.const 131072)) (i32.store (i32.const 396) (i32.const {bytes}))
         {DENIED}"
    );
    Policy {
        review: &review,
        ..Policy::default()
    }
    .build()
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_a_fault_and_one_below_it_is_cut_for_people() {
    let (_shelf, catalog) = of(&wordy(900_000), "").await;
    let verdict = review(&policy(&catalog)).await.unwrap();
    assert_eq!(verdict.reasons[0].message.len(), 256);
    let (_shelf, catalog) = of(&wordy(1_500_000), "").await;
    assert_eq!(fault(&policy(&catalog)).await.0, "PluginAnswerTooLarge");
    let (_shelf, catalog) = of(&wordy(100_000), "[limits]\noutput = \"64KiB\"\n").await;
    let (code, text) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginAnswerTooLarge");
    assert!(text.contains("the limit is 65536"), "{text}");
}

#[tokio::test]
async fn a_small_memory_that_would_be_a_huge_answer_is_not_read_out() {
    // A million reasons that all are the same bytes of the guest: 28 MB there, gigabytes here.
    let review = format!(
        "(drop (memory.grow (i32.const 900)))
         (memory.fill (i32.const 131072) (i32.const 1) (i32.const 56000000))
         (i32.store (i32.const 324) (i32.const 131072)) (i32.store (i32.const 328) (i32.const 2000000)) {DENIED}"
    );
    let aliasing = Policy {
        review: &review,
        ..Policy::default()
    }
    .build();
    let (_shelf, catalog) = of(&aliasing, "").await;
    let (code, _) = fault(&policy(&catalog)).await;
    assert_eq!(code, "PluginAnswerInvalid");
}

#[tokio::test]
async fn growing_beyond_its_own_maximum_is_the_guests_affair() {
    let module = Policy {
        review: "(drop (memory.grow (i32.const 60000))) (drop (memory.grow (i32.const 60000))) (i32.const 256)",
        ..Policy::default()
    };
    let module = module.module().replace(
        "(memory (export \"memory\") 2)",
        "(memory (export \"memory\") 2 8)",
    );
    let (_shelf, catalog) = of(&component("review-policy", &module), "").await;
    assert!(review(&policy(&catalog)).await.unwrap().allowed);
}
