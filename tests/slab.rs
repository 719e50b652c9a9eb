//! The slab: what it hands out first, how it grows, and what it gives back at the end.
//!
//! ```text
//!   segment    0          1          2             3            counted by
//!   blocks     first      as many    twice         four times   CountedPages
//! ```
//!
//! The conformance suite is `tests/conformance`, its failing pages are in
//! `tests/ownership.rs`, the interleavings of its list in `loom_tests/slab.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

mod probe;

use std::collections::HashSet;
use std::sync::Arc;

use probe::{CountedPages, Dice, FailAt, PageCounts};
use tenslab::memory::{
    AllocError, Buffer, FakePages, OsPages, PageSource, SharedAllocator, SlabAllocator,
};
use tenslab::{DType, Tensor};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn counted(block_bytes: usize, blocks: u32) -> (SharedAllocator, Arc<PageCounts>) {
    let pages = CountedPages::new(FailAt::never());
    let counts = Arc::clone(&pages.0);
    let slab = SlabAllocator::with_pages(block_bytes, blocks, pages).unwrap();
    (SharedAllocator::new(slab), counts)
}

#[test]
fn nothing_is_reserved_before_the_first_block_is_used() {
    let (slab, counts) = counted(16 * KIB, 1_000_000);
    assert_eq!(counts.ever_reserved(), 0);
    assert_eq!(slab.stats().reserved_bytes, 0);
    // Nor for zero bytes, nor for what is refused.
    drop(slab.allocate(0, 64).unwrap());
    assert!(slab.allocate(16 * KIB + 1, 64).is_err());
    assert!(slab.allocate(1, 32 * KIB).is_err());
    drop(slab);
    assert_eq!(counts.ever_reserved(), 0);
}

#[test]
fn segments_double_the_slab_and_the_last_one_is_cut_to_it() {
    let (slab, counts) = counted(256 * KIB, 13); // 4 blocks are a mebibyte
    let mut out = Vec::new();
    let mut grown_at = Vec::new();
    for block in 0..13 {
        let before = counts.ever_reserved();
        out.push(slab.allocate(256 * KIB, 64).unwrap());
        if counts.ever_reserved() > before {
            // The table's first row is for 512 blocks, and comes with the first.
            let regions = if block == 0 { 2 } else { 1 };
            assert_eq!(counts.ever_reserved(), before + regions);
            grown_at.push(block);
        }
    }
    assert_eq!(grown_at, [0, 4, 8]);
    let page = OsPages::new().page_bytes();
    // 4 + 4 + 5 blocks, and a page of table for all of them.
    assert_eq!(counts.reserved_bytes(), 13 * 256 * KIB + page);
    assert_eq!(slab.stats().reserved_bytes, counts.reserved_bytes());
    let error = slab.allocate(1, 1).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 13 });
    assert_eq!(counts.regions(), 4);
    drop(slab);
    assert_eq!(counts.regions(), 4, "buffers are out");
    drop(out);
    assert_eq!((counts.regions(), counts.reserved_bytes()), (0, 0));
}

#[test]
fn two_hundred_thousand_blocks_are_all_different_and_all_come_back() {
    const BLOCKS: u32 = 200_000;
    let (slab, counts) = counted(64, BLOCKS);
    let mut out: Vec<Buffer> = Vec::with_capacity(BLOCKS as usize);
    for number in 0..BLOCKS {
        let mut buffer = slab.allocate(64, 64).unwrap();
        let bytes: &mut [u8] = buffer.as_mut_slice();
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes[60..].copy_from_slice(&number.to_ne_bytes());
        out.push(buffer);
    }
    assert_eq!(
        slab.allocate(1, 1).unwrap_err(),
        AllocError::Exhausted { blocks: BLOCKS }
    );
    let addresses: HashSet<usize> = out.iter().map(|buffer| buffer.as_ptr().addr()).collect();
    assert_eq!(addresses.len(), BLOCKS as usize);
    for (number, buffer) in (0..BLOCKS).zip(&out) {
        assert_eq!(buffer.as_slice()[..4], number.to_ne_bytes());
        assert_eq!(buffer.as_slice()[60..], number.to_ne_bytes());
    }
    // Back in a random order, and out again: the same blocks, each once.
    let mut dice = Dice(1);
    while !out.is_empty() {
        drop(out.swap_remove(dice.below(out.len())));
    }
    assert_eq!(slab.stats().live_bytes, 0);
    let reserved = counts.reserved_bytes();
    let again: Vec<Buffer> = (0..BLOCKS)
        .map(|_| slab.allocate(64, 64).unwrap())
        .collect();
    let second: HashSet<usize> = again.iter().map(|buffer| buffer.as_ptr().addr()).collect();
    assert_eq!(second, addresses);
    assert_eq!(
        counts.reserved_bytes(),
        reserved,
        "nothing new was reserved"
    );
    drop((again, slab));
    assert_eq!(counts.regions(), 0);
}

#[test]
fn what_came_back_last_goes_out_first() {
    let (slab, _) = counted(4 * KIB, 10);
    let out: Vec<Buffer> = (0..5).map(|_| slab.allocate(10, 64).unwrap()).collect();
    let addresses: Vec<_> = out.iter().map(Buffer::as_ptr).collect();
    for buffer in out {
        drop(buffer);
    }
    let again: Vec<Buffer> = (0..5).map(|_| slab.allocate(4096, 64).unwrap()).collect();
    let backwards: Vec<_> = again.iter().rev().map(Buffer::as_ptr).collect();
    assert_eq!(backwards, addresses);
    let fresh = slab.allocate(1, 1).unwrap();
    assert!(!addresses.contains(&fresh.as_ptr()), "the list is used up");
}

/// Also the tensors' headers, which are in a table and not in the blocks.
#[test]
fn a_block_and_its_header_can_be_used_again_and_again() {
    let (slab, counts) = counted(4 * KIB, 1);
    for round in 0..100 {
        let tensor = Tensor::empty([1024], DType::F32, &slab).unwrap();
        assert!(!tensor.is_frozen(), "the state is a new one");
        tensor.write::<f32>().unwrap().fill(round as f32);
        let view = tensor.slice(0, 0, 10).unwrap();
        tensor.freeze().unwrap();
        drop(tensor);
        assert_eq!(view.item::<f32>(&[9]), round as f32);
        assert_eq!(
            Tensor::empty([1], DType::F32, &slab).unwrap_err(),
            AllocError::Exhausted { blocks: 1 }.into()
        );
    }
    drop(slab);
    assert_eq!(counts.regions(), 0);
}

#[test]
fn blocks_are_aligned_to_what_divides_their_size() {
    for (block_bytes, align) in [(1, 64), (64, 64), (65, 128), (192, 64), (12 * KIB, 4 * KIB)] {
        let (slab, _) = counted(block_bytes, 5);
        for _ in 0..5 {
            let buffer = slab.allocate(block_bytes, align).unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(align));
        }
        let error = slab.allocate(1, align * 2).unwrap_err();
        let refused = AllocError::AlignTooLarge {
            align: align * 2,
            max: align,
        };
        assert_eq!(error, refused, "blocks of {block_bytes}");
    }
}

#[test]
fn a_block_is_rounded_up_to_64_bytes_and_takes_what_fits_that() {
    let slab = SlabAllocator::new(100, 3).unwrap();
    assert_eq!(
        (slab.block_bytes(), slab.blocks(), slab.in_use()),
        (128, 3, 0)
    );
    assert_eq!(SlabAllocator::new(0, 3).unwrap().block_bytes(), 64);
    let slab = SharedAllocator::new(slab);
    assert_eq!(slab.allocate(128, 64).unwrap().len(), 128);
    let error = slab.allocate(129, 64).unwrap_err();
    let (bytes, block_bytes) = (129, 128);
    assert_eq!(error, AllocError::TooLarge { bytes, block_bytes });
}

/// Lessons row 4: sizes are rounded up to 64 bytes and rows to a page, and never to a power
/// of two. What the last row is cut to is in the test of the segments.
#[test]
fn a_slab_of_odd_blocks_takes_hardly_more_than_was_asked_for() {
    let largest = if cfg!(any(tenslab_portable, tenslab_asan)) {
        33 * MIB + 1
    } else {
        (5 << 30) + 1
    };
    let page = OsPages::new().page_bytes();
    for bytes in [1, 65, 4097, 5000, MIB + 1, 33 * MIB + 1, largest] {
        for blocks in [1, 3] {
            let (slab, counts) = counted(bytes, blocks);
            let out: Vec<_> = (0..blocks)
                .map(|_| slab.allocate(bytes, 64).unwrap())
                .collect();
            let (stats, asked) = (slab.stats(), bytes * blocks as usize);
            assert_eq!(stats.requested_bytes, asked);
            assert!(stats.live_bytes - asked < 64 * blocks as usize, "{bytes}");
            // Three rows (1 + 1 + 1 blocks) at most, and one of tables.
            let most = stats.live_bytes + (blocks as usize + 1) * page;
            assert!(counts.reserved_bytes() <= most, "{blocks} of {bytes}");
            drop(out);
        }
    }
}

/// Lessons row 42, as far as it is a slab's: what was planned for, with the alignments,
/// is there to the last block, and no page more is needed.
#[test]
fn a_slab_that_was_made_for_a_plan_serves_all_of_it() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let plan: Vec<(usize, usize)> = (0..=dice.below(60))
            .map(|_| {
                let most = 1 << dice.below(16);
                (1 + dice.below(most), 1 << dice.below(13))
            })
            .collect();
        // As large as the largest with its alignment, a multiple of the largest alignment.
        let align = plan.iter().map(|&(_, align)| align).max().unwrap();
        let largest = plan.iter().map(|&(bytes, _)| bytes).max().unwrap();
        let (block_bytes, blocks) = (largest.next_multiple_of(align), plan.len());
        let page = OsPages::new().page_bytes();
        let limit = (block_bytes.next_multiple_of(64) * blocks).next_multiple_of(page)
            + (72 * blocks).next_multiple_of(page);
        let pages = Arc::new(FakePages::new().with_limit(limit));
        let blocks = u32::try_from(blocks).unwrap();
        let slab = SlabAllocator::fixed_with_pages(block_bytes, blocks, Arc::clone(&pages));
        let slab = SharedAllocator::new(slab.unwrap());
        for _ in 0..3 {
            let mut order = plan.clone();
            let mut out = Vec::new();
            while !order.is_empty() {
                let (bytes, align) = order.swap_remove(dice.below(order.len()));
                let buffer = slab.allocate(bytes, align).expect("it was planned for");
                assert!(buffer.as_ptr().addr().is_multiple_of(align));
                out.push(buffer);
            }
            assert!(slab.allocate(1, 1).is_err(), "the plan is used up");
        }
        assert!(pages.counts().committed_bytes <= limit);
    }
}

#[test]
fn slabs_that_cannot_be_are_refused_when_they_are_made() {
    for (block_bytes, blocks) in [
        (usize::MAX, 1),
        (usize::MAX - 62, 1),
        (1 << 62, 1),
        (1 << 40, 1 << 30),
        (isize::MAX as usize / 2, 1),
        (1 << 32, u32::MAX - 1),
        (64, u32::MAX), // the number is taken: it ends the free list
    ] {
        let error = SlabAllocator::new(block_bytes, blocks)
            .map(drop)
            .unwrap_err();
        assert!(
            error
                == AllocError::SlabTooLarge {
                    block_bytes,
                    blocks
                },
            "{block_bytes} x {blocks}: {error}"
        );
    }
}

#[test]
fn a_slab_of_no_blocks_is_always_exhausted() {
    let (slab, counts) = counted(64, 0);
    let error = slab.allocate(1, 1).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 0 });
    assert!(slab.allocate(0, 1).is_ok());
    assert_eq!(counts.ever_reserved(), 0);
}

/// The number of blocks is as large as it may be; the segments are reserved as they come.
#[test]
fn the_largest_slab_works_from_its_first_block() {
    let (slab, counts) = counted(64, u32::MAX - 1);
    let out: Vec<_> = (0..40_000)
        .map(|_| slab.allocate(64, 64).unwrap())
        .collect();
    assert_eq!(slab.stats().live_bytes, 40_000 * 64);
    assert!(counts.reserved_bytes() < 16 * MIB);
    drop((out, slab));
    assert_eq!(counts.regions(), 0);
}

#[test]
fn blocks_of_more_than_a_segment_are_segments_of_their_own() {
    let (slab, counts) = counted(3 * MIB, 4);
    let out: Vec<_> = (0..4)
        .map(|_| slab.allocate(3 * MIB, MIB).unwrap())
        .collect();
    for buffer in &out {
        assert!(buffer.as_ptr().addr().is_multiple_of(MIB));
    }
    assert_eq!(counts.regions(), 4, "1 + 1 + 2 blocks, and their table");
    drop((slab, out));
    assert_eq!(counts.regions(), 0);
}

#[test]
fn stats_tell_live_cached_and_asked_for_apart() {
    let (slab, counts) = counted(4 * KIB, 100);
    let out: Vec<_> = (1..=10)
        .map(|n| slab.allocate(n * 100, 64).unwrap())
        .collect();
    let stats = slab.stats();
    assert_eq!(stats.requested_bytes, 5_500);
    assert_eq!(stats.live_bytes, 10 * 4 * KIB);
    assert_eq!(stats.cached_bytes, 0);
    assert_eq!(stats.reserved_bytes, counts.reserved_bytes());
    drop(out);
    let stats = slab.stats();
    assert_eq!((stats.requested_bytes, stats.live_bytes), (0, 0));
    assert_eq!(stats.cached_bytes, 10 * 4 * KIB);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn threads_share_a_slab_without_losing_or_doubling_a_block() {
    let (slab, counts) = counted(256, 64);
    std::thread::scope(|scope| {
        for seed in 0..4_u64 {
            let slab = slab.clone();
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut kept: Vec<(Buffer, u64)> = Vec::new();
                for step in 0..20_000_u64 {
                    if dice.below(2) == 0 && kept.len() < 16 {
                        let mut buffer = slab.allocate(256, 64).expect("16 blocks for each of 4");
                        let mark = seed << 32 | step;
                        buffer.as_mut_slice()[..8].copy_from_slice(&mark.to_ne_bytes());
                        buffer.as_mut_slice()[248..].copy_from_slice(&mark.to_ne_bytes());
                        kept.push((buffer, mark));
                    } else if !kept.is_empty() {
                        let (buffer, mark) = kept.swap_remove(dice.below(kept.len()));
                        assert_eq!(buffer.as_slice()[..8], mark.to_ne_bytes());
                        assert_eq!(buffer.as_slice()[248..], mark.to_ne_bytes());
                    }
                }
            });
        }
    });
    assert_eq!(slab.stats().live_bytes, 0);
    assert_eq!(slab.stats().requested_bytes, 0);
    let all: Vec<_> = (0..64).map(|_| slab.allocate(256, 64).unwrap()).collect();
    assert!(slab.allocate(1, 1).is_err());
    drop((all, slab));
    assert_eq!(counts.regions(), 0);
}
