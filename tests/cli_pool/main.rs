//! `tenslab pool`, as a program: what a trace needs of a pool, how it lies there, and what is
//! refused under a cap.

#![cfg(all(feature = "cli", target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod large;
mod trouble;

#[path = "../probe/mod.rs"]
mod probe;
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../tool/mod.rs"]
mod tool;

use std::path::PathBuf;
use std::sync::Arc;

use tenslab::memory::{
    CachingPool, CpuAllocator, Recording, SharedAllocator, Tag, Trace, TraceLimits,
};

use probe::Dice;
use tool::Tool;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const TOOL: Tool = Tool("pool");

/// A trace file, gone with its folder.
struct Written {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn written(contents: impl AsRef<[u8]>) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::write(&path, contents).unwrap();
    Written {
        _folder: folder,
        path,
    }
}

fn csv(recording: &Recording) -> String {
    let mut text = Vec::new();
    recording.write_csv(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// What `work` does with an allocator, recorded. No byte of it is touched.
fn recorded(events: usize, work: impl FnOnce(&SharedAllocator)) -> Recording {
    let limits = TraceLimits {
        events,
        live_blocks: 0,
    };
    let trace = Arc::new(Trace::with_limits(CachingPool::new().unwrap(), limits));
    work(&SharedAllocator::new(Arc::clone(&trace)));
    trace.snapshot()
}

/// Sizes between two, up to `most` blocks at one time, seeded.
fn churn(memory: &SharedAllocator, rounds: usize, sizes: std::ops::Range<usize>, most: usize) {
    let memory = memory.with_tag(Tag::Kv);
    let (mut out, mut dice) = (Vec::new(), Dice(9));
    for _ in 0..rounds {
        if out.len() == most || (dice.below(2) == 0 && !out.is_empty()) {
            out.swap_remove(dice.below(out.len()));
        } else {
            let bytes = sizes.start + dice.below(sizes.len());
            out.push(memory.allocate(bytes, 64).unwrap());
        }
    }
}

/// A trace that is small enough to be followed by hand: 3 and 5 MiB, the first goes, 2 MiB come
/// where it was, a mark, all goes.
fn by_hand() -> Recording {
    let trace = Arc::new(Trace::new(CpuAllocator::new()));
    let memory = SharedAllocator::new(Arc::clone(&trace)).with_tag(Tag::Scratch);
    let first = memory.allocate_zeroed(3 * MIB, 64).unwrap(); // event 0
    let second = memory.allocate(5 * MIB, 64).unwrap(); // event 1
    drop(first); // event 2
    let third = memory.allocate(2 * MIB, 64).unwrap(); // event 3
    trace.mark("decode"); // event 4
    drop((second, third)); // events 5 and 6
    trace.snapshot()
}
