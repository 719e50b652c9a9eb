//! Blocks of the heap at hand: what a thread or a worker gave back and may want again.
//!
//! ```text
//!   | len | pages | out | hits | (piece, start, pages) … |      the last one back is on top
//! ```
//!
//! A block goes out of a cache again only for exactly as many pages: no search, no lock, no
//! split. To the heap a cached block is still somebody's, so before the pool grows or refuses
//! anything all caches are emptied, and what was in them joins its neighbours.
//!
//! Whoever has the place that a cache is at has the cache: the [seat](crate::memory::seat) of
//! its thread, the place of a [`LocalCache`](super::LocalCache), or any of them by stealing.

use crate::memory::seat::Held;
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Ordering, UnsafeCell};

/// Blocks that one holds.
const ENTRIES: usize = if cfg!(loom) { 2 } else { 16 };

/// Blocks that go to the heap at once.
pub(super) const BATCH: usize = ENTRIES / 2;

/// Calls at a place that are one step of the pool's time.
pub(super) const STEP: u32 = 64;

/// A block of the heap that nobody uses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) piece: u32,
    pub(super) start: u32,
    pub(super) pages: u32,
}

/// What a cache may hold, in pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// In one block.
    pub(super) block: u32,
    /// In all.
    pub(super) all: u32,
}

#[derive(Debug)]
pub(super) struct Cache {
    /// Only who has the cache writes these; others may look.
    len: AtomicU32,
    pages: AtomicU32,
    /// Bytes asked for by blocks of the heap that went out here less those that came back,
    /// wrapping.
    requested_bytes: AtomicUsize,
    /// Blocks that went out of the cache.
    hits: AtomicUsize,
    /// Calls since the last step.
    calls: AtomicU32,
    entries: UnsafeCell<[Entry; ENTRIES]>,
}

// SAFETY: `entries` is reached by whoever has the place only (`Held`); all else is atomic.
unsafe impl Sync for Cache {}

impl Default for Cache {
    fn default() -> Self {
        Self {
            len: AtomicU32::new(0),
            pages: AtomicU32::new(0),
            requested_bytes: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
            calls: AtomicU32::new(0),
            entries: UnsafeCell::new([Entry::default(); ENTRIES]),
        }
    }
}

impl Cache {
    /// Is nothing in it? To look at.
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: for who has it, its own last write; for others a first look.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Pages in it, bytes asked for (wrapping), and hits. To look at.
    pub(super) fn counts(&self) -> (u32, usize, usize) {
        // Relaxed, all: numbers to look at.
        let pages = self.pages.load(Ordering::Relaxed);
        let requested = self.requested_bytes.load(Ordering::Relaxed);
        (pages, requested, self.hits.load(Ordering::Relaxed))
    }
}

/// A cache that nobody else has; dropping leaves it.
#[derive(Debug)]
pub(super) struct Own<'a>(pub(super) Held<'a, Cache>);

impl Own<'_> {
    #[inline]
    fn with<R>(&mut self, work: impl FnOnce(&mut [Entry; ENTRIES]) -> R) -> R {
        self.0.entries.with_mut(|entries| {
            // SAFETY: a live cell, and nobody else reaches into it: the place made us the only
            // one who has the cache, and `&mut self` keeps us from coming twice.
            work(unsafe { &mut *entries })
        })
    }

    #[inline]
    fn set(&mut self, len: usize, pages: u32) {
        debug_assert!(len <= ENTRIES);
        #[allow(clippy::cast_possible_truncation, reason = "at most ENTRIES")]
        self.0.len.store(len as u32, Ordering::Relaxed);
        self.0.pages.store(pages, Ordering::Relaxed);
    }

    /// The block of so many pages that came last and `fits`, for `requested` bytes.
    #[inline]
    pub(super) fn pop(
        &mut self,
        pages: u32,
        requested: usize,
        fits: impl Fn(&Entry) -> bool,
    ) -> Option<Entry> {
        // Relaxed, here and below: who has it sees its own writes and those of whoever had it
        // before; leaving the place publishes them.
        let len = self.0.len.load(Ordering::Relaxed) as usize;
        let found = self.with(|entries| {
            let wanted = |entry: &Entry| entry.pages == pages && fits(entry);
            let at = entries[..len].iter().rposition(wanted)?;
            let entry = entries[at];
            entries.copy_within(at + 1..len, at);
            Some(entry)
        })?;
        self.set(len - 1, self.0.pages.load(Ordering::Relaxed) - pages);
        self.count_out(requested);
        let hits = self.0.hits.load(Ordering::Relaxed);
        self.0.hits.store(hits.wrapping_add(1), Ordering::Relaxed);
        Some(found)
    }

    /// Puts a block in. `Err` where there is no room for it among the others.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry, room: Room) -> Result<(), ()> {
        let len = self.0.len.load(Ordering::Relaxed) as usize;
        let pages = self
            .0
            .pages
            .load(Ordering::Relaxed)
            .saturating_add(entry.pages);
        if len == ENTRIES || pages > room.all {
            return Err(());
        }
        self.with(|entries| entries[len] = entry);
        self.set(len + 1, pages);
        Ok(())
    }

    /// The blocks that came first leave, at most [`BATCH`].
    pub(super) fn drain(&mut self) -> ([Entry; BATCH], usize) {
        let len = self.0.len.load(Ordering::Relaxed) as usize;
        self.drain_some(len.min(BATCH))
    }

    /// Some of the blocks that came first leave, for one of `pages` pages: as many as it takes,
    /// or [`BATCH`].
    pub(super) fn make_room(&mut self, pages: u32, room: Room) -> ([Entry; BATCH], usize) {
        let len = self.0.len.load(Ordering::Relaxed) as usize;
        if len == ENTRIES {
            return self.drain();
        }
        let mut over =
            (self.0.pages.load(Ordering::Relaxed).saturating_add(pages)).saturating_sub(room.all);
        let count = self.with(|entries| {
            let enough = entries[..len].iter().take_while(|entry| {
                let more = over > 0;
                over = over.saturating_sub(entry.pages);
                more
            });
            enough.count()
        });
        self.drain_some(count.min(BATCH))
    }

    fn drain_some(&mut self, count: usize) -> ([Entry; BATCH], usize) {
        let len = self.0.len.load(Ordering::Relaxed) as usize;
        let mut batch = [Entry::default(); BATCH];
        self.with(|entries| {
            batch[..count].copy_from_slice(&entries[..count]);
            entries.copy_within(count..len, 0);
        });
        let gone: u32 = batch[..count].iter().map(|entry| entry.pages).sum();
        self.set(len - count, self.0.pages.load(Ordering::Relaxed) - gone);
        (batch, count)
    }

    /// So many bytes that had been asked for came back, of a block that may have gone out
    /// elsewhere.
    #[inline]
    pub(super) fn count_back(&mut self, requested: usize) {
        self.count_out(requested.wrapping_neg());
    }

    /// So many bytes more were asked for.
    #[inline]
    pub(super) fn count_out(&mut self, requested: usize) {
        let sum = self.0.requested_bytes.load(Ordering::Relaxed);
        let sum = sum.wrapping_add(requested);
        self.0.requested_bytes.store(sum, Ordering::Relaxed);
    }

    /// One call. `true`: another [`STEP`] of them are done.
    #[inline]
    pub(super) fn count_call(&mut self) -> bool {
        let calls = self.0.calls.load(Ordering::Relaxed) + 1;
        self.0.calls.store(calls % STEP, Ordering::Relaxed);
        calls == STEP
    }
}
