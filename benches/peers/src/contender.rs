//! What competes: something that hands out memory and takes it back.
//!
//! ```text
//!   Contender            one for all threads: an allocator, a pool, a queue of blocks
//!      │ hand()
//!      ▼
//!   Hand                 what one thread works with: a cache of its own, or a reference
//!      │ take(bytes) ──▶ Held ──▶ give(held), on whichever thread
//! ```
//!
//! Most contenders are the same for every thread and implement [`Shared`] instead: then a
//! hand is a reference. Everything is generic, so the timed loop calls what a user's code
//! would call, inlined as there: `take` and `give` always, or it would be a whim of the compiler
//! whose held values are copied once more on their way.

use crate::system::PAGE_BYTES;

/// What a contender is made for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the largest request.
    pub bytes: usize,
    /// Requests that may be out at once, over all threads.
    pub blocks: usize,
}

/// Hands out memory and takes it back, from any thread.
pub trait Contender: Sync {
    /// One allocation. Dropping it instead of giving it back may leak it.
    type Held: Send;
    /// What one thread works with.
    type Hand<'a>: Hand<Held = Self::Held>
    where
        Self: 'a;

    /// A hand for the calling thread.
    fn hand(&self) -> Self::Hand<'_>;

    /// Gives memory that nobody uses to the system, by whatever call there is for that. No
    /// call, no effect.
    fn trim(&self) {}
}

/// One thread's way into a contender.
pub trait Hand {
    /// One allocation.
    type Held;

    /// `bytes` bytes. Panics where there are none: a race without memory is void.
    fn take(&mut self, bytes: usize) -> Self::Held;

    /// Gives back what any hand of the same contender took.
    fn give(&mut self, held: Self::Held);

    /// The first byte. The bytes are writable until `held` is given back.
    fn start(held: &Self::Held) -> *mut u8;

    /// Says that a step is over: all that this thread took has been given back. For arenas,
    /// which take nothing back before.
    #[inline]
    fn end_step(&mut self) {}
}

/// A contender that is the same for every thread.
pub trait Shared: Sync {
    /// One allocation.
    type Held: Send;

    /// As [`Hand::take`].
    fn take(&self, bytes: usize) -> Self::Held;

    /// As [`Hand::give`].
    fn give(&self, held: Self::Held);

    /// As [`Hand::start`].
    fn start(held: &Self::Held) -> *mut u8;

    /// As [`Contender::trim`].
    fn trim(&self) {}
}

impl<S: Shared> Contender for S {
    type Held = S::Held;
    type Hand<'a>
        = &'a S
    where
        S: 'a;

    fn hand(&self) -> &S {
        self
    }

    fn trim(&self) {
        S::trim(self);
    }
}

impl<S: Shared> Hand for &S {
    type Held = S::Held;

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> S::Held {
        S::take(self, bytes)
    }

    #[inline(always)]
    fn give(&mut self, held: S::Held) {
        S::give(self, held);
    }

    #[inline]
    fn start(held: &S::Held) -> *mut u8 {
        S::start(held)
    }
}

/// Writes one byte of every page of `held`, and at least one.
#[inline]
pub fn touch<H: Hand>(held: &H::Held, bytes: usize) {
    let start = H::start(held);
    for page in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: below `bytes`, which is what was taken.
        let place = unsafe { start.add(page) };
        // SAFETY: writable and ours until it is given back; volatile, so that the
        // compiler does not see that nobody reads it.
        unsafe { place.write_volatile(1) };
    }
}

/// Asserts, once and before any timing, that `contender` does its job: two allocations at
/// once are apart, aligned as promised, and each keeps what is written to it.
pub fn check<C: Contender>(name: &str, contender: &C, shape: Shape, align: usize) {
    let mut hand = contender.hand();
    let (first, second) = (hand.take(shape.bytes), hand.take(shape.bytes));
    let (one, two) = (C::Hand::start(&first), C::Hand::start(&second));
    for start in [one, two] {
        assert!(
            start.addr().is_multiple_of(align),
            "{name}: {start:p} is not a multiple of {align}"
        );
    }
    assert!(
        one.addr().abs_diff(two.addr()) >= shape.bytes,
        "{name}: {one:p} and {two:p} overlap"
    );
    let last = shape.bytes - 1;
    let places = || (0..last).step_by(PAGE_BYTES).chain([last]);
    for (start, seed) in [(one, 0x5a_u8), (two, 0xa5)] {
        for at in places() {
            // SAFETY: `at` is below what was taken.
            let place = unsafe { start.add(at) };
            // SAFETY: ours until it is given back.
            unsafe { place.write_volatile(seed ^ at.to_le_bytes()[1]) };
        }
    }
    for (start, seed) in [(one, 0x5a_u8), (two, 0xa5)] {
        for at in places() {
            // SAFETY: `at` is below what was taken.
            let place = unsafe { start.add(at) };
            // SAFETY: written above, and ours until it is given back.
            let found = unsafe { place.read_volatile() };
            assert_eq!(found, seed ^ at.to_le_bytes()[1], "{name}: byte {at}");
        }
    }
    hand.give(first);
    hand.give(second);
    let again = hand.take(shape.bytes);
    touch::<C::Hand<'_>>(&again, shape.bytes);
    hand.give(again);
}

/// Takes all that the race will ever hold, touches it if the race will, and gives it back:
/// a pool has its pages then, and whoever returns them to the system has done so.
pub fn warm<C: Contender>(contender: &C, shape: Shape, touched: bool) {
    let mut hand = contender.hand();
    let all: Vec<_> = (0..shape.blocks).map(|_| hand.take(shape.bytes)).collect();
    for held in all {
        if touched {
            touch::<C::Hand<'_>>(&held, shape.bytes);
        }
        hand.give(held);
    }
}
