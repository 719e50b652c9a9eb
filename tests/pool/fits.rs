use tenslab::memory::{Allocator, Buffer, CachingPool, MAX_ALIGN, PoolOptions};

use super::{KIB, MIB, check, shared};

/// Where a buffer begins, counted from another one.
fn offset(of: &Buffer, from: &Buffer) -> isize {
    of.as_ptr().addr().cast_signed() - from.as_ptr().addr().cast_signed()
}

#[test]
fn the_shortest_gap_that_is_long_enough_is_taken_and_of_several_the_lowest() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let take = |units: usize| memory.allocate(units * 2 * MIB, 64).unwrap();
    // Gaps of 8, 6, 10, 6 MiB between blocks that stay: more than a cache keeps of one.
    let mut gaps = Vec::new();
    let mut stay = Vec::new();
    for units in [4, 3, 5, 3] {
        gaps.push(take(units));
        stay.push(take(2));
    }
    let places: Vec<usize> = gaps.iter().map(|gap| gap.as_ptr().addr()).collect();
    drop(gaps);
    let three = take(3);
    assert_eq!(
        three.as_ptr().addr(),
        places[1],
        "the lower of two that are exact"
    );
    let smaller = take(2);
    assert_eq!(smaller.as_ptr().addr(), places[3], "the shortest");
    let rest = take(1);
    assert_eq!(
        offset(&rest, &smaller),
        4 * MIB as isize,
        "what a split left"
    );
    let five = take(5);
    assert_eq!(five.as_ptr().addr(), places[2]);
    check(&pool);
}

#[test]
fn neighbours_are_one_the_moment_they_meet() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut blocks = [(); 3].map(|()| Some(memory.allocate(10 * MIB, 64).unwrap()));
        let first = blocks[0].as_ref().unwrap().as_ptr();
        for which in order {
            blocks[which] = None;
        }
        let whole = memory.allocate(30 * MIB, 64).unwrap();
        assert_eq!(whole.as_ptr(), first, "{order:?}");
    }
    let stats = check(&pool);
    assert_eq!((stats.live_bytes, stats.cached_bytes), (0, 30 * MIB));
    assert_eq!(
        pool.report().pieces,
        2,
        "one free stretch, and the rest of the addresses"
    );
}

#[test]
fn blocks_take_whole_pages_and_small_ones_a_class() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    for (bytes, live) in [
        (1, 64),
        (64, 64),
        (257, 320),
        (1025, 1280),
        (20 * KIB, 20 * KIB),
        (32 * KIB, 32 * KIB),
        (32 * KIB + 1, 36 * KIB),
        (MIB + 1, MIB + 4 * KIB),
    ] {
        let block = memory.allocate(bytes, 1).unwrap();
        let stats = check(&pool);
        assert_eq!((stats.requested_bytes, stats.live_bytes), (bytes, live));
        drop(block);
        assert_eq!(check(&pool).live_bytes, 0);
    }
}

#[test]
fn a_block_of_five_gibibytes_and_a_byte_wastes_less_than_a_page() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let bytes = if cfg!(tenslab_asan) {
        (1 << 30) + 1
    } else {
        (5 << 30) + 1
    };
    let block = memory.allocate(bytes, 64).unwrap();
    let stats = check(&pool);
    assert_eq!(stats.live_bytes - stats.requested_bytes, 4096 - 1);
    // What is committed ahead is 2 MiB at the most, and nobody touches it.
    assert!(pool.report().committed_bytes - bytes <= 2 * MIB);
    drop(block);
}

#[test]
fn every_alignment_is_kept_at_every_size() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let mut out: Vec<Buffer> = Vec::new();
    for log2 in 0..=MAX_ALIGN.ilog2() {
        let align = 1_usize << log2;
        let sizes = [
            1,
            align.saturating_sub(1).max(1),
            align,
            align + 1,
            align.saturating_mul(3),
        ];
        for bytes in sizes
            .into_iter()
            .filter(|&bytes| bytes <= 3 << 21 || log2 > 21)
        {
            let bytes = bytes.min(64 * MIB);
            let mut block = memory.allocate(bytes, align).unwrap();
            assert!(
                block.as_ptr().addr().is_multiple_of(align),
                "{bytes} at {align}"
            );
            let (start, end) = (block.as_ptr().addr(), block.as_ptr().addr() + bytes);
            for other in &out {
                let (from, to) = (other.as_ptr().addr(), other.as_ptr().addr() + other.len());
                assert!(end <= from || to <= start, "{bytes} at {align} overlaps");
            }
            let last = bytes - 1;
            block.as_mut_slice()[0] = 0xa5;
            block.as_mut_slice()[last] = 0x5a;
            out.push(block);
        }
        if out.len() > 60 {
            // Every second one goes, so that later ones lie between.
            let mut keep = false;
            out.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }
    check(&pool);
    drop(out);
    assert_eq!(check(&pool).live_bytes, 0);
    pool.flush();
    assert_eq!(pool.map().bytes_of(tenslab::memory::SpanKind::Used), 0);
}

#[test]
fn zeroed_memory_is_zero_whatever_its_pages_were() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let zeroed = |bytes: usize| {
        let block = memory.allocate_zeroed(bytes, 64).unwrap();
        assert!(
            block.as_slice().iter().all(|&byte| byte == 0),
            "{bytes} bytes"
        );
        block
    };
    // Fresh, used, partly used, given back to the system, and of small classes.
    for _ in 0..2 {
        for bytes in [100, 5 * KIB, 40 * KIB, 300 * KIB, 3 * MIB, 9 * MIB] {
            let mut block = zeroed(bytes);
            block.as_mut_slice().fill(0xff);
            drop(block);
            drop(zeroed(bytes + KIB));
            let mut half = zeroed(bytes / 2 + 1);
            half.as_mut_slice().fill(0xee);
            drop((half, zeroed(bytes)));
        }
        pool.trim();
    }
    check(&pool);
}

#[test]
fn pages_that_nobody_touched_are_not_cleared_again() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let block = memory.allocate_zeroed(256 * MIB, 64).unwrap();
    let resident = tenslab::memory::resident_bytes(block.as_slice()).unwrap_or(0);
    assert_eq!(resident, 0, "fresh pages were touched to clear them");
    drop(block);
    // After a trim they are as good as fresh.
    let mut dirty = memory.allocate(8 * MIB, 64).unwrap();
    dirty.as_mut_slice().fill(1);
    drop(dirty);
    assert!(pool.trim() >= 8 * MIB);
    let block = memory.allocate_zeroed(8 * MIB, 64).unwrap();
    let resident = tenslab::memory::resident_bytes(block.as_slice()).unwrap_or(0);
    assert_eq!(
        resident, 0,
        "pages that had gone back were touched to clear them"
    );
    assert!(block.as_slice().iter().all(|&byte| byte == 0));
}

#[test]
fn large_memory_that_was_hardly_used_is_zero_again_without_touching_it() {
    for touched in [0, 3 * MIB, 60 * MIB] {
        let pool = CachingPool::new().unwrap();
        let memory = shared(&pool);
        let mut block = memory.allocate(64 * MIB, 64).unwrap();
        block.as_mut_slice()[..touched].fill(0xee);
        drop(block);
        let block = memory.allocate_zeroed(64 * MIB, 64).unwrap();
        let resident = tenslab::memory::resident_bytes(block.as_slice()).unwrap_or(0);
        if cfg!(target_os = "linux") && touched < 32 * MIB {
            assert_eq!(resident, 0, "{touched} bytes were touched");
        }
        assert!(
            block.as_slice().iter().all(|&byte| byte == 0),
            "{touched} bytes were touched"
        );
        check(&pool);
    }
}

#[test]
fn a_block_grows_where_it_stands_into_what_is_free_behind_it() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let mut first = memory.allocate(MIB, 64).unwrap();
    let second = memory.allocate(MIB, 64).unwrap();
    let address = first.as_ptr();
    first.as_mut_slice().fill(7);
    first.try_grow(2 * MIB).unwrap_err();
    drop(second);
    pool.flush(); // out of this thread's cache
    first.try_grow(2 * MIB).unwrap();
    assert_eq!((first.as_ptr(), first.len()), (address, 2 * MIB));
    assert!(first.as_slice()[..MIB].iter().all(|&byte| byte == 7));
    // Into addresses that were never committed, and within its last page.
    first.try_grow(100 * MIB - 5).unwrap();
    first.try_grow(100 * MIB).unwrap();
    first.as_mut_slice().fill(9);
    let stats = check(&pool);
    assert_eq!(
        (stats.requested_bytes, stats.live_bytes),
        (100 * MIB, 100 * MIB)
    );
    drop(first);
    assert_eq!(check(&pool).live_bytes, 0);
    assert_eq!(pool.report().pieces, 2);
}

#[test]
fn the_same_calls_lead_to_the_same_layout() {
    let layout = || {
        let pool = PoolOptions::new()
            .reservation_bytes(1 << 30)
            .build()
            .unwrap();
        let memory = shared(&pool);
        let mut out: Vec<Option<Buffer>> = (0..64).map(|_| None).collect();
        let mut dice = 0x9e37_79b9_u32;
        let mut places = Vec::new();
        let base = memory.allocate(MIB, 64).unwrap();
        for _ in 0..5_000 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (dice >> 26) as usize;
            let bytes = 33 * KIB + (dice as usize % (3 * MIB));
            out[slot] = None;
            let block = memory.allocate(bytes, 64).unwrap();
            places.push(offset(&block, &base));
            out[slot] = Some(block);
        }
        places
    };
    assert_eq!(layout(), layout());
}

#[test]
fn giving_a_part_of_a_block_back_leaves_the_rest_and_the_pool_whole() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let mut block = memory.allocate(8 * MIB, 64).unwrap();
    block.as_mut_slice().fill(3);
    let gone = block.decommit(MIB..3 * MIB);
    assert_eq!((gone.bytes, gone.resident_bytes), (2 * MIB, 2 * MIB));
    assert!(block.as_slice()[..MIB].iter().all(|&byte| byte == 3));
    block.commit(MIB..2 * MIB).unwrap();
    block.as_mut_slice()[MIB..2 * MIB].fill(4);
    let before = pool.report().committed_bytes;
    drop(block);
    // Its pages are in an unknown state, so all of them went.
    assert_eq!(pool.report().committed_bytes, before - 8 * MIB);
    check(&pool);
    let again = memory.allocate_zeroed(8 * MIB, 64).unwrap();
    assert!(again.as_slice().iter().all(|&byte| byte == 0));
    // Small ones cannot, and say so.
    let mut small = memory.allocate(20 * KIB, 64).unwrap();
    assert_eq!(small.decommit(0..20 * KIB).bytes, 0);
}
