//! [`KeepAlive`]: what is shared lives until the last user has left.
//!
//! ```text
//!   word    outstanding << 1 | closed
//!
//!   enter   +2      a buffer goes out            only while the word is not final
//!   leave   -2      a buffer comes back          sees "1 outstanding, closed": destroy
//!   close   |1      the last handle goes away    sees "0 outstanding":         destroy
//! ```
//!
//! Whoever brings the word to "0 outstanding, closed" destroys, and exactly one
//! does, because each step is one atomic exchange of the whole word.
//! `loom_tests/keep_alive.rs` explores it.

use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Ordering, fence};

const CLOSED: usize = 1;
const ONE: usize = 2;

/// Counts users, and knows whether more may come. By default open, and nobody inside.
#[derive(Debug, Default)]
pub struct KeepAlive {
    word: AtomicUsize,
}

impl KeepAlive {
    /// One more user.
    ///
    /// The caller is inside or holds the right to close, so the word is not final.
    /// Aborts the process at half the range, which only forgotten buffers reach.
    #[inline]
    pub fn enter(&self) {
        // Relaxed: it publishes nothing; what the user may see, it saw through its handle.
        if self.word.fetch_add(ONE, Ordering::Relaxed) > usize::MAX / 2 {
            std::process::abort();
        }
    }

    /// One user fewer. `true`: the caller was the last and has to destroy.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
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
            fence(Ordering::Acquire);
        }
        last
    }

    /// Nobody enters from outside any more. `true`: nobody was inside, the caller
    /// has to destroy.
    #[must_use]
    pub fn close(&self) -> bool {
        let release = if mutant::is(Mutant::CloseRelaxed) {
            Ordering::Relaxed
        } else {
            // Release: what the handles did happens before the destruction by the
            // last `leave`; pairs with its fence.
            Ordering::Release
        };
        let before = if mutant::is(Mutant::CloseTwoSteps) {
            let before = self.word.load(Ordering::Acquire);
            self.word.fetch_or(CLOSED, release);
            before
        } else {
            self.word.fetch_or(CLOSED, release)
        };
        let last = before == 0;
        if last {
            // Acquire: pairs with the Release of every `leave`.
            fence(Ordering::Acquire);
        }
        last
    }

    /// How many are inside at this moment.
    pub fn outstanding(&self) -> usize {
        // Relaxed: a number to look at; nothing is decided by it.
        self.word.load(Ordering::Relaxed) / ONE
    }
}
