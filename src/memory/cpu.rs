use std::alloc::Layout;
use std::ptr::NonNull;

use super::{AllocError, Allocator, Block, OsPages, PageSource, Region, Request, SharedAllocator};
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
/// straight back.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuAllocator {
    pages: OsPages,
}

/// What the cookie says: the alignment of the range (as a power of two), and whether
/// the bytes are pages of their own.
const PAGES: u64 = 1 << 8;

impl CpuAllocator {
    /// The allocator. Every one is as good as every other.
    #[must_use]
    pub const fn new() -> Self {
        Self { pages: OsPages }
    }
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
unsafe impl Allocator for CpuAllocator {
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
        let large = if request.is_zeroed() {
            LARGE_ZEROED_BYTES
        } else {
            LARGE_BYTES
        };
        if bytes >= large {
            let region = self.pages.reserve_committed(bytes, align)?;
            let cookie = u64::from(region.align().trailing_zeros()) | PAGES;
            return Ok(Block::new(
                region.base(),
                bytes,
                region.bytes(),
                cookie,
                request.tag(),
            ));
        }
        let layout = layout(bytes, align)?;
        // SAFETY: `bytes` is not 0.
        // Zeroed also where nobody asked, so that no byte is ever uninitialised.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(AllocError::OutOfMemory { bytes })?;
        Ok(Block::new(start, bytes, bytes, align_log2, request.tag()))
    }

    unsafe fn release_block(&self, block: Block) {
        if block.capacity() == 0 {
            return;
        }
        let align = 1 << (block.cookie() & 0xff);
        if block.cookie() & PAGES != 0 {
            let region = Region::new(block.as_ptr(), block.capacity(), align);
            // SAFETY: `allocate_block` got this region from the same (stateless)
            // source, and the caller promises once and unused.
            unsafe { self.pages.release(region) };
            return;
        }
        let Ok(layout) = layout(block.capacity(), align) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        // SAFETY: the global allocator gave it out with this size and alignment, and
        // the caller promises once and unused.
        unsafe { std::alloc::dealloc(block.as_ptr().as_ptr(), layout) };
    }
}

fn layout(bytes: usize, align: usize) -> Result<Layout, AllocError> {
    Layout::from_size_align(bytes, align).map_err(|_| AllocError::SizeOverflow { bytes, align })
}
