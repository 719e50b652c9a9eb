//! Giving pages back: what was free the longest leaves the index, goes, and comes back cold.
//!
//! ```text
//!   under the lock     pieces off the old end of the list, up to a batch    no run has them
//!   outside it         decommit each
//!   under the lock     back into their runs: cold, or as before where they would not go
//! ```

use super::cache::STEP;
use super::heap::{Segment, State};
use super::{Core, Own, PageSource, TrimPolicy};
use crate::memory::Allocator as _;
use crate::mutant::{self, Mutant};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU32;

/// Pieces that a trim has in its hands at one time.
const PIECES: usize = if cfg!(loom) { 2 } else { 16 };

/// Bytes that a trim has in its hands at one time, about: who needs pages meanwhile finds others,
/// and who needs the system's address space waits for no longer call than that.
const HELD_BYTES: usize = 16 << 20;

/// Idle bytes that a slab keeps where what was free for a while goes back.
const SLAB_KEEPS: usize = 1 << 20;

/// What went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Went {
    /// Bytes that count no more.
    pub(super) committed_bytes: usize,
    /// Those of them that were in memory.
    pub(super) resident_bytes: usize,
    /// Did the source keep any?
    pub(super) stuck: bool,
}

/// A pool's time, in calls, and when something is due.
#[derive(Debug)]
pub(super) struct Ages {
    pub(super) policy: TrimPolicy,
    /// Calls so far, in steps, wrapping.
    calls: AtomicU32,
    /// When it was looked the last time whether something is due.
    looked: AtomicU32,
}

impl Ages {
    pub(super) fn new(policy: TrimPolicy) -> Self {
        Self {
            policy,
            calls: AtomicU32::new(0),
            looked: AtomicU32::new(0),
        }
    }

    /// Does anybody want to know the time?
    #[inline]
    pub(super) fn count_calls(&self) -> bool {
        self.policy.idle_calls.is_some()
    }

    pub(super) fn now(&self) -> u32 {
        // Relaxed: a clock.
        self.calls.load(Ordering::Relaxed)
    }

    /// Another step. Where it is time to look, for one caller: what became free before it is due.
    fn step(&self) -> Option<u32> {
        let idle = self.policy.idle_calls?;
        // Relaxed, all: a clock, and one of those who see that it is time looks.
        let now = self
            .calls
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        let looked = self.looked.load(Ordering::Relaxed);
        if now.wrapping_sub(looked) < (idle / 2).max(STEP) {
            return None;
        }
        let first = self
            .looked
            .compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed);
        first.is_ok().then(|| now.wrapping_sub(idle))
    }
}

impl<P: PageSource> Core<P> {
    /// The blocks of a cache go to the heap. Says how many there were.
    pub(super) fn empty(&self, own: &mut Own<'_>) -> usize {
        let mut all = 0;
        loop {
            let mut batch = own.drain();
            let count = batch.iter().flatten().count();
            if count == 0 {
                return all;
            }
            all += count;
            if mutant::is(Mutant::PoolLosesFlushed) {
                batch[count - 1] = None;
            }
            self.put_batch(&batch);
        }
    }

    /// Every cache that nobody is at is emptied, and the depot. Says how many blocks there were.
    pub(super) fn empty_caches(&self) -> usize {
        let mut all = self.empty_depot();
        for own in self.seats.taken(|cache| !cache.is_empty()) {
            all += self.empty(&mut Own(own));
        }
        for local in self.locals.lock().iter() {
            if !local.cache().is_empty() {
                all += self.empty_local(local);
            }
        }
        all
    }

    /// The batches between the caches go to the heap. Says how many blocks there were.
    pub(super) fn empty_depot(&self) -> usize {
        let mut all = 0;
        if mutant::is(Mutant::PoolForgetsDepot) {
            return all;
        }
        loop {
            // Bound, so that the lock is not held for what follows.
            let batch = self.depot.lock().pop_any();
            let Some(batch) = batch else {
                return all;
            };
            all += batch.iter().flatten().count();
            self.put_batch(&batch);
        }
    }

    pub(super) fn empty_local(&self, local: &super::Local) -> usize {
        local.own().map_or(0, |mut own| self.empty(&mut own))
    }

    /// Up to `bytes` bytes that are free and in memory go, the oldest first, and of those only
    /// what became free before `before`.
    pub(super) fn trim_warm(&self, bytes: usize, before: Option<u32>) -> Went {
        let mut went = Went::default();
        let wanted = self.pages(bytes).unwrap_or(u32::MAX);
        // What will not go comes back as the youngest: nothing is tried twice.
        let warm = self.books().heap.warm_pages();
        let mut left = wanted.min(u32::try_from(warm).unwrap_or(u32::MAX));
        while left > 0 {
            let mut held = [None; PIECES];
            let mut room = self.pages_up_to(HELD_BYTES).max(1);
            let mut books = self.books();
            books.heap.clock = self.ages.now();
            for place in &mut held {
                if left.min(room) == 0
                    || books
                        .heap
                        .prepare(&self.space.pages, &self.headers)
                        .is_err()
                {
                    break;
                }
                let Some(segment) = books.heap.hold_oldest(left.min(room), before) else {
                    break;
                };
                let pages = books.heap.pages_of(segment.first);
                left -= pages.end - pages.start;
                room -= pages.end - pages.start;
                if mutant::is(Mutant::PoolTrimsInPlace) {
                    books.heap.put_back(segment);
                }
                *place = Some(segment);
            }
            drop(books);
            if held[0].is_none() {
                break;
            }
            for segment in held.into_iter().flatten() {
                let one = self.decommit_held(segment);
                went.committed_bytes += one.committed_bytes;
                went.resident_bytes += one.resident_bytes;
                went.stuck |= one.stuck;
            }
        }
        went
    }

    /// The pages of one piece in the caller's hands go, and it is free again.
    pub(super) fn decommit_held(&self, segment: Segment) -> Went {
        debug_assert_eq!(segment.first, segment.last);
        let books = self.books();
        let pages = books.heap.pages_of(segment.first);
        drop(books);
        let range = self.in_bytes(&pages);
        let bytes = range.len();
        // SAFETY: committed pages in our hands, which nobody uses.
        let gone = unsafe { self.space.pages.decommit(&self.region, range) };
        let went = Went {
            committed_bytes: gone.map_or(0, |_| bytes),
            resident_bytes: gone.unwrap_or(0),
            stuck: gone.is_none(),
        };
        // As long as the piece is held: who finds it free finds room for it too.
        self.space.uncharge(went.committed_bytes);
        let zero = self.space.pages.decommits_to_zero();
        let mut books = self.books();
        books.heap.clock = self.ages.now();
        if gone.is_some() {
            // Committed again they are as good as new, or anything.
            let now = if zero { State::Virgin } else { State::Gone };
            books.heap.set_state(segment.first, now);
        }
        if !mutant::is(Mutant::PoolTrimsInPlace) {
            books.heap.put_back(segment);
        }
        went
    }

    /// Something came back to the heap: where more is free and in memory than the policy keeps,
    /// the oldest of it goes. No cache may be held.
    pub(super) fn keep_to_policy(&self) {
        let keep = self.ages.policy.keep_bytes;
        if keep == usize::MAX {
            return;
        }
        let warm = self.books().heap.warm_pages() << self.page_log2;
        if warm > keep {
            // An eighth less, so that it is not the next one's turn at once.
            self.trim_warm(warm - keep + keep / 8, None);
        }
    }

    /// So many calls were made that something may be due.
    #[cold]
    pub(super) fn step(&self) {
        let Some(due) = self.ages.step() else {
            return;
        };
        self.empty_caches();
        self.trim_warm(usize::MAX, Some(due));
        for slab in self.slabs.iter() {
            let stats = slab.stats();
            if stats.cached_bytes > stats.live_bytes.max(SLAB_KEEPS) {
                slab.trim();
            }
        }
    }

    pub(super) fn trim(&self) -> usize {
        self.empty_caches();
        let slabs: usize = self.slabs.iter().map(|slab| slab.trim()).sum();
        self.trim_warm(usize::MAX, None).resident_bytes + slabs
    }
}
