//! [`OsPages`] on Linux. Each function is one or a few system calls and makes no heap
//! block.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use super::{HugePages, OsPages, PageSource, Region, at_least_a_page, round_up};
use crate::memory::AllocError;

/// An anonymous private mapping of `bytes` bytes.
fn map(bytes: usize, protection: ProtFlags, flags: MapFlags) -> Result<NonNull<u8>, AllocError> {
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

/// Says who may do what with a region. `false`: the kernel refused, perhaps in the middle.
///
/// # Safety
/// The region is a mapping of ours, committed, and nobody does what the protection forbids.
unsafe fn set_protection(region: &Region, protection: MprotectFlags) -> bool {
    let start = region.base().as_ptr().cast();
    // SAFETY: pages of our own mapping; what is in them stays, and nobody does what is
    // forbidden (the caller's promise).
    unsafe { rustix::mm::mprotect(start, region.bytes(), protection) }.is_ok()
}

unsafe extern "C" {
    /// Bit 0 of each byte of `pages`: is that page of the range in memory? The C library's,
    /// which std links anyway.
    fn mincore(start: *mut c_void, bytes: usize, pages: *mut u8) -> c_int;
}

/// Bytes of the pages from `start` to `start + bytes` that are in memory.
pub(super) fn resident_bytes(start: *const u8, bytes: usize) -> Option<usize> {
    /// Pages in one call: as many as a small array has bytes.
    const PAGES: usize = 1024;
    let page = rustix::param::page_size();
    let before = start.addr() & (page - 1);
    let (mut at, mut left) = (start.wrapping_sub(before), bytes.checked_add(before)?);
    let mut resident = 0;
    while left > 0 {
        let mut pages = [0_u8; PAGES];
        let step = left.min(PAGES * page);
        // SAFETY: the kernel checks the range and only answers about it; it writes one byte
        // for each of at most `PAGES` pages, which is what `pages` has.
        let answer = unsafe { mincore(at.cast_mut().cast(), step, pages.as_mut_ptr()) };
        if answer != 0 {
            return None;
        }
        let held = pages[..step.div_ceil(page)].iter();
        resident += held.filter(|&&page| page & 1 != 0).count() * page;
        at = at.wrapping_add(step);
        left -= step;
    }
    Some(resident)
}

/// Touches the pages that `bytes` lies in, in one system call. `None`: the kernel is older
/// than that call (Linux 5.14).
pub(super) fn populate(bytes: &mut [u8]) -> Option<Result<(), AllocError>> {
    let page = rustix::param::page_size();
    let before = bytes.as_mut_ptr().addr() & (page - 1);
    let start = bytes.as_mut_ptr().wrapping_sub(before);
    let len = (bytes.len() + before).next_multiple_of(page);
    if bytes.is_empty() {
        return Some(Ok(()));
    }
    // SAFETY: whole pages, each with at least one byte of a living slice, so they are mapped.
    // The advice brings them into memory and changes nothing that is in them.
    let outcome = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxPopulateWrite) };
    match outcome {
        Ok(()) => Some(Ok(())),
        Err(rustix::io::Errno::INVAL) => None,
        Err(_) => Some(Err(AllocError::OutOfMemory { bytes: bytes.len() })),
    }
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
        let mut align = at_least_a_page(align, page);
        if self.huge == HugePages::Dense && bytes >= HugePages::BYTES {
            // Otherwise up to a huge page at either end would be of small ones.
            align = align.max(HugePages::BYTES);
        }
        let bytes = round_up(bytes, page, align)?;
        if align == page {
            let region = Region::new(map(bytes, protection, flags)?, bytes, align);
            self.advise(&region);
            return Ok(region);
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
        let region = NonNull::new(start)
            .map(|start| Region::new(start, bytes, align))
            .ok_or(AllocError::OutOfMemory { bytes })?;
        self.advise(&region);
        Ok(region)
    }

    /// Tells the kernel the policy for a fresh region.
    fn advise(self, region: &Region) {
        let advice = match self.huge {
            HugePages::Inherit => return,
            HugePages::Never => Advice::LinuxNoHugepage,
            HugePages::Dense if region.bytes() < HugePages::BYTES => return,
            HugePages::Dense => Advice::LinuxHugepage,
        };
        // A kernel without huge pages refuses; its small ones do as well.
        // SAFETY: pages of our own mapping, whose contents this advice does not change.
        let _ =
            unsafe { rustix::mm::madvise(region.base().as_ptr().cast(), region.bytes(), advice) };
    }
}

// SAFETY: an anonymous mapping is nobody else's until it is unmapped and does not
// move (`grow` forbids it); it reads as zeros, also after MADV_DONTNEED and where it
// grew; the page size is the kernel's.
unsafe impl PageSource for OsPages {
    fn page_bytes(&self) -> usize {
        rustix::param::page_size()
    }

    fn reserves_freely(&self) -> bool {
        true
    }

    fn decommits_to_zero(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        self.map_aligned(bytes, align, ProtFlags::empty(), MapFlags::NORESERVE)
    }

    fn reserve_committed(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        // Not NORESERVE: what the system cannot have is refused here and now.
        self.map_aligned(
            bytes,
            align,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::empty(),
        )
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

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        let bytes = range.len();
        if bytes == 0 {
            return Some(0);
        }
        // SAFETY: the range is inside the region (the caller's promise).
        let start = unsafe { region.base().add(range.start) };
        // Asked before they go: DONTNEED does not say how many there were.
        let resident = resident_bytes(start.as_ptr(), bytes).unwrap_or(bytes);
        // SAFETY: nobody uses these pages of our own mapping (the caller's
        // promise), so their contents may go.
        let given =
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
        given.is_ok().then_some(resident)
    }

    unsafe fn grow(&self, region: &mut Region, bytes: usize) -> Result<(), AllocError> {
        let capacity = region.bytes();
        let refused = AllocError::CannotGrow { bytes, capacity };
        let wanted = round_up(bytes, self.page_bytes(), region.align()).map_err(|_| refused)?;
        if wanted <= capacity {
            return Ok(());
        }
        // SAFETY: our own mapping (the caller's promise). Without MAYMOVE it stays where it
        // is, and only grows over addresses that nobody has.
        let grown = unsafe {
            rustix::mm::mremap(
                region.base().as_ptr().cast(),
                capacity,
                wanted,
                MremapFlags::empty(),
            )
        };
        grown.map_err(|_| refused)?;
        *region = Region::new(region.base(), wanted, region.align());
        Ok(())
    }

    unsafe fn lock(&self, region: &Region) -> Result<(), AllocError> {
        let bytes = region.bytes();
        // SAFETY: the pages of our own mapping (the caller's promise); it touches them and
        // changes none.
        if unsafe { rustix::mm::mlock(region.base().as_ptr().cast(), bytes) }.is_ok() {
            return Ok(());
        }
        Err(match getrlimit(Resource::Memlock).current {
            Some(limit_bytes) => AllocError::CannotLock { bytes, limit_bytes },
            None => AllocError::OutOfMemory { bytes },
        })
    }

    unsafe fn protect(&self, region: &Region) -> bool {
        // SAFETY: pages of our own mapping, to which nobody writes (the caller's promise).
        unsafe { set_protection(region, MprotectFlags::READ) }
    }

    unsafe fn unprotect(&self, region: &Region) -> bool {
        // SAFETY: pages of our own mapping (the caller's promise).
        unsafe { set_protection(region, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    unsafe fn release(&self, region: Region) {
        // SAFETY: the whole region, once, and nobody uses it (the caller's promise).
        unsafe { unmap(region.base().as_ptr(), region.bytes()) };
    }
}
