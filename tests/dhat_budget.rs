//! A budget makes no heap block: not where it lets something through, not where it asks
//! callbacks, and not where it refuses. Counted by dhat.
//!
//! dhat is the global allocator of this binary, so it has one test only.
#![cfg(not(any(loom, tenslab_asan)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::hint::black_box;

use tenslab::memory::{Budget, Fault, FaultPlan, Limit, SharedAllocator, SlabAllocator};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Heap blocks that `work` makes.
fn blocks(work: impl FnOnce()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    work();
    dhat::HeapStats::get().total_blocks - before
}

#[test]
fn a_budget_makes_no_heap_block() {
    let _counting = dhat::Profiler::builder().testing().build();
    let limit = Limit::new(4 * 4096);
    let slab = SlabAllocator::new(4096, 8).unwrap();
    let handle = SharedAllocator::new(Budget::new(slab, &limit));
    let empty = Fault::new(
        SlabAllocator::new(4096, 8).unwrap(),
        FaultPlan::Calls(0..u64::MAX),
    );
    let empty = SharedAllocator::new(Budget::new(empty, &limit));
    let _guard = limit.on_pressure(|short| short.missing_bytes);
    let round = |planted: bool| {
        let (first, second) = (handle.allocate(4096, 64), handle.allocate(1, 1));
        let mut charge = limit.charge(4096).unwrap();
        charge.grow(4096).unwrap();
        if planted {
            drop(black_box(Box::new(7_u64)));
        }
        // At the limit, above all there is, for the rest of a block, and by the upstream.
        assert!(handle.allocate(1, 1).is_err());
        assert!(limit.charge(usize::MAX).is_err());
        charge.shrink(1);
        assert!(handle.allocate(1, 1).is_err());
        assert!(empty.allocate(1, 1).is_err());
        drop((first, second, charge.split(10), charge));
        assert_eq!(limit.used_bytes(), 0);
    };
    round(false);
    assert_eq!(blocks(|| round(false)), 0);
    assert_eq!(blocks(|| round(true)), 1, "the planted box is seen");
}
