//! [`Meter`]: numbers that add up.
//!
//! ```text
//!   weights ─┐                                  requested + waste   == live     each tag
//!   kv ──────┼─▶ Meter ─▶ allocator             sum over tags       == total    but peaks
//!   scratch ─┘     │                            live <= peak
//!                  └─ snapshot, scope, report   live + cached       <= reserved (upstream)
//! ```
//!
//! All of a meter's books are behind one short lock: a few additions, and a maximum or
//! two. A lock and not a counter each, for two reasons. A [lock that leans](super::biased) to
//! the thread that comes most costs that one no atomic exchange, and two the others, where a
//! counter for each number (blocks, requested, live, for the tag and in all) costs one each;
//! and what is read under a lock is of one moment, so the identities hold also while other
//! threads go on.
//!
//! A block is counted after it went out and before it goes back: were it the other way
//! round, another thread could have the block already, and for a moment it would be
//! counted twice. `loom_tests/meter.rs` explores both.

mod ledger;
mod stats;

use std::ops::Range;

use self::ledger::{Flows, Ledger, TAGS};
pub use self::stats::{MeterReport, MeterStats, ScopeStats, ScopeTagStats, TagStats};
use super::biased::Biased;
use super::{AllocError, Allocator, Block, Decommitted, ProcessMemory, Request, Stats};
use crate::mutant::{self, Mutant};
use crate::types::Device;

/// An allocator that counts what goes through it, in all and by [`Tag`](super::Tag).
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
/// Each number is exact at every moment, peaks included, and all numbers of one
/// [`snapshot`](Meter::snapshot) are of one moment. The numbers are of what went through
/// this meter, whoever gives it back and on whichever thread, also when handles to it
/// are gone. ([`stats`](Allocator::stats) is the trait's method and answers for the
/// allocator below.)
///
/// Cost: one short lock a call, shared by all threads, and no heap block. Where one thread
/// makes most calls the lock costs it no atomic exchange.
#[derive(Debug)]
pub struct Meter<A> {
    upstream: A,
    ledger: Biased<Ledger>,
}

impl<A> Meter<A> {
    /// Counts what goes through to `upstream`.
    pub fn new(upstream: A) -> Self {
        Self {
            upstream,
            ledger: Biased::default(),
        }
    }

    /// The allocator it counts for.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// The numbers at this moment. No system call and no heap block.
    #[must_use]
    pub fn snapshot(&self) -> MeterStats {
        self.ledger.with(|ledger| ledger.stats())
    }

    /// Lets every peak begin again, at what is out now. Changes no other number, and
    /// no peak of a [`Scope`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenslab::memory::{CpuAllocator, Meter, SharedAllocator};
    /// let meter = Arc::new(Meter::new(CpuAllocator::new()));
    /// let cpu = SharedAllocator::new(Arc::clone(&meter));
    /// let _ten = cpu.allocate(10, 1)?;
    /// drop(cpu.allocate(500, 1)?);
    /// meter.reset_peaks();
    /// let _one = cpu.allocate(1, 1)?;
    /// let total = meter.snapshot().total;
    /// assert_eq!((total.requested_bytes, total.peak_live_bytes), (11, 11));
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    pub fn reset_peaks(&self) {
        self.ledger.with(Ledger::reset_peaks);
    }

    /// Begins a scope: its numbers are of what happens from now on, on all threads.
    ///
    /// Scopes are values: they may be nested or overlap in any way, be kept, and be
    /// read as often as one likes. Sixteen at a time know their own peak (each makes
    /// an allocation a little dearer while it is open); the others have all but that.
    ///
    /// ```
    /// # use tenslab::memory::{CpuAllocator, Meter, SharedAllocator};
    /// # use std::sync::Arc;
    /// let meter = Arc::new(Meter::new(CpuAllocator::new()));
    /// let cpu = SharedAllocator::new(Arc::clone(&meter));
    /// let kept = cpu.allocate(100, 1)?;
    ///
    /// let step = meter.scope();
    /// drop(cpu.allocate(30, 1)?);
    /// drop((kept, cpu.allocate(5, 1)?));
    /// let numbers = step.stats().total;
    /// assert_eq!((numbers.allocations, numbers.releases), (2, 3));
    /// assert_eq!(numbers.peak_growth_bytes(), Some(30));  // 130 at the most, 100 before
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    #[must_use = "a scope that is dropped tells nothing"]
    pub fn scope(&self) -> Scope<'_> {
        let (start, row) = self.ledger.with(Ledger::open);
        Scope {
            ledger: &self.ledger,
            start,
            row,
        }
    }
}

impl<A: Allocator> Meter<A> {
    /// Everything at one glance: the snapshot, what the upstream says of itself, and
    /// what the kernel says of the process. Some system calls (about 50 us).
    #[must_use]
    pub fn report(&self) -> MeterReport {
        MeterReport {
            counted: self.snapshot(),
            upstream: self.upstream.stats(),
            process: ProcessMemory::read().ok(),
        }
    }

    #[inline]
    fn count_taken(&self, block: &Block) {
        let weight = ledger::weight(block);
        let tag = weight.0;
        if mutant::is(Mutant::PeakTwoSteps) {
            let (live, peaks) = self.ledger.with(|ledger| {
                ledger.take(weight);
                (ledger.live(tag), ledger.peaks(tag))
            });
            let higher = (peaks.0.max(live.0), peaks.1.max(live.1));
            self.ledger.with(|ledger| ledger.set_peaks(tag, higher));
        } else {
            self.ledger.with(|ledger| {
                ledger.take(weight);
                ledger.raise_peaks(tag);
            });
        }
    }
}

/// The numbers of a [`Meter`] since a moment. From [`Meter::scope`].
///
/// Opening, reading and dropping one is a short lock each; no heap block.
#[derive(Debug)]
pub struct Scope<'m> {
    ledger: &'m Biased<Ledger>,
    start: [Flows; TAGS],
    /// The row of peaks it has in the ledger.
    row: Option<usize>,
}

impl Scope<'_> {
    /// What happened since it was opened.
    #[must_use]
    pub fn stats(&self) -> ScopeStats {
        self.ledger
            .with(|ledger| ledger.since(&self.start, self.row))
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.row {
            self.ledger.with(|ledger| ledger.close(row));
        }
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Meter<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        // Passed on where it is, not taken apart: copying a block that was written a moment
        // ago makes the processor wait for those writes.
        let result = self.upstream.allocate_block(request);
        if let Ok(block) = &result {
            self.count_taken(block);
        }
        result
    }

    unsafe fn release_block(&self, block: Block) {
        let weight = ledger::weight(&block);
        if mutant::is(Mutant::MeterCountsAfterRelease) {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.upstream.release_block(block) };
            self.ledger.with(|ledger| ledger.give_back(weight));
            return;
        }
        // Before the block goes back: afterwards it may be out again, and counted twice.
        self.ledger.with(|ledger| ledger.give_back(weight));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        let before = ledger::weight(block);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.grow_block(block, bytes) }?;
        let after = ledger::weight(block);
        self.ledger.with(|ledger| {
            ledger.grow(before, after);
            ledger.raise_peaks(after.0);
        });
        Ok(())
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.upstream.grown_capacity(block, bytes)
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.commit(block, range) }
    }

    unsafe fn protect(&self, block: &Block) -> usize {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.protect(block) }
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.unprotect(block) }
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
