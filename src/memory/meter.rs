use std::ops::Index;

use super::{AllocError, Allocator, Block, Request, Stats, Tag};
use crate::mutant::{self, Mutant};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicUsize;
use crate::types::Device;

/// An allocator that counts what goes through it, in all and by [`Tag`].
///
/// Keep the meter in an [`Arc`](std::sync::Arc) to read it later:
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{Meter, SharedAllocator, SlabAllocator, Tag};
///
/// let meter = Arc::new(Meter::new(SlabAllocator::new(4096, 8)?));
/// let scratch = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Scratch);
///
/// let buffer = scratch.allocate(1000, 64)?;
/// let stats = meter.snapshot();
/// assert_eq!(stats[Tag::Scratch].requested_bytes, 1000);
/// assert_eq!(stats[Tag::Scratch].live_bytes, 4096);       // a whole block
/// assert_eq!(stats[Tag::Kv].live_bytes, 0);
///
/// drop(buffer);
/// assert_eq!(meter.snapshot().total.live_bytes, 0);
/// assert_eq!(meter.snapshot().total.peak_live_bytes, 4096);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
///
/// Cost: a few relaxed atomic additions a call. Each number is exact whenever no
/// call is under way; while calls are under way, numbers read together may be of
/// slightly different moments.
#[derive(Debug)]
pub struct Meter<A> {
    upstream: A,
    tags: [Counters; Tag::ALL.len()],
    total: Counters,
}

#[derive(Debug)]
struct Counters {
    allocations: AtomicUsize,
    requested: AtomicUsize,
    live: AtomicUsize,
    peak_live: AtomicUsize,
}

/// What is out under one tag, or in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TagStats {
    /// Allocations that are out, those of zero bytes included.
    pub allocations: usize,
    /// Bytes asked for by them.
    pub requested_bytes: usize,
    /// Bytes of the allocator that they take up.
    pub live_bytes: usize,
    /// The most that `live_bytes` has been.
    pub peak_live_bytes: usize,
}

/// A [`Meter`]'s numbers. Index them by [`Tag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MeterStats {
    /// All tags together.
    pub total: TagStats,
    tags: [TagStats; Tag::ALL.len()],
}

impl Index<Tag> for MeterStats {
    type Output = TagStats;

    fn index(&self, tag: Tag) -> &TagStats {
        &self.tags[tag as usize]
    }
}

// All counters are Relaxed: each is a number of its own that publishes nothing, and
// additions and subtractions of one counter never get lost.
impl Counters {
    fn new() -> Self {
        Self {
            allocations: AtomicUsize::new(0),
            requested: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            peak_live: AtomicUsize::new(0),
        }
    }

    fn add(&self, block: &Block) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.requested.fetch_add(block.len(), Ordering::Relaxed);
        let before = self.live.fetch_add(block.capacity(), Ordering::Relaxed);
        let live = before + block.capacity();
        if mutant::is(Mutant::PeakTwoSteps) {
            let peak = self.peak_live.load(Ordering::Relaxed);
            self.peak_live.store(peak.max(live), Ordering::Relaxed);
        } else {
            // fetch_max and not a load and a store: a smaller peak must never win.
            self.peak_live.fetch_max(live, Ordering::Relaxed);
        }
    }

    fn subtract(&self, block: &Block) {
        self.allocations.fetch_sub(1, Ordering::Relaxed);
        self.requested.fetch_sub(block.len(), Ordering::Relaxed);
        self.live.fetch_sub(block.capacity(), Ordering::Relaxed);
    }

    fn read(&self) -> TagStats {
        TagStats {
            allocations: self.allocations.load(Ordering::Relaxed),
            requested_bytes: self.requested.load(Ordering::Relaxed),
            live_bytes: self.live.load(Ordering::Relaxed),
            peak_live_bytes: self.peak_live.load(Ordering::Relaxed),
        }
    }
}

impl<A> Meter<A> {
    /// Counts what goes through to `upstream`.
    pub fn new(upstream: A) -> Self {
        Self {
            upstream,
            tags: std::array::from_fn(|_| Counters::new()),
            total: Counters::new(),
        }
    }

    /// The allocator it counts for.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// The numbers at this moment.
    #[must_use]
    pub fn snapshot(&self) -> MeterStats {
        MeterStats {
            total: self.total.read(),
            tags: std::array::from_fn(|tag| self.tags[tag].read()),
        }
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Meter<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let block = self.upstream.allocate_block(request)?;
        for counters in [&self.tags[block.tag() as usize], &self.total] {
            counters.add(&block);
        }
        Ok(block)
    }

    unsafe fn release_block(&self, block: Block) {
        // Before the block goes back: afterwards it may be out again, and counted twice.
        for counters in [&self.tags[block.tag() as usize], &self.total] {
            counters.subtract(&block);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) }
    }

    fn device(&self) -> Device {
        self.upstream.device()
    }

    fn stats(&self) -> Stats {
        self.upstream.stats()
    }

    fn trim(&self) -> usize {
        self.upstream.trim()
    }
}
