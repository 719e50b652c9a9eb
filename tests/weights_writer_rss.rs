//! `save` makes no copy of the tensors: a process's high-water mark says so.
//!
//! Each measurement is a process of its own: this test starts itself again, and the child
//! makes a tensor, resets its mark (`/proc/self/clear_refs`), writes, and prints how far the
//! mark rose. A child that packs the tensor first must break the bound.

#![cfg(all(target_os = "linux", not(loom), not(tenslab_asan)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

mod peak_memory;

use std::path::Path;

use peak_memory::{Mark, child, say};
use tenslab::weights::save;
use tenslab::{DType, Tensor, memory, ops};

const CHILD: &str = "TENSLAB_WRITER_RSS_CHILD";
const TENSOR: u64 = 128 << 20;
/// 1 MiB of scratch, 64 KiB of buffer, and what a process takes as it goes.
const SLACK: u64 = 8 << 20;

/// What the child does: not a test of its own, it runs only when it is told what.
#[test]
fn child_that_writes_and_measures_itself() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let (mode, path) = task.split_once(' ').unwrap();
    let rows = usize::try_from(TENSOR / 4 / 4096).unwrap();
    let matrix = Tensor::empty([rows, 4096], DType::F32, memory::cpu()).unwrap();
    ops::fill(&matrix, 1.5).unwrap();
    let tensor = match mode {
        "packed" => matrix,
        _ => matrix.transpose(0, 1).unwrap(),
    };
    let mark = Mark::reset();
    let tensor = match mode {
        "copied" => tensor.contiguous_in(memory::cpu()).unwrap(),
        _ => tensor,
    };
    let report = save(path, &[("x", tensor)], &Default::default()).unwrap();
    say(&[mark.rise(), report.tensor_bytes, report.gathered_bytes]);
}

/// How far the mark rose in a child, and how many bytes were gathered.
fn measure(mode: &str, path: &Path) -> (u64, u64) {
    let task = format!("{mode} {}", path.display());
    let [rise, bytes, gathered] = child("child_that_writes_and_measures_itself", CHILD, &task);
    assert_eq!(bytes, TENSOR);
    (rise, gathered)
}

#[test]
fn writing_makes_no_copy_of_the_tensors_whatever_their_strides() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    for (mode, gathered) in [("packed", 0), ("turned", TENSOR)] {
        let (rise, found) = measure(mode, &path);
        println!("{mode}: the mark rose by {rise} bytes");
        assert_eq!(found, gathered);
        assert!(rise <= SLACK, "{mode}: {rise} bytes");
    }
    let (rise, _) = measure("copied", &path);
    assert!(rise > SLACK, "a second copy has to be seen: {rise} bytes");
}
