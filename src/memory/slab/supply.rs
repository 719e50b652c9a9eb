//! Where a block is looked for, and where it goes back: from near to far.
//!
//! ```text
//!   take    magazine ─ tier ─ other magazines ─ cold blocks ─ fresh blocks ─ everything held
//!   put     magazine ─ tier, half a magazine at once
//! ```

use super::magazine::{BATCH, Held};
use super::table::{BLOCK_ROWS, table_bytes};
use super::tier::{Tier, map};
use super::{Bytes, HeaderSlot, NIL, PageSource, SlabAllocator};
use crate::memory::AllocError;
use crate::memory::poison::poison;
use crate::mutant::{self, Mutant};
use crate::sync::{MutexGuard, Patience};

impl<P: PageSource> SlabAllocator<P> {
    /// A block that nobody has, out of this thread's magazine or from further away.
    #[inline]
    pub(super) fn take(&self, requested_bytes: usize) -> Result<(u32, Bytes), AllocError> {
        match self.take_near(requested_bytes) {
            Ok(block) => Ok((block, Bytes::Anything)),
            Err(home) => self.take_from_tier(home, requested_bytes),
        }
    }

    /// A block out of this thread's magazine, or the magazine, which is empty, or neither.
    #[inline]
    pub(super) fn take_near(&self, requested_bytes: usize) -> Result<u32, Option<Held<'_>>> {
        let Some(mut held) = self.magazines.take() else {
            return Err(None);
        };
        let Some(block) = held.pop() else {
            return Err(Some(held));
        };
        held.count_out(requested_bytes);
        Ok(block)
    }

    /// `home` is empty, or there is none.
    #[cold]
    #[inline(never)]
    pub(super) fn take_from_tier(
        &self,
        mut home: Option<Held<'_>>,
        requested_bytes: usize,
    ) -> Result<(u32, Bytes), AllocError> {
        let steals = !mutant::is(Mutant::SlabStealsNothing);
        let mut patience = Patience::default();
        loop {
            let mut tier = self.tier.lock();
            if tier.warm.len == 0
                && steals
                && let Some(mut other) = self.magazines.idle().next()
            {
                let half = other.len().div_ceil(2);
                // SAFETY: the lock is held, and `drain` hands over blocks of its own.
                other.drain(half, |block| unsafe { tier.warm.push(&self.table, block) });
            }
            if tier.warm.len > 0 {
                let block = self.pop_batch(tier, &mut home, requested_bytes);
                return Ok((block, Bytes::Anything));
            }
            // SAFETY: the lock is held.
            if let Some(block) = unsafe { tier.cold.pop(&self.table) } {
                tier.count_out(requested_bytes);
                self.warm_up(tier, home, block, requested_bytes)?;
                return Ok((block, Bytes::Anything));
            }
            let (mut tier, carved) = self.carve(tier);
            if let Some(block) = carved? {
                tier.count_out(requested_bytes);
                return Ok((block, Bytes::Zero));
            }
            // Nothing anywhere. But magazines that were taken just now may have blocks,
            // and blocks may have moved behind our back: hold everything at once.
            drop(home.take());
            match self.magazines.take_all() {
                Some(all) => {
                    let mut found = false;
                    for mut held in all.into_iter().filter(|_| steals) {
                        found |= held.len() > 0;
                        // SAFETY: the lock is held, and the blocks were the magazine's.
                        held.drain(usize::MAX, |block| unsafe {
                            tier.warm.push(&self.table, block);
                        });
                    }
                    let trimmed = tier.detached > 0 && !mutant::is(Mutant::SlabForgetsTrim);
                    if !found && !trimmed {
                        return Err(AllocError::Exhausted {
                            blocks: self.blocks,
                        });
                    }
                    drop(tier);
                    if !found {
                        // The trim that has them hangs them in again before it ends.
                        drop(self.trimming.lock());
                    }
                }
                None => {
                    if mutant::is(Mutant::SlabExhaustedEarly) {
                        return Err(AllocError::Exhausted {
                            blocks: self.blocks,
                        });
                    }
                    drop(tier);
                    patience.wait();
                }
            }
        }
    }

    /// A warm block, and some more for the magazine.
    fn pop_batch<'a>(
        &'a self,
        mut tier: MutexGuard<'a, Tier>,
        home: &mut Option<Held<'_>>,
        requested_bytes: usize,
    ) -> u32 {
        let mut batch = [NIL; BATCH];
        let want = if home.is_some() { BATCH } else { 1 };
        let mut got = 0;
        if mutant::is(Mutant::SlabStaleNext) {
            let mut seen = tier.warm;
            while got < want
                // SAFETY: the lock is held, still.
                && let Some(block) = unsafe { seen.pop(&self.table) }
            {
                batch[got] = block;
                got += 1;
            }
            drop(tier);
            tier = self.tier.lock();
            tier.warm = seen;
        } else {
            while got < want
                // SAFETY: the lock is held.
                && let Some(block) = unsafe { tier.warm.pop(&self.table) }
            {
                batch[got] = block;
                got += 1;
            }
        }
        match home {
            Some(held) => {
                drop(tier);
                held.fill(&batch[1..got]);
                held.count_out(requested_bytes);
            }
            None => tier.count_out(requested_bytes),
        }
        batch[0]
    }

    /// The pages of a block that were given back come again. It is out already. Where
    /// blocks share a page its neighbours come with it, for the magazine: one system call
    /// for all of them.
    fn warm_up(
        &self,
        mut tier: MutexGuard<'_, Tier>,
        mut home: Option<Held<'_>>,
        block: u32,
        requested_bytes: usize,
    ) -> Result<(), AllocError> {
        let (row, _) = self.rows.place(block);
        let Some(region) = tier.region(row) else {
            unreachable!("a row with a block that is out is there")
        };
        let page = self.pages.page_bytes();
        // Nobody has to go past a magazine during a call for one block.
        home = home.filter(|_| self.block_bytes < page);
        let want = if home.is_some() { BATCH } else { 1 };
        let mut batch = [NIL; BATCH];
        batch[0] = block;
        let mut got = 1;
        while got < want && tier.cold.head == batch[got - 1] + 1 {
            if self.rows.place(tier.cold.head).0 != row {
                break;
            }
            // SAFETY: the lock is held.
            let Some(next) = (unsafe { tier.cold.pop(&self.table) }) else {
                break;
            };
            batch[got] = next;
            got += 1;
        }
        drop(tier);
        let bytes = self.bytes_of(&(block..batch[got - 1] + 1));
        let end = bytes.end.next_multiple_of(page).min(region.bytes());
        // Also the pages that they share with others: those are committed, or cold too.
        let range = bytes.start / page * page..end;
        // SAFETY: a copy of the row's own region, which stays while one of its blocks is out.
        if let Err(error) = unsafe { self.pages.commit(&region, range) } {
            let mut tier = self.tier.lock();
            for &block in batch[..got].iter().rev() {
                // SAFETY: the lock is held, and the block is ours.
                unsafe { tier.cold.push(&self.table, block) };
            }
            tier.count_back(requested_bytes);
            return Err(error);
        }
        if let Some(held) = &mut home {
            held.fill(&batch[1..got]);
        }
        Ok(())
    }

    /// A block that was not out since its row came. `None`: there is none.
    fn carve<'a>(
        &'a self,
        mut tier: MutexGuard<'a, Tier>,
    ) -> (MutexGuard<'a, Tier>, Result<Option<u32>, AllocError>) {
        while tier.open < BLOCK_ROWS {
            let row = tier.open;
            let index = tier.rows[row].carved;
            let first = self.rows.first(row);
            if first >= u64::from(self.blocks) {
                break;
            }
            if index == self.rows.len(row, self.blocks) {
                tier.open += 1;
                continue;
            }
            // No overflow: below the number of blocks, which is a u32.
            let Ok(block) = u32::try_from(first + u64::from(index)) else {
                break;
            };
            if let Err(error) = self.grow(&mut tier, row, block) {
                return (tier, Err(error));
            }
            if mutant::is(Mutant::SlabGrowTwoSteps) {
                drop(tier);
                tier = self.tier.lock();
            }
            tier.rows[row].carved = index + 1;
            tier.carved += 1;
            return (tier, Ok(Some(block)));
        }
        (tier, Ok(None))
    }

    /// Reserves what is missing for `block`: its row, and its part of the table.
    fn grow(&self, tier: &mut Tier, row: usize, block: u32) -> Result<(), AllocError> {
        let (table_row, _) = self.table.rows.place(block);
        if tier.tables[table_row].is_none() {
            let bytes = table_bytes(self.table.rows.len(table_row, self.blocks));
            let region = map(&self.pages, bytes, HeaderSlot::ALIGN)?;
            tier.table_bytes += region.bytes();
            self.table.rows.set(table_row, Some(region.base()));
            tier.tables[table_row] = Some(region);
        }
        if tier.rows[row].region.is_none() {
            let bytes = self.rows.len(row, self.blocks) as usize * self.block_bytes;
            let region = map(&self.pages, bytes, self.align)?;
            // SAFETY: committed, and no block of it is out.
            unsafe { poison(region.base(), region.bytes()) };
            tier.row_bytes += region.bytes();
            self.rows.set(row, Some(region.base()));
            tier.rows[row].region = Some(region);
        }
        Ok(())
    }

    /// Takes a block back, into this thread's magazine or further away.
    #[inline]
    pub(super) fn put(&self, block: u32, requested_bytes: usize) {
        let Some(mut held) = self.magazines.take() else {
            return self.put_into_tier(block, requested_bytes);
        };
        held.count_back(requested_bytes);
        if !held.push(block) {
            self.put_into_full(held, block);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_into_full(&self, mut held: Held<'_>, block: u32) {
        self.flush_some(&mut held, BATCH);
        held.push(block);
    }

    #[cold]
    #[inline(never)]
    fn put_into_tier(&self, block: u32, requested_bytes: usize) {
        let mut tier = self.tier.lock();
        // SAFETY: the lock is held, and the block is ours.
        unsafe { tier.warm.push(&self.table, block) };
        tier.count_back(requested_bytes);
    }

    /// The blocks of a magazine that came first go to the tier.
    fn flush_some(&self, held: &mut Held<'_>, count: usize) {
        let mut tier = self.tier.lock();
        if mutant::is(Mutant::SlabPushTwoSteps) {
            let mut seen = tier.warm;
            // SAFETY: the lock is held, still.
            held.drain(count, |block| unsafe { seen.push(&self.table, block) });
            drop(tier);
            self.tier.lock().warm = seen;
            return;
        }
        // SAFETY: the lock is held, and `drain` hands over blocks of its own.
        held.drain(count, |block| unsafe { tier.warm.push(&self.table, block) });
    }

    /// Moves the blocks of all magazines to the shared tier, where every thread finds
    /// them at once. What a thread is doing at this very moment is left alone. No call
    /// needs it: whoever finds nothing else steals.
    pub fn flush(&self) {
        for mut held in self.magazines.idle() {
            self.flush_some(&mut held, usize::MAX);
        }
    }
}
