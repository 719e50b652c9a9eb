//! Blocks of a warm slab make no heap block: counted by dhat, which sees every
//! allocation of the process.
//!
//! ```text
//!   warm up ─▶ count ─▶ allocate, zero, tag, clone, share, drop ─▶ count: 0 more
//!                       the same with one Box in between        ─▶ count: 1 more
//! ```
//!
//! dhat is the global allocator of this binary and counts every thread, so it has no test
//! harness: its thread makes heap blocks whenever it likes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;
use std::sync::Arc;

use tenslab::memory::{Meter, SharedAllocator, SlabAllocator, Storage, Tag, Trace};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Heap blocks that `work` makes.
fn blocks(work: impl FnOnce()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    work();
    dhat::HeapStats::get().total_blocks - before
}

fn plant(planted: bool) {
    if planted {
        drop(black_box(Box::new(7_u64)));
    }
}

/// All that users do with blocks.
fn round(slab: &SharedAllocator, planted: bool) {
    let kv = slab.with_tag(Tag::Kv);
    let plain = kv.allocate(4096, 64).unwrap();
    let mut zeroed = slab.clone().allocate_zeroed(100, 64).unwrap();
    zeroed.as_mut_slice().fill(1);
    plant(planted);
    let none = slab.allocate(0, 64).unwrap();
    let storage = Storage::from(plain);
    let other = storage.clone();
    storage.freeze().unwrap();
    drop((storage, zeroed, other, none));
    // Refusals are plain values too.
    assert!(slab.allocate(4097, 64).is_err());
    assert!(slab.allocate(usize::MAX, 64).is_err());
    assert_eq!(slab.stats().live_bytes, 0);
}

fn main() {
    let _counting = dhat::Profiler::builder().testing().build();
    let bare = SharedAllocator::new(SlabAllocator::new(4096, 8).unwrap());
    let meter = Arc::new(Meter::new(SlabAllocator::new(4096, 8).unwrap()));
    let metered = SharedAllocator::new(Arc::clone(&meter));
    let trace = Arc::new(Trace::new(SlabAllocator::new(4096, 8).unwrap()));
    let traced = SharedAllocator::new(Meter::new(Arc::clone(&trace)));
    for slab in [bare, metered, traced] {
        round(&slab, false);
        assert_eq!(blocks(|| round(&slab, false)), 0);
        assert_eq!(blocks(|| round(&slab, true)), 1, "the planted box is seen");
    }
    // Nothing before the first use, however many blocks there may be.
    let fresh = || SlabAllocator::new(4096, 1 << 20).unwrap();
    assert_eq!(blocks(|| drop(black_box(fresh()))), 0);
    let growing = SharedAllocator::new(SlabAllocator::new(64 << 10, 200).unwrap());
    let mut out = Vec::with_capacity(200);
    // Pages come from the system; where the heap stands in, its blocks are seen here.
    let grown = blocks(|| out.extend((0..200).map(|_| growing.allocate(1, 64).unwrap())));
    // 200 blocks are five rows, and one of tables.
    let expected = if cfg!(tenslab_portable) { 6 } else { 0 };
    assert_eq!(grown, expected, "growing");
    assert_eq!(blocks(|| out.clear()), 0);
    assert_eq!(blocks(|| _ = black_box(meter.snapshot())), 0);
    let numbers = || {
        let step = meter.scope();
        trace.mark("step");
        meter.reset_peaks();
        black_box((step.stats(), trace.header()));
    };
    assert_eq!(blocks(numbers), 0);
    // Two for the copies, and they are all there is.
    assert_eq!(blocks(|| drop(black_box(trace.snapshot()))), 2);
    #[cfg(target_os = "linux")]
    assert_eq!(blocks(|| _ = black_box(meter.report())), 0);
    println!("blocks of a warm slab make no heap block: ok");
}
