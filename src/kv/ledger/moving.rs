//! Blocks whose memory goes back, and comes again.
//!
//! ```text
//!   free, idle ──take_out──▶ moving ──put_back──▶ cold ──take──▶ in use, cold ──warmed──▶ in use
//!                            its memory goes back              its memory is counted again
//! ```
//!
//! The memory is given back and counted again outside the lock, by who has the block.

use crate::kv::KvError;
use crate::mutant::{self, Mutant};

use super::blocks::NONE;
use super::{Ledger, PendingCopy, TableRows};

impl Ledger {
    /// Takes free blocks, and idle ones where none is free, out into `blocks`. Returns how
    /// many, and how many of them were idle.
    pub(in crate::kv) fn take_out(&mut self, blocks: &mut [u32]) -> (usize, usize) {
        let (mut taken, mut evicted) = (0, 0);
        for place in blocks {
            let block = match self.blocks.take_warm() {
                Some(block) => block,
                None => {
                    let Some(block) = self.blocks.evict_oldest() else {
                        break;
                    };
                    evicted += 1;
                    block
                }
            };
            *place = block;
            taken += 1;
        }
        self.moving += taken;
        self.counters.evicted_for_pressure += evicted as u64;
        (taken, evicted)
    }

    /// The end of [`take_out`](Self::take_out): the block is free, and `cold` if its memory
    /// went back.
    pub(in crate::kv) fn put_back(&mut self, block: u32, cold: bool) {
        self.moving -= 1;
        self.blocks.record_mut(block).cold = cold;
        self.blocks.give_back(block);
    }

    /// Is the memory of a block that is in use to be counted again first?
    pub(in crate::kv) fn is_cold(&self, block: u32) -> bool {
        self.blocks.record(block).cold
    }

    /// It was counted again.
    pub(in crate::kv) fn warmed(&mut self, block: u32) {
        self.blocks.record_mut(block).cold = false;
    }

    /// Takes a block that became free meanwhile, or an idle one, in the place of a cold one that
    /// the slot's table has as its own. `false` if there is none.
    pub(in crate::kv) fn exchange_cold(
        &mut self,
        slot: u32,
        index: usize,
        rows: &TableRows,
    ) -> bool {
        let warm = match self.blocks.take_warm() {
            Some(freed) => freed,
            None => {
                let Some(idle) = self.blocks.evict_oldest() else {
                    return false;
                };
                self.counters.evicted_for_space += 1;
                idle
            }
        };
        self.replace_cold(slot, index, warm, rows);
        true
    }

    /// Puts a block that is nobody's in the place of a cold one.
    pub(super) fn replace_cold(&mut self, slot: u32, index: usize, warm: u32, rows: &TableRows) {
        let cold = rows.get(slot, index);
        let tokens = self.blocks.block_tokens.count();
        self.blocks.copy_tokens(cold, warm, tokens);
        self.blocks.lend_to_one(warm);
        rows.set(slot, index, warm);
        self.blocks.release(cold);
    }

    /// Takes back that the slot's last block was to be exchanged for a copy.
    pub(in crate::kv) fn undo_copy(&mut self, slot: u32, copy: PendingCopy, rows: &TableRows) {
        let entry = copy.entry as usize;
        self.blocks.release(rows.get(slot, entry));
        rows.set(slot, entry, copy.from);
        // The copy's use of it is the table's again.
        self.outside -= 1;
        let record = self.blocks.record(copy.from);
        if record.is_registered() {
            let parent = record.parent;
            self.slots[slot as usize].shared += 1;
            if parent != NONE {
                self.blocks.release(parent);
            }
        }
    }

    /// Takes back a beginning: the slot has no more than its first `tokens` tokens, which are
    /// whole blocks, and what it was to copy from is let go of.
    pub(in crate::kv) fn forgo_beginning(
        &mut self,
        slot: u32,
        tokens: usize,
        copy: Option<PendingCopy>,
        rows: &TableRows,
    ) {
        if let Some(copy) = copy
            && !mutant::is(Mutant::KvForgoesHeld)
        {
            self.release_outside(copy.from);
        }
        self.truncate(slot, tokens, rows);
    }

    /// As [`open`](Self::open) and [`grow`](Self::grow) say it, or that blocks which are
    /// moving will do.
    pub(in crate::kv) fn must_wait(&self, error: &KvError) -> bool {
        match *error {
            KvError::OutOfBlocks {
                need,
                free,
                evictable,
                ..
            } => self.moving > 0 && need <= free + evictable,
            _ => false,
        }
    }
}
