//! The sequences of the KV cache: while one grows, is forked or cut, others take, write or
//! give back the blocks that it has, or wants.
//!
//! Blocks of one or two tokens, so that a chain is two blocks.

use tenslab::Tensor;
use tenslab::kv::KvError;

use super::harness::model;
use super::kv_lab::{
    acquire, assert_holds, assert_nobody_is_left, beside, cache, compute, prefill,
};

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
