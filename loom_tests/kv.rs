//! The KV cache: what one thread finds, another may be dropping, evicting or writing.
//!
//! Blocks of one or two tokens, so that a chain is two blocks. The cache tells loom of each
//! access to a block's bytes, so two that nothing orders fail a model; what is read is
//! compared as well, for a block that went to somebody else in good order has other bytes.

use loom::sync::Arc;
use loom::thread;
use tenslab::internals::set_worker;
use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace, PrefixHash, Sequence,
};
use tenslab::memory::{CpuAllocator, SharedAllocator};
use tenslab::{DType, Tensor};

use super::harness::{Gate, model};

/// Blocks, tokens in each, and sequences.
fn cache(blocks: usize, block_tokens: usize, max_sequences: usize) -> KvCache {
    let dims = KvDims {
        layers: 1,
        kv_heads: 1,
        key_dim: 1,
        value_dim: 1,
        block_tokens,
    };
    let limits = KvLimits {
        blocks,
        max_sequences,
        max_blocks_per_sequence: blocks,
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let options = KvOptions::default().with_hash(PrefixHash::seeded(1));
    let allocator = SharedAllocator::new(CpuAllocator::new());
    KvCache::with_options(spec, limits, &options, &allocator).unwrap()
}

/// Runs `theirs` on another thread beside `mine`. Both pass a gate first.
fn beside<A, B: 'static>(theirs: impl FnOnce() -> B + 'static, mine: impl FnOnce() -> A) -> (A, B) {
    let gate = Arc::new(Gate::new());
    let other = thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            gate.pass();
            theirs()
        }
    });
    gate.pass();
    let mine = mine();
    (mine, other.join().unwrap())
}

/// Appends those of the tokens that are not there, and commits them.
fn compute(sequence: &mut Sequence, all: &[u32]) -> Result<(), KvError> {
    let new = &all[sequence.len()..];
    let keys: Vec<f32> = new.iter().map(|&token| token as f32).collect();
    let values: Vec<f32> = keys.iter().map(|key| key + 0.5).collect();
    let mut step = sequence.append(new)?;
    step.layer_mut(0)?.write(&keys, &values)?;
    step.commit()
}

/// The bytes of the sequence are those of the first of these tokens, as many as it has.
fn assert_holds(sequence: &Sequence, all: &[u32]) {
    let block_tokens = sequence.cache().spec().block_tokens();
    let tokens = &all[..sequence.len()];
    for (block, tokens) in tokens.chunks(block_tokens).enumerate() {
        let keys = sequence.keys_head::<f32>(0, block, 0).unwrap();
        let values = sequence.values_head::<f32>(0, block, 0).unwrap();
        for (token, (key, value)) in tokens.iter().zip(keys.iter().zip(values)) {
            assert_eq!((*key, *value), (*token as f32, *token as f32 + 0.5));
        }
    }
}

fn acquire(cache: &KvCache, tokens: &[u32]) -> Result<Sequence, KvError> {
    let sequence = cache.acquire(tokens, &Namespace::default(), 0, Some(tokens.len()))?;
    assert_holds(&sequence, tokens);
    Ok(sequence)
}

/// A prompt, found or computed.
fn prefill(cache: &KvCache, tokens: &[u32]) -> Result<Sequence, KvError> {
    let mut sequence = acquire(cache, tokens)?;
    if sequence.len() < tokens.len() {
        compute(&mut sequence, tokens)?;
    }
    assert_holds(&sequence, tokens);
    Ok(sequence)
}

/// Everything adds up, and without a user each block is there for the next one.
fn assert_nobody_is_left(cache: &KvCache) {
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!(
        (stats.sequences, stats.tokens, stats.blocks_used),
        (0, 0, 0)
    );
    let blocks = cache.limits().blocks;
    assert_eq!(stats.blocks_free + stats.blocks_idle, blocks);
    let all = acquire(cache, &vec![u32::MAX; blocks * cache.spec().block_tokens()]).unwrap();
    assert_eq!(all.block_ids().count(), blocks);
    cache.check().unwrap();
}

/// The last user of a prefix drops it while another looks it up: it is there, used or idle.
/// There is one slot, so who comes too early is refused.
///
/// Fails when a slot is free before its blocks are back.
#[test]
fn the_last_drop_and_a_lookup_agree() {
    model(|| {
        let cache = cache(3, 1, 1);
        let a = prefill(&cache, &[1, 2]).unwrap();
        let (b, ()) = beside(move || drop(a), || prefill(&cache, &[1, 2, 3]));
        match b {
            Ok(b) => {
                assert_eq!((b.hit_tokens(), cache.stats().blocks_used), (2, 3));
                cache.check().unwrap();
                assert_holds(&b, &[1, 2, 3]);
            }
            Err(error) => assert_eq!(error, KvError::OutOfSequences { max: 1 }),
        }
        assert_nobody_is_left(&cache);
    });
}

/// One looks an idle prefix up, the other needs its blocks.
///
/// Fails when a request is planned under one lock and its blocks are taken under another.
#[test]
fn what_is_found_is_not_evicted() {
    model(|| {
        let cache = cache(2, 1, 2);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || prefill(&theirs, &[7, 8]).map(drop),
            || {
                let a = prefill(&cache, &[1, 2])?;
                assert_holds(&a, &[1, 2]);
                Ok::<_, KvError>(a.hit_tokens())
            },
        );
        assert!(mine.is_ok() || other.is_ok());
        if let Ok(hit_tokens) = mine {
            assert!(hit_tokens == 1 || other.is_ok());
        }
        assert_nobody_is_left(&cache);
    });
}

/// The same under the lock as it leans to the one thread that uses the cache first.
///
/// Fails when who has the lock does not shut the door that is open, and as the one above.
#[test]
fn what_is_found_is_not_evicted_where_the_lock_leans() {
    model(|| {
        set_worker(0);
        let cache = cache(1, 1, 2);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || {
                set_worker(1);
                acquire(&theirs, &[7]).map(drop)
            },
            || acquire(&cache, &[1]).map(|a| a.hit_tokens()),
        );
        assert!(mine.is_ok() || other.is_ok());
        assert_nobody_is_left(&cache);
    });
}

/// One commits a block, the other looks for it: it is found whole or not at all.
///
/// Fails when a block is findable before its tokens are committed.
#[test]
fn a_block_is_found_with_its_bytes() {
    model(|| {
        let cache = cache(3, 1, 2);
        let theirs = cache.clone();
        let (mine, hit_tokens) = beside(
            move || acquire(&theirs, &[1]).unwrap().hit_tokens(),
            || prefill(&cache, &[1, 2]).map(drop),
        );
        mine.unwrap();
        assert!(hit_tokens <= 1);
        assert_nobody_is_left(&cache);
    });
}

/// One computed what is there already and idle, and commits it; the other needs a block, the
/// idle one or the one that became free by that, and is refused both.
///
/// Fails when a block is registered under one lock and held under another.
#[test]
fn what_is_registered_is_not_evicted() {
    model(|| {
        let cache = cache(2, 1, 2);
        let mut a = (cache.acquire(&[1], &Namespace::default(), 0, Some(0))).unwrap();
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let ((), ()) = beside(
            move || {
                drop(prefill(&theirs, &[7]).unwrap());
                assert!(prefill(&theirs, &[7, 8]).is_err(), "one block is used");
            },
            || {
                compute(&mut a, &[1]).unwrap();
                assert_holds(&a, &[1]);
            },
        );
        cache.check().unwrap();
        assert_holds(&a, &[1]);
        assert_eq!(cache.stats().blocks_used, 1);
        drop(a);
        assert_nobody_is_left(&cache);
    });
}

/// Two compute the same and commit it: one copy stays, and both have it. No mutant is for
/// this one alone.
#[test]
fn of_two_that_commit_the_same_one_stays() {
    model(|| {
        let cache = cache(3, 1, 2);
        let mut a = (cache.acquire(&[1], &Namespace::default(), 0, None)).unwrap();
        let mut b = (cache.acquire(&[1], &Namespace::default(), 0, None)).unwrap();
        let ((), b) = beside(
            move || {
                compute(&mut b, &[1]).unwrap();
                assert_holds(&b, &[1]);
                b
            },
            || compute(&mut a, &[1]).unwrap(),
        );
        assert!(a.block_ids().eq(b.block_ids()));
        assert_eq!(cache.stats().blocks_used, 1);
        assert_eq!(cache.counters().duplicate_blocks, 1);
        cache.check().unwrap();
        assert_holds(&a, &[1]);
        drop((a, b));
        assert_nobody_is_left(&cache);
    });
}

/// Two want two of three blocks, and keep them: one gets them, and the other none.
///
/// Fails when a request is planned under one lock and its blocks are taken under another,
/// and when blocks are taken before it is known that there are enough.
#[test]
fn of_two_that_want_more_than_there_is_one_gets_all() {
    model(|| {
        let cache = cache(3, 1, 2);
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || acquire(&theirs, &[1, 2]),
            || acquire(&cache, &[3, 4]),
        );
        assert!(mine.is_ok() != other.is_ok());
        let refused = KvError::OutOfBlocks {
            need: 2,
            free: 1,
            evictable: 0,
            total: 3,
        };
        assert_eq!(mine.as_ref().err().or(other.as_ref().err()), Some(&refused));
        cache.check().unwrap();
        assert_eq!(cache.stats().blocks_used, 2);
        drop((mine, other));
        assert_nobody_is_left(&cache);
    });
}

/// The same of two that grow.
///
/// Fails when room is found under one lock and used under another.
#[test]
fn of_two_that_grow_beyond_what_there_is_one_does() {
    model(|| {
        let cache = cache(3, 1, 2);
        let [mut a, mut b] = [(); 2].map(|()| acquire(&cache, &[]).unwrap());
        let (mine, other) = beside(
            move || {
                let grown = compute(&mut b, &[1, 2]);
                assert_holds(&b, &[1, 2]);
                (grown, b)
            },
            || compute(&mut a, &[3, 4]),
        );
        let (other, b) = other;
        assert!(mine.is_ok() != other.is_ok());
        cache.check().unwrap();
        assert_eq!(cache.stats().blocks_used, 2);
        drop((a, b));
        assert_nobody_is_left(&cache);
    });
}

/// Of two forks one appends, and has to copy the last block or not; the other ends, and its
/// block goes to who comes next.
///
/// Fails when a block that is copied is let go before the copy is made, and when a block that
/// several tables have is written in place.
#[test]
fn a_copy_is_made_of_a_block_that_is_still_there() {
    model(|| {
        let cache = cache(2, 2, 3);
        let a = prefill(&cache, &[1]).unwrap();
        let mut b = a.fork().unwrap();
        let theirs = cache.clone();
        let ((), other) = beside(
            move || {
                assert_holds(&a, &[1]);
                drop(a);
                prefill(&theirs, &[7]).map(drop)
            },
            || {
                compute(&mut b, &[1, 2]).unwrap();
                assert_holds(&b, &[1, 2]);
            },
        );
        if let Err(error) = other {
            let refused = KvError::OutOfBlocks {
                need: 1,
                free: 0,
                evictable: 0,
                total: 2,
            };
            assert_eq!(error, refused);
        }
        cache.check().unwrap();
        assert_holds(&b, &[1, 2]);
        drop(b);
        assert_nobody_is_left(&cache);
    });
}

/// Both forks append, and there is one block for a copy: who comes second writes in place
/// once the first has its copy, and is refused before.
///
/// Fails when room is found under one lock and used under another, and when a block that is
/// copied is let go before the copy is made.
#[test]
fn of_two_forks_one_copies_and_one_stays() {
    model(|| {
        let cache = cache(2, 2, 2);
        let mut a = prefill(&cache, &[1]).unwrap();
        let mut b = a.fork().unwrap();
        let (mine, (other, b)) = beside(
            move || {
                let appended = compute(&mut b, &[1, 3]);
                assert_holds(&b, &[1, 3]);
                (appended, b)
            },
            || compute(&mut a, &[1, 2]),
        );
        assert!(mine.is_ok() || other.is_ok());
        assert_holds(&a, &[1, 2]);
        assert_holds(&b, &[1, 3]);
        cache.check().unwrap();
        assert_eq!(cache.counters().copied_blocks, 1);
        drop((a, b));
        assert_nobody_is_left(&cache);
    });
}

/// One cuts a chain, while its sibling is forked, both end, and somebody wants all blocks.
///
/// Fails when the new end of a table is held under another lock than the old one is let go.
#[test]
fn what_is_left_of_a_truncated_chain_is_held() {
    model(|| {
        let cache = cache(2, 1, 3);
        let mut a = prefill(&cache, &[1, 2]).unwrap();
        let b = a.fork().unwrap();
        let theirs = cache.clone();
        let ((), other) = beside(
            move || {
                let c = b.fork().unwrap();
                drop(b);
                assert_holds(&c, &[1, 2]);
                drop(c);
                prefill(&theirs, &[7, 8]).map(drop)
            },
            || {
                a.truncate(1).unwrap();
                assert_holds(&a, &[1]);
            },
        );
        assert!(other.is_err(), "one of two blocks is used all the time");
        cache.check().unwrap();
        assert_holds(&a, &[1]);
        assert_eq!((cache.stats().blocks_used, cache.stats().tokens), (1, 1));
        drop(a);
        assert_nobody_is_left(&cache);
    });
}

/// One cuts into a block and goes on otherwise, while its sibling is forked and read.
///
/// Fails when a registered block that was cut is written in place, and when a block that
/// several tables have is.
#[test]
fn a_truncated_block_stays_as_it_is_for_its_sibling() {
    model(|| {
        let cache = cache(2, 2, 3);
        let mut a = prefill(&cache, &[1, 2]).unwrap();
        let b = a.fork().unwrap();
        let ((), ()) = beside(
            move || {
                let c = b.fork().unwrap();
                drop(b);
                assert_holds(&c, &[1, 2]);
            },
            || {
                a.truncate(1).unwrap();
                compute(&mut a, &[1, 9]).unwrap();
            },
        );
        cache.check().unwrap();
        assert_holds(&a, &[1, 9]);
        assert_eq!(acquire(&cache, &[1, 2]).unwrap().hit_tokens(), 2);
        drop(a);
        assert_nobody_is_left(&cache);
    });
}

/// Two threads read a block through tensors of it, which alone hold it, and drop them; then
/// one of them wants all blocks.
///
/// Fails when a block's tensor is no use of it, and when of two last views both or neither
/// give the block back.
#[test]
fn a_block_is_evicted_after_its_last_tensor() {
    fn read(tensor: Tensor) {
        assert_eq!(*tensor.read::<f32>().unwrap(), [1.0]);
    }

    model(|| {
        let cache = cache(2, 1, 1);
        let a = prefill(&cache, &[1]).unwrap();
        let tensor = a.keys_tensor(0, 0).unwrap();
        let view = tensor.clone();
        drop(a);
        assert_eq!(cache.stats().blocks_used, 1);
        let (taken, ()) = beside(
            move || read(view),
            || {
                read(tensor);
                prefill(&cache, &[7, 8])
            },
        );
        cache.check().unwrap();
        if let Ok(all) = taken {
            assert_holds(&all, &[7, 8]);
        }
        assert_nobody_is_left(&cache);
    });
}

/// One pins an idle prefix, the other needs its block: one of them is too late.
///
/// Fails when a prefix is found under one lock and pinned under another.
#[test]
fn what_is_pinned_is_not_evicted() {
    model(|| {
        let cache = cache(2, 1, 2);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (pin, other) = beside(
            move || prefill(&theirs, &[7, 8]).map(drop),
            || cache.pin(&[1, 2], &Namespace::default()),
        );
        cache.check().unwrap();
        assert!(pin.is_some() != other.is_ok());
        if let Some(pin) = pin {
            assert_eq!((pin.tokens(), cache.stats().blocks_used), (1, 1));
            let a = prefill(&cache, &[1, 2]).unwrap();
            assert_eq!(a.hit_tokens(), 1);
        }
        assert_nobody_is_left(&cache);
    });
}

/// One gives the memory of all blocks back, the other wants all blocks: it gets them, before
/// that or after it.
///
/// Fails when a block is free before its memory went back, and when who is refused does not
/// wait for blocks whose memory is going back.
#[test]
fn blocks_whose_memory_goes_back_are_waited_for() {
    model(|| {
        let cache = cache(2, 1, 1);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (all, _) = beside(
            move || theirs.relieve(1 << 20),
            || prefill(&cache, &[7, 8]).unwrap(),
        );
        cache.check().unwrap();
        assert_holds(&all, &[7, 8]);
        drop(all);
        assert_nobody_is_left(&cache);
    });
}
