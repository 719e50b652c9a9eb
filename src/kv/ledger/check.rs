//! Every rule that ties the ledger's arrays together, verified.

use crate::kv::KvError;

use super::blocks::{Blocks, NONE};
use super::index::Key;
use super::{Ledger, TableRows};

/// Where a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Free,
    Idle,
}

fn rule(holds: bool, what: &'static str, id: usize) -> Result<(), KvError> {
    match holds {
        true => Ok(()),
        false => Err(KvError::Inconsistent { what, id }),
    }
}

impl Ledger {
    /// Walks everything. Allocates; for tests.
    pub(in crate::kv) fn check(&self, rows: &TableRows) -> Result<(), KvError> {
        let places = self.blocks.check_orders()?;
        let uses = self.check_tables(rows)?;
        let outside = self.blocks.check_uses(&places, &uses, self.moving)?;
        rule(
            outside == self.outside,
            "uses by tensors, pins and copies do not add up",
            outside,
        )?;
        let counted = self.counters;
        rule(
            counted.taken_blocks >= counted.forgotten_blocks() + self.kept_block_count(),
            "fewer blocks were taken than are kept or were forgotten",
            self.blocks.total(),
        )?;
        self.check_index()
    }

    /// Slots and tables. Returns the uses that they make of each block.
    fn check_tables(&self, rows: &TableRows) -> Result<Vec<usize>, KvError> {
        let mut is_free = vec![false; self.slots.len()];
        for &slot in self.free_slots.free() {
            let id = slot as usize;
            rule(id < is_free.len(), "a free slot is not of this cache", id)?;
            rule(!is_free[id], "a sequence slot is free twice", id)?;
            is_free[id] = true;
            rule(self.slots[id].held == 0, "a free slot holds blocks", id)?;
            rule(self.slots[id].tokens == 0, "a free slot has tokens", id)?;
        }
        let mut uses = vec![0; self.blocks.total()];
        let (mut tokens, mut empty) = (0, 0);
        for (slot, each) in (0_u32..).zip(&self.slots) {
            let (id, held) = (slot as usize, each.held as usize);
            rule(held <= rows.width, "a table is longer than its row", id)?;
            rule(
                each.tokens <= held * self.blocks.block_tokens.count(),
                "a slot has tokens without blocks",
                id,
            )?;
            rule(
                each.shared <= each.held,
                "a shared part beyond the table",
                id,
            )?;
            let full = self.blocks.block_tokens.full(each.tokens);
            rule(
                !self.caching || each.shared as usize >= full,
                "a full block is not registered",
                id,
            )?;
            let mut parent = NONE;
            for index in 0..held {
                let block = rows.get(slot, index);
                let Some(record) = self.blocks.records.get(block as usize) else {
                    return rule(false, "a table names a block not of this cache", id)
                        .map(|()| uses);
                };
                if index < each.shared as usize {
                    rule(
                        record.is_registered(),
                        "a shared block is not registered",
                        id,
                    )?;
                    rule(record.parent == parent, "a table is not a chain", id)?;
                    let is_end = index + 1 == each.shared as usize;
                    uses[block as usize] += usize::from(is_end);
                    parent = block;
                } else {
                    rule(
                        !record.is_registered(),
                        "a table's own block is registered",
                        id,
                    )?;
                    uses[block as usize] += 1;
                }
            }
            tokens += each.tokens;
            empty += self.blocks.block_tokens.empty(each.tokens);
        }
        rule(
            tokens == self.total_tokens,
            "token counts do not add up",
            tokens,
        )?;
        rule(
            empty == self.empty_slots,
            "empty slots do not add up",
            empty,
        )?;
        Ok(uses)
    }

    /// What is registered is found, and nothing else is in the index.
    fn check_index(&self) -> Result<(), KvError> {
        let blocks = &self.blocks;
        let mut registered = 0;
        for (block, record) in (0_u32..).zip(&blocks.records) {
            if !record.is_registered() {
                continue;
            }
            registered += 1;
            let id = block as usize;
            if record.parent != NONE {
                rule(
                    blocks.record(record.parent).is_registered(),
                    "the parent of a registered block is not registered",
                    id,
                )?;
            }
            let tokens = &blocks.tokens(block)[..record.filled as usize];
            let namespace = &blocks.namespaces[id];
            let hash = blocks.chain_hash(&self.hash, record.parent, namespace, tokens);
            rule(
                hash == record.hash,
                "a block's number is not its chain's",
                id,
            )?;
            let key = Key {
                parent: record.parent,
                namespace,
                hash,
                tokens,
            };
            let found = blocks.find(&key);
            let is_full = tokens.len() == blocks.block_tokens.count();
            rule(
                found == Some(block) || !is_full && found.is_some(),
                "a registered block is not found",
                id,
            )?;
        }
        rule(
            registered == blocks.index.len,
            "the index counts other blocks than are registered",
            registered,
        )?;
        let mut linked = 0;
        for &first in &blocks.index.buckets {
            let mut block = first;
            while block != NONE {
                linked += 1;
                rule(
                    linked <= registered,
                    "a bucket has a block too many",
                    block as usize,
                )?;
                rule(
                    blocks.record(block).is_registered(),
                    "a bucket has a block that is not registered",
                    block as usize,
                )?;
                block = blocks.record(block).bucket_next;
            }
        }
        rule(linked == registered, "a block is in no bucket", linked)
    }
}

impl Blocks {
    /// The free and the idle order: links both ways, lengths, no block in two places.
    fn check_orders(&self) -> Result<Vec<Place>, KvError> {
        let mut places = vec![Place::Nowhere; self.total()];
        for (order, cold) in [(&self.free, false), (&self.cold, true)] {
            let (mut block, mut len) = (order.first, 0);
            while block != NONE {
                let id = block as usize;
                rule(id < self.total(), "a free block is not of this cache", id)?;
                rule(places[id] == Place::Nowhere, "a block is free twice", id)?;
                places[id] = Place::Free;
                rule(
                    self.record(block).cold == cold,
                    "a free block is in the wrong order",
                    id,
                )?;
                len += 1;
                block = self.record(block).newer;
            }
            rule(len == order.len, "the free order has another length", len)?;
        }
        let (mut block, mut older, mut len) = (self.idle.oldest, NONE, 0);
        while block != NONE {
            let id = block as usize;
            rule(id < self.total(), "an idle block is not of this cache", id)?;
            rule(
                places[id] == Place::Nowhere,
                "a block is idle and somewhere else",
                id,
            )?;
            places[id] = Place::Idle;
            let record = self.record(block);
            rule(record.older == older, "the idle order is torn", id)?;
            rule(
                record.is_registered(),
                "an idle block is not registered",
                id,
            )?;
            // Older than its parent: the parent comes later, so it was not seen yet.
            rule(
                record.parent == NONE || places[record.parent as usize] != Place::Idle,
                "an idle block is newer than its parent",
                id,
            )?;
            older = block;
            len += 1;
            block = record.newer;
        }
        rule(
            older == self.idle.newest,
            "the idle order has another end",
            len,
        )?;
        rule(
            len == self.idle.len,
            "the idle order has another length",
            len,
        )?;
        Ok(places)
    }

    /// Uses against what makes them. Returns those that neither tables nor children explain.
    fn check_uses(
        &self,
        places: &[Place],
        by_tables: &[usize],
        moving: usize,
    ) -> Result<usize, KvError> {
        let mut explained = by_tables.to_vec();
        let mut children = vec![0; self.total()];
        let mut roots = 0;
        for record in self.records.iter().filter(|record| record.is_registered()) {
            if record.parent == NONE {
                roots += 1;
                continue;
            }
            explained[record.parent as usize] += usize::from(record.uses > 0);
            children[record.parent as usize] += 1;
        }
        self.check_children(NONE, self.index.youngest_root, roots)?;
        let (mut outside, mut out) = (0, 0);
        for (block, record) in (0_u32..).zip(&self.records) {
            let id = block as usize;
            let uses = record.uses as usize;
            out += usize::from(uses == 0 && places[id] == Place::Nowhere);
            rule(
                uses == 0 || places[id] == Place::Nowhere,
                "a block is in use and free or idle",
                id,
            )?;
            rule(
                uses > 0 || record.is_registered() == (places[id] == Place::Idle),
                "a registered block that nobody uses is not idle",
                id,
            )?;
            rule(
                uses >= explained[id],
                "a block has fewer uses than users",
                id,
            )?;
            outside += uses - explained[id];
            self.check_children(block, record.child, children[id])?;
        }
        rule(out == moving, "blocks are nowhere", out)?;
        Ok(outside)
    }

    /// The children of a block, or the blocks without a parent: as many as there are, linked
    /// both ways.
    fn check_children(&self, parent: u32, youngest: u32, count: usize) -> Result<(), KvError> {
        let id = parent as usize;
        let (mut child, mut younger, mut len) = (youngest, NONE, 0);
        while child != NONE && len <= count {
            let each = self.record(child);
            rule(
                each.parent == parent && each.younger_sibling == younger,
                "the children of a block are torn",
                id,
            )?;
            younger = child;
            child = each.older_sibling;
            len += 1;
        }
        rule(len == count, "a block has lost a child", id)
    }
}
