use std::fmt;

use crate::types::Element;

use super::cache::{KvCache, Shared};
use super::layout::Part;
use super::{KvError, Plane, Step};

/// The name under which prefixes are shared: sequences of different namespaces
/// never share blocks, whatever their tokens.
///
/// There is one so far, the [default](Namespace::default). What will make others
/// (model, adapter, salt) comes with the prefix index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Namespace(());

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
/// Owns a handle of its cache and the blocks in its table. Lends committed tokens
/// for reading; new ones are written through a [`Step`], which borrows it mutably.
/// `Send` and `Sync`. Dropping it gives its blocks back, the last one first, under
/// one short lock.
pub struct Sequence {
    cache: KvCache,
    slot: u32,
    /// Blocks in the table: the ledger's count for this slot.
    held: u32,
    /// Committed tokens.
    len: usize,
}

impl Sequence {
    /// `slot` is open in the cache's ledger, and nobody else's.
    pub(super) fn new(cache: KvCache, slot: u32, held: u32) -> Self {
        Self {
            cache,
            slot,
            held,
            len: 0,
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
    /// token to append is the one behind them. Always 0 until there is a prefix index.
    #[must_use]
    pub fn hit_tokens(&self) -> usize {
        0
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
        (0..self.held as usize).map(|index| BlockId(self.shared().rows.get(self.slot, index)))
    }

    /// Begins to append `tokens`: slots for them, to be written layer by layer.
    ///
    /// Takes more blocks if the reserved ones do not suffice. Takes the lock only
    /// then; 0 heap blocks.
    ///
    /// # Errors
    /// All or nothing: the sequence is as before. [`KvError::EmptyStep`] for no tokens,
    /// [`KvError::SequenceTooLong`] if the table cannot hold them,
    /// [`KvError::OutOfBlocks`] with the numbers if too few blocks are free.
    pub fn append(&mut self, tokens: &[u32]) -> Result<Step<'_>, KvError> {
        if tokens.is_empty() {
            return Err(KvError::EmptyStep);
        }
        let wanted = self.len.saturating_add(tokens.len());
        let blocks = self.shared().table_blocks(wanted)?;
        let held_before = self.held;
        if let Some(more) = blocks.checked_sub(held_before).filter(|&more| more > 0) {
            self.shared().take(self.slot, held_before, more)?;
            self.held = blocks;
        }
        Ok(Step::new(self, tokens.len(), held_before))
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
    /// As [`keys`](Self::keys).
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
    /// As [`keys`](Self::keys) and [`Plane::head`].
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
        let shape = spec.block_layout().part(part);
        let first = self.plane_ptr(layer, part, block).cast::<T>();
        // SAFETY:
        // - one allocation, in bounds: the table names blocks of this region, and a plane
        //   ends inside its block (`BlockLayout::new` measured both); `layer` was checked
        //   above, and `block` is in the table because `len` tokens are;
        // - aligned: the region and its blocks start at a multiple of 64, and every plane
        //   at a multiple of the dtype's size, which is `T`'s by `Element`'s contract and a
        //   multiple of its alignment;
        // - initialised: a `Buffer`'s bytes always are, and `T` takes every bit pattern;
        // - not written while the slice lives: the block is in no other table, and this
        //   sequence writes it only through a `&mut` of itself, which `&self` excludes;
        // - what earlier holders of the block wrote happened before: they gave it back,
        //   and this sequence took it, under the ledger's lock;
        // - at most `isize::MAX` bytes: the region is.
        let slots = unsafe { std::slice::from_raw_parts(first, shape.elements()) };
        Ok(Plane::new(slots, shape, spec.layout(), tokens))
    }

    /// The address of one plane of the table's block `block`.
    #[inline]
    pub(super) fn plane_ptr(&self, layer: usize, part: Part, block: usize) -> *mut u8 {
        debug_assert!(
            block < self.held as usize,
            "block {block} of {} held",
            self.held
        );
        let shared = self.shared();
        shared.plane_ptr(shared.rows.get(self.slot, block), layer, part)
    }

    /// Makes the `tokens` slots behind the committed ones committed.
    pub(super) fn commit(&mut self, tokens: usize) {
        self.len += tokens;
        self.shared().commit(self.slot, tokens);
    }

    /// Gives back the blocks behind the first `keep`, if there are any.
    pub(super) fn give_back_tail(&mut self, keep: u32) {
        if self.held > keep {
            self.shared().give_back_tail(self.slot, self.held, keep);
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
    fn drop(&mut self) {
        self.shared().close(self.slot, self.held);
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
