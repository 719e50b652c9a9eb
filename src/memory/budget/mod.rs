//! [`Budget`]: one hard limit in bytes over several users and allocators.
//!
//! ```text
//!   weights ─▶ Budget<CpuAllocator>  ─┐
//!   kv ──────▶ Budget<SlabAllocator> ─┼─▶ Limit   used <= limit, whoever asks
//!   mmap, bumpalo, … ──────── Charge ─┘     │
//!                                           └ short? ─▶ callbacks: "give some back"
//! ```
//!
//! A [`Limit`] is the number that all share. A [`Budget`] counts what goes through it to
//! its upstream; a [`Charge`] counts memory that is no allocation of ours.
//!
//! The order makes the limit a promise. Bytes are charged before the upstream is asked,
//! and go back to the limit after the block went back to the upstream: so what is
//! charged is never less than what is out, and who gets a charge finds its memory there.
//! Where the upstream refuses, the charge goes back. A block that grows is charged the same
//! way, with what its upstream [says](Allocator::grown_capacity) that it may come to.
//!
//! Where the limit refuses, [callbacks](Limit::on_pressure) are asked for memory, with no
//! lock held, a bounded number of times. They may allocate from and give back to the
//! same budget. `loom_tests/budget.rs` explores all this.

mod cgroup;
mod charge;
mod decommitted;
mod limit;
mod pressure;

pub use self::cgroup::{CgroupError, CgroupMemory};
pub use self::charge::Charge;
pub use self::limit::Limit;
pub use self::pressure::{PressureGuard, Shortage};

use std::ops::Range;

use self::charge::Taken;
use self::decommitted::DecommittedRanges;
use super::{AllocError, Allocator, Block, Decommitted, Request, Stats};
use crate::mutant::{self, Mutant};
use crate::types::Device;

/// How often an upstream that is short is asked again after callbacks gave memory back.
const UPSTREAM_RETRIES: usize = 2;

/// An allocator that takes no more than a [`Limit`] lets it.
///
/// What counts is what the allocations take up of the upstream (their
/// [`capacity`](Block::capacity)), zero bytes of them for an empty one. Several budgets
/// may share one limit; a budget over a budget of the same limit counts twice. Bytes of a
/// block that are [decommitted](Allocator::decommit) do not count until they are
/// [committed](Allocator::commit) again, a range at a time: committing a part of what was
/// decommitted in one call charges for all of that. A block grows beyond what it takes up only
/// where the upstream can say before [what that would
/// be](Allocator::grown_capacity); that is charged first.
///
/// ```
/// use tenslab::memory::{AllocError, Budget, CpuAllocator, Limit, SharedAllocator};
///
/// let limit = Limit::new(1 << 20);
/// let weights = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
/// let kv = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
///
/// let held = weights.allocate(700 << 10, 64)?;
/// let error = kv.allocate(400 << 10, 64).unwrap_err();
/// assert_eq!(error.to_string(), "409600 bytes do not fit the budget: 716800 of 1048576 \
///     are in use, and 0 were given back on demand");
///
/// drop(held);                                      // gives its bytes back to the limit
/// assert!(kv.allocate(400 << 10, 64).is_ok());
/// # Ok::<(), AllocError>(())
/// ```
///
/// An upstream that is short of memory itself is asked again after callbacks gave
/// something back, at most twice.
///
/// Cost: one short lock to allocate and one to give back, shared by all that have the limit;
/// where one thread makes most calls it costs that one no atomic exchange. No heap block, also
/// where the limit refuses. To decommit and to commit is a lock and a record on the heap, as is
/// giving back while any block is decommitted.
#[derive(Debug)]
pub struct Budget<A> {
    upstream: A,
    limit: Limit,
    decommitted: DecommittedRanges,
}

/// What a block counts.
#[inline]
fn cost(block: &Block) -> usize {
    // Never less than what is usable, whatever the upstream says of itself.
    block.capacity().max(block.len())
}

impl<A> Budget<A> {
    /// Lets `upstream` hand out what `limit` lets it.
    pub fn new(upstream: A, limit: &Limit) -> Self {
        Self {
            upstream,
            limit: limit.clone(),
            decommitted: DecommittedRanges::default(),
        }
    }

    /// The allocator that is limited.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// What limits it.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

/// A block that goes back to its allocator unless it is kept.
struct Unsettled<'a, A: Allocator> {
    upstream: &'a A,
    block: Option<Block>,
}

impl<A: Allocator> Drop for Unsettled<'_, A> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            // SAFETY: it came from this allocator just now, goes back once (`take`), and
            // nobody else has seen it.
            unsafe { self.upstream.release_block(block) };
        }
    }
}

impl<A: Allocator> Budget<A> {
    /// Asks the upstream for what is charged already.
    #[inline]
    fn allocate_charged(&self, request: Request, taken: Taken<'_>) -> Result<Block, AllocError> {
        // Passed on where it is, not taken apart: see `Meter`.
        let mut result = self.upstream.allocate_block(request);
        match &result {
            Ok(block) if cost(block) <= taken.bytes() => taken.keep(cost(block)),
            _ => result = self.settle(request, taken, result),
        }
        result
    }

    /// Charges what the upstream took beyond what was asked for, or asks it again where it
    /// has too little and callbacks gave something back.
    #[cold]
    fn settle<'a>(
        &'a self,
        request: Request,
        mut taken: Taken<'a>,
        mut result: Result<Block, AllocError>,
    ) -> Result<Block, AllocError> {
        for _ in 0..UPSTREAM_RETRIES {
            match &result {
                Err(error) if error.is_shortage() => {}
                _ => break,
            }
            drop(taken);
            if self.limit.relieve(request.bytes()) == 0 {
                return result;
            }
            taken = Taken::new(&self.limit, request.bytes())?;
            result = self.upstream.allocate_block(request);
        }
        let block = result?;
        let cost = cost(&block);
        // Declared after `taken`, so dropped before it: first the block goes back, then
        // the charge. Also where a callback panics.
        let mut held = Unsettled {
            upstream: &self.upstream,
            block: Some(block),
        };
        taken.grow(cost.saturating_sub(taken.bytes()))?;
        let Some(block) = held.block.take() else {
            unreachable!("nobody took it");
        };
        taken.keep(cost);
        Ok(block)
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Budget<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        // Before the upstream is asked: else two could both have a block that only
        // one has room for.
        match Taken::new(&self.limit, request.bytes()) {
            Ok(taken) => self.allocate_charged(request, taken),
            Err(error) => Err(error),
        }
    }

    unsafe fn release_block(&self, block: Block) {
        let mut charged = cost(&block);
        if !self.decommitted.is_empty() {
            if mutant::is(Mutant::DecommitForgetsLate) {
                let (at, len, capacity) = (block.as_ptr(), block.len(), block.capacity());
                let copy = Block::new(at, len, capacity, block.cookie(), block.tag());
                charged -= self.decommitted.bytes(&block, &(0..usize::MAX));
                // SAFETY: the caller's promise, passed on.
                unsafe { self.upstream.release_block(block) };
                self.decommitted.forget(&copy, &(0..usize::MAX));
                return self.limit.give_back(charged);
            }
            // Before the block goes back: afterwards its address may be another block's.
            charged = charged.saturating_sub(self.decommitted.forget(&block, &(0..usize::MAX)));
        }
        let taken = Taken::again(&self.limit, charged);
        if mutant::is(Mutant::BudgetGivesBackFirst) {
            drop(taken);
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.upstream.release_block(block) };
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) };
        // Only now: who gets these bytes has to find the block there.
        drop(taken);
    }

    /// Charges the most that the upstream may take for it, and gives back what it did not.
    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        let before = cost(block);
        let most = self.upstream.grown_capacity(block, bytes);
        let Some(most) = most.filter(|&most| most >= bytes) else {
            // Of what is not known before, the limit would hear only when it cannot be
            // refused any more.
            let capacity = before;
            return Err(AllocError::CannotGrow { bytes, capacity });
        };
        // New bytes may be in pages that went with the last ones of the block.
        let end = block.len().saturating_sub(1)..block.len();
        let gone = self.decommitted.bytes(block, &end);
        // Before the upstream is asked, as for a new block. What is not kept goes back, all
        // of it where the upstream refuses or panics.
        let most = most.saturating_sub(before).saturating_add(gone);
        let taken = Taken::new(&self.limit, most)?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.grow_block(block, bytes) }?;
        debug_assert!(before <= cost(block), "it grew");
        let more = cost(block).saturating_sub(before);
        // No other thread is at this block's records (the caller's promise), so this is what
        // was looked up above.
        taken.keep(more + self.decommitted.forget(block, &end));
        Ok(())
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.upstream.grown_capacity(block, bytes)
    }

    /// Passed on. What went and was counted does not count any more.
    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        let gaps = self.decommitted.gaps(block, range.clone());
        let is_new = gaps.len() == 1 && gaps[0] == range;
        let mut first = Decommitted::default();
        for gap in gaps {
            // SAFETY: the caller's promise, for a part of its range.
            let mut went = unsafe { self.upstream.decommit(block, gap.clone()) };
            // Not more than was charged, whatever the upstream says of itself.
            went.bytes = went.bytes.min(gap.len());
            first.bytes += went.bytes;
            first.resident_bytes += went.resident_bytes;
            if went.bytes > 0 {
                self.decommitted.record(block, gap, went.bytes);
                // Only now: who gets these bytes has to find the memory there.
                self.limit.give_back(went.bytes);
            }
        }
        if is_new {
            return first;
        }
        // Of pages that were touched since without being committed, and the answer.
        // SAFETY: the caller's promise, passed on.
        let all = unsafe { self.upstream.decommit(block, range) };
        Decommitted {
            bytes: all.bytes,
            resident_bytes: all.resident_bytes + first.resident_bytes,
        }
    }

    /// Passed on, and counted again before.
    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // Charged before the records go: meanwhile another part of a range that this one
        // meets may be committed too, and neither may find it paid for by nobody.
        let taken = Taken::new(&self.limit, self.decommitted.bytes(block, &range))?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.commit(block, range.clone()) }?;
        let bytes = self.decommitted.forget(block, &range);
        // What the other one forgot first it keeps, and this one gives back.
        taken.keep(bytes);
        Ok(())
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
