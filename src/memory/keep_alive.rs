//! [`KeepAlive`]: what is shared lives until the last user has left.
//!
//! ```text
//!   counts  one for each seat: who entered there less who left, by itself any number
//!   word    the rest of the outstanding << 1 | closed
//!
//!   enter   +1 at the seat, else word +2
//!   leave   -1 at the seat, else word -2         saw "1 outstanding, closed": destroy
//!   close   shut every seat, then one addition
//!           of their sum and of "closed"         made  "0 outstanding, closed": destroy
//! ```
//!
//! While it is open a thread counts at its own [seat](super::seat), without an exchange; the
//! numbers mean something together only. Closing brings them together: who comes to a seat that
//! is shut counts in the word. Whoever brings the word to "0 outstanding, closed" destroys,
//! and exactly one does: "closed" comes with the sum in one addition, and from then on each
//! step is one exchange of the whole word. (The kernel's `percpu_ref` works in this way.)
//! `loom_tests/keep_alive.rs` explores it.

use super::seat::Seats;
use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Ordering, acquire_end};

const CLOSED: usize = 1;
const ONE: usize = 2;

/// What a seat counts before it hands its number on to the word.
const MOST_AT_A_SEAT: usize = if cfg!(loom) { 2 } else { 1 << 20 };

/// Counts users, and knows whether more may come. By default open, and nobody inside.
#[derive(Debug, Default)]
pub struct KeepAlive {
    /// Sums wrap: a thread may let out what others let in.
    counts: Seats<AtomicUsize>,
    word: AtomicUsize,
}

#[inline]
fn check(count: usize) {
    if count.cast_signed() > isize::MAX / 64 {
        // Only forgotten buffers get here; wrapping would free too early.
        std::process::abort();
    }
}

impl KeepAlive {
    /// One more user.
    ///
    /// The caller is inside or holds the right to close, so the word is not final.
    /// Aborts the process at a fraction of the range, which only forgotten buffers reach.
    #[inline]
    pub fn enter(&self) {
        if let Some(count) = self.counts.here() {
            // Relaxed, and no exchange: only who is at the seat writes it.
            let now = count.load(Ordering::Relaxed).wrapping_add(1);
            count.store(now, Ordering::Relaxed);
            if now.cast_signed() < MOST_AT_A_SEAT.cast_signed() {
                return;
            }
            // Where others let out what this thread lets in, its number alone grows without end.
            // Relaxed: as below.
            count.store(0, Ordering::Relaxed);
            check(self.word.fetch_add(now * ONE, Ordering::Relaxed));
            return;
        }
        // Relaxed: it publishes nothing; what the user may see, it saw through its handle.
        check(self.word.fetch_add(ONE, Ordering::Relaxed));
    }

    /// One user fewer. `true`: the caller was the last and has to destroy.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        if let Some(count) = self.counts.here() {
            // Relaxed, and no exchange: as above. What this user did is published by leaving
            // the seat, to whoever shuts it.
            let now = count.load(Ordering::Relaxed).wrapping_sub(1);
            count.store(now, Ordering::Relaxed);
            return false;
        }
        self.leave_word()
    }

    fn leave_word(&self) -> bool {
        let release = if mutant::is(Mutant::LeaveRelaxed) {
            Ordering::Relaxed
        } else {
            // Release: what this user did happens before the destruction;
            // pairs with the Acquire fence of whoever sees the final word.
            Ordering::Release
        };
        let last = self.word.fetch_sub(ONE, release) == ONE | CLOSED;
        if last {
            // Acquire: pairs with the Release of every other `leave` and of `close`.
            acquire_end(|order| self.word.load(order));
        }
        last
    }

    /// Nobody enters from outside any more. `true`: nobody was inside, the caller
    /// has to destroy.
    #[must_use]
    pub fn close(&self) -> bool {
        if !mutant::is(Mutant::CloseForgetsSeats) {
            self.counts.close();
        }
        // Release: what the handles did, and what was done at the seats, happens before
        // the destruction by the last `leave`; pairs with its fence. (The heavy barrier would
        // do that too, so no model can show that this is needed.)
        let release = Ordering::Release;
        let moved = self.sum().wrapping_mul(ONE);
        let before = if mutant::is(Mutant::CloseTwoSteps) {
            let before = self.word.load(Ordering::Acquire);
            self.word.fetch_add(moved.wrapping_add(CLOSED), release);
            before
        } else {
            self.word.fetch_add(moved.wrapping_add(CLOSED), release)
        };
        let last = before.wrapping_add(moved) == 0;
        if last {
            // Acquire: pairs with the Release of every `leave`.
            acquire_end(|order| self.word.load(order));
        }
        last
    }

    fn sum(&self) -> usize {
        // Relaxed: once the seats are shut, the shutting published their counts; before, a
        // number to look at.
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        counts.fold(0, usize::wrapping_add)
    }

    /// How many are inside at this moment. Exact while nobody enters, leaves or closes.
    pub fn outstanding(&self) -> usize {
        // Relaxed: a number to look at; nothing is decided by it.
        let word = self.word.load(Ordering::Relaxed).cast_signed() >> 1;
        let count = word.cast_unsigned().wrapping_add(self.sum());
        usize::try_from(count.cast_signed()).unwrap_or(0)
    }
}
