//! [`PageSource`]: where address ranges come from.
//!
//! ```text
//!   reserve ──▶ Region: addresses, no memory
//!   commit  ──▶ zero bytes that may be touched; pages come with the first touch
//!   decommit ─▶ the pages go back; commit again before the next touch
//!   release ──▶ the addresses go back
//! ```
//!
//! [`OsPages`] asks the kernel. Where there is no `mmap` (or under
//! `cfg(tenslab_portable)`) it takes the range from the heap instead; the
//! contract is the same, only that committing costs nothing and giving pages
//! back gives nothing.

use std::ops::Range;
use std::ptr::NonNull;

use super::AllocError;

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
///   where it was not committed since the region was reserved. What was decommitted
///   is initialised, but may be anything.
/// - `page_bytes` is a power of two and never changes.
pub unsafe trait PageSource: Send + Sync {
    /// Ranges are multiples of this.
    fn page_bytes(&self) -> usize;

    /// Addresses for at least `bytes` bytes, at a multiple of `align`.
    ///
    /// # Errors
    /// [`AllocError`] with the size asked for.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError>;

    /// Makes a range of the region usable. Its ends are multiples of the page size.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the size asked for; the range is as before.
    ///
    /// # Safety
    /// The region came from `reserve` of this source and is not given back. (Anybody
    /// can write down a [`Region`]; this would make pages of somebody else writable.)
    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError>;

    /// Gives the memory of a range back, the addresses stay. Returns the bytes given back.
    ///
    /// # Safety
    /// The range is of this region, its ends are multiples of the page size, and
    /// nobody uses its bytes until they are committed again.
    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> usize;

    /// Gives the region back.
    ///
    /// # Safety
    /// The region came from `reserve` of this source, is given back once, and nobody
    /// uses it any more.
    unsafe fn release(&self, region: Region);
}

/// Pages from the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsPages;

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

#[cfg(all(unix, not(tenslab_portable)))]
mod os {
    use super::{
        AllocError, NonNull, OsPages, PageSource, Range, Region, at_least_a_page, round_up,
    };
    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

    /// An anonymous private mapping of `bytes` bytes.
    fn map(
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: without a fixed address the kernel picks a range that is free, so
        // no existing memory is touched.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::PRIVATE | flags,
            )
        };
        base.ok()
            .and_then(|base| NonNull::new(base.cast()))
            .ok_or(AllocError::OutOfMemory { bytes })
    }

    /// # Safety
    /// The range is of our own mapping and nobody uses it any more.
    unsafe fn unmap(base: *mut u8, bytes: usize) {
        if bytes == 0 {
            return;
        }
        // SAFETY: the range is of our own mapping and unused (the caller's promise).
        if unsafe { rustix::mm::munmap(base.cast(), bytes) }.is_ok() {
            return;
        }
        // The kernel joins neighbours to one mapping, and taking a piece out of its middle
        // makes two. Where the process may have no more of them, the addresses are leaked,
        // which is sound; the pages go back.
        // SAFETY: still ours and unused, so the contents may go.
        let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, Advice::LinuxDontNeed) };
    }

    impl OsPages {
        /// A mapping at a multiple of `align`: a larger one with its ends cut off,
        /// where the page alignment does not do.
        fn map_aligned(
            self,
            bytes: usize,
            align: usize,
            protection: ProtFlags,
            flags: MapFlags,
        ) -> Result<Region, AllocError> {
            let page = self.page_bytes();
            let align = at_least_a_page(align, page);
            let bytes = round_up(bytes, page, align)?;
            if align == page {
                return Ok(Region::new(map(bytes, protection, flags)?, bytes, align));
            }
            let wide = bytes + (align - page);
            let base = map(wide, protection, flags)?.as_ptr();
            let before = base.addr().wrapping_neg() & (align - 1);
            let after = wide - before - bytes;
            // SAFETY: `before + bytes + after == wide`, the length of the mapping.
            let start = unsafe { base.add(before) };
            // SAFETY: `before + bytes <= wide`: inside the mapping, or one past its end.
            let end = unsafe { start.add(bytes) };
            // SAFETY: the part in front of what is handed out; nobody has it.
            unsafe { unmap(base, before) };
            // SAFETY: the part behind it.
            unsafe { unmap(end, after) };
            NonNull::new(start)
                .map(|start| Region::new(start, bytes, align))
                .ok_or(AllocError::OutOfMemory { bytes })
        }

        /// A region that is committed as a whole, in one system call.
        ///
        /// # Errors
        /// [`AllocError`] with the size asked for.
        pub(crate) fn reserve_committed(
            self,
            bytes: usize,
            align: usize,
        ) -> Result<Region, AllocError> {
            // Not NORESERVE: what the system cannot have is refused here and now.
            self.map_aligned(
                bytes,
                align,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::empty(),
            )
        }
    }

    // SAFETY: an anonymous mapping is nobody else's until it is unmapped and does not
    // move; it reads as zeros, also after MADV_DONTNEED; the page size is the kernel's.
    unsafe impl PageSource for OsPages {
        fn page_bytes(&self) -> usize {
            rustix::param::page_size()
        }

        fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
            self.map_aligned(bytes, align, ProtFlags::empty(), MapFlags::NORESERVE)
        }

        unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
            let bytes = range.len();
            if range.start > range.end || range.end > region.bytes() {
                return Err(AllocError::OutOfMemory { bytes: range.end });
            }
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: the range was checked to be inside the region, which is a mapping of
            // ours (the caller's promise).
            let start = unsafe { region.base().add(range.start) };
            // SAFETY: pages of our own mapping (the caller's promise) become readable and
            // writable; nothing that could be used before becomes unusable.
            unsafe {
                rustix::mm::mprotect(
                    start.as_ptr().cast(),
                    bytes,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )
            }
            .map_err(|_| AllocError::OutOfMemory { bytes })
        }

        unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> usize {
            let bytes = range.len();
            // SAFETY: the range is inside the region (the caller's promise).
            let start = unsafe { region.base().add(range.start) };
            // SAFETY: nobody uses these pages of our own mapping (the caller's
            // promise), so their contents may go.
            let given =
                unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
            if given.is_ok() { bytes } else { 0 }
        }

        unsafe fn release(&self, region: Region) {
            // SAFETY: the whole region, once, and nobody uses it (the caller's promise).
            unsafe { unmap(region.base().as_ptr(), region.bytes()) };
        }
    }
}

#[cfg(not(all(unix, not(tenslab_portable))))]
mod os {
    use super::{
        AllocError, NonNull, OsPages, PageSource, Range, Region, at_least_a_page, round_up,
    };
    use std::alloc::Layout;

    /// What stands in for a page: ranges are multiples of it.
    const PAGE: usize = 4096;

    fn layout(bytes: usize, align: usize) -> Result<Layout, AllocError> {
        Layout::from_size_align(bytes, align).map_err(|_| AllocError::SizeOverflow { bytes, align })
    }

    impl OsPages {
        /// A region that is committed as a whole.
        ///
        /// # Errors
        /// [`AllocError`] with the size asked for.
        pub(crate) fn reserve_committed(
            self,
            bytes: usize,
            align: usize,
        ) -> Result<Region, AllocError> {
            self.reserve(bytes, align)
        }
    }

    // SAFETY: a heap allocation is nobody else's until it is freed and does not move;
    // `alloc_zeroed` makes it zero, and nothing that was decommitted is promised to be.
    unsafe impl PageSource for OsPages {
        fn page_bytes(&self) -> usize {
            PAGE
        }

        fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
            let align = at_least_a_page(align, PAGE);
            let bytes = round_up(bytes, PAGE, align)?;
            let layout = layout(bytes, align)?;
            // SAFETY: `round_up` gives at least one page, so the size is not 0.
            let base = unsafe { std::alloc::alloc_zeroed(layout) };
            NonNull::new(base)
                .map(|base| Region::new(base, bytes, align))
                .ok_or(AllocError::OutOfMemory { bytes })
        }

        unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
            if range.start > range.end || range.end > region.bytes() {
                return Err(AllocError::OutOfMemory { bytes: range.end });
            }
            Ok(())
        }

        unsafe fn decommit(&self, _region: &Region, _range: Range<usize>) -> usize {
            0
        }

        unsafe fn release(&self, region: Region) {
            let Ok(layout) = layout(region.bytes(), region.align()) else {
                return;
            };
            // SAFETY: `reserve` allocated it with this layout, and it is given back
            // once (the caller's promise).
            unsafe { std::alloc::dealloc(region.base().as_ptr(), layout) };
        }
    }
}
