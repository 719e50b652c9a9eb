//! The memory of the KV cache's blocks: it goes back while another thread wants them, and is
//! counted again for who gets them.
//!
//! A block of these models is far less than a page, of which the heap gives nothing back. So
//! their allocator says that whole ranges go, and notes what is gone.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use loom::sync::Arc;
use tenslab::kv::{KvCache, KvError};
use tenslab::memory::{
    AllocError, Allocator, Block, CpuAllocator, Decommitted, Request, SharedAllocator,
};

use super::harness::{Canary, model};
use super::kv_lab::{
    acquire, assert_holds, assert_nobody_is_left, beside, cache_of, compute, prefill,
};

/// The region of a cache with two blocks, from the heap.
struct Pages {
    heap: CpuAllocator,
    /// 1: the memory of that block is gone. Touched by who has the block, which loom checks.
    gone: [Canary; 2],
    /// Is no memory to be had?
    is_short: AtomicBool,
}

impl Pages {
    /// Two blocks of so many tokens.
    fn cache(block_tokens: usize, max_sequences: usize) -> (Arc<Self>, KvCache) {
        let pages = Arc::new(Self {
            heap: CpuAllocator::new(),
            gone: [Canary::new(), Canary::new()],
            is_short: AtomicBool::new(false),
        });
        let allocator = SharedAllocator::new(Arc::clone(&pages));
        let cache = cache_of(&allocator, 2, block_tokens, max_sequences);
        (pages, cache)
    }

    fn gone(&self) -> [u32; 2] {
        [0, 1].map(|block: usize| self.gone[block].read())
    }

    fn turn(&self, range: &Range<usize>, from: u32, to: u32) {
        let gone = &self.gone[range.start / range.len()];
        assert_eq!(gone.read(), from);
        gone.write(to);
    }
}

// SAFETY: a canary is touched by who has its block, which loom checks.
unsafe impl Sync for Pages {}

// SAFETY: blocks come from the heap and go back to it unchanged; no memory of theirs is gone.
unsafe impl Allocator for Pages {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.heap.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.release_block(block) };
    }

    unsafe fn decommit(&self, _: &Block, range: Range<usize>) -> Decommitted {
        self.turn(&range, 0, 1);
        Decommitted {
            bytes: range.len(),
            ..Decommitted::default()
        }
    }

    unsafe fn commit(&self, _: &Block, range: Range<usize>) -> Result<(), AllocError> {
        if self.is_short.load(SeqCst) {
            return Err(AllocError::OutOfMemory { bytes: range.len() });
        }
        self.turn(&range, 1, 0);
        Ok(())
    }
}

/// Nobody is left, and who has all blocks has their memory.
fn assert_all_is_there(pages: &Pages, cache: &KvCache) {
    pages.is_short.store(false, SeqCst);
    assert_nobody_is_left(cache);
    assert_eq!(pages.gone(), [0, 0]);
}

/// One gives the memory of all blocks back, the other wants all blocks: it gets them, before
/// that or after it, and their memory.
///
/// Fails when a block is free before its memory went back, when who is refused does not wait
/// for blocks whose memory is going back, and when it is seen before the blocks are taken
/// whether their memory is gone.
#[test]
fn blocks_whose_memory_goes_back_are_waited_for() {
    model(|| {
        let (pages, cache) = Pages::cache(1, 1);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (all, _) = beside(
            move || theirs.relieve(1 << 20),
            || prefill(&cache, &[7, 8]).unwrap(),
        );
        cache.check().unwrap();
        assert_eq!(pages.gone(), [0, 0]);
        assert_holds(&all, &[7, 8]);
        drop(all);
        assert_all_is_there(&pages, &cache);
    });
}

/// The same of one that grows.
///
/// Fails as that does.
#[test]
fn who_grows_waits_for_blocks_whose_memory_goes_back() {
    model(|| {
        let (pages, cache) = Pages::cache(1, 1);
        let mut a = prefill(&cache, &[]).unwrap();
        let theirs = cache.clone();
        let ((), _) = beside(
            move || theirs.relieve(1 << 20),
            || compute(&mut a, &[1, 2]).unwrap(),
        );
        cache.check().unwrap();
        assert_eq!(pages.gone(), [0, 0]);
        assert_holds(&a, &[1, 2]);
        drop(a);
        assert_all_is_there(&pages, &cache);
    });
}

/// One block is idle, the memory of the other is gone and not to be had. One looks the idle
/// block up, the other puts it in the place of its cold one: one of them is too late.
///
/// Fails when an idle block is found under one lock, and replaces a cold one under another.
#[test]
fn what_is_found_replaces_no_cold_block() {
    model(|| {
        let (pages, cache) = Pages::cache(1, 2);
        drop(prefill(&cache, &[1]).unwrap());
        cache.relieve(1);
        assert_eq!(pages.gone(), [0, 1]);
        pages.is_short.store(true, SeqCst);
        let theirs = cache.clone();
        let (mine, other) = beside(move || acquire(&theirs, &[1]), || prefill(&cache, &[7]));
        cache.check().unwrap();
        assert!(mine.is_ok() != other.is_ok());
        if let Ok(mine) = &mine {
            assert_holds(mine, &[7]);
        }
        if let Ok(other) = &other {
            assert_holds(other, &[1]);
        }
        assert_eq!(cache.stats().blocks_used, 1);
        drop((mine, other));
        assert_all_is_there(&pages, &cache);
    });
}

/// One copies the beginning of an idle block to one whose memory has to be counted again first,
/// the other needs a block.
///
/// Fails when a block that is copied is not held until there is memory for the copy.
#[test]
fn a_beginning_is_held_until_there_is_memory_for_its_copy() {
    model(|| {
        let (pages, cache) = Pages::cache(2, 2);
        drop(prefill(&cache, &[1]).unwrap());
        cache.relieve(1);
        assert_eq!(pages.gone(), [0, 1]);
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || prefill(&theirs, &[7]),
            || prefill(&cache, &[1, 2]).unwrap(),
        );
        cache.check().unwrap();
        assert_eq!(pages.gone(), [0, 0]);
        assert_holds(&mine, &[1, 2]);
        assert!(mine.hit_tokens() == 1 || other.is_ok());
        if let Ok(other) = &other {
            assert_holds(other, &[7]);
        }
        drop((mine, other));
        assert_all_is_there(&pages, &cache);
    });
}

/// Of two forks one appends, and there is no memory for the copy of their block; the other
/// ends, and somebody wants a block.
///
/// Fails when a block that is copied is not held until there is memory for the copy.
#[test]
fn what_a_copy_had_no_memory_for_is_still_there() {
    model(|| {
        let (pages, cache) = Pages::cache(2, 3);
        let a = prefill(&cache, &[1]).unwrap();
        let mut b = a.fork().unwrap();
        cache.relieve(1);
        assert_eq!(pages.gone(), [0, 1]);
        pages.is_short.store(true, SeqCst);
        let theirs = cache.clone();
        let (mine, other) = beside(
            move || {
                drop(a);
                prefill(&theirs, &[7]).map(drop)
            },
            || compute(&mut b, &[1, 2]),
        );
        cache.check().unwrap();
        assert!(
            other.is_err(),
            "one block is used, and the other has no memory"
        );
        if let Err(error) = mine {
            assert!(matches!(error, KvError::Alloc(_)), "{error}");
            assert_holds(&b, &[1]);
            compute(&mut b, &[1, 2]).unwrap();
        }
        assert_holds(&b, &[1, 2]);
        drop(b);
        assert_all_is_there(&pages, &cache);
    });
}

/// One copies the beginning of an idle block to one that there is no memory for, and the other
/// needs a block. Whoever is refused lets go of all it had.
///
/// Fails when a block that was to be copied stays held, and when an idle block is found under
/// one lock, and replaces a cold one under another.
#[test]
fn a_beginning_that_had_no_memory_for_its_copy_is_let_go_of() {
    model(|| {
        let (pages, cache) = Pages::cache(2, 2);
        drop(prefill(&cache, &[1]).unwrap());
        cache.relieve(1);
        assert_eq!(pages.gone(), [0, 1]);
        pages.is_short.store(true, SeqCst);
        let theirs = cache.clone();
        let (mine, other) = beside(move || prefill(&theirs, &[7]), || prefill(&cache, &[1, 2]));
        cache.check().unwrap();
        assert!(
            mine.is_err() || other.is_err(),
            "there is memory for one block"
        );
        for (sequence, tokens) in [(&mine, &[1, 2][..]), (&other, &[7])] {
            match sequence {
                Ok(sequence) => assert_holds(sequence, tokens),
                Err(KvError::Alloc(_) | KvError::OutOfBlocks { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if mine.is_err() && other.is_err() {
            let stats = cache.stats();
            assert_eq!((stats.blocks_free, stats.blocks_idle), (1, 1));
        }
        drop((mine, other));
        assert_all_is_there(&pages, &cache);
    });
}
