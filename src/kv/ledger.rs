//! Who holds which block: the cache's metadata, plain code under its one lock.
//!
//! ```text
//!  blocks       refs     [ 1, 1, 0, 1, 1, 0 ]      0: free, 1: in one table
//!               free     [ 2, 5 ]                  a stack, taken from the end
//!  sequences    held     [ 2, 2, 0 ]               blocks in the slot's table
//!               tokens   [ 32, 20, 0 ]             committed
//!               free     [ 2 ]
//!  tables       rows     [ 3 0 . . | 1 4 . . | . . . . ]     u32 block ids
//! ```
//!
//! A struct of arrays with `u32` ids, all of it allocated when the cache is made.
//! Blocks come back in front of the free order, so the block that was used last,
//! and is most likely still in the CPU's cache, is the next to be taken.
//!
//! The table rows lie outside the lock ([`TableRows`]): a sequence reads its own row
//! for every block it visits.

use crate::sync::Ordering;
use crate::sync::atomic::AtomicU32;

use super::KvError;

/// A boxed slice of `len` values, or an error instead of an abort.
fn table<T>(len: usize, value: impl FnMut(usize) -> T) -> Result<Box<[T]>, KvError> {
    let mut entries = Vec::new();
    entries
        .try_reserve_exact(len)
        .map_err(|_| KvError::TablesTooLarge { entries: len })?;
    entries.extend((0..len).map(value));
    Ok(entries.into_boxed_slice())
}

/// Free ids, the next one at the end. Never grows.
#[derive(Debug)]
struct FreeIds {
    ids: Box<[u32]>,
    len: usize,
}

impl FreeIds {
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

    /// The next `count` ids, if there are so many.
    fn take(&mut self, count: usize) -> Option<impl Iterator<Item = u32> + '_> {
        let rest = self.len.checked_sub(count)?;
        let taken = &self.ids[rest..self.len];
        self.len = rest;
        Some(taken.iter().rev().copied())
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

    fn row(&self, slot: u32) -> &[AtomicU32] {
        &self.ids[slot as usize * self.width..][..self.width]
    }

    /// Entry `index` of the slot's table.
    #[inline]
    pub(super) fn get(&self, slot: u32, index: usize) -> u32 {
        debug_assert!(index < self.width, "entry {index} of {}", self.width);
        // Relaxed: the reader either owns the sequence, whose own `&mut` calls are the
        // only ones that write this row, or holds the lock that they hold.
        self.ids[slot as usize * self.width + index].load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    refs: Box<[u32]>,
    free_blocks: FreeIds,
    held: Box<[u32]>,
    tokens: Box<[usize]>,
    free_slots: FreeIds,
    total_tokens: usize,
}

impl Ledger {
    pub(super) fn new(blocks: u32, slots: u32) -> Result<Self, KvError> {
        Ok(Self {
            refs: table(blocks as usize, |_| 0)?,
            free_blocks: FreeIds::full(blocks)?,
            held: table(slots as usize, |_| 0)?,
            tokens: table(slots as usize, |_| 0)?,
            free_slots: FreeIds::full(slots)?,
            total_tokens: 0,
        })
    }

    pub(super) fn free_block_count(&self) -> usize {
        self.free_blocks.len
    }

    pub(super) fn sequence_count(&self) -> usize {
        self.held.len() - self.free_slots.len
    }

    pub(super) fn token_count(&self) -> usize {
        self.total_tokens
    }

    /// A slot whose table holds `blocks` blocks; all or nothing.
    pub(super) fn open(&mut self, blocks: u32, rows: &TableRows) -> Result<u32, KvError> {
        let taken = self.free_slots.take(1).and_then(|mut slots| slots.next());
        let slot = taken.ok_or(KvError::OutOfSequences {
            max: self.held.len(),
        })?;
        if let Err(error) = self.take(slot, blocks, rows) {
            self.free_slots.give_back(slot);
            return Err(error);
        }
        Ok(slot)
    }

    /// Appends `blocks` free blocks to the slot's table; all or nothing.
    pub(super) fn take(&mut self, slot: u32, blocks: u32, rows: &TableRows) -> Result<(), KvError> {
        let held = &mut self.held[slot as usize];
        let entries = &rows.row(slot)[*held as usize..][..blocks as usize];
        let (need, free) = (entries.len(), self.free_blocks.len);
        let Some(taken) = self.free_blocks.take(need) else {
            let total = self.refs.len();
            return Err(KvError::OutOfBlocks {
                need,
                free,
                evictable: 0,
                total,
            });
        };
        for (entry, block) in entries.iter().zip(taken) {
            debug_assert_eq!(self.refs[block as usize], 0, "block {block} was free");
            self.refs[block as usize] = 1;
            // Relaxed: see `TableRows::get`.
            entry.store(block, Ordering::Relaxed);
        }
        *held += blocks;
        Ok(())
    }

    /// Gives back the blocks behind the first `keep` of the slot's table, last first.
    pub(super) fn give_back_tail(&mut self, slot: u32, keep: u32, rows: &TableRows) {
        let held = &mut self.held[slot as usize];
        while *held > keep {
            *held -= 1;
            let block = rows.get(slot, *held as usize);
            debug_assert_eq!(self.refs[block as usize], 1, "block {block} was held");
            self.refs[block as usize] = 0;
            self.free_blocks.give_back(block);
        }
    }

    /// Counts `tokens` more tokens of the slot as committed.
    pub(super) fn commit(&mut self, slot: u32, tokens: usize) {
        self.tokens[slot as usize] += tokens;
        self.total_tokens += tokens;
    }

    /// Ends the slot's sequence: its blocks go back, last first, and then the slot.
    pub(super) fn close(&mut self, slot: u32, rows: &TableRows) {
        self.give_back_tail(slot, 0, rows);
        self.total_tokens -= std::mem::take(&mut self.tokens[slot as usize]);
        self.free_slots.give_back(slot);
    }

    /// Every rule that ties the arrays together. Allocates; for tests.
    pub(super) fn check(&self, rows: &TableRows, block_tokens: usize) -> Result<(), KvError> {
        let rule = |holds: bool, what: &'static str, id: usize| match holds {
            true => Ok(()),
            false => Err(KvError::Inconsistent { what, id }),
        };
        let blocks = self.refs.len();
        let mut seen = vec![0_u32; blocks];
        for &block in self.free_blocks.free() {
            let id = block as usize;
            rule(id < blocks, "a free block is not of this cache", id)?;
            rule(self.refs[id] == 0, "a free block is referenced", id)?;
            seen[id] += 1;
            rule(seen[id] == 1, "a block is free twice", id)?;
        }
        let mut slots_seen = vec![false; self.held.len()];
        for &slot in self.free_slots.free() {
            let id = slot as usize;
            rule(
                id < slots_seen.len(),
                "a free slot is not of this cache",
                id,
            )?;
            rule(!slots_seen[id], "a sequence slot is free twice", id)?;
            slots_seen[id] = true;
            rule(self.held[id] == 0, "a free slot holds blocks", id)?;
            rule(self.tokens[id] == 0, "a free slot has tokens", id)?;
        }
        let (mut used, mut tokens) = (0, 0);
        for slot in 0..u32::try_from(self.held.len()).unwrap_or(u32::MAX) {
            let (id, held) = (slot as usize, self.held[slot as usize] as usize);
            rule(held <= rows.width, "a table is longer than its row", id)?;
            rule(
                self.tokens[id] <= held * block_tokens,
                "a slot has tokens without blocks",
                id,
            )?;
            for index in 0..held {
                let block = rows.get(slot, index) as usize;
                rule(
                    block < blocks,
                    "a table names a block not of this cache",
                    block,
                )?;
                rule(
                    self.refs[block] == 1,
                    "a block in a table has not one reference",
                    block,
                )?;
                seen[block] += 1;
                rule(seen[block] == 1, "a block is in two places", block)?;
            }
            used += held;
            tokens += self.tokens[id];
        }
        rule(
            used + self.free_blocks.len == blocks,
            "free + used is not the total",
            used,
        )?;
        rule(
            tokens == self.total_tokens,
            "token counts do not add up",
            tokens,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sequences() -> (Ledger, TableRows) {
        let rows = TableRows::new(3, 4).unwrap();
        let mut ledger = Ledger::new(6, 3).unwrap();
        ledger.open(2, &rows).unwrap();
        ledger.open(1, &rows).unwrap();
        ledger.check(&rows, 4).unwrap();
        (ledger, rows)
    }

    #[track_caller]
    fn assert_found(ledger: &Ledger, rows: &TableRows, what: &str) {
        let error = ledger.check(rows, 4).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }

    #[test]
    fn check_sees_every_kind_of_damage() {
        let (mut ledger, rows) = two_sequences();
        ledger.free_blocks.give_back(0);
        assert_found(&ledger, &rows, "a free block is referenced");

        let (mut ledger, rows) = two_sequences();
        ledger.free_blocks.give_back(5);
        assert_found(&ledger, &rows, "a block is free twice");

        let (ledger, rows) = two_sequences();
        rows.row(1)[0].store(0, Ordering::Relaxed);
        assert_found(&ledger, &rows, "a block is in two places");

        let (mut ledger, rows) = two_sequences();
        ledger.free_blocks.take(1);
        assert_found(&ledger, &rows, "free + used");

        let (mut ledger, rows) = two_sequences();
        ledger.refs[0] = 2;
        assert_found(&ledger, &rows, "not one reference");

        let (mut ledger, rows) = two_sequences();
        ledger.free_slots.give_back(2);
        assert_found(&ledger, &rows, "slot is free twice");

        let (mut ledger, rows) = two_sequences();
        ledger.commit(0, 9);
        assert_found(&ledger, &rows, "tokens without blocks");

        let (mut ledger, rows) = two_sequences();
        ledger.total_tokens = 1;
        assert_found(&ledger, &rows, "token counts");
    }

    #[test]
    fn blocks_come_back_in_front_last_one_first() {
        let (mut ledger, rows) = two_sequences();
        ledger.close(0, &rows); // held 0, 1
        let slot = ledger.open(4, &rows).unwrap();
        let taken: Vec<_> = (0..4).map(|index| rows.get(slot, index)).collect();
        assert_eq!(taken, [0, 1, 3, 4]);
        ledger.check(&rows, 4).unwrap();
    }

    #[test]
    fn tables_that_cannot_be_allocated_are_an_error() {
        assert!(matches!(
            TableRows::new(u32::MAX, u32::MAX),
            Err(KvError::TablesTooLarge { .. })
        ));
    }
}
