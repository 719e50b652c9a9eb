//! Blocks of the heap at hand: what a thread or a worker gave back and may want again.
//!
//! ```text
//!   | len | bytes | out | hits | (start, capacity, …) … |      the last one back is on top
//! ```
//!
//! A block goes out of a cache again only for exactly as many pages: no lock, no search, no
//! split. To the heap a cached block is still somebody's, so before the pool grows or refuses
//! anything all caches are emptied, and what was in them joins its neighbours.
//!
//! Whoever has the place that a cache is at has the cache: the [seat](crate::memory::seat) of
//! its thread, the place of a [`LocalCache`](super::LocalCache), or any of them by stealing.

use std::ptr::NonNull;

use crate::memory::seat::Held;
use crate::memory::{Block, HeaderSlot, Request};
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Ordering, UnsafeCell};

/// Blocks that one holds.
const ENTRIES: usize = if cfg!(loom) { 2 } else { 16 };

/// Blocks that go to the heap at once.
pub(super) const BATCH: usize = ENTRIES / 2;

/// Calls at a place that are one step of the pool's time.
pub(super) const STEP: u32 = 64;

/// A block of the heap that nobody uses: all that it takes to hand it out again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) start: NonNull<u8>,
    /// Bytes, whole pages.
    pub(super) capacity: usize,
    pub(super) header: HeaderSlot,
    pub(super) piece: u32,
}

impl Entry {
    /// What there is to know of a block of the heap.
    #[inline]
    pub(super) fn of(block: &Block) -> Option<Self> {
        let (_, capacity) = block.size();
        Some(Self {
            start: block.as_ptr(),
            capacity,
            header: block.header()?,
            #[allow(
                clippy::cast_possible_truncation,
                reason = "the cookie of the heap's blocks"
            )]
            piece: block.cookie() as u32,
        })
    }

    /// The block, for one who asked for it.
    // Always: as in the slab's `hand_out`.
    #[inline(always)]
    pub(super) fn block(&self, request: Request) -> Block {
        let (bytes, tag, cookie) = (request.bytes(), request.tag(), u64::from(self.piece));
        Block::new(self.start, bytes, self.capacity, cookie, tag).with_header(self.header)
    }

    #[inline]
    fn fits(&self, capacity: usize, align: usize) -> bool {
        self.capacity == capacity && self.start.addr().get() & (align - 1) == 0
    }
}

/// What a cache may hold, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// In one block.
    pub(super) block: usize,
    /// In all.
    pub(super) all: usize,
}

#[derive(Debug)]
pub(super) struct Cache {
    /// Only who has the cache writes these; others may look.
    len: AtomicU32,
    bytes: AtomicUsize,
    /// Bytes asked for by blocks of the heap that went out here less those that came back,
    /// wrapping.
    requested_bytes: AtomicUsize,
    /// Blocks that went out of the cache.
    hits: AtomicUsize,
    /// Calls since the last step.
    calls: AtomicU32,
    /// The first `len` are blocks; the last of them came last.
    entries: UnsafeCell<[Option<Entry>; ENTRIES]>,
}

// SAFETY: the blocks in it are nobody's, and whoever has the cache may hand them out.
unsafe impl Send for Cache {}
// SAFETY: `entries` is reached by whoever has the place only (`Held`); all else is atomic.
unsafe impl Sync for Cache {}

impl Default for Cache {
    fn default() -> Self {
        Self {
            len: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            requested_bytes: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
            calls: AtomicU32::new(0),
            entries: UnsafeCell::new([None; ENTRIES]),
        }
    }
}

impl Cache {
    /// Is nothing in it? To look at.
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: for who has it, its own last write; for others a first look.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Bytes in it, bytes asked for (wrapping), and hits. To look at.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        // Relaxed, all: numbers to look at.
        let bytes = self.bytes.load(Ordering::Relaxed);
        let requested = self.requested_bytes.load(Ordering::Relaxed);
        (bytes, requested, self.hits.load(Ordering::Relaxed))
    }
}

/// Blocks that left a cache together: none where it was empty.
pub(super) type Batch = [Option<Entry>; BATCH];

/// A cache that nobody else has; dropping leaves it.
#[derive(Debug)]
pub(super) struct Own<'a>(pub(super) Held<'a, Cache>);

impl Own<'_> {
    #[inline]
    fn with<R>(&mut self, work: impl FnOnce(&mut [Option<Entry>; ENTRIES]) -> R) -> R {
        self.0.entries.with_mut(|entries| {
            // SAFETY: a live cell, and nobody else reaches into it: the place made us the only
            // one who has the cache, and `&mut self` keeps us from coming twice.
            work(unsafe { &mut *entries })
        })
    }

    // Relaxed, here and below: who has it sees its own writes and those of whoever had it before;
    // leaving the place publishes them.
    #[inline]
    fn len(&self) -> usize {
        (self.0.len.load(Ordering::Relaxed) as usize).min(ENTRIES)
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&mut self, len: usize, bytes: usize) {
        #[allow(clippy::cast_possible_truncation, reason = "at most ENTRIES")]
        self.0.len.store(len as u32, Ordering::Relaxed);
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The block that came last, if it has just so many bytes, at a multiple of `align`, for one
    /// who asked for `requested`.
    #[inline]
    pub(super) fn pop_last(
        &mut self,
        capacity: usize,
        align: usize,
        requested: usize,
    ) -> Option<Entry> {
        // None at all: there is no such place.
        let last = self.len().wrapping_sub(1);
        let entry = self.with(|entries| *entries.get(last)?)?;
        if !entry.fits(capacity, align) {
            return None;
        }
        self.count_hit(last, capacity, requested);
        Some(entry)
    }

    /// As [`pop_last`](Self::pop_last), of all that fit the one that came last.
    pub(super) fn pop(&mut self, capacity: usize, align: usize, requested: usize) -> Option<Entry> {
        let len = self.len();
        let found = self.with(|entries| {
            let fits = |entry: &Option<Entry>| entry.is_some_and(|one| one.fits(capacity, align));
            let at = entries[..len].iter().rposition(fits)?;
            let entry = entries[at];
            entries.copy_within(at + 1..len, at);
            entry
        })?;
        self.count_hit(len - 1, capacity, requested);
        Some(found)
    }

    /// A block went out, and `len` are left.
    #[inline]
    fn count_hit(&mut self, len: usize, capacity: usize, requested: usize) {
        self.set(len, self.bytes() - capacity);
        self.count_out(requested);
        let hits = self.0.hits.load(Ordering::Relaxed);
        self.0.hits.store(hits.wrapping_add(1), Ordering::Relaxed);
    }

    /// Puts a block in. `false`: there is no room for it among the others.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry, room: Room) -> bool {
        let len = self.len();
        // No overflow: both are of one address space.
        let bytes = self.bytes() + entry.capacity;
        if bytes > room.all {
            return false;
        }
        let fits = self.with(|entries| entries.get_mut(len).map(|place| *place = Some(entry)));
        if fits.is_some() {
            self.set(len + 1, bytes);
        }
        fits.is_some()
    }

    /// The blocks that came first leave, at most [`BATCH`].
    pub(super) fn drain(&mut self) -> Batch {
        self.drain_some(BATCH)
    }

    /// Some of the blocks that came first leave, for one of `bytes` bytes: as many as it takes, or
    /// [`BATCH`].
    pub(super) fn make_room(&mut self, bytes: usize, room: Room) -> Batch {
        let len = self.len();
        if len == ENTRIES {
            return self.drain();
        }
        let mut over = self.bytes().saturating_add(bytes).saturating_sub(room.all);
        let count = self.with(|entries| {
            let enough = entries[..len].iter().flatten().take_while(|entry| {
                let more = over > 0;
                over = over.saturating_sub(entry.capacity);
                more
            });
            enough.count()
        });
        self.drain_some(count)
    }

    fn drain_some(&mut self, count: usize) -> Batch {
        let len = self.len();
        let count = count.min(BATCH).min(len);
        let mut batch = [None; BATCH];
        self.with(|entries| {
            batch[..count].copy_from_slice(&entries[..count]);
            entries.copy_within(count..len, 0);
        });
        let gone: usize = batch.iter().flatten().map(|entry| entry.capacity).sum();
        self.set(len - count, self.bytes() - gone);
        batch
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
