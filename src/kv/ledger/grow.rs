//! How a sequence goes on: room for tokens, and what becomes of them when they are committed.

use crate::kv::KvError;
use crate::mutant::{self, Mutant};

use super::blocks::NONE;
use super::index::Key;
use super::{Ledger, PendingCopy, Slot, TableRows};

/// A sequence that has room for more. Filled in as an `Opened` is.
#[derive(Debug, Default)]
pub(in crate::kv) struct Grown {
    pub(in crate::kv) copy: Option<PendingCopy>,
    /// Is the memory of some of its new blocks to be counted again?
    pub(in crate::kv) cold: bool,
}

impl Ledger {
    /// Makes room for `new` tokens behind the committed ones, in a table of at least
    /// `blocks` blocks, and notes them; all or nothing. A last block that is partly filled
    /// and somebody else's too is exchanged for a copy.
    #[inline]
    pub(in crate::kv) fn grow(
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

    /// What [`grow`](Self::grow) does where the tokens begin a block and end in it, and one is
    /// free whose memory is there: takes it, with nothing to look at but that. Else `false`, and
    /// nothing is changed.
    #[inline]
    pub(in crate::kv) fn grow_by_a_free_block(
        &mut self,
        slot: u32,
        new: &[u32],
        blocks: u32,
        rows: &TableRows,
    ) -> bool {
        let at = &mut self.slots[slot as usize];
        let held = at.held as usize;
        if blocks as usize != held + 1 || at.tokens != held * self.blocks.block_tokens.count() {
            return false;
        }
        let Some(block) = self.blocks.take_a_free_one() else {
            return false;
        };
        at.held = blocks;
        rows.set(slot, held, block);
        let place = self.blocks.tokens_mut(block);
        match new {
            // A decoded token. Spares a call.
            &[one] => place[0] = one,
            _ => place[..new.len()].copy_from_slice(new),
        }
        self.counters.taken_blocks += 1;
        true
    }

    /// Is its last block to be exchanged for a copy, if the slot's table is to have `blocks`
    /// blocks and tokens behind its own? An error if there are too few blocks for that.
    #[inline]
    pub(in crate::kv) fn room(
        &self,
        slot: u32,
        blocks: u32,
        rows: &TableRows,
    ) -> Result<bool, KvError> {
        let Slot {
            held,
            shared,
            tokens,
            ..
        } = self.slots[slot as usize];
        let (tail, filled) = self.blocks.block_tokens.place(tokens);
        let copies = filled > 0 && self.is_not_its_own(slot, tail, shared, rows);
        let need = blocks.saturating_sub(held) as usize + usize::from(copies);
        if need > self.blocks.available() {
            return Err(self.out_of_blocks(need, self.blocks.idle.len));
        }
        Ok(copies)
    }

    /// Uses the [room](Self::room) that was found under the same lock.
    #[inline]
    pub(in crate::kv) fn grow_into(
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
        let (tail, filled) = self.blocks.block_tokens.place(tokens);
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
            let (index, in_block) = self.blocks.block_tokens.place(at);
            let block = rows.get(slot, index);
            let place = &mut self.blocks.tokens_mut(block)[in_block..];
            let (now, later) = rest.split_at(place.len().min(rest.len()));
            place[..now.len()].copy_from_slice(now);
            at += now.len();
            rest = later;
        }
        if mutant::is(Mutant::KvRegistersEarly) {
            self.number_full(slot, tokens + new.len(), rows);
            self.register_full(slot, tokens + new.len(), rows);
        }
        grown.copy = copy;
        grown.cold = self.blocks.cold.len < cold_before;
        Ok(())
    }

    /// Must the partly filled last block not be written, because others read it?
    pub(in crate::kv) fn is_not_its_own(
        &self,
        slot: u32,
        tail: usize,
        shared: u32,
        rows: &TableRows,
    ) -> bool {
        if mutant::is(Mutant::KvWritesShared) {
            return false;
        }
        let is_registered = tail < shared as usize && !mutant::is(Mutant::KvTruncatedKeepsKey);
        is_registered || self.blocks.record(rows.get(slot, tail)).uses > 1
    }

    /// Counts `tokens` more tokens of the slot as committed, and registers what is full.
    pub(in crate::kv) fn commit(&mut self, slot: u32, tokens: usize, rows: &TableRows) {
        let before = self.slots[slot as usize].tokens;
        let committed = before + tokens;
        self.number_full(slot, committed, rows);
        self.slots[slot as usize].tokens = committed;
        self.recount(before, committed);
        self.register_full(slot, committed, rows);
    }

    /// Notes the chain's number in each of the slot's blocks that are full with `tokens` tokens
    /// and not registered. By itself, for the hash may be a stranger's function: if it
    /// panics, nothing has changed.
    fn number_full(&mut self, slot: u32, tokens: usize, rows: &TableRows) {
        if !self.caching {
            return;
        }
        let Slot {
            shared, namespace, ..
        } = self.slots[slot as usize];
        let mut parent = match shared {
            0 => NONE,
            shared => rows.get(slot, shared as usize - 1),
        };
        for index in shared as usize..self.blocks.block_tokens.full(tokens) {
            let block = rows.get(slot, index);
            let tokens = self.blocks.tokens(block);
            let hash = (self.blocks).chain_hash(&self.hash, parent, &namespace, tokens);
            self.blocks.record_mut(block).hash = hash;
            parent = block;
        }
    }

    /// Registers the slot's blocks that are full with `tokens` tokens, and have their
    /// [numbers](Self::number_full). Where one is there already, it takes the place of the
    /// slot's own.
    pub(in crate::kv) fn register_full(&mut self, slot: u32, tokens: usize, rows: &TableRows) {
        if !self.caching {
            return;
        }
        let Slot {
            shared, namespace, ..
        } = self.slots[slot as usize];
        let block_tokens = self.blocks.block_tokens;
        let full = block_tokens.full(tokens);
        let mut parent = match shared {
            0 => NONE,
            shared => rows.get(slot, shared as usize - 1),
        };
        for index in shared as usize..full {
            let block = rows.get(slot, index);
            let tokens = self.blocks.tokens(block);
            let hash = self.blocks.record(block).hash;
            let key = Key {
                parent,
                namespace: &namespace,
                hash,
                tokens,
            };
            let found = (self.blocks.find(&key)).filter(|_| !mutant::is(Mutant::KvRegistersTwice));
            parent = if let Some(first) = found {
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
                (self.blocks).register(block, parent, &namespace, hash, block_tokens.count());
                self.counters.registered_blocks += 1;
                block
            };
        }
        self.slots[slot as usize].shared = u32::try_from(full).unwrap_or(u32::MAX).max(shared);
    }
}
