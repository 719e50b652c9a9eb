//! Forks, truncation, copies on write, drafts, pins and tensors of blocks.

use tenslab::DType;
use tenslab::kv::{BlockFill, KvCache, KvError, KvOptions, KvSpec, Layout, Namespace, Sequence};
use tenslab::memory::{self, BorrowError};
use tenslab::tensor::TensorError;

use super::{
    DIMS, assert_computed, cache_with, compute, ids, join, limits, prefill, range, small_cache,
};

fn counted_copies(cache: &KvCache) -> u64 {
    cache.check().unwrap();
    cache.counters().copied_blocks
}

/// lessons/kv.md #4: both go on, and each reads its own.
#[test]
fn forks_share_full_blocks_and_copy_the_tail_once() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let prompt = range(0, 6);
    let mut a = prefill(&cache, &prompt, None).unwrap();
    let mut b = a.fork().unwrap();
    assert_eq!((ids(&a), ids(&b)), (vec![0, 1], vec![0, 1]));
    assert_eq!((b.len(), b.hit_tokens()), (6, 6));
    assert_eq!(cache.stats().blocks_used, 2);

    let (with_a, with_b) = (join(&prompt, &[50]), join(&prompt, &[60]));
    compute(&mut a, &with_a);
    assert_eq!((ids(&a), ids(&b)), (vec![0, 2], vec![0, 1]));
    assert_eq!(counted_copies(&cache), 1);
    // The tail is the other's alone now.
    compute(&mut b, &with_b);
    assert_eq!((ids(&b), counted_copies(&cache)), (vec![0, 1], 1));
    assert_computed(&a, &with_a);
    assert_computed(&b, &with_b);

    drop(a);
    assert_computed(&b, &with_b);
    cache.check().unwrap();
}

/// Four forks at once, each with the same and with another next token.
#[test]
fn many_forks_of_a_tail_each_get_a_copy_but_one() {
    let cache = cache_with(&KvOptions::default(), 4, 16, 8);
    let prompt = range(0, 7);
    let first = prefill(&cache, &prompt, None).unwrap();
    let mut all: Vec<Sequence> = (0..3).map(|_| first.fork().unwrap()).collect();
    all.push(first);
    for (index, sequence) in (0..).zip(&mut all) {
        let next = join(&prompt, &[100 + index, 1, 2]);
        compute(sequence, &next);
        cache.check().unwrap();
    }
    assert_eq!(counted_copies(&cache), 3);
    for (index, sequence) in (0..).zip(&all) {
        assert_computed(sequence, &join(&prompt, &[100 + index, 1, 2]));
    }
    drop(all);
    assert_eq!(cache.stats().blocks_used, 0);
    cache.check().unwrap();
}

#[test]
fn forks_work_without_prefixes_too() {
    let cache = small_cache(8, 4);
    let prompt = range(0, 6);
    let mut a = prefill(&cache, &prompt, None).unwrap();
    let b = a.fork().unwrap();
    compute(&mut a, &range(0, 9));
    assert_eq!((ids(&a), ids(&b)), (vec![0, 2, 3], vec![0, 1]));
    assert_computed(&b, &prompt);
    drop(b);
    // Cut into the first block, which nobody else has any more: written in place.
    a.truncate(2).unwrap();
    compute(&mut a, &[0, 1, 7]);
    assert_eq!((ids(&a), counted_copies(&cache)), (vec![0], 1));
    drop(a);
    assert_eq!(cache.stats().blocks_free, 8);
}

#[test]
fn a_fork_needs_a_sequence_and_no_block() {
    let cache = cache_with(&KvOptions::default(), 4, 2, 2);
    let a = prefill(&cache, &range(0, 7), None).unwrap();
    assert_eq!(cache.stats().blocks_free, 0);
    let mut b = a.fork().unwrap();
    let full = a.fork().unwrap_err();
    assert_eq!(full, KvError::OutOfSequences { max: 2 });
    // The copy needs a block, and there is none: nothing changes.
    let refused = b.append(&[9]).unwrap_err();
    let expected = KvError::OutOfBlocks {
        need: 1,
        free: 0,
        evictable: 0,
        total: 2,
    };
    assert_eq!(refused, expected);
    cache.check().unwrap();
    assert_eq!(ids(&a), ids(&b));
    drop(a);
    compute(&mut b, &range(0, 8));
    assert_computed(&b, &range(0, 8));
}

/// The mutant "truncated block keeps its key": what others find is never overwritten.
#[test]
fn a_truncated_block_is_copied_before_it_is_written() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let (prompt, other) = (range(0, 8), join(&range(0, 6), &[90, 91]));
    let mut a = prefill(&cache, &prompt, None).unwrap();
    a.truncate(6).unwrap();
    assert_eq!((a.len(), ids(&a)), (6, vec![0, 1]));
    assert_computed(&a, &prompt[..6]);
    compute(&mut a, &other);
    assert_eq!(counted_copies(&cache), 1);
    assert_computed(&a, &other);
    // The block that was cut is still what its tokens say.
    let b = prefill(&cache, &prompt, Some(8)).unwrap();
    assert_eq!(b.hit_tokens(), 8);
    assert_computed(&a, &other);
}

#[test]
fn truncation_gives_back_what_is_behind() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let prompt = range(0, 18);
    let mut a = (cache.acquire(&prompt, &Namespace::default(), 6, None)).unwrap();
    compute(&mut a, &prompt);
    assert_eq!(a.reserved_tokens(), 24);
    let longer = a.truncate(19).unwrap_err();
    let expected = KvError::NotThatLong {
        asked: 19,
        tokens: 18,
    };
    assert_eq!(longer, expected);
    a.truncate(18).unwrap();
    assert_eq!((a.reserved_tokens(), cache.stats().blocks_free), (20, 3));
    a.truncate(9).unwrap();
    let stats = cache.stats();
    // The partly filled one is free; the full one behind the cut is idle.
    assert_eq!((stats.blocks_free, stats.blocks_idle), (4, 1));
    assert_eq!((stats.tokens, ids(&a).len()), (9, 3));
    a.truncate(4).unwrap();
    assert_eq!((ids(&a).len(), cache.stats().blocks_idle), (1, 3));
    a.truncate(0).unwrap();
    assert_eq!((ids(&a).len(), cache.stats().blocks_idle), (0, 4));
    cache.check().unwrap();
    // It goes on as any sequence does, and finds nothing by itself.
    compute(&mut a, &prompt[..5]);
    assert_eq!(cache.counters().duplicate_blocks, 1);
    assert_computed(&a, &prompt[..5]);
    cache.check().unwrap();
}

/// lessons/kv.md #30: three verified and two drafted tokens fill a block.
#[test]
fn drafts_that_were_wrong_are_never_registered() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let all = range(0, 12);
    let mut a = prefill(&cache, &all[..7], None).unwrap();
    let mut step = a.append(&all[7..12]).unwrap();
    for layer in 0..3 {
        step.layer_mut(layer)
            .unwrap()
            .runs::<f32>()
            .unwrap()
            .for_each(drop);
    }
    assert_eq!(cache.stats().blocks_registered, 1, "before the commit");
    let other = cache.acquire(&all, &Namespace::default(), 0, None).unwrap();
    assert_eq!(other.hit_tokens(), 4);
    drop(other);
    step.commit_first(3).unwrap();
    assert_eq!((a.len(), ids(&a).len()), (10, 3));
    assert_eq!(cache.stats().blocks_registered, 2);
    cache.check().unwrap();

    let mut step = a.append(&all[10..]).unwrap();
    for layer in 0..3 {
        step.layer_mut(layer)
            .unwrap()
            .runs::<f32>()
            .unwrap()
            .for_each(drop);
    }
    let error = step.commit_first(3).unwrap_err();
    let expected = KvError::NotThatLong {
        asked: 3,
        tokens: 2,
    };
    assert_eq!(error, expected);
    assert_eq!(a.len(), 10);
    let mut step = a.append(&range(500, 20)[..14]).unwrap();
    for layer in 0..3 {
        step.layer_mut(layer)
            .unwrap()
            .runs::<f32>()
            .unwrap()
            .for_each(drop);
    }
    step.commit_first(0).unwrap();
    assert_eq!(
        (a.len(), ids(&a).len()),
        (10, 3),
        "the blocks for drafts went back"
    );
    cache.check().unwrap();
}

/// A long prompt in pieces of every size is the same as in one.
#[test]
fn a_prompt_may_come_in_pieces() {
    let all = range(0, 23);
    for piece in 1..=23 {
        let cache = cache_with(&KvOptions::default(), 4, 8, 2);
        let mut a = cache.acquire(&all, &Namespace::default(), 0, None).unwrap();
        let mut done = 0;
        while done < all.len() {
            done = (done + piece).min(all.len());
            compute(&mut a, &all[..done]);
        }
        assert_computed(&a, &all);
        let b = prefill(&cache, &all, None).unwrap();
        assert_eq!(b.hit_tokens(), 20, "pieces of {piece}");
    }
}

#[test]
fn a_pin_keeps_a_prefix_from_being_evicted() {
    let cache = cache_with(&KvOptions::default(), 4, 4, 4);
    let system = range(0, 8);
    assert!(cache.pin(&system, &Namespace::default()).is_none());
    drop(prefill(&cache, &system, None).unwrap());
    let pin = cache
        .pin(&join(&system, &[1]), &Namespace::default())
        .unwrap();
    assert_eq!((pin.tokens(), cache.stats().blocks_used), (8, 2));
    cache.check().unwrap();
    drop(prefill(&cache, &range(100, 8), None).unwrap());
    let refused = prefill(&cache, &range(200, 12), None).unwrap_err();
    let expected = KvError::OutOfBlocks {
        need: 3,
        free: 0,
        evictable: 2,
        total: 4,
    };
    assert_eq!(refused, expected);
    assert_eq!(prefill(&cache, &system, Some(8)).unwrap().hit_tokens(), 8);
    assert!(cache.reset().is_err());
    drop(pin);
    drop(prefill(&cache, &range(200, 16), None).unwrap());
    assert!(cache.pin(&system, &Namespace::default()).is_none());
    cache.check().unwrap();
}

#[test]
fn a_tensor_of_a_block_is_frozen_and_outlives_everything() {
    let cache = cache_with(&KvOptions::default(), 4, 4, 4);
    let prompt = range(0, 10);
    let a = prefill(&cache, &prompt, None).unwrap();
    let expected = a.keys::<f32>(2, 1).unwrap().as_slice().unwrap().to_vec();
    let keys = a.keys_tensor(2, 1).unwrap();
    let values = a.values_tensor(0, 0).unwrap();
    assert_eq!(keys.shape().dims(), [2, 4, 5]);
    assert_eq!(values.shape().dims(), [2, 4, 3]);
    assert_eq!(&*keys.read::<f32>().unwrap(), &expected[..]);
    assert_eq!(
        keys.read::<f32>().unwrap().as_ptr(),
        a.keys::<f32>(2, 1).unwrap().as_slice().unwrap().as_ptr(),
        "the block's own bytes"
    );
    let refused = keys.write::<f32>().unwrap_err();
    assert!(matches!(
        refused,
        TensorError::Borrow(BorrowError::Frozen { .. })
    ));
    let not_full = a.keys_tensor(0, 2).unwrap_err();
    assert_eq!(
        not_full.to_string(),
        "block 2 does not exist, the sequence has 2"
    );
    assert!(a.keys_tensor(3, 0).is_err());

    // Its use holds the block, and with it the chain in front of it.
    drop((a, values));
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.blocks_used, stats.blocks_idle), (2, 1));
    drop(prefill(&cache, &range(100, 8), None).unwrap());
    assert!(prefill(&cache, &range(200, 9), None).is_err());
    assert_eq!(&*keys.read::<f32>().unwrap(), &expected[..]);

    let view = keys.slice(0, 1, 2).unwrap();
    drop(keys);
    drop(cache);
    assert_eq!(&*view.read::<f32>().unwrap(), &expected[20..]);
}

#[test]
fn tensors_need_finished_blocks() {
    let cache = small_cache(4, 1);
    let a = prefill(&cache, &range(0, 4), None).unwrap();
    assert!(a.keys_tensor(0, 0).is_err(), "no block is ever finished");
}

/// lessons/kv.md #28: what a block holds when it is taken.
#[test]
fn blocks_are_filled_by_choice() {
    let read = |fill, expected: fn(f32) -> bool| {
        let options = KvOptions::default().with_fill(fill);
        let cache = cache_with(&options, 4, 2, 2);
        drop(prefill(&cache, &range(0, 8), None).unwrap());
        for rounds in 0..2 {
            let mut a = prefill(&cache, &range(100 + rounds, 1), None).unwrap();
            let mut step = a.append(&range(300, 5)).unwrap();
            for layer in 0..3 {
                for run in step.layer_mut(layer).unwrap().runs::<f32>().unwrap() {
                    assert!(run.data.iter().all(|&value| expected(value)), "{fill:?}");
                }
            }
        }
    };
    read(BlockFill::Zero, |value| value.to_bits() == 0);
    read(BlockFill::Poison, f32::is_nan);
}

/// Of a block that is copied the slots of its tokens are, and the others hold what was chosen.
#[test]
fn a_copy_is_filled_behind_its_tokens() {
    for layout in Layout::ALL {
        let spec = KvSpec::new(DIMS, DType::F32).unwrap();
        let spec = spec.with_layout(layout).unwrap();
        let options = KvOptions::default().with_fill(BlockFill::Zero);
        let limits = limits(4, 2, 4);
        let cache = KvCache::with_options(spec, limits, &options, memory::cpu()).unwrap();
        let assert_zero_behind = |sequence: &mut Sequence| {
            let mut step = sequence.append(&[7]).unwrap();
            for layer in 0..3 {
                for run in step.layer_mut(layer).unwrap().runs::<f32>().unwrap() {
                    assert!(
                        run.data.iter().all(|value| value.to_bits() == 0),
                        "{layout}"
                    );
                }
            }
        };
        // A full block, of which two tokens are a beginning.
        drop(prefill(&cache, &range(0, 4), None).unwrap());
        let mut begun = prefill(&cache, &range(0, 3), None).unwrap();
        assert_eq!(begun.hit_tokens(), 2, "{layout}");
        begun.truncate(2).unwrap();
        assert_computed(&begun, &range(0, 2));
        // The third token went; after a copy for a fork nothing of it is left.
        let mut fork = begun.fork().unwrap();
        assert_zero_behind(&mut fork);
        assert_computed(&fork, &range(0, 2));
        assert_computed(&begun, &range(0, 2));
        assert!(cache.counters().copied_blocks >= 2);
    }
}

/// While a step writes the last block in place nobody may come to share it: `committed` lends
/// the sequence, whose fork would read slots that the step writes.
#[test]
fn a_fork_is_refused_while_a_step_is_open() {
    for cache in [
        cache_with(&KvOptions::default(), 4, 8, 4),
        small_cache(8, 4),
    ] {
        let prompt = range(0, 6);
        let mut a = prefill(&cache, &prompt, None).unwrap();
        let step = a.append(&[7, 8]).unwrap();
        assert_eq!(step.committed().fork().unwrap_err(), KvError::StepOpen);
        drop(step);
        cache.check().unwrap();
        assert_eq!(cache.stats().sequences, 1);

        // A step that ended, one way or the other, is in nobody's way.
        drop(a.fork().unwrap());
        compute(&mut a, &range(0, 8));
        drop(a.fork().unwrap());
        // Nor is one that was leaked, once the sequence was cut or appended to again.
        std::mem::forget(a.append(&[9]).unwrap());
        assert_eq!(a.fork().unwrap_err(), KvError::StepOpen);
        a.truncate(8).unwrap();
        drop(a.fork().unwrap());
        cache.check().unwrap();
    }
}
