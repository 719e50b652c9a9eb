//! The tables of the sequences, and which slots are free.

use crate::kv::KvError;
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU32;

use super::table;

/// Free slots, the next one at the end. Never grows.
#[derive(Debug)]
pub(super) struct FreeSlots {
    ids: Box<[u32]>,
    pub(super) len: usize,
}

impl FreeSlots {
    /// All ids below `count`, to be handed out in ascending order.
    pub(in crate::kv) fn full(count: u32) -> Result<Self, KvError> {
        let len = count as usize;
        let mut next = count;
        let ids = table(len, |_| {
            next -= 1;
            next
        })?;
        Ok(Self { ids, len })
    }

    pub(in crate::kv) fn next(&self) -> Option<u32> {
        self.free().last().copied()
    }

    /// Takes the [next](Self::next) one.
    pub(in crate::kv) fn take(&mut self) {
        self.len -= 1;
    }

    pub(in crate::kv) fn give_back(&mut self, id: u32) {
        self.ids[self.len] = id;
        self.len += 1;
    }

    pub(in crate::kv) fn free(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

/// The block tables of all sequence slots, one row each.
///
/// A row is written only under the cache's lock, by the call that owns its sequence mutably or
/// while its slot is nobody's; so it may be read by whoever borrows the sequence, without the
/// lock, and by whoever holds the lock.
#[derive(Debug)]
pub(in crate::kv) struct TableRows {
    ids: Box<[AtomicU32]>,
    pub(super) width: usize,
}

impl TableRows {
    pub(in crate::kv) fn new(rows: u32, width: u32) -> Result<Self, KvError> {
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

    /// Entry `index` of the slot's table.
    #[inline]
    pub(in crate::kv) fn get(&self, slot: u32, index: usize) -> u32 {
        debug_assert!(index < self.width, "entry {index} of {}", self.width);
        // Relaxed: the reader either owns the sequence, whose own `&mut` calls are the
        // only ones that write this row, or holds the lock that they hold.
        self.ids[slot as usize * self.width + index].load(Ordering::Relaxed)
    }

    pub(in crate::kv) fn set(&self, slot: u32, index: usize, block: u32) {
        // Relaxed: see `get`.
        self.ids[slot as usize * self.width + index].store(block, Ordering::Relaxed);
    }
}
