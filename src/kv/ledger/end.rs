//! How a sequence ends, or is cut: its blocks go back, last first.

use crate::mutant::{self, Mutant};

use super::blocks::NONE;
use super::{Ledger, Slot, TableRows};

impl Ledger {
    /// Ends the slot's sequence: its blocks go back, last first, and then the slot.
    pub(in crate::kv) fn close(&mut self, slot: u32, rows: &TableRows) {
        self.register_partial(slot, rows);
        let Slot { shared, tokens, .. } = self.slots[slot as usize];
        self.give_back_tail(slot, shared, rows);
        if !mutant::is(Mutant::KvIdlesTwoSteps) {
            self.release_end(slot, rows);
        }
        self.recount(tokens, 0);
        self.slots[slot as usize] = Slot::default();
        if !mutant::is(Mutant::KvSlotGoesFirst) {
            self.give_slot_back(slot);
        }
    }

    /// The last step of [`close`](Self::close).
    pub(in crate::kv) fn give_slot_back(&mut self, slot: u32) {
        self.free_slots.give_back(slot);
    }

    /// Keeps the partly filled last block for who comes with the same beginning.
    pub(in crate::kv) fn register_partial(&mut self, slot: u32, rows: &TableRows) {
        let Slot {
            shared,
            tokens,
            namespace,
            ..
        } = self.slots[slot as usize];
        if tokens == 0 {
            return;
        }
        let (tail, filled) = self.blocks.block_tokens.place(tokens);
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
    pub(in crate::kv) fn truncate(&mut self, slot: u32, tokens: usize, rows: &TableRows) -> u32 {
        let before = self.slots[slot as usize];
        let keep = u32::try_from(self.blocks.block_tokens.needed(tokens)).unwrap_or(u32::MAX);
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
        let held = after.held;
        self.recount(before.tokens, tokens);
        held
    }
}
