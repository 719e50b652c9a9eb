//! Each wrong variant of the cache (`src/mutant.rs`) makes the test that names it fail.
//!
//! `cargo kv-mutants` builds them all into one binary, in which a variable of the
//! environment chooses. Those that only a second thread shows are `loom_tests/mutants.rs`'s.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenslab::internals::{Mutant, VARIABLE};

/// The wrong variant, and the tests that have to fail.
const KILLERS: &[(Mutant, &[&str])] = &[
    // hash ignores the last token
    (
        Mutant::KvIgnoresLastToken,
        &["prefix::every_token_of_a_block_counts"],
    ),
    // stale key kept on reuse
    (
        Mutant::KvKeepsStaleKey,
        &["prefix::a_block_that_is_reused_has_lost_its_key"],
    ),
    // head-first release
    (
        Mutant::KvHeadFirst,
        &[
            "prefix::prompts_with_one_beginning_share_its_blocks",
            "prefix::the_tail_of_a_chain_goes_before_its_head",
        ],
    ),
    // match without pin
    (
        Mutant::KvMatchesWithoutPin,
        &["prefix::what_a_request_shares_is_not_evicted_for_the_rest_of_it"],
    ),
    // no rollback of references on failure
    (
        Mutant::KvNoRollback,
        &["prefix::who_is_refused_leaves_uses_and_bytes_as_they_were"],
    ),
    // limit checked after insert
    (
        Mutant::KvChecksLate,
        &["lifecycle::exhaustion_takes_nothing_and_says_the_numbers"],
    ),
    // block registered before commit
    (
        Mutant::KvRegistersEarly,
        &["sharing::drafts_that_were_wrong_are_never_registered"],
    ),
    // registered though the same is there
    (
        Mutant::KvRegistersTwice,
        &["prefix::two_that_compute_the_same_keep_one_copy"],
    ),
    // write in place while shared
    (
        Mutant::KvWritesShared,
        &["sharing::forks_share_full_blocks_and_copy_the_tail_once"],
    ),
    // truncated block keeps its key
    (
        Mutant::KvTruncatedKeepsKey,
        &["sharing::a_truncated_block_is_copied_before_it_is_written"],
    ),
    // copy-on-write copies K only
    (
        Mutant::KvCopiesKeysOnly,
        &["sharing::forks_share_full_blocks_and_copy_the_tail_once"],
    ),
    // watermark on the first request
    (
        Mutant::KvWatermarkForFirst,
        &["prefix::a_watermark_keeps_blocks_for_who_runs"],
    ),
    // tensor does not hold its block
    (
        Mutant::KvLendsUnheld,
        &["sharing::a_tensor_of_a_block_is_frozen_and_outlives_everything"],
    ),
    // no rollback of the source of a copy that there is no memory for
    (
        Mutant::KvForgoesHeld,
        &["pressure::a_refusal_of_the_budget_takes_nothing"],
    ),
];

/// Right code as long as nobody comes between the two steps: `loom_tests/kv*.rs`.
const OF_TWO_THREADS: &[Mutant] = &[
    Mutant::KvOpensTwoSteps,
    Mutant::KvGrowsTwoSteps,
    Mutant::KvTruncatesTwoSteps,
    Mutant::KvPinTwoSteps,
    Mutant::KvCommitTwoSteps,
    Mutant::KvSlotGoesFirst,
    Mutant::KvIdlesTwoSteps,
    Mutant::KvSourceGoesFirst,
    Mutant::KvPutsBackFirst,
    Mutant::KvForgetsMoving,
    Mutant::KvLooksColdFirst,
    Mutant::KvExchangesTwoSteps,
    Mutant::KvWarmsUnheld,
];

/// A child that takes longer goes round in a circle. Each takes well below a second.
const AT_MOST: Duration = Duration::from_secs(60);

/// Runs one test in a process of its own. Returns whether it passed, and what it printed.
fn run(test: &str, mutant: Option<Mutant>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--test-threads=1"]);
    command.env_remove(VARIABLE);
    if let Some(mutant) = mutant {
        command.env(VARIABLE, format!("{mutant:?}"));
    }
    let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < AT_MOST {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill(); // an error where it has ended
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(
        printed.contains("running 1 test"),
        "no test {test}: {printed}"
    );
    (output.status.success(), printed)
}

#[test]
fn every_mutant_dies() {
    for &(mutant, tests) in KILLERS {
        assert!(!tests.is_empty(), "{mutant:?}");
        for test in tests {
            let (passed, printed) = run(test, Some(mutant));
            assert!(!passed, "{mutant:?} survived {test}:\n{printed}");
        }
    }
}

/// What dies above dies of the mutant and not of its test.
#[test]
fn the_same_tests_pass_without_one() {
    for test in KILLERS.iter().flat_map(|(_, tests)| *tests) {
        let (passed, printed) = run(test, None);
        assert!(passed, "{test}:\n{printed}");
    }
}

#[test]
fn every_mutant_of_the_cache_is_in_one_list() {
    for mutant in Mutant::ALL {
        let killed = KILLERS.iter().filter(|(each, _)| *each == mutant).count();
        let left = OF_TWO_THREADS
            .iter()
            .filter(|&&each| each == mutant)
            .count();
        let expected = usize::from(format!("{mutant:?}").starts_with("Kv"));
        assert_eq!(killed + left, expected, "{mutant:?}");
    }
}
