//! What all parts of a pool take from the system, counted in one place and capped there.

use std::ops::Range;

use crate::memory::{AllocError, Limit, PageSource, Region};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicUsize;

/// The pages below a pool, and what it has of them.
///
/// To a slab it is a source of its own: a region counts as a whole from when it is reserved to
/// when it is released. It never asks a limit's callbacks, for slabs hold a lock when they come
/// here; the heap does so itself, without one.
#[derive(Debug)]
pub(super) struct Space<P> {
    pub(super) pages: P,
    pub(super) limit: Limit,
    committed: AtomicUsize,
    peak: AtomicUsize,
}

impl<P> Space<P> {
    pub(super) fn new(pages: P, limit: Limit) -> Self {
        Self {
            pages,
            limit,
            committed: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Counts `bytes`, if they fit as it is.
    pub(super) fn try_charge(&self, bytes: usize) -> bool {
        let fits = self.limit.try_take(bytes);
        if fits {
            self.note(bytes);
        }
        fits
    }

    /// Counts `bytes`, asking the limit's callbacks for room. No lock may be held.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), AllocError> {
        self.limit.take(bytes)?;
        self.note(bytes);
        Ok(())
    }

    fn note(&self, bytes: usize) {
        // Relaxed, both: numbers to look at. The peak is of sums that were real, for each
        // addition says what it made.
        let now = self.committed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn uncharge(&self, bytes: usize) {
        // Relaxed: a number to look at.
        self.committed.fetch_sub(bytes, Ordering::Relaxed);
        self.limit.give_back(bytes);
    }

    /// Bytes that count now, and the most that ever did.
    pub(super) fn committed(&self) -> (usize, usize) {
        // Relaxed: numbers to look at.
        let now = self.committed.load(Ordering::Relaxed);
        (now, self.peak.load(Ordering::Relaxed))
    }
}

impl<P> Drop for Space<P> {
    fn drop(&mut self) {
        // What is left is the heap's, which went with its region.
        let left = self.committed().0;
        self.uncharge(left);
    }
}

// SAFETY: every call goes to the source below, which keeps the contract; a region that is
// refused by the limit goes back before anybody has seen it.
unsafe impl<P: PageSource> PageSource for Space<P> {
    fn page_bytes(&self) -> usize {
        self.pages.page_bytes()
    }

    fn reserves_freely(&self) -> bool {
        false
    }

    fn decommits_to_zero(&self) -> bool {
        self.pages.decommits_to_zero()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        let region = self.pages.reserve(bytes, align)?;
        if self.try_charge(region.bytes()) {
            return Ok(region);
        }
        let bytes = region.bytes();
        // SAFETY: reserved from this source just now, and nobody has seen it.
        unsafe { self.pages.release(region) };
        Err(AllocError::OutOfMemory { bytes })
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise; our regions are the source's.
        unsafe { self.pages.commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise; our regions are the source's.
        unsafe { self.pages.decommit(region, range) }
    }

    unsafe fn release(&self, region: Region) {
        let bytes = region.bytes();
        // SAFETY: the caller's promise; our regions are the source's.
        unsafe { self.pages.release(region) };
        self.uncharge(bytes);
    }
}
