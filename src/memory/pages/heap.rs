use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;

use super::{PageSource, Region, at_least_a_page, round_up};
use crate::memory::AllocError;

/// What stands in for a page: ranges are multiples of it.
const PAGE: usize = 4096;

/// Ranges from the process's global allocator, for systems without `mmap`, and for
/// profilers that see the heap only.
///
/// A region is one heap allocation that is cleared when it is reserved, so reserving costs
/// what touching costs elsewhere. Committing does nothing, decommitting gives nothing
/// back, and regions neither grow nor can be locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeapPages;

fn layout(bytes: usize, align: usize) -> Result<Layout, AllocError> {
    Layout::from_size_align(bytes, align).map_err(|_| AllocError::SizeOverflow { bytes, align })
}

// SAFETY: a heap allocation is nobody else's until it is freed and does not move;
// `alloc_zeroed` makes it zero, and nothing that was decommitted is promised to be.
unsafe impl PageSource for HeapPages {
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

    unsafe fn decommit(&self, _region: &Region, _range: Range<usize>) -> Option<usize> {
        None
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
