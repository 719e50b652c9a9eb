//! The way of a block's tensor back: an allocator that only takes back.

use crate::memory::{AllocError, Allocator, Block, Request};
use crate::mutant::{self, Mutant};
use crate::sync::Arc;
use crate::types::Device;

use super::shared::Shared;

/// Takes planes of blocks back: the cookie is the block's number.
pub(super) struct Lender(Arc<Shared>);

impl Lender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

// SAFETY: it hands out no block of its own. What is adopted for it (`KvCache::lend`) stays
// readable until it comes back, because the block is held and the region lives.
unsafe impl Allocator for Lender {
    fn allocate_block(&self, _request: Request) -> Result<Block, AllocError> {
        Err(AllocError::Exhausted { blocks: 0 })
    }

    unsafe fn release_block(&self, block: Block) {
        // The number that `KvCache::lend` put there.
        #[allow(clippy::cast_possible_truncation, reason = "it was a u32")]
        let id = block.cookie() as u32;
        self.0.payload.read(|| id); // until now
        if !mutant::is(Mutant::KvLendsUnheld) {
            self.0.release_outside(id);
        }
    }

    fn device(&self) -> Device {
        self.0.device()
    }
}
