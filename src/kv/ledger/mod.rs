//! Who holds which block: the cache's metadata, plain code under its one lock.
//!
//! ```text
//!  tables     A: [ 3 0 | 7 9 ]          B: [ 3 0 4 | 1 ]        u32 block ids
//!                shared  own               shared    own
//!
//!  blocks     root ◀─ 3 ◀─ 0 ◀─ 4       registered: findable, so never written again
//!             7, 9, 1                   own: one table's (or, after a fork, several tables')
//!  slots      { held, shared, tokens, namespace }, one for each sequence
//! ```
//!
//! The shared part of a table is a chain of registered blocks, and its end is held by one
//! use ([`blocks`]). Behind it are blocks of the sequence's own: a partly filled one, and
//! reserved ones. Everything is allocated when the cache is made.
//!
//! The table rows lie outside the lock ([`TableRows`]): a sequence reads its own row
//! for every block it visits.

mod begin;
mod blocks;
mod check;
mod counts;
mod end;
mod grow;
mod index;
mod moving;
mod rows;
mod shadow;
mod two_steps;

use super::block_tokens::BlockTokens;
use super::{Eviction, KvError, KvOptions, Namespace, PrefixHash};

pub(super) use begin::{Ask, Opened};
use blocks::{Blocks, NONE};
use counts::HitWindow;
pub use counts::KvCounters;
pub(super) use grow::Grown;
use rows::FreeSlots;
pub(super) use rows::TableRows;
pub(super) use shadow::Shadow;

/// A boxed slice of `len` values, or an error instead of an abort.
fn table<T>(len: usize, value: impl FnMut(usize) -> T) -> Result<Box<[T]>, KvError> {
    let mut entries = Vec::new();
    entries
        .try_reserve_exact(len)
        .map_err(|_| KvError::TablesTooLarge { entries: len })?;
    entries.extend((0..len).map(value));
    Ok(entries.into_boxed_slice())
}

/// A block whose beginning is to be copied to an entry of the table, outside the lock, by who
/// is told so: `from` is held until [`Ledger::release_outside`].
#[derive(Debug, Clone, Copy)]
#[must_use = "the source is held"]
pub(super) struct PendingCopy {
    pub(super) from: u32,
    pub(super) entry: u32,
    /// How many tokens it is.
    pub(super) tokens: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Blocks in the table.
    held: u32,
    /// Of those, the ones in front that are registered.
    shared: u32,
    /// Committed tokens.
    tokens: usize,
    namespace: Namespace,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    blocks: Blocks,
    slots: Box<[Slot]>,
    free_slots: FreeSlots,
    total_tokens: usize,
    /// In the last blocks of all sequences, slots without a token.
    empty_slots: usize,
    /// Uses that are not of tables: tensors, pins, copies under way.
    outside: usize,
    /// Blocks that are out while their memory goes back. They count as free.
    moving: usize,
    hash: PrefixHash,
    caching: bool,
    partial: bool,
    counters: KvCounters,
    window: HitWindow,
}

impl Ledger {
    pub(super) fn new(
        blocks: u32,
        slots: u32,
        block_tokens: BlockTokens,
        options: &KvOptions,
        shadow: Shadow,
    ) -> Result<Self, KvError> {
        // There is no other. One that comes has to be looked at here.
        let Eviction::Lru = options.eviction();
        Ok(Self {
            blocks: Blocks::new(blocks, block_tokens, shadow)?,
            slots: table(slots as usize, |_| Slot::default())?,
            free_slots: FreeSlots::full(slots)?,
            total_tokens: 0,
            empty_slots: 0,
            outside: 0,
            moving: 0,
            hash: options.hash().clone(),
            caching: options.prefix_caching(),
            partial: options.partial_hits(),
            counters: KvCounters::default(),
            window: HitWindow::new(options.hit_window())?,
        })
    }

    pub(super) fn free_block_count(&self) -> usize {
        self.blocks.free.len + self.blocks.cold.len + self.moving
    }

    pub(super) fn idle_block_count(&self) -> usize {
        self.blocks.idle.len
    }

    pub(super) fn registered_block_count(&self) -> usize {
        self.blocks.index.len
    }

    pub(super) fn used_block_count(&self) -> usize {
        self.blocks.total() - self.blocks.available() - self.moving
    }

    pub(super) fn sequence_count(&self) -> usize {
        self.slots.len() - self.free_slots.len
    }

    pub(super) fn token_count(&self) -> usize {
        self.total_tokens
    }

    pub(super) fn empty_slot_count(&self) -> usize {
        self.empty_slots
    }

    /// A sequence had `before` committed tokens and has `after`.
    fn recount(&mut self, before: usize, after: usize) {
        let empty = |tokens| self.blocks.block_tokens.empty(tokens);
        self.empty_slots = self.empty_slots - empty(before) + empty(after);
        self.total_tokens = self.total_tokens - before + after;
    }

    /// Blocks that somebody uses or may find.
    fn kept_block_count(&self) -> u64 {
        (self.blocks.total() - self.free_block_count()) as u64
    }

    pub(super) fn counters(&self) -> KvCounters {
        let counted = self.counters;
        // A block that was taken and is not kept was forgotten, or else it was just given back.
        let gone = counted.forgotten_blocks() + self.kept_block_count();
        KvCounters {
            touched_records: self.blocks.touched(),
            freed_blocks: counted.taken_blocks.saturating_sub(gone),
            ..counted
        }
    }

    pub(super) fn window_sums(&self) -> (u64, u64) {
        self.window.sums()
    }

    #[cold]
    fn out_of_blocks(&self, need: usize, evictable: usize) -> KvError {
        KvError::OutOfBlocks {
            need,
            free: self.free_block_count(),
            evictable,
            total: self.blocks.total(),
        }
    }

    /// Fills the entries `from..to` of the slot's table. The caller checked that there are
    /// so many blocks.
    fn take_blocks(
        &mut self,
        slot: u32,
        from: u32,
        to: u32,
        rows: &TableRows,
    ) -> Result<(), KvError> {
        let wanted = (to as usize).saturating_sub(from as usize);
        let put = |index: usize, block| rows.set(slot, from as usize + index, block);
        let free = self.blocks.take_free(wanted, put);
        self.counters.taken_blocks += free as u64;
        for index in free..wanted {
            let Some(block) = self.take_block() else {
                return Err(self.out_of_blocks(wanted - index, 0));
            };
            put(index, block);
        }
        Ok(())
    }

    fn take_block(&mut self) -> Option<u32> {
        let block = self.blocks.take(&mut self.counters.evicted_for_space)?;
        self.counters.taken_blocks += 1;
        Some(block)
    }

    /// `from` is held from outside.
    fn begin_copy(
        &mut self,
        slot: u32,
        from: u32,
        entry: u32,
        tokens: usize,
        rows: &TableRows,
    ) -> PendingCopy {
        let to = rows.get(slot, entry as usize);
        self.blocks.copy_tokens(from, to, tokens);
        self.counters.copied_blocks += 1;
        PendingCopy {
            from,
            entry,
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        }
    }

    /// Gives back the blocks behind the first `keep` of the slot's table, last first. They
    /// are its own.
    #[inline]
    pub(super) fn give_back_tail(&mut self, slot: u32, keep: u32, rows: &TableRows) {
        let Slot { held, shared, .. } = self.slots[slot as usize];
        debug_assert!(keep >= shared, "only blocks of its own");
        for index in (keep..held).rev() {
            self.blocks.release(rows.get(slot, index as usize));
        }
        self.slots[slot as usize].held = held.min(keep);
    }

    /// Blocks of the slot's table that are registered, those in front.
    pub(super) fn shared_block_count(&self, slot: u32) -> u32 {
        self.slots[slot as usize].shared
    }

    /// A use of the end of the slot's shared part.
    pub(super) fn hold_end(&mut self, slot: u32, rows: &TableRows) {
        let shared = self.slots[slot as usize].shared;
        if shared > 0 {
            self.blocks.hold(rows.get(slot, shared as usize - 1));
        }
    }

    /// The end of such a use.
    pub(super) fn release_end(&mut self, slot: u32, rows: &TableRows) {
        let shared = self.slots[slot as usize].shared;
        if shared > 0 {
            self.blocks.release(rows.get(slot, shared as usize - 1));
        }
    }

    /// A slot with the committed tokens of another, in the same blocks.
    pub(super) fn fork(&mut self, slot: u32, rows: &TableRows) -> Result<u32, KvError> {
        let twin = self.free_slots.next().ok_or(KvError::OutOfSequences {
            max: self.slots.len(),
        })?;
        self.free_slots.take();
        let of = self.slots[slot as usize];
        let held = self.blocks.block_tokens.needed(of.tokens);
        for index in 0..held {
            rows.set(twin, index, rows.get(slot, index));
        }
        self.hold_end(slot, rows);
        for index in of.shared as usize..held {
            self.blocks.record_mut(rows.get(slot, index)).uses += 1;
        }
        self.slots[twin as usize] = Slot {
            held: u32::try_from(held).unwrap_or(u32::MAX),
            ..of
        };
        self.recount(0, of.tokens);
        Ok(twin)
    }

    /// Holds the longest prefix of `tokens` that is there, for who is not a sequence: its
    /// last block and how many tokens it is.
    pub(super) fn pin(&mut self, tokens: &[u32], namespace: &Namespace) -> Option<(u32, usize)> {
        let (end, tokens) = self.longest(tokens, namespace)?;
        self.hold_outside(end);
        Some((end, tokens))
    }

    /// The last block of the longest prefix of `tokens` that is there, and how many tokens
    /// that is.
    pub(super) fn longest(&self, tokens: &[u32], namespace: &Namespace) -> Option<(u32, usize)> {
        let ask = Ask {
            tokens,
            namespace,
            blocks: 0,
            max_hit: tokens.len(),
        };
        let plan = self.plan(&ask, |_, _| ());
        (plan.end != NONE).then_some((plan.end, plan.hit_tokens))
    }

    /// A use that is not of a table. Of a block that is registered.
    pub(super) fn hold_outside(&mut self, block: u32) {
        self.blocks.hold(block);
        self.outside += 1;
    }

    /// The end of a use that is not of a table.
    pub(super) fn release_outside(&mut self, block: u32) {
        self.outside -= 1;
        self.blocks.release(block);
    }

    /// Forgets every prefix, if nobody uses a block.
    pub(super) fn reset(&mut self) -> Result<usize, KvError> {
        let blocks = self.used_block_count();
        if blocks > 0 {
            return Err(KvError::InUse { blocks });
        }
        let mut forgotten = 0;
        while let Some(block) = self.blocks.evict_oldest() {
            self.blocks.give_back(block);
            forgotten += 1;
        }
        self.counters.evicted_by_reset += forgotten as u64;
        self.window.forget();
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests;
