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

mod blocks;
mod check;
mod counts;
mod index;
mod moving;
mod shadow;

use super::{KvError, KvOptions, Namespace, PrefixHash};
use crate::mutant::{self, Mutant};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU32;

use blocks::{Blocks, NONE};
use counts::HitWindow;
pub use counts::KvCounters;
use index::{Beginning, Key};
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

/// Free slots, the next one at the end. Never grows.
#[derive(Debug)]
struct FreeSlots {
    ids: Box<[u32]>,
    len: usize,
}

impl FreeSlots {
    /// All ids below `count`, to be handed out in ascending order.
    fn full(count: u32) -> Result<Self, KvError> {
        let len = count as usize;
        let mut next = count;
        let ids = table(len, |_| {
            next -= 1;
            next
        })?;
        Ok(Self { ids, len })
    }

    fn next(&self) -> Option<u32> {
        self.free().last().copied()
    }

    /// Takes the [next](Self::next) one.
    fn take(&mut self) {
        self.len -= 1;
    }

    fn give_back(&mut self, id: u32) {
        self.ids[self.len] = id;
        self.len += 1;
    }

    fn free(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

/// The block tables of all sequence slots, one row each.
///
/// A row is written only under the cache's lock, by the call that owns its
/// sequence mutably; so it may be read by whoever borrows the sequence, without
/// the lock, and by whoever holds the lock.
#[derive(Debug)]
pub(super) struct TableRows {
    ids: Box<[AtomicU32]>,
    width: usize,
}

impl TableRows {
    pub(super) fn new(rows: u32, width: u32) -> Result<Self, KvError> {
        let width = width as usize;
        let entries = (rows as usize)
            .checked_mul(width)
            .ok_or(KvError::Overflow {
                what: "the block tables",
            })?;
        Ok(Self {
            ids: table(entries, |_| AtomicU32::new(0))?,
            width,
        })
    }

    /// Entry `index` of the slot's table.
    #[inline]
    pub(super) fn get(&self, slot: u32, index: usize) -> u32 {
        debug_assert!(index < self.width, "entry {index} of {}", self.width);
        // Relaxed: the reader either owns the sequence, whose own `&mut` calls are the
        // only ones that write this row, or holds the lock that they hold.
        self.ids[slot as usize * self.width + index].load(Ordering::Relaxed)
    }

    fn set(&self, slot: u32, index: usize, block: u32) {
        // Relaxed: see `get`.
        self.ids[slot as usize * self.width + index].store(block, Ordering::Relaxed);
    }
}

/// What a sequence wants when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) namespace: &'a Namespace,
    /// Blocks its table is to have.
    pub(super) blocks: u32,
    /// Tokens that may come from the cache.
    pub(super) max_hit: usize,
}

/// How what is wanted would be met now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Whole blocks that are there.
    matched: u32,
    /// The last of them, or `NONE`.
    end: u32,
    /// The block whose beginning is to be copied.
    beginning: Option<Beginning>,
    /// Blocks to be taken.
    pub(super) need: usize,
    /// Free blocks.
    pub(super) free: usize,
    /// Idle blocks that are not among those that are there.
    pub(super) evictable: usize,
    /// Tokens that are there.
    pub(super) hit_tokens: usize,
}

/// A block whose beginning is to be copied to an entry of the table, outside the lock, by who
/// is told so: `from` is held until [`Ledger::release_outside`].
#[derive(Debug, Clone, Copy)]
#[must_use = "the source is held"]
pub(super) struct Copy {
    pub(super) from: u32,
    pub(super) entry: u32,
}

/// A sequence that began. Filled in by [`Ledger::open`] where it lies: moved out of a
/// `Result` it would be copied in wide pieces that wait for the narrow ones it was written in.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) slot: u32,
    pub(super) hit_tokens: usize,
    /// The first entry of the table that was taken; those behind it were too.
    pub(super) fresh: u32,
    /// Is the memory of some of them to be counted again?
    pub(super) cold: bool,
    pub(super) copy: Option<Copy>,
}

/// A sequence that has room for more. Filled in as [`Opened`] is.
#[derive(Debug, Default)]
pub(super) struct Grown {
    pub(super) copy: Option<Copy>,
    /// Is the memory of some of its new blocks to be counted again?
    pub(super) cold: bool,
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
        block_tokens: usize,
        options: &KvOptions,
        shadow: Shadow,
    ) -> Result<Self, KvError> {
        Ok(Self {
            blocks: Blocks::new(blocks, block_tokens, shadow)?,
            slots: table(slots as usize, |_| Slot::default())?,
            free_slots: FreeSlots::full(slots)?,
            total_tokens: 0,
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

    pub(super) fn counters(&self) -> KvCounters {
        KvCounters {
            touched_records: self.blocks.touched(),
            ..self.counters
        }
    }

    pub(super) fn window_sums(&self) -> (u64, u64) {
        self.window.sums()
    }

    /// How `ask` would be met. `found` is told each whole block that is there, in order.
    pub(super) fn plan(&self, ask: &Ask<'_>, mut found: impl FnMut(usize, u32)) -> Plan {
        let block_tokens = self.blocks.block_tokens;
        let max_hit = match self.caching {
            true => ask.max_hit.min(ask.tokens.len()),
            false => 0,
        };
        let (mut matched, mut end, mut idle) = (0, NONE, 0);
        for tokens in ask.tokens[..max_hit].chunks_exact(block_tokens) {
            let hash = (self.blocks).chain_hash(&self.hash, end, ask.namespace, tokens);
            let key = Key {
                parent: end,
                namespace: ask.namespace,
                hash,
                tokens,
            };
            let Some(block) = self.blocks.find(&key) else {
                break;
            };
            found(matched, block);
            idle += usize::from(self.blocks.record(block).uses == 0);
            end = block;
            matched += 1;
        }
        let whole = matched * block_tokens;
        let need = (ask.blocks as usize).saturating_sub(matched);
        let free = self.free_block_count();
        let evictable = self.blocks.idle.len - idle;
        let beginning = (self.partial && need > 0)
            .then(|| {
                let rest = &ask.tokens[whole..max_hit];
                self.blocks.longest_beginning(end, ask.namespace, rest)
            })
            .flatten()
            // Not if it would have to be evicted to make room for its copy.
            .filter(|beginning| {
                let source_is_idle = self.blocks.record(beginning.block).uses == 0;
                need + usize::from(source_is_idle) <= free + evictable
            });
        Plan {
            matched: u32::try_from(matched).unwrap_or(u32::MAX),
            end,
            beginning,
            need,
            free,
            evictable,
            hit_tokens: whole + beginning.map_or(0, |beginning| beginning.tokens),
        }
    }

    /// A slot whose table holds what is there and new blocks for the rest; all or nothing.
    pub(super) fn open(
        &mut self,
        ask: &Ask<'_>,
        rows: &TableRows,
        opened: &mut Opened,
    ) -> Result<(), KvError> {
        let (slot, plan) = self.plan_slot(ask, rows)?;
        self.open_slot(slot, plan, ask, rows, opened)
    }

    /// How a slot would be opened now, if there are one and blocks enough.
    #[inline]
    pub(super) fn plan_slot(
        &mut self,
        ask: &Ask<'_>,
        rows: &TableRows,
    ) -> Result<(u32, Plan), KvError> {
        let slot = self.free_slots.next().ok_or(KvError::OutOfSequences {
            max: self.slots.len(),
        })?;
        // The row of a slot that nobody has.
        let plan = self.plan(ask, |index, block| rows.set(slot, index, block));
        if plan.need > plan.free + plan.evictable - self.moving && !mutant::is(Mutant::KvChecksLate)
        {
            if mutant::is(Mutant::KvNoRollback) && plan.end != NONE {
                self.blocks.hold(plan.end);
            }
            return Err(self.out_of_blocks(plan.need, plan.evictable));
        }
        Ok((slot, plan))
    }

    /// Opens the slot as [planned](Self::plan_slot), under the same lock.
    #[inline]
    pub(super) fn open_slot(
        &mut self,
        slot: u32,
        plan: Plan,
        ask: &Ask<'_>,
        rows: &TableRows,
        opened: &mut Opened,
    ) -> Result<(), KvError> {
        // Held before any block is taken: what is there must not be evicted for the rest.
        if plan.end != NONE && !mutant::is(Mutant::KvMatchesWithoutPin) {
            self.blocks.hold(plan.end);
        }
        if let Some(beginning) = plan.beginning {
            self.hold_outside(beginning.block);
        }
        let cold_before = self.blocks.cold.len;
        self.take_blocks(slot, plan.matched, ask.blocks, rows)?;
        if plan.end != NONE && mutant::is(Mutant::KvMatchesWithoutPin) {
            self.blocks.hold(plan.end);
        }
        self.free_slots.take();
        self.slots[slot as usize] = Slot {
            held: ask.blocks.max(plan.matched),
            shared: plan.matched,
            tokens: plan.hit_tokens,
            namespace: *ask.namespace,
        };
        self.total_tokens += plan.hit_tokens;
        let copy = plan.beginning.map(|beginning| {
            self.begin_copy(slot, beginning.block, plan.matched, beginning.tokens, rows)
        });
        let (query, hit) = (ask.tokens.len() as u64, plan.hit_tokens as u64);
        self.counters.requests += 1;
        self.counters.query_tokens += query;
        self.counters.hit_tokens += hit;
        self.counters.hit_blocks += u64::from(plan.matched);
        self.window.add(query, hit);
        opened.slot = slot;
        opened.hit_tokens = plan.hit_tokens;
        opened.fresh = plan.matched;
        opened.cold = self.blocks.cold.len < cold_before;
        opened.copy = copy;
        Ok(())
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
        for index in from..to {
            let Some(block) = self.take_block() else {
                return Err(self.out_of_blocks((to - index) as usize, 0));
            };
            rows.set(slot, index as usize, block);
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
    ) -> Copy {
        let to = rows.get(slot, entry as usize);
        self.blocks.copy_tokens(from, to, tokens);
        self.counters.copied_blocks += 1;
        Copy { from, entry }
    }

    /// Makes room for `new` tokens behind the committed ones, in a table of at least
    /// `blocks` blocks, and notes them; all or nothing. A last block that is partly filled
    /// and somebody else's too is exchanged for a copy.
    pub(super) fn grow(
        &mut self,
        slot: u32,
        new: &[u32],
        blocks: u32,
        rows: &TableRows,
        grown: &mut Grown,
    ) -> Result<(), KvError> {
        let copies = self.room(slot, blocks, rows)?;
        self.grow_into(slot, new, blocks, copies, rows, grown)
    }

    /// Is its last block to be exchanged for a copy, if the slot's table is to have `blocks`
    /// blocks and tokens behind its own? An error if there are too few blocks for that.
    #[inline]
    pub(super) fn room(&self, slot: u32, blocks: u32, rows: &TableRows) -> Result<bool, KvError> {
        let Slot {
            held,
            shared,
            tokens,
            ..
        } = self.slots[slot as usize];
        let block_tokens = self.blocks.block_tokens;
        let (tail, filled) = (tokens / block_tokens, tokens % block_tokens);
        let copies = filled > 0 && self.is_not_its_own(slot, tail, shared, rows);
        let need = blocks.saturating_sub(held) as usize + usize::from(copies);
        if need > self.blocks.available() {
            return Err(self.out_of_blocks(need, self.blocks.idle.len));
        }
        Ok(copies)
    }

    /// Uses the [room](Self::room) that was found under the same lock.
    #[inline]
    pub(super) fn grow_into(
        &mut self,
        slot: u32,
        new: &[u32],
        blocks: u32,
        copies: bool,
        rows: &TableRows,
        grown: &mut Grown,
    ) -> Result<(), KvError> {
        let Slot {
            held,
            shared,
            tokens,
            ..
        } = self.slots[slot as usize];
        let block_tokens = self.blocks.block_tokens;
        let (tail, filled) = (tokens / block_tokens, tokens % block_tokens);
        let cold_before = self.blocks.cold.len;
        let mut copy = None;
        if copies && let Some(to) = self.take_block() {
            let from = rows.get(slot, tail);
            rows.set(slot, tail, to);
            if tail < shared as usize {
                // The shared part ends with the block before it.
                let parent = self.blocks.record(from).parent;
                if parent != NONE {
                    self.blocks.hold(parent);
                }
                self.slots[slot as usize].shared = shared - 1;
            }
            // The table's use of it is the copy's, until that is made.
            self.outside += 1;
            let entry = u32::try_from(tail).unwrap_or(u32::MAX);
            copy = Some(self.begin_copy(slot, from, entry, filled, rows));
        }
        self.take_blocks(slot, held, blocks, rows)?;
        self.slots[slot as usize].held = blocks.max(held);
        let mut at = tokens;
        let mut rest = new;
        while !rest.is_empty() {
            let block = rows.get(slot, at / block_tokens);
            let place = &mut self.blocks.tokens_mut(block)[at % block_tokens..];
            let (now, later) = rest.split_at(place.len().min(rest.len()));
            place[..now.len()].copy_from_slice(now);
            at += now.len();
            rest = later;
        }
        if mutant::is(Mutant::KvRegistersEarly) {
            self.register_full(slot, tokens + new.len(), rows);
        }
        grown.copy = copy;
        grown.cold = self.blocks.cold.len < cold_before;
        Ok(())
    }

    /// Must the partly filled last block not be written, because others read it?
    fn is_not_its_own(&self, slot: u32, tail: usize, shared: u32, rows: &TableRows) -> bool {
        if mutant::is(Mutant::KvWritesShared) {
            return false;
        }
        let is_registered = tail < shared as usize && !mutant::is(Mutant::KvTruncatedKeepsKey);
        is_registered || self.blocks.record(rows.get(slot, tail)).uses > 1
    }

    /// Gives back the blocks behind the first `keep` of the slot's table, last first. They
    /// are its own.
    pub(super) fn give_back_tail(&mut self, slot: u32, keep: u32, rows: &TableRows) {
        let Slot { held, shared, .. } = self.slots[slot as usize];
        debug_assert!(keep >= shared, "only blocks of its own");
        for index in (keep..held).rev() {
            self.blocks.release(rows.get(slot, index as usize));
        }
        self.slots[slot as usize].held = held.min(keep);
    }

    /// Counts `tokens` more tokens of the slot as committed, and registers what is full.
    pub(super) fn commit(&mut self, slot: u32, tokens: usize, rows: &TableRows) {
        let committed = self.slots[slot as usize].tokens + tokens;
        self.slots[slot as usize].tokens = committed;
        self.total_tokens += tokens;
        self.register_full(slot, committed, rows);
    }

    /// Registers the slot's blocks that are full with `tokens` tokens. Where one is there
    /// already, it takes the place of the slot's own.
    fn register_full(&mut self, slot: u32, tokens: usize, rows: &TableRows) {
        if !self.caching {
            return;
        }
        let Slot {
            shared, namespace, ..
        } = self.slots[slot as usize];
        let block_tokens = self.blocks.block_tokens;
        let full = tokens / block_tokens;
        let mut parent = match shared {
            0 => NONE,
            shared => rows.get(slot, shared as usize - 1),
        };
        for index in shared as usize..full {
            let block = rows.get(slot, index);
            let tokens = self.blocks.tokens(block);
            let hash = (self.blocks).chain_hash(&self.hash, parent, &namespace, tokens);
            let key = Key {
                parent,
                namespace: &namespace,
                hash,
                tokens,
            };
            parent = if let Some(first) = self.blocks.find(&key) {
                self.blocks.hold(first);
                rows.set(slot, index, first);
                self.blocks.release(block);
                if parent != NONE {
                    // The shared part does not end there any more.
                    self.blocks.release(parent);
                }
                self.counters.duplicate_blocks += 1;
                first
            } else {
                // The table's use of the block is that of the end of its shared part from now
                // on, and its use of the parent is that of a child.
                (self.blocks).register(block, parent, &namespace, hash, block_tokens);
                self.counters.registered_blocks += 1;
                block
            };
        }
        self.slots[slot as usize].shared = u32::try_from(full).unwrap_or(u32::MAX).max(shared);
    }

    /// Ends the slot's sequence: its blocks go back, last first, and then the slot.
    pub(super) fn close(&mut self, slot: u32, rows: &TableRows) {
        self.register_partial(slot, rows);
        let Slot { shared, tokens, .. } = self.slots[slot as usize];
        self.give_back_tail(slot, shared, rows);
        self.release_end(slot, rows);
        self.total_tokens -= tokens;
        self.slots[slot as usize] = Slot::default();
        if !mutant::is(Mutant::KvSlotGoesFirst) {
            self.give_slot_back(slot);
        }
    }

    /// The last step of [`close`](Self::close).
    pub(super) fn give_slot_back(&mut self, slot: u32) {
        self.free_slots.give_back(slot);
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

    /// Keeps the partly filled last block for who comes with the same beginning.
    fn register_partial(&mut self, slot: u32, rows: &TableRows) {
        let Slot {
            shared,
            tokens,
            namespace,
            ..
        } = self.slots[slot as usize];
        if tokens == 0 {
            return;
        }
        let block_tokens = self.blocks.block_tokens;
        let (tail, filled) = (tokens / block_tokens, tokens % block_tokens);
        if !self.partial || filled == 0 || tail < shared as usize {
            return;
        }
        let block = rows.get(slot, tail);
        if self.blocks.record(block).uses > 1 {
            return;
        }
        let parent = match shared {
            0 => NONE,
            shared => rows.get(slot, shared as usize - 1),
        };
        let tokens = &self.blocks.tokens(block)[..filled];
        let hash = (self.blocks).chain_hash(&self.hash, parent, &namespace, tokens);
        if let Some(other) = self.blocks.longest_beginning(parent, &namespace, tokens) {
            if other.tokens == filled {
                return;
            }
            let record = *self.blocks.record(other.block);
            if record.uses == 0 && record.filled as usize == other.tokens {
                self.blocks.leave_idle(other.block);
                self.blocks.unregister(other.block);
                self.blocks.give_back(other.block);
                self.counters.superseded_blocks += 1;
            }
        }
        (self.blocks).register(block, parent, &namespace, hash, filled);
        self.counters.registered_blocks += 1;
        if parent != NONE {
            self.blocks.hold(parent);
        }
    }

    /// Shortens the slot's sequence to `tokens` tokens. Returns the blocks it has then.
    pub(super) fn truncate(&mut self, slot: u32, tokens: usize, rows: &TableRows) -> u32 {
        let before = self.slots[slot as usize];
        let keep = u32::try_from(tokens.div_ceil(self.blocks.block_tokens)).unwrap_or(u32::MAX);
        self.give_back_tail(slot, keep.max(before.shared), rows);
        self.slots[slot as usize].shared = before.shared.min(keep);
        if keep < before.shared {
            // Held before the old end is let go, for it may be the last that holds it.
            if !mutant::is(Mutant::KvTruncatesTwoSteps) {
                self.hold_end(slot, rows);
            }
            self.blocks
                .release(rows.get(slot, before.shared as usize - 1));
        }
        let after = &mut self.slots[slot as usize];
        after.held = after.held.min(keep);
        after.tokens = tokens;
        self.total_tokens -= before.tokens - tokens;
        after.held
    }

    /// A slot with the committed tokens of another, in the same blocks.
    pub(super) fn fork(&mut self, slot: u32, rows: &TableRows) -> Result<u32, KvError> {
        let twin = self.free_slots.next().ok_or(KvError::OutOfSequences {
            max: self.slots.len(),
        })?;
        self.free_slots.take();
        let of = self.slots[slot as usize];
        let held = of.tokens.div_ceil(self.blocks.block_tokens);
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
        self.total_tokens += of.tokens;
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
