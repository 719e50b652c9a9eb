//! The raw door: blocks by id, for tables of ids that are smaller than buffers.
//!
//! ```text
//!   generation   even  nobody has an id of this block
//!                odd   the id with this generation is out
//!
//!   take         even -> odd       the taker alone has the block
//!   give back    odd  -> even      one exchange: of two that give back one id, one wins
//! ```
//!
//! A `Buffer` cannot be given back twice, so it does without; only this door pays.

use std::fmt;
use std::ptr::NonNull;

use super::super::poison::{poison, unpoison, unspecified};
use super::{AllocError, PageSource, SlabAllocator};
use crate::mutant::{self, Mutant};
use crate::sync::Ordering;

/// One taking of one block of one slab. It names the block and keeps nothing alive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId {
    slab: u32,
    number: u32,
    generation: u32,
}

impl BlockId {
    /// Which block of its slab: below [`SlabAllocator::blocks`], for tables beside it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slab,
            number,
            generation,
        } = self;
        write!(f, "block {number}.{generation} of slab {slab}")
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An id that a slab refuses. `Copy`: making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The id is another slab's.
    #[error("{id} is not of slab {slab}")]
    Foreign {
        /// The id.
        id: BlockId,
        /// The slab that was asked.
        slab: u32,
    },
    /// The block was given back, and nobody took it since through this door.
    #[error("{id} was given back already")]
    GivenBack {
        /// The id.
        id: BlockId,
    },
    /// The block was given back and taken again since.
    #[error("{id} is stale: the block is at generation {generation} now")]
    Stale {
        /// The id.
        id: BlockId,
        /// Where the block is now.
        generation: u32,
    },
}

impl<P: PageSource> SlabAllocator<P> {
    /// Takes a block by id. Its bytes are initialised to anything; all of them count as
    /// asked for.
    ///
    /// An id is as unique as a `u32` of takings of one block can make it: after 2^31 of
    /// them an id that was kept all the while would be believed.
    ///
    /// # Errors
    /// [`AllocError::Exhausted`], [`AllocError::OutOfMemory`].
    pub fn take_id(&self) -> Result<BlockId, AllocError> {
        let (number, _) = self.take(self.block_bytes())?;
        let (Some(start), Some(word)) = (self.start(number), self.table.generation(number)) else {
            unreachable!("a block that is out has a row and a table")
        };
        // SAFETY: the bytes of a committed block.
        unsafe { unpoison(start, self.block_bytes()) };
        unspecified(start, self.block_bytes());
        // Relaxed, and no exchange: while nobody has an id only the taker writes, and the
        // last give-back happens before the taking, as the block went from one to the other.
        let generation = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(generation, Ordering::Relaxed);
        Ok(BlockId {
            slab: self.name,
            number,
            generation,
        })
    }

    /// Takes the block of an id back. Of several that try it at once, one succeeds.
    ///
    /// # Errors
    /// [`BlockError`] for an id of another slab, and for one that was given back before.
    /// Nothing is changed then.
    pub fn give_back_id(&self, id: BlockId) -> Result<(), BlockError> {
        let word = self.word(id)?;
        let after = id.generation.wrapping_add(1);
        // Relaxed: only who wins matters. The block's bytes are published by where its
        // number goes next, and those who lose read nothing.
        if mutant::is(Mutant::GiveBackTwoSteps) {
            let now = word.load(Ordering::Relaxed);
            if now != id.generation {
                return Err(refused(id, now));
            }
            word.store(after, Ordering::Relaxed);
        } else {
            word.compare_exchange(id.generation, after, Ordering::Relaxed, Ordering::Relaxed)
                .map_err(|now| refused(id, now))?;
        }
        if let Some(start) = self.start(id.number) {
            // SAFETY: the block is committed and out, and from here on nobody uses it:
            // whoever goes on through an old pointer breaks `as_ptr`'s rule.
            unsafe { poison(start, self.block_bytes()) };
        }
        self.put(id.number, self.block_bytes());
        Ok(())
    }

    /// The first byte of a block, [`block_bytes`](Self::block_bytes) long. It may be used
    /// until its id is given back, and by whom is for its users to settle.
    ///
    /// # Errors
    /// As [`give_back_id`](Self::give_back_id).
    pub fn as_ptr(&self, id: BlockId) -> Result<NonNull<u8>, BlockError> {
        // Relaxed: a check; who may use the bytes does not follow from it.
        let now = self.word(id)?.load(Ordering::Relaxed);
        match self.start(id.number) {
            Some(start) if now == id.generation => Ok(start),
            // Its row went a moment ago, so it was given back meanwhile.
            None => Err(BlockError::GivenBack { id }),
            Some(_) => Err(refused(id, now)),
        }
    }

    fn word(&self, id: BlockId) -> Result<&crate::sync::atomic::AtomicU32, BlockError> {
        // Names wrap after 2^32 slabs, so an id of another one may have this one's name; no number
        // goes on that is not a block's.
        if id.slab != self.name || id.number >= self.blocks() {
            let slab = self.name;
            return Err(BlockError::Foreign { id, slab });
        }
        let word = self.table.generation(id.number);
        word.ok_or(BlockError::GivenBack { id })
    }
}

#[cold]
fn refused(id: BlockId, generation: u32) -> BlockError {
    if generation == id.generation.wrapping_add(1) {
        BlockError::GivenBack { id }
    } else {
        BlockError::Stale { id, generation }
    }
}
