//! The seeds of the fuzzers, which also hold what fuzzing ever found: both readers say the
//! same of each.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod reference;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use reference::{Answer, header, index};

/// The answers to all seeds in this folder.
fn answers(
    folder: &Path,
    compare: impl Fn(&[u8]) -> Result<Answer, String>,
) -> HashMap<Answer, usize> {
    let mut answers = HashMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match compare(&fs::read(&path).unwrap()) {
            Ok(answer) => *answers.entry(answer).or_insert(0) += 1,
            Err(difference) => panic!("{}: {difference}", path.display()),
        }
    }
    answers
}

/// The folder, which a published package does not have: it has no package inside it.
fn seeds() -> Option<PathBuf> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    if seeds.exists() {
        return Some(seeds);
    }
    let required = std::env::var_os("TENSLAB_NO_SKIP").is_some();
    assert!(!required, "{} is not there", seeds.display());
    eprintln!("skipped: {} is not there", seeds.display());
    None
}

#[test]
fn seeds_are_read_alike_by_both_readers() {
    let Some(seeds) = seeds() else {
        return;
    };
    // As they are, and with their lengths repaired as the fuzzer does it.
    for compare in [header::compare, header::compare_repaired] {
        let of_headers = answers(&seeds.join("header"), compare);
        for answer in [
            Answer::Accepted,
            Answer::Refused,
            Answer::OnlyOurs,
            Answer::OnlyTheirs,
        ] {
            let count = of_headers.get(&answer).copied().unwrap_or(0);
            assert!(count > 2, "{count} seeds are {answer:?}");
        }
    }
    let of_indexes = answers(&seeds.join("index"), index::compare);
    for answer in [Answer::Accepted, Answer::Refused] {
        let count = of_indexes.get(&answer).copied().unwrap_or(0);
        assert!(count > 5, "{count} seeds are {answer:?}");
    }
}
