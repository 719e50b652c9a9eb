//! For AddressSanitizer, to which the region is one live allocation: the bytes of a block
//! that nobody uses are nobody's. In every other build there is nothing here.

use std::ptr::NonNull;

use crate::kv::RegionLayout;
use crate::memory::poison::{poison, unpoison};

/// Where the blocks lie.
#[derive(Debug)]
pub(in crate::kv) struct Shadow {
    region: NonNull<u8>,
    layout: RegionLayout,
}

// SAFETY: nothing is read or written through the pointer; places behind it are named to the
// sanitizer.
unsafe impl Send for Shadow {}

impl Shadow {
    /// # Safety
    /// A region of that layout begins there, and outlives this but for the last
    /// unpoisoning, which the cache does.
    pub(in crate::kv) const unsafe fn new(region: NonNull<u8>, layout: RegionLayout) -> Self {
        Self { region, layout }
    }

    /// The block is somebody's from now on.
    pub(super) fn lend(&self, block: u32) {
        self.mark(block, unpoison);
    }

    /// The block is nobody's from now on.
    pub(super) fn take_back(&self, block: u32) {
        self.mark(block, poison);
    }

    fn mark(&self, block: u32, mark: unsafe fn(NonNull<u8>, usize)) {
        if !cfg!(tenslab_asan) {
            return;
        }
        for piece in self.layout.block_pieces(block as usize) {
            let start = self.region.as_ptr().wrapping_add(piece.start);
            if let Some(start) = NonNull::new(start) {
                // SAFETY: the piece is mapped (`new`) and of this block alone; under the lock,
                // and while nobody uses the block, nobody touches it.
                unsafe { mark(start, piece.len()) };
            }
        }
    }
}
