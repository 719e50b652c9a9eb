//! Cases of lessons/kv.md that belong to no other file here.

use tenslab::kv::{KvCache, KvDims, KvError, KvOptions, KvSpec, Namespace};
use tenslab::{DType, memory};

use super::{
    DIMS, assert_computed, cache_with, compute, ids, join, limits, prefill, range, small_cache,
};

/// #1: a block that several tables have goes back once, whichever goes last. Giving one back
/// twice cannot be written: a sequence is moved where it is dropped.
#[test]
fn a_block_of_several_tables_goes_back_once() {
    for gone_first in 0..3 {
        let cache = small_cache(5, 4);
        let a = prefill(&cache, &range(0, 6), None).unwrap();
        let (b, c) = (a.fork().unwrap(), a.fork().unwrap());
        let mut all = vec![a, b, c];
        let free = || {
            cache.check().unwrap();
            cache.stats().blocks_free
        };
        drop(all.remove(gone_first));
        assert_eq!(free(), 3);
        drop(all.pop());
        assert_eq!(free(), 3);
        drop(all.pop());
        assert_eq!(free(), 5);
        // The list is whole: each block is taken once.
        let mut taken = ids(&cache.acquire(&[], &Namespace::default(), 20, None).unwrap());
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    }
}

/// #34: whoever needs blocks meanwhile evicts idle ones, and never those of a step that is
/// about to commit; and finds its blocks when it did.
#[test]
fn evicting_while_a_step_is_open_spares_the_step() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    drop(prefill(&cache, &range(500, 12), None).unwrap());
    let prompt = range(0, 12);
    let mut a = (cache.acquire(&prompt, &Namespace::default(), 0, None)).unwrap();
    compute(&mut a, &prompt[..4]);
    let mut step = a.append(&prompt[4..]).unwrap();
    for layer in 0..3 {
        let runs = step.layer_mut(layer).unwrap().runs::<f32>().unwrap();
        for run in runs {
            run.data.fill(7.0);
        }
    }
    // Two free ones, and the three idle ones.
    let others = prefill(&cache, &range(900, 20), None).unwrap();
    assert_eq!(cache.counters().evicted_for_space, 3);
    let refused = cache.acquire(&range(700, 1), &Namespace::default(), 0, None);
    assert!(matches!(refused, Err(KvError::OutOfBlocks { .. })));
    drop(refused);
    assert_eq!(step.keys_head::<f32>(2, 2, 1).unwrap(), [7.0; 20]);
    step.commit().unwrap();
    cache.check().unwrap();
    assert_eq!(a.values_head::<f32>(1, 1, 0).unwrap(), [7.0; 12]);
    assert_computed(&others, &range(900, 20));
    drop(others);
    let again = cache.acquire(&prompt, &Namespace::default(), 0, Some(12));
    assert_eq!(again.unwrap().hit_tokens(), 12);
}

/// Scenario 15, its last cases: an idle block that is there is taken by nobody's count, and
/// what a step needs is what it takes.
#[test]
fn a_block_that_is_there_is_not_needed_as_well() {
    let cache = cache_with(&KvOptions::default().with_partial_hits(false), 2, 8, 2);
    drop(prefill(&cache, &range(0, 2), None).unwrap());
    let prompt = range(0, 4);
    let admission = (cache.admission(&prompt, &Namespace::default(), 0, None)).unwrap();
    assert_eq!((admission.need, admission.evictable), (1, 0));
    let before = cache.counters().taken_blocks;
    let mut sequence = prefill(&cache, &prompt, None).unwrap();
    assert_eq!(cache.counters().taken_blocks - before, 1);
    for tokens in [8, 12, 16] {
        let before = (cache.counters().taken_blocks, sequence.block_count());
        compute(&mut sequence, &range(0, tokens));
        let needed = cache.spec().blocks_for(tokens as usize) - before.1;
        assert_eq!(cache.counters().taken_blocks - before.0, needed as u64);
    }
}

/// Scenario 16, its second half: what never fits is refused, also by an empty cache. A table
/// could hold the prompt; the blocks are too few.
#[test]
fn a_prompt_that_never_fits_is_refused_at_once() {
    let dims = KvDims {
        block_tokens: 16,
        ..DIMS
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let cache = KvCache::new(spec, limits(4, 1, 16), memory::cpu()).unwrap();
    let prompt = range(0, 256);
    assert!(!cache.can_admit(&prompt, &Namespace::default(), 0, None, 0));
    let refused = (cache.acquire(&prompt, &Namespace::default(), 0, None)).unwrap_err();
    let expected = KvError::OutOfBlocks {
        need: 16,
        free: 4,
        evictable: 0,
        total: 4,
    };
    assert_eq!(refused, expected);
    cache.check().unwrap();
    assert_eq!(cache.stats().blocks_free, 4);
    assert!(cache.can_admit(&prompt[..64], &Namespace::default(), 0, None, 0));
    // One token more than a table can hold is another refusal, with its own number.
    let refused = (cache.acquire(&prompt, &Namespace::default(), 1, None)).unwrap_err();
    let expected = KvError::SequenceTooLong {
        tokens: 257,
        max: 256,
    };
    assert_eq!(refused, expected);
}

/// Scenario 18, its end: a reset forgets the hits as well.
#[test]
fn a_reset_forgets_the_rate() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 2);
    drop(prefill(&cache, &range(0, 8), None).unwrap());
    drop(prefill(&cache, &join(&range(0, 8), &[9]), None).unwrap());
    assert!(cache.hit_rate() > 0.4);
    cache.reset().unwrap();
    assert!(cache.hit_rate().abs() < 1e-9);
}

/// Scenario 19 (vLLM, test_estimate_max_model_len), one token a block.
#[test]
fn eight_gib_hold_16384_tokens_of_32_layers() {
    let dims = KvDims {
        layers: 32,
        kv_heads: 32,
        key_dim: 128,
        value_dim: 128,
        block_tokens: 1,
    };
    let spec = KvSpec::new(dims, DType::F16).unwrap();
    let fits = (8_usize << 30) / spec.block_bytes();
    assert_eq!((fits.min(16_385), fits.min(16_383)), (16_384, 16_383));
}
