//! Giving pages back: what is idle leaves circulation, goes, and comes back without pages.
//!
//! ```text
//!   under the lock     detach both chains                   O(1)
//!   outside it         sort them by number                  no heap block: the links are used
//!   under the lock     rows that are wholly idle leave
//!   outside it         release those; decommit the rest, neighbours in one call
//!   under the lock     hang in what is left: decommitted blocks are cold
//! ```
//!
//! What goes is whole pages of which every block is idle, also where many blocks share a
//! page. A page is committed as long as one of its blocks is out or warm: a block that is
//! cold may have lost any of its pages, and gets all of them back before it goes out.

use std::ops::Range;

use super::super::pages::resident_region;
use super::super::poison::unpoison;
use super::table::{BLOCK_ROWS, Table};
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

/// Idle blocks one after the other, as many as there are.
struct Run {
    blocks: Range<u32>,
    /// Those of them whose pages are there, in order.
    warm: Chain,
    /// Those of them that may have lost pages, in order.
    cold: Chain,
}

impl Run {
    /// Takes the first run out of two sorted chains, the warm and the cold.
    ///
    /// # Safety
    /// The caller has both alone.
    unsafe fn pop(table: &Table, chains: &mut [Chain; 2]) -> Option<Run> {
        // NIL is above every number.
        let first = chains[0].head.min(chains[1].head);
        if first == NIL {
            return None;
        }
        let mut end = first;
        let mut lines = [Line::EMPTY; 2];
        // No overflow: the largest slab ends two numbers below NIL.
        while let Some(from) = chains.iter().position(|chain| chain.head == end)
            // SAFETY: the caller has the chain alone.
            && let Some(block) = unsafe { chains[from].pop(table) }
        {
            // SAFETY: the block just left its chain, and the line is ours.
            unsafe { lines[from].append(table, block) };
            end += 1;
        }
        let [warm, cold] = lines.map(|line| line.chain);
        Some(Run {
            blocks: first..end,
            warm,
            cold,
        })
    }
}

/// The idle blocks that a trim has in its hands; dropping hangs in what is left of them.
struct Detached<'a, P: PageSource> {
    slab: &'a SlabAllocator<P>,
    warm: ByRow,
    cold: ByRow,
}

impl<P: PageSource> Drop for Detached<'_, P> {
    fn drop(&mut self) {
        let table = &self.slab.table;
        let mut tier = self.slab.tier.lock();
        // The first row last, so that it is on top: the later rows get idle first.
        for (&warm, &cold) in self.warm.iter().zip(&self.cold).rev() {
            // SAFETY: the line is ours, and the lock is held.
            unsafe { warm.hang_on(table, &mut tier.warm) };
            // SAFETY: the line is ours, and the lock is held.
            unsafe { cold.hang_on(table, &mut tier.cold) };
        }
        tier.detached = 0;
    }
}

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
        // From here on whatever happens, a source that panics too, hangs them in again.
        let mut detached = Detached {
            slab: self,
            // SAFETY: detached, so nobody else has it.
            warm: unsafe { self.by_row(warm) },
            // SAFETY: detached, so nobody else has it.
            cold: unsafe { self.by_row(cold) },
        };
        let Detached { warm, cold, .. } = &mut detached;
        let mut gone = [const { None }; BLOCK_ROWS];
        let mut stays = [const { None }; BLOCK_ROWS];
        let mut unless_known = [0; BLOCK_ROWS];
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
                tier.row_bytes -= gone[row].as_ref().map_or(0, Region::bytes);
                // Their numbers are carved again some day; the links mean nothing now.
                (warm[row], cold[row]) = (Line::EMPTY, Line::EMPTY);
                // The pages of the cold ones went before.
                unless_known[row] = idle as usize * self.block_bytes;
            }
        }
        for (region, unless_known) in gone.into_iter().zip(unless_known) {
            let Some(region) = region else { continue };
            given_back += resident_region(&region).unwrap_or(unless_known);
            // SAFETY: still mapped. The address range may be somebody else's next.
            unsafe { unpoison(region.base(), region.bytes()) };
            // SAFETY: from this slab's source, once, and none of its blocks is out.
            unsafe { self.pages.release(region) };
        }
        for (row, region) in stays.iter().enumerate() {
            if let Some(region) = region {
                // SAFETY: the lines are ours, in order, and of this row.
                given_back += unsafe { self.cool(region, &mut warm[row], &mut cold[row]) };
            }
        }
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

    /// Decommits what pages of one row are wholly idle, neighbours in one call; their
    /// blocks are cold then. Returns the bytes that went.
    ///
    /// # Safety
    /// The caller has both lines alone; they are of one row and in order. `region` is a copy
    /// of the row's, of which a block is out or in the caller's hands.
    unsafe fn cool(&self, region: &Region, warm: &mut Line, cold: &mut Line) -> usize {
        let mut left =
            [&mut *warm, &mut *cold].map(|line| std::mem::replace(line, Line::EMPTY).chain);
        let mut given_back = 0;
        // SAFETY: ours.
        while let Some(mut run) = unsafe { Run::pop(&self.table, &mut left) } {
            // SAFETY: ours.
            while let Some(block) = unsafe { run.cold.pop(&self.table) } {
                // SAFETY: the block left its chain, and the line is ours.
                unsafe { cold.append(&self.table, block) };
            }
            // How far the pages of this run were decommitted just now.
            let mut gone_to = 0;
            // SAFETY: ours.
            while let Some(first) = unsafe { run.warm.pop(&self.table) } {
                let mut end = first + 1;
                while run.warm.head == end {
                    // SAFETY: ours.
                    let _same = unsafe { run.warm.pop(&self.table) };
                    end += 1;
                }
                let mut pages = self.idle_pages(region, &run.blocks, &(first..end));
                pages.start = pages.start.max(gone_to);
                // SAFETY: whole pages of this row, wholly of idle blocks, in our hands.
                // They are committed: each is of a warm block, and none went before.
                let gone = unsafe { self.decommit(region, &pages) };
                given_back += gone.unwrap_or(0);
                for block in first..end {
                    let bytes = self.bytes_of(&(block..block + 1));
                    let went = bytes.start < pages.end && pages.start < bytes.end;
                    let line = if bytes.start < gone_to || (went && gone.is_some()) {
                        &mut *cold
                    } else {
                        &mut *warm
                    };
                    // SAFETY: the block left its chain, and the line is ours.
                    unsafe { line.append(&self.table, block) };
                }
                if gone.is_some() {
                    gone_to = pages.end;
                }
            }
        }
        given_back
    }

    /// Where the blocks of a range, all of one row, are in the row's region.
    pub(super) fn bytes_of(&self, blocks: &Range<u32>) -> Range<usize> {
        let (_, index) = self.rows.place(blocks.start);
        let start = index as usize * self.block_bytes;
        start..start + blocks.len() * self.block_bytes
    }

    /// The pages that `warm` has a part in, and of which all blocks are in `idle`; `warm` is
    /// part of it, and both are of the row that has `region`. Where there are none the range
    /// is empty.
    fn idle_pages(&self, region: &Region, idle: &Range<u32>, warm: &Range<u32>) -> Range<usize> {
        let page = self.pages.page_bytes();
        let (row, index) = self.rows.place(idle.start);
        let ends_row =
            u64::from(index) + idle.len() as u64 == u64::from(self.rows.len(row, self.blocks));
        let (idle, warm) = (self.bytes_of(idle), self.bytes_of(warm));
        let start = idle.start.next_multiple_of(page);
        // Behind the last block of a row is nobody.
        let end = if ends_row {
            region.bytes()
        } else {
            idle.end / page * page
        };
        start.max(warm.start / page * page)..end.min(warm.end.next_multiple_of(page))
    }

    /// Decommits some pages of a row. `None`: nothing went, and they are as they were.
    ///
    /// # Safety
    /// `region` is a copy of the row's, which stays; the pages are committed and wholly of
    /// blocks that the caller has alone.
    unsafe fn decommit(&self, region: &Region, pages: &Range<usize>) -> Option<usize> {
        if pages.is_empty() {
            return None;
        }
        // SAFETY: in the region, whole pages, committed, wholly of blocks that nobody uses
        // until they are committed again.
        unsafe { self.pages.decommit(region, pages.clone()) }
    }
}
