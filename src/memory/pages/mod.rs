//! [`PageSource`]: where address ranges come from.
//!
//! ```text
//!   reserve ──▶ Region: addresses, no memory
//!   commit  ──▶ zero bytes that may be touched; pages come with the first touch
//!   decommit ─▶ the pages go back; touched again, the bytes are anything
//!   release ──▶ the addresses go back
//! ```
//!
//! | source | its memory | for |
//! |---|---|---|
//! | [`OsPages`] | `mmap`, huge pages by [policy](HugePages) | the default |
//! | [`HeapPages`] | the global allocator | where there is no `mmap`; heap profilers see it |
//! | [`FakePages`] | another source's | tests: counts, checks its caller, refuses on request |
//!
//! Where the system is not Linux (or under `cfg(tenslab_portable)`) [`OsPages`] is the
//! heap too; the contract is the same, only that committing costs nothing and giving
//! pages back gives nothing.
//!
//! Sources keep no state between calls but what the kernel keeps, and take no lock:
//! whoever owns a region decides under which lock, if any, a system call is made. So a source
//! of your own may be called with its owner's locks held: it must not ask the allocator that
//! owns it for anything, nor charge a [`Limit`](super::Limit) whose callbacks do.

mod fake;
mod heap;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod os;

use std::ops::Range;
use std::ptr::NonNull;

pub use self::fake::{FakePages, PageCounts};
pub use self::heap::HeapPages;

use super::AllocError;
use crate::sync::Arc;

/// A range of addresses from a [`PageSource`], which wants it back.
#[derive(Debug)]
#[must_use = "a region that is dropped is leaked: release it"]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    align: usize,
}

impl Region {
    /// A region of `bytes` bytes at `base`, a multiple of `align`.
    pub const fn new(base: NonNull<u8>, bytes: usize, align: usize) -> Self {
        Self { base, bytes, align }
    }

    /// The first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes; a multiple of the page size, and never 0.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the base is a multiple of.
    #[must_use]
    pub const fn align(&self) -> usize {
        self.align
    }
}

/// Gives out address ranges, and memory for parts of them.
///
/// # Safety
/// - A reserved region is as large and as aligned as asked, belongs to nobody else
///   until it is released, and does not move.
/// - After `commit` returned `Ok` its range may be read and written, and is zero
///   where it was not committed since the region was reserved.
/// - What was decommitted stays readable and writable; it is initialised, and may be
///   anything until it is written.
/// - A region from `reserve_committed` is committed as a whole, and so is what `grow`
///   adds to it, which is zero.
/// - `page_bytes` is a power of two and never changes.
/// - Where `decommits_to_zero` says so, it is so.
/// - No call panics, but for an alignment that is no power of two: its owner may be in the middle
///   of something.
pub unsafe trait PageSource: Send + Sync {
    /// Ranges are multiples of this.
    fn page_bytes(&self) -> usize;

    /// Do addresses that are not committed cost nothing, so that who wants to grow in one piece
    /// may reserve far more than it will use? By default it is not known, and the answer is no.
    fn reserves_freely(&self) -> bool {
        false
    }

    /// Are bytes that were [decommitted](PageSource::decommit), and went, zero once they are
    /// committed again? By default they are anything.
    fn decommits_to_zero(&self) -> bool {
        false
    }

    /// Addresses for at least `bytes` bytes, at a multiple of `align`.
    ///
    /// # Errors
    /// [`AllocError`] with the size asked for.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError>;

    /// A region that is committed as a whole. Sources that can do both in one system
    /// call do.
    ///
    /// # Errors
    /// [`AllocError`] with the size asked for.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    fn reserve_committed(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        let region = self.reserve(bytes, align)?;
        // SAFETY: reserved from this source just now.
        match unsafe { self.commit(&region, 0..region.bytes()) } {
            Ok(()) => Ok(region),
            Err(error) => {
                // SAFETY: reserved a moment ago, and nobody has seen it.
                unsafe { self.release(region) };
                Err(error)
            }
        }
    }

    /// Makes a range of the region usable. Its ends are multiples of the page size.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the size asked for; the range is as before.
    ///
    /// # Safety
    /// The region came from `reserve` of this source and is not given back. (Anybody
    /// can write down a [`Region`]; this would make pages of somebody else writable.)
    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError>;

    /// Gives the memory of a range back, the addresses stay.
    ///
    /// Returns by how many bytes the process got smaller: the pages of the range that
    /// were in memory. It may be less than the range, and 0, where pages were never touched.
    /// `None`: nothing went, and the range is as it was: where that cannot be, and for what is
    /// locked into memory.
    ///
    /// # Safety
    /// The region came from this source and is not given back, each page of the range is
    /// committed or was and has been decommitted, its ends are multiples of the page size, and
    /// nobody uses its bytes meanwhile.
    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize>;

    /// Makes a region that is committed as a whole `bytes` bytes long, rounded up to whole
    /// [pages](PageSource::page_bytes) and never less than it is, where it stands. By default
    /// that cannot be.
    ///
    /// # Errors
    /// [`AllocError::CannotGrow`] where the addresses behind it are taken, or the
    /// system has no memory for it. The region is as before then.
    ///
    /// # Safety
    /// The region came from `reserve_committed` of this source and is not given back.
    unsafe fn grow(&self, region: &mut Region, bytes: usize) -> Result<(), AllocError> {
        Err(AllocError::CannotGrow {
            bytes,
            capacity: region.bytes(),
        })
    }

    /// Locks a region that is committed as a whole into memory, until it is released:
    /// all its pages are touched and are never swapped out. By default that cannot be.
    ///
    /// # Errors
    /// [`AllocError::CannotLock`] with what was needed and what the limit is,
    /// [`AllocError::OutOfMemory`] where there is no limit but no memory either.
    ///
    /// # Safety
    /// The region came from `reserve_committed` of this source and is not given back.
    unsafe fn lock(&self, region: &Region) -> Result<(), AllocError> {
        Err(AllocError::CannotLock {
            bytes: region.bytes(),
            limit_bytes: 0,
        })
    }

    /// Makes a region that is committed as a whole read-only: a write traps. By default that
    /// cannot be.
    ///
    /// `false`: it cannot be, or the system refused. A part of the region may be read-only
    /// then, and [`unprotect`](PageSource::unprotect) is owed as after `true`.
    ///
    /// # Safety
    /// The region came from `reserve_committed` of this source and is not given back, and
    /// nobody writes to it until `unprotect` returned `true`.
    #[must_use = "the region may be writable"]
    unsafe fn protect(&self, region: &Region) -> bool {
        let _ = region;
        false
    }

    /// Makes a region that was [protected](PageSource::protect) writable again, all of it.
    ///
    /// `false`: the system refused, and a part of it may be read-only.
    ///
    /// # Safety
    /// The region came from `reserve_committed` of this source and is not given back.
    #[must_use = "the region may be read-only"]
    unsafe fn unprotect(&self, region: &Region) -> bool {
        let _ = region;
        true
    }

    /// Gives the region back.
    ///
    /// # Safety
    /// The region came from this source, is given back once, and nobody uses it any
    /// more.
    unsafe fn release(&self, region: Region);
}

// SAFETY: every call goes to the source behind the pointer, which keeps the contract.
unsafe impl<P: PageSource + ?Sized> PageSource for Arc<P> {
    fn page_bytes(&self) -> usize {
        (**self).page_bytes()
    }

    fn reserves_freely(&self) -> bool {
        (**self).reserves_freely()
    }

    fn decommits_to_zero(&self) -> bool {
        (**self).decommits_to_zero()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        (**self).reserve(bytes, align)
    }

    fn reserve_committed(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        (**self).reserve_committed(bytes, align)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).decommit(region, range) }
    }

    unsafe fn grow(&self, region: &mut Region, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).grow(region, bytes) }
    }

    unsafe fn lock(&self, region: &Region) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).lock(region) }
    }

    unsafe fn protect(&self, region: &Region) -> bool {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).protect(region) }
    }

    unsafe fn unprotect(&self, region: &Region) -> bool {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).unprotect(region) }
    }

    unsafe fn release(&self, region: Region) {
        // SAFETY: the caller's promise, passed on to the source it was made about.
        unsafe { (**self).release(region) }
    }
}

/// Whether memory should come in huge pages (of 2 MiB) instead of pages of 4 KiB.
///
/// Huge pages are touched for the first time several times faster (measured for the
/// design: 9 against 1.5 GiB/s) and cost the processor fewer lookups. But one byte of
/// a huge page takes all of it: a byte every 2 MiB of 64 MiB is 64 MiB of memory, where
/// small pages take 128 KiB. So they are for what is filled from end to end, and nobody
/// gets them here without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HugePages {
    /// As the system is set up, which is mostly: not unless asked. The default.
    #[default]
    Inherit,
    /// Not even where the system is set up to give them to everybody. For sparse memory.
    Never,
    /// Yes: for memory that is used from end to end, such as weights. Regions of 2 MiB and
    /// more begin at a multiple of 2 MiB. Give such memory back in multiples of 2 MiB:
    /// the kernel may make a huge page whole again of which a part was given back.
    Dense,
}

impl HugePages {
    /// Bytes of a huge page.
    pub const BYTES: usize = 2 << 20;
}

/// Pages from the operating system.
///
/// ```
/// use tenslab::memory::{HugePages, OsPages, SlabAllocator};
///
/// let dense = OsPages::new().with_huge_pages(HugePages::Dense);
/// let slab = SlabAllocator::with_pages(2 << 20, 64, dense)?;
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OsPages {
    huge: HugePages,
}

impl OsPages {
    /// Pages of the size that the system gives by itself.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            huge: HugePages::Inherit,
        }
    }

    /// The same with another policy for huge pages.
    #[must_use]
    pub const fn with_huge_pages(mut self, policy: HugePages) -> Self {
        self.huge = policy;
        self
    }

    /// The policy for huge pages.
    #[must_use]
    pub const fn huge_pages(&self) -> HugePages {
        self.huge
    }
}

/// The alignment of a range: `align`, and at least a page.
#[track_caller]
fn at_least_a_page(align: usize, page: usize) -> usize {
    // Also for soundness: what is cut off a mapping is computed from it.
    assert!(
        align.is_power_of_two(),
        "an alignment has to be a power of two"
    );
    align.max(page)
}

/// `bytes` rounded up to a multiple of `unit`, at least one. Refuses what has no room
/// for the alignment, so that no sum of the two overflows.
fn round_up(bytes: usize, unit: usize, align: usize) -> Result<usize, AllocError> {
    bytes
        .max(1)
        .checked_next_multiple_of(unit)
        .filter(|&rounded| rounded <= isize::MAX as usize - (align - 1))
        .ok_or(AllocError::SizeOverflow { bytes, align })
}

/// How many bytes of the pages that `bytes` lies in are in memory now, asked of the
/// kernel. `None` where the system does not say.
///
/// Cost: one system call for each 4 MiB, no heap block, and no page is touched. Pages
/// that were only ever read count, though they share one page of zeros.
#[must_use]
pub fn resident_bytes(bytes: &[u8]) -> Option<usize> {
    // An empty buffer points nowhere, and there the kernel knows no page.
    if bytes.is_empty() {
        return Some(0);
    }
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    return os::resident_bytes(bytes.as_ptr(), bytes.len());
    #[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
    return {
        let _ = bytes;
        None
    };
}

/// [`resident_bytes`] of a whole region, committed or not.
pub(super) fn resident_region(region: &Region) -> Option<usize> {
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    return os::resident_bytes(region.base().as_ptr(), region.bytes());
    #[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
    return {
        let _ = region;
        None
    };
}

/// Touches all pages that `bytes` lies in, on this thread.
pub(super) fn populate_range(bytes: &mut [u8]) -> Result<(), AllocError> {
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    if let Some(outcome) = os::populate(bytes) {
        return outcome;
    }
    let page = OsPages::new().page_bytes();
    // The first byte, and then the first byte of each page.
    let mut at = 0;
    while let Some(byte) = bytes.get_mut(at) {
        *byte = std::hint::black_box(*byte);
        at += page - (std::ptr::from_mut(byte).addr() & (page - 1));
    }
    Ok(())
}

// SAFETY: the heap source keeps the contract.
#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
unsafe impl PageSource for OsPages {
    fn page_bytes(&self) -> usize {
        HeapPages.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        HeapPages.reserve(bytes, align)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise; our regions are the heap source's.
        unsafe { HeapPages.commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise; our regions are the heap source's.
        unsafe { HeapPages.decommit(region, range) }
    }

    unsafe fn release(&self, region: Region) {
        // SAFETY: the caller's promise; our regions are the heap source's.
        unsafe { HeapPages.release(region) }
    }
}
