//! `load` never holds a second copy: a process's high-water mark says so.
//!
//! Each measurement is a process of its own: this test starts itself again, and the
//! child resets its mark (`/proc/self/clear_refs`), loads, and prints how far the
//! mark rose above where it stood. The bound is the tensors' bytes, after the cast,
//! and 32 MiB. A child that copies the weights once more must break it.

#![cfg(all(target_os = "linux", not(loom), not(tenslab_asan)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

mod peak_memory;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use peak_memory::{Mark, child, say};
use tenslab::DType;
use tenslab::weights::{LoadOptions, Weights};

const CHILD: &str = "TENSLAB_RSS_CHILD";
const SLACK: u64 = 32 << 20;

/// A checkpoint of about `mib` MiB: large matrices and small norms, every page written.
fn checkpoint(path: &Path, tag: &str, width: u64, mib: u64) -> u64 {
    let rows = (mib << 20) / 8 / (1024 * width);
    let (mut entries, mut begin) = (Vec::new(), 0);
    for layer in 0..8 {
        for (kind, shape) in [("weight", vec![rows, 1024]), ("norm", vec![1000])] {
            let end = begin + shape.iter().product::<u64>() * width;
            entries.push(format!(
                r#""layers.{layer}.{kind}":{{"dtype":"{tag}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            ));
            begin = end;
        }
    }
    let json = format!("{{{}}}", entries.join(","));
    let mut out = BufWriter::new(File::create(path).unwrap());
    out.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    out.write_all(json.as_bytes()).unwrap();
    let line: Vec<u8> = (1..=251).cycle().take(4000).collect();
    let mut left = usize::try_from(begin).unwrap();
    while left > 0 {
        let part = left.min(line.len());
        out.write_all(&line[..part]).unwrap();
        left -= part;
    }
    out.into_inner().unwrap().sync_all().unwrap();
    begin
}

/// What the child does: not a test of its own, it runs only when it is told what.
#[test]
fn child_that_loads_and_measures_itself() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let mut words = task.splitn(4, ' ');
    let dtype: Option<DType> = words.next().unwrap().parse().ok();
    let threads = words.next().unwrap().parse().unwrap();
    let copies = words.next().unwrap() == "copy";
    let path = words.next().unwrap();
    let options = LoadOptions {
        dtype,
        threads,
        ..LoadOptions::default()
    };
    let mark = Mark::reset();
    let weights = Weights::load(path, &options).unwrap();
    let copy: Vec<Vec<u8>> = weights
        .names()
        .filter(|_| copies)
        .map(|name| weights.raw(name).unwrap().read_bytes().unwrap().to_vec())
        .collect();
    let rise = mark.rise();
    let report = weights.report();
    drop(copy);
    say(&[rise, report.copied_bytes, report.cast_tensors as u64]);
}

/// How far the mark rose in a child, the tensors' bytes, and how many were cast.
fn measure(path: &Path, dtype: Option<DType>, threads: usize, copies: bool) -> (u64, u64, u64) {
    let dtype = dtype.map_or("none", DType::name);
    let mode = if copies { "copy" } else { "load" };
    let task = format!("{dtype} {threads} {mode} {}", path.display());
    child("child_that_loads_and_measures_itself", CHILD, &task).into()
}

#[test]
fn loading_holds_the_tensors_once_also_with_a_cast() {
    let place = tempfile::tempdir().unwrap();
    let (wide, narrow) = (place.path().join("f32"), place.path().join("bf16"));
    let wide_bytes = checkpoint(&wide, "F32", 4, 200);
    let narrow_bytes = checkpoint(&narrow, "BF16", 2, 100);
    for (path, dtype, expected, cast) in [
        (&wide, None, wide_bytes, 0),
        (&wide, Some(DType::BF16), wide_bytes / 2, 16),
        (&wide, Some(DType::F16), wide_bytes / 2, 16),
        (&narrow, Some(DType::F32), narrow_bytes * 2, 16),
        (&narrow, Some(DType::F16), narrow_bytes, 16),
    ] {
        for threads in [1, 2, 16] {
            let (rise, bytes, casts) = measure(path, dtype, threads, false);
            println!("{dtype:?}, {threads} threads: {rise} over {bytes} bytes of tensors");
            assert_eq!((bytes, casts), (expected, cast));
            assert!(
                rise <= bytes + SLACK,
                "{dtype:?}, {threads} threads: {rise} for {bytes} bytes of tensors"
            );
            assert!(
                rise >= bytes / 100 * 98,
                "{rise}: the mark was not measured"
            );
        }
    }
}

#[test]
fn a_second_copy_would_be_seen() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("bf16");
    checkpoint(&path, "BF16", 2, 50);
    let (rise, bytes, _) = measure(&path, None, 2, true);
    assert!(rise > bytes + SLACK, "{rise} for {bytes} bytes of tensors");
}
