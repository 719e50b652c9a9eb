//! Giving pages back: what is idle leaves circulation, goes, and comes back without pages.
//!
//! ```text
//!   under the lock     detach both chains                   O(1)
//!   outside it         sort them by number                  no heap block: the links are used
//!   under the lock     rows that are wholly idle leave
//!   outside it         release those; decommit the rest, neighbours in one call
//!   under the lock     hang in what is left: decommitted blocks are cold
//! ```

use super::super::poison::unpoison;
use super::rows::{BLOCK_ROWS, Table};
use super::tier::Chain;
use super::{NIL, PageSource, Region, SlabAllocator};

/// A chain that also knows its bottom, so that it can be hung on another at once.
#[derive(Debug, Clone, Copy)]
struct Line {
    chain: Chain,
    last: u32,
}

impl Line {
    const EMPTY: Line = Line {
        chain: Chain::EMPTY,
        last: NIL,
    };

    /// Adds `block` at the bottom.
    ///
    /// # Safety
    /// The caller has the line and `block` alone.
    unsafe fn append(&mut self, table: &Table, block: u32) {
        // SAFETY: the caller has `block` alone.
        unsafe { table.set_next(block, NIL) };
        if self.last == NIL {
            self.chain.head = block;
        } else {
            // SAFETY: the last block is of the line, which the caller has alone.
            unsafe { table.set_next(self.last, block) };
        }
        self.last = block;
        self.chain.len += 1;
    }

    /// Puts the whole line on top of `chain`.
    ///
    /// # Safety
    /// The caller has both alone.
    unsafe fn hang_on(self, table: &Table, chain: &mut Chain) {
        if self.last == NIL {
            return;
        }
        // SAFETY: the last block is of the line, which the caller has alone.
        unsafe { table.set_next(self.last, chain.head) };
        chain.head = self.chain.head;
        chain.len += self.chain.len;
    }
}

/// Sorts a chain by number, the smallest on top: a merge sort over the links.
///
/// # Safety
/// The caller has the chain alone.
unsafe fn sort(table: &Table, mut chain: Chain) -> Chain {
    // The i-th is empty or a sorted chain of 2^i blocks.
    let mut sorted = [Chain::EMPTY; u32::BITS as usize];
    // SAFETY: the caller has the chain alone.
    while let Some(block) = unsafe { chain.pop(table) } {
        let mut one = Chain::EMPTY;
        // SAFETY: the block just left the chain, and this one is ours.
        unsafe { one.push(table, block) };
        for slot in &mut sorted {
            if slot.len == 0 {
                *slot = one;
                break;
            }
            // SAFETY: both are ours.
            one = unsafe { merge(table, std::mem::replace(slot, Chain::EMPTY), one) };
        }
    }
    sorted.into_iter().fold(Chain::EMPTY, |all, slot| {
        // SAFETY: both are ours.
        unsafe { merge(table, slot, all) }
    })
}

/// Two sorted chains as one.
///
/// # Safety
/// The caller has both alone.
unsafe fn merge(table: &Table, mut left: Chain, mut right: Chain) -> Chain {
    let mut merged = Line::EMPTY;
    loop {
        // NIL is above every number, so an empty chain never wins.
        let from = if left.head < right.head {
            &mut left
        } else {
            &mut right
        };
        // SAFETY: the caller has both chains alone.
        let Some(block) = (unsafe { from.pop(table) }) else {
            return merged.chain;
        };
        // SAFETY: the block just left its chain, and the line is ours.
        unsafe { merged.append(table, block) };
    }
}

type ByRow = [Line; BLOCK_ROWS];

impl<P: PageSource> SlabAllocator<P> {
    /// Gives back what is idle. Returns the bytes that went.
    pub(super) fn trim_idle(&self) -> usize {
        let _alone = self.trimming.lock();
        self.flush();
        let (warm, cold) = {
            let mut tier = self.tier.lock();
            let chains = (tier.warm, tier.cold);
            (tier.warm, tier.cold) = (Chain::EMPTY, Chain::EMPTY);
            tier.detached = chains.0.len + chains.1.len;
            chains
        };
        // SAFETY: detached, so nobody else has it.
        let mut warm = unsafe { self.by_row(warm) };
        // SAFETY: detached, so nobody else has it.
        let mut cold = unsafe { self.by_row(cold) };
        let mut gone = [const { None }; BLOCK_ROWS];
        let mut stays = [const { None }; BLOCK_ROWS];
        let mut given_back = 0;
        {
            let mut tier = self.tier.lock();
            for row in 0..BLOCK_ROWS {
                let (idle, carved) = (warm[row].chain.len, tier.rows[row].carved);
                if carved == 0 || idle + cold[row].chain.len != carved {
                    stays[row] = tier.region(row);
                    continue;
                }
                gone[row] = tier.rows[row].region.take();
                self.rows.set(row, None);
                tier.rows[row].carved = 0;
                tier.carved -= carved;
                tier.detached -= carved;
                tier.open = tier.open.min(row);
                tier.reserved_bytes -= gone[row].as_ref().map_or(0, Region::bytes);
                // Their numbers are carved again some day; the links mean nothing now.
                (warm[row], cold[row]) = (Line::EMPTY, Line::EMPTY);
                // The pages of the cold ones went before.
                given_back += idle as usize * self.block_bytes;
            }
        }
        for region in gone.into_iter().flatten() {
            // SAFETY: still mapped. The address range may be somebody else's next.
            unsafe { unpoison(region.base(), region.bytes()) };
            // SAFETY: from this slab's source, once, and none of its blocks is out.
            unsafe { self.pages.release(region) };
        }
        if self.block_bytes >= self.pages.page_bytes() {
            for (row, region) in stays.iter().enumerate() {
                if let Some(region) = region {
                    // SAFETY: the lines are ours, and of this row.
                    given_back += unsafe { self.cool(row, region, &mut warm[row], &mut cold[row]) };
                }
            }
        }
        let mut tier = self.tier.lock();
        // The first row last, so that it is on top: the later rows get idle first.
        for (warm, cold) in warm.into_iter().zip(cold).rev() {
            // SAFETY: the line is ours, and the lock is held.
            unsafe { warm.hang_on(&self.table, &mut tier.warm) };
            // SAFETY: the line is ours, and the lock is held.
            unsafe { cold.hang_on(&self.table, &mut tier.cold) };
        }
        tier.detached = 0;
        given_back
    }

    /// The blocks of a chain by their row, each row in order.
    ///
    /// # Safety
    /// The caller has the chain alone.
    unsafe fn by_row(&self, chain: Chain) -> ByRow {
        let mut rows = [Line::EMPTY; BLOCK_ROWS];
        // SAFETY: the caller has the chain alone.
        let mut chain = unsafe { sort(&self.table, chain) };
        // SAFETY: the caller has the chain alone.
        while let Some(block) = unsafe { chain.pop(&self.table) } {
            let (row, _) = self.rows.place(block);
            // SAFETY: the block just left the chain, and the line is ours.
            unsafe { rows[row].append(&self.table, block) };
        }
        rows
    }

    /// Decommits the warm blocks of one row, neighbours in one call, which are cold then.
    /// Returns the bytes that went.
    ///
    /// # Safety
    /// The caller has both lines alone; they are of this row, `warm` in order. `region` is
    /// a copy of the row's, of which a block is out or in the caller's hands.
    unsafe fn cool(&self, row: usize, region: &Region, warm: &mut Line, cold: &mut Line) -> usize {
        let mut left = std::mem::replace(warm, Line::EMPTY).chain;
        let mut given_back = 0;
        // SAFETY: ours.
        let mut next = unsafe { left.pop(&self.table) };
        while let Some(first) = next {
            let mut end = first + 1;
            loop {
                // SAFETY: ours.
                next = unsafe { left.pop(&self.table) };
                if next != Some(end) {
                    break;
                }
                end += 1;
            }
            // SAFETY: idle blocks of this row, in our hands.
            let gone = unsafe { self.decommit(row, region, first, end) };
            given_back += gone.unwrap_or(0);
            let line = if gone.is_some() {
                &mut *cold
            } else {
                &mut *warm
            };
            for block in first..end {
                // SAFETY: the block left its chain, and the line is ours.
                unsafe { line.append(&self.table, block) };
            }
        }
        given_back
    }

    /// Decommits the pages that are wholly in the blocks from `first` to `end`.
    /// `None`: nothing went, and the blocks are as they were.
    ///
    /// # Safety
    /// The blocks are of this row, `region` is a copy of the row's, which stays, and
    /// the caller has the blocks alone.
    unsafe fn decommit(&self, row: usize, region: &Region, first: u32, end: u32) -> Option<usize> {
        let page = self.pages.page_bytes();
        let (_, index) = self.rows.place(first);
        debug_assert_eq!(self.rows.place(first).0, row);
        let start = index as usize * self.block_bytes;
        let after = start + (end - first) as usize * self.block_bytes;
        let range = start.next_multiple_of(page)..after / page * page;
        if range.is_empty() {
            return None;
        }
        // SAFETY: in the region, whole pages, wholly of blocks that nobody uses until
        // they are committed again.
        let bytes = unsafe { self.pages.decommit(region, range.clone()) };
        if bytes == 0 {
            // SAFETY: a copy of the row's own region.
            if unsafe { self.pages.commit(region, range) }.is_ok() {
                return None;
            }
        }
        Some(bytes)
    }
}
