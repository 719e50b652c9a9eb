use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenslab::kv::{KvCache, KvError, KvSpec, Namespace, Sequence, Step};
use tenslab::memory::{
    AllocError, Allocator, Block, CpuAllocator, Meter, Request, SharedAllocator, SlabAllocator, Tag,
};
use tenslab::{DType, memory};

use super::{DIMS, acquire, append, assert_holds, ids, limits, salts, small_cache};

fn free(cache: &KvCache) -> usize {
    cache.check().unwrap();
    cache.stats().blocks_free
}

/// lessons/kv.md scenario 7, without caching.
#[test]
fn ten_tokens_then_sixteen_then_no_more() {
    let cache = small_cache(4, 2);
    let first = acquire(&cache, 10).unwrap();
    assert_eq!(ids(&first).len(), 3);
    drop(first);

    let mut second = acquire(&cache, 16).unwrap();
    append::<f32>(&mut second, &salts(0, 16)).unwrap();
    assert_eq!(ids(&second).len(), 4);
    // Its table is full as well as the cache, and the table is the harder limit.
    let refused = second.append(&[0; 4]).unwrap_err();
    assert_eq!(
        refused,
        KvError::SequenceTooLong {
            tokens: 20,
            max: 16
        }
    );
    assert_holds::<f32>(&second, &salts(0, 16));

    // With a longer table, what is missing is a block.
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    let cache = KvCache::new(spec, limits(4, 1, 8), memory::cpu()).unwrap();
    let mut long = acquire(&cache, 16).unwrap();
    append::<f32>(&mut long, &salts(0, 16)).unwrap();
    let refused = long.append(&[0; 4]).unwrap_err();
    assert_eq!(
        refused,
        KvError::OutOfBlocks {
            need: 1,
            free: 0,
            evictable: 0,
            total: 4
        }
    );
    assert_holds::<f32>(&long, &salts(0, 16));
}

/// lessons/kv.md scenario 17: reserve counts the tokens behind the prompt.
#[test]
fn lookahead_is_reserved_with_the_prompt() {
    let cache = small_cache(8, 2);
    for (prompt, reserve, blocks) in [(3, 2, 2), (3, 4, 2), (4, 0, 1), (0, 0, 0), (0, 5, 2)] {
        let sequence = cache
            .acquire(&vec![9; prompt], &Namespace::default(), reserve, None)
            .unwrap();
        assert_eq!(ids(&sequence).len(), blocks, "{prompt} + {reserve}");
        assert_eq!(sequence.reserved_tokens(), blocks * 4);
        assert_eq!((sequence.len(), sequence.hit_tokens()), (0, 0));
        assert!(sequence.is_empty());
        assert_eq!(free(&cache), 8 - blocks);
    }
}

/// lessons/kv.md scenario 6: blocks are taken when a token needs one.
#[test]
fn decoding_takes_a_block_when_the_last_one_is_full() {
    let dims = tenslab::kv::KvDims {
        block_tokens: 16,
        ..DIMS
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let cache = KvCache::new(spec, limits(8, 1, 8), memory::cpu()).unwrap();
    let mut sequence = acquire(&cache, 55).unwrap();
    append::<f32>(&mut sequence, &salts(0, 55)).unwrap();
    assert_eq!(ids(&sequence).len(), 4);
    append::<f32>(&mut sequence, &salts(55, 4)).unwrap();
    assert_eq!(ids(&sequence).len(), 4);
    append::<f32>(&mut sequence, &salts(59, 19)).unwrap();
    assert_eq!(ids(&sequence).len(), 5);
    assert_holds::<f32>(&sequence, &salts(0, 78));
}

/// lessons/kv.md #11: free blocks are free wherever they lie.
#[test]
fn every_other_block_free_is_as_good_as_a_row() {
    let cache = small_cache(16, 17);
    let mut singles: Vec<_> = (0..16).map(|_| acquire(&cache, 4).unwrap()).collect();
    for index in (0..16).step_by(2).rev() {
        drop(singles.remove(index));
    }
    assert_eq!(free(&cache), 8);
    let mut scattered = acquire(&cache, 32).unwrap();
    assert!(ids(&scattered).iter().all(|id| id % 2 == 0));
    append::<f32>(&mut scattered, &salts(0, 32)).unwrap();
    assert_holds::<f32>(&scattered, &salts(0, 32));
    assert_eq!(free(&cache), 0);
}

/// lessons/kv.md #32: a first append far longer than what was reserved.
#[test]
fn the_first_append_may_be_longer_than_the_reservation() {
    let cache = small_cache(8, 2);
    let mut sequence = acquire(&cache, 1).unwrap();
    append::<f32>(&mut sequence, &salts(0, 29)).unwrap();
    assert_eq!(ids(&sequence).len(), 8);
    assert_holds::<f32>(&sequence, &salts(0, 29));
}

#[test]
fn exhaustion_takes_nothing_and_says_the_numbers() {
    let cache = small_cache(5, 3);
    let _held = acquire(&cache, 8).unwrap();
    let mut small = acquire(&cache, 4).unwrap();
    append::<f32>(&mut small, &salts(0, 3)).unwrap();
    let before = cache.stats();

    let refused = acquire(&cache, 12).unwrap_err();
    assert_eq!(
        refused,
        KvError::OutOfBlocks {
            need: 3,
            free: 2,
            evictable: 0,
            total: 5
        }
    );
    let refused = small.append(&[0; 14]).unwrap_err();
    assert_eq!(
        refused,
        KvError::OutOfBlocks {
            need: 4,
            free: 2,
            evictable: 0,
            total: 5
        }
    );
    let refused = acquire(&cache, 21).unwrap_err();
    assert_eq!(
        refused,
        KvError::SequenceTooLong {
            tokens: 21,
            max: 20
        }
    );
    let refused = cache
        .acquire(&[0; 2], &Namespace::default(), usize::MAX, None)
        .unwrap_err();
    assert_eq!(
        refused,
        KvError::SequenceTooLong {
            tokens: usize::MAX,
            max: 20
        }
    );

    let _third = acquire(&cache, 0).unwrap();
    assert_eq!(
        acquire(&cache, 0).unwrap_err(),
        KvError::OutOfSequences { max: 3 }
    );
    drop(_third);

    cache.check().unwrap();
    assert_eq!(cache.stats(), before);
    assert_holds::<f32>(&small, &salts(0, 3));
    // What is free can still be had.
    assert_eq!(ids(&acquire(&cache, 8).unwrap()).len(), 2);
}

#[test]
fn a_dropped_step_gives_back_the_blocks_it_took_and_no_others() {
    let cache = small_cache(6, 2);
    let mut sequence = cache
        .acquire(&[1, 2], &Namespace::default(), 4, None)
        .unwrap();
    append::<f32>(&mut sequence, &salts(0, 3)).unwrap();
    let table = ids(&sequence);
    assert_eq!(table.len(), 2);

    let mut step = sequence.append(&[0; 14]).unwrap();
    assert_eq!((step.start(), step.tokens(), step.len()), (3, 14, 17));
    assert_eq!(step.block_count(), 5);
    let filled: Vec<_> = (0..6).map(|block| step.block_filled(block)).collect();
    assert_eq!(filled, [4, 4, 4, 4, 1, 0]);
    assert_eq!(free(&cache), 1);
    step.layer_mut(1)
        .unwrap()
        .write(&[1.0_f32; 140], &[2.0; 84])
        .unwrap();
    drop(step);

    assert_eq!(ids(&sequence), table);
    assert_eq!(free(&cache), 4);
    assert_holds::<f32>(&sequence, &salts(0, 3));
    // The rolled back slots are written again, and only the second time counts.
    append::<f32>(&mut sequence, &salts(100, 6)).unwrap();
    let expected: Vec<_> = salts(0, 3).into_iter().chain(salts(100, 6)).collect();
    assert_holds::<f32>(&sequence, &expected);
}

#[test]
fn commit_names_the_layers_that_are_missing_and_rolls_back() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    let mut step = sequence.append(&[0; 5]).unwrap();
    step.layer_mut(1)
        .unwrap()
        .write(&[0.0_f32; 50], &[0.0; 30])
        .unwrap();
    let error = step.commit().unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 of 3 layers were not written, so the step was rolled back; missing: layer 0, 2"
    );
    let KvError::LayersNotWritten { missing, layers: 3 } = error else {
        panic!("{error:?}");
    };
    assert_eq!(missing.iter().collect::<Vec<_>>(), [0, 2]);
    assert_eq!((sequence.len(), free(&cache)), (0, 4));
}

#[test]
fn a_leaked_step_commits_nothing_and_leaks_no_block() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    std::mem::forget(sequence.append(&[0; 9]).unwrap());
    assert_eq!((sequence.len(), sequence.block_count()), (0, 0));
    assert_eq!(sequence.reserved_tokens(), 12);
    assert_eq!(free(&cache), 1);
    append::<f32>(&mut sequence, &salts(0, 12)).unwrap();
    assert_holds::<f32>(&sequence, &salts(0, 12));
    drop(sequence);
    assert_eq!(free(&cache), 4);
}

#[test]
fn an_empty_step_is_refused() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 4).unwrap();
    assert_eq!(sequence.append(&[]).unwrap_err(), KvError::EmptyStep);
    assert_eq!(free(&cache), 3);
}

#[test]
fn the_block_that_was_used_last_is_taken_first() {
    let cache = small_cache(6, 3);
    let first = acquire(&cache, 12).unwrap();
    let second = acquire(&cache, 8).unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec![0, 1, 2], vec![3, 4]));
    drop(first);
    // Tail first, so the table's first block is in front, and it comes back in order.
    assert_eq!(ids(&acquire(&cache, 16).unwrap()), [0, 1, 2, 5]);
    drop(second);
    assert_eq!(free(&cache), 6);
}

#[test]
fn stats_count_what_is_there() {
    let cache = small_cache(6, 3);
    let block_bytes = cache.spec().block_bytes();
    let mut sequence = acquire(&cache, 5).unwrap();
    append::<f32>(&mut sequence, &salts(0, 3)).unwrap();
    let stats = cache.stats();
    assert_eq!(
        (stats.blocks_total, stats.blocks_free, stats.blocks_used),
        (6, 4, 2)
    );
    assert_eq!((stats.sequences, stats.tokens), (1, 3));
    assert_eq!(
        (stats.reserved_bytes, stats.used_bytes),
        (6 * block_bytes, 2 * block_bytes)
    );
    // An open step holds blocks, but its tokens do not count yet.
    let step = sequence.append(&[0; 10]).unwrap();
    assert_eq!((cache.stats().blocks_used, cache.stats().tokens), (4, 3));
    drop(step);
    drop(sequence);
    let stats = cache.stats();
    assert_eq!(
        (
            stats.blocks_used,
            stats.sequences,
            stats.tokens,
            stats.used_bytes
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn limits_that_cannot_be_are_named() {
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    let new = |blocks, sequences, width| {
        KvCache::new(spec, limits(blocks, sequences, width), memory::cpu()).unwrap_err()
    };
    assert_eq!(new(0, 1, 1), KvError::Zero { what: "blocks" });
    assert_eq!(
        new(1, 0, 1),
        KvError::Zero {
            what: "max_sequences"
        }
    );
    assert_eq!(
        new(1, 1, 0),
        KvError::Zero {
            what: "max_blocks_per_sequence"
        }
    );
    assert!(matches!(
        new(1 << 40, 1, 1),
        KvError::TooLarge { what: "blocks", .. }
    ));
    assert!(matches!(
        new(1, u32::MAX as usize, u32::MAX as usize),
        KvError::TablesTooLarge { .. }
    ));

    let large = KvSpec::new(
        tenslab::kv::KvDims {
            key_dim: 1 << 40,
            ..DIMS
        },
        DType::F32,
    )
    .unwrap();
    let error = KvCache::new(large, limits(1 << 30, 1, 1), memory::cpu()).unwrap_err();
    assert_eq!(
        error,
        KvError::Overflow {
            what: "the kv region"
        }
    );
}

/// Refuses everything, and counts how often.
struct Refuse(AtomicUsize);

// SAFETY: it never returns a block, so it owes nothing about one.
unsafe impl Allocator for Refuse {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(AllocError::OutOfMemory {
            bytes: request.bytes(),
        })
    }

    unsafe fn release_block(&self, block: Block) {
        panic!("{block:?} was never handed out");
    }
}

#[test]
fn an_allocator_that_fails_is_an_error_with_its_reason() {
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    let bytes = 8 * spec.block_bytes();
    let refuse = Arc::new(Refuse(AtomicUsize::new(0)));
    let allocator = SharedAllocator::new(Arc::clone(&refuse));
    let error = KvCache::new(spec, limits(8, 1, 8), &allocator).unwrap_err();
    assert_eq!(error, KvError::Alloc(AllocError::OutOfMemory { bytes }));
    assert_eq!(
        refuse.0.load(Ordering::Relaxed),
        1,
        "one region, one request"
    );
    assert_eq!(allocator.outstanding(), 0);

    // A region is one allocation: a slab's block must be large enough for all of it.
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 4).unwrap());
    assert!(bytes > 4096);
    let error = KvCache::new(spec, limits(8, 1, 8), &slab).unwrap_err();
    assert_eq!(
        error,
        KvError::Alloc(AllocError::TooLarge {
            bytes,
            block_bytes: 4096
        })
    );
}

#[test]
fn the_region_goes_back_once_when_the_last_sequence_is_gone() {
    let meter = Arc::new(Meter::new(CpuAllocator::new()));
    let allocator = SharedAllocator::new(Arc::clone(&meter));
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    let cache = KvCache::new(spec, limits(8, 2, 8), &allocator).unwrap();
    drop(allocator);
    let kv = || meter.snapshot()[Tag::Kv];
    assert_eq!(
        (kv().allocations, kv().requested_bytes),
        (1, cache.stats().reserved_bytes)
    );

    let mut first = acquire(&cache, 4).unwrap();
    let second = acquire(&cache, 4).unwrap();
    let other_handle = cache.clone();
    drop(cache);
    drop(other_handle);
    append::<f32>(&mut first, &salts(0, 9)).unwrap();
    drop(second);
    assert_holds::<f32>(&first, &salts(0, 9));
    assert_eq!(kv().allocations, 1);
    drop(first);
    assert_eq!((kv().allocations, kv().live_bytes), (0, 0));
    assert_eq!(meter.snapshot().total.allocations, 0);
}

#[test]
fn a_cache_fits_a_block_of_a_slab() {
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    let bytes = 4 * spec.block_bytes();
    let slab = SharedAllocator::new(SlabAllocator::new(bytes, 2).unwrap());
    let (a, b) = (
        KvCache::new(spec, limits(4, 1, 4), &slab).unwrap(),
        KvCache::new(spec, limits(4, 1, 4), &slab).unwrap(),
    );
    let (mut in_a, mut in_b) = (acquire(&a, 16).unwrap(), acquire(&b, 16).unwrap());
    append::<f32>(&mut in_a, &salts(0, 16)).unwrap();
    append::<f32>(&mut in_b, &salts(50, 16)).unwrap();
    assert_holds::<f32>(&in_a, &salts(0, 16));
    assert_holds::<f32>(&in_b, &salts(50, 16));
}

#[test]
fn handles_go_to_other_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<KvCache>();
    send_and_sync::<Sequence>();
    send_and_sync::<Step<'_>>();
    send_and_sync::<tenslab::kv::Plane<'_, f32>>();
    fn send<T: Send>() {}
    send::<tenslab::kv::LayerMut<'_>>();
    send::<tenslab::kv::Runs<'_, f32>>();
    send::<tenslab::kv::Run<'_, f32>>();
}
