//! A block that is out, changed where it stands: it grows, or gives a part of its pages back.

use std::ops::Range;

use super::Core;
use crate::memory::poison::unpoison;
use crate::memory::{AllocError, Block, Decommitted, PageSource};
use crate::sync::Ordering;

impl<P: PageSource> Core<P> {
    /// # Safety
    /// As [`grow_block`](crate::memory::Allocator::grow_block).
    pub(super) unsafe fn grow(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        let (len, capacity) = (block.len(), block.capacity());
        let refused = AllocError::CannotGrow { bytes, capacity };
        let Ok(piece) = u32::try_from(block.cookie()) else {
            return Err(refused); // of a class
        };
        let wanted = self.pages(bytes).filter(|_| len > 0).ok_or(refused)?;
        let more = wanted.saturating_sub(self.pages_up_to(capacity));
        if more > 0 {
            self.grow_piece(piece, more, refused)?;
        }
        let mut books = self.books();
        books.requested_bytes = books.requested_bytes.wrapping_add(bytes - len);
        drop(books);
        // SAFETY: `bytes` bytes of committed pages that are the block's.
        unsafe { unpoison(block.as_ptr(), bytes) };
        block.set_grown(bytes, capacity.max(self.bytes(wanted)));
        Ok(())
    }

    pub(super) fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        let capacity = block.capacity();
        if bytes <= capacity {
            return Some(capacity);
        }
        let of_heap = u32::try_from(block.cookie()).is_ok() && !block.is_empty();
        (of_heap).then(|| self.pages(bytes).map(|pages| self.bytes(pages)))?
    }

    /// Whole pages of a part of a block.
    fn inner_pages(&self, block: &Block, range: &Range<usize>) -> Range<usize> {
        let page = 1 << self.page_log2;
        let before = block.as_ptr().addr().get() - self.region.base().addr().get();
        let start = (before + range.start).next_multiple_of(page);
        let mut end = before + range.end;
        // Behind the last byte of a block is nobody.
        if range.end == block.len() {
            end = end.next_multiple_of(page);
        }
        start..(end / page * page).max(start)
    }

    /// # Safety
    /// As [`decommit`](crate::memory::Allocator::decommit).
    pub(super) unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        let Ok(piece) = u32::try_from(block.cookie()) else {
            return Decommitted::default(); // of a class
        };
        if block.is_empty() {
            return Decommitted::default();
        }
        let range = self.inner_pages(block, &range);
        if range.is_empty() {
            return Decommitted::default();
        }
        if self.books().heap.note_holes(piece) {
            // Relaxed: a count of them; the block itself carries the news to who takes it back.
            self.holey.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = range.len();
        // SAFETY: whole pages of a block that is out, which nobody uses (the caller's promise).
        let gone = unsafe { self.space.pages.decommit(&self.region, range) };
        gone.map_or_else(Decommitted::default, |resident_bytes| Decommitted {
            bytes,
            resident_bytes,
        })
    }

    /// # Safety
    /// As [`commit`](crate::memory::Allocator::commit).
    pub(super) unsafe fn commit(
        &self,
        block: &Block,
        range: Range<usize>,
    ) -> Result<(), AllocError> {
        if block.is_empty() || u32::try_from(block.cookie()).is_err() || range.is_empty() {
            return Ok(());
        }
        let page = 1 << self.page_log2;
        let before = block.as_ptr().addr().get() - self.region.base().addr().get();
        let pages =
            (before + range.start) / page * page..(before + range.end).next_multiple_of(page);
        // SAFETY: our own region; the pages are the block's.
        unsafe { self.space.pages.commit(&self.region, pages) }
    }
}
