//! Batches of equal blocks between caches: from threads that only give back to those that only
//! take.
//!
//! ```text
//!   consumer's cache is full ──▶ | 8 x 64 KiB | 8 x 64 KiB | 8 x 1 MiB | … ──▶ producer's is empty
//! ```
//!
//! A cache that is full hands its oldest blocks on; where they are of one size they stay
//! together here, and whoever finds its own cache without that size takes a batch: a lock for
//! eight blocks, and no split or joining. Blocks of mixed sizes go to the heap, where they join.
//! As with the caches, the heap knows nothing of it, and it is emptied before the pool grows or
//! refuses anything.

use super::cache::{BATCH, Batch};

/// Batches that it holds.
const BATCHES: usize = 16;

/// Bytes in all of them.
const MOST_BYTES: usize = 16 << 20;

/// Under a lock of its own.
#[derive(Debug)]
pub(super) struct Depot {
    batches: [Batch; BATCHES],
    /// The first so many are there, the last of them came last.
    len: usize,
    bytes: usize,
}

impl Depot {
    pub(super) fn new() -> Self {
        Self {
            batches: [[None; BATCH]; BATCHES],
            len: 0,
            bytes: 0,
        }
    }

    /// Bytes of the blocks in it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A batch comes in, if it is whole and of one size and there is room.
    pub(super) fn push(&mut self, batch: &Batch) -> bool {
        let Some(Some(first)) = batch.first() else {
            return false;
        };
        let bytes = first.capacity * BATCH;
        let equal =
            (batch.iter()).all(|entry| entry.is_some_and(|entry| entry.capacity == first.capacity));
        if !equal || self.len == BATCHES || bytes > MOST_BYTES - self.bytes {
            return false;
        }
        self.batches[self.len] = *batch;
        self.len += 1;
        self.bytes += bytes;
        true
    }

    /// The batch of blocks of so many bytes that came last.
    pub(super) fn pop(&mut self, capacity: usize) -> Option<Batch> {
        let of_size = |batch: &Batch| batch[0].is_some_and(|entry| entry.capacity == capacity);
        let at = self.batches[..self.len].iter().rposition(of_size)?;
        Some(self.take(at))
    }

    /// Any batch.
    pub(super) fn pop_any(&mut self) -> Option<Batch> {
        self.len.checked_sub(1).map(|at| self.take(at))
    }

    fn take(&mut self, at: usize) -> Batch {
        let batch = self.batches[at];
        self.batches.copy_within(at + 1..self.len, at);
        self.len -= 1;
        let gone: usize = batch.iter().flatten().map(|entry| entry.capacity).sum();
        self.bytes -= gone;
        batch
    }
}
