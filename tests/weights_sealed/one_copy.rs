//! However many processes have them, sealed weights are in memory once.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tenslab::weights::Weights;

use super::checkpoint_files::{file, packed, write};
use super::options;
use super::peak_memory::{Mark, child, say};

/// The built example.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let binary = profile.join("examples/sealed");
    assert!(
        binary.exists(),
        "{} is not there; `cargo test` or `cargo build --example sealed` builds it",
        binary.display()
    );
    binary
}

/// The number behind a word.
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|found| *found != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap()
}

/// The example's own numbers: each of two workers has all pages, half of each is its own, and
/// the memory has no more of them than when it was sealed.
#[test]
#[cfg_attr(tenslab_asan, ignore = "the example is not built")]
fn two_processes_have_one_copy() {
    let output = Command::new(example())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    println!("{said}");
    let line = |begin: &str| {
        let found = said.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin:?} in {said}"))
    };
    let bytes = number(line("sealed"), "sealed");
    assert!(bytes > 64 << 20);
    let pages = bytes.next_multiple_of(4096);
    let (one, other) = (line("worker 0"), line("worker 1"));
    assert_eq!(
        one.split(' ').nth(3),
        other.split(' ').nth(3),
        "the checksums"
    );
    for worker in [one, other] {
        assert_eq!(
            (number(worker, "Rss"), number(worker, "Pss")),
            (pages, pages / 2)
        );
    }
    assert_eq!(number(line("both"), "Pss"), pages);
    let counts = line("pages of the memory");
    assert_eq!(
        counts,
        format!("pages of the memory: {pages} when it was sealed, {pages} with two workers")
    );
}

/// Says what a child has to seal.
const CHILD: &str = "TENSLAB_SEAL_CHILD";

/// Sealing holds the tensors once, also with a cast: the mark of a child's memory, shared pages
/// included, says so, and the memory's own pages.
#[test]
#[cfg_attr(tenslab_asan, ignore = "the sanitizer's own memory is counted too")]
fn sealing_holds_the_tensors_once_also_with_a_cast() {
    const SLACK: u64 = 16 << 20;
    if let Ok(task) = std::env::var(CHILD) {
        let (dtype, path) = task.split_once(' ').unwrap();
        let mark = Mark::reset();
        let sealed = Weights::seal(path, &options(2, dtype.parse().ok())).unwrap();
        let rise = mark.rise();
        let file = File::from(sealed.as_fd().try_clone_to_owned().unwrap());
        let pages = file.metadata().unwrap().blocks() * 512;
        say(&[rise, pages, sealed.report().copied_bytes]);
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let shape = [25 << 20];
    let (json, bytes) = packed(&[("a", "F32", &shape, 100 << 20), ("b", "U8", &[7], 7)]);
    let path = write(place.path(), "x", &file(&json, bytes));
    for (dtype, expected) in [("none", bytes as u64), ("bfloat16", (50 << 20) + 7)] {
        let task = format!("{dtype} {}", path.display());
        let test = "one_copy::sealing_holds_the_tensors_once_also_with_a_cast";
        let [rise, pages, copied] = child(test, CHILD, &task);
        assert_eq!(copied, expected);
        assert!((expected..expected + 65536).contains(&pages), "{pages}");
        assert!((expected..expected + SLACK).contains(&rise), "{rise}");
    }
}
