//! The shared tier: what is in no magazine, under one short lock.
//!
//! ```text
//!   warm      head -> 2 -> 5 -> nil      idle blocks, the last one back first
//!   cold      head -> 7 -> nil           idle blocks whose pages were given back
//!   rows      carved: 8 of 8, 3 of 8     blocks past these were never out
//! ```
//!
//! Links are numbers in the [table](super::table), never in the blocks: a stale write
//! through a raw pointer cannot corrupt a chain, and a block's own cache lines are not
//! touched to give it back. Chains are plain code for whoever has the lock (or the whole
//! chain). A batch costs one locking. Why a lock: `docs/decisions/0002`.

use super::table::{BLOCK_ROWS, TABLE_ROWS, Table};
use super::{NIL, PageSource, Region};

/// Blocks, one above the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) head: u32,
    pub(super) len: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { head: NIL, len: 0 };

    /// Puts `block` on top.
    ///
    /// # Safety
    /// The caller has the chain and `block` alone.
    pub(super) unsafe fn push(&mut self, table: &Table, block: u32) {
        // SAFETY: the caller has `block` alone.
        unsafe { table.set_next(block, self.head) };
        self.head = block;
        self.len += 1;
    }

    /// Takes the top.
    ///
    /// # Safety
    /// The caller has the chain alone.
    pub(super) unsafe fn pop(&mut self, table: &Table) -> Option<u32> {
        if self.head == NIL {
            return None;
        }
        let block = self.head;
        // SAFETY: the block is of the chain, which the caller has alone.
        self.head = unsafe { table.next(block) };
        self.len -= 1;
        Some(block)
    }
}

/// A row of blocks.
#[derive(Debug)]
pub(super) struct Row {
    /// Absent before the first block is used, and after the row was given back.
    pub(super) region: Option<Region>,
    /// Blocks from here on were not out since the region was reserved.
    pub(super) carved: u32,
}

/// All that is under the lock.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) warm: Chain,
    pub(super) cold: Chain,
    /// Idle blocks that a trim has in its hands.
    pub(super) detached: u32,
    /// Blocks of all rows that were out.
    pub(super) carved: u32,
    /// No row before this one has a block to carve.
    pub(super) open: usize,
    pub(super) rows: [Row; BLOCK_ROWS],
    pub(super) tables: [Option<Region>; TABLE_ROWS],
    /// Address space of all rows.
    pub(super) row_bytes: usize,
    /// Address space of all tables.
    pub(super) table_bytes: usize,
    /// As a magazine's, of those who found none.
    pub(super) in_use: usize,
    pub(super) requested_bytes: usize,
}

// SAFETY: the regions belong to the slab alone; which part of them is whose is
// decided under the lock and by who has a block's number.
unsafe impl Send for Tier {}

impl Tier {
    pub(super) fn new() -> Self {
        Self {
            warm: Chain::EMPTY,
            cold: Chain::EMPTY,
            detached: 0,
            carved: 0,
            open: 0,
            rows: [const {
                Row {
                    region: None,
                    carved: 0,
                }
            }; BLOCK_ROWS],
            tables: [const { None }; TABLE_ROWS],
            row_bytes: 0,
            table_bytes: 0,
            in_use: 0,
            requested_bytes: 0,
        }
    }

    /// A block goes out past the magazines.
    pub(super) fn count_out(&mut self, requested_bytes: usize) {
        self.in_use = self.in_use.wrapping_add(1);
        self.requested_bytes = self.requested_bytes.wrapping_add(requested_bytes);
    }

    /// A block comes back past the magazines.
    pub(super) fn count_back(&mut self, requested_bytes: usize) {
        self.in_use = self.in_use.wrapping_sub(1);
        self.requested_bytes = self.requested_bytes.wrapping_sub(requested_bytes);
    }

    /// The region of a row, to ask its source about a part of it.
    pub(super) fn region(&self, row: usize) -> Option<Region> {
        let region = self.rows[row].region.as_ref()?;
        Some(Region::new(region.base(), region.bytes(), region.align()))
    }

    /// Every region, the rows' and the tables'.
    pub(super) fn take_regions(&mut self) -> impl Iterator<Item = (Region, bool)> {
        let rows = self.rows.iter_mut();
        let rows = rows.filter_map(|row| row.region.take().map(|region| (region, true)));
        let tables = self.tables.iter_mut().filter_map(Option::take);
        rows.chain(tables.map(|region| (region, false)))
    }
}

/// A committed region of at least `bytes` bytes.
pub(super) fn map<P: PageSource>(
    pages: &P,
    bytes: usize,
    align: usize,
) -> Result<Region, super::AllocError> {
    let region = pages.reserve(bytes, align)?;
    // SAFETY: reserved from this source just now.
    match unsafe { pages.commit(&region, 0..region.bytes()) } {
        Ok(()) => Ok(region),
        Err(error) => {
            // SAFETY: reserved a moment ago, and nobody has seen it.
            unsafe { pages.release(region) };
            Err(error)
        }
    }
}
