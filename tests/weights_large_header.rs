//! A header as large as the format allows: refused before it is read, or read with a few
//! bytes a tensor beside its own text.
//!
//! Each measurement is a process of its own, as in `tests/weights_rss.rs`: the test starts
//! itself again, and the child resets its high-water mark, opens the file, and prints how far
//! the mark rose and how long it took. The file has 1.7 million empty tensors whose
//! names come in no order. Seconds are printed and not judged: `benches/weights.rs` measures.

#![cfg(all(target_os = "linux", not(loom), not(tenslab_asan)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod peak_memory;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use peak_memory::{Mark, child, say};
use tenslab::weights::{Checkpoint, FormatFault, HeaderLimits, WeightsError};

const CHILD: &str = "TENSLAB_HEADER_CHILD";
const TENSORS: u64 = 1_700_000;
const MIB: u64 = 1 << 20;

/// The name at place `number`: seven digits, in no order. 999,983 is a prime.
fn name(number: u64) -> String {
    format!("{:07}", number * 999_983 % TENSORS)
}

/// Writes the file and returns the bytes of its header.
fn write_file(path: &Path) -> u64 {
    let entry = |number| {
        format!(
            r#""{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            name(number)
        )
    };
    let header_bytes = TENSORS * (entry(0).len() as u64 + 1) + 1;
    let mut out = BufWriter::new(File::create(path).unwrap());
    out.write_all(&header_bytes.to_le_bytes()).unwrap();
    for number in 0..TENSORS {
        out.write_all(if number == 0 { b"{" } else { b"," })
            .unwrap();
        out.write_all(entry(number).as_bytes()).unwrap();
    }
    out.write_all(b"}").unwrap();
    let file = out.into_inner().unwrap();
    assert_eq!(file.metadata().unwrap().len(), header_bytes + 8);
    header_bytes
}

/// What the child does: not a test of its own, it runs only when it is told what.
#[test]
fn child_that_opens_and_measures_itself() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let (limits, path) = task.split_once(' ').unwrap();
    let limits = match limits {
        "format" => HeaderLimits::of_format(),
        _ => HeaderLimits::default(),
    };
    let (mark, started) = (Mark::reset(), Instant::now());
    let opened = Checkpoint::open_with(path, &limits);
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
    let rise = mark.rise();
    let found = match &opened {
        Ok(checkpoint) => {
            for number in [0, 1, 12_345, TENSORS - 1] {
                let entry = checkpoint.entry(&name(number)).unwrap();
                assert_eq!((entry.name(), entry.nbytes()), (&*name(number), 0));
                assert_eq!(entry.shape().dims(), [0]);
            }
            assert!(checkpoint.entry("x").is_none());
            let in_order = checkpoint.entries().map(|entry| entry.name());
            assert!(in_order.is_sorted(), "empty tensors are ordered by name");
            checkpoint.entries().len() as u64
        }
        Err(WeightsError::Format { fault, .. }) => match **fault {
            FormatFault::HeaderTooLarge { header_bytes, .. } => header_bytes,
            ref other => panic!("{other:?}"),
        },
        Err(other) => panic!("{other:?}"),
    };
    say(&[rise, found, u64::from(opened.is_ok()), micros]);
}

/// How far the mark rose in a child, what it found, and whether it could open the file.
fn measure(path: &Path, limits: &str) -> (u64, u64, bool) {
    let task = format!("{limits} {}", path.display());
    let [rise, found, opened, _micros] =
        child("child_that_opens_and_measures_itself", CHILD, &task);
    (rise, found, opened == 1)
}

#[test]
fn a_header_of_98_mb_costs_nothing_when_refused_and_little_when_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("large.safetensors");
    let header_bytes = write_file(&path);
    assert!((98_000_000..=100_000_000).contains(&header_bytes));

    let (rise, found, opened) = measure(&path, "default");
    assert_eq!((found, opened), (header_bytes, false));
    assert!(rise < MIB, "{rise} bytes to refuse a header");

    let (rise, found, opened) = measure(&path, "format");
    assert_eq!((found, opened), (TENSORS, true));
    assert!(rise < 400 * MIB, "{} MiB", rise / MIB);
    // The text, 32 bytes and a size of 8 and a number of 4 for each tensor.
    let kept = header_bytes + 44 * TENSORS;
    assert!(rise >= kept / 100 * 98, "{rise}: the mark was not measured");
}
