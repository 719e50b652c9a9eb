use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use crate::memory::poison::poison;
use crate::memory::{Biased, Block, SharedAllocator, Storage, Tag, populate};
use crate::mutant::{self, Mutant};
use crate::sync::Arc;
use crate::tensor::Tensor;

use super::layout::{BLOCK_ALIGN, Part};
use super::ledger::{Ask, KvCounters, Ledger, Opened, Shadow, TableRows};
use super::lender::Lender;
use super::payload::Payload;
use super::shared::Shared;
use super::{Admission, KvError, KvOptions, KvSpec, Namespace, Pin, Sequence};

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
    /// Blocks that nobody needs.
    pub blocks_free: usize,
    /// Blocks that nobody uses, kept for who comes with the same prefix. The oldest are
    /// forgotten when blocks are needed.
    pub blocks_idle: usize,
    /// Blocks that a sequence, a tensor or a pin uses: filled or reserved ones.
    pub blocks_used: usize,
    /// Blocks that can be found by their tokens: idle ones, and some that are used.
    pub blocks_registered: usize,
    /// Living sequences.
    pub sequences: usize,
    /// Committed tokens of living sequences. A token that several of them share counts
    /// for each.
    pub tokens: usize,
    /// Slots without a committed token in the last blocks that those sequences fill: what
    /// blocks waste. A block that several sequences end in counts for each; reserved blocks are
    /// not counted.
    pub empty_slots: usize,
    /// Bytes of the region, those included whose memory went back
    /// ([`KvCache::relieve`]).
    pub reserved_bytes: usize,
    /// Bytes of the used blocks.
    pub used_bytes: usize,
}

/// A paged KV cache: a cheap, cloneable handle.
///
/// The region lives until the last handle, [`Sequence`], [`Pin`] and tensor of a block are
/// gone, and then goes back to its allocator, once.
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
pub struct KvCache(Arc<Handle>);

/// What handles and sequences share. Tensors of blocks share less: they keep the region,
/// but are no reason to make more of them.
struct Handle {
    shared: Arc<Shared>,
    /// Makes the buffers of tensors, which go back through it.
    lender: SharedAllocator,
}

impl KvCache {
    /// A cache with the default [`KvOptions`].
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options).
    pub fn new(
        spec: KvSpec,
        limits: KvLimits,
        allocator: &SharedAllocator,
    ) -> Result<Self, KvError> {
        Self::with_options(spec, limits, &KvOptions::default(), allocator)
    }

    /// A cache over one region of `limits.blocks` blocks, taken from `allocator`
    /// under [`Tag::Kv`]: one allocation, so not from a
    /// [`SlabAllocator`](crate::memory::SlabAllocator) with smaller blocks.
    ///
    /// The region is not touched here, unless
    /// [`populate`](KvOptions::with_populate) asks for it: memory that the allocator
    /// commits lazily becomes resident as blocks are first written.
    ///
    /// # Errors
    /// [`KvError::Zero`] or [`KvError::TooLarge`] names the limit that is out of
    /// range, [`KvError::Overflow`] a region above `isize::MAX` bytes, and
    /// [`KvError::Alloc`] or [`KvError::TablesTooLarge`] what could not be allocated.
    /// Nothing is kept then.
    pub fn with_options(
        spec: KvSpec,
        limits: KvLimits,
        options: &KvOptions,
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
        let layout = spec.region(limits.blocks)?;
        let max_tokens = limits
            .max_blocks_per_sequence
            .checked_mul(spec.block_tokens())
            .ok_or(KvError::Overflow {
                what: "a sequence's tokens",
            })?;

        // First the region, which nobody touches: the tables are filled, and those of a
        // region that cannot be had might be more than the machine has.
        let mut region = allocator
            .with_tag(Tag::Kv)
            .allocate(layout.bytes(), BLOCK_ALIGN)?;
        let rows = TableRows::new(slots, width)?;
        let start = NonNull::new(region.as_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: a region of this layout, which lives as long as its ledger.
        let shadow = unsafe { Shadow::new(start, layout) };
        let ledger = Ledger::new(blocks, slots, spec.tokens(), options, shadow)?;
        if options.populate() {
            populate(region.as_mut_slice(), 1)?;
        }
        let shared = Arc::new(Shared {
            spec,
            limits,
            max_tokens,
            layout,
            region,
            rows,
            payload: Payload::new(limits.blocks),
            options: options.clone(),
            ledger: Biased::new(ledger),
        });
        shared.mark_region(poison);
        let lender = SharedAllocator::new(Lender::new(Arc::clone(&shared))).with_tag(Tag::Kv);
        Ok(Self(Arc::new(Handle { shared, lender })))
    }

    /// What a block holds.
    #[must_use]
    pub fn spec(&self) -> &KvSpec {
        &self.shared().spec
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &KvLimits {
        &self.shared().limits
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &KvOptions {
        &self.shared().options
    }

    /// The addresses of the region. Every slice that the cache lends lies in it.
    #[must_use]
    pub fn region(&self) -> Range<*const u8> {
        let region = &self.shared().region;
        let start = region.as_ptr().cast_const();
        start..start.wrapping_add(region.len())
    }

    /// A new sequence with blocks for `tokens.len() + reserve` tokens, of which the first
    /// [`hit_tokens`](Sequence::hit_tokens) are there already: the longest prefix of
    /// `tokens` that somebody computed in the same `namespace`.
    ///
    /// `tokens` is the prompt. Whoever asks [appends](Sequence::append) those of it that are
    /// not there. `reserve` counts the tokens that will follow it (to be generated, or
    /// drafted), so that appending them cannot fail for want of blocks, if nobody comes to share
    /// the last block: after a [`fork`](Sequence::fork) a copy of it takes one more. `max_hit`
    /// bounds the tokens that may come from the cache; `None` means all but the last one, which
    /// must be computed to get its logits.
    ///
    /// Whole blocks are shared. Where the next block differs, the beginning that it has in
    /// common with a block that is there is copied, if
    /// [`partial_hits`](KvOptions::with_partial_hits) are on. Free blocks are taken first, then
    /// the idle ones that nobody used for the longest time.
    ///
    /// Cost: the lock once; for each whole block of the prompt one hash of its tokens and a
    /// comparison; for each block taken a few writes. A copied beginning is a copy of its
    /// tokens' bytes and the lock once more. 0 heap blocks; where memory was
    /// [given back](Self::relieve), a call to the allocator for each such block, which may make
    /// some.
    ///
    /// # Errors
    /// All or nothing. [`KvError::SequenceTooLong`] if one table cannot hold the tokens,
    /// [`KvError::OutOfSequences`] if `max_sequences` live, [`KvError::OutOfBlocks`] with
    /// the numbers if too few blocks are free or evictable, [`KvError::Alloc`] if memory that
    /// was [given back](Self::relieve) cannot be had again.
    // Inlined, and its work not: see `Sequence::append`.
    #[inline]
    pub fn acquire(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        reserve: usize,
        max_hit: Option<usize>,
    ) -> Result<Sequence, KvError> {
        let mut opened = Opened::default();
        self.open(tokens, namespace, reserve, max_hit, &mut opened)?;
        let Opened {
            slot,
            held,
            hit_tokens,
            ..
        } = opened;
        Ok(Sequence::new(self.clone(), slot, held, hit_tokens))
    }

    /// Opens a slot for [`acquire`](Self::acquire).
    #[inline(never)]
    fn open(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        reserve: usize,
        max_hit: Option<usize>,
        opened: &mut Opened,
    ) -> Result<(), KvError> {
        let ask = self.ask(tokens, namespace, reserve, max_hit)?;
        let shared = self.shared();
        shared.open(&ask, opened)?;
        if opened.cold {
            shared.warm_opened(opened)?;
        }
        shared.fill(opened.slot, opened.fresh..opened.held);
        if let Some(copy) = &opened.copy {
            shared.copy(opened.slot, *copy);
        }
        Ok(())
    }

    /// What [`acquire`](Self::acquire) would find and need now. By the time of the acquire it
    /// may be otherwise, if others use the cache.
    ///
    /// # Errors
    /// [`KvError::SequenceTooLong`] if one table cannot hold the tokens.
    pub fn admission(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        reserve: usize,
        max_hit: Option<usize>,
    ) -> Result<Admission, KvError> {
        let ask = self.ask(tokens, namespace, reserve, max_hit)?;
        let (plan, sequences) = (self.shared().ledger)
            .with(|ledger| (ledger.plan(&ask, |_, _| ()), ledger.sequence_count()));
        Ok(Admission {
            hit_tokens: plan.hit_tokens,
            need: plan.need,
            free: plan.free,
            evictable: plan.evictable,
            sequences,
            max_sequences: self.limits().max_sequences,
        })
    }

    /// May a request begin, if `watermark` blocks are to stay available for those that run?
    ///
    /// A cache that is filled to the brim with prompts cannot grow any of them, and has to
    /// stop some. vLLM measured 187 stopped requests and not 1,065 with 5 % of the blocks
    /// kept (its pull request 44594). Where no sequence lives the watermark does not count,
    /// so that a request that fits at all is never kept out for ever.
    ///
    /// Cost: as [`acquire`](Self::acquire), without taking anything.
    #[must_use]
    pub fn can_admit(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
        reserve: usize,
        max_hit: Option<usize>,
        watermark: usize,
    ) -> bool {
        self.admission(tokens, namespace, reserve, max_hit)
            .is_ok_and(|admission| admission.admits(watermark))
    }

    /// Keeps the longest prefix of `tokens` that is there (whole blocks) from being evicted,
    /// until the pin is dropped. `None` if there is not one block of it.
    #[must_use]
    pub fn pin(&self, tokens: &[u32], namespace: &Namespace) -> Option<Pin> {
        let shared = self.shared();
        let (block, tokens) = match mutant::is(Mutant::KvPinTwoSteps) {
            true => shared.pin_in_two_steps(tokens, namespace)?,
            false => shared.ledger.with(|ledger| ledger.pin(tokens, namespace))?,
        };
        Some(Pin::new(self.clone(), block, tokens))
    }

    /// Forgets all prefixes: after the weights changed, say. Returns how many blocks that
    /// were.
    ///
    /// # Errors
    /// [`KvError::InUse`] while a sequence, a tensor or a pin uses a block; nothing is
    /// forgotten then.
    pub fn reset(&self) -> Result<usize, KvError> {
        self.shared().ledger.with(Ledger::reset)
    }

    /// The occupancy now. Takes the lock once.
    #[must_use]
    pub fn stats(&self) -> KvStats {
        let shared = self.shared();
        shared.ledger.with(|ledger| {
            let used = ledger.used_block_count();
            KvStats {
                blocks_total: shared.limits.blocks,
                blocks_free: ledger.free_block_count(),
                blocks_idle: ledger.idle_block_count(),
                blocks_used: used,
                blocks_registered: ledger.registered_block_count(),
                sequences: ledger.sequence_count(),
                tokens: ledger.token_count(),
                empty_slots: ledger.empty_slot_count(),
                reserved_bytes: shared.region.len(),
                used_bytes: used * shared.spec.block_bytes(),
            }
        })
    }

    /// What the cache did since it was made. Takes the lock once.
    #[must_use]
    pub fn counters(&self) -> KvCounters {
        self.shared().ledger.with(|ledger| ledger.counters())
    }

    /// Of the prompt tokens of the last requests
    /// ([`hit_window`](KvOptions::with_hit_window) of them), the part that was there: 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let (query, hit) = self.shared().ledger.with(|ledger| ledger.window_sums());
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let rate = hit as f64 / query.max(1) as f64;
        rate
    }

    /// Verifies every rule of the metadata: free + idle + used = total, no block in two
    /// places, uses that add up, chains whose blocks are all found. For tests; walks
    /// everything under the lock.
    ///
    /// # Errors
    /// [`KvError::Inconsistent`] names the rule that is broken: a bug in this crate.
    pub fn check(&self) -> Result<(), KvError> {
        let shared = self.shared();
        shared.ledger.with(|ledger| ledger.check(&shared.rows))
    }

    fn ask<'a>(
        &self,
        tokens: &'a [u32],
        namespace: &'a Namespace,
        reserve: usize,
        max_hit: Option<usize>,
    ) -> Result<Ask<'a>, KvError> {
        let wanted = tokens.len().saturating_add(reserve);
        Ok(Ask {
            tokens,
            namespace,
            blocks: self.shared().table_blocks(wanted)?,
            max_hit: max_hit.unwrap_or(tokens.len().saturating_sub(1)),
        })
    }

    /// One plane of a registered block, which the caller uses, as a frozen tensor.
    pub(super) fn lend(&self, block: u32, layer: usize, part: Part) -> Result<Tensor, KvError> {
        let shared = self.shared();
        let spec = &shared.spec;
        let plane = spec.block_layout().stored(part)?;
        let bytes = plane.elements() * spec.dtype().bytes();
        let (heads, dim) = (spec.kv_heads(), plane.dim);
        let shape = match spec.layout().is_hnd() {
            true => [heads, spec.block_tokens(), dim],
            false => [spec.block_tokens(), heads, dim],
        };
        let start = NonNull::new(shared.plane_ptr(block, layer, part));
        let start = start.unwrap_or(NonNull::dangling());
        if !mutant::is(Mutant::KvLendsUnheld) {
            shared.hold_outside(block);
        }
        let lent = Block::new(start, bytes, bytes, u64::from(block), Tag::Kv);
        // SAFETY: the lender takes a block back by its cookie, which is held for it until
        // then. The plane's bytes are inside the region, which the lender keeps, initialised,
        // and written by nobody while the block is held, because it is registered. The storage
        // that is made of the buffer is frozen before anybody sees it, so it is not written
        // through it either, and others may read the bytes meanwhile.
        let buffer = unsafe { self.0.lender.adopt(lent) };
        let storage = Storage::from(buffer);
        // Neither can be refused: the storage is new, and the shape is that of its bytes.
        let refused = KvError::Inconsistent {
            what: "a plane is not a tensor",
            id: block as usize,
        };
        storage.freeze().map_err(|_| refused)?;
        Tensor::from_storage(&storage, 0, shape, spec.dtype()).map_err(|_| refused)
    }

    /// For who must not keep the cache.
    #[cfg(not(loom))]
    pub(super) fn downgrade(&self) -> std::sync::Weak<Shared> {
        Arc::downgrade(&self.0.shared)
    }

    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("spec", self.spec())
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
