use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use crate::memory::poison::{poison, unpoison};
use crate::memory::{Buffer, SharedAllocator, Tag};
use crate::sync::{Arc, Mutex};

use super::layout::{BLOCK_ALIGN, Part};
use super::ledger::{Ledger, TableRows};
use super::{KvError, KvSpec, Namespace, Sequence};

/// How much a [`KvCache`] holds. All of it is allocated when the cache is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLimits {
    /// Blocks of the region.
    pub blocks: usize,
    /// Sequences that may live at one time.
    pub max_sequences: usize,
    /// Blocks of one sequence's table: its longest context.
    pub max_blocks_per_sequence: usize,
}

/// A cache's occupancy at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvStats {
    /// Blocks of the region.
    pub blocks_total: usize,
    /// Blocks that nobody holds.
    pub blocks_free: usize,
    /// Blocks in the tables of living sequences, filled or reserved.
    pub blocks_used: usize,
    /// Living sequences.
    pub sequences: usize,
    /// Committed tokens of living sequences.
    pub tokens: usize,
    /// Bytes of the region.
    pub reserved_bytes: usize,
    /// Bytes of the used blocks.
    pub used_bytes: usize,
}

/// A paged KV cache: a cheap, cloneable handle.
///
/// The region lives until the last handle *and* the last [`Sequence`] are gone,
/// and then goes back to its allocator, once.
///
/// Any thread may use any handle: `acquire`, `stats` and the dropping of sequences
/// take one short lock, under which no payload is touched. See the [module](super)
/// for the picture and the rules.
///
/// ```
/// use tenslab::kv::{KvCache, KvDims, KvError, KvLimits, KvSpec, Namespace};
/// use tenslab::{DType, memory};
///
/// let dims = KvDims { layers: 1, kv_heads: 1, key_dim: 2, value_dim: 2, block_tokens: 4 };
/// let limits = KvLimits { blocks: 2, max_sequences: 2, max_blocks_per_sequence: 2 };
/// let cache = KvCache::new(KvSpec::new(dims, DType::F32)?, limits, memory::cpu())?;
///
/// let mut seq = cache.acquire(&[7, 8], &Namespace::default(), 0, None)?;
/// let mut step = seq.append(&[7, 8])?;
/// step.layer_mut(0)?.write(&[1.0_f32, 1.0, 2.0, 2.0], &[3.0, 3.0, 4.0, 4.0])?;
/// step.commit()?;
/// assert_eq!(seq.keys_head::<f32>(0, 0, 0)?, [1.0, 1.0, 2.0, 2.0]);
///
/// // All or nothing: one block is free, two are needed.
/// let refused = cache.acquire(&[0; 5], &Namespace::default(), 0, None).unwrap_err();
/// assert_eq!(refused, KvError::OutOfBlocks { need: 2, free: 1, evictable: 0, total: 2 });
///
/// drop(cache);                            // sequences keep the region alive
/// assert_eq!(seq.values_head::<f32>(0, 0, 0)?[3], 4.0);
/// # Ok::<(), KvError>(())
/// ```
#[derive(Clone)]
pub struct KvCache(Arc<Shared>);

/// What all handles and sequences of a cache share.
pub(super) struct Shared {
    pub(super) spec: KvSpec,
    limits: KvLimits,
    /// Tokens a sequence can have: its table, full.
    pub(super) max_tokens: usize,
    /// `blocks` x `block_bytes` bytes. Only ever reached through `as_ptr`: sequences
    /// write disjoint parts of it at the same time, so no reference to the whole of
    /// it may exist.
    region: Buffer,
    pub(super) rows: TableRows,
    ledger: Mutex<Ledger>,
}

impl KvCache {
    /// A cache over one region of `limits.blocks` blocks, taken from `allocator`
    /// under [`Tag::Kv`]: one allocation, so not from a
    /// [`SlabAllocator`](crate::memory::SlabAllocator) with smaller blocks.
    ///
    /// The region is not touched here: memory that the allocator commits lazily
    /// becomes resident as blocks are first written.
    ///
    /// # Errors
    /// [`KvError::Zero`] or [`KvError::TooLarge`] names the limit that is out of
    /// range, [`KvError::Overflow`] a region above `isize::MAX` bytes, and
    /// [`KvError::Alloc`] or [`KvError::TablesTooLarge`] what could not be allocated.
    /// Nothing is kept then.
    pub fn new(
        spec: KvSpec,
        limits: KvLimits,
        allocator: &SharedAllocator,
    ) -> Result<Self, KvError> {
        let count = |what: &'static str, value: usize| match u32::try_from(value) {
            Ok(0) => Err(KvError::Zero { what }),
            Ok(count) => Ok(count),
            Err(_) => Err(KvError::TooLarge {
                what,
                value,
                max: u32::MAX as usize,
            }),
        };
        let blocks = count("blocks", limits.blocks)?;
        let slots = count("max_sequences", limits.max_sequences)?;
        let width = count("max_blocks_per_sequence", limits.max_blocks_per_sequence)?;
        let region_bytes = limits
            .blocks
            .checked_mul(spec.block_bytes())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(KvError::Overflow {
                what: "the kv region",
            })?;
        let max_tokens = limits
            .max_blocks_per_sequence
            .checked_mul(spec.block_tokens())
            .ok_or(KvError::Overflow {
                what: "a sequence's tokens",
            })?;

        // First the region, which nobody touches: the tables are filled, and those of a
        // region that cannot be had might be more than the machine has.
        let region = allocator
            .with_tag(Tag::Kv)
            .allocate(region_bytes, BLOCK_ALIGN)?;
        let rows = TableRows::new(slots, width)?;
        let ledger = Mutex::new(Ledger::new(blocks, slots)?);
        let shared = Shared {
            spec,
            limits,
            max_tokens,
            region,
            rows,
            ledger,
        };
        shared.mark_region(poison);
        Ok(Self(Arc::new(shared)))
    }

    /// What a block holds.
    #[must_use]
    pub fn spec(&self) -> &KvSpec {
        &self.0.spec
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &KvLimits {
        &self.0.limits
    }

    /// The addresses of the region. Every slice that the cache lends lies in it.
    #[must_use]
    pub fn region(&self) -> Range<*const u8> {
        let start = self.0.region.as_ptr().cast_const();
        start..start.wrapping_add(self.0.region.len())
    }

    /// A new, empty sequence with blocks for `tokens.len() + reserve` tokens.
    ///
    /// `tokens` is the prompt, whose longest known prefix is looked up in
    /// `namespace`; `reserve` counts the tokens that will follow it (to be generated,
    /// or drafted), so that appending them cannot fail for want of blocks. `max_hit`
    /// bounds the tokens that may come from the cache; `None` means all but the last
    /// one, which must be computed to get its logits.
    ///
    /// There is no prefix index yet: [`Sequence::hit_tokens`] is always 0, and all of
    /// `tokens` is to be [appended](Sequence::append).
    ///
    /// Takes the lock once; 0 heap blocks; the cost is that of moving the ids.
    ///
    /// # Errors
    /// All or nothing. [`KvError::SequenceTooLong`] if one table cannot hold the tokens,
    /// [`KvError::OutOfSequences`] if `max_sequences` live, [`KvError::OutOfBlocks`] with
    /// the numbers if too few blocks are free.
    pub fn acquire(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        reserve: usize,
        max_hit: Option<usize>,
    ) -> Result<Sequence, KvError> {
        // Nothing is matched yet, whatever the namespace and the bound.
        let _ = (namespace, max_hit);
        let wanted = tokens.len().saturating_add(reserve);
        let blocks = self.0.table_blocks(wanted)?;
        let slot = self.0.open(blocks)?;
        Ok(Sequence::new(self.clone(), slot, blocks))
    }

    /// The occupancy now. Takes the lock once.
    #[must_use]
    pub fn stats(&self) -> KvStats {
        let (free, sequences, tokens) = {
            let ledger = self.0.ledger.lock();
            (
                ledger.free_block_count(),
                ledger.sequence_count(),
                ledger.token_count(),
            )
        };
        let used = self.0.limits.blocks - free;
        KvStats {
            blocks_total: self.0.limits.blocks,
            blocks_free: free,
            blocks_used: used,
            sequences,
            tokens,
            reserved_bytes: self.0.region.len(),
            used_bytes: used * self.0.spec.block_bytes(),
        }
    }

    /// Verifies every rule of the metadata: free + used = total, no block in two
    /// places, counts that add up. For tests; walks all tables under the lock.
    ///
    /// # Errors
    /// [`KvError::Inconsistent`] names the rule that is broken: a bug in this crate.
    pub fn check(&self) -> Result<(), KvError> {
        self.0
            .ledger
            .lock()
            .check(&self.0.rows, self.0.spec.block_tokens())
    }

    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.0
    }
}

impl Shared {
    /// Blocks that a table of `tokens` tokens has, if a table can be so long.
    pub(super) fn table_blocks(&self, tokens: usize) -> Result<u32, KvError> {
        let too_long = KvError::SequenceTooLong {
            tokens,
            max: self.max_tokens,
        };
        if tokens > self.max_tokens {
            return Err(too_long);
        }
        u32::try_from(self.spec.blocks_for(tokens)).map_err(|_| too_long)
    }

    /// A slot whose table holds `blocks` blocks; all or nothing.
    fn open(&self, blocks: u32) -> Result<u32, KvError> {
        let slot = self.ledger.lock().open(blocks, &self.rows)?;
        self.mark_blocks(slot, 0..blocks, unpoison);
        Ok(slot)
    }

    /// Adds `more` blocks to the slot's table of `held`; all or nothing.
    pub(super) fn take(&self, slot: u32, held: u32, more: u32) -> Result<(), KvError> {
        self.ledger.lock().take(slot, more, &self.rows)?;
        self.mark_blocks(slot, held..held + more, unpoison);
        Ok(())
    }

    /// Gives back the blocks `keep..held` of the slot's table, the last one first.
    pub(super) fn give_back_tail(&self, slot: u32, held: u32, keep: u32) {
        self.mark_blocks(slot, keep..held, poison);
        self.ledger.lock().give_back_tail(slot, keep, &self.rows);
    }

    /// Counts `tokens` more tokens of the slot as committed.
    pub(super) fn commit(&self, slot: u32, tokens: usize) {
        self.ledger.lock().commit(slot, tokens);
    }

    /// Ends the slot's sequence, whose table holds `held` blocks.
    pub(super) fn close(&self, slot: u32, held: u32) {
        self.mark_blocks(slot, 0..held, poison);
        self.ledger.lock().close(slot, &self.rows);
    }

    /// For AddressSanitizer, to which the region is one live allocation: the bytes of a
    /// free block are nobody's. Nothing in every other build.
    ///
    /// To be called by the one who holds those blocks, so outside the lock.
    fn mark_blocks(&self, slot: u32, entries: Range<u32>, mark: unsafe fn(NonNull<u8>, usize)) {
        if !cfg!(tenslab_asan) {
            return;
        }
        for entry in entries {
            let block = self.rows.get(slot, entry as usize);
            if let Some(start) = NonNull::new(self.plane_ptr(block, 0, Part::Keys)) {
                // SAFETY: the block's bytes are mapped, and between its giving back (behind a
                // poisoning) and its next taking (in front of an unpoisoning) nobody uses them.
                unsafe { mark(start, self.spec.block_bytes()) };
            }
        }
    }

    /// The same for all blocks at one time: when there is no sequence.
    fn mark_region(&self, mark: unsafe fn(NonNull<u8>, usize)) {
        if let Some(start) = NonNull::new(self.region.as_ptr()) {
            // SAFETY: the region is mapped, and without a sequence nobody uses a block.
            unsafe { mark(start, self.region.len()) };
        }
    }

    /// The address of one plane. Pure arithmetic: what may be done with it is the
    /// caller's to argue.
    #[inline]
    pub(super) fn plane_ptr(&self, block: u32, layer: usize, part: Part) -> *mut u8 {
        let block = block as usize;
        debug_assert!(
            block < self.limits.blocks,
            "block {block} of {}",
            self.limits.blocks
        );
        let offset =
            block * self.spec.block_bytes() + self.spec.block_layout().plane_offset(layer, part);
        self.region.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Every sequence holds a handle, so there is none any more. The region goes back to
        // its allocator as it came.
        self.mark_region(unpoison);
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("spec", &self.0.spec)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::KvDims;
    use super::*;
    use crate::memory::{CpuAllocator, SlabAllocator};
    use crate::types::DType;

    fn new(limits: KvLimits, allocator: &SharedAllocator) -> Result<KvCache, KvError> {
        let dims = KvDims {
            layers: 1,
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
            block_tokens: 1,
        };
        KvCache::new(KvSpec::new(dims, DType::F32)?, limits, allocator)
    }

    #[test]
    fn the_region_is_refused_before_tables_are_filled_and_goes_back_with_them() {
        let limits = KvLimits {
            blocks: 2,
            max_sequences: u32::MAX as usize,
            max_blocks_per_sequence: u32::MAX as usize,
        };
        let small = SharedAllocator::new(SlabAllocator::new(64, 1).unwrap());
        let error = new(limits, &small).unwrap_err();
        assert!(matches!(error, KvError::Alloc(_)), "{error}");

        let cpu = SharedAllocator::new(CpuAllocator::new());
        let error = new(limits, &cpu).unwrap_err();
        assert!(matches!(error, KvError::TablesTooLarge { .. }), "{error}");
        assert_eq!(cpu.outstanding(), 0, "the region went back");
    }
}
