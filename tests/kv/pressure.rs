//! Memory of idle blocks that goes back when somebody else needs it, and comes again.
#![cfg(all(target_os = "linux", not(tenslab_portable)))]

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenslab::kv::{KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Layout, Namespace};
use tenslab::memory::{
    AllocError, Budget, CpuAllocator, Limit, SharedAllocator, Tag, resident_bytes,
};
use tenslab::{DType, memory};

use super::{assert_computed, compute, ids, join, range};

/// Float32 in four tokens of two layers: so much that the region is not from the heap.
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 8;

fn new(layout: Layout, options: &KvOptions, allocator: &SharedAllocator) -> KvCache {
    let dims = KvDims {
        layers: 2,
        kv_heads: 2,
        key_dim: 2048,
        value_dim: 2048,
        block_tokens: 4,
    };
    let spec = (KvSpec::new(dims, DType::F32).unwrap())
        .with_layout(layout)
        .unwrap();
    assert_eq!(spec.block_bytes(), BLOCK);
    let limits = KvLimits {
        blocks: BLOCKS,
        max_sequences: 4,
        max_blocks_per_sequence: BLOCKS,
    };
    KvCache::with_options(spec, limits, options, allocator).unwrap()
}

/// A cache under a budget of twice its size, of which `spare` bytes are left.
fn under_budget(layout: Layout, options: &KvOptions, spare: usize) -> (KvCache, Limit) {
    let limit = Limit::new(BLOCKS * BLOCK + spare);
    let allocator = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
    let cache = new(layout, options, &allocator);
    assert_eq!(limit.available_bytes(), spare);
    (cache, limit)
}

fn prefill(cache: &KvCache, prompt: &[u32]) -> tenslab::kv::Sequence {
    let all = Some(prompt.len());
    let mut sequence = (cache.acquire(prompt, &Namespace::default(), 0, all)).unwrap();
    if sequence.len() < prompt.len() {
        compute(&mut sequence, prompt);
    }
    assert_computed(&sequence, prompt);
    cache.check().unwrap();
    sequence
}

#[test]
fn what_nobody_uses_goes_back_and_comes_again() {
    for layout in Layout::ALL {
        let (cache, limit) = under_budget(layout, &KvOptions::default(), 0);
        let kept = prefill(&cache, &range(0, 8)); // blocks 0, 1
        drop(prefill(&cache, &range(100, 8))); // 2, 3, idle
        drop(prefill(&cache, &range(200, 4))); // 4, idle

        // Free ones first.
        let relieved = cache.relieve(2 * BLOCK);
        assert_eq!((relieved.bytes, relieved.evicted), (2 * BLOCK, 0));
        assert_eq!(limit.available_bytes(), 2 * BLOCK);
        cache.check().unwrap();
        // One more free one, then the oldest prefix from its tail on.
        let relieved = cache.relieve(3 * BLOCK - 1);
        assert_eq!((relieved.bytes, relieved.evicted), (3 * BLOCK, 2));
        assert_eq!(cache.counters().evicted_for_pressure, 2);
        let stats = cache.stats();
        assert_eq!(
            (stats.blocks_free, stats.blocks_idle, stats.blocks_used),
            (5, 1, 2)
        );
        assert_computed(&kept, &range(0, 8));

        // All of it that nobody uses, and no more.
        let relieved = cache.relieve(usize::MAX);
        assert_eq!((relieved.bytes, relieved.evicted), (BLOCK, 1));
        assert_eq!(cache.relieve(1).bytes, 0);
        assert_eq!(limit.available_bytes(), 6 * BLOCK);

        // It comes again block by block.
        let again = prefill(&cache, &range(300, 12));
        assert_eq!(limit.available_bytes(), 3 * BLOCK);
        assert_computed(&kept, &range(0, 8));
        assert_computed(&again, &range(300, 12));
        drop((again, kept));
        assert_eq!(
            limit.available_bytes(),
            3 * BLOCK,
            "idle blocks keep their memory"
        );
        drop(cache);
        assert_eq!(limit.available_bytes(), BLOCKS * BLOCK, "{layout}");
    }
}

#[test]
fn the_process_gets_smaller() {
    let cache = new(Layout::default(), &KvOptions::default(), memory::cpu());
    let region = cache.region();
    let resident = || {
        // SAFETY: the region is mapped while `cache` lives, and its bytes are only counted.
        let bytes = unsafe { std::slice::from_raw_parts(region.start, BLOCKS * BLOCK) };
        resident_bytes(bytes).unwrap()
    };
    assert_eq!(
        resident(),
        0,
        "lessons/kv.md #27: nothing is committed up front"
    );
    drop(prefill(&cache, &range(0, 16)));
    assert_eq!(resident(), 4 * BLOCK);
    // Untouched ones count as given back, but the process gets no smaller by them.
    assert_eq!(cache.relieve(usize::MAX).bytes, BLOCKS * BLOCK);
    assert_eq!(resident(), 0);

    let populated = KvOptions::default().with_populate(true);
    let cache = new(Layout::default(), &populated, memory::cpu());
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(cache.region().start, BLOCKS * BLOCK) };
    assert_eq!(resident_bytes(bytes), Some(BLOCKS * BLOCK));
}

#[test]
fn a_budget_that_is_short_is_relieved_by_itself() {
    let (cache, limit) = under_budget(Layout::default(), &KvOptions::default(), 0);
    let guard = cache.relieve_on(&limit);
    let kept = prefill(&cache, &range(0, 4));
    drop(prefill(&cache, &range(100, 28))); // all others, idle
    assert_eq!(cache.stats().blocks_idle, 7);

    let weights = limit.charge(3 * BLOCK).unwrap();
    assert_eq!((cache.stats().blocks_idle, limit.available_bytes()), (4, 0));
    // The head of the prefix is still there.
    assert_eq!(prefill(&cache, &range(100, 16)).hit_tokens(), 16);
    let refused = limit.charge(5 * BLOCK).unwrap_err();
    assert!(matches!(refused, AllocError::OverBudget { .. }));
    assert_computed(&kept, &range(0, 4));
    drop(weights);

    // Neither the guard nor the limit keeps the cache.
    drop((cache, kept));
    assert_eq!(limit.available_bytes(), BLOCKS * BLOCK);
    drop(guard);
}

/// Where the memory of a cold block is refused an idle one is forgotten for it.
#[test]
fn idle_blocks_are_taken_where_the_budget_refuses_cold_ones() {
    let (cache, limit) = under_budget(Layout::default(), &KvOptions::default(), 0);
    drop(prefill(&cache, &range(0, 16))); // four idle
    assert_eq!(cache.relieve(4 * BLOCK).evicted, 0); // four cold
    let charge = limit.charge(3 * BLOCK).unwrap();
    assert_eq!(limit.available_bytes(), BLOCK);

    let new = prefill(&cache, &range(100, 12));
    assert_eq!(limit.available_bytes(), 0);
    assert_eq!(
        cache.stats().blocks_idle,
        2,
        "two of three blocks are former idle ones"
    );
    assert_computed(&new, &range(100, 12));
    drop((charge, new));
    cache.check().unwrap();
}

/// All or nothing: who is refused by the budget leaves everything as it was.
#[test]
fn a_refusal_of_the_budget_takes_nothing() {
    let (cache, limit) = under_budget(Layout::default(), &KvOptions::default(), 0);
    let prompt = range(0, 15); // three blocks and a tail of three
    let mut a = prefill(&cache, &prompt);
    assert_eq!(cache.relieve(usize::MAX).bytes, 4 * BLOCK);
    let charge = limit.charge(3 * BLOCK).unwrap();
    let before = cache.stats();
    let refused = |error: KvError| {
        assert!(
            matches!(error, KvError::Alloc(AllocError::OverBudget { .. })),
            "{error}"
        );
        cache.check().unwrap();
        assert_eq!(cache.stats(), before);
        // A block that was counted again before another one was refused is free, and goes back
        // as any free block does.
        cache.relieve(usize::MAX);
        assert_eq!(limit.available_bytes(), BLOCK);
    };

    // One of the two blocks could be had.
    let other = join(&prompt[..12], &range(100, 8));
    refused((cache.acquire(&other, &Namespace::default(), 0, None)).unwrap_err());
    // With a beginning that would be copied, of a block that is in use.
    let copied = join(&prompt[..10], &range(200, 6));
    refused((cache.acquire(&copied, &Namespace::default(), 0, None)).unwrap_err());
    // Appending to it.
    refused(a.append(&range(300, 9)).unwrap_err());
    assert_eq!(ids(&a).len(), 4);
    assert_computed(&a, &prompt);

    // Appending to a fork, whose tail would be copied first.
    let mut b = a.fork().unwrap();
    let with_fork = cache.stats();
    let error = b.append(&range(300, 5)).unwrap_err();
    assert!(matches!(error, KvError::Alloc(_)), "{error}");
    cache.check().unwrap();
    assert_eq!(cache.stats(), with_fork);
    assert_eq!((ids(&b), b.len()), (ids(&a), 15));
    // One block is to be had: enough for the copy of the tail.
    compute(&mut b, &range(0, 16));
    assert_computed(&b, &range(0, 16));
    assert_computed(&a, &prompt);

    // What is cut off is warm, and enough for the copy of a registered block.
    a.truncate(6).unwrap();
    compute(&mut a, &join(&range(0, 6), &[99]));
    assert_computed(&a, &join(&range(0, 6), &[99]));
    a.truncate(6).unwrap();
    drop(charge);
    compute(&mut a, &range(0, 7));
    assert_computed(&a, &range(0, 7));
    cache.check().unwrap();

    drop((a, b));
    assert_eq!(
        cache.stats().blocks_used,
        0,
        "nobody who was refused holds one"
    );
    drop(cache);
    assert_eq!(limit.available_bytes(), BLOCKS * BLOCK);
}

/// lessons/kv.md #18: what the cache says it has is what its allocator counts.
#[test]
fn the_allocator_counts_what_the_cache_says() {
    let meter = std::sync::Arc::new(memory::Meter::new(CpuAllocator::new()));
    let allocator = SharedAllocator::new(std::sync::Arc::clone(&meter));
    let cache = new(Layout::default(), &KvOptions::default(), &allocator);
    assert_eq!(
        meter.snapshot()[Tag::Kv].requested_bytes,
        cache.stats().reserved_bytes
    );
}

/// Threads acquire and drop while another one takes the memory away: nobody is refused blocks
/// that are only moving.
#[test]
fn nobody_is_refused_for_a_relief() {
    let cache = new(Layout::default(), &KvOptions::default(), memory::cpu());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                cache.relieve(3 * BLOCK);
            }
        });
        for round in 0..300 {
            // All blocks but one are wanted, and all are free or idle.
            let prompt = range(round * 100, 26);
            let sequence = cache.acquire(&prompt, &Namespace::default(), 0, None);
            assert_eq!(ids(&sequence.unwrap()).len(), 7);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    cache.check().unwrap();
}

/// Who panics while memory is asked for leaves no table with a block that was not copied.
#[test]
fn a_callback_that_panics_leaves_the_cache_as_it_was() {
    let (cache, limit) = under_budget(Layout::default(), &KvOptions::default(), 0);
    let prompt = range(0, 6);
    drop(prefill(&cache, &prompt)); // blocks 0, 1, idle
    assert_eq!(cache.relieve(6 * BLOCK).bytes, 6 * BLOCK);
    let others = limit.charge(6 * BLOCK).unwrap();
    let guard = limit.on_pressure(|_| panic!("a callback"));

    // The beginning of block 1 is to be copied.
    let longer = join(&prompt, &[70]);
    let result = catch_unwind(AssertUnwindSafe(|| {
        cache.acquire(&longer, &Namespace::default(), 0, None)
    }));
    assert!(result.is_err());
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.blocks_used, stats.sequences), (0, 0));

    // A last block that a fork has too is to be copied.
    drop(guard);
    drop(others);
    let first = prefill(&cache, &prompt);
    let mut twin = first.fork().unwrap();
    let before = ids(&twin);
    let others = limit.charge(limit.available_bytes()).unwrap();
    let guard = limit.on_pressure(|_| panic!("a callback"));
    let result = catch_unwind(AssertUnwindSafe(|| twin.append(&[70]).map(drop)));
    assert!(result.is_err());
    cache.check().unwrap();
    assert_eq!(ids(&twin), before);
    assert_computed(&twin, &prompt);

    drop((guard, others));
    compute(&mut twin, &longer);
    assert_computed(&twin, &longer);
    assert_computed(&first, &prompt);
    cache.check().unwrap();
}
