use std::sync::Arc;

use tenslab::memory::{
    AllocError, CachingPool, PoolOptions, Recording, RungCounts, SharedAllocator, Trace,
};

use super::{KIB, MIB};

/// A trace of blocks of at least `least` bytes.
fn recording(least: usize) -> Recording {
    let limits = tenslab::memory::TraceLimits::default();
    let trace = Arc::new(Trace::with_limits(CachingPool::new().unwrap(), limits));
    let memory = SharedAllocator::new(Arc::clone(&trace));
    let mut out = Vec::new();
    let mut dice = 11_u32;
    for _ in 0..3_000 {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if out.len() > 30 || (dice >> 30 == 0 && !out.is_empty()) {
            out.swap_remove(dice as usize % out.len());
        } else {
            let bytes = least + dice as usize % (5 * MIB);
            out.push(memory.allocate_zeroed(bytes, 64).unwrap());
        }
    }
    drop(out);
    trace.snapshot()
}

#[test]
fn a_dry_run_says_the_smallest_cap_that_serves_a_trace_as_it_lies() {
    let recording = recording(33 * KIB);
    let need = PoolOptions::new().dry_run(&recording).unwrap();
    assert_eq!(need.replay.mismatches(), 0);
    assert!(need.cap_bytes >= need.peak_live_bytes);
    let capped = |bytes: usize| capped(&recording, bytes);
    let (refused, rungs) = capped(need.cap_bytes);
    assert_eq!(
        (refused, rungs.trimmed, rungs.slabs),
        (0, 0, 0),
        "nothing had to go back"
    );
    let (_, rungs) = capped(need.cap_bytes - 4 * KIB);
    assert!(
        rungs.trimmed + rungs.slabs + rungs.refused > 0,
        "with a page less something has to"
    );
}

fn capped(recording: &Recording, bytes: usize) -> (u64, RungCounts) {
    let pool = PoolOptions::new().cap_bytes(bytes).build().unwrap();
    let replay = recording.replay(&pool);
    (replay.refused_here, pool.report().rungs)
}

#[test]
fn small_sizes_are_in_the_plan() {
    let recording = recording(1);
    let need = PoolOptions::new().dry_run(&recording).unwrap();
    let (refused, rungs) = capped(&recording, need.cap_bytes);
    assert_eq!((refused, rungs.trimmed, rungs.slabs), (0, 0, 0));
}

#[test]
fn a_trace_of_more_memory_than_there_is_is_planned_without_touching_it() {
    // The sanitizer notes an eighth of all bytes that are nobody's.
    const BLOCKS: usize = if cfg!(tenslab_asan) { 2 } else { 50 };
    let trace = Arc::new(Trace::new(CachingPool::new().unwrap()));
    let memory = SharedAllocator::new(Arc::clone(&trace));
    let blocks: Vec<_> = (0..BLOCKS)
        .map(|_| memory.allocate(2 << 30, 64).unwrap())
        .collect();
    drop(blocks);
    let before = tenslab::memory::ProcessMemory::read()
        .unwrap()
        .resident_bytes;
    let need = PoolOptions::new().dry_run(&trace.snapshot()).unwrap();
    assert_eq!(need.peak_live_bytes, BLOCKS << 31);
    let after = tenslab::memory::ProcessMemory::read()
        .unwrap()
        .resident_bytes;
    // Nothing is said of the sanitizer's own memory.
    let is_small = after < before + (256 << 20);
    assert!(cfg!(tenslab_asan) || is_small, "{before} -> {after}");
    let error: Result<_, AllocError> = PoolOptions::new()
        .reservation_bytes(64 << 20)
        .dry_run(&trace.snapshot());
    assert_eq!(error.unwrap().replay.refused_here, BLOCKS as u64);
}
