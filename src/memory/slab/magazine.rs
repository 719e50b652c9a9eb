//! Magazines: a few blocks at hand for each worker, so that the shared tier is rare.
//!
//! ```text
//!   thread 0 ─▶ | len | out | asked for | ids … |      one magazine and its door, 128 bytes
//!   thread 1 ─▶ | len | out | asked for | ids … |
//!   thread 9 ─▶ one of four that have no owner, where more threads run than there are seats
//! ```
//!
//! They lie at [seats](crate::memory::seat): a thread uses its own without an atomic exchange,
//! and nobody waits for one. They belong to the slab; a thread owns no block and leaves none
//! behind when it ends. What is in a magazine can be stolen by whoever finds the shared tier
//! empty.
//!
//! A magazine also counts what went out and came back through it. One of the numbers
//! alone says little, for a block may go out of one and come back into another, but their
//! sums are exact.

use crate::memory::seat::{self, PLACES, Seats};
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Ordering, UnsafeCell};

/// Blocks that one holds: as many as fill two cache lines with the rest and the door.
pub(super) const CAPACITY: usize = if cfg!(loom) { 2 } else { 24 };

/// Blocks that go to the shared tier or come from there at once.
pub(super) const BATCH: usize = if cfg!(loom) { 2 } else { CAPACITY / 2 };

#[derive(Debug)]
pub(super) struct Magazine {
    /// Blocks in it. Only who has it writes; others may look.
    len: AtomicU32,
    /// Blocks that went out through it less those that came back, wrapping.
    in_use: AtomicUsize,
    /// Bytes asked for by them, wrapping.
    requested_bytes: AtomicUsize,
    /// The first `len` are blocks; the last of them came last.
    ids: UnsafeCell<[u32; CAPACITY]>,
}

// SAFETY: `ids` is reached by whoever has the magazine only (`Held`); all else is atomic.
unsafe impl Sync for Magazine {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Magazines>() == 128 * PLACES);

impl Default for Magazine {
    fn default() -> Self {
        Self {
            len: AtomicU32::new(0),
            in_use: AtomicUsize::new(0),
            requested_bytes: AtomicUsize::new(0),
            ids: UnsafeCell::new([0; CAPACITY]),
        }
    }
}

impl Magazine {
    /// Blocks in it at this moment.
    #[inline]
    fn len(&self) -> usize {
        // Relaxed: for who has it, the last write is its own or one that it acquired;
        // for others a number to look at, on which nothing rests.
        self.len.load(Ordering::Relaxed) as usize
    }
}

/// A magazine that nobody else has; dropping leaves it.
#[derive(Debug)]
pub(in crate::memory) struct Held<'a>(seat::Held<'a, Magazine>);

impl Held<'_> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        debug_assert!(len <= CAPACITY);
        #[allow(clippy::cast_possible_truncation, reason = "at most CAPACITY")]
        // Relaxed: published by leaving the magazine.
        self.0.len.store(len as u32, Ordering::Relaxed);
    }

    #[inline]
    fn with_ids<R>(&mut self, work: impl FnOnce(&mut [u32; CAPACITY]) -> R) -> R {
        self.0.ids.with_mut(|ids| {
            // SAFETY: a live cell, and nobody else reaches into it: the seat made us the
            // only one who has the magazine, and `&mut self` keeps us from coming twice.
            work(unsafe { &mut *ids })
        })
    }

    /// The block that came last.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u32> {
        // None at all: there is no such place.
        let last = self.len().wrapping_sub(1);
        let block = self.with_ids(|ids| ids.get(last).copied())?;
        self.set_len(last);
        Some(block)
    }

    /// Adds a block. `false`: there is no room for it.
    #[inline]
    pub(super) fn push(&mut self, block: u32) -> bool {
        let len = self.len();
        let fits = self.with_ids(|ids| ids.get_mut(len).map(|place| *place = block));
        if fits.is_some() {
            self.set_len(len + 1);
        }
        fits.is_some()
    }

    /// The `count` blocks that came first leave; `each` gets them, the oldest first.
    pub(super) fn drain(&mut self, count: usize, mut each: impl FnMut(u32)) {
        let len = self.len();
        let count = count.min(len);
        self.with_ids(|ids| {
            ids[..count].iter().for_each(|&block| each(block));
            ids.copy_within(count..len, 0);
        });
        self.set_len(len - count);
    }

    /// Puts `blocks` in, so that the first of them is popped first. It has to be empty.
    pub(super) fn fill(&mut self, blocks: &[u32]) {
        debug_assert_eq!(self.len(), 0);
        self.with_ids(|ids| {
            for (place, &block) in ids.iter_mut().zip(blocks.iter().rev()) {
                *place = block;
            }
        });
        self.set_len(blocks.len());
    }

    /// A block goes out.
    #[inline]
    pub(super) fn count_out(&mut self, requested_bytes: usize) {
        self.count(1, requested_bytes);
    }

    /// A block comes back.
    #[inline]
    pub(super) fn count_back(&mut self, requested_bytes: usize) {
        self.count(usize::MAX, requested_bytes.wrapping_neg());
    }

    #[inline]
    fn count(&mut self, blocks: usize, bytes: usize) {
        let (in_use, requested) = (&self.0.in_use, &self.0.requested_bytes);
        // Relaxed, and no exchange: only who has the magazine writes them, and who reads
        // them wants numbers.
        let sum = in_use.load(Ordering::Relaxed).wrapping_add(blocks);
        in_use.store(sum, Ordering::Relaxed);
        let sum = requested.load(Ordering::Relaxed).wrapping_add(bytes);
        requested.store(sum, Ordering::Relaxed);
    }
}

/// All magazines of a slab.
#[derive(Debug, Default)]
pub(super) struct Magazines(Seats<Magazine>);

impl Magazines {
    /// This thread's magazine. Never waits.
    #[inline]
    pub(super) fn take(&self) -> Option<Held<'_>> {
        self.0.here().map(Held)
    }

    /// Each one that has blocks and that nobody has, one after the other.
    pub(super) fn idle(&self) -> impl Iterator<Item = Held<'_>> {
        self.0.taken(|magazine| magazine.len() > 0).map(Held)
    }

    /// All of them at once, so that no block moves. `None`: somebody has one.
    pub(super) fn take_all(&self) -> Option<[Held<'_>; PLACES]> {
        Some(self.0.all()?.map(Held))
    }

    /// Sums of what went out and did not come back: blocks, and bytes asked for. Wrapping:
    /// the shared tier's own numbers belong to them.
    pub(super) fn counts(&self) -> (usize, usize) {
        // Relaxed: see `count`.
        let add =
            |sum: usize, number: &AtomicUsize| sum.wrapping_add(number.load(Ordering::Relaxed));
        self.0.iter().fold((0, 0), |(blocks, bytes), magazine| {
            (
                add(blocks, &magazine.in_use),
                add(bytes, &magazine.requested_bytes),
            )
        })
    }
}
