//! Wrong variants of what the cache does under its lock: each takes the lock twice, and
//! believes the second time what it saw the first time. `src/mutant.rs` says when one runs,
//! which in a build for use is never; `loom_tests/kv*.rs` see what comes of it.

use crate::memory::AllocError;

use super::ledger::{Ask, Grown, Ledger, Opened, PendingCopy};
use super::shared::Shared;
use super::{KvError, Namespace};

impl Shared {
    /// Others may take or evict the blocks between.
    pub(super) fn open_in_two_steps(
        &self,
        ask: &Ask<'_>,
        opened: &mut Opened,
    ) -> Result<(), KvError> {
        let (slot, plan) = (self.ledger).with(|ledger| ledger.plan_slot(ask, &self.rows))?;
        (self.ledger).with(|ledger| ledger.open_slot(slot, plan, ask, &self.rows, opened))
    }

    /// Others may take the blocks between.
    pub(super) fn grow_in_two_steps(
        &self,
        slot: u32,
        new: &[u32],
        blocks: u32,
        grown: &mut Grown,
    ) -> Result<(), KvError> {
        let copies = (self.ledger).with(|ledger| ledger.room(slot, blocks, &self.rows))?;
        (self.ledger).with(|ledger| ledger.grow_into(slot, new, blocks, copies, &self.rows, grown))
    }

    /// The last block may be evicted between.
    pub(super) fn commit_in_two_steps(&self, slot: u32, tokens: usize) {
        self.ledger.with(|ledger| {
            ledger.commit(slot, tokens, &self.rows);
            ledger.release_end(slot, &self.rows);
        });
        (self.ledger).with(|ledger| ledger.hold_end(slot, &self.rows));
    }

    /// The block that is the last one now may be evicted between.
    pub(super) fn truncate_in_two_steps(&self, slot: u32, tokens: usize) -> u32 {
        let (held, is_cut) = self.ledger.with(|ledger| {
            let before = ledger.shared_block_count(slot);
            let held = ledger.truncate(slot, tokens, &self.rows);
            (held, ledger.shared_block_count(slot) < before)
        });
        if is_cut {
            (self.ledger).with(|ledger| ledger.hold_end(slot, &self.rows));
        }
        held
    }

    /// The prefix may be evicted between.
    pub(super) fn pin_in_two_steps(
        &self,
        tokens: &[u32],
        namespace: &Namespace,
    ) -> Option<(u32, usize)> {
        let (block, tokens) = (self.ledger).with(|ledger| ledger.longest(tokens, namespace))?;
        self.hold_outside(block);
        Some((block, tokens))
    }

    /// Another sequence may begin in the slot between.
    pub(super) fn close_in_two_steps(&self, slot: u32) {
        self.ledger.with(|ledger| ledger.give_slot_back(slot));
        self.ledger.with(|ledger| ledger.close(slot, &self.rows));
    }

    /// The last block, which is neither used nor idle, may be found between.
    pub(super) fn idle_in_two_steps(&self, slot: u32) {
        let unused = (self.ledger).with(|ledger| ledger.close_but_idle(slot, &self.rows));
        if let Some(block) = unused {
            self.ledger.with(|ledger| ledger.become_idle(block));
        }
    }

    /// The memory of blocks may go back between.
    pub(super) fn open_after_looking_for_cold(
        &self,
        ask: &Ask<'_>,
        opened: &mut Opened,
    ) -> Result<(), KvError> {
        let cold = self.ledger.with(|ledger| ledger.has_cold());
        self.patiently(|ledger| ledger.open(ask, &self.rows, opened))?;
        opened.cold &= cold;
        Ok(())
    }

    /// The same between.
    pub(super) fn grow_after_looking_for_cold(
        &self,
        slot: u32,
        new: &[u32],
        blocks: u32,
        grown: &mut Grown,
    ) -> Result<(), KvError> {
        let cold = self.ledger.with(|ledger| ledger.has_cold());
        self.patiently(|ledger| ledger.grow(slot, new, blocks, &self.rows, grown))?;
        grown.cold &= cold;
        Ok(())
    }

    /// The idle block may be found between.
    pub(super) fn exchange_in_two_steps(&self, slot: u32, entry: usize) -> bool {
        let idle = self.ledger.with(|ledger| ledger.oldest_idle());
        idle.is_some_and(|idle| {
            (self.ledger).with(|ledger| ledger.exchange_cold_for(slot, entry, idle, &self.rows));
            true
        })
    }

    /// What is to be copied may go to somebody else meanwhile.
    pub(super) fn warm_unheld(
        &self,
        copy: PendingCopy,
        slot: u32,
        entries: impl Iterator<Item = u32>,
        undo: impl FnOnce(&mut Ledger),
    ) -> Result<(), AllocError> {
        self.release_outside(copy.from);
        self.warm(slot, entries, |ledger| {
            ledger.hold_outside(copy.from);
            undo(ledger);
        })?;
        self.hold_outside(copy.from);
        Ok(())
    }
}
