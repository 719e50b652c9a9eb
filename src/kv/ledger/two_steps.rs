//! Halves of what the ledger does in one piece, for the wrong variants that let others in
//! between (`src/kv/two_steps.rs`).

use super::blocks::NONE;
use super::{Ledger, TableRows};

impl Ledger {
    /// Ends the slot's sequence. Returns the end of its shared part if nobody uses that any
    /// more: it is not idle yet.
    pub(in crate::kv) fn close_but_idle(&mut self, slot: u32, rows: &TableRows) -> Option<u32> {
        let shared = self.shared_block_count(slot) as usize;
        let end = (shared > 0).then(|| rows.get(slot, shared - 1));
        self.close(slot, rows);
        end.filter(|&end| {
            let record = self.blocks.record_mut(end);
            record.uses -= 1;
            record.uses == 0
        })
    }

    /// What is left of the end of the block's last use.
    pub(in crate::kv) fn become_idle(&mut self, block: u32) {
        let parent = self.blocks.record(block).parent;
        self.blocks.become_idle(block);
        if parent != NONE {
            self.blocks.release(parent);
        }
    }

    /// Is there a block whose memory went back?
    pub(in crate::kv) fn has_cold(&self) -> bool {
        self.blocks.cold.len > 0
    }

    /// The block to be evicted next.
    pub(in crate::kv) fn oldest_idle(&self) -> Option<u32> {
        let oldest = self.blocks.idle.oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// Evicts a block that was idle, to put it in the place of a cold one.
    pub(in crate::kv) fn exchange_cold_for(
        &mut self,
        slot: u32,
        index: usize,
        idle: u32,
        rows: &TableRows,
    ) {
        self.blocks.leave_idle(idle);
        self.blocks.unregister(idle);
        self.counters.evicted_for_space += 1;
        self.replace_cold(slot, index, idle, rows);
    }
}
