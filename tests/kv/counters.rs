use tenslab::kv::{KvOptions, Namespace, PrefixHash};

use super::prefix::whole_blocks;
use super::{acquire, append, cache_with, limits, prefill, range, salts};

/// What last blocks waste, and what is given back without being kept.
#[test]
fn empty_slots_and_freed_blocks_are_counted() {
    let cache = cache_with(&KvOptions::default().with_partial_hits(false), 4, 16, 4);
    let empty = || cache.stats().empty_slots;
    let freed = || cache.counters().freed_blocks;
    let mut sequence = acquire(&cache, 12).unwrap();
    assert_eq!((empty(), freed()), (0, 0), "reserved blocks are not waste");
    append::<f32>(&mut sequence, &salts(0, 5)).unwrap();
    assert_eq!(empty(), 3);
    let mut fork = sequence.fork().unwrap();
    assert_eq!(empty(), 6, "both end in that block");
    append::<f32>(&mut fork, &salts(5, 3)).unwrap();
    assert_eq!(empty(), 3);
    sequence.truncate(2).unwrap();
    // The reserved block went, and the one of which the fork has a copy.
    assert_eq!((empty(), freed()), (2, 2));
    drop(fork);
    // Its two full blocks are kept.
    assert_eq!((empty(), freed()), (2, 2));
    drop(sequence);
    assert_eq!((empty(), freed()), (0, 2));

    let (stats, counters) = (cache.stats(), cache.counters());
    assert_eq!(stats.blocks_idle, 2);
    assert_eq!(counters.taken_blocks, 4);
    cache.check().unwrap();

    // Evicted blocks are not freed ones, and all of them are those that were taken.
    drop(acquire(&cache, 60).unwrap());
    let counters = cache.counters();
    assert_eq!((counters.evicted_for_space, counters.taken_blocks), (1, 19));
    assert_eq!(counters.freed_blocks, 17);
    cache.reset().unwrap();
    let counters = cache.counters();
    assert_eq!((counters.evicted_by_reset, counters.freed_blocks), (1, 17));
}

/// Hits over the last requests (scenario 18) and since the cache was made.
#[test]
fn hits_are_counted() {
    let options = whole_blocks().with_hit_window(2);
    let cache = cache_with(&options, 4, 16, 4);
    drop(prefill(&cache, &range(0, 8), None).unwrap());
    assert!(cache.hit_rate().abs() < 1e-9);
    drop(prefill(&cache, &range(0, 8), Some(8)).unwrap());
    assert!((cache.hit_rate() - 0.5).abs() < 1e-9);
    drop(prefill(&cache, &range(0, 8), Some(8)).unwrap());
    assert!((cache.hit_rate() - 1.0).abs() < 1e-9);
    let counters = cache.counters();
    assert_eq!((counters.requests, counters.query_tokens), (3, 24));
    assert_eq!((counters.hit_tokens, counters.hit_blocks), (16, 4));
}

/// What an eviction looks at does not grow with the cache: counted, not timed.
#[test]
fn an_eviction_touches_as_much_of_a_large_cache_as_of_a_small_one() {
    let touched = |blocks: usize| {
        let dims = tenslab::kv::KvDims {
            layers: 1,
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            block_tokens: 1,
        };
        let spec = tenslab::kv::KvSpec::new(dims, tenslab::DType::F32).unwrap();
        let limits = limits(blocks, 2, blocks);
        let options = whole_blocks().with_hash(PrefixHash::seeded(1));
        let cache =
            tenslab::kv::KvCache::with_options(spec, limits, &options, tenslab::memory::cpu())
                .unwrap();
        let all = range(0, u32::try_from(blocks).unwrap());
        let mut sequence = cache.acquire(&all, &Namespace::default(), 0, None).unwrap();
        let mut step = sequence.append(&all).unwrap();
        step.layer_mut(0)
            .unwrap()
            .runs::<f32>()
            .unwrap()
            .for_each(drop);
        step.commit().unwrap();
        drop(sequence);
        assert_eq!(cache.stats().blocks_idle, blocks);
        let before = cache.counters();
        drop(
            cache
                .acquire(&[], &Namespace::default(), 500, None)
                .unwrap(),
        );
        let after = cache.counters();
        assert_eq!(after.evicted_for_space - before.evicted_for_space, 500);
        after.touched_records - before.touched_records
    };
    // Exactly four for each of the 500.
    assert_eq!((touched(1000), touched(1_000_000)), (2000, 2000));
}
