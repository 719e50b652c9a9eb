//! A warm pool makes no heap block: not for a block out of a cache, not where one is split or joins
//! its neighbours, not where pages are committed or go back, and not where it refuses. Counted by
//! dhat, which sees every allocation of the process.
//!
//! dhat is the global allocator of this binary and counts every thread, so it has no test
//! harness: its thread makes heap blocks whenever it likes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;

use tenslab::memory::{Allocator, CachingPool, PoolOptions, SharedAllocator, TrimPolicy};
use tenslab::{DType, Tensor};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const MIB: usize = 1 << 20;

/// Heap blocks that `work` makes.
fn blocks(work: impl FnOnce()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    work();
    dhat::HeapStats::get().total_blocks - before
}

fn round(pool: &CachingPool, memory: &SharedAllocator, worker: &SharedAllocator, planted: bool) {
    // Out of a class, out of a cache, split and joined.
    for bytes in [100, 20_000, 100_000, 9 * MIB, 5 * MIB] {
        let (first, second) = (
            memory.allocate(bytes, 64).unwrap(),
            worker.allocate_zeroed(bytes, 64).unwrap(),
        );
        drop(first);
        drop(second);
    }
    let mut long = memory.allocate(6 * MIB, 64).unwrap();
    long.try_grow(7 * MIB).unwrap();
    long.decommit(0..MIB);
    let tensor = Tensor::empty([64, 1024], DType::F32, memory).unwrap();
    let small = Tensor::zeros([8, 8], DType::F32, worker).unwrap();
    let views = (tensor.slice(0, 0, 1).unwrap(), small.clone());
    drop((long, tensor, small, views));
    // Refused, with and without something to give back.
    assert!(memory.allocate(65 * MIB, 64).is_err());
    let most = memory.allocate(40 * MIB, 64).unwrap();
    assert!(memory.allocate(40 * MIB, 64).is_err());
    drop(most);
    // Pages go and come.
    pool.trim_bytes(3 * MIB);
    pool.flush();
    pool.trim();
    let _ = (pool.stats(), pool.report());
    if planted {
        drop(black_box(Box::new(7_u64)));
    }
}

fn main() {
    if cfg!(tenslab_portable) {
        // The pool's pages are heap blocks there, and none go back.
        return;
    }
    let _counting = dhat::Profiler::builder().testing().build();
    let policy = TrimPolicy::new().keep_bytes(32 * MIB).idle_calls(100);
    let options = PoolOptions::new().cap_bytes(64 * MIB).trim(policy);
    let pool = options.build().unwrap();
    let memory = SharedAllocator::new(pool.clone());
    let worker = SharedAllocator::new(pool.local_cache(8 * MIB));
    round(&pool, &memory, &worker, false);
    for _ in 0..20 {
        assert_eq!(blocks(|| round(&pool, &memory, &worker, false)), 0);
    }
    let seen = blocks(|| round(&pool, &memory, &worker, true));
    assert_eq!(seen, 1, "the planted box is seen");
    println!("a warm pool made no heap block");
}
