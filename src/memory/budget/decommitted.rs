//! What of a [`Budget`](super::Budget)'s blocks is decommitted, and so not charged.
//!
//! ```text
//!   block     | 0 ………… 40 KiB | 40 ……… 80 KiB | 80 ……… 120 KiB |
//!   ranges      10 ─ 30: 20 KiB                  84 ─ 120: 36 KiB     not charged: 56 KiB
//! ```
//!
//! How many pages a range holds is known to the upstream alone, which says so when it
//! decommits. So a range is kept whole with the bytes it came to, and comes back whole: who
//! commits a part of it is charged for all of it. That charges too much at times and never
//! too little; who commits what it decommitted is charged exactly.
//!
//! One lock, and a count of blocks beside it that is looked at without: whoever gives a block
//! back got it after its records were made. `loom_tests/budget.rs` explores both.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::memory::Block;
use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Mutex, Ordering};

/// A part of a block that was given back, and the bytes that are not charged for it.
#[derive(Debug, Clone)]
struct Gone {
    range: Range<usize>,
    bytes: usize,
}

/// By block. A block of which all is committed has no record.
#[derive(Debug, Default)]
pub(super) struct DecommittedRanges {
    /// Blocks that have a record; written under the lock.
    blocks: AtomicUsize,
    /// By address. Ranges of one block share no byte.
    ranges: Mutex<BTreeMap<usize, Vec<Gone>>>,
}

fn key(block: &Block) -> usize {
    block.as_ptr().addr().get()
}

fn meets(gone: &Gone, range: &Range<usize>) -> bool {
    gone.range.start < range.end && range.start < gone.range.end
}

impl DecommittedRanges {
    /// Has no block a record? A look without the lock, for the hot path.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: it has to see the records of the caller's own block. Whoever made one
        // was using the block, which happened before the caller got to give it back.
        self.blocks.load(Ordering::Relaxed) == 0
    }

    /// The parts of `range` that are not recorded yet, in order.
    pub(super) fn gaps(&self, block: &Block, range: Range<usize>) -> Vec<Range<usize>> {
        let ranges = self.ranges.lock();
        let mut met: Vec<Range<usize>> = (ranges.get(&key(block)).into_iter().flatten())
            .filter(|gone| meets(gone, &range))
            .map(|gone| gone.range.clone())
            .collect();
        drop(ranges);
        met.sort_unstable_by_key(|range| range.start);
        let mut from = range.start;
        let mut gaps = Vec::with_capacity(met.len() + 1);
        for known in met {
            if from < known.start {
                gaps.push(from..known.start);
            }
            from = known.end;
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
        gaps
    }

    /// Records that `bytes` bytes of `range` are not charged any more.
    pub(super) fn record(&self, block: &Block, range: Range<usize>, bytes: usize) {
        let mut ranges = self.ranges.lock();
        let gone = ranges.entry(key(block)).or_default();
        let is_first = gone.is_empty();
        gone.push(Gone { range, bytes });
        if is_first && mutant::is(Mutant::DecommitCountTwoSteps) {
            drop(ranges);
            let blocks = self.blocks.load(Ordering::Relaxed);
            self.blocks.store(blocks + 1, Ordering::Relaxed);
        } else if is_first {
            // Relaxed: see `is_empty`.
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The bytes that are not charged of what `range` meets.
    pub(super) fn bytes(&self, block: &Block, range: &Range<usize>) -> usize {
        let ranges = self.ranges.lock();
        (ranges.get(&key(block)).into_iter().flatten())
            .filter(|gone| meets(gone, range))
            .map(|gone| gone.bytes)
            .sum()
    }

    /// Forgets all that `range` meets. Returns the bytes that were not charged for it.
    pub(super) fn forget(&self, block: &Block, range: &Range<usize>) -> usize {
        let mut ranges = self.ranges.lock();
        let Some(of_block) = ranges.get_mut(&key(block)) else {
            return 0;
        };
        let mut bytes = 0;
        of_block.retain(|gone| {
            let stays = !meets(gone, range);
            bytes += if stays { 0 } else { gone.bytes };
            stays
        });
        if of_block.is_empty() {
            ranges.remove(&key(block));
            // Relaxed: see `is_empty`.
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        bytes
    }
}
