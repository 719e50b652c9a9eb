//! Where a large block comes from, rung by rung, and what is said when there is none.
//!
//! ```text
//!   1  best fit, all of it in memory            a lock
//!   2  the same, once every cache was emptied   what they held joins its neighbours
//!   3  best fit, its cold pages committed       system calls, no lock
//!        no room under the cap, and what is free here would make it:
//!   4    free pages elsewhere go back           the oldest first, as many as are missing
//!   5    the slabs' idle blocks do
//!   6    the limit's callbacks are asked        no lock, at most four rounds
//!        the system refuses: 4 and 5 too, then any stretch that is in memory
//!   7  all caches in hand at once, nothing in anybody's hands: an error
//! ```
//!
//! Each rung is climbed once a round, and another round needs that something came back
//! meanwhile, so a call ends.

use super::heap::{Fit, Segment, State, Taken};
use super::{Books, COMMIT_BYTES, Core, Own, PageSource};
use crate::memory::poison::poison;
use crate::memory::slab::SlabAllocator;
use crate::memory::{AllocError, Allocator};
use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicU64;
use crate::sync::{MutexGuard, Ordering, Patience};

/// A request of the heap. In pages, but for `bytes`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) bytes: usize,
    pub(super) pages: u32,
    pub(super) align: u32,
    pub(super) phase: u32,
}

/// How often each rung was what helped, or did not.
#[derive(Debug, Default)]
pub(super) struct Rungs {
    pub(super) emptied: AtomicU64,
    pub(super) committed: AtomicU64,
    pub(super) trimmed: AtomicU64,
    pub(super) slabs: AtomicU64,
    pub(super) pressed: AtomicU64,
    pub(super) refused: AtomicU64,
}

fn count(rung: &AtomicU64) {
    // Relaxed: a number to look at.
    rung.fetch_add(1, Ordering::Relaxed);
}

/// Why pages could not be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// No place is long enough, or the cap has no room.
    Cap,
    /// The system gives none, or takes none back.
    System,
}

impl<P: PageSource> Core<P> {
    /// Pages from the heap.
    #[inline(never)]
    pub(super) fn take_from_heap(&self, wanted: Wanted) -> Result<Taken, AllocError> {
        let mut books = self.books();
        if let Some(taken) = self.take_warm(&mut books, wanted)? {
            books.fits += 1;
            books.requested_bytes = books.requested_bytes.wrapping_add(wanted.bytes);
            return Ok(taken);
        }
        drop(books);
        self.climb(wanted)
    }

    /// Pages that are all in memory, if that is the best fit.
    fn take_warm(&self, books: &mut Books, wanted: Wanted) -> Result<Option<Taken>, AllocError> {
        let Wanted {
            pages,
            align,
            phase,
            ..
        } = wanted;
        books.heap.prepare(&self.space.pages, &self.headers)?;
        let Some(fit) = books.heap.find(pages, align, phase) else {
            return Ok(None);
        };
        if books.heap.cold_in(fit, pages) > 0 {
            return Ok(None);
        }
        let segment = books.heap.hold(fit, pages);
        Ok(Some(books.heap.use_up(segment, pages)))
    }

    #[cold]
    fn climb(&self, wanted: Wanted) -> Result<Taken, AllocError> {
        let mut patience = Patience::default();
        for round in 0_u32.. {
            let emptied = self.empty_caches() > 0;
            let mut books = self.books();
            let taken = self.take_warm(&mut books, wanted)?;
            if let Some(taken) = taken {
                books.requested_bytes = books.requested_bytes.wrapping_add(wanted.bytes);
                if emptied {
                    count(&self.rungs.emptied);
                }
                return Ok(taken);
            }
            let refused = match self.take_cold(books, wanted) {
                Ok(taken) => return Ok(taken),
                Err(refused) => refused,
            };
            if let Some(error) = self.refusal(wanted, refused, round) {
                count(&self.rungs.refused);
                return Err(error);
            }
            patience.wait();
        }
        unreachable!("there is another round")
    }

    /// Commits what is cold of the best fit, with all that is needed to make room for it.
    fn take_cold(&self, books: MutexGuard<'_, Books>, wanted: Wanted) -> Result<Taken, Refused> {
        let result = self.hold_cold(books, wanted).and_then(|segment| {
            self.commit_held(segment).map(|()| {
                count(&self.rungs.committed);
                self.books().heap.use_up(segment, wanted.pages)
            })
        });
        let mut books = self.books();
        let taken = result.or_else(|refused| {
            // Not the best, but it is in memory.
            let Wanted {
                pages,
                align,
                phase,
                ..
            } = wanted;
            let prepared = books.heap.prepare(&self.space.pages, &self.headers);
            let fit = prepared
                .ok()
                .and_then(|()| books.heap.find_warm(pages, align, phase));
            let segment = books.heap.hold(fit.ok_or(refused)?, pages);
            Ok(books.heap.use_up(segment, pages))
        })?;
        books.requested_bytes = books.requested_bytes.wrapping_add(wanted.bytes);
        Ok(taken)
    }

    /// The best fit, in the caller's hands; what is cold of it counts already.
    ///
    /// It counts before it is held, for a callback that is asked for room may use the pool, and
    /// would wait for what its own thread holds. So the best fit may be another one, or colder,
    /// by then: what counts grows until it suffices.
    fn hold_cold<'a>(
        &'a self,
        mut books: MutexGuard<'a, Books>,
        wanted: Wanted,
    ) -> Result<Segment, Refused> {
        let Wanted {
            pages,
            align,
            phase,
            ..
        } = wanted;
        let mut charged = 0;
        loop {
            let fit = books.heap.find(pages, align, phase);
            let Some(fit) =
                fit.filter(|_| books.heap.prepare(&self.space.pages, &self.headers).is_ok())
            else {
                self.space.uncharge(charged);
                return Err(Refused::Cap);
            };
            let most = pages + self.spare(&books, fit, pages);
            let need = self.bytes(books.heap.cold_in(fit, most));
            if need <= charged {
                let segment = books.heap.hold(fit, most);
                self.space.uncharge(charged - need);
                return Ok(segment);
            }
            drop(books);
            // All of it anew, so that nothing counts for a call that is refused.
            self.space.uncharge(charged);
            self.charge(need)?;
            charged = need;
            books = self.books();
        }
    }

    /// Commits a segment that counts already; on failure it is free again, as it is then.
    fn commit_held(&self, segment: Segment) -> Result<(), Refused> {
        let mut tries = 0;
        loop {
            let Err(left) = self.commit_segment(segment) else {
                return Ok(());
            };
            // What is here and free may be what the system lacks there.
            match tries {
                0 => _ = self.trim_warm(left, None),
                1 => _ = self.trim_slabs(),
                _ => {
                    self.space.uncharge(left);
                    self.books().heap.put_back(segment);
                    return Err(Refused::System);
                }
            }
            tries += 1;
        }
    }

    /// How many pages behind those that are wanted are committed with them.
    fn spare(&self, books: &Books, fit: Fit, pages: u32) -> u32 {
        if !self.commits_ahead {
            return 0;
        }
        let step = self.pages_up_to(COMMIT_BYTES).max(1);
        let cold = books.heap.cold_in(fit, pages);
        let spare = (cold.checked_next_multiple_of(step)).map_or(0, |round| round - cold);
        spare.min(books.heap.room_in(fit) - pages)
    }

    /// Counts bytes that are about to be committed, and makes room for them under the cap. What
    /// is free here goes back only where that, and what others give, suffices.
    fn charge(&self, bytes: usize) -> Result<(), Refused> {
        let space = &self.space;
        if space.try_charge(bytes) {
            return Ok(());
        }
        let missing = || bytes.saturating_sub(space.limit.available_bytes());
        if missing() > self.free_bytes() {
            if space.charge(bytes).is_ok() {
                count(&self.rungs.pressed);
                return Ok(());
            }
            if missing() > self.free_bytes() {
                return Err(Refused::Cap);
            }
        }
        let stuck = loop {
            let went = self.trim_warm(missing().max(1), None);
            if space.try_charge(bytes) {
                count(&self.rungs.trimmed);
                return Ok(());
            }
            if went.committed_bytes == 0 {
                break went.stuck;
            }
        };
        if self.trim_slabs() && space.try_charge(bytes) {
            count(&self.rungs.slabs);
            return Ok(());
        }
        if space.charge(bytes).is_ok() {
            count(&self.rungs.pressed);
            return Ok(());
        }
        Err(if stuck { Refused::System } else { Refused::Cap })
    }

    /// Bytes that count and are nobody's, in the heap and in the slabs.
    fn free_bytes(&self) -> usize {
        let warm = self.books().heap.warm_pages() << self.page_log2;
        let slabs = self.slabs.iter().map(SlabAllocator::stats);
        let idle = slabs.map(|slab| slab.cached_bytes + slab.unused_bytes);
        warm + idle.sum::<usize>()
    }

    /// Gives the slabs' idle blocks back. `false`: nothing went.
    fn trim_slabs(&self) -> bool {
        let before = self.space.committed().0;
        for slab in self.slabs.iter() {
            slab.trim();
        }
        self.space.committed().0 < before
    }

    /// Commits the cold pieces of a segment. `Err`: so many bytes could not be.
    pub(super) fn commit_segment(&self, segment: Segment) -> Result<(), usize> {
        let mut from = segment.first;
        loop {
            let books = self.books();
            let Some(piece) = books.heap.next_cold(segment, from) else {
                return Ok(());
            };
            let (pages, state) = (books.heap.pages_of(piece), books.heap.state_of(piece));
            drop(books);
            // SAFETY: our own region; the pages are in our hands.
            let committed = unsafe { self.space.pages.commit(&self.region, self.in_bytes(&pages)) };
            let mut books = self.books();
            if committed.is_err() {
                return Err(self.bytes(books.heap.cold_pages(segment)));
            }
            let now = match state {
                State::Virgin => State::Fresh,
                _ => State::Dirty,
            };
            books.heap.set_state(piece, now);
            drop(books);
            let len = pages.end - pages.start;
            // SAFETY: committed just now, and nobody's until they are handed out.
            unsafe { poison(self.start(pages.start), self.bytes(len)) };
            from = piece;
        }
    }

    /// What to say to a request that found nothing. `None`: something moved meanwhile, and the
    /// request tries again.
    fn refusal(&self, wanted: Wanted, refused: Refused, round: u32) -> Option<AllocError> {
        /// Rounds in which the numbers are believed more than the refusal.
        const TRUSTED: u32 = 64;
        let locals = self.locals.lock();
        let early = mutant::is(Mutant::PoolRefusesEarly);
        let seats = match self.seats.all() {
            Some(seats) => Some(seats.map(Own)),
            None if early => None,
            None => return None,
        };
        for mut own in seats.into_iter().flatten() {
            self.empty(&mut own);
        }
        for local in locals.iter() {
            match local.own() {
                Some(mut own) => _ = self.empty(&mut own),
                None if early => {}
                None => return None,
            }
        }
        // With all caches in hand nothing comes into it.
        self.empty_depot();
        let books = self.books();
        if !early && books.heap.is_held() {
            return None;
        }
        let page = 1 << self.page_log2;
        let warm = books.heap.warm_pages();
        // All that is free could go back, and as much be committed in one piece.
        let room = self.space.limit.available_bytes() / page;
        let by_cap = (books.heap.longest_run() as usize).min(room.saturating_add(warm));
        let largest = match refused {
            Refused::Cap => by_cap,
            Refused::System => books.heap.longest_warm() as usize,
        };
        // What was found in a cache just now, or came back, may do. A walk over what is aligned is
        // not made here.
        let trusted = if wanted.align == 1 { TRUSTED } else { 2 };
        if largest >= wanted.pages as usize && round < trusted {
            return None;
        }
        let live = books.heap.pages_in(State::Used) << self.page_log2;
        Some(AllocError::PoolExhausted {
            requested_bytes: wanted.bytes,
            live_bytes: live + self.slab_live_bytes(),
            cached_bytes: warm << self.page_log2,
            cap_bytes: self.space.limit.limit_bytes().min(self.region.bytes()),
            largest_free_bytes: largest << self.page_log2,
        })
    }

    /// `more` pages behind a piece that is somebody's become a part of it.
    pub(super) fn grow_piece(
        &self,
        piece: u32,
        more: u32,
        refused: AllocError,
    ) -> Result<(), AllocError> {
        let mut books = self.books();
        books.heap.prepare(&self.space.pages, &self.headers)?;
        let fit = books.heap.behind(piece, more).ok_or(refused)?;
        let segment = books.heap.hold(fit, more);
        let cold = self.bytes(books.heap.cold_pages(segment));
        if cold > 0 {
            drop(books);
            let charged = self.space.try_charge(cold);
            let committed = if charged {
                self.commit_segment(segment)
            } else {
                Err(0)
            };
            books = self.books();
            if let Err(left) = committed {
                self.space.uncharge(left);
                books.heap.put_back(segment);
                return Err(refused);
            }
        }
        let behind = books.heap.use_up(segment, more);
        books.heap.append(piece, behind.piece);
        Ok(())
    }
}
