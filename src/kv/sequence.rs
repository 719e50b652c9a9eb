use std::fmt;

use crate::tensor::Tensor;
use crate::types::Element;

use super::cache::KvCache;
use super::layout::Part;
use super::shared::Shared;
use super::{KvError, Plane, Step};

/// The number of a block in its cache's region.
///
/// For looking at (logs, tests): no call takes one, so an id cannot meet another
/// cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(u32);

impl BlockId {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One sequence's tokens in a [`KvCache`], from [`KvCache::acquire`].
///
/// Owns a handle of its cache and uses the blocks in its table, some of them together with
/// other sequences. Lends committed tokens for reading; new ones are written through a
/// [`Step`], which borrows it mutably.
/// `Send` and `Sync`. Dropping it gives its blocks back, the last one first, under
/// one short lock: those that are registered stay findable until their place is needed.
pub struct Sequence {
    cache: KvCache,
    slot: u32,
    /// Blocks in the table: the ledger's count for this slot.
    held: u32,
    /// Committed tokens.
    len: usize,
    /// Of those, the ones that it began with.
    hit_tokens: usize,
    /// Is there a step, which may be writing the last block? One that was leaked counts until
    /// the sequence is changed again.
    in_step: bool,
}

impl Sequence {
    /// `slot` is open in the cache's ledger, and nobody else's; its table holds `held` blocks
    /// and `hit_tokens` committed tokens.
    #[inline]
    pub(super) fn new(cache: KvCache, slot: u32, held: u32, hit_tokens: usize) -> Self {
        Self {
            cache,
            slot,
            held,
            len: hit_tokens,
            hit_tokens,
            in_step: false,
        }
    }

    /// The cache that holds it.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Committed tokens.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there no committed token?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of the prompt that [`KvCache::acquire`] found in the cache: the first
    /// token to append is the one behind them. Of a fork, the tokens that it began with.
    #[must_use]
    pub fn hit_tokens(&self) -> usize {
        self.hit_tokens
    }

    /// Tokens that fit into the blocks it holds.
    #[must_use]
    pub fn reserved_tokens(&self) -> usize {
        self.held as usize * self.shared().spec.block_tokens()
    }

    /// Blocks that hold committed tokens.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.shared().spec.blocks_for(self.len)
    }

    /// Committed tokens in block `block`: `block_tokens` in all but the last one, and
    /// 0 behind it.
    #[must_use]
    #[inline]
    pub fn block_filled(&self, block: usize) -> usize {
        filled(self.len, block, self.shared().spec.block_tokens())
    }

    /// The blocks it holds, in token order: those with tokens and then those that
    /// are reserved.
    pub fn block_ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        (0..self.held as usize).map(|index| self.block_id(index))
    }

    /// The block in entry `index` of its table, of those that it holds.
    #[inline]
    pub(super) fn block_id(&self, index: usize) -> BlockId {
        BlockId(self.shared().rows.get(self.slot, index))
    }

    /// Begins to append `tokens`: slots for them, to be written layer by layer. A long prompt
    /// may be appended in pieces of any size.
    ///
    /// Takes more blocks if the reserved ones do not suffice. A partly filled last block that
    /// others need too (after a fork, a truncation) is exchanged for a copy of its own first,
    /// and stays exchanged if the step is rolled back.
    ///
    /// `tokens` are what the index will know the blocks by, so they must be what the keys
    /// and values are computed from.
    ///
    /// Cost: the lock once; 0 heap blocks, as for [`acquire`](KvCache::acquire). Where a block is
    /// copied, the bytes of its tokens and the lock once more.
    ///
    /// # Errors
    /// All or nothing: the sequence is as before. [`KvError::EmptyStep`] for no tokens,
    /// [`KvError::SequenceTooLong`] if the table cannot hold them,
    /// [`KvError::OutOfBlocks`] with the numbers if too few blocks are free or evictable,
    /// [`KvError::Alloc`] if memory that was [given back](KvCache::relieve) cannot be had again.
    // Inlined, and its work not: so the step is made where it is to be, and not moved there out
    // of a `Result` in wide pieces that wait for the narrow ones it was written in.
    #[inline]
    pub fn append(&mut self, tokens: &[u32]) -> Result<Step<'_>, KvError> {
        let held_before = self.held;
        self.make_room(tokens)?;
        Ok(Step::new(self, tokens.len(), held_before))
    }

    /// Holds blocks for `tokens` behind its own ones, which are noted there.
    #[inline(never)]
    fn make_room(&mut self, tokens: &[u32]) -> Result<(), KvError> {
        if tokens.is_empty() {
            return Err(KvError::EmptyStep);
        }
        let wanted = self.len.saturating_add(tokens.len());
        let blocks = self.shared().table_blocks(wanted)?.max(self.held);
        (self.shared()).grow(self.slot, tokens, self.held, blocks)?;
        self.held = blocks;
        self.in_step = true;
        Ok(())
    }

    /// Shortens the sequence to its first `len` tokens, and gives back the blocks behind
    /// them, the reserved ones too. What was registered stays findable.
    ///
    /// Takes the lock once; 0 heap blocks.
    ///
    /// # Errors
    /// [`KvError::NotThatLong`] if it has fewer tokens; nothing is changed.
    pub fn truncate(&mut self, len: usize) -> Result<(), KvError> {
        if len > self.len {
            return Err(KvError::NotThatLong {
                asked: len,
                tokens: self.len,
            });
        }
        self.held = self.shared().truncate(self.slot, len);
        self.len = len;
        self.in_step = false; // it was leaked
        Ok(())
    }

    /// Another sequence with the same committed tokens, in the same blocks. Whichever of the
    /// two appends first gets a copy of the partly filled last block; all full ones stay
    /// shared. Reserved blocks are not shared and not reserved for the fork.
    ///
    /// Cost: the lock once, and a write for each block of the table; 0 heap blocks; no payload
    /// is touched.
    ///
    /// # Errors
    /// [`KvError::OutOfSequences`] if `max_sequences` live, and [`KvError::StepOpen`] of a
    /// sequence that a [`Step`] [lends](Step::committed): it writes the last block in place.
    pub fn fork(&self) -> Result<Self, KvError> {
        if self.in_step {
            return Err(KvError::StepOpen);
        }
        let slot = self.shared().fork(self.slot)?;
        let held = self.block_count();
        Ok(Self {
            cache: self.cache.clone(),
            slot,
            held: u32::try_from(held).unwrap_or(u32::MAX),
            len: self.len,
            hit_tokens: self.len,
            in_step: false,
        })
    }

    /// The committed keys of `layer` in the full block `block`, as a tensor of
    /// `[heads, block_tokens, key_dim]` (HND) or `[block_tokens, heads, key_dim]` (NHD).
    ///
    /// The tensor shares the block's bytes, which are frozen: it refuses to be written. It
    /// counts as a user of the block, and may outlive the sequence and the cache; until it and
    /// all views of it are dropped the block is not evicted.
    ///
    /// Cost: the lock once and one heap block, and the lock once when the last view goes.
    ///
    /// # Errors
    /// [`KvError::NoSuchLayer`], [`KvError::NoSuchBlock`] for a block that is not full, and
    /// [`KvError::NotShared`] if the cache does not [share
    /// prefixes](super::KvOptions::with_prefix_caching), so that no block is ever finished.
    pub fn keys_tensor(&self, layer: usize, block: usize) -> Result<Tensor, KvError> {
        self.block_tensor(layer, Part::Keys, block)
    }

    /// The committed values of `layer` in the full block `block`, as a tensor.
    ///
    /// # Errors
    /// As [`keys_tensor`](Self::keys_tensor).
    pub fn values_tensor(&self, layer: usize, block: usize) -> Result<Tensor, KvError> {
        self.block_tensor(layer, Part::Values, block)
    }

    fn block_tensor(&self, layer: usize, part: Part, block: usize) -> Result<Tensor, KvError> {
        let spec = &self.shared().spec;
        if layer >= spec.layers() {
            let layers = spec.layers();
            return Err(KvError::NoSuchLayer { layer, layers });
        }
        let full = spec.tokens().full(self.len);
        if block >= full {
            let blocks = full;
            return Err(KvError::NoSuchBlock { block, blocks });
        }
        if !self.cache.options().prefix_caching() {
            return Err(KvError::NotShared);
        }
        let block = self.shared().rows.get(self.slot, block);
        self.cache.lend(block, layer, part)
    }

    /// The committed keys of `layer` in block `block` (0 is the sequence's first).
    ///
    /// # Errors
    /// [`KvError::NoSuchLayer`], [`KvError::NoSuchBlock`], or
    /// [`KvError::DTypeMismatch`] if `T` is not the cache's dtype.
    #[inline]
    pub fn keys<T: Element>(&self, layer: usize, block: usize) -> Result<Plane<'_, T>, KvError> {
        self.plane(layer, Part::Keys, block, self.len)
    }

    /// The committed values of `layer` in block `block`.
    ///
    /// # Errors
    /// As [`keys`](Self::keys); [`KvError::NoValues`] from a cache of one component.
    #[inline]
    pub fn values<T: Element>(&self, layer: usize, block: usize) -> Result<Plane<'_, T>, KvError> {
        self.plane(layer, Part::Values, block, self.len)
    }

    /// The committed keys of one head: `[block_filled(block), key_dim]`.
    ///
    /// # Errors
    /// As [`keys`](Self::keys) and [`Plane::head`].
    #[inline]
    pub fn keys_head<T: Element>(
        &self,
        layer: usize,
        block: usize,
        head: usize,
    ) -> Result<&[T], KvError> {
        self.keys(layer, block)?.head(head)
    }

    /// The committed values of one head: `[block_filled(block), value_dim]`.
    ///
    /// # Errors
    /// As [`values`](Self::values) and [`Plane::head`].
    #[inline]
    pub fn values_head<T: Element>(
        &self,
        layer: usize,
        block: usize,
        head: usize,
    ) -> Result<&[T], KvError> {
        self.values(layer, block)?.head(head)
    }

    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        self.cache.shared()
    }

    /// Of one plane, the slots of the sequence's first `len` tokens. `len` is at most
    /// what the table holds: the committed tokens, or with those of the step.
    #[inline]
    pub(super) fn plane<T: Element>(
        &self,
        layer: usize,
        part: Part,
        block: usize,
        len: usize,
    ) -> Result<Plane<'_, T>, KvError> {
        let spec = &self.shared().spec;
        if T::DTYPE != spec.dtype() {
            return Err(KvError::DTypeMismatch {
                cache: spec.dtype(),
                asked: T::DTYPE,
            });
        }
        if layer >= spec.layers() {
            return Err(KvError::NoSuchLayer {
                layer,
                layers: spec.layers(),
            });
        }
        let tokens = filled(len, block, spec.block_tokens());
        if tokens == 0 {
            return Err(KvError::NoSuchBlock {
                block,
                blocks: spec.blocks_for(len),
            });
        }
        let shape = spec.block_layout().stored(part)?;
        let at = self.plane_at(layer, part, block);
        let first = self.shared().region.as_ptr().wrapping_add(at).cast::<T>();
        (self.shared().payload).read(|| self.shared().rows.get(self.slot, block));
        // SAFETY:
        // - one allocation, in bounds: the table names blocks of this region, and a plane
        //   ends inside its block's piece and a piece inside the region (`BlockLayout::new`
        //   measured the one, `RegionLayout::new` the other); `layer` was checked above, and
        //   `block` is in the table because `len` tokens are;
        // - aligned: the region and its pieces start at a multiple of 64, and every plane
        //   of a piece at a multiple of the dtype's size, which is `T`'s by `Element`'s
        //   contract and a multiple of its alignment;
        // - initialised: a `Buffer`'s bytes always are, and `T` takes every bit pattern;
        // - not written while the slice lives: a block that several tables have, or that is
        //   registered, is written by nobody (the ledger's `grow` decides that under its
        //   lock); one that only this table has is written only through a `&mut` of this
        //   sequence, which `&self` excludes, and no table comes to have it while a step of
        //   that `&mut` lives (`fork` refuses). No two blocks share a byte, in whatever order
        //   they lie (the region's test);
        // - what others wrote to the block happened before: they committed it or gave it back,
        //   and this sequence found it or took it, under the ledger's lock;
        // - at most `isize::MAX` bytes: the region is.
        let slots = unsafe { std::slice::from_raw_parts(first, shape.elements()) };
        Ok(Plane::new(slots, shape, spec.layout(), tokens))
    }

    /// Tells loom that the table's block `block` is to be written.
    #[inline]
    pub(super) fn tell_write(&self, block: usize) {
        (self.shared().payload).write(|| self.shared().rows.get(self.slot, block));
    }

    /// Where one plane of the table's block `block` lies: bytes from the region's start.
    #[inline]
    pub(super) fn plane_at(&self, layer: usize, part: Part, block: usize) -> usize {
        debug_assert!(
            block < self.held as usize,
            "block {block} of {} held",
            self.held
        );
        let shared = self.shared();
        let block = shared.rows.get(self.slot, block);
        shared.layout.plane_at(block as usize, layer, part)
    }

    /// Makes the `tokens` slots behind the committed ones committed.
    pub(super) fn commit(&mut self, tokens: usize) {
        // First, for it does nothing where the cache's hash panics.
        self.shared().commit(self.slot, tokens);
        self.len += tokens;
    }

    /// Ends a step: gives back the blocks behind the first `keep`, if there are any.
    #[inline]
    pub(super) fn end_step(&mut self, keep: u32) {
        self.in_step = false;
        if self.held > keep {
            self.shared().give_back_tail(self.slot, keep);
            self.held = keep;
        }
    }
}

/// Tokens in block `block` of a sequence of `len` tokens.
#[inline]
pub(super) fn filled(len: usize, block: usize, block_tokens: usize) -> usize {
    // A block number so large that this saturates lies behind every sequence.
    len.saturating_sub(block.saturating_mul(block_tokens))
        .min(block_tokens)
}

impl Drop for Sequence {
    #[inline]
    fn drop(&mut self) {
        self.shared().close(self.slot);
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("tokens", &self.len)
            .field("blocks", &self.held)
            .finish_non_exhaustive()
    }
}
