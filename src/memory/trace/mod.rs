//! [`Trace`]: what happened, kept in a fixed number of bytes, to be played again.
//!
//! ```text
//!   Trace ─▶ allocator            a ring of events, and a table of the blocks that are out
//!     │
//!     └─ snapshot ─▶ Recording ──▶ CSV, JSON ──▶ Recording      (refuses what is not one)
//!                        │
//!                        ├─ replay(&any allocator)  ─▶ ReplayReport
//!                        ├─ replay_with(&any, step)     a step for each event, nothing touched
//!                        └─ simulate(&Simulated)    ─▶ ReplayReport    no memory at all
//! ```
//!
//! A block's allocation is recorded after it went out and its release before it goes
//! back. So in the history of one address allocations and releases take turns, although
//! another thread may have the block a moment later; `loom_tests/meter.rs` explores it.
//! Growth is recorded after it happened, when the block is its owner's still.
//!
//! The books are behind one short lock; [`book`] is plain code.

mod book;
mod event;
mod format;
mod recording;
mod replay;
mod row;
mod simulated;

pub use self::book::TraceHeader;
pub use self::event::{Allocation, Event, EventKind, LiveBlock, Name};
pub use self::recording::Recording;
pub use self::replay::{ReplayReport, ReplayStep};
pub use self::row::{TraceError, TraceProblem};
pub use self::simulated::Simulated;

use self::book::Book;
use super::biased::Biased;
use super::{AllocError, Allocator, Block, Decommitted, Request, Stats};
use crate::mutant::{self, Mutant};
use crate::types::Device;
use std::ops::Range;

/// How much a [`Trace`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceLimits {
    /// Events in the ring, 48 bytes each. 0: no history.
    pub events: usize,
    /// Blocks that are out and known one by one, about 112 to 224 bytes each.
    pub live_blocks: usize,
}

impl Default for TraceLimits {
    /// 65,536 events (3 MiB) and 16,384 blocks (2 MiB).
    fn default() -> Self {
        Self {
            events: 1 << 16,
            live_blocks: 1 << 14,
        }
    }
}

/// An allocator that records what goes through it.
///
/// It keeps the last events in a ring and the blocks that are out in a table, both made
/// once: the memory is bounded, whatever happens, and recording makes no heap block.
/// What was overwritten is counted. The blocks that are out are in every
/// [`snapshot`](Trace::snapshot), also without history.
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{CpuAllocator, SharedAllocator, Simulated, SlabAllocator, Trace};
///
/// let trace = Arc::new(Trace::new(CpuAllocator::new()));
/// let cpu = SharedAllocator::new(Arc::clone(&trace));
/// let kept = cpu.allocate(1000, 64)?;
/// trace.mark("prefill");
/// drop(cpu.allocate(5000, 64)?);
///
/// let recording = trace.snapshot();
/// assert_eq!(recording.events().len(), 4);
/// assert_eq!(recording.live()[0].allocation.request.bytes(), 1000);
///
/// // Would a slab of 8 KiB blocks do? And how tight is best fit?
/// let report = recording.replay(&SlabAllocator::new(8 << 10, 2)?);
/// assert_eq!((report.mismatches(), report.peak_live_bytes), (0, 16 << 10));
/// let report = recording.simulate(&Simulated::new(1 << 40));
/// assert_eq!(report.peak_live_bytes, 1024 + 5056);
/// # drop(kept);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
///
/// Cost: one short lock a call, shared by all threads (where one makes most calls it costs that
/// one no atomic exchange), a search for the thread's number
/// and a place in the table.
#[derive(Debug)]
pub struct Trace<A> {
    upstream: A,
    limits: TraceLimits,
    book: Biased<Book>,
}

/// Something that no other living thread has, and that costs next to nothing.
fn thread_key() -> usize {
    // Without a destructor, so it is there also while the thread ends.
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<A> Trace<A> {
    /// Records what goes through to `upstream`, with the [default](TraceLimits) limits.
    pub fn new(upstream: A) -> Self {
        Self::with_limits(upstream, TraceLimits::default())
    }

    /// Records what goes through to `upstream`. All memory is taken here: two heap
    /// blocks.
    ///
    /// # Panics
    /// If the limits are more than an address space holds.
    pub fn with_limits(upstream: A, limits: TraceLimits) -> Self {
        Self {
            upstream,
            limits,
            book: Biased::new(Book::new(limits.events, limits.live_blocks)),
        }
    }

    /// The allocator it records for.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// Puts a name into the history: a phase begins, a request ends.
    pub fn mark(&self, name: &str) {
        let kind = EventKind::Mark(Name::new(name));
        self.book.with(|book| book.happened(thread_key(), kind));
    }

    /// The numbers alone: how much was seen and dropped. No heap block.
    #[must_use]
    pub fn header(&self) -> TraceHeader {
        self.book.with(|book| book.header())
    }

    /// The events that are kept and the blocks that are out, all of one moment.
    ///
    /// The lock is held while they are copied, a few nanoseconds for each.
    #[must_use]
    pub fn snapshot(&self) -> Recording {
        self.copy(self.limits.events)
    }

    /// As [`snapshot`](Trace::snapshot), without the events: the time and the memory it
    /// takes depend on the limit for blocks only.
    #[must_use]
    pub fn live_snapshot(&self) -> Recording {
        self.copy(0)
    }

    fn copy(&self, max_events: usize) -> Recording {
        // Before the lock, so that nobody waits for the heap.
        let mut events = Vec::with_capacity(max_events);
        let mut live = Vec::with_capacity(self.limits.live_blocks);
        let header = self.book.with(|book| {
            let mut header = book.header();
            if max_events > 0 {
                book.events(&mut events);
            } else {
                header.events = 0;
            }
            book.live(&mut live);
            header
        });
        live.sort_unstable_by_key(|block| block.number);
        Recording::new(header, events, live)
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Trace<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let result = self.upstream.allocate_block(request);
        let thread = thread_key();
        self.book.with(|book| match &result {
            Ok(block) => book.allocated(thread, Allocation::of(request, block)),
            Err(_) => book.happened(thread, EventKind::Refuse(request)),
        });
        result
    }

    unsafe fn release_block(&self, block: Block) {
        let thread = thread_key();
        if mutant::is(Mutant::TraceRecordsAfterRelease) {
            let copy = Block::new(
                block.as_ptr(),
                block.len(),
                block.capacity(),
                block.cookie(),
                block.tag(),
            );
            // SAFETY: the caller's promise, passed on.
            unsafe { self.upstream.release_block(block) };
            self.book.with(|book| book.released(thread, &copy));
            return;
        }
        // Before the block goes back: afterwards its address may be out again.
        self.book.with(|book| book.released(thread, &block));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) }
    }

    /// An empty block does not: it has no address in the books. What is refused is not
    /// recorded, for the block is as it was.
    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        if block.is_empty() {
            let capacity = block.capacity();
            return Err(AllocError::CannotGrow { bytes, capacity });
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.grow_block(block, bytes) }?;
        let thread = thread_key();
        self.book.with(|book| book.grown(thread, block));
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
