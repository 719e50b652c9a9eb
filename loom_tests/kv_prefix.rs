//! Prefixes of the KV cache: what one thread finds, another may be dropping, evicting or
//! committing.
//!
//! Blocks of one or two tokens, so that a chain is two blocks.

use tenslab::internals::set_worker;
use tenslab::kv::{BlockId, KvError, Namespace, Sequence};

use super::harness::model;
use super::kv_lab::{
    acquire, assert_holds, assert_nobody_is_left, beside, cache, compute, prefill,
};

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

/// The same with a slot for each: it is found in use, or idle.
///
/// Fails when the last use of a block ends under one lock, and it becomes idle under another.
#[test]
fn what_is_found_while_its_last_user_goes_is_used() {
    model(|| {
        let cache = cache(2, 1, 2);
        let a = prefill(&cache, &[1, 2]).unwrap();
        let (b, ()) = beside(move || drop(a), || acquire(&cache, &[1, 2]).unwrap());
        assert_eq!((b.hit_tokens(), cache.stats().blocks_used), (2, 2));
        cache.check().unwrap();
        let refused = KvError::OutOfBlocks {
            need: 1,
            free: 0,
            evictable: 0,
            total: 2,
        };
        assert_eq!(acquire(&cache, &[7]).unwrap_err(), refused);
        assert_holds(&b, &[1, 2]);
        drop(b);
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

/// One copies the beginning of an idle block, the other needs all blocks that are left: the
/// copy comes before that, or the block is gone and nothing of it is found.
///
/// Fails when a block that is copied is let go before the copy is made, and when a request is
/// planned under one lock and its blocks are taken under another.
#[test]
fn a_beginning_is_copied_of_a_block_that_is_still_there() {
    model(|| {
        let cache = cache(3, 2, 2);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || prefill(&theirs, &[7, 8, 9]),
            || prefill(&cache, &[1, 2]).unwrap(),
        );
        cache.check().unwrap();
        assert_holds(&mine, &[1, 2]);
        assert!(mine.hit_tokens() == 1 || other.is_ok());
        match &other {
            Ok(other) => assert_holds(other, &[7, 8, 9]),
            Err(error) => {
                let refused = KvError::OutOfBlocks {
                    need: 2,
                    free: 1,
                    evictable: 0,
                    total: 3,
                };
                assert_eq!(*error, refused);
            }
        }
        drop((mine, other));
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

/// Two compute the same, commit it and go: both had the copy that was there first, and it is
/// found by who comes next.
///
/// Fails when a block is registered though the same is there.
#[test]
fn of_two_that_commit_the_same_one_stays() {
    fn commit(mut sequence: Sequence) -> Vec<BlockId> {
        compute(&mut sequence, &[1]).unwrap();
        assert_holds(&sequence, &[1]);
        sequence.block_ids().collect()
    }

    model(|| {
        let cache = cache(3, 1, 2);
        let [a, b] =
            [(); 2].map(|()| (cache.acquire(&[1], &Namespace::default(), 0, None)).unwrap());
        let (mine, theirs) = beside(move || commit(b), || commit(a));
        assert_eq!(mine, theirs);
        assert_eq!(cache.counters().duplicate_blocks, 1);
        let stats = cache.stats();
        assert_eq!((stats.blocks_idle, stats.blocks_registered), (1, 1));
        let next = acquire(&cache, &[1]).unwrap();
        assert_eq!(next.hit_tokens(), 1);
        assert!(next.block_ids().eq(mine));
        drop(next);
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
