//! The region as the allocator and the system see it.

use std::sync::Arc;

use tenslab::DType;
use tenslab::kv::{KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace};
use tenslab::memory::{
    Budget, CpuAllocator, Limit, Meter, SharedAllocator, Tag, cpu, resident_bytes,
};

const MIB: usize = 1 << 20;

/// Blocks of 1 MiB, 16 tokens each.
fn spec() -> KvSpec {
    let dims = KvDims {
        layers: 4,
        kv_heads: 8,
        key_dim: 256,
        value_dim: 256,
        block_tokens: 16,
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    assert_eq!(spec.block_bytes(), MIB);
    spec
}

fn limits(blocks: usize) -> KvLimits {
    KvLimits {
        blocks,
        max_sequences: 2,
        max_blocks_per_sequence: blocks,
    }
}

/// lessons/kv.md #18: who counts memory sees all of the cache's, from its first moment to its
/// last, and can refuse it.
#[test]
fn what_a_cache_reserves_is_what_its_allocator_counts() {
    let limit = Limit::new(9 * MIB);
    let meter = Arc::new(Meter::new(Budget::new(CpuAllocator::new(), &limit)));
    let allocator = SharedAllocator::new(Arc::clone(&meter));
    let cache = KvCache::new(spec(), limits(8), &allocator).unwrap();
    let stats = cache.stats();
    assert_eq!(stats.reserved_bytes, 8 * MIB);
    let counted = || meter.snapshot()[Tag::Kv];
    assert_eq!(counted().requested_bytes, stats.reserved_bytes);
    assert_eq!(counted().live_bytes, limit.used_bytes());
    assert!(counted().live_bytes - stats.reserved_bytes < MIB);

    let refused = KvCache::new(spec(), limits(2), &allocator).unwrap_err();
    assert!(matches!(refused, KvError::Alloc(_)), "{refused}");

    // What sequences do inside of it changes nothing outside.
    let sequence = (cache.acquire(&[], &Namespace::default(), 100, None)).unwrap();
    assert_eq!(cache.stats().used_bytes, 7 * MIB);
    assert_eq!(counted().requested_bytes, stats.reserved_bytes);
    drop((sequence, cache));
    assert_eq!((counted().live_bytes, limit.used_bytes()), (0, 0));
}

/// Bytes of the region that are in memory. No sequence lives.
fn resident(cache: &KvCache) -> Option<usize> {
    assert_eq!(cache.stats().sequences, 0);
    let region = cache.region();
    let bytes = region.end as usize - region.start as usize;
    // SAFETY: the region is mapped and initialised while `cache` lives, and without a sequence
    // nobody writes it. The bytes are not read: the kernel is asked about their pages.
    resident_bytes(unsafe { std::slice::from_raw_parts(region.start, bytes) })
}

/// lessons/kv.md #27: memory comes as blocks are written, or all of it at first.
#[test]
fn memory_comes_with_the_first_write_or_with_the_cache() {
    let lazy = KvCache::new(spec(), limits(64), cpu()).unwrap();
    let Some(untouched) = resident(&lazy) else {
        return; // the system does not say
    };
    assert!(
        untouched < 2 * MIB,
        "{untouched} bytes before the first write"
    );
    let mut sequence = (lazy.acquire(&[1; 30], &Namespace::default(), 0, None)).unwrap();
    let mut step = sequence.append(&[1; 30]).unwrap();
    for layer in 0..4 {
        let rows = vec![1.0_f32; 30 * 8 * 256];
        (step.layer_mut(layer).unwrap())
            .write(&rows, &rows)
            .unwrap();
    }
    step.commit().unwrap();
    drop(sequence);
    let touched = resident(&lazy).unwrap();
    // Two blocks, and at most a huge page at each end.
    assert!(
        (MIB..6 * MIB).contains(&touched),
        "{touched} bytes of 2 blocks"
    );

    let options = KvOptions::default().with_populate(true);
    let full = KvCache::with_options(spec(), limits(16), &options, cpu()).unwrap();
    assert_eq!(resident(&full), Some(16 * MIB));
}
