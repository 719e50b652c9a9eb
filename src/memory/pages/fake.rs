use std::collections::HashMap;
use std::ops::Range;

use super::{HeapPages, PageSource, Region};
use crate::memory::AllocError;
use crate::sync::Mutex;

/// A source for tests: counts what is asked, checks who asks, and refuses on request.
///
/// It passes each call on to a source below it (the heap, if nothing else is said), so
/// its memory is real. A call that breaks [`PageSource`]'s contract panics: a range
/// that is not of whole pages or not of the region, a region that is not out. Share it
/// to look at it later:
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{AllocError, FakePages, SharedAllocator, SlabAllocator};
///
/// // No memory at all: addresses can be had, pages cannot.
/// let pages = Arc::new(FakePages::new().with_limit(0));
/// let slab = SharedAllocator::new(SlabAllocator::with_pages(4096, 8, Arc::clone(&pages))?);
/// assert!(matches!(slab.allocate(100, 64), Err(AllocError::OutOfMemory { .. })));
/// assert_eq!(pages.counts().regions, 0);          // and what it had went back
/// # Ok::<(), AllocError>(())
/// ```
///
/// Cost: a lock and, for each region, a byte for each page. Any thread may use it.
#[derive(Debug)]
pub struct FakePages<P = HeapPages> {
    source: P,
    /// The number of the call that fails, counted from 0.
    failing: Option<usize>,
    /// Bytes that may be committed at a time.
    limit_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: PageCounts,
    /// By the region's address: which of its pages are committed.
    regions: HashMap<usize, Vec<bool>>,
}

/// What a [`FakePages`] has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PageCounts {
    /// Calls that could have failed: reserve, commit, grow, lock, protect and unprotect.
    pub calls: usize,
    /// Regions reserved so far.
    pub reserves: usize,
    /// Ranges committed so far.
    pub commits: usize,
    /// Ranges decommitted so far.
    pub decommits: usize,
    /// Regions that are out.
    pub regions: usize,
    /// Bytes of the regions that are out.
    pub reserved_bytes: usize,
    /// Bytes of them that are committed.
    pub committed_bytes: usize,
}

impl FakePages {
    /// Over the heap, refusing nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::over(HeapPages)
    }
}

impl Default for FakePages {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> FakePages<P> {
    /// Over another source, refusing nothing.
    pub fn over(source: P) -> Self {
        Self {
            source,
            failing: None,
            limit_bytes: usize::MAX,
            state: Mutex::new(State::default()),
        }
    }

    /// The same, but the call with this number fails: counted from 0, over all calls that
    /// can fail.
    #[must_use]
    pub fn with_failing_call(mut self, call: usize) -> Self {
        self.failing = Some(call);
        self
    }

    /// The same, but no more than `bytes` bytes can be committed at a time.
    #[must_use]
    pub fn with_limit(mut self, bytes: usize) -> Self {
        self.limit_bytes = bytes;
        self
    }

    /// What was asked so far.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        self.state.lock().counts
    }

    /// Counts a call, and refuses it if it is the one to fail.
    fn call(&self, bytes: usize) -> Result<(), AllocError> {
        let counts = &mut self.state.lock().counts;
        counts.calls += 1;
        if self.failing == Some(counts.calls - 1) {
            return Err(AllocError::OutOfMemory { bytes });
        }
        Ok(())
    }
}

impl<P: PageSource> FakePages<P> {
    fn note_reserved(&self, region: &Region) {
        let mut state = self.state.lock();
        state.counts.reserves += 1;
        state.counts.regions += 1;
        state.counts.reserved_bytes += region.bytes();
        let pages = vec![false; region.bytes() / self.page_bytes()];
        let twice = state.regions.insert(region.base().addr().get(), pages);
        assert!(twice.is_none(), "{region:?} was handed out twice");
    }

    /// Marks a range as committed or not, where the limit allows.
    #[track_caller]
    fn mark(
        &self,
        region: &Region,
        range: &Range<usize>,
        committed: bool,
    ) -> Result<(), AllocError> {
        let page = self.page_bytes();
        let whole = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
        assert!(whole, "{range:?} is not of whole pages of {page} bytes");
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(pages) = state.regions.get_mut(&region.base().addr().get()) else {
            panic!("{region:?} is not out");
        };
        let Some(pages) = pages.get_mut(range.start / page..range.end / page) else {
            panic!("{range:?} is not of {region:?}");
        };
        let changed = pages.iter().filter(|&&now| now != committed).count() * page;
        let total = &mut state.counts.committed_bytes;
        if !committed {
            *total -= changed;
        } else if changed > self.limit_bytes.saturating_sub(*total) {
            let bytes = range.len();
            return Err(AllocError::OutOfMemory { bytes });
        } else {
            *total += changed;
        }
        pages.fill(committed);
        Ok(())
    }
}

// SAFETY: memory comes from the source below, which keeps the contract, and goes back to
// it unchanged; a call that is refused never gets there.
unsafe impl<P: PageSource> PageSource for FakePages<P> {
    fn page_bytes(&self) -> usize {
        self.source.page_bytes()
    }

    fn reserves_freely(&self) -> bool {
        // It notes each page of a region, committed or not.
        false
    }

    fn decommits_to_zero(&self) -> bool {
        self.source.decommits_to_zero()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        self.call(bytes)?;
        let region = self.source.reserve(bytes, align)?;
        self.note_reserved(&region);
        Ok(region)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        self.call(range.len())?;
        self.mark(region, &range, true)?;
        // SAFETY: the region is out (checked), so it is the source's.
        if let Err(error) = unsafe { self.source.commit(region, range.clone()) } {
            // What was committed before is forgotten too; the source has refused for real.
            self.mark(region, &range, false)?;
            return Err(error);
        }
        self.state.lock().counts.commits += 1;
        Ok(())
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        self.mark(region, &range, false).ok()?;
        self.state.lock().counts.decommits += 1;
        // By the books they went, also where the source below gives nothing back.
        // SAFETY: of a region that is out (checked); unused is the caller's promise.
        Some(unsafe { self.source.decommit(region, range) }.unwrap_or(0))
    }

    unsafe fn grow(&self, region: &mut Region, bytes: usize) -> Result<(), AllocError> {
        let capacity = region.bytes();
        let refused = AllocError::CannotGrow { bytes, capacity };
        self.call(bytes).map_err(|_| refused)?;
        self.mark(region, &(0..0), true)?;
        let more = bytes.saturating_sub(capacity);
        let committed = self.state.lock().counts.committed_bytes;
        if more > self.limit_bytes.saturating_sub(committed) {
            return Err(refused);
        }
        // SAFETY: of a region that is out (checked); committed is the caller's promise.
        unsafe { self.source.grow(region, bytes) }?;
        let mut state = self.state.lock();
        let state = &mut *state;
        let grown = region.bytes() - capacity;
        state.counts.reserved_bytes += grown;
        state.counts.committed_bytes += grown;
        if let Some(pages) = state.regions.get_mut(&region.base().addr().get()) {
            pages.resize(region.bytes() / self.source.page_bytes(), true);
        }
        Ok(())
    }

    unsafe fn lock(&self, region: &Region) -> Result<(), AllocError> {
        self.call(region.bytes())?;
        self.mark(region, &(0..0), true)?;
        // SAFETY: of a region that is out (checked); committed is the caller's promise.
        unsafe { self.source.lock(region) }
    }

    unsafe fn protect(&self, region: &Region) -> bool {
        // What it refuses it has not begun.
        if self.call(0).is_err() || self.mark(region, &(0..0), true).is_err() {
            return false;
        }
        // SAFETY: of a region that is out (checked); that nobody writes is the caller's promise.
        unsafe { self.source.protect(region) }
    }

    unsafe fn unprotect(&self, region: &Region) -> bool {
        if self.call(0).is_err() || self.mark(region, &(0..0), true).is_err() {
            return false;
        }
        // SAFETY: of a region that is out (checked).
        unsafe { self.source.unprotect(region) }
    }

    unsafe fn release(&self, region: Region) {
        let mut state = self.state.lock();
        let Some(pages) = state.regions.remove(&region.base().addr().get()) else {
            panic!("{region:?} is not out");
        };
        let page = self.source.page_bytes();
        assert_eq!(
            pages.len() * page,
            region.bytes(),
            "{region:?} changed its size"
        );
        state.counts.committed_bytes -= pages.iter().filter(|&&page| page).count() * page;
        state.counts.reserved_bytes -= region.bytes();
        state.counts.regions -= 1;
        drop(state);
        // SAFETY: it was out (checked), so it is the source's and goes back once.
        unsafe { self.source.release(region) };
    }
}
