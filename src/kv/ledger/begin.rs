//! How a sequence begins: what is there, what is needed, and the taking of it.

use crate::kv::{KvError, Namespace};
use crate::mutant::{self, Mutant};

use super::blocks::NONE;
use super::index::{Beginning, Key};
use super::{Ledger, PendingCopy, Slot, TableRows};

/// What a sequence wants when it begins.
#[derive(Debug, Clone, Copy)]
pub(in crate::kv) struct Ask<'a> {
    pub(in crate::kv) tokens: &'a [u32],
    pub(in crate::kv) namespace: &'a Namespace,
    /// Blocks its table is to have.
    pub(in crate::kv) blocks: u32,
    /// Tokens that may come from the cache.
    pub(in crate::kv) max_hit: usize,
}

/// How what is wanted would be met now.
#[derive(Debug, Clone, Copy)]
pub(in crate::kv) struct Plan {
    /// Whole blocks that are there.
    matched: u32,
    /// The last of them, or `NONE`.
    pub(super) end: u32,
    /// The block whose beginning is to be copied.
    beginning: Option<Beginning>,
    /// Blocks to be taken.
    pub(in crate::kv) need: usize,
    /// Free blocks.
    pub(in crate::kv) free: usize,
    /// Idle blocks that are not among those that are there.
    pub(in crate::kv) evictable: usize,
    /// Tokens that are there.
    pub(in crate::kv) hit_tokens: usize,
}

/// A sequence that began. Filled in by [`Ledger::open`] where it lies: moved out of a
/// `Result` it would be copied in wide pieces that wait for the narrow ones it was written in.
#[derive(Debug, Default)]
pub(in crate::kv) struct Opened {
    pub(in crate::kv) slot: u32,
    pub(in crate::kv) hit_tokens: usize,
    /// Blocks in the table.
    pub(in crate::kv) held: u32,
    /// The first entry of the table that was taken; those behind it were too.
    pub(in crate::kv) fresh: u32,
    /// Is the memory of some of them to be counted again?
    pub(in crate::kv) cold: bool,
    pub(in crate::kv) copy: Option<PendingCopy>,
}

impl Ledger {
    /// How `ask` would be met. `found` is told each whole block that is there, in order.
    pub(in crate::kv) fn plan(&self, ask: &Ask<'_>, mut found: impl FnMut(usize, u32)) -> Plan {
        let block_tokens = self.blocks.block_tokens.count();
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
                // Blocks that are moving cannot be taken yet.
                need + usize::from(source_is_idle) <= free + evictable - self.moving
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
    pub(in crate::kv) fn open(
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
    pub(in crate::kv) fn plan_slot(
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
    pub(in crate::kv) fn open_slot(
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
        self.recount(0, plan.hit_tokens);
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
        opened.held = self.slots[slot as usize].held;
        opened.hit_tokens = plan.hit_tokens;
        opened.fresh = plan.matched;
        opened.cold = self.blocks.cold.len < cold_before;
        opened.copy = copy;
        Ok(())
    }
}
