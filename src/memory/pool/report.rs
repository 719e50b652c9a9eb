//! A pool's numbers.

use serde::Serialize;

use super::heap::State;
use super::{CachingPool, Core, PageSource};
use crate::memory::slab::SlabAllocator;
use crate::memory::{Allocator, Stats};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU64;

/// How often each rung of the ladder was the one that helped: see [`CachingPool`]. Of blocks of
/// more than 32 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct RungCounts {
    /// A block of as many pages was at hand.
    pub cached: u64,
    /// The heap had a fit in memory.
    pub fitted: u64,
    /// It had one once every cache was emptied.
    pub emptied: u64,
    /// Pages were committed.
    pub committed: u64,
    /// For that, free pages elsewhere went back first.
    pub trimmed: u64,
    /// Idle blocks of small sizes did.
    pub slabs: u64,
    /// Others of the same limit gave something back when they were asked.
    pub pressed: u64,
    /// The request was refused.
    pub refused: u64,
}

/// A [`CachingPool`]'s numbers, of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolReport {
    /// As every allocator's.
    pub stats: Stats,
    /// Bytes that the pool has from the system now, records aside: what is out, what is free
    /// and in memory, and whole regions of small sizes. This is what a cap caps.
    pub committed_bytes: usize,
    /// The most that ever was.
    pub peak_committed_bytes: usize,
    /// Free bytes of the heap that are committed and were never touched, or not since they went
    /// back: they are zero, and hardly in memory.
    pub clean_bytes: usize,
    /// The longest free stretch of the heap that is in memory: so much could be had in one piece
    /// without anything new from the system. What the caches hold may make it longer.
    pub largest_cached_bytes: usize,
    /// Records of the heap: a block that is out, or a free stretch, each.
    pub pieces: u32,
    /// What served the requests.
    pub rungs: RungCounts,
}

impl<P: PageSource> CachingPool<P> {
    /// [`PoolReport::committed_bytes`] alone: what a cap caps, now.
    ///
    /// Cost: one load. Another thread's call that is under way may be in it or not.
    #[must_use]
    pub fn committed_bytes(&self) -> usize {
        self.core().space.committed().0
    }

    /// The pool's numbers. Exact while no call is under way.
    ///
    /// Cost: a look at every record and at every slab; no heap block.
    #[must_use]
    pub fn report(&self) -> PoolReport {
        let core = self.core();
        let (committed_bytes, peak_committed_bytes) = core.space.committed();
        let books = core.books();
        // Relaxed: numbers to look at.
        let count = |rung: &AtomicU64| rung.load(Ordering::Relaxed);
        let rungs = RungCounts {
            cached: 0,
            fitted: books.fits,
            emptied: count(&core.rungs.emptied),
            committed: count(&core.rungs.committed),
            trimmed: count(&core.rungs.trimmed),
            slabs: count(&core.rungs.slabs),
            pressed: count(&core.rungs.pressed),
            refused: count(&core.rungs.refused),
        };
        let clean_bytes = books.heap.pages_in(State::Fresh) << core.page_log2;
        let largest_cached_bytes = core.bytes(books.heap.longest_warm());
        let pieces = books.heap.records().1;
        let past_hits = books.hits;
        drop(books);
        let (_, _, hits) = core.cached();
        let cached = hits.wrapping_add(past_hits) as u64;
        PoolReport {
            stats: core.stats(),
            committed_bytes,
            peak_committed_bytes,
            clean_bytes,
            largest_cached_bytes,
            pieces,
            rungs: RungCounts { cached, ..rungs },
        }
    }
}

impl<P: PageSource> Core<P> {
    /// Sums over all caches: bytes in them and between them, bytes asked for (wrapping), hits.
    fn cached(&self) -> (usize, usize, usize) {
        let add = |sum: (usize, usize, usize), of: (usize, usize, usize)| {
            (
                sum.0 + of.0,
                sum.1.wrapping_add(of.1),
                sum.2.wrapping_add(of.2),
            )
        };
        let seats = self.seats.iter().map(|cache| cache.counts());
        let sum = seats.fold((0, 0, 0), add);
        let locals = self.locals.lock();
        let locals = locals.iter().map(|local| local.cache().counts());
        let sum = locals.fold(sum, add);
        (sum.0 + self.depot.lock().bytes(), sum.1, sum.2)
    }

    /// What a cache counted stays when it goes. Under the lock of the list that it is in.
    pub(super) fn adopt_counts(&self, cache: &super::Cache) {
        let (_, requested, hits) = cache.counts();
        let mut books = self.books();
        books.requested_bytes = books.requested_bytes.wrapping_add(requested);
        books.hits = books.hits.wrapping_add(hits);
    }

    pub(super) fn slab_live_bytes(&self) -> usize {
        let slabs = self.slabs.iter().map(SlabAllocator::stats);
        slabs.map(|stats| stats.live_bytes).sum()
    }

    pub(super) fn stats(&self) -> Stats {
        let (cached_bytes, requested, _) = self.cached();
        let books = self.books();
        let used = books.heap.pages_in(State::Used) << self.page_log2;
        // Cache after cache is looked at while threads go on, so a sum may be off by what is
        // under way: but never below nothing, nor above all there is.
        let cached_bytes = cached_bytes.min(used);
        let live = used - cached_bytes;
        let warm = (books.heap.warm_pages() << self.page_log2) + cached_bytes;
        let requested = books.requested_bytes.wrapping_add(requested);
        let requested = usize::try_from(requested.cast_signed()).unwrap_or(0);
        let records = books.heap.records().0;
        drop(books);
        let own = Stats {
            requested_bytes: requested.min(live),
            live_bytes: live,
            cached_bytes: warm,
            unused_bytes: self.region.bytes() - live - warm,
            metadata_bytes: records,
            reserved_bytes: self.region.bytes() + records,
        };
        let slabs = self.slabs.iter().map(SlabAllocator::stats);
        slabs.fold(own, |sum, slab| Stats {
            requested_bytes: sum.requested_bytes + slab.requested_bytes,
            live_bytes: sum.live_bytes + slab.live_bytes,
            cached_bytes: sum.cached_bytes + slab.cached_bytes,
            unused_bytes: sum.unused_bytes + slab.unused_bytes,
            metadata_bytes: sum.metadata_bytes + slab.metadata_bytes,
            reserved_bytes: sum.reserved_bytes + slab.reserved_bytes,
        })
    }
}
