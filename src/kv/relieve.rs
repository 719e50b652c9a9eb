//! Memory of blocks that nobody uses, given back while somebody else needs it.

use crate::memory::AllocError;
#[cfg(not(loom))]
use crate::memory::{Limit, PressureGuard};
use crate::mutant::{self, Mutant};

use super::KvCache;
use super::ledger::Ledger;
use super::shared::Shared;

/// Blocks whose memory is given back in one go: others may have to wait for as many.
const BATCH: usize = 16;

/// What giving back came to, from [`KvCache::relieve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Relieved {
    /// Bytes that need no memory any more: whole pages of blocks that nobody uses.
    pub bytes: usize,
    /// Prefix blocks that were forgotten for it.
    pub evicted: usize,
}

impl KvCache {
    /// Gives the memory of blocks that nobody uses back, until that is `bytes` bytes or there
    /// is no such block: first of free ones, then of idle ones, which are forgotten, the
    /// oldest first. Sequences keep what they have, and the cache keeps its blocks: memory
    /// comes again when they are used again.
    ///
    /// Only whole pages inside of a block go back, so blocks should be large against a page;
    /// and only if the [allocator](crate::memory::Allocator::decommit) of the region can give
    /// a part of an allocation back.
    ///
    /// Under a [`Budget`](crate::memory::Budget) the bytes are uncharged, and charged again
    /// when the block is used: [`acquire`](KvCache::acquire) and
    /// [`append`](super::Sequence::append) then forget idle blocks instead where they are
    /// refused, and only without any return the budget's error.
    ///
    /// Cost: mostly one system call a block, outside the lock. Who needs one of the blocks
    /// that are just going (16 at a time) waits; and an `acquire` or `append` that takes
    /// blocks without memory takes the lock twice more for each block.
    pub fn relieve(&self, bytes: usize) -> Relieved {
        self.shared().relieve(bytes)
    }

    /// Calls [`relieve`](KvCache::relieve) whenever `limit` is short, until the guard or the
    /// last handle, sequence and tensor of a block is dropped: so idle prefixes make room for weights, say.
    ///
    /// ```
    /// use tenslab::DType;
    /// use tenslab::kv::{KvCache, KvDims, KvLimits, KvSpec};
    /// use tenslab::memory::{Budget, CpuAllocator, Limit, SharedAllocator};
    ///
    /// let limit = Limit::new(16 << 20);
    /// let allocator = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
    /// let dims = KvDims { layers: 8, kv_heads: 8, key_dim: 64, value_dim: 64, block_tokens: 32 };
    /// let limits = KvLimits { blocks: 14, max_sequences: 4, max_blocks_per_sequence: 8 };
    /// let cache = KvCache::new(KvSpec::new(dims, DType::F32)?, limits, &allocator)?;
    /// let _guard = cache.relieve_on(&limit);
    ///
    /// // The cache has 14 of the 16 MiB, and gives back what is asked for.
    /// let weights = allocator.allocate(8 << 20, 64)?;
    /// # #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    /// assert_eq!(limit.available_bytes(), 0);
    /// # Ok::<(), tenslab::Error>(())
    /// ```
    #[cfg(not(loom))]
    pub fn relieve_on(&self, limit: &Limit) -> PressureGuard {
        let shared = self.downgrade();
        limit.on_pressure(move |shortage| {
            let shared = shared.upgrade();
            shared.map_or(0, |shared| shared.relieve(shortage.missing_bytes).bytes)
        })
    }
}

/// Work that is done when it is dropped, unless it was disarmed.
struct Unless<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Unless<F> {
    fn new(work: F) -> Self {
        Self(Some(work))
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Unless<F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

impl Shared {
    fn relieve(&self, bytes: usize) -> Relieved {
        let mut relieved = Relieved::default();
        while relieved.bytes < bytes {
            let mut blocks = [0; BATCH];
            let wanted = (bytes - relieved.bytes).div_ceil(self.spec.block_bytes());
            // One to see whether memory can go back at all: nothing is forgotten in vain but that.
            let batch = if relieved.bytes == 0 { 1 } else { BATCH };
            let blocks = &mut blocks[..wanted.min(batch)];
            let (taken, evicted) = self.ledger.with(|ledger| ledger.take_out(blocks));
            relieved.evicted += evicted;
            let mut gone = [0; BATCH];
            let puts_back_first = mutant::is(Mutant::KvPutsBackFirst);
            if puts_back_first {
                self.put_back(&blocks[..taken], &gone);
            }
            for (gone, &block) in gone.iter_mut().zip(&blocks[..taken]) {
                *gone = self.decommit_block(block);
            }
            if !puts_back_first {
                self.put_back(&blocks[..taken], &gone);
            }
            let gone: usize = gone.iter().sum();
            relieved.bytes += gone;
            if gone == 0 {
                break;
            }
        }
        relieved
    }

    /// The end of their way: so many bytes of each went back.
    fn put_back(&self, blocks: &[u32], gone: &[usize]) {
        self.ledger.with(|ledger| {
            // The one that was taken first is in front again.
            for (&block, &gone) in blocks.iter().zip(gone).rev() {
                ledger.put_back(block, gone > 0);
            }
        });
    }

    /// Gives the memory of a block back. Returns how many bytes that was.
    ///
    /// The block was taken out by the caller, so nobody uses it.
    fn decommit_block(&self, block: u32) -> usize {
        self.payload.write(|| block);
        let pieces = self.layout.block_pieces(block as usize);
        pieces
            .map(|range| {
                // SAFETY: the bytes of this block are used by nobody but the caller, who took it
                // out of the ledger.
                unsafe { self.region.decommit_unused(range) }.bytes
            })
            .sum()
    }

    /// Has the memory of entries of the slot's table, which are its own, counted again where
    /// it went back. Where that is refused an idle block takes the place of the cold one.
    ///
    /// `undo` takes back what was to come of it: after an error, and where a callback that
    /// the region's allocator asks for memory panics.
    pub(super) fn warm(
        &self,
        slot: u32,
        entries: impl Iterator<Item = u32>,
        undo: impl FnOnce(&mut Ledger),
    ) -> Result<(), AllocError> {
        let mut unless_done = Unless::new(|| self.ledger.with(undo));
        for entry in entries {
            self.warm_entry(slot, entry as usize)?;
        }
        unless_done.disarm();
        Ok(())
    }

    fn warm_entry(&self, slot: u32, entry: usize) -> Result<(), AllocError> {
        let block = self.rows.get(slot, entry);
        if !self.ledger.with(|ledger| ledger.is_cold(block)) {
            return Ok(());
        }
        match self.commit_block(block) {
            Ok(()) => {
                self.ledger.with(|ledger| ledger.warmed(block));
                Ok(())
            }
            Err(error) => {
                let exchanged = match mutant::is(Mutant::KvExchangesTwoSteps) {
                    true => self.exchange_in_two_steps(slot, entry),
                    false => {
                        (self.ledger).with(|ledger| ledger.exchange_cold(slot, entry, &self.rows))
                    }
                };
                if exchanged { Ok(()) } else { Err(error) }
            }
        }
    }

    fn commit_block(&self, block: u32) -> Result<(), AllocError> {
        let pieces = || self.layout.block_pieces(block as usize);
        for (done, range) in pieces().enumerate() {
            if let Err(error) = self.region.commit_part(range) {
                // It stays cold, so what was counted is not to be.
                for range in pieces().take(done) {
                    // SAFETY: the block is the caller's, who has not used it yet.
                    unsafe { self.region.decommit_unused(range) };
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
