//! Memory that runs out: the k-th call of the source fails, for every k.

use std::ops::Range;
use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, Buffer, FakePages, OsPages, PageSource, PoolOptions, Region,
};

use super::{KIB, MIB, check, shared};

/// A little of everything. Says how many requests were refused.
fn work(pages: &Arc<FakePages<OsPages>>) -> Option<usize> {
    let options = PoolOptions::new().reservation_bytes(256 * MIB);
    let pool = options.build_over(Arc::clone(pages)).ok()?;
    let memory = shared(&pool);
    let mut refused = 0;
    let mut out: Vec<Buffer> = Vec::new();
    for round in 0..4 {
        for bytes in [
            100,
            3 * MIB,
            10 * KIB,
            40 * KIB,
            7 * MIB,
            900 * KIB,
            100 * KIB,
        ] {
            match memory.allocate_zeroed(bytes + round * 5_000, 64) {
                Ok(mut block) => {
                    assert!(block.as_slice().iter().all(|&byte| byte == 0));
                    block.as_mut_slice().fill(0xff);
                    out.push(block);
                }
                Err(error) => {
                    assert!(error.to_string().contains("bytes"), "{error}");
                    refused += 1;
                }
            }
            check(&pool);
        }
        let mut place = 0;
        out.retain(|_| {
            place += 1;
            place % 3 == 0
        });
        if let Some(block) = out.last_mut() {
            let more = block.len() + 300 * KIB;
            let _ = block.try_grow(more);
        }
        if round % 2 == 1 {
            pool.trim();
        }
        check(&pool);
    }
    drop(out);
    assert_eq!(check(&pool).live_bytes, 0);
    Some(refused)
}

#[test]
fn whichever_call_fails_the_pool_is_whole() {
    let quiet = Arc::new(FakePages::over(OsPages::new()));
    assert_eq!(work(&quiet), Some(0));
    let calls = quiet.counts().calls;
    assert!(calls > 20, "{calls} calls");
    let mut refusals = 0;
    for call in 0..calls {
        let pages = Arc::new(FakePages::over(OsPages::new()).with_failing_call(call));
        refusals += work(&pages).unwrap_or(1);
        let counts = pages.counts();
        assert_eq!(
            (counts.regions, counts.committed_bytes),
            (0, 0),
            "call {call}"
        );
    }
    // A pool that cannot be made, and not much else: it knows other ways.
    assert!(refusals > 0);
}

#[test]
fn where_the_system_gives_no_more_what_is_there_is_used() {
    let pages = Arc::new(FakePages::over(OsPages::new()).with_limit(20 * MIB));
    let options = PoolOptions::new().reservation_bytes(256 * MIB);
    let pool = options.build_over(Arc::clone(&pages)).unwrap();
    let memory = shared(&pool);
    let blocks: Vec<Buffer> = (0..4)
        .map(|_| memory.allocate(4 * MIB, 64).unwrap())
        .collect();
    let error = memory.allocate(8 * MIB, 64).unwrap_err();
    let AllocError::PoolExhausted {
        largest_free_bytes, ..
    } = error
    else {
        panic!("{error}");
    };
    if largest_free_bytes > 0 {
        drop(memory.allocate(largest_free_bytes, 64).unwrap());
    }
    drop(blocks);
    // All of it is free, in one piece or not.
    drop(memory.allocate(16 * MIB, 64).unwrap());
    check(&pool);
}

#[test]
fn a_source_that_never_gives_anything_is_asked_a_few_times_only() {
    let pages = Arc::new(FakePages::over(OsPages::new()).with_limit(128 * KIB));
    let options = PoolOptions::new().reservation_bytes(64 * MIB);
    let pool = options.build_over(Arc::clone(&pages)).unwrap();
    let memory = shared(&pool);
    let before = pages.counts().calls;
    for bytes in [1024, 50 * KIB, 40 * MIB] {
        assert!(memory.allocate(bytes, 64).is_err());
    }
    let calls = pages.counts().calls - before;
    assert!(calls <= 30, "{calls} calls for three requests");
    check(&pool);
}

/// Pages that never go back, as where all of a process is locked into memory.
struct Sticky;

// SAFETY: all is `OsPages`', but that nothing ever goes.
unsafe impl PageSource for Sticky {
    fn page_bytes(&self) -> usize {
        OsPages::new().page_bytes()
    }

    fn reserves_freely(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        OsPages::new().reserve(bytes, align)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().commit(region, range) }
    }

    unsafe fn decommit(&self, _: &Region, _: Range<usize>) -> Option<usize> {
        None
    }

    unsafe fn release(&self, region: Region) {
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().release(region) };
    }
}

#[test]
fn where_nothing_goes_back_a_refusal_says_what_is_there_in_one_piece() {
    let pool = PoolOptions::new()
        .cap_bytes(64 * MIB)
        .build_over(Sticky)
        .unwrap();
    let memory = shared(&pool);
    let mut blocks: Vec<Buffer> = (0..8)
        .map(|_| memory.allocate(8 * MIB, 64).unwrap())
        .collect();
    for at in [6, 3, 2] {
        blocks[at].as_mut_slice().fill(0xee);
        drop(blocks.swap_remove(at));
    }
    pool.flush();
    let before = check(&pool);
    // 24 MiB are free, and 16 of them in one piece: with pages that go, 24 could be had.
    let error = memory.allocate(20 * MIB, 64).unwrap_err();
    assert!(
        matches!(error, AllocError::PoolExhausted { largest_free_bytes, .. } if largest_free_bytes == 16 * MIB),
        "{error}"
    );
    assert_eq!((pool.trim(), pool.trim_bytes(MIB)), (0, 0));
    assert_eq!(check(&pool), before);
    let zeroed = memory.allocate_zeroed(16 * MIB, 64).unwrap();
    assert!(zeroed.as_slice().iter().all(|&byte| byte == 0));
}
