//! Seats: what is kept for one thread, used by it without an atomic exchange.
//!
//! ```text
//!   who it belongs to                       anybody else
//!   busy = 1                                stop: 0 -> 1, or go away
//!   light barrier                           heavy barrier
//!   stop == 0 ?  inside                     busy == 0 ?  inside
//!   busy = 0 at the end                     stop = 0 at the end
//! ```
//!
//! This is Dekker's protocol with the cost on one side. Both write, then read; with a barrier
//! between the two at least one sees the other, and who does goes away. The owner's barrier
//! costs nothing, as the other side's makes up for it (`membarrier`): the owner comes millions
//! of times where the other comes once, for a steal, a trim or a sum. An exchange costs about
//! 5 ns on the machines that we measured, all of the owner's side together less than 1.
//!
//! Threads without a seat share some places without an owner, where `stop` alone decides.
//! Who comes to a place does not wait: it goes on without one. Only who
//! [closes](Seats::close) them all waits. `loom_tests/seats.rs` explores it.

use std::hint::cold_path;
use std::ops::Deref;

use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicU32;
use crate::sync::{CachePadded, Ordering, Patience, SEATS, heavy_barrier, light_barrier, worker};

/// Places for the threads that have no seat.
pub(super) const COMMON: usize = if cfg!(loom) { 1 } else { 4 };

/// All places.
pub(super) const PLACES: usize = SEATS + COMMON;

/// The two words that say who is inside.
#[derive(Debug, Default)]
pub(super) struct Door {
    /// 1 while the owner is inside, or looks whether it may be. Only the owner writes.
    busy: AtomicU32,
    /// 1 while another is.
    stop: AtomicU32,
}

/// Somebody is inside; dropping leaves.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a AtomicU32);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        let release = if mutant::is(Mutant::SeatLeaveRelaxed) {
            Ordering::Relaxed
        } else {
            // Release: publishes what was done inside, to the Acquire of whoever comes next:
            // the owner reads `stop`, another takes `stop` or reads `busy`.
            Ordering::Release
        };
        self.0.store(0, release);
    }
}

impl Door {
    /// A door that nobody comes through before [`stopped`](Self::stopped) was dropped.
    pub(super) fn shut() -> Self {
        let door = Self::default();
        // Relaxed: nobody else has it yet.
        door.stop.store(1, Ordering::Relaxed);
        door
    }

    /// The owner goes in, if nobody is inside.
    ///
    /// # Safety
    /// The caller's [`worker`] number is the one that this door belongs to.
    #[inline]
    pub(super) unsafe fn enter(&self) -> Option<Inside<'_>> {
        // Relaxed, both: a first look. Its own earlier writes a thread sees anyway, and it
        // may be inside already, further up its stack.
        if self.busy.load(Ordering::Relaxed) | self.stop.load(Ordering::Relaxed) != 0 {
            cold_path();
            return None;
        }
        // Relaxed: the barriers order it before the load of `stop`.
        self.busy.store(1, Ordering::Relaxed);
        if !mutant::is(Mutant::SeatNoBarrier) {
            light_barrier();
        }
        let inside = Inside(&self.busy);
        // Acquire: sees what the last other one did; pairs with the Release of its leaving.
        let seen = if mutant::is(Mutant::SeatOwnerRelaxed) {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        if self.stop.load(seen) != 0 && !mutant::is(Mutant::SeatOwnerIgnoresStop) {
            cold_path();
            return None;
        }
        Some(inside)
    }

    /// Keeps the owner and all others out, from the moment that the owner is not inside.
    /// `false`: somebody else does so already.
    #[inline]
    pub(super) fn stop(&self) -> bool {
        // Acquire: sees what the last other one did. Relaxed on failure: who is refused
        // reads nothing. Not a swap, which would write also then.
        let acquire = if mutant::is(Mutant::SeatTakeRelaxed) {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        if mutant::is(Mutant::SeatTwoSteps) {
            let before = self.stop.load(acquire);
            self.stop.store(1, Ordering::Relaxed);
            return before == 0;
        }
        self.stop
            .compare_exchange(0, 1, acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Is the owner inside? Asked by who [stopped](Self::stop) it, after a [`heavy_barrier`].
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        // Acquire: sees what the owner did; pairs with the Release of its leaving.
        self.busy.load(Ordering::Acquire) != 0 && !mutant::is(Mutant::SeatIgnoresOwner)
    }

    /// Whoever [stopped](Self::stop) it, with the owner out, is inside now. (Or, if it never
    /// drops this: keeps everybody out for ever.)
    #[inline]
    pub(super) fn stopped(&self) -> Inside<'_> {
        Inside(&self.stop)
    }
}

/// A place with what is kept there.
#[derive(Debug, Default)]
struct Seat<T> {
    door: Door,
    kept: T,
}

impl<T> Seat<T> {
    #[inline]
    fn held<'a>(&'a self, inside: Inside<'a>) -> Held<'a, T> {
        Held {
            kept: &self.kept,
            _inside: inside,
        }
    }
}

/// One place, with nobody else there; dropping leaves it.
#[derive(Debug)]
pub struct Held<'a, T> {
    kept: &'a T,
    _inside: Inside<'a>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.kept
    }
}

/// A place without an owner, apart from all others.
#[derive(Debug, Default)]
pub(super) struct Lone<T>(CachePadded<Seat<T>>);

impl<T> Lone<T> {
    /// The place. `None`: somebody is there. Never waits.
    #[inline]
    pub(super) fn take(&self) -> Option<Held<'_, T>> {
        let stopped = self.0.door.stop();
        // Not `then_some`: one that is made and dropped would leave for the other.
        stopped.then(|| self.0.held(self.0.door.stopped()))
    }

    /// What is kept there, to look at what may be looked at.
    pub(super) fn kept(&self) -> &T {
        &self.0.kept
    }
}

/// A place for each thread that has a seat, and some for the others.
#[derive(Debug)]
pub struct Seats<T>([CachePadded<Seat<T>>; PLACES]);

impl<T: Default> Default for Seats<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| CachePadded::new(Seat::default())))
    }
}

impl<T> Seats<T> {
    /// This thread's place. `None`: it is taken, and the caller does without. Never waits.
    #[inline]
    pub fn here(&self) -> Option<Held<'_, T>> {
        let number = worker();
        if number >= SEATS {
            return self.common(number);
        }
        let seat = &self.0[number];
        // SAFETY: this thread has that number just now.
        let Some(inside) = (unsafe { seat.door.enter() }) else {
            cold_path();
            return None;
        };
        Some(seat.held(inside))
    }

    /// A place that has no owner.
    #[cold]
    #[allow(clippy::modulo_one, reason = "the models have one")]
    fn common(&self, number: usize) -> Option<Held<'_, T>> {
        let first = number % COMMON;
        let mut places = (first..COMMON).chain(0..first);
        places.find_map(|place| {
            let seat = &self.0[SEATS + place];
            let stopped = seat.door.stop();
            // Not `then_some`: one that is made and dropped would leave for the other.
            stopped.then(|| seat.held(seat.door.stopped()))
        })
    }

    /// Each place that `wanted` says yes to and where nobody is, one after the other.
    pub fn taken(&self, wanted: impl Fn(&T) -> bool) -> impl Iterator<Item = Held<'_, T>> {
        let wanted = self
            .0
            .iter()
            .enumerate()
            .filter(move |(_, seat)| wanted(&seat.kept));
        wanted.filter_map(|(place, seat)| {
            let inside = seat.door.stop().then(|| seat.door.stopped())?;
            if place < SEATS {
                heavy_barrier();
                if seat.door.is_busy() {
                    return None;
                }
            }
            Some(seat.held(inside))
        })
    }

    /// All places at once. `None`: somebody is in one of them.
    pub fn all(&self) -> Option<[Held<'_, T>; PLACES]> {
        let mut inside = [const { None }; PLACES];
        for (inside, seat) in inside.iter_mut().zip(&self.0) {
            *inside = Some(seat.door.stop().then(|| seat.door.stopped())?);
        }
        heavy_barrier();
        if self.0.iter().any(|seat| seat.door.is_busy()) {
            return None;
        }
        let mut inside = inside.into_iter().flatten().zip(&self.0);
        Some(std::array::from_fn(|_| match inside.next() {
            Some((inside, seat)) => seat.held(inside),
            None => unreachable!("there is one for each place"),
        }))
    }

    /// Shuts every place for ever, and waits until nobody is inside. Afterwards
    /// [`here`](Self::here) always answers `None`. By one caller, once; nobody may be in the
    /// middle of [`taken`](Self::taken) or [`all`](Self::all).
    pub fn close(&self) {
        let mut patience = Patience::default();
        for seat in &self.0 {
            while !seat.door.stop() {
                patience.wait();
            }
            std::mem::forget(seat.door.stopped());
        }
        heavy_barrier();
        for seat in &self.0 {
            while seat.door.is_busy() {
                patience.wait();
            }
        }
    }

    /// What is kept at every place, for who is not there: to look at what may be looked at.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|seat| &seat.kept)
    }
}
