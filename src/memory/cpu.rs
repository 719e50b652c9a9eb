//! The default, and the bottom of most stacks.

use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;

use super::poison::unspecified;
use super::{
    AllocError, Allocator, Block, Decommitted, HugePages, OsPages, PageSource, Region, Request,
    SharedAllocator,
};
use crate::sync::OnceLock;
use crate::types::Device;

/// From this size on memory comes from pages of its own and goes back to the system.
const LARGE_BYTES: usize = 1 << 20;

/// From this size on memory that has to be zero does: fresh pages are zero already,
/// while the global allocator clears what it hands out with such alignment.
const LARGE_ZEROED_BYTES: usize = 128 << 10;

/// Memory of the host: the default, and the bottom of every stack.
///
/// ```text
///   0 bytes         nowhere, aligned
///   small           the process's global allocator
///   large           pages of its own: zero, and touched by nobody until you do
/// ```
///
/// Large is 1 MiB and above, or 128 KiB where zeros are asked for. So 8 GiB of
/// zeros cost one system call and no page. Any power of two up to 1 GiB may be the
/// alignment. It is a plain value and keeps nothing: what is given back goes
/// straight back. A large block takes up less than a page more than was asked for,
/// can grow where it stands while the addresses behind it are free, and gives parts of
/// itself back in whole pages.
///
/// ```
/// use tenslab::memory::{CpuAllocator, HugePages, Lock, SharedAllocator};
///
/// // For weights: dense, and never swapped out if that can be had.
/// let allocator = CpuAllocator::new()
///     .with_huge_pages(HugePages::Dense)
///     .with_lock(Lock::BestEffort);
/// let weights = SharedAllocator::new(allocator).allocate(4 << 20, 64)?;
/// # #[cfg(all(target_os = "linux", not(tenslab_portable)))]
/// assert!(weights.as_ptr().addr() % (2 << 20) == 0);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuAllocator<P = OsPages> {
    pages: P,
    lock: Lock,
}

/// Whether memory is locked (`mlock`): in memory from the start and never swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lock {
    /// No. The default.
    #[default]
    No,
    /// If it can be had; a block that cannot be locked is handed out without.
    BestEffort,
    /// Yes; a block that cannot be locked is an error with the limit and the need.
    Required,
}

/// What the cookie says: the alignment of the range (as a power of two), whether
/// the bytes are pages of their own, and whether those are locked.
const PAGES: u64 = 1 << 8;
const LOCKED: u64 = 1 << 9;

impl CpuAllocator {
    /// The allocator. Every one is as good as every other.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_pages(OsPages::new())
    }

    /// The same with another policy for the pages of large blocks.
    #[must_use]
    pub const fn with_huge_pages(mut self, policy: HugePages) -> Self {
        self.pages = self.pages.with_huge_pages(policy);
        self
    }
}

impl<P> CpuAllocator<P> {
    /// As [`new`](CpuAllocator::new), with the pages of large blocks from somewhere else.
    pub const fn with_pages(pages: P) -> Self {
        Self {
            pages,
            lock: Lock::No,
        }
    }

    /// The same, but its blocks are locked. Every block is pages of its own then, at
    /// least one, for a page that two blocks share could be unlocked by the first that
    /// goes back.
    #[must_use]
    pub const fn with_lock(mut self, lock: Lock) -> Self {
        self.lock = lock;
        self
    }
}

impl<P: PageSource> CpuAllocator<P> {
    /// A block that is pages of its own.
    fn allocate_pages(&self, request: Request) -> Result<Block, AllocError> {
        let region = self
            .pages
            .reserve_committed(request.bytes(), request.align())?;
        let mut cookie = u64::from(region.align().trailing_zeros()) | PAGES;
        if self.lock != Lock::No {
            // SAFETY: reserved and committed from this source just now.
            match unsafe { self.pages.lock(&region) } {
                Ok(()) => cookie |= LOCKED,
                Err(_) if self.lock == Lock::BestEffort => {}
                Err(error) => {
                    // SAFETY: reserved a moment ago, and nobody has seen it.
                    unsafe { self.pages.release(region) };
                    return Err(error);
                }
            }
        }
        let (bytes, tag) = (request.bytes(), request.tag());
        Ok(Block::new(
            region.base(),
            bytes,
            region.bytes(),
            cookie,
            tag,
        ))
    }
}

/// The region that a block of pages is.
fn region(block: &Block) -> Region {
    let align = 1 << (block.cookie() & 0xff);
    Region::new(block.as_ptr(), block.capacity(), align)
}

/// The process's own [`CpuAllocator`], for whoever has no reason to make another.
///
/// It is never destroyed, so it also serves threads that end late.
#[must_use]
pub fn cpu() -> &'static SharedAllocator {
    static DEFAULT: OnceLock<SharedAllocator> = OnceLock::new();
    DEFAULT.get_or_init(|| SharedAllocator::new(CpuAllocator::new()))
}

/// The process's default allocator for a device.
///
/// # Errors
/// [`UnsupportedDevice`](AllocError::UnsupportedDevice) for all but
/// [`Device::Cpu`].
pub fn default_allocator(device: Device) -> Result<&'static SharedAllocator, AllocError> {
    match device {
        Device::Cpu => Ok(cpu()),
        Device::Cuda(_) => Err(AllocError::UnsupportedDevice { device }),
    }
}

// SAFETY: the bytes come from the global allocator (zeroed, so initialised) or are
// fresh pages, at least `bytes` of them and aligned as asked; nobody else has them
// until `release_block`. They do not depend on where the allocator value is.
unsafe impl<P: PageSource> Allocator for CpuAllocator<P> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        let align_log2 = u64::from(align.trailing_zeros());
        if bytes == 0 {
            return Ok(Block::new(
                request.dangling(),
                0,
                0,
                align_log2,
                request.tag(),
            ));
        }
        let large = match self.lock {
            Lock::No if request.is_zeroed() => LARGE_ZEROED_BYTES,
            Lock::No => LARGE_BYTES,
            Lock::BestEffort | Lock::Required => 1,
        };
        if bytes >= large {
            let block = self.allocate_pages(request)?;
            if !request.is_zeroed() {
                unspecified(block.as_ptr(), bytes);
            }
            return Ok(block);
        }
        let layout = layout(bytes, align)?;
        // SAFETY: `bytes` is not 0.
        // Zeroed also where nobody asked, so that no byte is ever uninitialised.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(AllocError::OutOfMemory { bytes })?;
        if !request.is_zeroed() {
            unspecified(start, bytes);
        }
        Ok(Block::new(start, bytes, bytes, align_log2, request.tag()))
    }

    unsafe fn release_block(&self, block: Block) {
        if block.capacity() == 0 {
            return;
        }
        if block.cookie() & PAGES != 0 {
            // SAFETY: `allocate_block` got this region from the same source, and the
            // caller promises once and unused.
            unsafe { self.pages.release(region(&block)) };
            return;
        }
        let align = 1 << (block.cookie() & 0xff);
        let Ok(layout) = layout(block.capacity(), align) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        // SAFETY: the global allocator gave it out with this size and alignment, and
        // the caller promises once and unused.
        unsafe { std::alloc::dealloc(block.as_ptr().as_ptr(), layout) };
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        let capacity = block.capacity();
        if block.cookie() & PAGES == 0 {
            // The global allocator's blocks have no room to spare, and its `realloc` moves.
            return Err(AllocError::CannotGrow { bytes, capacity });
        }
        let mut region = region(block);
        if bytes > capacity {
            // SAFETY: `allocate_block` got this region committed from the same source, and
            // it is out (the caller's promise).
            unsafe { self.pages.grow(&mut region, bytes) }?;
        }
        block.set_grown(bytes, region.bytes());
        Ok(())
    }

    /// Whole pages, as the source says that it grows by.
    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        let capacity = block.capacity();
        if bytes <= capacity || block.cookie() & PAGES == 0 {
            return Some(capacity); // beyond that a block of the global allocator never grows
        }
        bytes.checked_next_multiple_of(self.pages.page_bytes())
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        if block.cookie() & (PAGES | LOCKED) != PAGES {
            return Decommitted::default();
        }
        let page = self.pages.page_bytes();
        let start = range.start.next_multiple_of(page);
        // What is behind the last byte asked for is nobody's.
        let end = if range.end == block.len() {
            block.capacity()
        } else {
            range.end & !(page - 1)
        };
        if start >= end {
            return Decommitted::default();
        }
        // SAFETY: whole pages inside a region of this source, which begins at a page, and
        // nobody uses them meanwhile (the caller's promise). They stay readable and writable
        // by the source's contract.
        let gone = unsafe { self.pages.decommit(&region(block), start..end) };
        // Where the heap stands in for pages they stay, but by the contract nobody needs them.
        Decommitted {
            bytes: end - start,
            resident_bytes: gone.unwrap_or(0),
        }
    }

    /// Large blocks own their pages; of the others' the global allocator has the rest.
    unsafe fn protect(&self, block: &Block) -> usize {
        // SAFETY: `allocate_block` got this region committed from the same source, it is out,
        // and nobody writes to it (the caller's promise).
        if block.cookie() & PAGES != 0 && unsafe { self.pages.protect(&region(block)) } {
            return block.capacity();
        }
        0
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        // SAFETY: `allocate_block` got this region committed from the same source, and it is
        // out (the caller's promise).
        block.cookie() & PAGES == 0 || unsafe { self.pages.unprotect(&region(block)) }
    }
}

fn layout(bytes: usize, align: usize) -> Result<Layout, AllocError> {
    Layout::from_size_align(bytes, align).map_err(|_| AllocError::SizeOverflow { bytes, align })
}
